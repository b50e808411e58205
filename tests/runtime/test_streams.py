"""Streams, gates and events: what runs after what, and what never waits."""

from __future__ import annotations

import itertools
import random
import threading

import numpy as np
import pytest
from waiting import SOON

from accel.backend import Device, Event, Gate, Stream
from accel.errors import InvalidArgument, Timeout, Unsupported


def test_objects_are_those_of_the_contract(device: Device, q1: Stream) -> None:
    assert isinstance(q1, Stream)
    assert isinstance(device.current_stream(), Stream)
    assert isinstance(device.event(), Event)
    assert isinstance(q1.gate(), Gate)


def test_a_stream_runs_in_submission_order(q1: Stream) -> None:
    # q1 = [gate, 0, 1, …, 99]
    gate, seen = q1.gate(), list[int]()
    for i in range(100):
        q1.host_call(lambda i=i: seen.append(i))
    assert seen == []
    gate.open()
    q1.synchronize(SOON)
    assert seen == list(range(100))


def test_a_gate_holds_what_is_behind_it_and_nothing_before(q1: Stream) -> None:
    # q1 = [first, gate, second]
    first, second = threading.Event(), threading.Event()
    q1.host_call(first.set)
    gate = q1.gate()
    q1.host_call(second.set)
    assert first.wait(SOON)
    assert not second.is_set()
    assert not q1.query()
    gate.open()
    gate.open()  # idempotent
    assert second.wait(SOON)
    q1.synchronize(SOON)
    assert q1.query()


def test_gates_in_one_stream_open_in_order(q1: Stream) -> None:
    # q1 = [g1, a, g2, b]; opening g2 first changes nothing
    seen: list[str] = []
    g1 = q1.gate()
    q1.host_call(lambda: seen.append("a"))
    g2 = q1.gate()
    q1.host_call(lambda: seen.append("b"))
    g2.open()
    assert not q1.query()
    assert seen == []
    g1.open()
    q1.synchronize(SOON)
    assert seen == ["a", "b"]


def test_a_dropped_gate_opens(q1: Stream) -> None:
    # q1 = [gate, call]
    ran = threading.Event()
    gate = q1.gate()
    q1.host_call(ran.set)
    del gate
    assert ran.wait(SOON)


def test_streams_are_unordered(device: Device, q1: Stream, q2: Stream) -> None:
    # q1 = [gate, a]     q2 = [b]
    gate, seen = q1.gate(), list[str]()
    q1.host_call(lambda: seen.append("a"))
    q2.host_call(lambda: seen.append("b"))
    q2.synchronize(SOON)
    assert seen == ["b"]
    gate.open()
    device.synchronize(SOON)
    assert seen == ["b", "a"]


def test_streams_run_at_the_same_time(q1: Stream, q2: Stream) -> None:
    # q1 = [meet]     q2 = [meet]: neither ends before both have begun
    barrier = threading.Barrier(2, timeout=SOON)
    q1.host_call(lambda: barrier.wait() and None)
    q2.host_call(lambda: barrier.wait() and None)
    q1.synchronize(SOON)
    q2.synchronize(SOON)


def test_an_event_never_recorded_is_complete(device: Device, q1: Stream) -> None:
    event = device.event()
    assert event.query()
    event.synchronize(0)
    q1.wait(event)  # q1 = [e?]
    q1.synchronize(SOON)


def test_an_event_completes_with_what_was_before_it(device: Device, q1: Stream) -> None:
    # q1 = [gate, call, e!, g2]
    event, ran = device.event(), threading.Event()
    gate = q1.gate()
    q1.host_call(ran.set)
    event.record(q1)
    behind = q1.gate()
    assert not event.query()
    gate.open()
    event.synchronize(SOON)
    assert ran.is_set()
    assert event.query()
    assert not q1.query(), "the event does not stand for work behind it"
    behind.open()


