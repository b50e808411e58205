"""A thin engine: a model, a device and one simple loop. The shared scheduler takes the loop's place later.

Invariant: whoever waits for a token drives the loop, one step at a time under a lock; a step serves every request
that is running. So any number of threads and open streams may use an engine, and an abandoned stream costs nothing.
"""

from __future__ import annotations

import operator
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from accel import registry
from accel.backend import Device
from accel.cache.pages import KVLayout, KVPool, check_layout
from accel.errors import AccelError, InvalidArgument, InvalidRequest
from accel.models.decoder import Decoder
from accel.models.files import open_model
from accel.models.loader import AUTO_DTYPE, Progress, check_dtype, load_weights
from accel.models.tokenizer import Tokenizer, require_tokenizer
from accel.runner.plan import FinishReason, Logits
from accel.runner.profile import profile_blocks
from accel.runner.runner import Runner
from accel.sampling_params import SamplingParams
from accel.scheduler.sequence import Sequence
from accel.scheduler.simple import SimpleScheduler, build_plan

__all__ = ["Engine", "RequestMetrics", "RequestOutput", "TokenOutput", "check_prompt"]

Prompt = str | SequenceOf[int]

#: What `finish_reason` says for each way to end.
FINISH_NAMES: Final = {FinishReason.EOS: "stop", FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


@dataclass(frozen=True)
class RequestMetrics:
    """Times of one request in seconds. `time_per_output_token` counts from the second token on; 0 with only one."""

    time_to_first_token: float
    time_per_output_token: float
    total_time: float


@dataclass(frozen=True)
class RequestOutput:
    """A finished request.

    `text` is None for a model without a tokenizer. `finish_reason` is "stop" (end of sequence) or "length". `seed`
    repeats the request exactly.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str | None
    finish_reason: str
    seed: int
    metrics: RequestMetrics


@dataclass(frozen=True)
class TokenOutput:
    """One token of a stream. `text` is what it adds: whole characters only, possibly nothing. `output` comes with the
    last."""

    index: int
    token_id: int
    text: str
    output: RequestOutput | None = None


@dataclass
class _Request:
    """A request of a caller: the sequence in the scheduler, and what its stream has not seen yet."""

    sequence: Sequence
    started: float
    times: list[float] = field(default_factory=list)
    unseen: deque[int] = field(default_factory=deque)
    error: AccelError | None = None

    @property
    def done(self) -> bool:
        return self.sequence.finish is not FinishReason.NONE


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
    ) -> None:
        counts = {"max_batch_tokens": max_batch_tokens, "max_requests": max_requests, "block_size": block_size}
        if num_blocks is not None:
            counts["num_blocks"] = num_blocks
        for name, value in counts.items():
            if not hasattr(value, "__index__") or value < 1:
                raise InvalidArgument(f"{name} is {value!r}; it must be a whole number, 1 or more")
        if not isinstance(device, str | Device):
            raise InvalidArgument(f"device is {device!r}; it must be a name for accel.open, or an open Device")
        self._owns_device = not isinstance(device, Device)
        self.device: Device = registry.open(device) if isinstance(device, str) else device
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
        except BaseException:
            if self._owns_device:
                self.device.close()
            raise
        self._scheduler = SimpleScheduler(layout, self.runner.pool.blocks, max_batch_tokens, max_requests)
        self._lock = threading.Lock()
        self._requests: dict[int, _Request] = {}
        self._next_number = 0
        self._closed = False

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
        if isinstance(prompt, str):
            ids = require_tokenizer(self.tokenizer, "a text prompt").encode(prompt)
        else:
            ids = _whole_numbers(prompt)
        check_prompt(ids, self.max_model_len, self.config.vocab_size)
        return ids

    def generate(
        self, prompts: Prompt | SequenceOf[Prompt], params: SamplingParams | None = None
    ) -> list[RequestOutput]:
        """Generate for one prompt (text or token ids) or several, together.

        Returns:
            One output a prompt, in order; a list of one for a single prompt.

        Raises:
            InvalidRequest: a prompt that cannot be served; nothing ran then.
        """
        outputs: dict[int, RequestOutput] = {}
        for token in self.stream(prompts, params):
            if token.output is not None:
                outputs[token.index] = token.output
        return [outputs[index] for index in sorted(outputs)]

    def stream(
        self, prompts: Prompt | SequenceOf[Prompt], params: SamplingParams | None = None
    ) -> Iterator[TokenOutput]:
        """As ``generate``, token by token as they come. Leaving the iterator early aborts what is unfinished."""
        params = params or SamplingParams()
        encoded = [self.encode(prompt) for prompt in _as_list(prompts)]
        if not encoded:
            raise InvalidRequest("there is no prompt")
        requests: list[_Request] = []
        try:
            with self._lock:
                self._check_open()
                requests.extend(self._add(ids, params) for ids in encoded)
        except BaseException:
            self._abort(requests)
            raise
        return self._follow(requests)

    def logits(self, prompt_token_ids: SequenceOf[int]) -> npt.NDArray[np.float32]:
        """Logits after each token of a prompt: float32 [n, vocab]."""
        ids = self.encode(list(prompt_token_ids))
        sequence = self._sequence(ids, SamplingParams(max_tokens=1))
        with self._lock:
            self._check_open()
            alone = SimpleScheduler(
                self.runner.pool.layout, self.num_blocks, self.runner.max_batch_tokens, self.runner.max_requests
            )
            while not self._scheduler.idle:
                self._step()  # the pool is needed whole: let what runs finish first
            alone.add(sequence)
            rows = []
            while sequence.computed < len(ids):
                plan = alone.schedule()
                if plan is None:
                    raise AccelError("the scheduler has no step for a request that fits")
                output = self.runner.execute(build_plan(alone.planned, Logits.ALL)).result()
                alone.commit(output)
                if output.logits is not None:
                    rows.append(output.logits)
        return np.concatenate(rows)

    def close(self) -> None:
        """Abort what runs and close the device if this engine opened it. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for request in self._requests.values():
                request.error = AccelError("the engine was closed")
                self._scheduler.remove(request.sequence)
            self._requests.clear()
        if self._owns_device:
            self.device.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument("the engine was closed", hint="make a new one")

    def _sequence(self, ids: list[int], params: SamplingParams) -> Sequence:
        seed = secrets.randbits(64) if params.seed is None else params.seed
        self._next_number += 1
        return Sequence(self._next_number, np.array(ids, np.int32), params, self.max_model_len, seed)

    def _add(self, ids: list[int], params: SamplingParams) -> _Request:
        request = _Request(self._sequence(ids, params), time.perf_counter())
        self._scheduler.add(request.sequence)
        self._requests[request.sequence.number] = request
        return request

    def _abort(self, requests: SequenceOf[_Request]) -> None:
        with self._lock:
            for request in requests:
                if self._requests.pop(request.sequence.number, None) is not None:
                    self._scheduler.remove(request.sequence)

    def _follow(self, requests: list[_Request]) -> Iterator[TokenOutput]:
        streams = [None if self.tokenizer is None else self.tokenizer.stream() for _ in requests]
        texts: list[list[str]] = [[] for _ in requests]
        open_indices = set(range(len(requests)))
        try:
            while open_indices:
                self._advance(requests)
                for index in sorted(open_indices):
                    request, stream = requests[index], streams[index]
                    while request.unseen:
                        token = request.unseen.popleft()
                        last = request.done and not request.unseen
                        text = "" if stream is None else stream.push(token) + (stream.finish() if last else "")
                        texts[index].append(text)
                        output = None
                        if last:
                            open_indices.discard(index)
                            output = _finished(request, None if stream is None else "".join(texts[index]))
                        yield TokenOutput(index, token, text, output)
        finally:
            self._abort(requests)

    def _advance(self, requests: SequenceOf[_Request]) -> None:
        """Run steps until one of `requests` has a token that was not seen."""
        while True:
            with self._lock:
                for request in requests:
                    if request.error is not None:
                        raise request.error
                if any(request.unseen for request in requests):
                    return
                self._check_open()
                self._step()

    def _step(self) -> None:
        """One step for everything that runs. A step that fails fails the requests in it, and no others."""
        plan = self._scheduler.schedule()
        if plan is None:
            return
        try:
            output = self.runner.execute(plan).result()
        except AccelError as error:
            for number in plan.request.tolist():
                self._fail(self._requests[number], error)
            return
        now = time.perf_counter()
        for sequence in self._scheduler.commit(output):
            request = self._requests[sequence.number]
            if sequence.output[-1] < 0:
                self._fail(request, AccelError("the model gave no number for any token (NaN logits)"))
                continue
            request.times.append(now)
            request.unseen.append(sequence.output[-1])

    def _fail(self, request: _Request, error: AccelError) -> None:
        request.error = error
        self._scheduler.remove(request.sequence)


def _whole_numbers(tokens: SequenceOf[Any]) -> list[int]:
    """Token ids as ints; what is no whole number is refused rather than rounded."""
    try:
        return [operator.index(token) for token in tokens]
    except TypeError as error:
        raise InvalidRequest(f"a prompt of token ids must hold whole numbers only: {error}") from None


def check_prompt(ids: SequenceOf[int], max_model_len: int, vocab_size: int) -> None:
    """Raise InvalidRequest for a prompt that no engine with these limits can serve. Needs no loaded model."""
    if not ids:
        raise InvalidRequest("the prompt is empty; it must have at least 1 token")
    if len(ids) >= max_model_len:
        raise InvalidRequest(
            f"the prompt has {len(ids)} tokens; the limit is {max_model_len - 1}, one less than the model's longest"
            " sequence",
            hint="shorten the prompt",
            tokens=len(ids),
            limit=max_model_len - 1,
        )
    for position, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"token id {token} at position {position} is outside the vocabulary; ids are 0 to {vocab_size - 1}",
                token=token,
                limit=vocab_size,
            )


def _model_length(most: int, wanted: int | None) -> int:
    if wanted is None:
        return most
    if not 2 <= wanted <= most:
        raise InvalidArgument(f"max_model_len is {wanted}; this model takes 2 to {most}")
    return wanted


def _as_list(prompts: Prompt | SequenceOf[Prompt]) -> list[Prompt]:
    """One prompt or several, as several. A sequence of numbers is one prompt of token ids."""
    if isinstance(prompts, str):
        return [prompts]
    listed: list[Any] = list(prompts)
    if listed and all(isinstance(item, int | np.integer) for item in listed):
        return [listed]
    return listed


def _finished(request: _Request, text: str | None) -> RequestOutput:
    sequence, times = request.sequence, request.times
    first, last = times[0] - request.started, times[-1] - request.started
    per_token = (last - first) / (len(times) - 1) if len(times) > 1 else 0.0
    return RequestOutput(
        sequence.prompt.tolist(),
        list(sequence.output),
        text,
        FINISH_NAMES[sequence.finish],
        sequence.seed,
        RequestMetrics(first, per_token, last),
    )
