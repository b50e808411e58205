"""Work that never ran because its device closed: what waits for it on another device is told."""

from __future__ import annotations

import pytest
from waiting import SOON

import accel
from accel.backend import Device, Event
from accel.errors import AsyncFailure, DeviceLost


@pytest.fixture
def abandoned(device: Device) -> Event:
    """other.q = [gate, call, e!], and the other device is closed."""
    other = accel.open("cpu", threads=1)
    stream, event = other.stream(), other.event()
    gate = stream.gate()
    stream.host_call(lambda: None)
    event.record(stream)
    device.stream().wait(event)
    device.current_stream().wait(event)
    other.close()
    gate.open()
    return event


@pytest.mark.parametrize("early", [True, False], ids=["queued before", "queued after"])
def test_queued_work_that_waits_for_it_fails(device: Device, early: bool) -> None:
    # other.q = [gate, call, e!]     q = [e?, call]
    other = accel.open("cpu", threads=1)
    source, event, stream, ran = other.stream(), other.event(), device.stream(), list[int]()
    gate = source.gate()
    source.host_call(lambda: None)
    event.record(source)
    if not early:
        other.close()
    stream.wait(event)
    stream.host_call(lambda: ran.append(1))
    if early:
        other.close()
    with pytest.raises(AsyncFailure, match="abandoned when its device closed"):
        stream.synchronize(SOON)
    stream.synchronize(SOON)  # told once
    assert ran == []
    stream.reset()
    stream.host_call(lambda: ran.append(2))
    stream.synchronize(SOON)
    assert ran == [2]
    gate.open()


def test_a_launch_that_waits_for_it_raises_until_reset(device: Device, abandoned: Event) -> None:
    compute, ran = device.current_stream(), list[int]()
    for call in (lambda: compute.host_call(lambda: ran.append(1)), compute.synchronize, compute.query):
        with pytest.raises(DeviceLost, match="abandoned when its device closed"):
            call()
    compute.reset()
    compute.host_call(lambda: ran.append(2))
    assert ran == [2]


def test_the_event_is_complete_but_says_so(device: Device, abandoned: Event) -> None:
    assert abandoned.query(), "nobody waits for ever"
    with pytest.raises(DeviceLost):
        abandoned.synchronize(SOON)


def test_it_is_passed_on_through_events(device: Device, abandoned: Event) -> None:
    # compute = [e?, f!]     q = [f?, call]
    relayed, stream, ran = device.event(), device.stream(), list[int]()
    relayed.record(device.current_stream())
    stream.wait(relayed)
    stream.host_call(lambda: ran.append(1))
    with pytest.raises(AsyncFailure, match="abandoned"):
        stream.synchronize(SOON)
    assert ran == []
