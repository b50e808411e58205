"""How steps are planned: who is in one, with how many tokens, in which blocks. Blocks have 4 tokens here.

Every call goes through the harness (scheduler_model.py), so each test also holds the scheduler to all its promises.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from scheduler_machine import walk
from scheduler_model import Harness

from accel.cache.pages import KVLayout
from accel.cache.pool import BlockPool
from accel.errors import InvalidArgument, InvalidRequest, Overloaded
from accel.runner.plan import LAST_SAMPLED, Logits, StepPlan
from accel.sampling_params import SamplingParams
from accel.scheduler.request import EndReason, Request, State
from accel.scheduler.scheduler import MAX_DEPTH, Scheduler, SchedulerConfig


def harness(blocks: int = 64, **config: Any) -> Harness:
    config.setdefault("output_reserve", 0)
    return Harness(blocks=blocks, config=SchedulerConfig(**config))


def prompt(length: int, first: int = 0) -> list[int]:
    return list(range(first, first + length))


def rows(plan: StepPlan | None) -> list[tuple[int, int, int]]:
    """(request, tokens in the cache, tokens to compute) of each row."""
    if plan is None:
        return []
    return list(zip(plan.request.tolist(), plan.computed.tolist(), np.diff(plan.query_start).tolist(), strict=True))


def step(h: Harness) -> list[tuple[int, int, int]]:
    """One step from plan to commit."""
    plan = h.schedule()
    h.execute()
    if h.outputs:
        h.commit()
    return rows(plan)


# --- what is in a step ------------------------------------------------------------------------------------------------


def test_decodes_come_before_chunks_of_prompts_and_those_before_admissions() -> None:
    h = harness(max_batch_tokens=5)
    h.add(prompt(3), 9)
    h.add(prompt(8, 20), 9)
    step(h)
    h.add(prompt(2, 40), 9)
    assert step(h) == [(0, 3, 1), (1, 2, 4)]
    assert step(h) == [(0, 4, 1), (1, 6, 2), (2, 0, 2)]


def test_a_step_is_filled_up_to_its_budget_and_no_further() -> None:
    h = harness(max_batch_tokens=7)
    for number in range(6):
        h.add(prompt(5, 10 * number), 1)
    sizes = []
    while not h.scheduler.idle:
        sizes.append(sum(count for _, _, count in step(h)))
    assert sizes == [7, 7, 7, 7, 2]


def test_a_long_prompt_is_computed_in_chunks_and_sampled_after_the_last() -> None:
    h = harness(max_batch_tokens=4)
    h.add(prompt(10), 2)
    plans = []
    while (plan := h.turn()) is not None or not h.scheduler.idle:
        plans += [plan] if plan else []
    assert [(rows(plan), plan.sample.tolist()) for plan in plans] == [
        ([(0, 0, 4)], [False]),
        ([(0, 4, 4)], [False]),
        ([(0, 8, 2)], [True]),
        ([(0, 10, 1)], [True]),
    ]


def test_with_more_decodes_than_budget_the_best_go_on() -> None:
    h = harness(max_batch_tokens=2)
    for number in range(3):
        h.add([number], 3)
    step(h)
    assert [number for number, _, _ in step(h)] == [0, 1]


def test_higher_priority_is_admitted_first() -> None:
    h = harness(max_requests=1)
    h.add(prompt(2), 1)
    h.add(prompt(2, 10), 1, priority=1)
    assert [number for number, _, _ in step(h)] == [1]


def test_no_more_requests_run_than_there_are_slots() -> None:
    h = harness(max_requests=2)
    for number in range(3):
        h.add([number], 2)
    assert len(step(h)) == 2
    assert h.scheduler.stats().waiting == 1


def test_the_slot_of_an_ended_request_is_used_in_the_next_step() -> None:
    h = harness(max_requests=1)
    h.add(prompt(2), 1)
    h.add(prompt(2, 10), 1)
    first, second = h.schedule(), None
    h.execute()
    h.commit()
    second = h.schedule()
    assert first is not None
    assert second is not None
    assert (rows(second), second.slot.tolist()) == ([(1, 0, 2)], first.slot.tolist())


def test_the_parameters_of_a_slot_are_those_of_its_request() -> None:
    h = harness(max_requests=1)
    h.add([1], 1, params=SamplingParams(temperature=0.5, top_k=3, top_p=0.25, min_p=0.125, min_tokens=1), seed=7)
    h.add([2], 1, seed=8)
    plans = [h.turn(), h.turn(), h.turn()]
    first, second = (plan for plan in plans if plan is not None)
    names = ("temperature", "top_k", "top_p", "min_p", "min_tokens", "seed", "prompt_len", "max_tokens")
    assert [getattr(first, name).item() for name in names] == [0.5, 3, 0.25, 0.125, 1, 7, 1, 1]
    assert [getattr(second, name).item() for name in names] == [0, 0, 1, 0, 0, 8, 1, 1]


def test_nothing_to_do_gives_no_plan() -> None:
    h = harness()
    assert h.schedule() is None
    assert h.scheduler.idle


# --- run-ahead --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", range(MAX_DEPTH + 1))
def test_depth_and_one_steps_are_planned_before_a_commit(depth: int) -> None:
    h = harness(depth=depth)
    h.add(prompt(3), 20)
    plans = 0
    while h.schedule() is not None:
        plans += 1
    assert plans == h.scheduler.steps_in_flight == depth + 1
    h.execute()
    h.commit()
    assert h.schedule() is not None
    h.drain()


@pytest.mark.parametrize("depth", [1, MAX_DEPTH])
def test_a_token_that_the_host_does_not_know_yet_is_taken_from_the_slot(depth: int) -> None:
    h = harness(depth=depth)
    h.add(prompt(3), 20)
    first, second = h.schedule(), h.schedule()
    assert first is not None
    assert second is not None
    assert (first.tokens.tolist(), second.tokens.tolist()) == ([0, 1, 2], [LAST_SAMPLED])


def test_a_token_that_the_host_knows_is_in_the_plan() -> None:
    h = harness(depth=0)
    track = h.add(prompt(3), 20)
    step(h)
    plan = h.schedule()
    assert plan is not None
    assert plan.tokens.tolist() == track.output


def test_no_more_tokens_are_planned_than_wanted() -> None:
    h = harness(depth=MAX_DEPTH)
    h.add(prompt(3), 2)
    assert [rows(h.schedule()) for _ in range(3)] == [[(0, 0, 3)], [(0, 3, 1)], []]


# --- admission --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "reserve", "admitted"), [(2, 0, 2), (3, 4, 1), (4, 4, 2), (5, 8, 1), (6, 8, 2), (6, 64, 2)]
)
def test_an_admission_leaves_room_for_the_output_of_those_that_run(blocks: int, reserve: int, admitted: int) -> None:
    h = harness(blocks=blocks, output_reserve=reserve)
    # Each has 1 block, and at its longest, 12 tokens, 3.
    h.add(prompt(4), min(9, 4 * blocks - 3))
    h.add(prompt(4, 20), min(9, 4 * blocks - 3))
    assert len(step(h)) == admitted


def test_a_lone_request_needs_no_reserve() -> None:
    h = harness(blocks=2, output_reserve=64)
    h.add(prompt(4), 5)
    assert len(step(h)) == 1


def test_a_request_that_exactly_fits_the_pool_is_served() -> None:
    h = harness(blocks=3)
    track = h.add(prompt(5), 8)
    h.drain()
    assert len(track.output) == 8


def test_a_request_that_can_never_fit_is_refused_at_once_with_numbers() -> None:
    h = harness(blocks=3)
    with pytest.raises(InvalidRequest, match=r"5 tokens and 9 to generate need 4 blocks.* num_blocks is 3") as refused:
        h.add(prompt(5), 9)
    assert "raise num_blocks to 4" in str(refused.value)
    assert h.scheduler.idle


def test_more_waiting_requests_than_allowed_are_refused_and_taken_later() -> None:
    h = harness(max_waiting=2)
    for _ in range(2):
        h.add([1], 1)
    with pytest.raises(Overloaded, match="2 requests are waiting; the limit is 2"):
        h.add([1], 1)
    step(h)
    h.add([1], 1)
    h.drain()


def test_a_small_request_does_not_pass_a_large_one_that_waits_for_room() -> None:
    h = harness(blocks=4)
    h.add(prompt(8), 4)
    h.add(prompt(12, 20), 4)
    h.add([90], 1)
    assert [number for number, _, _ in step(h)] == [0]


@pytest.mark.parametrize("length", [4, 8, 12])
def test_a_prompt_of_full_blocks_gets_the_block_of_its_next_token(length: int) -> None:
    h = harness(blocks=length // 4 + 1)
    track = h.add(prompt(length), 3)
    h.drain(limit=10)
    assert len(track.output) == 3


@pytest.mark.parametrize("depth", range(MAX_DEPTH + 1))
def test_a_request_of_one_token_gets_one_token(depth: int) -> None:
    h = harness(blocks=1, depth=depth)
    track = h.add([7], 1)
    h.drain()
    assert (len(track.output), track.reason) == (1, EndReason.LENGTH)


# --- hits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "hit"), [(4, 0), (5, 4), (8, 4), (9, 8)])
def test_a_prompt_that_is_all_in_the_cache_computes_its_last_block(length: int, hit: int) -> None:
    h = harness()
    h.add(prompt(length), 1)
    h.drain()
    track = h.add(prompt(length), 1)
    assert step(h) == [(1, hit, length - hit)]
    assert track.request.hit_tokens == hit


def test_generated_tokens_are_hits_for_a_prompt_that_repeats_them() -> None:
    h = harness()
    first = h.add(prompt(3), 6)
    h.drain()
    h.add(first.known, 1)
    # 9 tokens, of which the last was never computed.
    assert step(h) == [(1, 8, 1)]


def test_without_the_prefix_cache_nothing_is_a_hit() -> None:
    h = harness(prefix_cache=False)
    for _ in range(2):
        track = h.add(prompt(9), 1)
        assert step(h) == [(track.request.number, 0, 9)]


@pytest.mark.parametrize("how", [{"all_logits": True}, {"params": SamplingParams(prompt_logprobs=1)}])
def test_a_prompt_of_which_everything_is_wanted_takes_no_hits(how: dict[str, Any]) -> None:
    h = harness()
    h.add(prompt(9), 1)
    h.drain()
    h.add(prompt(9), 1, **how)
    plan = h.schedule()
    assert plan is not None
    assert rows(plan) == [(1, 0, 9)]
    assert plan.logits is (Logits.ALL if "all_logits" in how else Logits.NONE)


def test_chunks_tell_the_prompt_token_after_them_where_its_probability_is_wanted() -> None:
    h = harness(max_batch_tokens=4)
    h.add(prompt(6, 50), 2, params=SamplingParams(prompt_logprobs=0))
    plans = [plan for plan in (h.turn() for _ in range(6)) if plan is not None]
    assert [plan.next_token.tolist() for plan in plans] == [[54], [-1], [-1]]


def test_the_choices_of_a_prompt_compute_it_once() -> None:
    h = harness(max_batch_tokens=6, depth=1)
    leader = h.add(prompt(10), 3, seed=1)
    for seed in (2, 3):
        h.add(prompt(10), 3, leader=leader.request, seed=seed)
    plans = [plan for plan in (h.turn() for _ in range(30)) if plan is not None]
    first = {number: (computed, count) for plan in reversed(plans) for number, computed, count in rows(plan)}
    assert first == {0: (0, 6), 1: (8, 2), 2: (8, 2)}
    assert len({tuple(track.output) for track in h.tracks.values()}) == 3, "and each goes its own way"


# --- preemption -------------------------------------------------------------------------------------------------------


def preempted(h: Harness) -> list[int]:
    return [number for number, track in h.tracks.items() if track.preemptions]


def test_the_worst_decode_is_preempted_for_a_better_one() -> None:
    h = harness(blocks=3)
    for first in (0, 20, 40):
        h.add(prompt(4, first), 5)
    step(h)
    # Each has filled its block and needs another.
    assert [number for number, _, _ in step(h)] == [0]
    assert preempted(h) == [1, 2]
    h.drain()


def test_one_preemption_that_is_enough_is_one() -> None:
    h = harness(blocks=4)
    for first in (0, 20, 40):
        h.add(prompt(4, first), 5)
    step(h)
    assert [number for number, _, _ in step(h)] == [0, 1]
    assert preempted(h) == [2]


def test_a_prompt_that_is_being_computed_is_not_preempted() -> None:
    h = harness(blocks=6, max_batch_tokens=9)
    h.add(prompt(4), 5)
    h.add(prompt(4, 20), 5)
    h.add(prompt(16, 40), 1)
    step(h)
    assert [number for number, _, _ in step(h)] == [0, 2]
    assert preempted(h) == [1]


def test_a_better_request_is_not_preempted_for_a_worse_one() -> None:
    h = harness(blocks=3)
    h.add(prompt(5), 4)
    h.add(prompt(4, 20), 5)
    step(h)
    assert [number for number, _, _ in step(h)] == [0]
    assert preempted(h) == [1], "the one that is short goes itself"


def test_priority_decides_who_is_preempted() -> None:
    h = harness(blocks=2)
    h.add(prompt(4), 5)
    h.add(prompt(4, 20), 5, priority=1)
    step(h)
    step(h)
    assert preempted(h) == [0]


def test_nobody_is_admitted_in_a_step_that_had_to_preempt() -> None:
    h = harness(blocks=4)
    h.add(prompt(8), 5)
    h.add(prompt(8, 20), 5)
    step(h)
    h.add([90], 1)
    assert [number for number, _, _ in step(h)] == [0]
    assert (preempted(h), h.tracks[2].state) == ([1], State.WAITING)


def test_a_preempted_request_starts_from_its_own_cached_blocks_and_gives_the_same_tokens() -> None:
    h = harness(blocks=4)
    h.add(prompt(4), 5)
    track = h.add(prompt(8, 20), 4)
    step(h)
    step(h)
    assert preempted(h) == [1]
    while track.state is State.WAITING:
        last = step(h)
    # Prompt and output are computed again: 9 tokens, 8 of them still in the cache.
    assert last == [(1, 8, 1)]
    h.drain()
    assert track.output == track.expected
    counters = h.scheduler.stats().counters
    assert (counters.prompt_tokens, counters.hit_tokens, counters.recomputed_tokens) == (12, 0, 1), "counted once"


def test_blocks_that_steps_in_flight_give_back_soon_are_waited_for() -> None:
    h = harness(blocks=3, depth=1)
    first = h.add(prompt(4), 5)
    h.add(prompt(4, 20), 5)
    h.schedule()
    assert rows(h.schedule()) == [(0, 4, 1)], "one block is left, for the better"
    h.execute()
    h.commit()
    h.abort(first)
    assert h.schedule() is None
    h.execute()
    h.commit()
    assert rows(h.schedule()) == [(1, 4, 1)]
    assert preempted(h) == []


def test_a_request_preempted_in_the_step_that_would_have_ended_it_ends_later_with_the_same_tokens() -> None:
    h = harness(blocks=2, depth=1)
    h.add(prompt(3), 6)
    track = h.add([50], 2)
    h.schedule()
    h.schedule()
    h.execute()
    h.commit()
    # Its last token is on its way, and the other needs its block.
    h.schedule()
    assert preempted(h) == [1]
    h.execute()
    h.commit()
    assert (track.state, h.scheduler.stats().counters.stale_outputs) == (State.WAITING, 1)
    h.drain()
    assert (track.output, track.reason) == (track.expected, EndReason.LENGTH)


@pytest.mark.parametrize("depth", range(MAX_DEPTH + 1))
def test_a_pool_that_holds_one_of_two_requests_serves_both(depth: int) -> None:
    h = harness(blocks=3, depth=depth)
    for first in (0, 20):
        h.add(prompt(4, first), 9)
    h.drain(limit=100)
    assert all(track.output == track.expected for track in h.tracks.values())


def test_over_admission_preempts_less_than_once_a_request() -> None:
    h = harness(blocks=16, max_requests=16)
    for number in range(40):
        h.add(prompt(4, number), 13)
    h.drain()
    assert 0 < h.counts["preemptions"] < 40


def test_the_history_of_a_request_is_sent_once_in_each_life() -> None:
    h = harness(blocks=2)
    h.add(prompt(4), 5)
    track = h.add(prompt(4, 20), 5, params=SamplingParams(repetition_penalty=1.5))
    sent = []
    while not h.scheduler.idle:
        plan = h.turn()
        if plan is not None and plan.history is not None:
            assert set(plan.history.slot.tolist()) == {track.request.slot}
            sent.append((plan.history.position.tolist(), plan.history.token.tolist()))
    assert track.preemptions == 1
    assert sent == [(list(range(n)), (track.prompt + track.expected)[:n]) for n in (4, 5)]


# --- time, statistics, settings ---------------------------------------------------------------------------------------


def test_a_deadline_ends_a_request_that_waits_and_one_that_runs() -> None:
    h = harness(max_requests=1)
    h.add(prompt(2), 50, deadline=2.0)
    h.add(prompt(2), 50, deadline=1.0)
    h.add(prompt(2), 50)
    step(h)
    assert h.scheduler.next_deadline == 1.0
    h.advance(1.0)
    step(h)
    assert [track.reason for track in h.tracks.values()] == [None, EndReason.DEADLINE, None]
    assert h.scheduler.next_deadline == 2.0
    h.advance(1.0)
    assert [number for number, _, _ in step(h)] == [2]
    assert h.tracks[0].reason is EndReason.DEADLINE
    assert h.scheduler.next_deadline is None


def test_requests_that_end_long_before_their_deadlines_are_not_kept_for_them() -> None:
    h = harness()
    far = h.add(prompt(2), 5, deadline=1e9)
    for number in range(300):
        h.abort(h.add(prompt(2), 5, deadline=1e6 + number))
    assert len(h.scheduler._deadlines._heap) <= 2 + 64
    assert h.scheduler.next_deadline == 1e9
    assert not far.request.ended


def test_a_deadline_that_is_over_when_it_is_added_computes_nothing() -> None:
    h = harness()
    h.add(prompt(2), 5, deadline=0.0)
    assert h.schedule() is None
    assert h.tracks[0].reason is EndReason.DEADLINE


def test_statistics_are_a_snapshot() -> None:
    h = harness()
    h.add(prompt(2), 2)
    before = h.scheduler.stats()
    h.drain()
    after = h.scheduler.stats()
    assert (before.waiting, before.running, before.counters.steps) == (1, 0, 0)
    assert before.counters.ended[EndReason.LENGTH] == 0
    assert (after.waiting, after.running, after.counters.steps, after.counters.batch_tokens) == (0, 0, 2, 3)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_the_same_calls_and_clock_give_the_same_plans(seed: int) -> None:
    class Records(Harness):
        def __init__(self, **how: Any) -> None:
            super().__init__(**how)
            self.plans: list[StepPlan] = []

        def schedule(self) -> StepPlan | None:
            plan = super().schedule()
            self.plans += [plan] if plan else []
            return plan

    runs = [walk(seed, harness=Records) for _ in range(2)]
    first, second = (run.plans for run in runs if isinstance(run, Records))
    assert len(first) == len(second) > 20
    for one, other in zip(first, second, strict=True):
        for field in fields(StepPlan):
            np.testing.assert_equal(getattr(one, field.name), getattr(other, field.name))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batch_tokens", 0),
        ("max_requests", 0),
        ("max_waiting", 0),
        ("output_reserve", -1),
        ("depth", -1),
        ("depth", MAX_DEPTH + 1),
        ("depth", 1.5),
        ("priority_seconds", -1.0),
        ("priority_seconds", float("inf")),
        ("priority_seconds", float("nan")),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} is {value}"):
        SchedulerConfig(**{name: value})


def test_a_pool_and_a_layout_that_do_not_agree_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="blocks have 4 tokens, the layout's 8"):
        Scheduler(BlockPool(4, 4), KVLayout(1, 1, 1, 8), SchedulerConfig())


def test_a_request_of_another_namespace_takes_no_hits() -> None:
    h = harness()
    h.add(prompt(9), 1)
    h.drain()
    other = Request(
        99, np.array(prompt(9), np.int32), SamplingParams(max_tokens=1), max_model_len=99, seed=0, root=b"\1" * 32
    )
    h.scheduler.add(other)
    plan = h.scheduler.schedule()
    assert rows(plan) == [(99, 0, 9)]


def test_a_request_is_added_once_and_one_that_never_was_cannot_be_aborted() -> None:
    layout = KVLayout(1, 1, 1, block_size=4)
    scheduler = Scheduler(BlockPool(8, 4), layout, SchedulerConfig())
    made = [
        Request(n, np.arange(1, 4, dtype=np.int32), SamplingParams(), max_model_len=20, seed=0, root=bytes(32))
        for n in range(2)
    ]
    assert not scheduler.abort(made[0])
    scheduler.add(made[0])
    with pytest.raises(InvalidArgument, match="request 0 was added before"):
        scheduler.add(made[0])
    assert not scheduler.abort(made[1])
    assert scheduler.stats().waiting == 1
