"""Pages between the device and slots on the host: the same bytes, in stream order, under a lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from accel.backend import Stream
from accel.cache.host_pool import HostPool
from accel.cache.pages import KVLayout, KVPool
from accel.cache.pool import BlockPool
from accel.cache.swap import Staging, swap_in, swap_out
from accel.conformance.context import SOON, Context
from accel.conformance.registry import case
from accel.errors import InvalidArgument

BLOCKS, SLOTS = 10, 12
_NEEDS = ("host_call", "events")


@dataclass
class Bench:
    """A pool of random pages on the device, its blocks, and slots on the host."""

    context: Context
    pool: KVPool
    blocks: BlockPool
    host: HostPool
    staging: Staging | None

    @classmethod
    def of(cls, context: Context, order: str) -> Bench:
        layout = KVLayout(2, 2, 8, block_size=4, order=order)
        pool = KVPool(context.device, layout, BLOCKS)
        aside = order != "page_first" and not context.device.capabilities.host_executed
        staging = Staging(context.device, layout, 4) if aside else None
        return cls(context, pool, BlockPool(BLOCKS, 4), HostPool(context.device, layout, SLOTS), staging)

    def committed(self, count: int) -> npt.NDArray[np.int64]:
        """Blocks whose tokens were computed, as far as the block pool is told."""
        tokens = np.arange(count * 4 + 1, dtype=np.int32)
        opened = self.blocks.open(bytes(32), tokens, limit=0, keep_free=0)
        if opened is None:
            raise InvalidArgument("the pool of the case is too small")
        tables, ends = np.array([opened[0]], np.int64), np.array([len(tokens)], np.int32)
        step = self.blocks.begin_step(tables, ends, np.zeros((1, count + 1), np.int32))
        self.blocks.commit_step(step, np.array([True]), ends, np.array([-1], np.int32))
        return self.blocks.table_blocks(opened[0])[:count]

    def write(self, pages: npt.NDArray[np.uint8]) -> None:
        """Put `pages` into blocks 0, 1, …"""
        self._move("pages_scatter", self.pool.view, pages)

    def read(self) -> npt.NDArray[np.uint8]:
        """All pages, as canonical records."""
        out = np.zeros((BLOCKS, self.pool.layout.page_bytes), np.uint8)
        return self.context.download(self._move("pages_gather", None, out), out)

    def _move(self, op: str, first: Any, pages: npt.NDArray[np.uint8]) -> Any:
        device, stream = self.context.device, self.context.device.current_stream()
        tensor = self.context.upload(pages)
        index = device.view(self.context.upload(np.arange(len(pages), dtype=np.int32)))
        data = device.view(tensor)
        if first is None:
            device.ops.pages_gather(stream, data, self.pool.view, index)
        else:
            device.ops.pages_scatter(stream, self.pool.view, data, index)
        stream.synchronize(SOON)
        return tensor

    def random(self) -> npt.NDArray[np.uint8]:
        return self.context.rng.integers(0, 256, (BLOCKS, self.pool.layout.page_bytes), np.uint8)

    def slots(self, count: int) -> npt.NDArray[np.int64]:
        taken = self.host.allocate(count)
        if taken is None:
            raise InvalidArgument("the host pool of the case is too small")
        return taken

    def out(self, ids: Any, slots: Any, stream: Stream, **more: Any) -> Any:
        return swap_out(
            self.context.device, self.pool, self.blocks, ids, self.host, slots, stream, staging=self.staging, **more
        )

    def back(self, ids: Any, slots: Any, stream: Stream, **more: Any) -> Any:
        return swap_in(
            self.context.device, self.pool, self.blocks, ids, self.host, slots, stream, staging=self.staging, **more
        )


@case("swap", needs=_NEEDS)
def a_slot_holds_the_canonical_page_whatever_the_order(context: Context) -> None:
    """write random pages, swap some out in another sequence, look at the slots"""
    for order in context.device.capabilities.kv_layouts:
        bench = Bench.of(context, order)
        pages = bench.random()
        bench.write(pages)
        ids, slots = bench.committed(6), bench.slots(6)
        chosen = context.rng.permutation(6)
        bench.out(ids[chosen], slots, context.stream()).wait(SOON)
        for id_, slot in zip(ids[chosen].tolist(), slots.tolist(), strict=True):
            context.equal(bench.host.payload(slot).copy(), pages[id_ & 0xFFFFFFFF], f"a slot of a {order} pool")
        context.equal(bench.read(), pages, f"the {order} pool afterwards")


@case("swap", needs=_NEEDS)
def a_page_comes_back_into_another_block(context: Context) -> None:
    """out of one pool, into fresh blocks of another, in each order"""
    for order in context.device.capabilities.kv_layouts:
        bench = Bench.of(context, order)
        pages = bench.random()
        bench.write(pages)
        ids, slots = bench.committed(3), bench.slots(3)
        bench.out(ids, slots, context.stream()).wait(SOON)
        opened = bench.blocks.open(bytes(32), np.arange(100, 112, dtype=np.int32), limit=0, keep_free=0)
        context.check(opened is not None, "no three blocks are left")
        fresh = bench.blocks.table_blocks(opened[0]) if opened else ids
        bench.back(fresh, slots, context.stream()).wait(SOON)
        want = pages.copy()
        want[fresh & 0xFFFFFFFF] = pages[ids & 0xFFFFFFFF]
        context.equal(bench.read(), want, f"the {order} pool")


@case("swap", needs=(*_NEEDS, "gate"))
def a_transfer_keeps_its_blocks_until_its_copies_are_done(context: Context) -> None:
    """q1 = [gate, copies, event!]: the lease outlives the table"""
    bench = Bench.of(context, context.device.capabilities.kv_layouts[0])
    bench.write(bench.random())
    ids, stream = bench.committed(4), context.stream()
    gate = stream.gate()
    transfer = bench.out(ids, bench.slots(4), stream)
    context.check(not transfer.query(), "the transfer is done behind a shut gate")
    bench.blocks.poll()
    context.equal(bench.blocks.stats().leases, 1, "leases while the copies are queued")
    gate.open()
    transfer.wait(SOON)
    bench.blocks.poll()
    context.equal(bench.blocks.stats().leases, 0, "leases afterwards")


@case("swap", needs=(*_NEEDS, "gate"))
def a_transfer_waits_for_what_it_is_told_to(context: Context) -> None:
    """q1 = [gate, e!]     q2 = [e?, copies]"""
    bench = Bench.of(context, context.device.capabilities.kv_layouts[0])
    pages = bench.random()
    bench.write(pages)
    ids, slots, before, event = bench.committed(2), bench.slots(2), context.stream(), context.event()
    gate = before.gate()
    event.record(before)
    transfer = bench.out(ids, slots, context.stream(), after=event)
    context.check(not transfer.query(), "the transfer did not wait")
    gate.open()
    transfer.wait(SOON)
    context.equal(bench.host.payload(int(slots[0])).copy(), pages[int(ids[0]) & 0xFFFFFFFF], "the first slot")


@case("swap", needs=_NEEDS)
def a_block_given_twice_is_refused_and_nothing_is_held(context: Context) -> None:
    """InvalidArgument, no lease, no slot in use"""
    bench = Bench.of(context, context.device.capabilities.kv_layouts[0])
    ids, slots = bench.committed(2), bench.slots(2)
    with context.raises(InvalidArgument, "", "swapping one block into two slots"):
        bench.out(np.array([ids[0], ids[0]]), slots, context.stream())
    context.equal(bench.blocks.stats().leases, 0, "leases")
    bench.host.free(slots)
