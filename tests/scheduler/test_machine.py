"""Whatever is asked of the scheduler, in whatever order outputs come, it keeps its promises (scheduler_model.py)."""

from __future__ import annotations

import pytest
from python_pool import PythonPool, TolerantModel
from scheduler_machine import drive, walk


def test_the_scheduler_does_what_its_model_promises() -> None:
    drive(examples=150, steps=40)


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_random_walks_end_with_every_promise_kept(first: int) -> None:
    preemptions = stale = hits = 0
    for seed in range(first, first + 20):
        harness = walk(seed)
        counters = harness.scheduler.stats().counters
        preemptions += counters.preemptions
        stale += counters.stale_outputs
        hits += counters.hit_tokens
    assert min(preemptions, stale, hits) >= 5, "the walks meet what they are for"


def test_the_walks_are_the_same_over_a_pool_in_python() -> None:
    for seed in range(10):
        walk(seed, pool=lambda blocks, size: PythonPool(TolerantModel(blocks, size)))
