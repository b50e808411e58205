"""What a step computes, and what came of it.

::

    scheduler ── StepPlan ──> Runner.execute ──> PendingStep ── result() ──> StepOutput ──> scheduler

Invariants: a plan is immutable and the same on every backend. A request is named by its internal number and its
*epoch*, which rises whenever the request stops running; the output carries both back, so that who takes it can drop
what belongs to an earlier life. Random numbers are counted by (seed, position) and penalties derive from the tokens of
the request, so a plan says all that decides a token: nothing in a slot survives its request.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from accel.backend import DEFAULT_TIMEOUT, Event
from accel.errors import InvalidArgument
from accel.sampling_params import SamplingParams

__all__ = [
    "LAST_SAMPLED",
    "FinishReason",
    "History",
    "Logits",
    "PendingStep",
    "PlanRow",
    "PromptLogprobs",
    "SampledLogprobs",
    "StepOutput",
    "StepPlan",
]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

#: In StepPlan.tokens: the token last sampled in the request's slot, which the host need not know yet
#: (csrc/cpu/kernels.h, kLastSampled).
LAST_SAMPLED: Final = -1


class FinishReason(enum.IntEnum):
    """Why a request ended. The values are those of the op ``stop_check`` (csrc/cpu/kernels.h, Stop)."""

    NONE = 0
    EOS = 1
    LENGTH = 2
    STOP = 3  # a stop id or stop sequence


class Logits(enum.Enum):
    """Which logits the output brings to the host."""

    NONE = "none"
    SAMPLED = "sampled"  # one row for each request that samples
    ALL = "all"  # one row for each token of the step


@dataclass(frozen=True)
class PlanRow:
    """One request's part of a step, for ``StepPlan.of``. The fields are those of StepPlan.

    `tokens` are ids to compute, or ``[LAST_SAMPLED]``; `blocks` the request's block ids in order; `max_tokens` may be
    tighter than that of `params`, whose bad words must be token ids. `history` is the request's tokens so far, given in
    its first step in a slot when ``params.uses_history``.
    """

    request: int
    epoch: int
    slot: int
    computed: int
    tokens: Sequence[int] | Int32
    blocks: Sequence[int] | Int32
    sample: bool
    params: SamplingParams
    seed: int
    generated: int
    max_tokens: int
    prompt_len: int = 0
    next_token: int = -1
    history: Sequence[int] | Int32 = ()


@dataclass(frozen=True)
class History:
    """Tokens that enter the slots' histories before a step: ``history[slot[i], position[i]] = token[i]``, int32 [N]."""

    slot: Int32
    position: Int32
    token: Int32

    @classmethod
    def of(cls, rows: Sequence[tuple[int, Sequence[int] | Int32]]) -> History | None:
        """From (slot, tokens from position 0 on); None where there is nothing to write."""
        rows = [(slot, tokens) for slot, tokens in rows if len(tokens)]
        if not rows:
            return None
        lengths = [len(tokens) for _, tokens in rows]
        return cls(
            np.repeat(np.array([slot for slot, _ in rows], np.int32), lengths),
            np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
            np.concatenate([np.asarray(tokens, np.int32) for _, tokens in rows]),
        )


