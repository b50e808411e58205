"""A request's states, its epoch and what a life leaves behind."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from accel.errors import AccelError, InvalidRequest
from accel.sampling_params import SamplingParams
from accel.scheduler.request import MAX_PRIORITY, EndReason, Request, State

LEGAL = {
    (State.WAITING, State.RUNNING),
    (State.WAITING, State.FINISHED),
    (State.WAITING, State.ABORTED),
    (State.RUNNING, State.PREEMPTED),
    (State.RUNNING, State.FINISHED),
    (State.RUNNING, State.ABORTED),
    (State.PREEMPTED, State.WAITING),
}
PAIRS = list(itertools.product(State, State))


def request(prompt: int = 5, max_tokens: int = 4, *, max_model_len: int = 100, priority: int = 0) -> Request:
    return Request(
        3,
        np.arange(prompt, dtype=np.int32),
        SamplingParams(max_tokens=max_tokens),
        max_model_len=max_model_len,
        seed=1,
        root=bytes(32),
        priority=priority,
    )


def go(it: Request, state: State) -> None:
    """Take the verb that leads to `state`."""
    if state is State.RUNNING:
        it.enter(table=7, slot=2, hit=4)
    elif state is State.PREEMPTED:
        it.preempt()
    elif state is State.WAITING:
        it.requeue()
    else:
        it.end(EndReason.LENGTH if state is State.FINISHED else EndReason.ABORT)


def in_state(state: State) -> Request:
    it = request()
    paths = {
        State.WAITING: [],
        State.RUNNING: [State.RUNNING],
        State.PREEMPTED: [State.RUNNING, State.PREEMPTED],
        State.FINISHED: [State.RUNNING, State.FINISHED],
        State.ABORTED: [State.RUNNING, State.ABORTED],
    }
    for step in paths[state]:
        go(it, step)
    if state is State.RUNNING:
        it.planned, it.in_flight = 5, 1
    return it


def fields(it: Request) -> dict[str, object]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(it).items()}


@pytest.mark.parametrize(("old", "new"), PAIRS, ids=lambda state: state.name)
def test_legal_transitions_go_and_illegal_ones_raise_and_change_nothing(old: State, new: State) -> None:
    it = in_state(old)
    before = fields(it)
    if (old, new) in LEGAL:
        go(it, new)
        assert it.state is new
    else:
        with pytest.raises(AccelError, match=f"cannot go from {old.name} to {new.name}"):
            go(it, new)
        assert fields(it) == before


@pytest.mark.parametrize(("old", "new"), sorted(LEGAL, key=str), ids=lambda state: state.name)
def test_the_epoch_rises_on_exits_from_running_and_only_then(old: State, new: State) -> None:
    it = in_state(old)
    before = it.epoch
    go(it, new)
    assert it.epoch - before == (old is State.RUNNING)


@pytest.mark.parametrize("reason", EndReason)
def test_a_reason_says_whether_a_request_finished_or_was_aborted(reason: EndReason) -> None:
    it = in_state(State.RUNNING)
    it.end(reason)
    finished = reason in (EndReason.EOS, EndReason.STOP, EndReason.LENGTH)
    assert (it.state, it.reason, it.ended) == (State.FINISHED if finished else State.ABORTED, reason, True)


def test_a_life_leaves_nothing_behind_but_its_tokens() -> None:
    it = in_state(State.RUNNING)
    it.append(42)
    it.history_sent = True
    it.preempt()
    assert (it.table, it.slot, it.computed, it.planned, it.in_flight, it.covered, it.life_tokens) == (-1, -1, *[0] * 5)
    assert not it.history_sent
    assert it.tokens.tolist() == [0, 1, 2, 3, 4, 42]
    assert (it.output, it.preemptions) == ([42], 1)


def test_an_ended_request_forgets_its_leader() -> None:
    leader = request()
    it = Request(4, np.ones(2, np.int32), SamplingParams(), max_model_len=9, seed=0, root=bytes(32), leader=leader)
    it.end(EndReason.ABORT)
    assert it.leader is None


@pytest.mark.parametrize("priority", [-MAX_PRIORITY - 1, MAX_PRIORITY + 1])
def test_a_priority_out_of_range_is_refused_with_the_range(priority: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"priority is {priority}; it must be -{MAX_PRIORITY} to {MAX_PRIORITY}"):
        request(priority=priority)


@pytest.mark.parametrize("priority", [-MAX_PRIORITY, MAX_PRIORITY])
def test_the_limits_of_priority_are_allowed(priority: int) -> None:
    assert request(priority=priority).priority == priority


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        request(prompt=0)


@pytest.mark.parametrize("prompt", [10, 11])
def test_a_prompt_that_leaves_no_token_to_generate_is_refused_with_numbers(prompt: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"has {prompt} tokens; the limit is 9"):
        request(prompt=prompt, max_model_len=10)


@pytest.mark.parametrize(("max_tokens", "generates"), [(1, 1), (4, 4), (5, 5), (6, 5)])
def test_it_generates_up_to_the_nearer_of_max_tokens_and_the_longest_sequence(max_tokens: int, generates: int) -> None:
    it = request(prompt=5, max_tokens=max_tokens, max_model_len=10)
    assert it.max_new_tokens == generates
    assert it.longest == 5 + generates - 1


def test_decoding_stops_when_all_tokens_wanted_are_on_their_way() -> None:
    it = request(prompt=1, max_tokens=2)
    it.enter(table=1, slot=0, hit=0)
    assert it.decoding
    it.planned, it.in_flight = 1, 1
    assert it.decoding
    it.planned, it.in_flight = 2, 2
    assert not it.decoding


def test_a_prompt_of_which_all_is_wanted_is_whole_until_it_was_computed_once() -> None:
    it = Request(4, np.ones(3, np.int32), SamplingParams(prompt_logprobs=0), max_model_len=9, seed=0, root=bytes(32))
    assert it.whole_prompt
    it.prompt_done = True
    assert not it.whole_prompt
    assert not request().whole_prompt
