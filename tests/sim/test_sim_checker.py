"""The happens-before checker: what nothing orders is reported, whichever ran first; what is ordered is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import accel

SOON = 30.0
SEEDS = [None, *range(20)]

every_seed = pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: "threads" if seed is None else f"seed {seed}")


def races(seed: int | None, program: Callable[[Any], None], *, kept: bool = True) -> list[str]:
    """What the checker says of `program`, whose buffers are kept until all streams are through."""
    with accel.open("sim", memory=4 << 20, seed=seed) as device:
        held, empty = list[Any](), device.empty

        def keep(shape: Any, dtype: str) -> Any:
            held.append(empty(shape, dtype))
            return held[-1]

        if kept:
            device.empty = keep  # type: ignore[method-assign]
        program(device)
        device.synchronize(SOON)
        found: list[str] = device.sim.races()  # type: ignore[attr-defined]
        return found


@every_seed
@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "without a fence"])
def test_a_copy_on_another_stream(seed: int | None, fenced: bool) -> None:
    # compute = [fill, e!]     q = [e?, copy]
    def program(device: Any) -> None:
        pool, host, compute, q = (
            device.empty([8192], "uint8"),
            np.zeros(8192, np.uint8),
            device.current_stream(),
            device.stream(),
        )
        event = device.event()
        device.fill(pool, 1, compute)
        if fenced:
            event.record(compute)
            q.wait(event)
        device.copy(host, pool, q)
        device.synchronize(SOON)

    found = races(seed, program)
    if fenced:
        assert found == []
        return
    assert len(found) == 1
    sites = re.findall(r"(fill|copy) on stream (\d) \((test_sim_checker\.py:\d+)\)", found[0])
    assert sorted(site[:2] for site in sites) == [("copy", "1"), ("fill", "0")]
    assert sites[0][2] != sites[1][2], "both call sites"


@every_seed
def test_a_buffer_dropped_while_another_stream_uses_it(seed: int | None) -> None:
    """What a framework does with a temporary: its memory goes in the order of the compute stream alone."""

    # compute = [free]     q = [copy]; the host waits for q only after it dropped the buffer
    def program(device: Any) -> None:
        buffer, q = device.empty([64], "uint8"), device.stream()
        device.copy(buffer, np.zeros(64, np.uint8), q)
        device.current_stream().host_call(lambda: None)  # so that the drop is queued
        del buffer
        try:
            device.synchronize(SOON)
        except accel.errors.AsyncFailure as error:
            failures.append(str(error))

    failures: list[str] = []
    found = races(seed, program, kept=False)
    # Whichever came first: the copy met freed memory, or the two were not ordered.
    assert failures or (len(found) == 1 and "free on stream 0" in found[0])


@every_seed
@pytest.mark.parametrize("waited", [True, False], ids=["synchronised", "not synchronised"])
def test_the_host_touches_memory_that_a_copy_uses(seed: int | None, waited: bool) -> None:
    # q = [copy]     host: read of the target
    def program(device: Any) -> None:
        buffer, target, q = device.empty([64], "uint8"), np.zeros(64, np.uint8), device.stream()
        device.fill(buffer, 3, q)
        device.copy(target, buffer, q)
        if waited:
            q.synchronize(SOON)
        device.sim.host_access(target, "read")

    found = races(seed, program)
    assert [("host_access on the host" in text) for text in found] == ([] if waited else [True])


@every_seed
def test_the_host_may_read_what_is_only_read(seed: int | None) -> None:
    def program(device: Any) -> None:
        source = np.ones(64, np.uint8)
        device.copy(device.empty([64], "uint8"), source, device.current_stream())
        device.sim.host_access(source, "read")

    assert races(seed, program) == []


@every_seed
def test_an_event_recorded_too_early_is_no_fence(seed: int | None) -> None:
    # compute = [e!, fill]     q = [e?, copy]
    def program(device: Any) -> None:
        pool, host, compute, q = (
            device.empty([64], "uint8"),
            np.zeros(64, np.uint8),
            device.current_stream(),
            device.stream(),
        )
        event = device.event()
        event.record(compute)
        device.fill(pool, 1, compute)
        q.wait(event)
        device.copy(host, pool, q)

    assert len(races(seed, program)) == 1


@every_seed
def test_fences_pass_on(seed: int | None) -> None:
    # q0 = [fill, e0!]   q1 = [e0?, e1!]   q2 = [e1?, copy]: the order goes through a stream that touches nothing
    def program(device: Any) -> None:
        pool, host = device.empty([64], "uint8"), np.zeros(64, np.uint8)
        streams, events = [device.stream() for _ in range(3)], [device.event() for _ in range(2)]
        device.fill(pool, 1, streams[0])
        events[0].record(streams[0])
        streams[1].wait(events[0])
        events[1].record(streams[1])
        streams[2].wait(events[1])
        device.copy(host, pool, streams[2])

    assert races(seed, program) == []


@every_seed
@pytest.mark.parametrize("query", ["stream", "event"])
def test_a_query_that_says_yes_orders(seed: int | None, query: str) -> None:
    def program(device: Any) -> None:
        pool, q1, q2, event = device.empty([64], "uint8"), device.stream(), device.stream(), device.event()
        device.fill(pool, 1, q1)
        event.record(q1)
        asked = q1 if query == "stream" else event
        while not asked.query():
            pass
        device.fill(pool, 2, q2)

    assert races(seed, program) == []


@every_seed
def test_neighbours_in_a_page_do_not_meet(seed: int | None) -> None:
    def program(device: Any) -> None:
        pool, q1, q2 = device.view(device.empty([128], "uint8")), device.stream(), device.stream()
        device.fill(pool.narrow(0, 0, 64), 1, q1)
        device.fill(pool.narrow(0, 64, 64), 2, q2)

    assert races(seed, program) == []


@every_seed
@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "without a fence"])
def test_a_page_that_is_swapped_while_attention_reads_it(seed: int | None, fenced: bool) -> None:
    """The NaN class of faults: a transfer writes block 1 while compute reads it through a block table."""

    # compute = [pages_checksum of block 1, e!]     q = [e?, copy into block 1]; block 0 is copied into without a fence
    def program(device: Any) -> None:
        shape = [2, 1, 2, 1, 4, 4]
        pool, out = device.empty(shape, "float32"), device.empty([1], "uint64")
        compute, q, event = device.current_stream(), device.stream(), device.event()
        device.ops.pages_checksum(compute, out, pool, np.array([1], np.int32))
        pages = device.view(pool, shape=[2, 32])
        page = np.zeros((1, 32), np.float32)
        device.copy(pages.narrow(0, 0, 1), page, q)
        if fenced:
            event.record(compute)
            q.wait(event)
        device.copy(pages.narrow(0, 1, 1), page, q)

    found = races(seed, program)
    assert len(found) == (0 if fenced else 1)
    assert all("pages_checksum on stream 0 (test_sim_" in text and "copy on stream 1" in text for text in found)


def test_it_can_be_off() -> None:
    with accel.open("sim", memory=1 << 20, check=False) as device:
        buffer = device.empty([64], "uint8")
        device.fill(buffer, 1, device.stream())
        device.fill(buffer, 2, device.stream())
        device.synchronize(SOON)
        assert device.sim.races() == []  # type: ignore[attr-defined]


def test_an_address_with_a_new_life_has_no_past() -> None:
    with accel.open("sim", memory=1 << 16, seed=1) as device:
        for _ in range(40):
            buffer, stream = device.empty([16384], "uint8"), device.stream()
            device.fill(buffer, 1, stream)
            stream.synchronize(SOON)
            buffer.free()
        assert device.sim.races() == []  # type: ignore[attr-defined]
