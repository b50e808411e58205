"""What a decode step costs beside the model: scheduler, packing, post-processing, commit.

::

    Engine over a model of nothing      schedule ─> execute: pack ─> (stub) ─> sample, stop, update ─> commit ─> rest
                                        schedule    pack          post_process                         commit   streams

The scheduler, runner, block pool and ops are the engine's own; only `forward` and `head` of its decoder are replaced by
ones that launch nothing, so logits stay the random numbers they were filled with.

Invariant: what is counted are steps in which every request decodes one token, in the engine's own loop; nobody follows
the streams meanwhile, because a thread that wakes for each token would take its time from the loop.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from accel.cli.speed import OpTimer
from accel.errors import AccelError, InvalidArgument, Timeout
from accel.sampling_params import SamplingParams

if TYPE_CHECKING:
    from accel.backend import Device
    from accel.engine import Engine

__all__ = ["COUNTED", "KINDS", "LIMIT_MS", "PARTS", "PROMPT_TOKENS", "Overhead"]

#: Milliseconds that a step of 32 decodes may take beside the model.
LIMIT_MS: Final = 0.5
PROMPT_TOKENS: Final = 64
#: What is told apart: the four that make up the whole; what else the loop does; and what of all that is in ops.
COUNTED: Final = ("schedule", "pack", "post_process", "commit")
PARTS: Final = (*COUNTED, "rest", "ops")
#: How tokens are chosen: by argmax, and drawn.
KINDS: Final[dict[str, dict[str, Any]]] = {"greedy": {}, "sampled": {"temperature": 0.8, "top_p": 0.9, "seed": 1}}

_VOCAB: Final = 1024
_WIDTH: Final = 8
#: Full steps before those that count: allocators and caches warm up.
_WARM: Final = 8
#: Steps that the requests may be apart, since they are submitted one by one.
_APART: Final = 64
_SECONDS: Final = 600.0


class Overhead:
    """An engine with a stub for a model, and clocks in its loop. A context manager.

    Args:
        requests: that decode at once; steps: that are measured each time; depth: see Engine.

    Raises:
        InvalidArgument: a count below 1, a depth out of range, or a device whose ops are only queued when they return.
    """

    def __init__(self, device: Device, *, requests: int, steps: int, depth: int | None) -> None:
        from accel.engine import Engine

        for name, value in (("--requests", requests), ("--steps", steps)):
            if value < 1:
                raise InvalidArgument(f"{name} is {value}; it must be 1 or more")
        if not device.capabilities.host_executed:
            raise InvalidArgument(
                "the parts of a step can be told apart only where ops run on the host",
                device=device.name,
                hint="use cpu",
            )
        self._requests = requests
        self._tokens = _WARM + steps + _APART + requests
        longest = PROMPT_TOKENS + self._tokens + 1
        block_size = 16
        with _model(longest) as folder:
            self.engine: Engine = Engine(
                str(folder),
                device,
                block_size=block_size,
                num_blocks=requests * -(-longest // block_size),
                max_requests=requests,
                depth=depth,
            )
        self._clocks = _Clocks(self.engine, requests, steps)

    def __enter__(self) -> Overhead:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def measure(self, kind: str) -> dict[str, float]:
        """Milliseconds a step of each of PARTS. Raises what a step raised."""
        prompts = [[(1009 * i + 17 * r) % _VOCAB for i in range(PROMPT_TOKENS)] for r in range(self._requests)]
        params = SamplingParams(max_tokens=self._tokens, ignore_eos=True, **KINDS[kind])
        with self._clocks.running(), self.engine.stream(prompts, params):
            return self._clocks.wait()


class _Clocks:
    """Counts seconds in the parts of `steps` full steps of the engine's loop.

    Its wrappers run on the loop thread; `wait` is for the caller's.
    """

    def __init__(self, engine: Engine, requests: int, steps: int) -> None:
        self._scheduler = engine.scheduler
        self._runner = engine.runner
        self._requests = requests
        self._steps = steps
        self._stub = _Stub(engine)
        self._ops = OpTimer(engine.device.ops)
        self._reset()

    def _reset(self) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._full = 0
        self._committed = 0
        self._began = 0.0
        self._counting = False
        self._error: Exception | None = None
        self._done = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Stand in the engine's way while this is entered."""
        self._reset()
        self._stub.forget()
        places: list[tuple[Any, str, Callable[..., Any]]] = [
            (self._scheduler, "schedule", self._schedule(self._scheduler.schedule)),
            (self._scheduler, "commit", self._commit(self._scheduler.commit)),
            (self._runner, "pack", self._timed("pack", self._runner.pack)),
            (self._runner, "execute", self._execute(self._runner.execute)),
            (self._runner.decoder, "forward", self._stub.forward),
            (self._runner.decoder, "head", self._stub.head),
        ]
        with self._ops.attached():
            for owner, name, call in places:
                setattr(owner, name, call)
            try:
                yield
            finally:
                for owner, name, _ in places:
                    delattr(owner, name)

    def wait(self) -> dict[str, float]:
        """Milliseconds a step of each part, once enough steps are done."""
        if not self._done.wait(_SECONDS):
            raise Timeout(f"{self._steps} steps did not end in {_SECONDS:g} s", timeout=_SECONDS)
        if self._error is not None:
            raise self._error
        return {name: spent / self._steps * 1e3 for name, spent in self._seconds.items()}

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter

        def timed(*arguments: Any) -> Any:
            start = clock()
            try:
                return call(*arguments)
            except Exception as error:  # whoever waits has to hear of it; the loop handles it as ever
                self._error = error
                self._done.set()
                raise
            finally:
                if self._counting:
                    self._seconds[part] += clock() - start

        return timed

    def _schedule(self, call: Callable[..., Any]) -> Callable[..., Any]:
        timed = self._timed("schedule", call)

        def schedule() -> Any:
            if not self._counting and self._full >= _WARM and not self._done.is_set():
                self._ops.clear()
                self._counting, self._began = True, time.perf_counter()
            plan = timed()
            if plan is not None and plan.num_requests == plan.num_tokens == self._requests:
                self._full += 1
            elif plan is not None and self._counting:
                self._error = AccelError("a step without all requests came among those measured")
                self._done.set()
            return plan

        return schedule

    def _execute(self, call: Callable[..., Any]) -> Callable[..., Any]:
        timed = self._timed("post_process", call)
        # Packing is a part of it, and has a clock of its own.
        inside = self._seconds

        def execute(plan: Any) -> Any:
            before = inside["pack"]
            pending = timed(plan)
            inside["post_process"] -= inside["pack"] - before
            return _Pending(pending, self._timed("post_process", pending.result))

        return execute

    def _commit(self, call: Callable[..., Any]) -> Callable[..., Any]:
        timed = self._timed("commit", call)

        def commit(output: Any) -> Any:
            updates = timed(output)
            if self._counting:
                self._committed += 1
                if self._committed == self._steps:
                    self._counting = False
                    whole = time.perf_counter() - self._began
                    self._seconds["rest"] = whole - sum(self._seconds.values())
                    self._seconds["ops"] = sum(self._ops.seconds.values())
                    self._done.set()
            return updates

        return commit