def test_an_event_joins_two_streams(device: Device, q1: Stream, q2: Stream) -> None:
    # q1 = [gate, copy, e!]     q2 = [e?, copy]
    a, b, c = (np.full(64, value, np.uint8) for value in (1, 2, 3))
    event, gate = device.event(), q1.gate()
    device.copy(b, a, q1)
    event.record(q1)
    q2.wait(event)
    device.copy(c, b, q2)
    assert not q2.query()
    assert c[0] == 3
    gate.open()
    q2.synchronize(SOON)
    assert (c == 1).all()


def test_wait_captures_the_newest_record(device: Device, q1: Stream, q2: Stream) -> None:
    # q1 = [e!, gate, e!]     q2 = [e?] is held by the second record
    event = device.event()
    event.record(q1)
    gate = q1.gate()
    event.record(q1)
    q2.wait(event)
    assert not q2.query()
    gate.open()
    q2.synchronize(SOON)


def test_recording_again_keeps_earlier_waiters(device: Device, q1: Stream, q2: Stream) -> None:
    # q1 = [g1, e!, g2, e!]     q2 = [e? (the first record), call]
    event, ran = device.event(), threading.Event()
    g1 = q1.gate()
    event.record(q1)
    q2.wait(event)
    q2.host_call(ran.set)
    g2 = q1.gate()
    event.record(q1)
    g1.open()
    assert ran.wait(SOON), "the waiter follows the record it captured"
    assert not event.query(), "a query follows the newest"
    g2.open()
    event.synchronize(SOON)


def test_recording_on_an_idle_stream_is_complete(device: Device, q1: Stream, q2: Stream) -> None:
    # q1 = [gate, e!]     q2 = [e!]: the newest record counts, and q2 has nothing to wait for
    event, gate = device.event(), q1.gate()
    event.record(q1)
    assert not event.query()
    event.record(q2)
    assert event.query()
    gate.open()


def test_a_chain_over_many_streams_keeps_its_order(device: Device) -> None:
    # q0 = [gate, 0, e0!]   q1 = [e0?, 1, e1!]   q2 = [e1?, 2, e2!] …
    streams = [device.stream() for _ in range(16)]
    seen: list[int] = []
    gate = streams[0].gate()
    previous: Event | None = None
    for i, stream in enumerate(streams):
        if previous is not None:
            stream.wait(previous)
        stream.host_call(lambda i=i: seen.append(i))
        previous = device.event()
        previous.record(stream)
    gate.open()
    device.synchronize(SOON)
    assert seen == list(range(16))


def test_a_stream_may_wait_for_its_own_event(device: Device, q1: Stream) -> None:
    # q1 = [gate, e!, e?, call]
    event, gate, ran = device.event(), q1.gate(), threading.Event()
    event.record(q1)
    q1.wait(event)
    q1.host_call(ran.set)
    gate.open()
    assert ran.wait(SOON)


def test_a_dropped_event_still_holds_its_waiter(device: Device, q1: Stream, q2: Stream) -> None:
    # q1 = [gate, e!]     q2 = [e?]
    event, gate = device.event(), q1.gate()
    event.record(q1)
    q2.wait(event)
    del event
    assert not q2.query()
    gate.open()
    q2.synchronize(SOON)


def test_query_never_blocks(device: Device, q1: Stream) -> None:
    # q1 = [gate, e!]
    event, gate = device.event(), q1.gate()
    event.record(q1)
    answers = {(q1.query(), event.query()) for _ in range(1000)}
    assert answers == {(False, False)}
    gate.open()


def test_after_synchronize_a_query_is_true(device: Device, q1: Stream) -> None:
    for _ in range(200):
        event = device.event()
        q1.host_call(lambda: None)
        event.record(q1)
        q1.synchronize(SOON)
        assert q1.query()
        assert event.query()


