"""The simple scheduler: random requests all end, within the budget, and every block comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel.cache.pages import KVLayout
from accel.errors import InvalidRequest
from accel.runner.plan import LAST_SAMPLED, FinishReason, StepOutput, StepPlan
from accel.sampling_params import SamplingParams
from accel.scheduler.sequence import Sequence
from accel.scheduler.simple import SimpleScheduler

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=1, block_size=4)


def sequence(number: int, prompt: int, new: int, limit: int = 1000) -> Sequence:
    return Sequence(number, np.arange(prompt, dtype=np.int32), SamplingParams(max_tokens=new), limit, 0)


def run(plan: StepPlan) -> StepOutput:
    """A runner that samples token 1 and ends a request at its length."""
    token = np.where(plan.sample, 1, -1).astype(np.int32)
    ends = plan.sample & (plan.generated + 1 >= plan.max_tokens)
    finish = np.where(ends, FinishReason.LENGTH, FinishReason.NONE).astype(np.int32)
    return StepOutput(plan.request, plan.epoch, token, finish)


@given(
    requests=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 10)), min_size=1, max_size=12),
    blocks=st.integers(8, 20),
    budget=st.integers(1, 16),
    slots=st.integers(1, 5),
)
@settings(deadline=None, max_examples=150, derandomize=True)
def test_all_requests_end_within_the_budget_and_every_block_comes_back(
    requests: list[tuple[int, int]], blocks: int, budget: int, slots: int
) -> None:
    scheduler = SimpleScheduler(LAYOUT, blocks, budget, slots)
    waiting = [sequence(i, prompt, new) for i, (prompt, new) in enumerate(requests)]
    for item in waiting:
        scheduler.add(item)
    seen: dict[int, list[int]] = {item.number: [] for item in waiting}
    for _ in range(2000):
        plan = scheduler.schedule()
        if plan is None:
            break
        assert plan.num_tokens <= budget
        assert plan.num_requests <= slots
        used = [block for item, _ in scheduler.planned for block in item.blocks.tolist()]
        assert len(used) == len(set(used))
        for index, number in enumerate(plan.request.tolist()):
            seen[number] += plan.tokens[plan.query_start[index] : plan.query_start[index + 1]].tolist()
        scheduler.commit(run(plan))
    assert scheduler.idle
    assert scheduler.free_blocks == blocks
    for item, (prompt, new) in zip(waiting, requests, strict=True):
        assert len(item.output) == new
        assert seen[item.number] == [*range(prompt), *[LAST_SAMPLED] * (new - 1)]


def test_decodes_go_before_prefill_chunks() -> None:
    scheduler = SimpleScheduler(LAYOUT, 64, 4, 8)
    scheduler.add(sequence(0, 2, 5))
    first = scheduler.schedule()
    assert first is not None
    scheduler.commit(run(first))
    scheduler.add(sequence(1, 20, 5))
    plan = scheduler.schedule()
    assert plan is not None
    assert plan.request.tolist() == [0, 1]
    assert np.diff(plan.query_start).tolist() == [1, 3]


def test_the_output_of_a_request_that_left_is_dropped() -> None:
    scheduler = SimpleScheduler(LAYOUT, 8, 16, 8)
    gone, stays = sequence(0, 3, 5), sequence(1, 3, 5)
    scheduler.add(gone)
    scheduler.add(stays)
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.remove(gone)
    assert [item.number for item in scheduler.commit(run(plan))] == [1]
    assert gone.output == []
    scheduler.remove(gone)
    scheduler.remove(stays)
    assert scheduler.free_blocks == 8


def test_a_request_that_can_never_fit_is_refused_at_once_with_the_numbers() -> None:
    scheduler = SimpleScheduler(LAYOUT, 4, 16, 8)
    with pytest.raises(InvalidRequest, match="need 5 blocks of 4 tokens; num_blocks is 4"):
        scheduler.add(sequence(0, 10, 7))
    scheduler.add(sequence(1, 10, 7, limit=16))
    assert not scheduler.idle
