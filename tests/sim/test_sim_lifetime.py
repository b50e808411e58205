"""Ends of a simulated device: closing in bounded time, abandoned work, forks, and objects that outlive it."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

import accel
from accel.errors import AsyncFailure, DeviceLost, Timeout

SOON = 30.0


def test_a_shut_gate_does_not_hold_up_closing() -> None:
    # compute = [gate, call, e!]     q = [e?, call]
    device = accel.open("sim", memory=1 << 20)
    ran: list[int] = []
    compute, q, event = device.current_stream(), device.stream(), device.event()
    gate = compute.gate()
    compute.host_call(lambda: ran.append(1))
    event.record(compute)
    q.wait(event)
    q.host_call(lambda: ran.append(2))
    device.close()
    device.close()  # idempotent
    assert ran == []
    assert event.query(), "nobody waits for ever"
    with pytest.raises(DeviceLost):
        event.synchronize(SOON)
    for call in (q.query, compute.query, device.memory, device.stream):
        with pytest.raises(DeviceLost, match="sim:0 was closed"):
            call()
    gate.open()


def test_work_that_does_not_end_is_named_and_closing_again_waits_again() -> None:
    device: Any = accel.open("sim", memory=1 << 20)
    begun, release = threading.Event(), threading.Event()

    def stuck() -> None:
        begun.set()
        release.wait(SOON)

    device.stream().host_call(stuck)
    assert begun.wait(SOON)
    with pytest.raises(Timeout, match="host_call on a stream has not ended"):
        device._native.close(0.05)
    release.set()
    device.close()


def test_closing_wakes_a_thread_that_waits() -> None:
    device = accel.open("sim", memory=1 << 20)
    gate, outcomes = device.current_stream().gate(), list[str]()
    waiting = threading.Barrier(2, timeout=SOON)

    def wait() -> None:
        waiting.wait()
        try:
            device.current_stream().synchronize(86400)
        except DeviceLost:
            outcomes.append("lost")

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    device.close()
    thread.join(SOON)
    assert outcomes == ["lost"]
    gate.open()


def test_work_that_waits_for_what_another_device_abandoned_fails(sim: Any) -> None:
    # other.q = [gate, e!], closed     q = [e?, call]
    other, ran = accel.open("sim", memory=1 << 20), list[int]()
    source, event, stream = other.stream(), other.event(), sim.stream()
    gate = source.gate()
    event.record(source)
    stream.wait(event)
    stream.host_call(lambda: ran.append(1))
    other.close()
    with pytest.raises(AsyncFailure, match="abandoned when its device closed"):
        stream.synchronize(SOON)
    assert ran == []
    stream.reset()
    stream.host_call(lambda: ran.append(2))
    stream.synchronize(SOON)
    assert ran == [2]
    gate.open()


def test_what_is_abandoned_is_released() -> None:
    device = accel.open("sim", memory=1 << 20)
    released = threading.Event()

    class Canary:
        def __del__(self) -> None:
            released.set()

    canary, stream = Canary(), device.stream()
    gate = stream.gate()
    stream.host_call(lambda canary=canary: None)
    del canary
    device.close()
    assert released.is_set()
    del gate


def test_closed_devices_leave_no_threads() -> None:
    before = len(os.listdir("/proc/self/task"))
    for _ in range(5):
        with accel.open("sim", memory=1 << 20) as device:
            for _ in range(3):
                device.stream().host_call(lambda: None)
    assert len(os.listdir("/proc/self/task")) <= before + 1


def test_many_short_streams_leave_no_threads(sim: Any) -> None:
    before = len(os.listdir("/proc/self/task"))
    for _ in range(200):
        stream = sim.stream()
        stream.host_call(lambda: None)
        stream.synchronize(SOON)
        del stream
    assert len(os.listdir("/proc/self/task")) < before + 50


def test_a_forked_child_opens_its_own(sim: Any) -> None:
    buffer, target = sim.empty([16], "uint8"), np.zeros(16, np.uint8)
    gate = sim.current_stream().gate()
    sim.copy(target, buffer, sim.current_stream())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            sim.current_stream().query()
        except DeviceLost:
            del buffer
            with accel.open("sim", memory=1 << 20) as own:
                own.fill(own.empty([4], "uint8"), 1, own.current_stream())
                own.synchronize(SOON)
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.open()
    sim.synchronize(SOON)


@pytest.mark.parametrize("seed", [None, 0])
def test_threads_that_submit_at_once(seed: int | None) -> None:
    with accel.open("sim", memory=1 << 20, seed=seed) as device:
        counts = np.zeros(4, np.int64)

        def drive(lane: int) -> None:
            stream, event = device.stream(), device.event()

            def step() -> None:
                counts[lane] += 1

            for _ in range(50):
                stream.host_call(step)
                event.record(stream)
                event.synchronize(SOON)

        threads = [threading.Thread(target=drive, args=(lane,)) for lane in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        assert counts.tolist() == [50] * 4
