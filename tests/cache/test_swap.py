"""Pages arrive whole, in either order of memory, and nobody touches a block or slot before its transfer is over.

Queues are drawn in comments: ``# q = [gate, copies, e!]`` is a stream with a shut gate and copies behind it; ``e!``
records the event e, ``e?`` waits for it.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from swap_bench import DENSE, LAYOUT, SOON, Bench, FaultyDevice, index, int64, settled

import accel
from accel import Device
from accel.backend import Support
from accel.cache.host_pool import HostPool
from accel.cache.pages import KVLayout
from accel.cache.pool import BlockPool, LeaseKind
from accel.cache.swap import Run, Staging, TransferState, plan_runs, swap_in
from accel.errors import InvalidArgument, Timeout, Unsupported

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


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staging", [0, 3])
@pytest.mark.parametrize("trailer", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("order", ORDERS)
def test_pages_go_out_and_come_back(order: str, dtype: str, trailer: bool, staging: int, device: Device) -> None:
    for seed, shape in enumerate((LAYOUT, DENSE)):
        layout = replace(shape, order=order, dtype=dtype)
        bench = Bench(device, layout, count=12, slots=12, trailer=trailer, staging=staging)
        chance = np.random.default_rng(seed)
        expected = bench.pages().copy()
        table, ids = bench.committed(10)
        slots = bench.take(12)
        chosen, places = chance.permutation(10)[:7], chance.permutation(12)[:7]
        guard = bench.host.memory.copy()
        bench.out(ids[chosen], slots[places]).wait(SOON)
        for block, slot in zip(ids[chosen], slots[places], strict=True):
            assert np.array_equal(bench.host.payload(int(slot)), expected[index([block])[0]])
        # Only the payloads of these slots have changed.
        rows, before = bench.host.memory.reshape(12, -1).copy(), guard.reshape(12, -1)
        rows[places, : layout.page_bytes] = before[places, : layout.page_bytes]
        assert np.array_equal(rows, before)
        assert np.array_equal(bench.pages(), expected)

        bench.blocks.close_table(table)
        bench.blocks.poll()
        assert bench.blocks.drop_cached() == 10
        bench.write(np.zeros_like(expected))
        table, fresh = bench.pending(7)
        bench.back(fresh, slots[places]).wait(SOON)
        wanted = np.zeros_like(expected)
        wanted[index(fresh)] = expected[index(ids[chosen])]
        assert np.array_equal(bench.pages(), wanted)
        settled(bench)
        bench.host.close()


@pytest.mark.parametrize("there", ORDERS)
@pytest.mark.parametrize("here", ORDERS)
def test_a_page_of_one_order_comes_back_in_the_other(here: str, there: str, device: Device) -> None:
    first = Bench(device, replace(LAYOUT, order=here))
    second = Bench(device, replace(LAYOUT, order=there), host=first.host)
    _, ids = first.committed(5)
    slots = first.take(5)
    first.out(ids, slots).wait(SOON)
    _, fresh = second.pending(5)
    second.back(fresh, slots[::-1].copy()).wait(SOON)
    assert np.array_equal(second.pages()[index(fresh)], first.pages()[index(ids)][::-1])


def test_neighbours_on_both_sides_are_one_run() -> None:
    assert plan_runs([7, 8, 9, 3, 12, 13], [0, 1, 2, 3, 5, 6], piece=100) == [Run(3, 3, 1), Run(7, 0, 3), Run(12, 5, 2)]
    assert plan_runs([9, 7, 8], [2, 0, 1], piece=100) == [Run(7, 0, 3)], "the order of pairs is free"
    assert plan_runs([1, 2, 3], [3, 2, 1], piece=100) == [Run(1, 3, 1), Run(2, 2, 1), Run(3, 1, 1)]
    assert plan_runs(range(6), range(1, 7), piece=4) == [Run(0, 1, 3), Run(3, 4, 3)]


@pytest.mark.parametrize("seed", range(20))
def test_runs_are_the_pairs_again_and_none_can_be_joined(seed: int) -> None:
    chance = random.Random(seed)
    blocks = chance.sample(range(40), 25)
    slots = sorted(chance.sample(range(40), 25))
    runs = plan_runs(blocks, slots, piece=8)
    pairs = [(run.block + i, run.slot + i) for run in runs for i in range(run.count)]
    assert sorted(pairs) == sorted(zip(blocks, slots, strict=True))
    assert all(run.slot // 8 == (run.slot + run.count - 1) // 8 for run in runs)
    starts = {(run.block, run.slot) for run in runs if run.slot % 8}
    assert not starts & {(run.block + run.count, run.slot + run.count) for run in runs}


@pytest.mark.parametrize(
    ("order", "layout", "trailer", "staging", "copies"),
    [
        ("page_first", DENSE, False, 0, 2),  # one copy a run
        ("page_first", DENSE, True, 0, 6),  # trailers between the pages: one copy each, in one batch
        ("page_first", LAYOUT, False, 0, 6),
        ("layer_first", DENSE, False, 0, 2),  # slots 0-2 and 4-6: one op call each
        ("layer_first", DENSE, True, 0, 6),
        ("layer_first", DENSE, False, 4, 2 + 3),  # two gathers; runs of chunk 0: slots 0-2 | 4, of chunk 1: 5-6
    ],
)
def test_as_few_copies_as_the_slots_allow(
    order: str, layout: KVLayout, trailer: bool, staging: int, copies: int, device: Device
) -> None:
    bench = Bench(device, replace(layout, order=order), trailer=trailer, staging=staging)
    _, ids = bench.committed(6)
    slots = bench.take(7)[[0, 1, 2, 4, 5, 6]]
    out = bench.out(ids, slots)
    out.wait(SOON)
    assert (out.pages, out.runs, out.copies) == (6, 2, copies)


# --- order -----------------------------------------------------------------------------------------------------------


def test_a_swap_out_waits_for_the_compute_that_writes(bench: Bench, device: Device) -> None:
    # compute (a stream here, so that it can be held) = [gate, write, e!]     q = [e?, copies]
    _, ids = bench.committed(2)
    slots, compute, e = bench.take(2), device.stream(), device.event()
    gate = compute.gate()
    compute.host_call(lambda: bench.write(np.full_like(bench.pages(), 5)))
    e.record(compute)
    out = bench.out(ids, slots, after=e)
    with pytest.raises(Timeout):
        out.wait(0.05)
    gate.open()
    out.wait(SOON)
    assert all((bench.host.payload(int(slot)) == 5).all() for slot in slots)


def test_compute_that_waits_for_the_event_of_a_swap_in_reads_what_it_brought(bench: Bench, device: Device) -> None:
    # q = [gate, copies, event!]     compute = [event?, read]
    slots = bench.take(2)
    expected = bench.fill(slots)
    _, ids = bench.pending(2)
    gate = bench.stream.gate()
    back = bench.back(ids, slots)
    compute, seen = device.stream(), list[Any]()
    compute.wait(back.event)
    compute.host_call(lambda: seen.append(bench.pages()[index(ids)].copy()))
    assert not compute.query()
    assert not np.array_equal(bench.pages()[index(ids)], expected)
    gate.open()
    compute.synchronize(SOON)
    assert np.array_equal(seen[0], expected)


def test_a_slot_is_not_loaded_before_its_store_is_over(bench: Bench, device: Device) -> None:
    # q = [gate, copies out]     another stream may not read the slots yet
    _, ids = bench.committed(2)
    slots, gate = bench.take(2), bench.stream.gate()
    out = bench.out(ids, slots)
    _, fresh = bench.pending(2, start=100)
    before = bench.snapshot()
    with pytest.raises(InvalidArgument, match="slot 0 is being written"):
        bench.back(fresh, slots, stream=device.stream())
    with pytest.raises(InvalidArgument, match="being written"):
        bench.host.payload(int(slots[0]))
    assert bench.snapshot() == before
    gate.open()
    out.wait(SOON)
    bench.back(fresh, slots, stream=device.stream()).wait(SOON)
    assert np.array_equal(bench.pages()[index(fresh)], bench.pages()[index(ids)])


def test_the_blocks_of_a_preempted_request_are_not_given_away_while_they_are_stored(bench: Bench) -> None:
    # q = [gate, copies]; the request leaves, and others want all the memory
    expected = bench.pages().copy()
    table, ids = bench.committed(3)
    slots, gate = bench.take(3), bench.stream.gate()
    out = bench.out(ids, slots)
    bench.blocks.close_table(table)
    assert bench.blocks.drop_cached() == 0, "eviction cannot take them"
    assert bench.blocks.open(bytes(32), bench.tokens(6, 500), limit=0, keep_free=0) is None, "nor an allocation"
    other, theirs = bench.pending(5, start=500)
    assert not set(index(theirs)) & set(index(ids))
    gate.open()
    out.wait(SOON)
    assert all(np.array_equal(bench.host.payload(int(s)), expected[b]) for s, b in zip(slots, index(ids), strict=True))
    bench.blocks.close_table(other)
    assert bench.blocks.open(bytes(32), bench.tokens(8, 900), limit=0, keep_free=0) is not None
    settled(bench)


def test_a_request_that_comes_back_while_its_store_runs_has_transfers_of_its_own(bench: Bench, device: Device) -> None:
    # q = [gate, copies]; admitted again: a hit on the same blocks, stored a second time on another stream
    table, ids = bench.committed(2)
    slots, gate = bench.take(4), bench.stream.gate()
    first = bench.out(ids, slots[:2])
    bench.blocks.close_table(table)
    opened = bench.blocks.open(bytes(32), bench.tokens(2), limit=2, keep_free=0)
    assert opened is not None
    assert opened[1] == 8, "committed blocks are matched while they are read"
    again = bench.out(bench.blocks.table_blocks(opened[0]), slots[2:], stream=device.stream())
    again.wait(SOON)
    assert (first.state, again.state) == (TransferState.RUNNING, TransferState.DONE)
    gate.open()
    first.wait(SOON)
    settled(bench)


def test_two_stores_into_one_slot_are_refused(bench: Bench, device: Device) -> None:
    _, ids = bench.committed(4)
    slots, gate = bench.take(2), bench.stream.gate()
    out = bench.out(ids[:2], slots)
    before = bench.snapshot()
    with pytest.raises(InvalidArgument, match="being written"):
        bench.out(ids[2:], slots, stream=device.stream())
    assert bench.snapshot() == before
    gate.open()
    out.wait(SOON)


def test_a_slot_stays_until_its_load_is_over(bench: Bench) -> None:
    slots = bench.take(8)
    bench.fill(slots[:2])
    _, ids = bench.pending(2)
    gate = bench.stream.gate()
    back = bench.back(ids, slots[:2])
    for call in (lambda: bench.host.free(slots[:1]), bench.host.close):
        with pytest.raises(InvalidArgument, match=r"in use by a transfer|still use slots"):
            call()
    _, more = bench.committed(1, start=300)
    with pytest.raises(InvalidArgument, match="being read"):
        bench.out(more, slots[:1])
    assert bench.host.allocate(1) is None
    gate.open()
    back.wait(SOON)
    bench.host.free(slots)
    settled(bench)


def test_a_block_that_is_loaded_is_not_matched_before_its_commit(bench: Bench) -> None:
    slots = bench.take(2)
    bench.fill(slots)
    table, ids = bench.pending(2)
    gate = bench.stream.gate()
    back = bench.back(ids, slots)
    assert bench.blocks.match(bytes(32), bench.tokens(2), 9) == 0
    bench.blocks.close_table(table)
    assert bench.blocks.stats().free == 6, "the lease keeps what the request gave back"
    gate.open()
    back.wait(SOON)
    assert bench.blocks.match(bytes(32), bench.tokens(2), 9) == 0, "loaded, but nobody committed it"
    bench.blocks.poll()
    assert bench.blocks.stats().free == 8
    table, ids = bench.pending(2)
    bench.back(ids, slots).wait(SOON)
    bench.commit(table)
    assert bench.blocks.match(bytes(32), bench.tokens(2), 9) == 2


def test_a_swap_in_waits_for_what_still_uses_the_pages(bench: Bench, device: Device) -> None:
    # compute (a stream here) = [gate, read, e!]     q = [e?, copies]
    slots = bench.take(2)
    bench.fill(slots)
    _, ids = bench.pending(2)
    old, seen = bench.pages().copy(), list[Any]()
    compute, e = device.stream(), device.event()
    gate = compute.gate()
    compute.host_call(lambda: seen.append(bench.pages().copy()))
    e.record(compute)
    back = bench.back(ids, slots, after=e)
    with pytest.raises(Timeout):
        back.wait(0.05)
    gate.open()
    back.wait(SOON)
    assert np.array_equal(seen[0], old)


@pytest.mark.parametrize("order", ORDERS)
def test_on_the_compute_stream_of_a_host_executed_device_it_is_over_at_once(order: str, device: Device) -> None:
    bench = Bench(device, replace(LAYOUT, order=order))
    _, ids = bench.committed(2)
    slots = bench.take(2)
    assert bench.out(ids, slots, stream=device.current_stream()).state is TransferState.DONE
    assert np.array_equal(bench.host.payload(int(slots[1])), bench.pages()[index(ids)[1]])
    settled(bench)


def test_a_transfer_outlives_whoever_started_it(bench: Bench) -> None:
    _, ids = bench.committed(2)
    slots, gate = bench.take(2), bench.stream.gate()
    event = bench.out(ids, slots).event
    gc.collect()
    assert bench.host.stats().transfers == 1
    gate.open()
    event.synchronize(SOON)
    assert bench.host.poll() == 1
    assert bench.host.is_full(int(slots[0]))
    settled(bench)


def test_waiting_has_a_limit_and_can_be_repeated(bench: Bench) -> None:
    _, ids = bench.committed(1)
    gate = bench.stream.gate()
    out = bench.out(ids, bench.take(1))
    with pytest.raises(Timeout):
        out.wait(0.01)
    with pytest.raises(InvalidArgument, match="still running"):
        out.result()
    gate.open()
    out.wait(SOON)
    out.result()


def test_a_lease_may_be_passed_and_is_taken_over(bench: Bench) -> None:
    _, ids = bench.committed(2)
    lease = bench.blocks.lease(ids, LeaseKind.SWAP)
    gate = bench.stream.gate()
    out = bench.out(lease, bench.take(2))
    assert not lease.released
    with pytest.raises(InvalidArgument, match="released already"):
        bench.blocks.release(lease)
    gate.open()
    out.wait(SOON)
    bench.blocks.poll()
    assert lease.released
    settled(bench)


# --- refused ---------------------------------------------------------------------------------------------------------

Call = Callable[[Bench, Any, Any, Any], Any]  # bench, 2 committed ids, 2 pending ids, 4 slots (0 and 1 full)
MISUSES: dict[str, tuple[str, Call]] = {
    "a block twice": ("names block 0 twice", lambda b, c, p, s: b.out(c[[0, 0]], s[:2])),
    "a slot twice": ("names slot 1 twice", lambda b, c, p, s: b.out(c, s[[1, 1]])),
    "a slot read twice": ("names slot 0 twice", lambda b, c, p, s: b.back(p, s[[0, 0]])),
    "too few slots": ("2 blocks and 1 slots", lambda b, c, p, s: b.out(c, s[:1])),
    "nothing": ("0 blocks and 0 slots", lambda b, c, p, s: b.out(c[:0], s[:0])),
    "a stale block": ("stale", lambda b, c, p, s: b.out(c + (1 << 32), s[:2])),
    "a block out of range": ("KV pool has 8", lambda b, c, p, s: b.out(c + 8, s[:2])),
    "a stale slot": ("stale", lambda b, c, p, s: b.out(c, s[:2] + (1 << 32))),
    "a slot out of range": ("never was a slot", lambda b, c, p, s: b.out(c, s[:2] + 8)),
    "ids of another type": ("int64", lambda b, c, p, s: b.out(c.astype(np.float64), s[:2])),
    "a list": ("int64", lambda b, c, p, s: b.out([1, 2], s[:2])),
    "pending blocks out": ("being written", lambda b, c, p, s: b.out(p, s[:2])),
    "committed blocks in": ("is committed", lambda b, c, p, s: b.back(c, s[:2])),
    "an empty slot in": ("slot 2 holds no page", lambda b, c, p, s: b.back(p, s[1:3])),
    "a stream of another device": ("belongs to", lambda b, c, p, s: b.out(c, s[:2], stream=foreign())),
    "another layout": ("records of the host pool", lambda b, c, p, s: with_host(b, DENSE).out(c, s[:2])),
    "another dtype of the same size": (
        "records of the host pool",
        lambda b, c, p, s: with_host(b, replace(LAYOUT, dtype="bfloat16", head_dim=16)).back(p, s[:2]),
    ),
    "another block pool": ("the block pool has 9", lambda b, c, p, s: with_blocks(b, 9).out(c, s[:2])),
    "a closed host pool": ("closed", lambda b, c, p, s: with_host(b, LAYOUT, closed=True).out(c, s[:2])),
}


def foreign() -> Any:
    return accel.open("cpu", threads=1).stream()


def with_host(bench: Bench, layout: KVLayout, *, closed: bool = False) -> Bench:
    changed = object.__new__(Bench)
    changed.__dict__.update(bench.__dict__)
    changed.host = HostPool(bench.device, layout, 4)
    if closed:
        changed.host.close()
    return changed


def with_blocks(bench: Bench, count: int) -> Bench:
    changed = object.__new__(Bench)
    changed.__dict__.update(bench.__dict__)
    changed.blocks = BlockPool(count, LAYOUT.block_size)
    return changed


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_refused_and_changes_nothing(name: str, order: str, device: Device) -> None:
    bench = Bench(device, replace(LAYOUT, order=order))
    _, committed = bench.committed(2)
    _, pending = bench.pending(2, start=200)
    slots = bench.take(4)
    bench.fill(slots[:2])
    before = bench.snapshot()
    message, call = MISUSES[name]
    with pytest.raises(InvalidArgument, match=message):
        call(bench, committed, pending, slots)
    bench.stream.synchronize(SOON)
    assert bench.snapshot() == before


def test_a_lease_of_another_kind_or_a_spent_one_is_refused_and_stays_with_the_caller(bench: Bench) -> None:
    _, ids = bench.committed(2)
    slots = bench.take(2)
    lease = bench.blocks.lease(ids, LeaseKind.STORE)
    before = bench.snapshot()
    with pytest.raises(InvalidArgument, match="kind STORE; swap_out needs SWAP"):
        bench.out(lease, slots)
    assert (bench.snapshot(), lease.released) == (before, False)
    lease.release()
    spent = bench.blocks.lease(ids, LeaseKind.SWAP)
    spent.release()
    with pytest.raises(InvalidArgument, match="released already"):
        bench.out(spent, slots)
    settled(bench)


def test_a_lease_on_blocks_that_were_committed_since_is_refused(bench: Bench) -> None:
    slots = bench.take(2)
    bench.fill(slots)
    table, ids = bench.pending(2)
    with bench.blocks.lease(ids, LeaseKind.LOAD) as lease:
        bench.commit(table)
        before = bench.snapshot()
        with pytest.raises(InvalidArgument, match="is committed"):
            bench.back(lease, slots)
        assert bench.snapshot() == before


def test_where_too_many_leases_wait_a_transfer_is_refused_before_it_is_queued(device: Device) -> None:
    bench = Bench(device)
    bench.blocks = BlockPool(8, LAYOUT.block_size, deferred_limit=1)
    _, ids = bench.committed(2)
    slots, gate = bench.take(2), bench.stream.gate()
    out = bench.out(ids[:1], slots[:1])
    before = bench.snapshot()
    with pytest.raises(InvalidArgument, match="1 leases are waiting"):
        bench.out(ids[1:], slots[1:])
    assert bench.snapshot() == before
    gate.open()
    out.wait(SOON)
    bench.out(ids[1:], slots[1:]).wait(SOON)
    settled(bench)


def test_a_device_without_host_calls_says_so_before_anything_is_queued(device: Device) -> None:
    bench = Bench(FaultyDevice(device, host_call=Support.NONE))
    _, ids = bench.committed(1)
    slots = bench.take(1)
    before = bench.snapshot()
    with pytest.raises(Unsupported, match="host_call"):
        bench.out(ids, slots)
    assert bench.snapshot() == before


def test_layer_first_on_a_device_with_its_own_memory_goes_through_staging(device: Device) -> None:
    layout = replace(LAYOUT, order="layer_first")
    bench = Bench(FaultyDevice(device, host_executed=False), layout)
    _, ids = bench.committed(5)
    slots = bench.take(5)
    with pytest.raises(InvalidArgument, match="needs a staging area"):
        bench.out(ids, slots)
    with pytest.raises(InvalidArgument, match="pages of a staging area is 0"):
        Staging(device, layout, 0)
    bench.staging = Staging(device, replace(layout, layers=3), 2)
    with pytest.raises(InvalidArgument, match="records of the staging"):
        bench.out(ids, slots)
    bench.staging = Staging(device, layout, 2)
    # Two streams share the staging area: q2 = [gate, chunks], and q1 behind it by the event of the area.
    other = device.stream()
    gate = other.gate()
    first = bench.out(ids[:3], slots[:3], stream=other)
    second = bench.out(ids[3:], slots[3:])
    with pytest.raises(Timeout):
        second.wait(0.05)
    gate.open()
    first.wait(SOON)
    second.wait(SOON)
    for block, slot in zip(index(ids), slots, strict=True):
        assert np.array_equal(bench.host.payload(int(slot)), bench.pages()[block])


# --- soak ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_a_thousand_random_operations_agree_with_a_dict(order: str, device: Device) -> None:
    chance = random.Random(order)
    bench = Bench(device, replace(LAYOUT, order=order), count=16, slots=12)
    streams = [device.stream() for _ in range(2)]
    start = 0
    tables: dict[int, bytes] = {}  # committed table -> its page
    stored: dict[int, bytes] = {}  # slot id -> its page
    flying: list[tuple[Any, Any]] = []

    def land(everything: bool = False) -> None:
        while flying and (everything or chance.random() < 0.5):
            transfer, then = flying.pop(chance.randrange(len(flying)))
            transfer.wait(SOON)
            then()

    def out(table: int) -> None:
        slots = bench.host.allocate(1)
        if slots is None:
            return
        transfer = bench.out(bench.blocks.table_blocks(table), slots, stream=chance.choice(streams))
        page = tables.pop(table)
        bench.blocks.close_table(table)
        flying.append((transfer, lambda: stored.update({int(slots[0]): page})))

    def back(slot: int) -> None:
        nonlocal start
        start += 100
        opened = bench.blocks.open(bytes(32), bench.tokens(1, start), limit=0, keep_free=0)
        if opened is None:
            return
        table = opened[0]
        transfer = bench.back(bench.blocks.table_blocks(table), int64(slot), stream=chance.choice(streams))
        page = stored[slot]

        def then() -> None:
            bench.commit(table)
            tables[table] = page

        flying.append((transfer, then))

    def compute() -> None:
        nonlocal start
        start += 100
        opened = bench.blocks.open(bytes(32), bench.tokens(1, start), limit=0, keep_free=0)
        if opened is None:
            return
        page = chance.randbytes(LAYOUT.page_bytes)
        view = bench.kv.view.numpy()[index(bench.blocks.table_blocks(opened[0]))[0]]
        view[...] = np.frombuffer(page, view.dtype).reshape(view.shape)
        bench.commit(opened[0])
        tables[opened[0]] = page

    for _ in range(1000):
        kind = chance.random()
        if kind < 0.3:
            compute()
        elif kind < 0.55 and tables:
            out(chance.choice(list(tables)))
        elif kind < 0.8 and stored:
            back(chance.choice(list(stored)))
        elif kind < 0.9 and stored:
            land(everything=True)
            slot = chance.choice(list(stored))
            assert bench.host.payload(slot).tobytes() == stored.pop(slot)
            bench.host.free(int64(slot))
        elif tables:
            table = chance.choice(list(tables))
            block = index(bench.blocks.table_blocks(table))[0]
            assert np.ascontiguousarray(bench.kv.view.numpy()[block]).tobytes() == tables.pop(table)
            bench.blocks.close_table(table)
        land()
    land(everything=True)
    assert bench.host.stats().full == len(stored)
    for slot, page in stored.items():
        assert bench.host.payload(slot).tobytes() == page
    settled(bench)
    bench.blocks.check()


def test_a_host_pool_of_another_layout_is_refused(bench: Bench) -> None:
    slots = bench.take(1)
    bench.fill(slots)
    other = Bench(bench.device, replace(LAYOUT, dtype="bfloat16"), host=bench.host)
    _, ids = other.pending(1)
    with pytest.raises(InvalidArgument, match="make both from one KVLayout"):
        swap_in(other.device, other.kv, other.blocks, ids, bench.host, slots, other.stream)
    other.blocks.check()
