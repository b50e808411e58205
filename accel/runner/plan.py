"""What a step computes, and what came of it.

::

    scheduler ── StepPlan ──> Runner.execute ──> PendingStep ── result() ──> StepOutput ──> scheduler

Invariants: a plan is immutable and the same on every backend. A request is named by its internal number and its
*epoch*, which rises whenever the request stops running; the output carries both back, so that who takes it can drop
what belongs to an earlier life.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from accel.backend import DEFAULT_TIMEOUT, Event
from accel.errors import InvalidArgument
from accel.sampling_params import SamplingParams

__all__ = ["LAST_SAMPLED", "FinishReason", "Logits", "PendingStep", "PlanRow", "StepOutput", "StepPlan"]

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
    STOP = 3


class Logits(enum.Enum):
    """Which logits the output brings to the host."""

    NONE = "none"
    SAMPLED = "sampled"  # one row for each request that samples
    ALL = "all"  # one row for each token of the step


@dataclass(frozen=True)
class PlanRow:
    """One request's part of a step, for ``StepPlan.of``. The fields are those of StepPlan.

    `tokens` are ids to compute, or ``[LAST_SAMPLED]``; `blocks` the request's block ids in order; `max_tokens` may be
    tighter than that of `params`.
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


@dataclass(frozen=True)
class StepPlan:
    """One step: R requests, T tokens.

    Args:
        request, epoch: int64 [R], who this is for; returned as they are.
        slot: int32 [R], where the runner keeps the request's last token; distinct.
        query_start: int32 [R + 1], request r computes tokens[query_start[r] : query_start[r + 1]], at least one.
        computed: int32 [R], tokens of the request that are in the cache already.
        tokens: int32 [T], ids, or LAST_SAMPLED.
        block_tables: int32 [R, M], the request's blocks in order; what it does not need may hold anything.
        sample: bool [R], whether a token is sampled from the request's last position.
        temperature, top_p: float32 [R]; top_k: int32 [R]; seed: uint64 [R]. See SamplingParams.
        generated: int32 [R], tokens generated so far; max_tokens: int32 [R]; ignore_eos: uint8 [R]: the stop rules.
        logits: what to bring back besides tokens.

    Raises:
        InvalidArgument: arrays whose lengths do not agree, or a slot used twice.
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
    seed: npt.NDArray[np.uint64]
    generated: Int32
    max_tokens: Int32
    ignore_eos: npt.NDArray[np.uint8]
    logits: Logits = Logits.NONE

    def __post_init__(self) -> None:
        rows = len(self.request)
        for name, dtype in _ROW_FIELDS.items():
            array = getattr(self, name)
            if len(array) != rows or array.dtype != dtype:
                raise InvalidArgument(
                    f"{name} of the plan is {array.dtype} [{len(array)}]; it must be {np.dtype(dtype)} [{rows}]"
                )
        if rows == 0:
            raise InvalidArgument("the plan has no request")
        if len(self.query_start) != rows + 1 or self.query_start[0] != 0 or self.query_start[-1] != len(self.tokens):
            raise InvalidArgument(
                f"query_start of the plan must be {rows + 1} sums that run from 0 to the {len(self.tokens)} tokens"
            )
        if len(set(self.slot.tolist())) != rows:
            raise InvalidArgument("two requests of the plan use one slot")
        for array in (getattr(self, name) for name in (*_ROW_FIELDS, "query_start", "tokens")):
            array.setflags(write=False)

    @classmethod
    def of(cls, rows: Sequence[PlanRow], logits: Logits = Logits.NONE) -> StepPlan:
        """The plan of these requests, in this order."""
        tables = np.zeros((len(rows), max((len(row.blocks) for row in rows), default=1)), np.int32)
        for index, row in enumerate(rows):
            tables[index, : len(row.blocks)] = row.blocks
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
            seed=np.array([row.seed for row in rows], np.uint64),
            generated=np.array([row.generated for row in rows], np.int32),
            max_tokens=np.array([row.max_tokens for row in rows], np.int32),
            ignore_eos=np.array([row.params.ignore_eos for row in rows], np.uint8),
            logits=logits,
        )

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
    "seed": np.uint64,
    "generated": np.int32,
    "max_tokens": np.int32,
    "ignore_eos": np.uint8,
}


@dataclass(frozen=True)
class StepOutput:
    """What a step gave, on the host, in the order of the plan.

    Args:
        token: int32 [R], the sampled token; -1 where none was asked for or the logits held no number.
        finish: int32 [R], FinishReason.
        logits: float32 rows as the plan asked; None for Logits.NONE.
    """

    request: Int64
    epoch: Int64
    token: Int32
    finish: Int32
    logits: Float32 | None = None


class PendingStep:
    """A step that was submitted. `event` completes with it; `result` waits and may be called more than once."""

    def __init__(self, event: Event, collect: Callable[[], StepOutput]) -> None:
        self.event = event
        self._collect = collect
        self._output: StepOutput | None = None

    def result(self, timeout: float = DEFAULT_TIMEOUT) -> StepOutput:
        """The output. Raises Timeout after `timeout` seconds, AsyncFailure when the step failed on the device."""
        if self._output is None:
            self.event.synchronize(timeout)
            self._output = self._collect()
        return self._output
