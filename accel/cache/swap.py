"""Moving KV pages between the device's pool and slots on the host, under a lease and in the order of a stream.

::

    swap_out   compute ──after──> stream: [wait after | copies | done | event!]      lease SWAP, blocks COMMITTED
    swap_in                       stream: [wait after | copies | done | event!] ──event──> compute.wait
                                                                                     lease LOAD, blocks PENDING

    blocks   7  8  9  |  3  |  12 13          a run: neighbours here and there
    slots    0  1  2  |  3  |   5  6          3 runs

    page_first    one copy a run where neighbouring slots touch (HostPool.dense), else one a page; one batch in all
    layer_first   pages_gather / pages_scatter: on a host-executed device straight into and out of slots; elsewhere
                  through `Staging` on the device, a chunk at a time

    Transfer:  RUNNING ──event complete──> DONE     all copies ran: `done`, queued behind them, ran too
                                     └───> FAILED   it was skipped, as is all behind a failure

Either order leaves the same bytes in a slot: the page's canonical record. `after` is what must have happened before:
the event behind the compute that wrote the pages, or behind the last use of what is overwritten. Compute must wait for
the event of a swap_in before it reads, and the host must see it DONE before it commits the blocks.

Invariant: the lease ends by ``release(after=event)``, so not before the last copy; a slot is given back not before it
either. What a call refuses has queued nothing, holds no slot, and leaves a lease it was given with the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.backend import DEFAULT_TIMEOUT, CopyRun, Device, Event, Stream, Support
from accel.cache.host_pool import HostPool, Use
from accel.cache.pages import KVLayout, KVPool
from accel.cache.pool import BlockPool, Lease, LeaseKind
from accel.errors import AccelError, AsyncFailure, InvalidArgument, Unsupported

if TYPE_CHECKING:
    from accel._core import Int64Array

__all__ = ["Run", "Staging", "Transfer", "TransferState", "plan_runs", "swap_in", "swap_out"]

_INDEX_MASK = (1 << 32) - 1


class TransferState(Enum):
    """How far a transfer is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Run:
    """Pages `block`, `block` + 1, … `block` + `count` - 1 and the slots from `slot` on."""

    block: int
    slot: int
    count: int


def plan_runs(blocks: Sequence[int], slots: Sequence[int], *, piece: int) -> list[Run]:
    """Join pairs (block, slot) that follow each other on both sides into runs.

    No run crosses a multiple of `piece` slots. The order of the pairs is free: they are taken by rising block.
    """
    runs: list[Run] = []
    for block, slot in sorted(zip(blocks, slots, strict=True)):
        last = runs[-1] if runs else None
        if (
            last is not None
            and (block, slot) == (last.block + last.count, last.slot + last.count)
            and slot % piece != 0
        ):
            runs[-1] = Run(last.block, last.slot, last.count + 1)
        else:
            runs.append(Run(block, slot, 1))
    return runs


class Staging:
    """Room for `pages` records on a device that is not host-executed and holds its pool layer_first. Made once, for a
    temporary would go back to the framework while a stream still uses it.

    Raises:
        InvalidArgument: fewer than 1 page.
        OutOfMemory: it does not fit.
    """

    def __init__(self, device: Device, layout: KVLayout, pages: int) -> None:
        if pages < 1:
            raise InvalidArgument(f"pages of a staging area is {pages}; it must be 1 or more", pages=pages)
        self.pages = pages
        self.fingerprint = layout.canonical().fingerprint()
        self.tensor = device.empty((pages, layout.page_bytes), "uint8")
        self.view = device.view(self.tensor)
        #: Behind the newest use; the next one, on whatever stream, waits for it.
        self.used = device.event()


class _Outcome:
    """Written by the stream. Keeps the memory that queued copies touch, and no device, stream or event: it may be the
    last to go, on a thread of the device."""

    def __init__(self, *memory: Any) -> None:
        self.done = False
        self._memory = memory

    def mark(self) -> None:
        self.done = True


