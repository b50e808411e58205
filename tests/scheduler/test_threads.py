"""Planning, commits, aborts and preemptions from three threads at once (scheduler_threads.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from python_pool import PythonPool, TolerantModel
from scheduler_threads import Race

from accel.errors import AccelError
from accel.runner.plan import StepOutput
from accel.scheduler.request import EndReason
from accel.scheduler.scheduler import Scheduler, Update, _Row, _Step

SEEDS = range(60)


def python_pool(blocks: int, block_size: int) -> PythonPool:
    return PythonPool(TolerantModel(blocks, block_size))


def races(**how: Any) -> Iterator[Race]:
    for seed in SEEDS:
        race = Race(seed, **how)
        race.run()
        yield race


def seen(**how: Any) -> bool:
    """Whether some seed shows a fault."""
    try:
        for _ in races(pool=python_pool, **how):
            pass
    except (AssertionError, AccelError):
        return True
    return False


def test_whatever_meets_inside_the_scheduler_nothing_stale_is_cached_and_nothing_is_lost() -> None:
    handovers = preemptions = stale = aborts = 0
    for race in races():
        counters = race.scheduler.stats().counters
        handovers += race.meeting.handovers
        preemptions += counters.preemptions
        stale += counters.stale_outputs
        aborts += counters.ended[EndReason.ABORT]
    assert min(handovers, preemptions, stale, aborts) > 10, "the races meet what they are for"


def test_the_races_are_sound_over_a_pool_that_refuses_nothing() -> None:
    assert not seen()


class NoEpochCheck(Scheduler):
    """Takes every output for that of a live request."""

    def _alive(self, row: _Row, epoch: int) -> bool:
        return True


class ChecksOutside(Scheduler):
    """Looks whether a row is alive, lets go of the lock, and then acts on what it saw."""

    def _apply(self, step: _Step, output: StepOutput) -> list[Update]:
        self._seen = {id(row): super(ChecksOutside, self)._alive(row, row.epoch) for row in step.rows}
        self._lock.release()
        self.pool.meeting.hand_over()  # type: ignore[attr-defined]
        self._lock.acquire()
        return super()._apply(step, output)

    def _alive(self, row: _Row, epoch: int) -> bool:
        return self._seen[id(row)]


@pytest.mark.parametrize("fault", [NoEpochCheck, ChecksOutside])
def test_an_output_that_is_not_compared_with_the_life_it_changes_is_seen(fault: type[Scheduler]) -> None:
    assert seen(scheduler=fault)
