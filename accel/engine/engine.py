"""The engine: a model, a device, a scheduler and one loop thread behind a few calls.

Invariant: every method may be called from any thread at any time; a request ends exactly once, whatever happens.
"""

from __future__ import annotations

import itertools
import math
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from accel import registry
from accel.arguments import at_least, flag, real, shown, whole
from accel.backend import DEFAULT_TIMEOUT, Device
from accel.cache.identity import CacheIdentity
from accel.cache.pages import KVLayout, KVPool, check_layout
from accel.cache.pool import MAX_BLOCK_SIZE, BlockPool
from accel.engine.channel import Channel
from accel.engine.live import Live
from accel.engine.loop import EngineLoop
from accel.engine.metrics import EngineMetrics
from accel.engine.outputs import RequestOutput, TokenOutput
from accel.engine.prompts import Prompt, as_prompts, encode, resolve
from accel.engine.stream import Stream
from accel.errors import AccelError, InvalidArgument, InvalidRequest, Timeout
from accel.models.decoder import Decoder
from accel.models.files import open_model
from accel.models.loader import AUTO_DTYPE, Progress, check_dtype, load_weights
from accel.models.tokenizer import Tokenizer
from accel.runner.profile import profile_blocks
from accel.runner.runner import Runner
from accel.sampling_params import SamplingParams
from accel.scheduler.request import MAX_PRIORITY, Request
from accel.scheduler.scheduler import Scheduler, SchedulerConfig

__all__ = ["Engine"]

Params = SamplingParams | Sequence[SamplingParams] | None


