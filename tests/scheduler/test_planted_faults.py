"""Faults that serving engines have had, put back one at a time: the harness of test_machine.py sees each of them.

A fault is planted by a subclass or a patch; `seen` walks the same seeds with and without it, and only without it may
all of them pass. The pool is the one in Python, which refuses nothing (python_pool.py), where the point is that the
harness sees what the native pool would refuse.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pool_model import Block
from python_pool import PythonPool, TolerantModel
from scheduler_machine import walk
from scheduler_model import Harness

import accel.scheduler.request as request_module
import accel.scheduler.scheduler as scheduler_module
from accel.errors import AccelError, InvalidArgument
from accel.runner.plan import StepOutput
from accel.scheduler.request import Request, State
from accel.scheduler.scheduler import Scheduler, SchedulerConfig, Update, _Row, _Step

SEEDS = range(30)


def python_pool(model: type[TolerantModel] = TolerantModel) -> Any:
    return lambda blocks, size: PythonPool(model(blocks, size))


@pytest.fixture(scope="module", autouse=True)
def clean() -> None:
    """Without a fault every seed passes."""
    for seed in SEEDS:
        walk(seed, pool=python_pool())


def seen(**how: Any) -> str:
    """What the harness says on the first seed that shows the fault."""
    how.setdefault("pool", python_pool())
    for seed in SEEDS:
        try:
            walk(seed, **how)
        except (AssertionError, AccelError) as found:
            return f"{type(found).__name__}: {found}"
    raise AssertionError("the planted fault was not seen")


# --- faults of the scheduler ------------------------------------------------------------------------------------------


class NoEpochCheck(Scheduler):
    """Takes every output for that of a live request."""

    def _alive(self, row: _Row, epoch: int) -> bool:
        return True


def test_an_output_that_is_cached_without_the_epoch_check_is_seen() -> None:
    seen(scheduler=NoEpochCheck)


def test_the_native_pool_refuses_outputs_of_closed_tables_as_well() -> None:
    harness = Harness(blocks=8, config=SchedulerConfig(depth=1), scheduler=NoEpochCheck)
    track = harness.add([1, 2, 3], 4)
    harness.turn()
    harness.abort(track)
    with pytest.raises(InvalidArgument):
        harness.scheduler.commit(harness.outputs[0])


def test_an_epoch_that_a_preemption_does_not_raise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(request: Request) -> None:
        epoch = request.epoch
        preempt(request)
        request.epoch = epoch

    preempt = Request.preempt
    monkeypatch.setattr(Request, "preempt", keep)
    seen()


def test_a_stale_token_that_is_appended_is_seen() -> None:
    class AppendsStale(Scheduler):
        def _apply(self, step: _Step, output: StepOutput) -> list[Update]:
            stale = [
                (row.request, token)
                for row, token in zip(step.rows, output.token.tolist(), strict=True)
                if row.sample and row.request.epoch != row.epoch and row.request.generated < row.request.max_new_tokens
            ]
            updates = super()._apply(step, output)
            for request, token in stale:
                request.append(token)
            return updates

    seen(scheduler=AppendsStale)


def test_a_full_hit_that_is_not_cut_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "hit_limit", lambda tokens, block_size: tokens // block_size)
    assert "computes nothing" in seen()


def test_the_preemption_of_a_prefill_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Request, "preemptable", property(lambda request: True))
    assert "before it gave a token" in seen()


class PreemptsForAdmission(Scheduler):
    """Makes room for whoever waits by preempting a prompt that is being computed."""

    def _choose_decodes(self, chosen: list[tuple[Request, int]]) -> int:
        prefills = [request for request in self._running if request.prefilling]
        if self._waiting and prefills:
            self._preempt(prefills[-1])
        return super()._choose_decodes(chosen)


class Lenient(Harness):
    """Does not mind who is preempted."""

    def _see_preemptions(self) -> list[Any]:
        for track in self.tracks.values():
            if track.state is State.RUNNING and track.request.state is State.WAITING:
                self._leave(track)
                track.state = State.WAITING
                self.counts["preemptions"] += 1
        return []

    def _check_progress(self) -> None:
        """Only :meth:`drain` judges."""


def two_long_prompts(scheduler: type[Scheduler]) -> None:
    """Each needs more than half of the pool and several steps."""
    config = SchedulerConfig(max_batch_tokens=4, output_reserve=0, prefix_cache=False)
    harness = Lenient(blocks=8, config=config, scheduler=scheduler)
    for first in (0, 40):
        harness.add(list(range(first, first + 20)), 4)
    harness.drain(limit=200)


def test_prefills_that_preempt_each_other_are_seen_to_have_no_end() -> None:
    two_long_prompts(Scheduler)
    with pytest.raises(AssertionError, match="no end within"):
        two_long_prompts(PreemptsForAdmission)


class BetterFirst(Scheduler):
    """Preempts the first decode that stands behind the one that is short, not the last."""

    def _make_room(self, short: Request) -> bool:
        for victim in self._running[self._running.index(short) + 1 :]:
            if victim.preemptable:
                self._preempt(victim)
                return True
        return super()._make_room(short)


def test_the_preemption_of_a_better_request_for_a_worse_is_seen() -> None:
    assert "was preempted" in seen(scheduler=BetterFirst)


def test_an_output_taken_twice_is_seen() -> None:
    class Twice(Scheduler):
        def commit(self, output: StepOutput) -> list[Update]:
            updates = super().commit(output)
            for update in updates:
                if update.token is not None and not update.request.ended:
                    update.request.append(update.token)
            return updates

    seen(scheduler=Twice)


def test_a_late_output_that_is_not_kept_is_seen() -> None:
    """Applied at once, before those of earlier steps."""

    class AtOnce(Scheduler):
        def commit(self, output: StepOutput) -> list[Update]:
            with self._lock:
                step = self._steps.pop(output.step, None)
                if step is None:
                    self._counters.duplicate_outputs += 1
                    return []
                return self._apply(step, output)

    seen(scheduler=AtOnce)


def test_a_failed_step_that_leaves_its_requests_running_is_seen() -> None:
    class Forgets(Scheduler):
        def fail(self, step: int, error: AccelError) -> list[Update]:
            with self._lock:
                failed = self._steps.pop(step, None)
                self._late.pop(step, None)
                if failed is not None:
                    self.pool.drop_step(failed.lease)
                    self._counters.failed_steps += 1
                return []

    seen(scheduler=Forgets)


def test_an_output_that_is_left_waiting_for_a_failed_step_is_seen() -> None:
    class Leaves(Scheduler):
        def fail(self, step: int, error: AccelError) -> list[Update]:
            self._take_late = list  # type: ignore[method-assign]
            try:
                return super().fail(step, error)
            finally:
                del self._take_late

    harness = Harness(blocks=8, config=SchedulerConfig(max_batch_tokens=4, depth=1), scheduler=Leaves)
    for first in (0, 20):
        harness.add(list(range(first, first + 4)), 1)
    for _ in range(2):
        harness.schedule()
        harness.execute()
    harness.commit(1)
    with pytest.raises(AssertionError):
        harness.fail(0)


def test_a_stop_string_that_does_not_end_a_preempted_request_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(request_module._NEXT, State.WAITING, {State.RUNNING, State.ABORTED})
    assert "cannot go from WAITING to FINISHED" in seen()


def test_a_slot_that_is_given_back_early_is_seen() -> None:
    class GivesAtLastStep(Scheduler):
        def _choose_decodes(self, chosen: list[tuple[Request, int]]) -> int:
            budget = super()._choose_decodes(chosen)
            for request, _ in chosen:
                if request.total - request.prompt_len + 1 == request.max_new_tokens and request.slot >= 0:
                    self._slots.give(request.slot)
            return budget

    seen(scheduler=GivesAtLastStep)


# --- faults of the pool -----------------------------------------------------------------------------------------------


class MatchesPending(TolerantModel):
    """Lets a request begin with a block as soon as somebody is to write it."""

    opening = False

    def open(self, root: bytes, tokens: Any, limit: int, keep_free: int) -> tuple[int, int] | None:
        self.opening = True
        try:
            return super().open(root, tokens, limit, keep_free)
        finally:
            self.opening = False

    def find(self, key: Any) -> Block | None:
        found = super().find(key)
        if found is not None or not self.opening:
            return found
        root, tokens = key
        last = len(tokens) // self.block_size - 1
        for table in self.tables.values():
            known = table.root == root and tuple(table.tokens[: len(tokens)]) == tokens
            if known and last < len(table.blocks) and table.blocks[last].life == "PENDING":
                return table.blocks[last]
        return None


def test_a_hit_on_a_block_that_is_not_written_yet_is_seen() -> None:
    assert "neither its own nor a committed one" in seen(pool=python_pool(MatchesPending))


class FreesUnderLease(TolerantModel):
    """Closing a table frees its blocks, whoever else holds them."""

    def close_table(self, table: int) -> None:
        blocks = list(self.table(table).blocks)
        super().close_table(table)
        for block in blocks:
            if block.life == "PENDING" and block.holders:
                block.holders.clear()
                block.life = "FREE"
                self.free.append(block)

    def let_go(self, block: Block, holder: str) -> None:
        if holder in block.holders:
            super().let_go(block, holder)


def test_a_block_that_is_freed_under_a_lease_is_seen() -> None:
    assert "given away under a step" in seen(pool=python_pool(FreesUnderLease))


class EvictsAncestors(TolerantModel):
    """Evicts the beginning of a sequence before its end."""

    def evict(self) -> None:
        self.queue.sort(key=lambda block: len(block.key[1]) if block.key else 0)
        super().evict()


def test_the_eviction_of_an_ancestor_is_seen() -> None:
    assert "no prefix of a request reaches" in seen(pool=python_pool(EvictsAncestors))


class CommitsTooMuch(TolerantModel):
    """Enters the block that is being filled as well."""

    def commit_step(self, step: int, alive: Any, computed: Any, tokens: Any) -> int:
        for row, lives in zip(self.steps[step], alive, strict=True):
            table = self.tables.get(row.table)
            if lives and table is not None:
                self.commit(table, len(row.blocks) - 1)
        return super().commit_step(step, alive, computed, tokens)


def test_a_block_that_is_entered_before_it_is_full_is_seen() -> None:
    seen(pool=python_pool(CommitsTooMuch))


class OtherTable(PythonPool):
    """Tells the runner another request's blocks."""

    def begin_step(self, tables: Any, ends: Any, out: Any) -> int:
        step = super().begin_step(tables, ends, out)
        if len(out) > 1 and len(np.unique(ends)) == 1:
            out[:] = out[::-1].copy()
        return step


def test_a_block_table_of_another_request_is_seen() -> None:
    seen(pool=lambda blocks, size: OtherTable(TolerantModel(blocks, size)))
