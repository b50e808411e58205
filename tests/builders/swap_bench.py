"""A KV pool, a block pool and a host pool of one layout, and devices that fail where a test wants it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from accel import Device
from accel.backend import CopyRun, Event, HostRegistration, Stream
from accel.cache.host_pool import HostPool
from accel.cache.pages import KVLayout, KVPool
from accel.cache.pool import BlockPool, Lease
from accel.cache.swap import Staging, Transfer, swap_in, swap_out
from accel.errors import DeviceLost

ROOT = bytes(32)
#: Pages of a quarter of 4 KiB: slots have gaps, with a trailer or without.
LAYOUT = KVLayout(layers=2, kv_heads=2, head_dim=8, block_size=4)
#: Pages of 4 KiB: slots without trailers touch.
DENSE = KVLayout(layers=4, kv_heads=2, head_dim=16, block_size=4)
SOON = 30.0


def fail_late() -> None:
    raise ValueError("made to fail on the stream")


class FaultyDevice:
    """`device`, whose n-th call (from 0) of one of `broken` raises DeviceLost, or with `late` is taken and fails on its
    stream; `changes` replace capabilities."""

    def __init__(
        self, device: Device, broken: Sequence[str] = (), nth: int = 0, late: bool = False, **changes: Any
    ) -> None:
        self._late = late
        self._device = device
        self._broken = broken
        self._left = nth
        self.capabilities = replace(device.capabilities, **changes)
        self.registered = 0
        self.ops = self

    def __getattr__(self, name: str) -> Any:
        where = self._device.ops if name.startswith("pages_") else self._device
        return self._counted(name, getattr(where, name))

    def _counted(self, name: str, call: Any) -> Any:
        if name not in self._broken:
            return call

        def counted(*args: Any) -> Any:
            self._left -= 1
            if self._left < 0 and self._late:
                next(arg for arg in args if isinstance(arg, Stream)).host_call(fail_late)
                return None
            if self._left < 0:
                raise DeviceLost(f"{name} was made to fail", op=name)
            return call(*args)

        return counted

    def copy_batch(self, runs: Sequence[CopyRun], stream: Stream) -> None:
        self._counted("copy_batch", self._device.copy_batch)(runs, stream)

    def event(self) -> Any:
        made = self._device.event()
        return _FaultyEvent(self, made) if "record" in self._broken else made

    def register_host(self, buffer: Any) -> HostRegistration:
        registration = self._counted("register_host", self._device.register_host)(buffer)
        self.registered += 1
        return _Counted(self, registration)


class _FaultyEvent:
    """An event whose n-th record on its device fails."""

    def __init__(self, device: FaultyDevice, inner: Event) -> None:
        self.record = device._counted("record", inner.record)
        self.query = inner.query
        self.synchronize = inner.synchronize


class _Counted(HostRegistration):
    """A registration that its device counts."""

    def __init__(self, device: FaultyDevice, inner: HostRegistration) -> None:
        self._device = device
        self._inner = inner

    def close(self) -> None:
        self._device.registered -= 1
        self._inner.close()


def int64(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


class Bench:
    """`count` blocks on the device and `slots` on the host. Each page's bytes are random and its own."""

    def __init__(
        self,
        device: Any,
        layout: KVLayout = LAYOUT,
        *,
        count: int = 8,
        slots: int = 8,
        trailer: bool = True,
        staging: int = 0,
        host: HostPool | None = None,
    ) -> None:
        self.device = device
        self.kv = KVPool(device, layout, count)
        self.blocks = BlockPool(count, layout.block_size)
        self.host = HostPool(device, layout, slots, trailer=trailer) if host is None else host
        self.staging = Staging(device, layout, staging) if staging else None
        self.stream: Stream = device.stream()
        self.chance = np.random.default_rng(7)
        self.write(self.chance.integers(0, 256, (count, layout.page_bytes), np.uint8))

    def pages(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Records of all pages ``[count, page_bytes]``, by NumPy alone."""
        whole = np.ascontiguousarray(self.kv.view.numpy())
        return whole.reshape(len(whole), -1).view(np.uint8)

    def write(self, pages: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        view = self.kv.view.numpy()
        view[...] = np.ascontiguousarray(pages).view(view.dtype).reshape(view.shape)

    def tokens(self, blocks: int, start: int = 0) -> np.ndarray[Any, np.dtype[np.int32]]:
        size = self.blocks.block_size
        return np.arange(start, start + blocks * size, dtype=np.int32)

    def pending(self, blocks: int, start: int = 0) -> tuple[int, Any]:
        """A table of fresh blocks: (table, stamped ids)."""
        opened = self.blocks.open(ROOT, self.tokens(blocks, start), limit=0, keep_free=0)
        assert opened is not None
        return opened[0], self.blocks.table_blocks(opened[0])

    def commit(self, table: int) -> None:
        count = len(self.blocks.table_blocks(table))
        ends = np.array([count * self.blocks.block_size], np.int32)
        step = self.blocks.begin_step(int64(table), ends, np.empty((1, count), np.int32))
        self.blocks.commit_step(step, np.ones(1, np.bool_), ends, np.array([-1], np.int32))

    def committed(self, blocks: int, start: int = 0) -> tuple[int, Any]:
        table, ids = self.pending(blocks, start)
        self.commit(table)
        return table, ids

    def take(self, count: int) -> Any:
        taken = self.host.allocate(count)
        assert taken is not None
        return taken

    def fill(self, slots: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Random pages into `slots`, as storage does it."""
        pages = self.chance.integers(0, 256, (len(slots), self.host.page_bytes), np.uint8)
        for slot, page in zip(slots.tolist(), pages, strict=True):
            self.host.payload(slot)[...] = page
        self.host.mark_full(slots)
        return pages

    def out(self, ids: Any, slots: Any, after: Event | None = None, stream: Stream | None = None) -> Transfer:
        return self._move(swap_out, ids, slots, after, stream)

    def back(self, ids: Any, slots: Any, after: Event | None = None, stream: Stream | None = None) -> Transfer:
        return self._move(swap_in, ids, slots, after, stream)

    def _move(
        self, swap: Callable[..., Transfer], ids: Any | Lease, slots: Any, after: Event | None, stream: Stream | None
    ) -> Transfer:
        queue = self.stream if stream is None else stream
        return swap(self.device, self.kv, self.blocks, ids, self.host, slots, queue, after=after, staging=self.staging)

    def snapshot(self) -> tuple[Any, ...]:
        """All that a refused call must leave as it is."""
        return self.blocks.stats(), self.blocks.deferred, self.host.stats(), self.pages().tobytes()


def index(ids: Any) -> list[int]:
    return [int(value) & (1 << 32) - 1 for value in ids]


def settled(bench: Bench) -> None:
    """Counters that must be zero when nothing runs."""
    bench.blocks.poll()
    stats, host = bench.blocks.stats(), bench.host.stats()
    assert (stats.leases, bench.blocks.deferred, stats.abandoned_leases) == (0, 0, 0)
    assert (host.transfers, host.reading, host.writing, host.unusable) == (0, 0, 0, 0)
    assert host.free + host.empty + host.full + host.unusable == host.slots
