"""The rules of policy.py alone: order, output reserve, the full-hit rule, the waiting queue."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from accel.sampling_params import SamplingParams
from accel.scheduler.policy import OutputReserve, WaitingQueue, hit_limit, order_key
from accel.scheduler.request import MAX_PRIORITY, EndReason, Request

PRIORITIES = st.integers(-MAX_PRIORITY, MAX_PRIORITY)
TIMES = st.integers(0, 10**6)


def request(number: int, key: float = 0.0, leader: Request | None = None) -> Request:
    made = Request(
        number,
        np.ones(4, np.int32),
        SamplingParams(),
        max_model_len=100,
        seed=0,
        root=bytes(32),
        leader=leader,
    )
    made.key = key
    return made


def order_taken(queue: WaitingQueue) -> list[int]:
    """The numbers in the order in which the queue gives its requests."""
    taken: list[int] = []

    def admit(offered: Request) -> bool:
        offered.enter(table=0, slot=0, hit=0)
        taken.append(offered.number)
        return True

    while queue.take(admit):
        pass
    return taken


# --- order ------------------------------------------------------------------------------------------------------------


def test_of_one_priority_the_first_to_arrive_goes_first() -> None:
    assert order_key(1.0, 3, 10.0) < order_key(2.0, 3, 10.0)


def test_a_unit_of_priority_is_worth_its_seconds_of_waiting() -> None:
    assert order_key(10.0, 1, 10.0) == order_key(0.0, 0, 10.0)
    assert order_key(9.9, 1, 10.0) < order_key(0.0, 0, 10.0) < order_key(10.1, 1, 10.0)


def test_without_seconds_priority_counts_nothing() -> None:
    assert order_key(5.0, MAX_PRIORITY, 0.0) == 5.0


@settings(derandomize=True, deadline=None)
@given(arrival=TIMES, later=TIMES, mine=PRIORITIES, other=PRIORITIES, seconds=st.integers(0, 100))
def test_a_request_is_passed_only_by_those_that_arrive_within_the_head_start(
    arrival: int, later: int, mine: int, other: int, seconds: int
) -> None:
    passed = order_key(arrival + later, other, seconds) < order_key(arrival, mine, seconds)
    assert passed == (later < (other - mine) * seconds)


def test_however_many_come_nobody_waits_for_more_than_those_within_the_head_start() -> None:
    queue = WaitingQueue()
    seconds, rate = 10.0, 5
    queue.push(request(0, order_key(0.0, 0, seconds)))
    for number in range(1, 1000):
        queue.push(request(number, order_key(number / rate, 1, seconds)))
    # Those of priority 1 that came in the first 10 seconds, 5 a second; the one at 10 s sharp has a higher number.
    assert order_taken(queue).index(0) == 10 * rate - 1


# --- the output reserve -----------------------------------------------------------------------------------------------


def test_the_reserve_starts_at_its_least() -> None:
    assert OutputReserve(16, 1000).tokens == 16


def test_a_preemption_doubles_the_reserve_up_to_its_most() -> None:
    reserve = OutputReserve(16, 100)
    seen = []
    for _ in range(5):
        reserve.step(preempted=True)
        seen.append(reserve.tokens)
    assert seen == [33, 67, 100, 100, 100]


def test_a_reserve_of_nothing_learns_as_well() -> None:
    reserve = OutputReserve(0, 100)
    reserve.step(preempted=True)
    assert reserve.tokens == 1


def test_quiet_steps_bring_the_reserve_back_and_not_below_its_least() -> None:
    reserve = OutputReserve(16, 1000)
    for _ in range(4):
        reserve.step(preempted=True)
    values = []
    for _ in range(600):
        reserve.step(preempted=False)
        values.append(reserve.tokens)
    assert values == sorted(values, reverse=True)
    assert values[-1] == 16


def test_a_pool_smaller_than_the_least_reserve_does_not_lower_it() -> None:
    reserve = OutputReserve(64, 8)
    reserve.step(preempted=True)
    assert reserve.tokens == 64


# --- the full-hit rule ------------------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None)
@given(tokens=st.integers(1, 10_000), block_size=st.integers(1, 64))
def test_hits_leave_a_token_to_compute_and_are_the_most_that_do(tokens: int, block_size: int) -> None:
    hit = hit_limit(tokens, block_size) * block_size
    assert 0 <= hit < tokens
    assert hit + block_size >= tokens


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 0), (3, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_a_prompt_of_full_blocks_computes_its_last_one(tokens: int, blocks: int) -> None:
    assert hit_limit(tokens, 4) == blocks


# --- the waiting queue ------------------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=20))
def test_the_queue_gives_by_key_then_number(keys: list[int]) -> None:
    queue = WaitingQueue()
    for number, key in enumerate(keys):
        queue.push(request(number, key))
    assert order_taken(queue) == sorted(range(len(keys)), key=lambda number: (keys[number], number))


def test_nobody_goes_before_the_first_that_may_run_but_has_no_room() -> None:
    queue = WaitingQueue()
    offered: list[int] = []

    def refuse(it: Request) -> bool:
        offered.append(it.number)
        return False

    for number in range(3):
        queue.push(request(number))
    assert not queue.take(refuse)
    assert offered == [0]
    assert order_taken(queue) == [0, 1, 2], "and it has lost nothing by it"


def test_a_request_is_passed_over_while_its_leader_computes_the_prompt() -> None:
    queue = WaitingQueue()
    leader = request(0)
    leader.enter(table=0, slot=0, hit=0)
    queue.push(request(1, leader=leader))
    queue.push(request(2))
    assert order_taken(queue) == [2]
    leader.prompt_done = True
    assert order_taken(queue) == [1]


def test_those_behind_a_leader_keep_their_places() -> None:
    queue = WaitingQueue()
    leader = request(0)
    for number in (1, 2, 3):
        queue.push(request(number, leader=leader))
    assert order_taken(queue) == []
    leader.prompt_done = True
    assert order_taken(queue) == [1, 2, 3]


def test_a_request_whose_leader_ended_without_the_prompt_runs_by_itself() -> None:
    queue = WaitingQueue()
    leader = request(0)
    queue.push(request(1, leader=leader))
    leader.end(EndReason.ABORT)
    assert order_taken(queue) == [1]


def test_ended_requests_are_never_offered() -> None:
    queue = WaitingQueue()
    requests = [request(number) for number in range(4)]
    for it in requests:
        queue.push(it)
    for it in (requests[0], requests[2]):
        it.end(EndReason.ABORT)
    assert order_taken(queue) == [1, 3]


def test_a_queue_that_is_pruned_holds_a_bounded_number_of_ended_requests() -> None:
    queue = WaitingQueue()
    # The first never ends, so the ended ones behind it are not met.
    queue.push(request(0, -math.inf))
    for number in range(1, 1000):
        it = request(number)
        queue.push(it)
        it.end(EndReason.ABORT)
        queue.prune(live=1)
    assert len(queue._heap) <= 2 * 1 + 64
    assert order_taken(queue) == [0]
