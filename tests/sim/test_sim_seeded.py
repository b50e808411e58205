"""The seeded executor: work runs only when the host asks, and the seed alone decides in which order."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import accel
from accel.backend import Device
from accel.errors import AsyncFailure, Timeout

SOON = 30.0


def opened(seed: int) -> Any:
    return accel.open("sim", memory=4 << 20, seed=seed)


def program(device: Device) -> list[int]:
    """Four streams of copies and calls with events across them; what was called, in the order it ran."""
    chance = random.Random(7)
    seen: list[int] = []
    streams = [device.stream() for _ in range(4)]
    events = [device.event() for _ in range(4)]
    buffers = [device.empty([8], "uint8") for _ in range(4)]
    for number in range(60):
        lane = chance.randrange(4)
        kind = chance.random()
        if kind < 0.5:
            streams[lane].host_call(lambda number=number: seen.append(number))
        elif kind < 0.7:
            device.fill(buffers[lane], number, streams[lane])
        elif kind < 0.8:
            events[lane].record(streams[lane])
        elif kind < 0.9:
            streams[lane].wait(events[chance.randrange(4)])
        else:
            streams[lane].query()
    device.synchronize(SOON)
    return seen


def run(seed: int) -> tuple[list[int], list[str]]:
    with opened(seed) as device:
        return program(device), device.sim.trace()


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert run(seed) == run(seed)


def test_seeds_differ() -> None:
    traces = {tuple(run(seed)[1]) for seed in range(10)}
    assert len(traces) == 10
    assert len({tuple(sorted(trace)) for trace in traces}) == 1, "the same work each time"


def test_nothing_runs_by_itself() -> None:
    with opened(0) as device:
        ran: list[int] = []
        stream = device.stream()
        stream.host_call(lambda: ran.append(1))
        assert device.sim.counters()["executed"] == 0
        assert ran == []
        stream.synchronize(SOON)
        assert ran == [1]


def test_a_query_loop_ends() -> None:
    with opened(3) as device:
        stream, ran = device.stream(), list[int]()
        for i in range(20):
            stream.host_call(lambda i=i: ran.append(i))
        while not stream.query():
            pass
        assert ran == list(range(20))


def test_an_event_runs_what_it_needs_and_streams_keep_their_order() -> None:
    for seed in range(10):
        # q1 = [a, e!]     q2 = [e?, b]
        with opened(seed) as device:
            seen: list[str] = []
            q1, q2, event, after = device.stream(), device.stream(), device.event(), device.event()
            q1.host_call(lambda seen=seen: seen.append("a"))
            event.record(q1)
            q2.wait(event)
            q2.host_call(lambda seen=seen: seen.append("b"))
            after.record(q2)
            after.synchronize(SOON)
            assert seen == ["a", "b"]


def test_a_shut_gate_is_a_timeout_and_an_open_one_lets_go() -> None:
    with opened(0) as device:
        stream, ran = device.stream(), list[int]()
        gate = stream.gate()
        stream.host_call(lambda: ran.append(1))
        with pytest.raises(Timeout):
            stream.synchronize(0)
        gate.open()
        stream.synchronize(SOON)
        assert ran == [1]


def test_failures_are_told_once_here_too() -> None:
    with opened(0) as device:
        stream = device.stream()
        device.sim.fault("copy")
        device.copy(np.zeros(1, np.uint8), np.ones(1, np.uint8), stream)
        with pytest.raises(AsyncFailure, match="copy"):
            stream.synchronize(SOON)
        stream.synchronize(SOON)


def test_work_may_queue_more_work() -> None:
    with opened(0) as device:
        seen: list[str] = []
        q1, q2 = device.stream(), device.stream()
        q1.host_call(lambda: q2.host_call(lambda: seen.append("inner")))
        q1.synchronize(SOON)
        q2.synchronize(SOON)
        assert seen == ["inner"]


def test_a_device_closes_with_work_queued() -> None:
    ran: list[int] = []
    with opened(0) as device:
        device.stream().host_call(lambda: ran.append(1))
    assert ran == []
