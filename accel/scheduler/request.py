"""One request in the scheduler: its state, its tokens, how far it has come.

::

             admit                 preempt (its blocks are short)
    WAITING ───────> RUNNING ────────────────────────> PREEMPTED
       ^  │             │ │                                │
       │  │ abort       │ └ last token ──> FINISHED        │ queue again
       │  v             v abort, deadline, error           │
       │  ABORTED <─────┘                                  │
       └───────────────────────────────────────────────────┘
    WAITING ── its last token met a stop string, seen only after it was preempted ──> FINISHED

    tokens   [ prompt …………………………… | output ………… ]  (+ in flight: sampled on the device, not known here yet)
              0        computed      planned      num_tokens       total = num_tokens + in_flight
               └ K, V are   └ a step in flight
                 there        computes these

Invariants: any other transition raises. `epoch` rises on every exit from RUNNING, so what belongs to an earlier life
can be told apart. 0 <= computed <= planned < total.
"""

from __future__ import annotations

import enum
from typing import Final

import numpy as np
import numpy.typing as npt

from accel.errors import AccelError, InvalidRequest
from accel.sampling_params import SamplingParams

__all__ = ["MAX_PRIORITY", "EndReason", "Request", "State"]

#: Priorities are -MAX_PRIORITY to MAX_PRIORITY.
MAX_PRIORITY: Final = 1000