class _Pending:
    """A PendingStep whose `result` is timed."""

    def __init__(self, pending: Any, result: Callable[..., Any]) -> None:
        self.event = pending.event
        self.result = result


class _Stub:
    """A decoder's two calls without a launch."""

    def __init__(self, engine: Engine) -> None:
        import numpy as np

        self._device = engine.device
        self._rows = 0
        rng = np.random.default_rng(0)
        self._random = (2 * rng.standard_normal((engine.runner.max_requests, _VOCAB))).astype(np.float32)

    def forget(self) -> None:
        """The buffer of logits may have been written by others: fill it again."""
        self._rows = 0

    def forward(self, stream: Any, batch: Any, pool: Any, space: Any) -> Any:
        return space.activations(batch.tokens).hidden

    def head(self, stream: Any, logits: Any, hidden: Any) -> None:
        rows = logits.shape[0]
        if rows > self._rows:  # a row keeps what it was given once
            self._device.copy(logits, self._random[:rows], stream)
            self._rows = rows


@contextmanager
def _model(longest: int) -> Iterator[Path]:
    """A folder with a model of one layer, no tokenizer and zeros for weights."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": _VOCAB,
        "hidden_size": _WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "intermediate_size": _WIDTH,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": longest,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [_VOCAB, _WIDTH], "model.norm.weight": [_WIDTH]}
    shapes |= {f"{layer}{name}_layernorm.weight": [_WIDTH] for name in ("input", "post_attention")}
    shapes |= {f"{layer}self_attn.{name}_proj.weight": [_WIDTH, _WIDTH] for name in "qkvo"}
    shapes |= {f"{layer}mlp.{name}_proj.weight": [_WIDTH, _WIDTH] for name in ("gate", "up", "down")}
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with TemporaryDirectory(prefix="accel-bench-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (Path(folder) / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
        yield Path(folder)
