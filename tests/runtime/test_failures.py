"""Failures of queued work: reported exactly once, with the op's name; later work is skipped until a reset."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from waiting import SOON

from accel.backend import Device, Stream
from accel.errors import AsyncFailure, Timeout


def boom() -> None:
    raise ValueError("boom")


def fail(stream: Stream) -> None:
    """Fail `stream` and take its error."""
    stream.host_call(boom)
    with pytest.raises(AsyncFailure):
        stream.synchronize(SOON)


def test_a_synchronize_raises_it_once(device: Device, q1: Stream) -> None:
    q1.host_call(boom)
    with pytest.raises(AsyncFailure, match="host_call: ValueError: boom"):
        q1.synchronize(SOON)
    q1.synchronize(SOON)
    assert q1.query()
    device.synchronize(SOON)


def test_a_query_raises_it_once(device: Device, q1: Stream) -> None:
    # q1 = [fail, e!]
    event = device.event()
    q1.host_call(boom)
    event.record(q1)
    event.synchronize(SOON)  # an event tells that a point was reached, not how
    with pytest.raises(AsyncFailure, match="host_call"):
        q1.query()
    assert q1.query()


def test_the_device_raises_it_once(device: Device, q1: Stream) -> None:
    q1.host_call(boom)
    with pytest.raises(AsyncFailure, match="host_call"):
        device.synchronize(SOON)
    device.synchronize(SOON)
    q1.synchronize(SOON)


def test_the_device_loses_no_failure(device: Device, q1: Stream, q2: Stream) -> None:
    # q1 = [fail]     q2 = [fail]     q3 = [gate]: one call has to tell it all, and a timeout must not hide it
    def bang() -> None:
        raise KeyError("bang")

    q3 = device.stream()
    gate = q3.gate()
    q1.host_call(boom)
    q2.host_call(bang)
    failed = device.event()
    for stream in (q1, q2):
        failed.record(stream)
        failed.synchronize(SOON)
    with pytest.raises(AsyncFailure, match=r"boom.*bang|bang.*boom"):
        device.synchronize(0)
    with pytest.raises(Timeout):
        device.synchronize(0)
    gate.open()
    device.synchronize(SOON)


def test_later_work_is_skipped_until_reset(device: Device, q1: Stream) -> None:
    # q1 = [fail, call, copy, fill] … reset … [call]
    ran: list[str] = []
    target = np.zeros(4, np.uint8)
    q1.host_call(boom)
    q1.host_call(lambda: ran.append("skipped"))
    device.copy(target, np.ones(4, np.uint8), q1)
    device.fill(target, 9, q1)
    with pytest.raises(AsyncFailure):
        q1.synchronize(SOON)
    q1.host_call(lambda: ran.append("still skipped"))
    q1.synchronize(SOON)
    assert ran == []
    assert (target == 0).all()
    q1.reset()
    q1.host_call(lambda: ran.append("ran"))
    q1.synchronize(SOON)
    assert ran == ["ran"]


def test_work_queued_before_a_reset_stays_skipped(device: Device, q1: Stream) -> None:
    # q1 = [fail, e!, gate, call] … reset … [call]: the first call counted on what failed
    ran: list[str] = []
    failed = device.event()
    q1.host_call(boom)
    failed.record(q1)
    gate = q1.gate()
    q1.host_call(lambda: ran.append("before"))
    failed.synchronize(SOON)
    with pytest.raises(AsyncFailure):
        q1.query()
    q1.reset()
    q1.host_call(lambda: ran.append("after"))
    gate.open()
    q1.synchronize(SOON)
    assert ran == ["after"]


def test_a_reset_forgets_an_unreported_failure(device: Device, q1: Stream) -> None:
    # q1 = [fail, e!]
    event = device.event()
    q1.host_call(boom)
    event.record(q1)
    event.synchronize(SOON)
    q1.reset()
    assert q1.query()
    q1.synchronize(SOON)


def test_a_reset_of_a_healthy_stream_drops_nothing(q1: Stream) -> None:
    # q1 = [gate, call] … reset
    gate, ran = q1.gate(), threading.Event()
    q1.host_call(ran.set)
    q1.reset()
    gate.open()
    q1.synchronize(SOON)
    assert ran.is_set()


def test_skipped_work_still_keeps_order_and_completes_events(device: Device, q1: Stream, q2: Stream) -> None:
    # q1 = [fail, gate, e!]     q2 = [e?, call]: a failure of q1 is not one of q2
    event, ran = device.event(), threading.Event()
    q1.host_call(boom)
    gate = q1.gate()
    event.record(q1)
    q2.wait(event)
    q2.host_call(ran.set)
    assert not event.query(), "a gate holds a failed stream too"
    gate.open()
    assert ran.wait(SOON)
    q2.synchronize(SOON)
    with pytest.raises(AsyncFailure):
        q1.query()


def test_what_was_skipped_is_released(q1: Stream) -> None:
    """A closure that never ran must not live for ever."""
    fail(q1)
    released = threading.Event()

    class Canary:
        def __del__(self) -> None:
            released.set()

    canary = Canary()
    q1.host_call(lambda canary=canary: None)
    del canary
    assert released.wait(SOON)


def test_a_second_failure_after_a_reset_is_its_own(q1: Stream) -> None:
    for number in range(3):

        def bang(number: int = number) -> None:
            raise RuntimeError(f"number {number}")

        q1.host_call(bang)
        with pytest.raises(AsyncFailure, match=f"RuntimeError: number {number}"):
            q1.synchronize(SOON)
        q1.reset()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Unprintable(), "Unprintable: "),
        (ValueError("🜁" * 1000), "ValueError: 🜁🜁🜁"),
        (ValueError("é" * 255 + "🜁"), "ValueError: é"),
        (ValueError("\ud800"), "ValueError: \\ud800"),
        (ValueError(""), "ValueError: "),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
    ],
    ids=["unprintable", "long", "cut", "surrogate", "empty", "exit", "interrupt"],
)
def test_any_exception_becomes_a_message(q1: Stream, error: BaseException, expected: str) -> None:
    def bang() -> None:
        raise error

    q1.host_call(bang)
    with pytest.raises(AsyncFailure) as raised:
        q1.synchronize(SOON)
    assert expected in str(raised.value)


def test_a_failure_comes_before_a_timeout(device: Device, q1: Stream) -> None:
    # q1 = [fail, e!, gate]: the stream is not empty, but what went wrong is what matters
    failed = device.event()
    q1.host_call(boom)
    failed.record(q1)
    gate = q1.gate()
    failed.synchronize(SOON)
    with pytest.raises(AsyncFailure):
        q1.synchronize(0.01)
    gate.open()
