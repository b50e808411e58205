"""Slots for KV pages in host memory: where swap puts them, and what storage reads and writes.

::

    memfd, mapped once     | slot 0 | slot 1 | slot 2 | …          shared with another process by its descriptor

    slot                   | page: canonical record | trailer 64 | pad |       a multiple of 4 KiB
                             layout.page_bytes        trailer.py   to 4 KiB

    FREE ──allocate──> EMPTY ──written, or mark_full──> FULL ──free──> FREE
                         ^        a writer: nobody else    │   readers: any number, no writer
                         └────── a transfer starts to write┘
    a transfer failed ──> UNUSABLE until reset(stream), then EMPTY (it wrote) or FULL (it read)

A pool without trailers (``trailer=False``) is for pages that never leave this process: where a page is whole 4 KiB, its
slots have no gaps, and neighbours travel as one copy.

Invariant: a slot that a transfer may still touch is not handed out, freed, shown or unmapped. Ids are
``generation << 32 | index``; the generation rises at each allocation, so a stale id is never taken for a new one.
"""

from __future__ import annotations

import errno
import fcntl
import heapq
import mmap
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from accel import _core
from accel.backend import Device, HostRegistration, Stream, Support
from accel.cache.pages import KVLayout
from accel.cache.trailer import TRAILER_BYTES
from accel.errors import AccelError, InvalidArgument, OutOfMemory

if TYPE_CHECKING:
    from accel._core import Int64Array

    ByteArray = np.ndarray[Any, np.dtype[np.uint8]]

__all__ = ["PAD", "HostPool", "HostStats", "Pending", "Use"]

#: Slots begin and end at multiples of this: the unit of direct file access.
PAD = 4096
#: Drivers have failed on single registrations above 64 GiB; pieces of this size are far from it.
_REGISTRATION_BYTES = 16 << 30
_INDEX_MASK = (1 << 32) - 1
_MOST_SLOTS = 1 << 28


class Pending(Protocol):
    """What the pool knows of a transfer: ``accel.cache.swap.Transfer`` has it."""

    stream: Stream

    def query(self) -> bool:
        """True when it is over; it has then given its slots back."""


@dataclass(frozen=True)
class HostStats:
    """Slots by state and counters since the start. ``free + empty + full + unusable == slots`` at any time; `reading`
    and `writing` of them are in use by `transfers` that are not over."""

    slots: int
    free: int
    empty: int
    full: int
    unusable: int
    reading: int
    writing: int
    transfers: int
    allocations: int
    frees: int
    failures: int


@dataclass(slots=True)
class _Slot:
    generation: int = 0
    allocated: bool = False
    full: bool = False
    readers: int = 0
    writer: bool = False
    #: Failed transfers that touched it and whose stream was not reset since.
    failed: int = 0


@dataclass(eq=False)
class Use:
    """The slots that one transfer holds, by index. Made by :meth:`HostPool.begin`, given back once."""

    transfer: Pending
    indices: list[int]
    writes: bool
    #: Which of the slots were full before.
    before: list[bool]
    #: The stream was reset after this transfer was queued: a failure of it needs no further reset.
    reset: bool = field(default=False)