class State(enum.Enum):
    """Where a request is; see the module's drawing."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"


class EndReason(enum.Enum):
    """Why a request ended."""

    EOS = "eos"  # an end-of-sequence token
    STOP = "stop"  # a stop id, sequence or string
    LENGTH = "length"  # max_tokens, or the model's longest sequence
    ABORT = "abort"  # somebody aborted it
    DEADLINE = "deadline"  # its time was over
    ERROR = "error"  # a step failed, or the engine closed


_NEXT: Final = {
    State.WAITING: {State.RUNNING, State.FINISHED, State.ABORTED},
    State.RUNNING: {State.PREEMPTED, State.FINISHED, State.ABORTED},
    State.PREEMPTED: {State.WAITING},
    State.FINISHED: set(),
    State.ABORTED: set(),
}


class Request:
    """A request inside the scheduler, which alone changes it.

    Args:
        number: the internal number, unique in a scheduler's life.
        prompt: token ids int32 [n], one or more.
        max_model_len: tokens at which it ends for length, prompt included.
        seed: of its random numbers.
        root: digest of the namespace its blocks live in (``CacheIdentity.root``).
        priority: a unit is worth `priority_seconds` of waiting; higher goes first.
        deadline: on the scheduler's clock; None for none.
        leader: a request with the same prompt; this one waits until the leader's prompt is in the cache.
        all_logits: bring the logits of every token of the prompt back.

    Raises:
        InvalidRequest: a prompt that is empty or leaves no token to generate, or a priority out of range.
    """

    def __init__(
        self,
        number: int,
        prompt: npt.NDArray[np.int32],
        params: SamplingParams,
        *,
        max_model_len: int,
        seed: int,
        root: bytes,
        priority: int = 0,
        deadline: float | None = None,
        leader: Request | None = None,
        all_logits: bool = False,
    ) -> None:
        if len(prompt) == 0:
            raise InvalidRequest("the prompt is empty; it must have at least 1 token")
        if len(prompt) >= max_model_len:
            raise InvalidRequest(
                f"the prompt has {len(prompt)} tokens; the limit is {max_model_len - 1}, one below the model's longest"
            )
        if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
            raise InvalidRequest(f"priority is {priority}; it must be {-MAX_PRIORITY} to {MAX_PRIORITY}")
        self.number = number
        self.params = params
        self.seed = seed
        self.root = root
        self.priority = priority
        self.deadline = deadline
        self.leader = leader
        self.all_logits = all_logits
        self.prompt_len = len(prompt)
        #: Tokens it may generate in all.
        self.max_new_tokens = min(params.max_tokens, max_model_len - len(prompt))
        self.state = State.WAITING
        self.reason: EndReason | None = None
        self.error: AccelError | None = None
        self.epoch = 0
        #: Order among requests: arrival, brought forward by priority. Set when it is added.
        self.key = 0.0
        self.arrival = 0.0
        self.admitted: float | None = None
        #: Whether a scheduler has it.
        self.added = False
        #: Prompt tokens found in the cache when it was first admitted.
        self.hit_tokens = 0
        self.preemptions = 0
        #: Whether its whole prompt has been in the cache once.
        self.prompt_done = False
        self._tokens = np.empty(len(prompt) + self.max_new_tokens, np.int32)
        self._tokens[: len(prompt)] = prompt
        self.num_tokens = len(prompt)
        self.last_token = int(prompt[-1])
        self._leave()

    def _leave(self) -> None:
        """What a life leaves behind: nothing."""
        self.table = -1
        self.slot = -1
        self.computed = 0
        self.planned = 0
        self.in_flight = 0
        #: Tokens that its table had blocks for when it was admitted.
        self.covered = 0
        #: Tokens that came back in this life: without one it may not be preempted, or nothing would ever end.
        self.life_tokens = 0
        self.history_sent = False

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """The ids known here, prompt and output: int32 [num_tokens], a view."""
        return self._tokens[: self.num_tokens]

    @property
    def output(self) -> list[int]:
        """The ids generated so far."""
        generated: list[int] = self._tokens[self.prompt_len : self.num_tokens].tolist()
        return generated

    @property
    def generated(self) -> int:
        """Number of ids generated so far."""
        return self.num_tokens - self.prompt_len

    @property
    def total(self) -> int:
        """Tokens it will have when all steps in flight are back."""
        return self.num_tokens + self.in_flight

    @property
    def longest(self) -> int:
        """Tokens whose K and V it can ever need: the last token generated needs none."""
        return self.prompt_len + self.max_new_tokens - 1

    @property
    def ended(self) -> bool:
        return self.state in (State.FINISHED, State.ABORTED)

    @property
    def decoding(self) -> bool:
        """Whether its next step computes one token, and may: more are wanted than are on their way."""
        total = self.num_tokens + self.in_flight
        return total - self.planned == 1 and total - self.prompt_len < self.max_new_tokens

    @property
    def prefilling(self) -> bool:
        """Whether more than one known token is to be computed."""
        return self.num_tokens - self.planned > 1

    @property
    def preemptable(self) -> bool:
        """Only decodes are: a prefill would start again and again."""
        return self.life_tokens > 0 and not self.prefilling

    @property
    def whole_prompt(self) -> bool:
        """Whether every token of the prompt has to be computed, because something of each is asked for."""
        wanted = self.params.prompt_logprobs is not None or self.all_logits
        return wanted and not self.prompt_done

    def append(self, token: int) -> None:
        """Take the next token of the output."""
        self._tokens[self.num_tokens] = self.last_token = token
        self.num_tokens += 1
        self.in_flight -= 1
        self.life_tokens += 1

    def enter(self, table: int, slot: int, hit: int) -> None:
        """WAITING to RUNNING: `hit` tokens are in the cache already."""
        self._move(State.RUNNING)
        self.table, self.slot = table, slot
        self.computed = self.planned = hit
        self.covered = self.num_tokens

    def preempt(self) -> None:
        """RUNNING to PREEMPTED; the caller has closed the table."""
        self._move(State.PREEMPTED)
        self.preemptions += 1
        self._leave()

    def requeue(self) -> None:
        """PREEMPTED to WAITING."""
        self._move(State.WAITING)

    def end(self, reason: EndReason, error: AccelError | None = None) -> None:
        """To FINISHED or ABORTED; the caller has closed the table."""
        finished = reason in (EndReason.EOS, EndReason.STOP, EndReason.LENGTH)
        state = State.FINISHED if finished else State.ABORTED
        self._check_move(state)
        # Other threads look at `ended`, and then for the reason.
        self.reason, self.error = reason, error
        self._move(state)
        # It is looked at no more, and may be large.
        self.leader = None
        self._leave()

    def _move(self, state: State) -> None:
        self._check_move(state)
        if self.state is State.RUNNING:
            self.epoch += 1
        self.state = state

    def _check_move(self, state: State) -> None:
        if state not in _NEXT[self.state]:
            raise AccelError(
                f"request {self.number} cannot go from {self.state.name} to {state.name}",
                hint="this is a defect of the scheduler, please report it",
                state=self.state.name,
            )

    def __repr__(self) -> str:
        return (
            f"Request({self.number}, {self.state.name}, epoch={self.epoch}, prompt={self.prompt_len},"
            f" generated={self.generated}, computed={self.computed}, planned={self.planned},"
            f" in_flight={self.in_flight})"
        )
