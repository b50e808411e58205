"""What becomes of outputs: late, repeated, of an earlier life, of a step that failed; and how requests end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scheduler_model import ROOT, STEP_FAILED, Harness, Track

from accel.errors import InvalidArgument
from accel.runner.plan import StepOutput
from accel.scheduler.request import EndReason, State
from accel.scheduler.scheduler import MAX_DEPTH, SchedulerConfig


def harness(blocks: int = 64, **config: Any) -> Harness:
    config.setdefault("output_reserve", 0)
    return Harness(blocks=blocks, config=SchedulerConfig(**config))


def prompt(length: int, first: int = 0) -> list[int]:
    return list(range(first, first + length))


def launch(h: Harness, steps: int) -> None:
    """Plan and run steps that are not committed."""
    for _ in range(steps):
        assert h.schedule() is not None
        h.execute()


# --- order ------------------------------------------------------------------------------------------------------------


def test_outputs_that_come_in_reverse_are_taken_in_the_order_of_their_steps() -> None:
    h = harness(depth=2)
    track = h.add(prompt(3), 5)
    launch(h, 3)
    assert h.commit(2) == []
    assert h.commit(1) == []
    assert h.scheduler.steps_in_flight == 3
    assert [update.token for update in h.commit(0)] == track.expected[:3]


def test_an_update_says_where_the_request_is_in_the_output() -> None:
    h = harness(max_batch_tokens=5)
    h.add(prompt(2), 3)
    h.add(prompt(6, 20), 3)
    launch(h, 1)
    output = h.outputs[0]
    first, second = h.commit()
    assert (first.row, first.tokens, first.token) == (0, slice(0, 2), h.tracks[0].output[0])
    assert (second.row, second.tokens, second.token) == (1, slice(2, 5), None)
    assert first.output is output


def test_a_repeated_output_is_dropped_and_counted() -> None:
    h = harness(depth=1)
    h.add(prompt(3), 5)
    launch(h, 2)
    h.commit(0)
    h.duplicate(0)
    assert h.scheduler.stats().counters.duplicate_outputs == 1


def test_an_output_that_comes_twice_before_its_turn_is_taken_once() -> None:
    h = harness(depth=1)
    h.add(prompt(3), 5)
    launch(h, 2)
    h.commit(1)
    h.duplicate(0)
    assert len(h.commit(0)) == 2


def test_an_output_of_a_step_that_was_never_planned_is_dropped_and_counted() -> None:
    h = harness()
    h.add(prompt(3), 5)
    launch(h, 1)
    assert h.scheduler.commit(replace(h.outputs[0], step=77)) == []
    assert h.scheduler.stats().counters.duplicate_outputs == 1
    assert h.scheduler.steps_in_flight == 1


def test_an_output_for_other_requests_than_planned_is_refused_and_changes_nothing() -> None:
    h = harness()
    h.add(prompt(3), 5)
    launch(h, 1)
    with pytest.raises(InvalidArgument, match="step 0 is for other requests"):
        h.scheduler.commit(replace(h.outputs[0], request=np.array([5], np.int64)))
    h.check()
    assert len(h.commit()) == 1


def test_an_output_of_an_earlier_life_is_dropped_and_counted() -> None:
    h = harness(depth=MAX_DEPTH)
    track = h.add(prompt(3), 9)
    launch(h, 3)
    h.commit()
    h.abort(track)
    h.commit()
    h.commit()
    assert h.scheduler.stats().counters.stale_outputs == 2
    assert track.output == track.expected[:1]


def test_a_chunk_of_an_earlier_life_is_no_lost_token() -> None:
    h = harness(max_batch_tokens=2)
    track = h.add(prompt(3), 9)
    launch(h, 1)
    h.abort(track)
    h.commit()
    assert h.scheduler.stats().counters.stale_outputs == 0


def test_what_an_aborted_request_computed_in_steps_in_flight_is_not_cached() -> None:
    h = harness()
    track = h.add(prompt(8), 9)
    launch(h, 1)
    h.abort(track)
    h.commit()
    assert h.pool.match(ROOT, np.array(prompt(8), np.int32), 2) == 0
    assert h.pool.stats().free == 64


def test_the_end_of_sequence_ends_a_request_and_the_tokens_planned_after_it_are_dropped() -> None:
    free = harness()
    eos = free.add(prompt(3), 4).expected[1]
    h = Harness(blocks=64, config=SchedulerConfig(depth=3), eos=eos)
    track = h.add(prompt(3), 9)
    h.drain()
    assert (track.output[-1], track.reason) == (eos, EndReason.EOS)
    assert h.scheduler.stats().counters.stale_outputs > 0


# --- steps that fail --------------------------------------------------------------------------------------------------


def test_a_failed_step_ends_the_requests_it_was_for_with_its_error_and_no_others() -> None:
    h = harness(max_batch_tokens=4)
    h.add(prompt(4), 5)
    other = h.add(prompt(4, 20), 5)
    launch(h, 1)
    h.fail(0)
    failed = h.tracks[0].request
    assert (failed.reason, failed.error) == (EndReason.ERROR, STEP_FAILED)
    h.drain()
    assert other.output == other.expected


def test_a_failed_step_leaves_an_aborted_request_aborted() -> None:
    h = harness()
    track = h.add(prompt(4), 5)
    launch(h, 1)
    h.abort(track)
    h.fail(0)
    assert (track.reason, track.request.error) == (EndReason.ABORT, None)
    h.drain()


def test_nothing_of_a_failed_step_is_cached() -> None:
    h = harness()
    h.add(prompt(8), 5)
    launch(h, 1)
    h.fail(0)
    assert h.pool.stats().free == 64


def test_a_step_that_is_not_in_flight_fails_without_effect() -> None:
    h = harness()
    h.add(prompt(3), 5)
    launch(h, 1)
    h.commit()
    assert h.scheduler.fail(0, STEP_FAILED) == []
    assert h.scheduler.fail(77, STEP_FAILED) == []
    h.check()


def test_outputs_that_waited_for_a_step_that_failed_are_taken() -> None:
    h = harness(depth=1, max_batch_tokens=4)
    h.add(prompt(4), 1)
    other = h.add(prompt(4, 20), 1)
    launch(h, 2)
    h.commit(1)
    assert other.output == []
    h.fail(0)
    assert other.output == other.expected
    assert h.scheduler.idle


def test_the_output_of_a_failed_step_comes_too_late() -> None:
    h = harness()
    h.add(prompt(3), 5)
    launch(h, 1)
    output = h.outputs[0]
    h.fail(0)
    assert h.scheduler.commit(output) == []
    assert h.scheduler.stats().counters.duplicate_outputs == 1


def test_a_step_without_a_number_to_choose_ends_the_request_and_caches_nothing_of_it() -> None:
    h = harness()
    track = h.add(prompt(8), 5)
    launch(h, 1)
    assert h.commit(no_number=True) == []
    assert track.reason is EndReason.ERROR
    assert "hold no number" in str(track.request.error)
    assert h.pool.stats().free == 64


def test_a_request_without_a_number_to_choose_leaves_the_others_of_its_step_alone() -> None:
    h = harness()
    bad, good = h.add(prompt(4), 3), h.add(prompt(4, 20), 3)
    launch(h, 1)
    output: StepOutput = h.outputs.pop()
    updates = h.scheduler.commit(replace(output, token=np.array([-1, output.token[1]], np.int32)))
    assert [(update.request.number, update.token) for update in updates] == [(1, good.expected[0])]
    assert (bad.request.state, good.request.state) == (State.ABORTED, State.RUNNING)


# --- aborts and stop strings ------------------------------------------------------------------------------------------


def waiting(h: Harness) -> Track:
    return h.add(prompt(9), 6)


def in_its_prompt(h: Harness) -> Track:
    track = h.add(prompt(9), 6)
    launch(h, 1)
    h.commit()
    return track


def before_its_first_output(h: Harness) -> Track:
    track = h.add(prompt(8), 6)
    launch(h, 1)
    return track


def decoding(h: Harness) -> Track:
    track = h.add(prompt(3), 9)
    launch(h, 1)
    h.commit()
    return track


def decoding_ahead(h: Harness) -> Track:
    track = decoding(h)
    launch(h, 2)
    return track


def planned_and_not_launched(h: Harness) -> Track:
    track = decoding(h)
    h.schedule()
    return track


def preempted(h: Harness) -> Track:
    """Two requests, and blocks for the better alone."""
    h.add(prompt(4, 50), 12, priority=1)
    track = h.add(prompt(7, 70), 6)
    for _ in range(20):
        if track.preemptions:
            return track
        h.turn()
    raise AssertionError("not preempted")


def preempted_with_steps_in_flight(h: Harness) -> Track:
    track = preempted(h)
    assert h.steps
    return track


@pytest.mark.parametrize(
    "reach",
    [
        waiting,
        in_its_prompt,
        before_its_first_output,
        decoding,
        decoding_ahead,
        planned_and_not_launched,
        preempted,
        preempted_with_steps_in_flight,
    ],
)
def test_an_abort_ends_a_request_wherever_it_is_and_all_it_held_comes_back(reach: Callable[[Harness], Track]) -> None:
    h = harness(blocks=4, depth=0 if reach is preempted else 2, max_batch_tokens=8)
    track = reach(h)
    h.abort(track)
    assert track.request.reason is EndReason.ABORT
    assert h.scheduler.abort(track.request) is False, "a second abort does nothing"
    h.drain()
    assert h.scheduler.stats().counters.ended[EndReason.ABORT] == 1


def test_a_request_that_finished_is_not_aborted_any_more() -> None:
    h = harness()
    track = h.add(prompt(3), 1)
    h.drain()
    h.abort(track)
    assert track.request.reason is EndReason.LENGTH


def test_an_abort_can_say_why() -> None:
    h = harness()
    track = h.add(prompt(3), 1)
    assert h.scheduler.abort(track.request, EndReason.ERROR, STEP_FAILED)
    assert (track.request.reason, track.request.error) == (EndReason.ERROR, STEP_FAILED)


def test_a_stop_string_ends_a_request_whose_next_tokens_are_in_flight() -> None:
    h = harness(depth=MAX_DEPTH)
    track = h.add(prompt(3), 9)
    launch(h, 4)
    h.commit()
    h.finish(track)
    h.drain()
    assert (track.reason, track.request.output) == (EndReason.STOP, track.expected[:1])
    assert h.scheduler.stats().counters.stale_outputs == 3


def test_a_stop_string_that_is_seen_after_its_request_was_preempted_ends_it() -> None:
    h = harness(blocks=4, depth=2, max_batch_tokens=8)
    track = preempted(h)
    h.finish(track)
    h.finish(track)
    assert track.request.state is State.FINISHED
    h.drain()


def test_requests_are_reported_in_the_order_in_which_they_ended() -> None:
    h = harness()
    tracks = [h.add(prompt(3), 5) for _ in range(3)]
    for index in (2, 0, 1):
        h.scheduler.abort(tracks[index].request)
    assert [request.number for request in h.scheduler.drain_ended()] == [2, 0, 1]
    assert h.scheduler.drain_ended() == []