class HostPool:
    """`slots` slots for pages of `layout`. Usable from any thread.

    Args:
        device: whose copies reach the memory; it is registered there where the device supports that.
        layout: of the pages, in any order; a slot holds the canonical record (:meth:`KVLayout.canonical`).
        slots: 1 to 2**28.
        trailer: keep room for the trailer of a record.
        registration_bytes: most bytes that are registered in one piece (rounded to whole slots, one at least).

    Raises:
        InvalidArgument: a number out of range.
        OutOfMemory: the slots do not fit in the memory that is free.
        AccelError: the system refuses a memory file, or the device to register it; nothing stays registered.
    """

    def __init__(
        self,
        device: Device,
        layout: KVLayout,
        slots: int,
        *,
        trailer: bool = True,
        registration_bytes: int = _REGISTRATION_BYTES,
    ) -> None:
        if not 1 <= slots <= _MOST_SLOTS:
            raise InvalidArgument(f"slots is {slots}; a host pool has 1 to {_MOST_SLOTS}", slots=slots)
        if registration_bytes < 1:
            raise InvalidArgument(f"registration_bytes is {registration_bytes}; it must be 1 or more")
        self.device = device
        self.layout = layout.canonical()
        self.slots = slots
        self.page_bytes = layout.page_bytes
        self.has_trailer = trailer
        used = self.page_bytes + (TRAILER_BYTES if trailer else 0)
        #: Bytes from one slot to the next.
        self.slot_bytes = -(-used // PAD) * PAD
        #: Copies must not cross a multiple of this many slots: the border of two registrations.
        self.piece = max(1, registration_bytes // self.slot_bytes)
        self._fingerprint = self.layout.fingerprint()
        self._fd, mapped = _memory_file(self.nbytes)
        #: Held while states change; a transfer settles under it.
        self.lock = threading.RLock()
        self._states = [_Slot() for _ in range(slots)]
        self._free = list(range(slots))
        self._uses: list[Use] = []
        self._failed: list[Use] = []
        self._allocations = self._frees = self._failures = 0
        self._registrations: list[HostRegistration] = []
        try:
            self._memory: ByteArray | None = np.frombuffer(mapped, np.uint8)
            self._register(self._memory)
        except BaseException:
            self._memory = None
            os.close(self._fd)
            raise

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.slots * self.slot_bytes

    @property
    def fingerprint(self) -> str:
        """That of the records the slots hold."""
        return self._fingerprint

    @property
    def dense(self) -> bool:
        """True where the pages of neighbouring slots touch."""
        return self.slot_bytes == self.page_bytes

    @property
    def closed(self) -> bool:
        return self._memory is None

    @property
    def memory(self) -> ByteArray:
        """All slots as uint8 ``[slots * slot_bytes]``. For transfers; others take :meth:`payload`."""
        if self._memory is None:
            raise InvalidArgument("the host pool is closed")
        return self._memory

    def fileno(self) -> int:
        """The descriptor of the memory, for a process that shares it."""
        if self.closed:
            raise InvalidArgument("the host pool is closed")
        return self._fd

    def allocate(self, count: int) -> Int64Array | None:
        """`count` slots, the lowest first; None with nothing changed where fewer are free."""
        if count < 0:
            raise InvalidArgument(f"count is {count}; it must be 0 or more", op="allocate")
        with self.lock:
            _ = self.memory
            if count > len(self._free):
                return None
            taken = [heapq.heappop(self._free) for _ in range(count)]
            for index in taken:
                state = self._states[index]
                state.generation += 1
                state.allocated, state.full = True, False
            self._allocations += count
            return np.array([self._states[index].generation << 32 | index for index in taken], np.int64)

    def free(self, ids: Int64Array) -> None:
        """Give slots back.

        Raises:
            InvalidArgument: an id that is stale (freed already), given twice, in use by a transfer, or unusable until a
                stream is reset. Nothing is freed then.
        """
        with self.lock:
            indices = self._resolve(ids, "free")
            for index in indices:
                state = self._states[index]
                if state.readers or state.writer:
                    raise InvalidArgument(
                        f"slot {index} is in use by a transfer", op="free", hint="free it when the transfer is over"
                    )
                self._refuse_failed(index, "free")
            for index in indices:
                self._states[index].allocated = False
                heapq.heappush(self._free, index)
            self._frees += len(indices)

    def payload(self, slot: int) -> ByteArray:
        """The page of a slot, uint8 ``[page_bytes]``. Do not keep it beyond the slot's life.

        Raises:
            InvalidArgument: a stale id, a slot that a transfer is writing, or one that is unusable.
        """
        return self._part(slot, 0, self.page_bytes)

    def trailer(self, slot: int) -> ByteArray:
        """The trailer of a slot, uint8 ``[64]``. Raises as :meth:`payload`, and where the pool has no trailers."""
        if not self.has_trailer:
            raise InvalidArgument("the slots of this host pool have no trailer", hint="make it with trailer=True")
        return self._part(slot, self.page_bytes, self.page_bytes + TRAILER_BYTES)

    def record(self, slot: int) -> ByteArray:
        """The whole slot, uint8 ``[slot_bytes]``: what a file holds. Raises as :meth:`payload`."""
        return self._part(slot, 0, self.slot_bytes)

    def mark_full(self, ids: Int64Array) -> None:
        """Whoever wrote pages through :meth:`payload` says so; only a full slot may be swapped in."""
        with self.lock:
            indices = self._resolve(ids, "mark_full")
            for index in indices:
                self._refuse_writer(index, "mark_full")
                self._refuse_failed(index, "mark_full")
            for index in indices:
                self._states[index].full = True

    def is_full(self, slot: int) -> bool:
        """True when the slot holds a page, and nothing is writing to it."""
        with self.lock:
            state = self._states[self._resolve(np.array([slot], np.int64), "is_full")[0]]
            return state.full and not state.failed

    def poll(self) -> int:
        """Take note of transfers that are over; returns how many. Never blocks."""
        with self.lock:
            return sum(use.transfer.query() for use in list(self._uses))

    def reset(self, stream: Stream) -> None:
        """After a failure on `stream`: reset it, and make the slots of its failed transfers usable again. What a
        transfer should have written is empty then. Transfers that are still queued there are skipped, or over soon."""
        with self.lock:
            self.poll()
            stream.reset()
            for use in [*self._uses, *self._failed]:
                use.reset = use.reset or use.transfer.stream is stream
            for use in [use for use in self._failed if use.reset]:
                self._failed.remove(use)
                for index in use.indices:
                    self._states[index].failed -= 1

    def begin(self, transfer: Pending, ids: Int64Array, *, writes: bool) -> Use:
        """Hold slots for a transfer, which gives them back with :meth:`end`.

        Raises:
            InvalidArgument: an id that is stale or given twice; a slot that another transfer writes, or uses at all
                where this one writes; one that is unusable; to be read and not full. Nothing changes then.
        """
        op = "swap_out" if writes else "swap_in"
        with self.lock:
            indices = self._resolve(ids, op)
            for index in indices:
                state = self._states[index]
                self._refuse_failed(index, op)
                self._refuse_writer(index, op)
                if writes and state.readers:
                    raise InvalidArgument(
                        f"slot {index} is being read by a transfer", op=op, hint="wait until it is over"
                    )
                if not writes and not state.full:
                    raise InvalidArgument(f"slot {index} holds no page", op=op, hint="write one, then mark_full")
            use = Use(transfer, indices, writes, [self._states[index].full for index in indices])
            for index in indices:
                state = self._states[index]
                if writes:
                    state.writer, state.full = True, False
                else:
                    state.readers += 1
            self._uses.append(use)
            return use

    def end(self, use: Use, *, done: bool) -> None:
        """Give slots back: `done` when all was copied, else they are unusable until the stream is reset."""
        with self.lock:
            self._uses.remove(use)
            for index in use.indices:
                state = self._states[index]
                if use.writes:
                    state.writer, state.full = False, done
                else:
                    state.readers -= 1
                if not done and not use.reset:
                    state.failed += 1
            if not done:
                self._failures += 1
                if not use.reset:
                    self._failed.append(use)

    def cancel(self, use: Use) -> None:
        """Undo :meth:`begin` of a transfer that queued nothing."""
        with self.lock:
            self._uses.remove(use)
            for index, was in zip(use.indices, use.before, strict=True):
                state = self._states[index]
                if use.writes:
                    state.writer, state.full = False, was
                else:
                    state.readers -= 1

    def stats(self) -> HostStats:
        """One coherent snapshot, after a :meth:`poll`."""
        with self.lock:
            self.poll()
            held = [state for state in self._states if state.allocated]
            unusable = sum(state.failed > 0 for state in held)
            full = sum(state.full and not state.failed for state in held)
            return HostStats(
                slots=self.slots,
                free=len(self._free),
                empty=len(held) - full - unusable,
                full=full,
                unusable=unusable,
                reading=sum(state.readers > 0 for state in held),
                writing=sum(state.writer for state in held),
                transfers=len(self._uses),
                allocations=self._allocations,
                frees=self._frees,
                failures=self._failures,
            )

    def close(self, *, force: bool = False) -> None:
        """Unregister and unmap. Idempotent. A view that somebody still holds keeps the mapping, not the registration.

        Args:
            force: the device is closed or lost, so that nothing touches the memory any more; transfers are not asked.

        Raises:
            InvalidArgument: a transfer still uses slots; nothing is closed.
        """
        with self.lock:
            if self.closed:
                return
            if not force:
                self.poll()
                if self._uses:
                    raise InvalidArgument(
                        f"{len(self._uses)} transfers still use slots of the host pool",
                        op="close",
                        hint="synchronise their streams first; force=True only after the device was closed",
                        transfers=len(self._uses),
                    )
            self._memory = None
            self._uses.clear()
            self._failed.clear()
            os.close(self._fd)
            self._unregister()

    def __enter__(self) -> HostPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _register(self, memory: ByteArray) -> None:
        if self.device.capabilities.host_register is Support.NONE:
            return  # pageable memory works too; it is only slower
        step = self.piece * self.slot_bytes
        try:
            for start in range(0, self.nbytes, step):
                self._registrations.append(self.device.register_host(memory[start : start + step]))
        except BaseException:
            self._unregister()
            raise

    def _unregister(self) -> None:
        while self._registrations:
            self._registrations.pop().close()

    def _part(self, slot: int, start: int, stop: int) -> ByteArray:
        with self.lock:
            index = self._resolve(np.array([slot], np.int64), "payload")[0]
            self._refuse_writer(index, "payload")
            self._refuse_failed(index, "payload")
            base = index * self.slot_bytes
            return self.memory[base + start : base + stop]

    def _resolve(self, ids: Int64Array, op: str) -> list[int]:
        _ = self.memory
        if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
            raise InvalidArgument("slots must be a one-dimensional int64 array of ids", op=op)
        seen: set[int] = set()
        for i, value in enumerate(ids.tolist()):
            index = value & _INDEX_MASK
            if value < 0 or index >= self.slots:
                raise InvalidArgument(f"slots[{i}] is {value}, which never was a slot", op=op, limit=self.slots)
            state = self._states[index]
            if not state.allocated or state.generation != value >> 32:
                raise InvalidArgument(f"slots[{i}] is {value}, which is stale: it was freed already", op=op)
            if index in seen:
                raise InvalidArgument(f"slots[{i}] names slot {index} twice", op=op)
            seen.add(index)
        if any(self._states[index].readers or self._states[index].writer for index in seen):
            self.poll()  # they may be over; where none is in use, nothing is asked of a device
        return [value & _INDEX_MASK for value in ids.tolist()]

    def _refuse_writer(self, index: int, op: str) -> None:
        if self._states[index].writer:
            raise InvalidArgument(f"slot {index} is being written by a transfer", op=op, hint="wait until it is over")

    def _refuse_failed(self, index: int, op: str) -> None:
        if self._states[index].failed:
            raise InvalidArgument(
                f"slot {index} is unusable: a transfer that touched it failed",
                op=op,
                hint="reset(stream) of the host pool, with the stream that failed",
            )


def _memory_file(nbytes: int) -> tuple[int, mmap.mmap]:
    """A file of `nbytes` without a name, all of it present and of a size that nobody can change; and its mapping."""
    host = _core.host_runtime().open(0, "host")
    try:
        free, total = host.memory()
    finally:
        host.close()
    if nbytes > free:
        raise _too_large(nbytes, free, total)
    fd = -1
    try:
        fd = os.memfd_create("accel-host-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # Present from the start: a page that cannot be had later would be a signal, not an error.
        os.posix_fallocate(fd, 0, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd, mmap.mmap(fd, nbytes)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        if error.errno in (errno.ENOMEM, errno.ENOSPC, errno.EFBIG):
            raise _too_large(nbytes, free, total) from error
        raise AccelError(f"the memory of a host pool cannot be made: {error}", op="host_pool") from error


def _too_large(nbytes: int, free: int, total: int) -> OutOfMemory:
    return OutOfMemory(
        f"a host pool of {nbytes} bytes does not fit: {free} of {total} bytes are free",
        hint="use fewer slots",
        requested=nbytes,
        free=free,
        total=total,
    )
