"""The block pool as the scheduler and the transfers see it: typed verbs over the native pool (csrc/core).

::

    FREE ──open, grow──> PENDING ──commit_step──> COMMITTED ──last lease──> CACHED ──evicted──> FREE
                            └──────────── last lease ────────────────────────────────────────────^

    release(lease, after=event)   the event is complete ──> released
                                  it is not             ──> deferred list ──poll (each open, grow)──> released

Invariant: a block that a transfer may still touch is held by a lease; a lease ends once, after the work it covers. No
verb blocks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from accel import _core
from accel._core import Lease
from accel.errors import InvalidArgument

if TYPE_CHECKING:
    from accel._core import BoolArray, Int32Array, Int64Array

__all__ = ["MAX_BLOCK_SIZE", "BlockPool", "Completion", "Lease", "LeaseKind", "PoolStats"]


#: Tokens of a block: the native pool's limit (csrc/core/block_pool.h).
MAX_BLOCK_SIZE: Final = 1 << 16


class LeaseKind(Enum):
    """What a lease covers. Tables make REQUEST leases, steps make STEP leases; the others are for transfers."""

    REQUEST = "REQUEST"
    STEP = "STEP"
    SWAP = "SWAP"
    LOAD = "LOAD"
    STORE = "STORE"


class Completion(Protocol):
    """What `release(after=…)` needs of an event: ``accel.backend.Event`` has it."""

    def query(self) -> bool: ...


@dataclass(frozen=True)
class PoolStats:
    """Blocks by life, holders, and counters since the start.

    ``owned + cached + free == blocks`` at any time. `evictable` are the cached blocks that no leased block descends
    from; `draining` those that only steps hold: they come back when the steps end.
    """

    blocks: int
    free: int
    pending: int
    committed: int
    cached: int
    evictable: int
    draining: int
    owned: int
    tables: int
    steps: int
    leases: int
    allocations: int
    evictions: int
    commits: int
    duplicates: int
    hit_tokens: int
    queried_tokens: int
    abandoned_leases: int

    @property
    def available(self) -> int:
        """Blocks that open and grow can have now."""
        return self.free + self.evictable


class BlockPool:
    """Blocks of `block_size` tokens, the tables of requests, and the index of committed prefixes.

    Ids of blocks, tables and steps are stamped with a generation: a stale one raises InvalidArgument. Token arrays are
    int32, ids int64, all C-contiguous; anything else raises InvalidArgument. A call that raises has changed nothing.

    Args:
        blocks: 1 to 2**28.
        block_size: tokens in a block, 1 to 65536.
        deferred_limit: how many leases may wait for their events at a time.
        native: a pool to wrap instead of a new one.
    """

    def __init__(
        self, blocks: int, block_size: int, *, deferred_limit: int = 4096, native: _core.BlockPool | None = None
    ) -> None:
        if deferred_limit < 1:
            raise InvalidArgument(f"deferred_limit is {deferred_limit}; it must be 1 or more")
        self._native = _core.BlockPool(blocks, block_size) if native is None else native
        self._deferred: deque[tuple[Lease, Completion]] = deque()
        self._waiting: set[int] = set()  # id() of each deferred lease, which the list keeps alive
        self._deferred_limit = deferred_limit

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self._native.blocks

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self._native.block_size

    @property
    def deferred(self) -> int:
        """Leases that wait for their events."""
        return len(self._deferred)

    def match(self, root: bytes, tokens: Int32Array, limit: int) -> int:
        """How many leading full blocks of ``tokens[n]`` are committed under `root`, at most `limit`."""
        return self._native.match(root, tokens, limit)

    def open(self, root: bytes, tokens: Int32Array, *, limit: int, keep_free: int) -> tuple[int, int] | None:
        """Start a table that covers ``tokens[n]``: a committed prefix of at most `limit` blocks, then fresh blocks.

        Returns:
            (table, hit tokens), or None with nothing changed where fewer than `keep_free` blocks would stay available.
        """
        self.poll()
        return self._native.open(root, tokens, limit=limit, keep_free=keep_free)

    def grow(self, tables: Int64Array, ends: Int32Array) -> int:
        """Make each of ``tables[R]`` cover ``ends[R]`` tokens; returns how many leading ones were satisfied."""
        self.poll()
        return self._native.grow(tables, ends)

    def begin_step(self, tables: Int64Array, ends: Int32Array, out: Int32Array) -> int:
        """Lease all blocks of tokens ``[0, ends[r])`` for a step; write their indices to ``out[R, M]``, 0 behind them.

        A table has one row in a step. Returns the step's id.
        """
        return self._native.begin_step(tables, ends, out)

    def commit_step(self, step: int, alive: BoolArray, computed: Int32Array, tokens: Int32Array) -> int:
        """End a step whose output came back.

        A row that is alive appends ``tokens[r]`` (unless below 0) to its table; its full blocks below ``computed[r]``
        tokens enter the index. A row that is not alive only gives its leases back. Returns the number of commits.
        """
        return self._native.commit_step(step, alive, computed, tokens)

    def drop_step(self, step: int) -> None:
        """End a step that failed: nothing of it enters the index."""
        self._native.drop_step(step)

    def close_table(self, table: int) -> None:
        """Give a request's blocks back: what is committed stays cached, the rest is free once no step holds it."""
        self._native.close_table(table)

    def table_blocks(self, table: int) -> Int64Array:
        """The stamped ids of a table's blocks, in order."""
        return self._native.table_blocks(table)

    def table_tokens(self, table: int) -> Int32Array:
        """The tokens that a table knows, in order."""
        return self._native.table_tokens(table)

    def lease(self, ids: Int64Array, kind: LeaseKind) -> Lease:
        """Hold blocks for a transfer: SWAP and STORE on committed blocks, LOAD on blocks that are being written."""
        return self._native.lease(ids, kind.value)

    def release(self, lease: Lease, after: Completion | None = None) -> None:
        """End a lease, once `after` has completed: now, or at a later :meth:`poll`.

        Raises:
            InvalidArgument: the lease was released already or is waiting, or `deferred_limit` leases are waiting.
        """
        self._check_open(lease)
        if after is None or after.query():
            lease.release()
            return
        self._check_room()
        self._deferred.append((lease, after))
        self._waiting.add(id(lease))

    def check_release(self, lease: Lease) -> None:
        """Raise what ``release(lease, after=event)`` would raise now: for a transfer, before it queues anything."""
        self._check_open(lease)
        self._check_room()

    def _check_open(self, lease: Lease) -> None:
        if lease.released or id(lease) in self._waiting:
            raise InvalidArgument("the lease was released already", op="release")

    def _check_room(self) -> None:
        if len(self._deferred) >= self._deferred_limit and self.poll() == 0:
            raise InvalidArgument(
                f"{self._deferred_limit} leases are waiting for their events already",
                op="release",
                hint="poll() after the transfers have ended, or raise deferred_limit",
                limit=self._deferred_limit,
            )

    def poll(self) -> int:
        """Release the deferred leases whose events have completed; returns how many. Never blocks.

        Where an event's query() raises, its lease stays deferred: nobody knows yet whether the work has ended.
        """
        released = 0
        for _ in range(len(self._deferred)):
            lease, after = self._deferred[0]
            if after.query():
                self._deferred.popleft()
                self._waiting.discard(id(lease))
                lease.release()
                released += 1
            else:
                self._deferred.rotate(-1)
        return released

    def drop_cached(self) -> int:
        """Evict everything that can be evicted; returns how many blocks."""
        return self._native.drop_cached()

    def stats(self) -> PoolStats:
        """One coherent snapshot."""
        return PoolStats(**self._native.stats())

    def check(self) -> None:
        """Verify every invariant, O(blocks). Raises AccelError naming the block and what is wrong."""
        self._native.check()