class Engine:
    """Generates with one model on one device. A context manager; ``close`` gives the device back.

    Args:
        model: a Hugging Face folder, a .gguf file, or "demo".
        device: a name for ``accel.open``, or an open Device, which then stays open.
        block_size: tokens of a KV block.
        num_blocks: KV blocks; None measures how many fit (accel/runner/profile.py).
        max_batch_tokens: tokens computed in one step; longer prompts are cut into chunks.
        max_requests: requests that run at once.
        dtype: how weights are held: "auto" (as in the file) or "float32", "bfloat16", "float16".
        kv_dtype, kv_order: of the KV cache; see KVLayout.
        max_model_len: longest sequence, prompt and output; None: what the model was made for.
        memory_fraction: of the free memory that KV blocks may take when `num_blocks` is None.
        progress: called while weights load, with (bytes done, bytes in all).
        depth: steps planned ahead of the one whose output is awaited, 0 to 3; None: 1, or 0 where steps run on
            the host.
        max_waiting: requests that may wait; more are held back in their streams, or refused (``wait=False``).
        output_reserve, priority_seconds, prefix_cache: see SchedulerConfig.
        step_timeout: seconds after which a step counts as hanging, which ends the engine.
        metrics_port: serve Prometheus metrics there, on 127.0.0.1; 0 takes a free port; None serves nothing.

    Raises:
        BackendUnavailable, Unsupported, InvalidArgument: before the model is loaded.
        ModelError, OutOfMemory: while it is.
    """

    def __init__(
        self,
        model: str,
        device: str | Device = registry.AUTO,
        *,
        block_size: int = 16,
        num_blocks: int | None = None,
        max_batch_tokens: int = 512,
        max_requests: int = 64,
        dtype: str = AUTO_DTYPE,
        kv_dtype: str = "float32",
        kv_order: str = "page_first",
        max_model_len: int | None = None,
        memory_fraction: float | None = None,
        progress: Progress | None = None,
        depth: int | None = None,
        max_waiting: int = 1024,
        output_reserve: int = 64,
        priority_seconds: float = 10.0,
        prefix_cache: bool = True,
        step_timeout: float = 600.0,
        metrics_port: int | None = None,
    ) -> None:
        block_size = at_least("block_size", block_size, MAX_BLOCK_SIZE)
        num_blocks = None if num_blocks is None else at_least("num_blocks", num_blocks, sys.maxsize)
        max_model_len = None if max_model_len is None else whole("max_model_len", max_model_len, 2)
        metrics_port = None if metrics_port is None else whole("metrics_port", metrics_port, 0, 65535)
        if memory_fraction is not None:
            limits_of_fraction = "above 0 and at most 1"
            memory_fraction = real("memory_fraction", memory_fraction, limits_of_fraction, math.ulp(0.0), 1.0)
        step_timeout = real("step_timeout", step_timeout, "above 0, in seconds", math.ulp(0.0), sys.float_info.max)
        if not isinstance(model, str | os.PathLike):
            raise InvalidArgument(f"model is {shown(model)}; it must be a folder, a .gguf file, or 'demo'")
        if not isinstance(device, str | Device):
            raise InvalidArgument(f"device is {shown(device)}; it must be a name for accel.open, or an open Device")
        for name, text in (("dtype", dtype), ("kv_dtype", kv_dtype), ("kv_order", kv_order)):
            if not isinstance(text, str):
                raise InvalidArgument(f"{name} is {shown(text)}; it must be a text")
        if progress is not None and not callable(progress):
            raise InvalidArgument(f"progress is {shown(progress)}; it must be a function of (bytes done, bytes in all)")
        limits = SchedulerConfig(
            max_batch_tokens,
            max_requests,
            0 if depth is None else depth,
            output_reserve,
            priority_seconds,
            max_waiting,
            prefix_cache,
        )
        max_batch_tokens, max_requests = limits.max_batch_tokens, limits.max_requests
        self._owns_device = not isinstance(device, Device)
        self.device: Device = registry.open(device) if isinstance(device, str) else device
        if depth is None and not self.device.capabilities.host_executed:
            limits = replace(limits, depth=1)
        try:
            check_dtype(self.device, dtype)
            with open_model(model) as files:
                config = files.config
                self.config = config
                self._files = files
                self.max_model_len = _model_length(config.max_position, max_model_len)
                layout = KVLayout(
                    config.num_layers, config.num_kv_heads, config.head_dim, block_size, kv_dtype, kv_order
                )
                check_layout(self.device, layout)
                weights = load_weights(self.device, config, files.weights, dtype, progress)
            self.decoder = Decoder(self.device, config, weights, self.max_model_len)
            self.runner = self._make_runner(layout, num_blocks, max_batch_tokens, max_requests, memory_fraction)
            self.scheduler = Scheduler(BlockPool(self.runner.pool.blocks, block_size), layout, limits)
            self.metrics = EngineMetrics(self.scheduler, metrics_port)
        except BaseException:
            if self._owns_device:
                self.device.close()
            raise
        # Blocks are shared within this engine only, so the weights need no more of an identity than it has.
        self._identity = CacheIdentity(
            model=repr(sorted(asdict(config).items())),
            weights=secrets.token_hex(16),
            kv_layout=layout.fingerprint(),
            tp_size=1,
            tp_rank=0,
        )
        self._numbers = itertools.count()
        self._groups: weakref.WeakValueDictionary[str, Stream] = weakref.WeakValueDictionary()
        self._groups_lock = threading.Lock()
        self._closing = threading.RLock()
        self._loop = EngineLoop(self.runner, self.scheduler, step_timeout=step_timeout, observer=self.metrics)
        # An engine that is forgotten, or alive when the interpreter ends, closes itself; the loop does not know it.
        self._finalizer = weakref.finalize(
            self, _abandon, self._loop, self.metrics, self.device if self._owns_device else None
        )

    def _make_runner(
        self, layout: KVLayout, num_blocks: int | None, max_tokens: int, max_requests: int, fraction: float | None
    ) -> Runner:
        device, decoder = self.device, self.decoder

        def make(pool: KVPool) -> Runner:
            return Runner(device, decoder, pool, max_batch_tokens=max_tokens, max_requests=max_requests)

        if num_blocks is not None:
            return make(KVPool(device, layout, num_blocks))
        most = max_requests * layout.blocks_for(self.max_model_len)
        blocks, runner = profile_blocks(device, layout, make, most=most, fraction=fraction)
        runner.attach(KVPool(device, layout, blocks))
        return runner

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, built on first use; None where the model has none."""
        return self._files.tokenizer

    @property
    def num_blocks(self) -> int:
        """KV blocks of the pool."""
        return self.runner.pool.blocks

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, checked against the vocabulary and the model's length. Raises InvalidRequest."""
        return encode(prompt, self.tokenizer, self.max_model_len, self.config.vocab_size)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        salt: str = "",
        wait: bool = True,
    ) -> Stream:
        """Generate for one prompt (text, token ids or messages) or several, token by token, for
        ``for`` or ``async for``.

        Args:
            params: for all prompts, or one for each.
            request_id: name for `abort`; a new one by default. It names all requests of the call.
            priority: higher goes first; a unit counts as `priority_seconds` of waiting. -1000 to 1000.
            deadline: seconds from now after which what is not finished ends with finish_reason "deadline".
            salt: cached blocks are shared only among requests of the same salt.
            wait: hold requests back while too many wait; False refuses them.

        Raises:
            InvalidRequest: a prompt or params that cannot be served; nothing ran then.
            Overloaded: with ``wait=False``, too many requests wait; none of this call runs then.
            EngineClosed: the engine was closed.
        """
        return self._open(prompts, params, request_id, priority, deadline, salt, wait)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        salt: str = "",
        wait: bool = True,
    ) -> list[RequestOutput]:
        """As `stream`, to the end.

        Returns:
            One output for each prompt and choice, in that order; a list of one for a single prompt.

        Raises:
            As `stream`; and the error of a request that failed, once all have ended, with the outputs of all in
            ``error.values["outputs"]``.
        """
        stream = self._open(prompts, params, request_id, priority, deadline, salt, wait, keep_errors=True)
        with stream:
            return _outputs([token.output for token in stream if token.output is not None])

    async def generate_async(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        salt: str = "",
        wait: bool = True,
    ) -> list[RequestOutput]:
        """As `generate`, for a task. Cancelling the task aborts the requests."""
        stream = self._open(prompts, params, request_id, priority, deadline, salt, wait, keep_errors=True)
        with stream:
            return _outputs([token.output async for token in stream if token.output is not None])

    def abort(self, request_id: str) -> bool:
        """End the requests of a call; their streams get what there is, finish_reason "abort". False when unknown or
        ended. Raises InvalidRequest for what is no text."""
        if not isinstance(request_id, str):
            raise InvalidRequest(f"request_id is {shown(request_id)}; it must be a text")
        if self._loop.forked:
            return False
        with self._groups_lock:
            stream = self._groups.get(request_id)
        return stream is not None and stream.abort()

    def logits(self, prompt_token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after each token of a prompt: float32 [n, vocab]."""
        ids = encode(prompt_token_ids, None, self.max_model_len, self.config.vocab_size)
        request = self._request(ids, SamplingParams(max_tokens=1, ignore_eos=True), 0, all_logits=True)
        channel: Channel[TokenOutput] = Channel()
        live = Live(request, channel, None, request_id="logits")
        with Stream(self._loop, [live], channel) as stream:
            for _ in stream:
                pass
        return np.concatenate(live.logits)

    def wait_idle(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Block until every request has ended. Raises Timeout after `timeout` seconds."""
        self._loop.wait_idle(_timeout(timeout))

    def close(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        """End what runs with EngineClosed, stop the loop, and close the device if this engine opened it. Idempotent;
        after a Timeout it may be called again.

        Raises:
            Timeout: the step that runs did not end in `timeout` seconds. All requests have ended nevertheless; the
                device stays open, because the step may still use it.
        """
        timeout = _timeout(timeout)
        device = self.device if self._owns_device else None
        self._finalizer.detach()
        if self._loop.forked:
            return
        if self._loop.on_its_thread:  # somebody's finalizer, which the collector ran there: it cannot wait for itself
            _abandon(self._loop, self.metrics, device)
            return
        # Whoever closes finds the engine closed on return, also when another thread began to, or gave up.
        if not self._closing.acquire(timeout=timeout):
            raise Timeout(f"another thread that closes the engine did not end in {timeout:g} s", timeout=timeout)
        try:
            _shut_down(self._loop, self.metrics, device, timeout)
        finally:
            self._closing.release()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params,
        request_id: str | None,
        priority: int,
        deadline: float | None,
        salt: str,
        wait: bool,
        *,
        keep_errors: bool = False,
    ) -> Stream:
        listed = as_prompts(prompts)
        if not listed:
            raise InvalidRequest("there is no prompt")
        chosen = _params_of(params, len(listed))
        until = None if deadline is None else self.scheduler.clock() + _seconds("deadline", deadline)
        priority = whole("priority", priority, -MAX_PRIORITY, MAX_PRIORITY, error=InvalidRequest)
        for argument, value in (("salt", salt), ("request_id", "" if request_id is None else request_id)):
            if not isinstance(value, str):
                raise InvalidRequest(f"{argument} is {shown(value)}; it must be a text")
        wait = flag("wait", wait, error=InvalidRequest)
        root = self._identity.root(salt=salt)
        channel: Channel[TokenOutput] = Channel()
        name = request_id or self._new_name()
        lives: list[Live] = []
        for index, (prompt, wanted) in enumerate(zip(listed, chosen, strict=True)):
            ids = self.encode(prompt)
            wanted = resolve(wanted, self.tokenizer, self.config.vocab_size)
            self.scheduler.check_fits(len(ids), min(wanted.max_tokens, self.max_model_len - len(ids)))
            lives += self._choices(ids, wanted, name, index, channel, priority, until, root)
        self._loop.check_process()  # before a lock that nobody may be left to release
        with self._groups_lock:
            # One look: the stream of that name may be collected at any moment.
            other = self._groups.get(name)
            if other is not None and not other.finished:
                raise InvalidRequest(f"request_id {shown(name)} is in use", hint="choose another, or abort it first")
            stream = Stream(self._loop, lives, channel, keep_errors=keep_errors, wait=wait)
            self._groups[name] = stream
        return stream

    def _new_name(self) -> str:
        """A request id that no call has, not even one that chose a name of this form itself."""
        while (name := f"request-{next(self._numbers)}") in self._groups:
            pass
        return name

    def _choices(
        self,
        ids: list[int],
        params: SamplingParams,
        request_id: str,
        index: int,
        channel: Channel[TokenOutput],
        priority: int,
        deadline: float | None,
        root: bytes,
    ) -> list[Live]:
        """A request for each of the prompt's choices; the first computes the prompt for all."""
        seed = secrets.randbits(64) if params.seed is None else params.seed
        lives: list[Live] = []
        for choice in range(params.n):
            # Without a cache to share the prompt through, each computes its own.
            leader = lives[0].request if lives and self.scheduler.config.prefix_cache else None
            request = self._request(
                ids, params, (seed + choice) % 2**64, priority=priority, deadline=deadline, root=root, leader=leader
            )
            detokenizer = None if self.tokenizer is None else self.tokenizer.stream()
            lives.append(Live(request, channel, detokenizer, request_id=request_id, index=index, choice=choice))
        return lives

    def _request(self, ids: list[int], params: SamplingParams, seed: int, **more: Any) -> Request:
        more.setdefault("root", self._identity.root())
        prompt = np.array(ids, np.int32)
        return Request(next(self._numbers), prompt, params, max_model_len=self.max_model_len, seed=seed, **more)


def _shut_down(
    loop: EngineLoop, metrics: EngineMetrics, device: Device | None, timeout: float = DEFAULT_TIMEOUT
) -> None:
    if loop.forked:  # thread, device and port are the other process's
        return
    metrics.close()
    loop.close(timeout)
    if device is not None:
        device.close()


def _abandon(loop: EngineLoop, metrics: EngineMetrics, device: Device | None) -> None:
    """An engine was forgotten. Where the collector found that, nothing may wait: this may be the loop's own thread, or
    one that holds a lock the loop needs. At the interpreter's end, after that of the main thread, nobody holds any."""
    loop.leave()
    if threading.main_thread().is_alive():
        threading.Thread(target=_shut_down, args=(loop, metrics, device), name="accel-closer", daemon=True).start()
    else:
        _shut_down(loop, metrics, device)


def _outputs(outputs: list[RequestOutput]) -> list[RequestOutput]:
    """`outputs` in the order of prompts and choices. Raises the first error among them."""
    ordered = sorted(outputs, key=lambda output: (output.index, output.choice))
    for output in ordered:
        if output.error is not None:
            error: AccelError = output.error
            error.values["outputs"] = ordered
            raise error
    return ordered


def _seconds(name: str, value: float) -> float:
    return real(name, value, "above 0, in seconds from now", math.ulp(0.0), sys.float_info.max, error=InvalidRequest)


def _timeout(timeout: float) -> float:
    return real("timeout", timeout, f"0 to {threading.TIMEOUT_MAX:g} seconds", 0.0, threading.TIMEOUT_MAX)


def _params_of(params: Params, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence):
        raise InvalidRequest(f"params are {shown(params)}; they must be SamplingParams, or one for each prompt")
    listed = list(params)
    if len(listed) != count or not all(isinstance(item, SamplingParams) for item in listed):
        raise InvalidRequest(f"{len(listed)} params were given for {count} prompts; give one, or one for each prompt")
    return listed


def _model_length(most: int, wanted: int | None) -> int:
    if wanted is None:
        return most
    if not 2 <= wanted <= most:
        raise InvalidArgument(f"max_model_len is {wanted}; this model takes 2 to {most}")
    return wanted