@dataclass(frozen=True)
class StepPlan:
    """One step: R requests, T tokens.

    Args:
        request, epoch: int64 [R], who this is for; returned as they are.
        slot: int32 [R], where the runner keeps the request's last token and history; distinct.
        query_start: int32 [R + 1], request r computes tokens[query_start[r] : query_start[r + 1]], at least one.
        computed: int32 [R], tokens of the request that are in the cache already.
        tokens: int32 [T], ids, or LAST_SAMPLED.
        block_tables: int32 [R, M], the request's blocks in order; what it does not need may hold anything.
        sample: bool [R], whether a token is sampled from the request's last position.
        temperature, top_p, min_p: float32 [R]; top_k: int32 [R]; seed: uint64 [R]. See SamplingParams.
        prompt_len: int32 [R], tokens that were given; later ones were generated.
        next_token: int32 [R], the prompt token after those computed here, whose log-probability may be asked for;
            else -1.
        generated: int32 [R], tokens generated so far; min_tokens, max_tokens: int32 [R]; ignore_eos: uint8 [R]: the
            stop rules.
        params: [R], the rules that few requests have: penalties, words, biases, log-probabilities.
        logits: what to bring back besides tokens.
        step: number of the step, returned as it is.
        history: what enters the slots' histories first.

    Raises:
        InvalidArgument: arrays whose lengths do not agree, a slot used twice, or bad words that are text.
    """

    request: Int64
    epoch: Int64
    slot: Int32
    query_start: Int32
    computed: Int32
    tokens: Int32
    block_tables: Int32
    sample: npt.NDArray[np.bool_]
    temperature: Float32
    top_k: Int32
    top_p: Float32
    min_p: Float32
    seed: npt.NDArray[np.uint64]
    prompt_len: Int32
    next_token: Int32
    generated: Int32
    min_tokens: Int32
    max_tokens: Int32
    ignore_eos: npt.NDArray[np.uint8]
    params: tuple[SamplingParams, ...]
    logits: Logits = Logits.NONE
    step: int = 0
    history: History | None = None

    def __post_init__(self) -> None:
        rows = len(self.request)
        for name, dtype in _ROW_FIELDS.items():
            array = getattr(self, name)
            if len(array) != rows or array.dtype != dtype:
                raise InvalidArgument(
                    f"{name} of the plan is {array.dtype} [{len(array)}]; it must be {np.dtype(dtype)} [{rows}]"
                )
            array.setflags(write=False)
        if rows == 0:
            raise InvalidArgument("the plan has no request")
        if len(self.params) != rows:
            raise InvalidArgument(f"the plan has {len(self.params)} params for {rows} requests")
        starts = self.query_start
        if len(starts) != rows + 1 or starts[0] != 0 or starts[-1] != len(self.tokens):
            raise InvalidArgument(
                f"query_start of the plan must be {rows + 1} sums that run from 0 to the {len(self.tokens)} tokens"
            )
        if len(set(self.slot.tolist())) != rows:
            raise InvalidArgument("two requests of the plan use one slot")
        starts.setflags(write=False)
        self.tokens.setflags(write=False)

    @classmethod
    def of(cls, rows: Sequence[PlanRow], logits: Logits = Logits.NONE) -> StepPlan:
        """The plan of these requests, in this order."""
        tables = np.zeros((len(rows), max((len(row.blocks) for row in rows), default=1)), np.int32)
        for index, row in enumerate(rows):
            tables[index, : len(row.blocks)] = row.blocks
            if any(isinstance(word, str) for word in row.params.bad_words):
                raise InvalidArgument("bad words of a plan must be token ids", hint="encode them first")
        starts = np.zeros(len(rows) + 1, np.int32)
        np.cumsum([len(row.tokens) for row in rows], out=starts[1:])
        return cls(
            request=np.array([row.request for row in rows], np.int64),
            epoch=np.array([row.epoch for row in rows], np.int64),
            slot=np.array([row.slot for row in rows], np.int32),
            query_start=starts,
            computed=np.array([row.computed for row in rows], np.int32),
            tokens=np.concatenate([np.asarray(row.tokens, np.int32) for row in rows] or [np.empty(0, np.int32)]),
            block_tables=tables,
            sample=np.array([row.sample for row in rows], np.bool_),
            temperature=np.array([row.params.temperature for row in rows], np.float32),
            top_k=np.array([row.params.top_k for row in rows], np.int32),
            top_p=np.array([row.params.top_p for row in rows], np.float32),
            min_p=np.array([row.params.min_p for row in rows], np.float32),
            seed=np.array([row.seed for row in rows], np.uint64),
            prompt_len=np.array([row.prompt_len for row in rows], np.int32),
            next_token=np.array([row.next_token for row in rows], np.int32),
            generated=np.array([row.generated for row in rows], np.int32),
            min_tokens=np.array([row.params.min_tokens for row in rows], np.int32),
            max_tokens=np.array([row.max_tokens for row in rows], np.int32),
            ignore_eos=np.array([row.params.ignore_eos for row in rows], np.uint8),
            params=tuple(row.params for row in rows),
            logits=logits,
            history=History.of([(row.slot, row.history) for row in rows]),
        )

    @cached_property
    def plain(self) -> bool:
        """Whether no request has more than temperature, top-k, top-p, min-p, end tokens and a length."""
        return all(params.plain for params in self.params)

    @cached_property
    def lengths(self) -> Int32:
        """Tokens of each request once the step is done, which is the position of what it samples: int32 [R]."""
        return self.computed + np.diff(self.query_start)

    @property
    def num_requests(self) -> int:
        """R."""
        return len(self.request)

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.tokens)


_ROW_FIELDS: Final = {
    "request": np.int64,
    "epoch": np.int64,
    "slot": np.int32,
    "computed": np.int32,
    "block_tables": np.int32,
    "sample": np.bool_,
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "seed": np.uint64,
    "prompt_len": np.int32,
    "next_token": np.int32,
    "generated": np.int32,
    "min_tokens": np.int32,
    "max_tokens": np.int32,
    "ignore_eos": np.uint8,
}


@dataclass(frozen=True)
class SampledLogprobs:
    """Log-probabilities of the tokens of all requests that sampled, where at least one asked: by the model's own
    logits.

    Args:
        rows: int32 [n], the plan's requests that sampled, rising.
        token: float32 [n], of the sampled token; rank: int32 [n], 1 for the most likely.
        top_ids: int32 [n, K]; top: float32 [n, K], falling. K is the most that any row asked for.
    """

    rows: Int32
    token: Float32
    rank: Int32
    top_ids: Int32
    top: Float32


@dataclass(frozen=True)
class PromptLogprobs:
    """Log-probabilities of the prompt tokens `first`, `first` + 1, … of the plan's request `row`: of each, given those
    before it. Arrays as in SampledLogprobs."""

    row: int
    first: int
    token: Float32
    rank: Int32
    top_ids: Int32
    top: Float32


@dataclass(frozen=True)
class StepOutput:
    """What a step gave, on the host, in the order of the plan.

    Args:
        token: int32 [R], the sampled token; -1 where none was asked for or the logits held no number.
        finish: int32 [R], FinishReason.
        logits: float32 rows as the plan asked; None for Logits.NONE.
        step: that of the plan.
        logprobs, prompt_logprobs: for the requests that asked for them.
    """

    request: Int64
    epoch: Int64
    token: Int32
    finish: Int32
    logits: Float32 | None = None
    step: int = 0
    logprobs: SampledLogprobs | None = None
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()


class PendingStep:
    """A step that was submitted. `event` completes with it; `result` waits and may be called more than once.

    Args:
        check: raises what failed on the step's stream; an event behind a failure completes all the same.
    """

    def __init__(
        self, event: Event, collect: Callable[[], StepOutput], check: Callable[[], object] | None = None
    ) -> None:
        self.event = event
        self._collect = collect
        self._check = check
        self._output: StepOutput | None = None

    def result(self, timeout: float = DEFAULT_TIMEOUT) -> StepOutput:
        """The output. Raises Timeout after `timeout` seconds, AsyncFailure when the step failed on the device."""
        if self._output is None:
            self.event.synchronize(timeout)
            if self._check is not None:
                self._check()
            self._output = self._collect()
        return self._output