class Transfer:
    """One swap on its way. `event` is complete when nothing of it touches pages or slots any more, done or failed.

    Attributes:
        op: "swap_out" or "swap_in".
        pages, runs, copies: pages moved; runs they form; copies or op calls that were queued.
    """

    def __init__(self, device: Device, op: str, stream: Stream, host: HostPool, outcome: _Outcome, pages: int) -> None:
        self.op = op
        self.stream = stream
        self.event: Event = device.event()
        self.pages = pages
        self.runs = self.copies = 0
        self._device = device.name
        self._host = host
        self._outcome = outcome
        self._use: Use | None = None
        self._lease: Lease | None = None
        self._state = TransferState.RUNNING
        #: The event stands behind all that was queued. Where it never could be put there, the transfer stays RUNNING
        #: and keeps all it holds: nobody knows when the work ends.
        self._fenced = False
        self._cause: AccelError | None = None

    @property
    def state(self) -> TransferState:
        """As of now; never blocks."""
        self.query()
        return self._state

    def query(self) -> bool:
        """True when it is over, done or failed; its slots are given back then. Never blocks."""
        if self._state is TransferState.RUNNING and self._fenced and self.event.query():
            self._settle()
        return self._state is not TransferState.RUNNING

    def result(self) -> None:
        """Raise if it failed.

        Raises:
            AsyncFailure: a copy failed, or was skipped behind a failure; its cause is the stream's error, unless
                somebody else took that.
            InvalidArgument: it is still running.
        """
        if not self.query():
            raise InvalidArgument("the transfer is still running", device=self._device, op=self.op, hint="wait()")
        if self._state is TransferState.FAILED:
            raise AsyncFailure(
                f"a transfer of {self.pages} pages failed",
                device=self._device,
                op=self.op,
                hint="reset(stream) of the host pool, then compute or load these pages anew",
                pages=self.pages,
            ) from self._cause

    def wait(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Block until it is over. Raises Timeout after `timeout` seconds, and what :meth:`result` raises."""
        self.event.synchronize(timeout)
        self.result()

    def _settle(self) -> None:
        with self._host.lock:
            if self._state is not TransferState.RUNNING:
                return  # another thread was faster
            done = self._outcome.done
            if not done:
                try:
                    self.stream.query()  # what went wrong is told once; keep it for result()
                except AccelError as error:
                    self._cause = error
            self._state = TransferState.DONE if done else TransferState.FAILED
            self._lease = None
            if self._use is not None:
                self._host.end(self._use, done=done)
                self._use = None


def swap_out(
    device: Device,
    pool: KVPool,
    blocks: BlockPool,
    pages: Int64Array | Lease,
    host: HostPool,
    slots: Int64Array,
    stream: Stream,
    *,
    after: Event | None = None,
    staging: Staging | None = None,
) -> Transfer:
    """Copy committed pages into slots. To be called where the verbs of `blocks` are: on its owner's thread.

    Args:
        pages: stamped ids of blocks, or a SWAP lease on them, which the transfer takes over.
        slots: ids of `host`, as many, in the same order; each is full when the transfer is DONE.
        after: the event behind the compute that wrote the pages.
        staging: needed for a layer_first pool on a device that is not host-executed.

    Raises:
        InvalidArgument: a block or slot that is stale, out of range or given twice, of the wrong life or in use;
            unequal numbers; another layout; a stream of another device. Nothing was queued, no lease is held.
        Unsupported: the device lacks host_call. Likewise.
        AccelError: the device failed while the transfer was being queued. What was queued keeps lease and slots until
            it has ended; the slots are then unusable until ``host.reset(stream)``.
    """
    return _swap(LeaseKind.SWAP, device, pool, blocks, pages, host, slots, stream, after, staging)


def swap_in(
    device: Device,
    pool: KVPool,
    blocks: BlockPool,
    pages: Int64Array | Lease,
    host: HostPool,
    slots: Int64Array,
    stream: Stream,
    *,
    after: Event | None = None,
    staging: Staging | None = None,
) -> Transfer:
    """Copy full slots into pending pages; as :func:`swap_out` otherwise, with a LOAD lease.

    Compute waits for the event before it reads the pages. They may be committed once :meth:`Transfer.result` raises
    nothing; after a failure their content is undefined, and the slots still hold theirs.
    """
    return _swap(LeaseKind.LOAD, device, pool, blocks, pages, host, slots, stream, after, staging)


def _swap(
    kind: LeaseKind,
    device: Device,
    pool: KVPool,
    blocks: BlockPool,
    pages: Int64Array | Lease,
    host: HostPool,
    slots: Int64Array,
    stream: Stream,
    after: Event | None,
    staging: Staging | None,
) -> Transfer:
    op = "swap_out" if kind is LeaseKind.SWAP else "swap_in"
    _check_layouts(op, pool, blocks, host, staging)
    staging = _check_path(op, device, pool, staging)
    ids = pages.blocks if isinstance(pages, Lease) else pages
    indices = _check_ids(op, ids, slots, pool.blocks)
    outcome = _Outcome(host.memory, pool.tensor, staging.tensor if staging is not None else None)
    transfer = Transfer(device, op, stream, host, outcome, len(indices))
    # Harmless, and refuses a stream of another device or a closed device before anything is held.
    transfer.event.record(stream)
    use = host.begin(transfer, slots, writes=kind is LeaseKind.SWAP)
    try:
        lease = _take_lease(op, kind, blocks, pages, ids)
    except BaseException:
        host.cancel(use)
        raise
    queue = _Queue(device, pool, host, staging, stream, outs=kind is LeaseKind.SWAP)
    try:
        if after is not None:
            stream.wait(after)
        queue.move(indices, use.indices)
        queue.call(stream.host_call, outcome.mark)
        transfer.event.record(stream)
    except BaseException:
        _give_up(transfer, queue, host, use, blocks, lease, own=lease is not pages)
        raise
    transfer.runs, transfer.copies = queue.runs, queue.copies
    transfer._use, transfer._lease = use, lease
    transfer._fenced = True
    blocks.release(lease, after=transfer.event)
    return transfer


def _give_up(
    transfer: Transfer, queue: _Queue, host: HostPool, use: Use, blocks: BlockPool, lease: Lease, *, own: bool
) -> None:
    """After an error in the middle: undo what queued nothing; else hold all until what was queued has ended."""
    if not queue.queued:
        host.cancel(use)
        if own:
            blocks.release(lease)
        return
    transfer._use, transfer._lease = use, lease
    transfer._outcome = _Outcome()  # not done, whatever still runs
    transfer.event.record(transfer.stream)
    transfer._fenced = True
    blocks.release(lease, after=transfer.event)


def _check_layouts(op: str, pool: KVPool, blocks: BlockPool, host: HostPool, staging: Staging | None) -> None:
    wanted = pool.layout.canonical().fingerprint()
    for what, found in (("host pool", host.fingerprint), ("staging", staging.fingerprint if staging else wanted)):
        if found != wanted:
            raise InvalidArgument(
                f"the records of the {what} have layout {found[:16]}; those of the KV pool have {wanted[:16]}",
                op=op,
                hint="make both from one KVLayout",
            )
    if (blocks.blocks, blocks.block_size) != (pool.blocks, pool.layout.block_size):
        raise InvalidArgument(
            f"the block pool has {blocks.blocks} blocks of {blocks.block_size} tokens; "
            f"the KV pool has {pool.blocks} of {pool.layout.block_size}",
            op=op,
        )


def _check_path(op: str, device: Device, pool: KVPool, staging: Staging | None) -> Staging | None:
    capabilities = device.capabilities
    if capabilities.host_call is Support.NONE:
        raise Unsupported("host_call is not available here", device=device.name, op=op, hint="recompute instead")
    if pool.layout.order == "page_first":
        return None
    if staging is None and not capabilities.host_executed:
        raise InvalidArgument(
            "a layer_first pool on a device of its own memory needs a staging area",
            device=device.name,
            op=op,
            hint="make a Staging once and pass it, or use page_first",
        )
    return staging


def _check_ids(op: str, ids: Int64Array, slots: Int64Array, limit: int) -> list[int]:
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
        raise InvalidArgument("blocks must be a one-dimensional int64 array of ids, or a lease", op=op)
    if len(ids) != np.size(slots) or len(ids) == 0:
        raise InvalidArgument(
            f"there are {len(ids)} blocks and {np.size(slots)} slots; as many are needed, 1 or more", op=op
        )
    indices = [value & _INDEX_MASK for value in ids.tolist()]
    seen: set[int] = set()
    for i, index in enumerate(indices):
        if index >= limit:
            raise InvalidArgument(f"blocks[{i}] is block {index}; the KV pool has {limit}", op=op, limit=limit)
        if index in seen:
            raise InvalidArgument(f"blocks[{i}] names block {index} twice", op=op)
        seen.add(index)
    return indices


def _take_lease(op: str, kind: LeaseKind, blocks: BlockPool, pages: Int64Array | Lease, ids: Int64Array) -> Lease:
    """A lease on `ids`, for which ``release(after=…)`` will find room."""
    if isinstance(pages, Lease) and pages.kind != kind.value:
        raise InvalidArgument(f"the lease is of kind {pages.kind}; {op} needs {kind.value}", op=op)
    if isinstance(pages, Lease):
        blocks.check_release(pages)
    lease = blocks.lease(np.ascontiguousarray(ids), kind)  # also where one was given: are these its blocks, and alive?
    if isinstance(pages, Lease):
        blocks.release(lease)
        return pages
    try:
        blocks.check_release(lease)
    except BaseException:
        lease.release()
        raise
    return lease


class _Queue:
    """Queues the copies of one transfer, and knows whether any was."""

    def __init__(
        self, device: Device, pool: KVPool, host: HostPool, staging: Staging | None, stream: Stream, *, outs: bool
    ) -> None:
        self._device = device
        self._pool = pool
        self._host = host
        self._staging = staging
        self._stream = stream
        self._outs = outs
        self.queued = False
        self.runs = self.copies = 0

    def call(self, fn: Callable[..., None], *args: Any) -> None:
        """Queue something. InvalidArgument of the first one queued nothing; of any other error nobody knows."""
        try:
            fn(*args)
        except InvalidArgument:
            raise
        except BaseException:
            self.queued = True
            raise
        self.queued = True

    def move(self, blocks: list[int], slots: list[int]) -> None:
        """Queue all copies, in rising order of blocks."""
        runs = plan_runs(blocks, slots, piece=self._host.piece)
        self.runs = len(runs)
        if self._pool.layout.order == "page_first":
            self._copy(self._pool.view, runs)
        elif self._staging is None:
            self._through_host(blocks, slots)
        else:
            self._through_staging(self._staging, runs)

    def _copy(self, pages: Any, runs: list[Run]) -> None:
        """One batch between `pages`, dense on the device, and slots."""
        size, stride = self._host.page_bytes, self._host.slot_bytes
        whole = runs if self._host.dense else _single(runs)
        memory = self._device.view(self._host.memory)  # read once, not once a copy
        here = [(run.block * size, run.slot * stride, run.count * size) for run in whole]
        if self._outs:
            copies = [CopyRun(memory, slot, pages, page, nbytes) for page, slot, nbytes in here]
        else:
            copies = [CopyRun(pages, page, memory, slot, nbytes) for page, slot, nbytes in here]
        self.call(self._device.copy_batch, copies, self._stream)
        self.copies += len(copies)

    def _through_host(self, blocks: list[int], slots: list[int]) -> None:
        """The op reads and writes slots itself: one call for neighbouring slots that touch, else one a page."""
        size, stride = self._host.page_bytes, self._host.slot_bytes
        pairs = sorted(zip(slots, blocks, strict=True))
        start = 0
        for end in range(1, len(pairs) + 1):
            if end < len(pairs) and self._host.dense and pairs[end][0] == pairs[end - 1][0] + 1:
                continue
            count, first = end - start, pairs[start][0] * stride
            rows = self._host.memory[first : first + count * size].reshape(count, size)
            self._op(rows, [block for _, block in pairs[start:end]])
            start = end

    def _through_staging(self, staging: Staging, runs: list[Run]) -> None:
        """Chunks of `staging.pages`; within the stream one chunk follows the other, so that each may use all of it."""
        self._stream.wait(staging.used)
        pages = _single(runs)
        try:
            for start in range(0, len(pages), staging.pages):
                chunk = pages[start : start + staging.pages]
                blocks = [page.block for page in chunk]
                staged = plan_runs(range(len(chunk)), [page.slot for page in chunk], piece=self._host.piece)
                rows = staging.view.narrow(0, 0, len(chunk))
                if self._outs:
                    self._op(rows, blocks)
                    self._copy(staging.view, staged)
                else:
                    self._copy(staging.view, staged)
                    self._op(rows, blocks)
        finally:
            staging.used.record(self._stream)

    def _op(self, rows: Any, blocks: list[int]) -> None:
        ids = np.array(blocks, np.int32)
        ops, stream, view = self._device.ops, self._stream, self._pool.view
        if self._outs:
            self.call(ops.pages_gather, stream, rows, view, ids)
        else:
            self.call(ops.pages_scatter, stream, view, rows, ids)
        self.copies += 1


def _single(runs: list[Run]) -> list[Run]:
    return [Run(run.block + i, run.slot + i, 1) for run in runs for i in range(run.count)]
