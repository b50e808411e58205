"""The scheduler: continuous batching with chunked prefill over a paged cache, for every backend.

::

    add ──> waiting ──admit: a slot, blocks for all known tokens, room for output──> running ──> ended
               ^                                                                       │
               └──────────────── preempt: blocks are short, worst decode first ────────┘

    schedule ──StepPlan──> Runner.execute ──> StepOutput ──> commit
        a step holds a STEP lease on its blocks until its output is committed, or the step failed

One step: decodes first, one token each; then chunks of prompts that run already; then admissions, if nothing had to be
preempted. `schedule` may run ahead of `commit` by `depth` steps; outputs may come late and in any order, and are taken
in the order of their steps.

Invariants: an output counts only for the (request, epoch) that produced it; what it computed is entered into the prefix
index in the same critical section as that comparison, so no other thread can get between. Blocks for all known tokens
are there when a request is admitted, so a prefill never waits for memory; only decodes that gave a token in this life
are preempted, so every life brings a request forward and all end. Deterministic: the same calls with the same clock
give the same plans.

All methods may be called from any thread. The lock is never held over a step, an event or I/O.
"""

from __future__ import annotations

import sys
import threading
import time
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from accel.arguments import at_least, flag, real, whole
from accel.cache.pages import KVLayout
from accel.cache.pool import BlockPool
from accel.errors import AccelError, InvalidArgument, InvalidRequest, Overloaded
from accel.runner.plan import LAST_SAMPLED, FinishReason, History, Logits, StepOutput, StepPlan
from accel.scheduler.policy import Deadlines, OutputReserve, WaitingQueue, hit_limit, order_key
from accel.scheduler.request import EndReason, Request, State
from accel.scheduler.slots import Slots
from accel.scheduler.stats import Counters, SchedulerStats

__all__ = ["MAX_DEPTH", "Scheduler", "SchedulerConfig", "Update"]

#: Steps that may be planned before the first of them is committed, less one.
MAX_DEPTH = 3

