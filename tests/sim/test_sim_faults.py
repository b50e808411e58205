"""Planned faults, delays and counters: each fault where it was planned, told once, and life after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import accel
from accel.errors import AccelError, AsyncFailure, InvalidArgument, OutOfMemory

SOON = 30.0


def _malloc(device: Any) -> None:
    device.empty([16], "uint8").free()


def _copy(device: Any) -> None:
    device.copy(np.zeros(16, np.uint8), np.ones(16, np.uint8), device.current_stream())
    device.current_stream().synchronize(SOON)


def _launch(device: Any) -> None:
    device.current_stream().host_call(lambda: None)
    device.current_stream().synchronize(SOON)


def _event(device: Any) -> None:
    device.event().record(device.current_stream())
    device.current_stream().synchronize(SOON)


def _sync(device: Any) -> None:
    device.current_stream().synchronize(SOON)


#: Point → an action that passes it once, the error, and what its message names.
POINTS = {
    "malloc": (_malloc, OutOfMemory, "malloc"),
    "copy": (_copy, AsyncFailure, "copy"),
    "launch": (_launch, AsyncFailure, "host_call"),
    "event": (_event, AsyncFailure, "record"),
    "sync": (_sync, AsyncFailure, "synchronize"),
}


def attempt(device: Any, point: str) -> bool:
    """Whether the action of `point` failed with its error, naming the op; the device works again afterwards."""
    action, error, named = POINTS[point]
    try:
        # An allocation that fails is tried again after the stream was waited for, so the fault must be sticky to show.
        action(device)
    except error as raised:
        device.current_stream().reset()
        return named in str(raised)
    return False


@pytest.mark.parametrize("point", [name for name in POINTS if name != "malloc"])
@pytest.mark.parametrize("nth", [1, 3])
def test_the_nth_call_fails_and_no_other(sim: Any, point: str, nth: int) -> None:
    sim.sim.fault(point, nth=nth)
    assert [attempt(sim, point) for _ in range(5)] == [number == nth for number in range(1, 6)]


@pytest.mark.parametrize("point", POINTS)
def test_a_sticky_fault_stays_until_it_is_cleared(sim: Any, point: str) -> None:
    sim.sim.fault(point, nth=2, sticky=True)
    assert [attempt(sim, point) for _ in range(4)] == [False, True, True, True]
    sim.sim.clear_faults()
    assert not attempt(sim, point)


def test_an_allocation_that_fails_once_is_tried_again(sim: Any) -> None:
    sim.sim.fault("malloc")
    sim.empty([16], "uint8")
    assert sim.sim.counters()["malloc"] == 2


def test_a_fault_is_told_once_and_what_is_behind_it_is_skipped(sim: Any) -> None:
    # q = [gate, copy, copy (fails), copy]
    stream, target = sim.stream(), np.zeros(3, np.uint8)
    sim.sim.fault("copy", nth=2)
    gate = stream.gate()
    for i in range(3):
        sim.copy(target[i : i + 1], np.ones(1, np.uint8), stream)
    gate.open()
    with pytest.raises(AsyncFailure, match=r"planned fault at copy 2 \[stream 1\]") as raised:
        stream.synchronize(SOON)
    assert raised.value.op == "copy"
    stream.synchronize(SOON)
    assert target.tolist() == [1, 0, 0]
    counters = sim.sim.counters()
    assert (counters["copy"], counters["executed"], counters["skipped"]) == (3, 1, 2)


def test_a_fault_of_one_stream_is_none_of_another(sim: Any) -> None:
    q1, q2, target = sim.stream(), sim.stream(), np.zeros(1, np.uint8)
    sim.sim.fault("copy")
    sim.copy(np.zeros(1, np.uint8), np.ones(1, np.uint8), q1)
    sim.copy(target, np.ones(1, np.uint8), q2)
    q2.synchronize(SOON)
    assert target[0] == 1
    with pytest.raises(AsyncFailure):
        q1.synchronize(SOON)


def test_an_unknown_point_or_count_is_refused(sim: Any) -> None:
    with pytest.raises(InvalidArgument, match="known: malloc, copy, launch, event, sync"):
        sim.sim.fault("memcpy")
    with pytest.raises(InvalidArgument, match="nth is 0"):
        sim.sim.fault("copy", nth=0)
    with pytest.raises(InvalidArgument, match="others is -1"):
        sim.sim.delay("copy", -1)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_delayed_op_lets_others_pass_and_never_hangs(seed: int | None) -> None:
    # q1 = [gate, e!, slow]     q2 = [e?, 0, 1, 2]: the slow one comes after three others, though nothing orders them
    with accel.open("sim", memory=1 << 20, seed=seed) as device:
        seen: list[str] = []
        q1, q2, event = device.stream(), device.stream(), device.event()
        gate = q1.gate()
        event.record(q1)
        device.sim.delay("fill", 3)  # type: ignore[attr-defined]
        target = np.zeros(1, np.uint8)
        device.fill(target, 7, q1)
        q2.wait(event)
        for _ in range(3):
            q2.host_call(lambda: seen.append(f"other, slow is {int(target[0])}"))
        gate.open()
        device.synchronize(SOON)
        assert seen == ["other, slow is 0"] * 3
        assert target[0] == 7


def test_counters_return_to_where_they_were(sim: Any) -> None:
    before = {key: value for key, value in sim.sim.counters().items() if key.startswith("live")}
    buffer, stream, event = sim.empty([100], "uint8"), sim.stream(), sim.event()
    gate = stream.gate()
    gate.open()
    counters = sim.sim.counters()
    assert counters["live_streams"] == before["live_streams"] + 1
    assert (counters["live_events"], counters["live_gates"], counters["live_allocations"]) == (1, 1, 1)
    del stream, event, gate
    buffer.free()
    sim.synchronize(SOON)
    assert {key: value for key, value in sim.sim.counters().items() if key.startswith("live")} == before


def test_any_fault_at_any_point_leaves_a_device_that_closes() -> None:
    for point in POINTS:
        with accel.open("sim", memory=1 << 20) as device:
            device.sim.fault(point, sticky=True)  # type: ignore[attr-defined]
            with pytest.raises(AccelError):
                POINTS[point][0](device)
        assert device.closed
