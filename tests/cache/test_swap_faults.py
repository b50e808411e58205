"""A transfer that fails says so, releases nothing early, and leaves slots that nobody uses by mistake.

Queues are drawn in comments as in test_swap.py.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from swap_bench import LAYOUT, SOON, Bench, FaultyDevice, index, settled

import accel
from accel import Device
from accel.cache.swap import TransferState
from accel.errors import AsyncFailure, DeviceLost, InvalidArgument

ORDERS = ("page_first", "layer_first")


@pytest.fixture
def device() -> Iterator[Device]:
    with accel.open("cpu", threads=1) as opened:
        yield opened


@pytest.fixture
def bench(device: Device) -> Iterator[Bench]:
    made = Bench(device)
    yield made
    made.blocks.check()


def boom() -> None:
    raise ValueError("boom")


@pytest.mark.parametrize("order", ORDERS)
def test_a_transfer_behind_a_failure_fails_and_its_slots_are_unusable_until_the_reset(
    order: str, device: Device
) -> None:
    # q = [fail, gate, copies, event!]
    bench = Bench(device, replace(LAYOUT, order=order))
    _, ids = bench.committed(3)
    slots = bench.take(3)
    bench.fill(slots)
    bench.stream.host_call(boom)
    gate = bench.stream.gate()
    out = bench.out(ids, slots)
    bench.blocks.poll()
    assert (out.state, bench.blocks.deferred) == (TransferState.RUNNING, 1), "nothing is released early"
    gate.open()
    with pytest.raises(AsyncFailure, match="cpu:0, swap_out: a transfer of 3 pages failed") as raised:
        out.wait(SOON)
    assert isinstance(raised.value.__cause__, AsyncFailure)
    assert "boom" in str(raised.value.__cause__)
    assert out.state is TransferState.FAILED
    stats = bench.host.stats()
    assert (stats.unusable, stats.full, stats.failures, stats.transfers) == (3, 0, 1, 0)
    for call in (
        lambda: bench.host.payload(int(slots[0])),
        lambda: bench.host.free(slots),
        lambda: bench.host.mark_full(slots),
        lambda: bench.out(ids, slots),
    ):
        with pytest.raises(InvalidArgument, match="slot 0 is unusable"):
            call()
    other = device.stream()
    bench.host.reset(other)
    assert bench.host.stats().unusable == 3, "another stream says nothing"
    bench.host.reset(bench.stream)
    assert bench.host.stats().empty == 3
    with pytest.raises(AsyncFailure):
        out.result()  # the transfer stays what it is
    bench.out(ids, slots).wait(SOON)
    settled(bench)


def test_a_load_that_failed_says_so_and_the_slots_still_hold_their_pages(bench: Bench) -> None:
    # q = [fail, copies, event!]: compute that waits for the event goes on, so the host must ask before it commits
    slots = bench.take(2)
    expected = bench.fill(slots)
    table, ids = bench.pending(2)
    bench.stream.host_call(boom)
    back = bench.back(ids, slots)
    with pytest.raises(AsyncFailure, match="swap_in"):
        back.wait(SOON)
    bench.host.reset(bench.stream)
    assert bench.host.stats().full == 2
    bench.back(ids, slots).wait(SOON)
    assert np.array_equal(bench.pages()[index(ids)], expected)
    bench.commit(table)
    settled(bench)


def test_a_transfer_that_was_queued_before_the_reset_is_skipped_and_needs_no_other(bench: Bench) -> None:
    # q = [fail, e!, gate, copies, event!] … reset, then the gate opens
    _, ids = bench.committed(1)
    slots, failed = bench.take(1), bench.device.event()
    bench.stream.host_call(boom)
    failed.record(bench.stream)
    gate = bench.stream.gate()
    out = bench.out(ids, slots)
    failed.synchronize(SOON)
    bench.host.reset(bench.stream)
    assert out.state is TransferState.RUNNING
    gate.open()
    with pytest.raises(AsyncFailure):
        out.wait(SOON)
    assert (bench.host.stats().unusable, bench.host.stats().failures) == (0, 1)
    bench.out(ids, slots).wait(SOON)
    settled(bench)


#: Order of the pool, the call that fails, its number from 0, pages of staging.
NTH = [
    ("page_first", "copy_batch", 0, 0),
    ("layer_first", "pages_gather", 0, 0),
    ("layer_first", "pages_gather", 2, 0),
    ("layer_first", "copy_batch", 1, 2),
]


@pytest.mark.parametrize(("order", "broken", "nth", "staging"), NTH)
def test_the_nth_copy_that_fails_on_the_device_fails_its_transfer_and_no_other(
    order: str, broken: str, nth: int, staging: int, device: Device
) -> None:
    # q = [copies, event1!, some copies, fail, the others, event2!]     q2 = [copies, event3!]
    faulty = FaultyDevice(device)
    bench = Bench(faulty, replace(LAYOUT, order=order), staging=staging)
    _, ids = bench.committed(6)
    slots = bench.take(6)
    good = bench.out(ids[:1], slots[:1])
    bench.device = FaultyDevice(device, [broken], nth, late=True)
    bad = bench.out(ids[1:5], slots[1:5])
    bench.device = faulty
    beside = bench.out(ids[5:], slots[5:], stream=device.stream())
    good.wait(SOON)
    beside.wait(SOON)
    with pytest.raises(AsyncFailure, match="4 pages failed") as raised:
        bad.wait(SOON)
    assert "made to fail on the stream" in str(raised.value.__cause__)
    stats = bench.host.stats()
    assert (stats.full, stats.unusable, stats.failures) == (2, 4, 1)
    bench.host.reset(bench.stream)
    assert bench.host.stats().empty == 4
    settled(bench)


def test_a_transfer_fails_also_when_somebody_else_took_the_error_of_the_stream(bench: Bench) -> None:
    # q = [fail, e!, gate, copies, event!]
    _, ids = bench.committed(1)
    failed = bench.device.event()
    bench.stream.host_call(boom)
    failed.record(bench.stream)
    gate = bench.stream.gate()
    out = bench.out(ids, bench.take(1))
    failed.synchronize(SOON)
    with pytest.raises(AsyncFailure, match="boom"):
        bench.stream.query()
    gate.open()
    with pytest.raises(AsyncFailure, match="1 pages failed") as raised:
        out.wait(SOON)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(("order", "broken", "nth", "staging"), NTH)
def test_a_device_that_fails_while_the_nth_copy_is_queued_releases_nothing_early(
    order: str, broken: str, nth: int, staging: int, device: Device
) -> None:
    # q = [gate, n copies, event!]; the next one is not taken
    faulty = FaultyDevice(device, [broken], nth)
    bench = Bench(faulty, replace(LAYOUT, order=order), staging=staging)
    table, ids = bench.committed(4)
    slots, gate = bench.take(4), bench.stream.gate()
    with pytest.raises(DeviceLost, match=broken):
        bench.out(ids, slots)
    bench.blocks.close_table(table)
    bench.blocks.poll()
    assert (bench.blocks.deferred, bench.blocks.drop_cached(), bench.host.stats().writing) == (1, 0, 4)
    gate.open()
    bench.stream.synchronize(SOON)
    assert bench.host.stats().unusable == 4
    bench.blocks.poll()
    bench.host.reset(bench.stream)
    settled(bench)
    assert bench.blocks.drop_cached() == 4
    bench.host.free(slots)
    bench.host.close()


def test_a_transfer_whose_end_cannot_be_known_keeps_what_it_holds(device: Device) -> None:
    # q = [copies, done], and no event behind them
    bench = Bench(FaultyDevice(device, ["record"], nth=1))
    _, ids = bench.committed(2)
    slots = bench.take(2)
    with pytest.raises(DeviceLost, match="record"):
        bench.out(ids, slots)
    bench.stream.synchronize(SOON)
    gc.collect()
    bench.blocks.poll()
    stats = bench.blocks.stats()
    assert (stats.leases, stats.abandoned_leases) == (1, 0), "the lease of the transfer is still there"
    assert bench.host.stats().writing == 2
    with pytest.raises(InvalidArgument, match="1 transfers still use slots"):
        bench.host.close()
    bench.host.close(force=True)
    assert bench.host.closed


def test_a_device_that_is_closed_under_a_transfer_fails_it_and_the_host_pool_can_be_closed() -> None:
    device = accel.open("cpu", threads=1)
    bench = Bench(device)
    _, ids = bench.committed(2)
    gate = bench.stream.gate()
    out = bench.out(ids, bench.take(2))
    device.close()
    with pytest.raises(AsyncFailure) as raised:
        out.result()
    assert isinstance(raised.value.__cause__, DeviceLost)
    bench.host.close()
    assert bench.host.closed
    del gate