_END_OF = {
    FinishReason.EOS: EndReason.EOS,
    FinishReason.LENGTH: EndReason.LENGTH,
    FinishReason.STOP: EndReason.STOP,
}


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits and policy.

    Args:
        max_batch_tokens: tokens of a step; max_requests: requests that run at once.
        depth: steps planned ahead of the one that is committed next, 0 to MAX_DEPTH.
        output_reserve: tokens of output that an admission leaves room for, for each running request.
        priority_seconds: what a unit of priority is worth in waiting time.
        max_waiting: requests that may wait.
        prefix_cache: whether prompts may start from blocks in the cache.

    Raises:
        InvalidArgument: a value out of range.
    """

    max_batch_tokens: int = 512
    max_requests: int = 64
    depth: int = 0
    output_reserve: int = 64
    priority_seconds: float = 10.0
    max_waiting: int = 1024
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        normal: dict[str, Any] = {
            "max_batch_tokens": at_least("max_batch_tokens", self.max_batch_tokens),
            "max_requests": at_least("max_requests", self.max_requests),
            "max_waiting": at_least("max_waiting", self.max_waiting, sys.maxsize),
            "output_reserve": at_least("output_reserve", self.output_reserve, least=0),
            "depth": whole("depth", self.depth, 0, MAX_DEPTH),
        }
        normal["priority_seconds"] = real(
            "priority_seconds", self.priority_seconds, "0 or more, and finite", 0.0, sys.float_info.max
        )
        normal["prefix_cache"] = flag("prefix_cache", self.prefix_cache)
        for name, value in normal.items():
            object.__setattr__(self, name, value)


class Update(NamedTuple):
    """What a committed step brought one request.

    Args:
        token: the sampled id; None where the step only computed a part of the prompt.
        output, row: the step's output, and the request's row in it, for log-probabilities.
        tokens: the tokens of the step that were the request's, for logits.
    """

    request: Request
    token: int | None
    output: StepOutput
    row: int
    tokens: slice


class _Row(NamedTuple):
    """A request's part of a step: its K and V reach `end` tokens once the step is done.

    `first` is its first token's place in the step, `begin` in the request.
    """

    request: Request
    epoch: int
    first: int
    begin: int
    end: int
    sample: bool


class _Step(NamedTuple):
    lease: int
    rows: list[_Row]


class Scheduler:
    """Plans steps over the blocks of `pool`.

    Args:
        clock: seconds that only rise; arrivals and deadlines are on it.
    """

    def __init__(
        self,
        pool: BlockPool,
        layout: KVLayout,
        config: SchedulerConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if pool.block_size != layout.block_size:
            raise InvalidArgument(f"the pool's blocks have {pool.block_size} tokens, the layout's {layout.block_size}")
        self.pool = pool
        self.layout = layout
        self.config = config
        self.clock = clock
        self._lock = threading.Lock()
        self._slots = Slots(config.max_requests)
        self._queue = WaitingQueue()
        self._waiting = 0
        self._running: list[Request] = []
        self._steps: dict[int, _Step] = {}
        self._next_step = 0
        self._late: dict[int, StepOutput] = {}
        self._deadlines = Deadlines()
        self._ended: list[Request] = []
        self._reserve = OutputReserve(config.output_reserve, pool.blocks * layout.block_size)
        self._counters = Counters()

    # --- what callers see ---------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing waits, runs or is in flight."""
        with self._lock:
            return not self._waiting and not self._running and not self._steps

    @property
    def steps_in_flight(self) -> int:
        """Steps planned and neither committed nor failed."""
        with self._lock:
            return len(self._steps)

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of a request that has not ended, on the scheduler's clock."""
        with self._lock:
            return self._deadlines.earliest

    def stats(self) -> SchedulerStats:
        """One coherent look."""
        with self._lock:
            return SchedulerStats(
                self._waiting, len(self._running), len(self._steps), self._reserve.tokens, self._counters.copy()
            )

    def check_fits(self, prompt_len: int, max_new_tokens: int) -> None:
        """Raise InvalidRequest when the whole pool could not hold such a request."""
        needed = self.layout.blocks_for(prompt_len + max_new_tokens - 1)
        if needed > self.pool.blocks:
            raise InvalidRequest(
                f"a prompt of {prompt_len} tokens and {max_new_tokens} to generate need {needed} blocks of"
                f" {self.layout.block_size} tokens; num_blocks is {self.pool.blocks}",
                hint=f"raise num_blocks to {needed}, or lower max_tokens",
                needed=needed,
                num_blocks=self.pool.blocks,
            )

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: the pool can never hold it.
            Overloaded: `max_waiting` requests wait already, and its deadline is not over.
            InvalidArgument: it was added before.
        """
        self.check_fits(request.prompt_len, request.max_new_tokens)
        with self._lock:
            if request.added:
                raise InvalidArgument(f"request {request.number} was added before", hint="make a new one")
            now = self.clock()
            # One whose time is over takes no room: it ends at the next step, however many wait.
            if self._waiting >= self.config.max_waiting and (request.deadline is None or now < request.deadline):
                raise Overloaded(
                    f"{self._waiting} requests are waiting; the limit is {self.config.max_waiting}",
                    hint="try again later, or raise max_waiting",
                    waiting=self._waiting,
                    limit=self.config.max_waiting,
                )
            request.arrival = now
            request.key = order_key(request.arrival, request.priority, self.config.priority_seconds)
            self._deadlines.push(request)
            request.added = True
            self._waiting += 1
            self._queue.push(request)

    def abort(self, request: Request, reason: EndReason = EndReason.ABORT, error: AccelError | None = None) -> bool:
        """End a request wherever it is. False when it had ended already, or was never added."""
        with self._lock:
            if request.ended or not request.added:
                return False
            self._end(request, reason, error)
            return True

    def finish(self, request: Request, reason: EndReason) -> bool:
        """End a request whose last token met a rule that only the host sees. False when it had ended.

        It may have been preempted since it gave that token.
        """
        with self._lock:
            if request.ended:
                return False
            self._end(request, reason)
            return True

    def drain_ended(self) -> list[Request]:
        """The requests that ended since the last call, in that order, whatever ended them."""
        with self._lock:
            ended, self._ended = self._ended, []
            return ended

    # --- a step -------------------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """The next step; None when there is nothing to do, or `depth` + 1 steps are in flight."""
        with self._lock:
            self._expire()
            if len(self._steps) > self.config.depth:
                return None
            chosen: list[tuple[Request, int]] = []
            before = self._counters.preemptions
            budget = self._choose_decodes(chosen)
            budget = self._choose_prefills(chosen, budget)
            preempted = self._counters.preemptions > before
            if not preempted:
                self._admit(chosen, budget)
            self._reserve.step(preempted)
            if chosen:
                return self._plan(chosen)
            if self._running and not self._steps and not preempted:
                raise AccelError(
                    "no running request can go on, and no step is in flight",
                    hint="this is a defect of the scheduler, please report it",
                )
            return None

    def commit(self, output: StepOutput) -> list[Update]:
        """Take a step's output; one that came before those of earlier steps is kept until they are there.

        Returns:
            What the requests got, in the order of steps and rows. Those that ended are in `drain_ended` as well.
        """
        with self._lock:
            step = self._steps.get(output.step)
            if step is None or output.step in self._late:
                self._counters.duplicate_outputs += 1
                return []
            if [row.request.number for row in step.rows] != output.request.tolist():
                raise InvalidArgument(f"the output of step {output.step} is for other requests than its plan")
            self._late[output.step] = output
            return self._take_late()

    def fail(self, step: int, error: AccelError) -> list[Update]:
        """A step raised: end the requests it was for. Unknown steps are ignored.

        Returns:
            What :meth:`commit` would: outputs of later steps that had waited for this one. The requests that ended are
            in `drain_ended`.
        """
        with self._lock:
            failed = self._steps.pop(step, None)
            self._late.pop(step, None)
            if failed is None:
                return []
            self._counters.failed_steps += 1
            self.pool.drop_step(failed.lease)
            for row in failed.rows:
                if self._alive(row, row.epoch):
                    self._end(row.request, EndReason.ERROR, error)
            return self._take_late()

    def drop_steps(self) -> None:
        """Nothing is going to be committed any more: give back what the steps in flight hold. Their requests stay."""
        with self._lock:
            for step in self._steps.values():
                self.pool.drop_step(step.lease)
            self._steps.clear()
            self._late.clear()

    # --- choosing, under the lock -------------------------------------------------------------------------------------

    def _choose_decodes(self, chosen: list[tuple[Request, int]]) -> int:
        budget = self.config.max_batch_tokens
        ready = [request for request in self._running if request.decoding][:budget]
        done = 0
        while done < len(ready):
            done += self.pool.grow(
                np.array([request.table for request in ready[done:]], np.int64),
                np.array([request.total for request in ready[done:]], np.int32),
            )
            if done < len(ready):
                # Not this one, unless there is room now.
                if not self._make_room(ready[done]):
                    del ready[done]
                ready = [request for request in ready if request.state is State.RUNNING]
        chosen += [(request, 1) for request in ready]
        return budget - len(ready)

    def _make_room(self, short: Request) -> bool:
        """Preempt the worst decode that is not better than `short`. False when it is not worth trying again now."""
        if self.pool.stats().draining:
            return False  # blocks come back when steps in flight are committed
        for victim in reversed(self._running):
            if victim.preemptable:
                self._preempt(victim)
                return victim is not short
            if victim is short:
                break
        return False

    def _choose_prefills(self, chosen: list[tuple[Request, int]], budget: int) -> int:
        for request in self._running:
            if budget == 0:
                break
            if request.prefilling:
                count = min(request.num_tokens - request.planned, budget)
                chosen.append((request, count))
                budget -= count
        return budget

    def _admit(self, chosen: list[tuple[Request, int]], budget: int) -> None:
        while budget > 0 and self._slots.free and self._queue.take(self._enter):
            request = self._entered
            count = min(request.num_tokens - request.planned, budget)
            chosen.append((request, count))
            budget -= count

    def _enter(self, request: Request) -> bool:
        limit = hit_limit(request.num_tokens, self.layout.block_size)
        if request.whole_prompt or not self.config.prefix_cache:
            limit = 0
        opened = self.pool.open(request.root, request.tokens, limit=limit, keep_free=self._keep_free(request))
        if opened is None:
            return False
        table, hit = opened
        counters = self._counters
        if request.admitted is None:
            request.admitted = self.clock()
            request.hit_tokens = hit
            counters.prompt_tokens += request.prompt_len
            counters.hit_tokens += hit
        else:
            counters.recomputed_tokens += request.num_tokens - hit
        request.enter(table, self._slots.take(request), hit)
        self._waiting -= 1
        insort(self._running, request, key=_order)
        self._entered = request
        return True

    def _keep_free(self, candidate: Request) -> int:
        """Blocks that an admission must leave: room for the output reserve of all that would run."""
        if not self._running:
            return 0
        blocks_for, reserve, needed = self.layout.blocks_for, self._reserve.tokens, 0
        for request in (*self._running, candidate):
            known = max(request.total, request.covered)
            wanted = min(known + reserve, request.longest)
            needed += max(0, blocks_for(wanted) - blocks_for(known))
        return needed

    def _plan(self, chosen: list[tuple[Request, int]]) -> StepPlan:
        requests = [request for request, _ in chosen]
        rows, tokens, histories, first = [], [], [], 0
        for request, count in chosen:
            begin = request.planned
            end = begin + count
            sample = end == request.num_tokens + request.in_flight
            rows.append(_Row(request, request.epoch, first, begin, end, sample))
            if request.in_flight:
                tokens.append(LAST_SAMPLED)
            elif end == request.num_tokens == begin + 1:
                tokens.append(request.last_token)
            else:
                tokens += request.tokens[begin:end].tolist()
            if request.params.uses_history and not request.history_sent:
                histories.append((request.slot, request.tokens.copy()))
                request.history_sent = True
            first += count
        ends = np.array([row.end for row in rows], np.int32)
        slots = np.array([request.slot for request in requests], np.int32)
        tables = np.empty((len(rows), self.layout.blocks_for(int(ends.max()))), np.int32)
        lease = self.pool.begin_step(np.array([request.table for request in requests], np.int64), ends, tables)
        plan = StepPlan(
            request=np.array([request.number for request in requests], np.int64),
            epoch=np.array([request.epoch for request in requests], np.int64),
            slot=slots,
            query_start=np.array([*(row.first for row in rows), first], np.int32),
            computed=np.array([row.begin for row in rows], np.int32),
            tokens=np.array(tokens, np.int32),
            block_tables=tables,
            sample=np.array([row.sample for row in rows], np.bool_),
            next_token=_next_tokens(rows),
            generated=np.array([r.num_tokens + r.in_flight - r.prompt_len for r in requests], np.int32),
            params=tuple([request.params for request in requests]),
            logits=Logits.ALL if any(request.all_logits for request in requests) else Logits.NONE,
            step=self._next_step,
            history=History.of(histories) if histories else None,
            **self._slots.columns(slots),
        )
        for row in rows:
            row.request.planned = row.end
            row.request.in_flight += row.sample
        self._steps[self._next_step] = _Step(lease, rows)
        self._next_step += 1
        self._counters.steps += 1
        self._counters.batch_tokens += first
        return plan

    # --- what came back, under the lock -------------------------------------------------------------------------------

    def _take_late(self) -> list[Update]:
        """Apply the outputs whose turn it is."""
        updates: list[Update] = []
        while self._steps and (oldest := next(iter(self._steps))) in self._late:
            updates += self._apply(self._steps.pop(oldest), self._late.pop(oldest))
        return updates

    def _apply(self, step: _Step, output: StepOutput) -> list[Update]:
        rows, tokens, finish = step.rows, output.token.tolist(), output.finish.tolist()
        alive = list(map(self._alive, rows, output.epoch.tolist()))
        # A request whose logits held no number ends, and what it computed is not for others.
        sound = [live and (token >= 0 or not row.sample) for row, token, live in zip(rows, tokens, alive, strict=True)]
        self.pool.commit_step(
            step.lease,
            np.array(sound, np.bool_),
            np.array([row.end for row in rows], np.int32),
            np.where([row.sample for row in rows], output.token, np.int32(-1)),
        )
        updates = []
        for index, row in enumerate(rows):
            request, _, first, begin, end, sample = row
            if not alive[index]:
                self._counters.stale_outputs += sample
                continue
            if not sound[index]:
                self._end(request, EndReason.ERROR, _no_number(request))
                continue
            request.computed = end
            request.prompt_done = request.prompt_done or end >= request.prompt_len
            token = None
            if sample:
                token = tokens[index]
                request.append(token)
                self._counters.generated_tokens += 1
                if finish[index]:
                    self._end(request, _END_OF[FinishReason(finish[index])])
                elif request.num_tokens - request.prompt_len >= request.max_new_tokens:
                    # Whatever the device says: nothing would ever be planned for it again.
                    self._end(request, EndReason.LENGTH)
            updates.append(Update(request, token, output, index, slice(first, first + end - begin)))
        return updates

    def _alive(self, row: _Row, epoch: int) -> bool:
        """Whether what (request, epoch) computed is for the life the request has now."""
        return row.request.epoch == epoch and row.request.state is State.RUNNING

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.preempt()
        request.requeue()
        self._waiting += 1
        self._queue.push(request)
        self._counters.preemptions += 1

    def _end(self, request: Request, reason: EndReason, error: AccelError | None = None) -> None:
        if request.state is State.RUNNING:
            self._release(request)
        else:
            self._waiting -= 1
            self._queue.prune(self._waiting)
        request.end(reason, error)
        self._deadlines.prune(self._waiting + len(self._running))
        self._counters.ended[reason] += 1
        self._ended.append(request)

    def _release(self, request: Request) -> None:
        """Give the request's own leases and slot back. Steps in flight keep theirs."""
        self.pool.close_table(request.table)
        self._slots.give(request.slot)
        self._running.remove(request)

    def _expire(self) -> None:
        for request in self._deadlines.expired(self.clock):
            self._end(request, EndReason.DEADLINE)


def _order(request: Request) -> tuple[float, int]:
    return request.key, request.number


def _next_tokens(rows: list[_Row]) -> npt.NDArray[np.int32]:
    """The prompt token after those of each row, where its log-probability is wanted."""
    tokens = np.full(len(rows), -1, np.int32)
    for index, row in enumerate(rows):
        request = row.request
        if request.params.prompt_logprobs is not None and row.end < request.prompt_len:
            tokens[index] = request.tokens[row.end]
    return tokens


def _no_number(request: Request) -> AccelError:
    if request.params.logit_bias or request.params.bad_words:
        return InvalidRequest(
            "logit_bias and bad_words leave no token to choose",
            hint="ban fewer tokens",
            banned=len(request.params.logit_bias) + len(request.params.bad_words),
        )
    return AccelError(
        "the logits hold no number to choose: all are NaN or minus infinity",
        hint="the model, or its K and V, are damaged",
    )
