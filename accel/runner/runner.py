"""The model runner: pack, run, sample, stop, update over one device, one model and one KV pool.

``execute`` does all five for a plan. An engine with a loop of its own calls them one by one
(examples/external_engine.py).

Invariant: between steps nothing of a request is kept but its slot's last token and history.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from accel.backend import Device
from accel.cache.pages import KVPool
from accel.errors import InvalidArgument
from accel.models.decoder import Decoder, Workspace
from accel.runner.plan import (
    LAST_SAMPLED,
    FinishReason,
    Logits,
    PendingStep,
    PromptLogprobs,
    SampledLogprobs,
    StepOutput,
    StepPlan,
)
from accel.runner.postprocess import Postprocessor
from accel.runner.preprocess import Packed, StepBuffers, to_device

__all__ = ["Runner"]


class Runner:
    """Runs steps of `decoder` on `device`.

    Args:
        pool: the KV cache. May be given later (``attach``), after a profile run with a small one.
        max_batch_tokens, max_requests: the largest step.
    """

    def __init__(
        self, device: Device, decoder: Decoder, pool: KVPool, *, max_batch_tokens: int, max_requests: int
    ) -> None:
        for name, value in (("max_batch_tokens", max_batch_tokens), ("max_requests", max_requests)):
            if value < 1:
                raise InvalidArgument(f"{name} is {value}; it must be 1 or more")
        self.device = device
        self.decoder = decoder
        self.pool = pool
        self.max_batch_tokens = max_batch_tokens
        self.max_requests = max_requests
        self._stream = device.current_stream()
        self._space = Workspace(device, decoder.config, max_batch_tokens)
        self._buffers = StepBuffers(device, max_batch_tokens, max_requests, decoder.max_positions)
        self._post = Postprocessor(device, self._buffers, decoder.config.eos_token_ids)
        # Rows of logits are wanted for one position a request; all of them (Logits.ALL) go through it piece by piece.
        self._logit_rows = min(max_requests, max_batch_tokens)
        vocab = decoder.config.vocab_size
        self._logits = device.view(device.empty([self._logit_rows, vocab], "float32"))
        self._raw: Any = None  # logits as the model gave them, for log-probabilities; made when first asked for
        self._picked = device.view(device.empty([self._logit_rows, decoder.config.hidden_size], "float32"))

    def attach(self, pool: KVPool) -> None:
        """Use another KV pool from the next step on."""
        self.pool = pool

    def pack(self, plan: StepPlan) -> Packed:
        """Bring a plan onto the device. Raises InvalidArgument; nothing ran then."""
        self._check(plan)
        return self._buffers.pack(self._stream, plan, self.pool.layout.block_size)

    def run(self, packed: Packed) -> Any:
        """The forward pass: writes K and V of the step's tokens, and gives the hidden states [T, H] on the device."""
        return self.decoder.forward(self._stream, packed.input, self.pool, self._space)

    def logits(self, packed: Packed, hidden: Any, rows: np.ndarray[Any, Any]) -> Any:
        """Logits after the last token of each of the plan's requests `rows`: float32 [n, vocab], a buffer of ours."""
        if len(rows) == packed.plan.num_requests:
            return self._head(hidden, packed.last_rows, len(rows))
        index = to_device(self.device, self._stream, (packed.plan.query_start[1:] - 1)[rows])
        return self._head(hidden, index, len(rows))

    def sample(self, packed: Packed, rows: np.ndarray[Any, Any], logits: Any) -> Any:
        """One token for each of `rows`; int32 [n] on the device. Shapes `logits` in place first."""
        self._post.shape(self._stream, packed.plan, rows, logits)
        return self._post.sample(self._stream, packed.plan, rows, logits)

    def stop(self, packed: Packed, rows: np.ndarray[Any, Any], token: Any) -> Any:
        """FinishReason for each of `rows`; int32 [n] on the device."""
        return self._post.stop(self._stream, packed.plan, rows, token)

    def update(self, packed: Packed, rows: np.ndarray[Any, Any], token: Any) -> None:
        """Make `token` the last token of the slots of `rows`, where the next plan's LAST_SAMPLED finds it, and enter it
        into their histories."""
        self._post.update(self._stream, packed.plan, rows, token)

    def execute(self, plan: StepPlan) -> PendingStep:
        """All of the above for one plan.

        Raises:
            InvalidArgument: a plan that names what is not there; nothing was queued and nothing changed.
        """
        packed = self.pack(plan)
        hidden = self.run(packed)
        every = self._all_logits(hidden, plan.num_tokens) if plan.logits is Logits.ALL else None
        prompts = self._prompt_logprobs(plan, hidden)
        rows = np.flatnonzero(plan.sample).astype(np.int32)
        token = reason = sampled = logprobs = None
        if len(rows):
            logits = self.logits(packed, hidden, rows)
            if plan.logits is Logits.SAMPLED:
                sampled = self._to_host(logits)
            top = _most_logprobs(plan, rows)
            raw = None if top is None else self._keep(logits)
            on_device = self.sample(packed, rows, logits)
            token = self._to_host(on_device)
            if raw is not None and top is not None:
                # Of all rows: picking some would need the tokens on the host in the middle of the step.
                values = self._post.logprobs(self._stream, raw, on_device, top)
                logprobs = SampledLogprobs(rows, *(self._to_host(value) for value in values))
            reason = self._to_host(self.stop(packed, rows, on_device))
            self.update(packed, rows, on_device)
        event = self.device.event()
        event.record(self._stream)
        if sampled is None:
            sampled = every
        return PendingStep(
            event, lambda: _output(plan, rows, token, reason, sampled, logprobs, prompts), self._stream.query
        )

    def recover(self) -> None:
        """After a step raised: let the stream take work again. What it had queued behind the failure is not run.

        Raises:
            DeviceLost: there is no stream any more.
        """
        self._stream.reset()

    def _prompt_logprobs(self, plan: StepPlan, hidden: Any) -> tuple[PromptLogprobs, ...]:
        """Of the prompt tokens that follow those computed in this step, for the requests that want them."""
        found: list[PromptLogprobs] = []
        if plan.plain:
            return ()
        for row, params in enumerate(plan.params):
            if params.prompt_logprobs is None:
                continue
            begin, end = plan.query_start[row : row + 2].tolist()
            position = int(plan.computed[row])
            targets = np.append(plan.tokens[begin + 1 : end], plan.next_token[row])
            # The last prompt token is followed by what is sampled.
            targets = targets[: max(0, int(plan.prompt_len[row]) - 1 - position)]
            for first in range(0, len(targets), self._logit_rows):
                part = np.ascontiguousarray(targets[first : first + self._logit_rows], np.int32)
                logits = self._logits.narrow(0, 0, len(part))
                self.decoder.head(self._stream, logits, hidden.narrow(0, begin + first, len(part)))
                on_device = to_device(self.device, self._stream, part)
                values = self._post.logprobs(self._stream, logits, on_device, params.prompt_logprobs)
                found.append(PromptLogprobs(row, position + first + 1, *(self._to_host(value) for value in values)))
        return tuple(found)

    def _keep(self, logits: Any) -> Any:
        """A copy of `logits`, which shaping does not reach."""
        if self._raw is None:
            self._raw = self.device.view(
                self.device.empty([self._logit_rows, self.decoder.config.vocab_size], "float32")
            )
        count = logits.shape[0]
        raw = self._raw.narrow(0, 0, count)
        index = to_device(self.device, self._stream, np.arange(count, dtype=np.int32))
        self.device.ops.gather_rows(self._stream, raw, logits, index)
        return raw

    def _to_host(self, view: Any) -> np.ndarray[Any, Any]:
        """A host array that holds `view` once the step is complete."""
        host = np.empty(view.shape, view.dtype)
        self.device.copy(host, view, self._stream)
        return host

    def _check(self, plan: StepPlan) -> None:
        """What no single op can see before the first one ran."""
        vocab, longest, pool = self.decoder.config.vocab_size, self.decoder.max_positions, self.pool
        if plan.tokens.max(initial=0) >= vocab or plan.tokens.min(initial=0) < LAST_SAMPLED:
            raise InvalidArgument(f"a token of the plan lies outside the vocabulary of {vocab}")
        ends = plan.lengths
        if ends.max() > longest:
            raise InvalidArgument(f"a request of the plan reaches {ends.max()} tokens; the limit is {longest}")
        if plan.block_tables.max(initial=0) < pool.blocks:
            return
        # What a request does not need may hold anything.
        column = np.arange(plan.block_tables.shape[1]) * pool.layout.block_size
        needed = plan.block_tables[column < ends[:, None]]
        if needed.max(initial=0) >= pool.blocks:
            raise InvalidArgument(f"the plan names block {needed.max()}; the pool has {pool.blocks} blocks")

    def _head(self, hidden: Any, index: Any, count: int) -> Any:
        picked, logits = self._picked.narrow(0, 0, count), self._logits.narrow(0, 0, count)
        self.device.ops.gather_rows(self._stream, picked, hidden, index)
        self.decoder.head(self._stream, logits, picked)
        return logits

    def _all_logits(self, hidden: Any, tokens: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Logits of every token of the step, on the host."""
        out = np.empty((tokens, self.decoder.config.vocab_size), np.float32)
        for first in range(0, tokens, self._logit_rows):
            count = min(self._logit_rows, tokens - first)
            logits = self._logits.narrow(0, 0, count)
            self.decoder.head(self._stream, logits, hidden.narrow(0, first, count))
            self.device.copy(out[first : first + count], logits, self._stream)
        self._stream.synchronize()
        return out


def _most_logprobs(plan: StepPlan, rows: np.ndarray[Any, Any]) -> int | None:
    """The most alternatives that any of `rows` wants; None where none wants log-probabilities."""
    if plan.plain:
        return None
    wanted = [plan.params[row].logprobs for row in rows]
    return max((most for most in wanted if most is not None), default=None)


def _output(
    plan: StepPlan,
    rows: Any,
    token: Any,
    reason: Any,
    logits: Any,
    logprobs: SampledLogprobs | None,
    prompts: tuple[PromptLogprobs, ...],
) -> StepOutput:
    everyone = np.full(plan.num_requests, -1, np.int32)
    finish = np.full(plan.num_requests, FinishReason.NONE, np.int32)
    if token is not None:
        everyone[rows] = token
        finish[rows] = reason
    return StepOutput(plan.request, plan.epoch, everyone, finish, logits, plan.step, logprobs, prompts)
