"""The compute stream of a host-executed device runs on the caller's thread, and waits there for what it must."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from waiting import SOON

from accel.backend import Device, Stream
from accel.errors import AsyncFailure, Timeout


def test_it_is_one_stream_and_runs_inline(device: Device, q1: Stream) -> None:
    compute = device.current_stream()
    assert device.current_stream() is compute
    assert device.capabilities.host_executed
    ran_on: list[int] = []
    compute.host_call(lambda: ran_on.append(threading.get_ident()))
    assert ran_on == [threading.get_ident()], "a launch returns when it is done"
    assert compute.query()
    q1.host_call(lambda: ran_on.append(threading.get_ident()))
    q1.synchronize(SOON)
    assert ran_on[1] != ran_on[0]


def test_it_waits_for_an_event_of_a_copy_stream(device: Device, q1: Stream) -> None:
    # q1 = [gate, copy, e!]     compute = [e?, read]
    source, target = np.full(8, 7, np.uint8), np.zeros(8, np.uint8)
    compute, event, gate = device.current_stream(), device.event(), q1.gate()
    device.copy(target, source, q1)
    event.record(q1)
    compute.wait(event)  # does not block the host
    assert not compute.query()
    with pytest.raises(Timeout):
        compute.synchronize(0.01)
    opener = threading.Thread(target=gate.open)
    seen: list[int] = []
    opener.start()
    compute.host_call(lambda: seen.append(int(target[0])))  # blocks until the copy is through
    opener.join(SOON)
    assert seen == [7]
    assert compute.query()


def test_an_event_recorded_while_it_waits_stands_for_the_wait(device: Device, q1: Stream, q2: Stream) -> None:
    # q1 = [gate, e!]     compute = [e?, f!]     q2 = [f?]
    compute, e, f, gate = device.current_stream(), device.event(), device.event(), q1.gate()
    e.record(q1)
    compute.wait(e)
    f.record(compute)
    q2.wait(f)
    assert not f.query()
    assert not q2.query()
    gate.open()
    q2.synchronize(SOON)
    assert f.query()


def test_a_copy_stream_follows_computed_data(device: Device, q1: Stream) -> None:
    # compute = [write, e!]     q1 = [e?, copy]
    computed, target = np.zeros(8, np.uint8), np.zeros(8, np.uint8)
    compute, event = device.current_stream(), device.event()
    compute.host_call(lambda: computed.fill(5))
    event.record(compute)
    q1.wait(event)
    device.copy(target, computed, q1)
    q1.synchronize(SOON)
    assert (target == 5).all()


def test_a_gate_on_it_holds_the_next_launch(device: Device) -> None:
    # compute = [gate, call], opened from another thread
    compute = device.current_stream()
    gate, seen = compute.gate(), list[str]()
    assert not compute.query()

    def open_it() -> None:
        seen.append("opened")
        gate.open()

    opener = threading.Thread(target=open_it)
    opener.start()
    compute.host_call(lambda: seen.append("ran"))
    opener.join(SOON)
    assert seen == ["opened", "ran"]


def test_an_error_surfaces_at_the_next_query_once(device: Device) -> None:
    compute, ran = device.current_stream(), list[int]()

    def boom() -> None:
        raise ValueError("boom")

    compute.host_call(boom)  # the launch itself succeeds, as on a device
    compute.host_call(lambda: ran.append(1))
    with pytest.raises(AsyncFailure, match="host_call: ValueError: boom"):
        compute.query()
    assert compute.query()
    compute.synchronize(0)
    assert ran == [], "later work is skipped"
    compute.reset()
    compute.host_call(lambda: ran.append(2))
    assert ran == [2]


def test_elapsed_ms_on_it(device: Device) -> None:
    compute = device.current_stream()
    start, end = device.event(timing=True), device.event(timing=True)
    start.record(compute)
    compute.host_call(lambda: None)
    end.record(compute)
    assert start.elapsed_ms(end) > 0


def test_work_may_launch_more_work(device: Device, q1: Stream) -> None:
    compute, seen = device.current_stream(), list[str]()
    compute.host_call(lambda: compute.host_call(lambda: seen.append("inner")))
    q1.host_call(lambda: q1.host_call(lambda: seen.append("later")))
    while not q1.query():
        q1.synchronize(SOON)
    assert seen == ["inner", "later"]