def test_blocking_calls_time_out_and_the_work_goes_on(device: Device, q1: Stream) -> None:
    # q1 = [gate, call, e!]
    event, gate, ran = device.event(), q1.gate(), threading.Event()
    q1.host_call(ran.set)
    event.record(q1)
    for call in (q1.synchronize, event.synchronize, device.synchronize):
        with pytest.raises(Timeout):
            call(0)
        with pytest.raises(Timeout):
            call(0.01)
    with pytest.raises(Timeout, match=r"[123] pieces of work"):
        q1.synchronize(0)
    gate.open()
    device.synchronize(SOON)
    assert ran.is_set()


@pytest.mark.parametrize("timeout", [-1.0, -1e-9, float("nan")])
def test_a_timeout_below_zero_is_refused(device: Device, q1: Stream, timeout: float) -> None:
    for call in (q1.synchronize, device.event().synchronize, device.synchronize):
        with pytest.raises(InvalidArgument, match="timeout"):
            call(timeout)


def test_an_endless_timeout_is_taken(device: Device, q1: Stream) -> None:
    q1.synchronize(float("inf"))
    device.event().synchronize(1e300)


def test_elapsed_ms(device: Device, q1: Stream) -> None:
    # q1 = [start!, gate, end!]
    start, end = device.event(timing=True), device.event(timing=True)
    with pytest.raises(InvalidArgument, match="recorded"):
        start.elapsed_ms(end)
    start.record(q1)
    start.synchronize(SOON)
    gate = q1.gate()
    end.record(q1)
    with pytest.raises(InvalidArgument, match="complete"):
        start.elapsed_ms(end)
    gate.open()
    end.synchronize(SOON)
    between = start.elapsed_ms(end)
    assert 0 < between < SOON * 1e3
    assert end.elapsed_ms(start) == -between
    assert start.elapsed_ms(start) == 0


def test_elapsed_ms_needs_timing(device: Device, q1: Stream) -> None:
    timed, plain = device.event(timing=True), device.event()
    for event in (timed, plain):
        event.record(q1)
        event.synchronize(SOON)
    with pytest.raises(InvalidArgument, match="timing"):
        timed.elapsed_ms(plain)
    with pytest.raises(InvalidArgument, match="timing"):
        plain.elapsed_ms(timed)


def test_a_timed_record_on_an_idle_stream_is_later_than_its_last_work(device: Device, q1: Stream) -> None:
    # q1 = [start!] … idle … [end!]: the second is a point of its own, though nothing ran in between
    start, end = device.event(timing=True), device.event(timing=True)
    start.record(q1)
    q1.synchronize(SOON)
    end.record(q1)
    q1.synchronize(SOON)
    assert start.elapsed_ms(end) > 0


def test_capture_is_unsupported_and_says_what_to_do(device: Device) -> None:
    with pytest.raises(Unsupported, match="graph_capture") as raised:
        device.capture()
    assert raised.value.hint


@pytest.mark.parametrize("seed", range(8))
def test_any_dependency_graph_runs_in_an_order_it_allows(device: Device, seed: int) -> None:
    """Random work over random streams and events, submitted behind shut gates that open in random order."""
    chance = random.Random(seed)
    streams = [device.stream() for _ in range(4)]
    gates = [stream.gate() for stream in streams]
    clock = itertools.count()
    began: dict[int, int] = {}
    ended: dict[int, int] = {}
    last_on: dict[int, int] = {}
    recorded: list[tuple[Event, int]] = []
    before: list[tuple[int, int]] = []

    def work(number: int) -> None:
        began[number] = next(clock)
        ended[number] = next(clock)

    for number in range(120):
        lane = chance.randrange(len(streams))
        stream = streams[lane]
        if recorded and chance.random() < 0.4:
            event, origin = chance.choice(recorded)
            stream.wait(event)
            before.append((origin, number))
        if lane in last_on:
            before.append((last_on[lane], number))
        stream.host_call(lambda number=number: work(number))
        last_on[lane] = number
        if chance.random() < 0.5:
            event = device.event()
            event.record(stream)
            recorded.append((event, number))
    chance.shuffle(gates)
    for gate in gates:
        gate.open()
    device.synchronize(SOON)
    assert len(ended) == 120
    assert all(ended[first] < began[second] for first, second in before)
