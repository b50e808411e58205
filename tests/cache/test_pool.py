"""Each rule of the block pool by itself; test_pool_machine.py has their combinations."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from accel import _core
from accel.cache.pool import BlockPool, Lease, LeaseKind, PoolStats
from accel.errors import AccelError, InvalidArgument

ROOT, OTHER = bytes(32), bytes(range(32))
SIZE = 4


def int32(*values: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def int64(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


def flags(*values: bool) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array(values, np.bool_)


def prompt(blocks: int, start: int = 0) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.arange(start, start + blocks * SIZE, dtype=np.int32)


class Driver:
    """The pool with shorthands for one request."""

    def __init__(self, blocks: int) -> None:
        self.pool = BlockPool(blocks, SIZE)

    def open(self, tokens: Any, root: bytes = ROOT, limit: int = 100) -> int:
        opened = self.pool.open(root, tokens, limit=limit, keep_free=0)
        assert opened is not None
        return opened[0]

    def begin(self, *tables: int) -> int:
        ends = [len(self.pool.table_blocks(table)) * SIZE for table in tables]
        out = np.empty((len(tables), 16), np.int32)
        return self.pool.begin_step(int64(*tables), int32(*ends), out)

    def finish(self, step: int, *computed: int) -> int:
        rows = len(computed)
        return self.pool.commit_step(step, flags(*[True] * rows), int32(*computed), int32(*[-1] * rows))

    def run(self, tokens: Any, root: bytes = ROOT) -> int:
        """Open a table and commit all of it."""
        table = self.open(tokens, root)
        self.finish(self.begin(table), len(tokens))
        return table

    def cache(self, tokens: Any, root: bytes = ROOT) -> list[int]:
        """Blocks of a request that has come and gone."""
        table = self.run(tokens, root)
        ids: list[int] = self.pool.table_blocks(table).tolist()
        self.pool.close_table(table)
        return ids

    @property
    def stats(self) -> PoolStats:
        return self.pool.stats()

    def lives(self) -> tuple[int, int, int, int]:
        s = self.stats
        return s.free, s.pending, s.committed, s.cached


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver(8)
    yield made
    made.pool.check()


def test_a_block_goes_from_free_over_pending_and_committed_to_cached_and_back(driver: Driver) -> None:
    assert driver.lives() == (8, 0, 0, 0)
    table = driver.open(prompt(2))
    assert driver.lives() == (6, 2, 0, 0)
    step = driver.begin(table)
    assert driver.pool.match(ROOT, prompt(2), 9) == 0, "what is being written is not matched"
    assert driver.finish(step, 8) == 2
    assert driver.lives() == (6, 0, 2, 0)
    assert driver.pool.match(ROOT, prompt(2), 9) == 2
    driver.pool.close_table(table)
    assert driver.lives() == (6, 0, 0, 2)
    assert driver.pool.drop_cached() == 2
    assert driver.lives() == (8, 0, 0, 0)


def test_fresh_blocks_come_lowest_first_and_ids_carry_a_generation(driver: Driver) -> None:
    first = driver.open(prompt(3))
    assert driver.pool.table_blocks(first).tolist() == [1 << 32, 1 << 32 | 1, 1 << 32 | 2]
    driver.pool.close_table(first)
    assert driver.pool.table_blocks(driver.open(prompt(2))).tolist() == [2 << 32, 2 << 32 | 1]


def test_only_full_blocks_that_were_computed_are_committed(driver: Driver) -> None:
    table = driver.open(np.arange(10, dtype=np.int32))
    assert driver.finish(driver.begin(table), 7) == 1
    assert driver.finish(driver.begin(table), 10) == 1
    assert driver.lives() == (5, 1, 2, 0)


def test_a_prefix_is_found_up_to_the_limit_and_only_under_its_root(driver: Driver) -> None:
    driver.cache(prompt(3))
    before = driver.stats
    assert [driver.pool.match(ROOT, prompt(3), limit) for limit in (0, 1, 2, 3, 9)] == [0, 1, 2, 3, 3]
    assert driver.pool.match(ROOT, prompt(3)[:11], 9) == 2, "a block that is not full is not looked up"
    assert driver.pool.match(OTHER, prompt(3), 9) == 0
    assert driver.pool.match(ROOT, prompt(3, start=1), 9) == 0
    assert driver.stats == before, "match changes nothing"


def test_open_takes_the_prefix_and_counts_the_hit_once_admitted(driver: Driver) -> None:
    cached = driver.cache(prompt(3))
    assert driver.pool.open(ROOT, prompt(8), limit=9, keep_free=1) is None
    assert driver.stats.hit_tokens == 0
    opened = driver.pool.open(ROOT, prompt(4), limit=2, keep_free=0)
    assert opened is not None
    assert opened[1] == 8
    assert driver.pool.table_blocks(opened[0]).tolist()[:2] == cached[:2]
    assert driver.stats.hit_tokens == 8
    assert driver.stats.queried_tokens == 12 + 16


@pytest.mark.parametrize("keep_free", range(5))
def test_open_leaves_as_many_blocks_as_asked_or_changes_nothing(driver: Driver, keep_free: int) -> None:
    driver.cache(prompt(3))
    before = driver.stats
    # 8 available; two hits that nobody uses and three fresh blocks leave 3.
    opened = driver.pool.open(ROOT, prompt(5), limit=2, keep_free=keep_free)
    assert (opened is not None) == (keep_free <= 3)
    if opened is None:
        assert driver.stats == before
    else:
        assert driver.stats.available == 3


def test_a_hit_that_a_request_uses_already_costs_nothing(driver: Driver) -> None:
    driver.run(prompt(6))
    assert driver.pool.open(ROOT, prompt(6), limit=9, keep_free=2) is not None
    assert driver.pool.open(ROOT, prompt(6), limit=9, keep_free=3) is None


def test_a_prompt_longer_than_the_pool_is_never_admitted(driver: Driver) -> None:
    assert driver.pool.open(ROOT, prompt(9), limit=0, keep_free=0) is None
    assert driver.lives() == (8, 0, 0, 0)


def test_grow_satisfies_tables_in_order_and_stops_at_the_first_that_does_not_fit(driver: Driver) -> None:
    a, b, c = (driver.open(prompt(1, start)) for start in (0, 100, 200))
    assert driver.pool.grow(int64(a, b, c), int32(12, 20, 5)) == 1
    assert [len(driver.pool.table_blocks(table)) for table in (a, b, c)] == [3, 1, 1]
    assert driver.pool.grow(int64(a, b, c), int32(12, 5, 5)) == 3
    assert driver.stats.free == 1
    assert driver.pool.grow(int64(a), int32(0)) == 1, "a table never shrinks"
    assert len(driver.pool.table_blocks(a)) == 3


def test_a_step_writes_block_indices_and_fills_the_rest_with_zero(driver: Driver) -> None:
    a, b = driver.open(prompt(3)), driver.open(prompt(2, 100))
    out = np.full((2, 4), 77, np.int32)
    driver.pool.begin_step(int64(b, a), int32(8, 5), out)
    assert out.tolist() == [[3, 4, 0, 0], [0, 1, 0, 0]]
    assert driver.stats.draining == 0


def test_a_step_keeps_the_blocks_of_a_table_that_was_closed(driver: Driver) -> None:
    table = driver.open(prompt(3))
    step = driver.begin(table)
    driver.pool.close_table(table)
    assert driver.lives() == (5, 3, 0, 0)
    assert driver.stats.draining == 3
    assert driver.pool.commit_step(step, flags(False), int32(12), int32(5)) == 0
    assert driver.lives() == (8, 0, 0, 0)
    assert driver.stats.draining == 0


def test_two_steps_in_flight_may_come_back_in_any_order(driver: Driver) -> None:
    table = driver.open(prompt(2))
    first, second = driver.begin(table), driver.begin(table)
    assert driver.finish(second, 8) == 2
    assert driver.finish(first, 4) == 0
    assert driver.lives() == (6, 0, 2, 0)


def test_a_step_that_failed_commits_nothing(driver: Driver) -> None:
    table = driver.open(prompt(2))
    driver.pool.drop_step(driver.begin(table))
    assert driver.lives() == (6, 2, 0, 0)
    assert driver.stats.steps == 0


def test_sampled_tokens_fill_blocks_that_are_then_found(driver: Driver) -> None:
    table = driver.open(int32(1, 2, 3))
    for known, token in ((3, 9), (4, 8)):
        assert driver.pool.grow(int64(table), int32(known)) == 1
        driver.pool.commit_step(driver.begin(table), flags(True), int32(known), int32(token))
    assert driver.pool.table_tokens(table).tolist() == [1, 2, 3, 9, 8]
    assert driver.pool.match(ROOT, int32(1, 2, 3, 9), 1) == 1


def test_what_two_requests_computed_is_kept_once(driver: Driver) -> None:
    a, b = driver.open(prompt(2)), driver.open(prompt(2))
    mine = driver.pool.table_blocks(b).tolist()
    step = driver.begin(a, b)
    late = driver.begin(b)
    assert driver.finish(step, 8, 8) == 2
    assert driver.pool.table_blocks(b).tolist() == driver.pool.table_blocks(a).tolist()
    assert driver.stats.duplicates == 2
    assert driver.lives() == (4, 2, 2, 0), "the other step still uses what it was given"
    assert driver.stats.draining == 2
    driver.pool.drop_step(late)
    assert driver.lives() == (6, 0, 2, 0)
    with pytest.raises(InvalidArgument, match="stale"):
        driver.pool.lease(int64(mine[0]), LeaseKind.LOAD)


def test_the_least_recently_used_prefix_goes_first_and_from_its_end(driver: Driver) -> None:
    driver.cache(prompt(3))
    driver.cache(prompt(3, 100))
    driver.pool.close_table(driver.open(prompt(3)[:8], limit=1))  # used again: its first block
    driver.open(prompt(6, 200))
    assert driver.stats.evictions == 4
    assert driver.pool.match(ROOT, prompt(3, 100), 9) == 1
    assert driver.pool.match(ROOT, prompt(3), 9) == 1


def test_a_lease_in_the_middle_keeps_what_it_depends_on(driver: Driver) -> None:
    ids = driver.cache(prompt(4))
    lease = driver.pool.lease(int64(ids[2]), LeaseKind.STORE)
    assert (driver.stats.cached, driver.stats.evictable) == (3, 1)
    assert driver.stats.available == 5
    assert driver.pool.drop_cached() == 1
    assert driver.pool.match(ROOT, prompt(4), 9) == 3
    assert driver.pool.open(OTHER, prompt(5), limit=0, keep_free=0) is not None
    lease.release()
    assert driver.stats.evictable == 3
    assert driver.pool.drop_cached() == 3


def test_a_branch_keeps_the_stem(driver: Driver) -> None:
    driver.cache(prompt(2))
    other = np.concatenate([prompt(1), prompt(1, 50)])
    table = driver.run(other)
    assert driver.pool.drop_cached() == 1
    driver.pool.close_table(table)
    assert driver.pool.drop_cached() == 2


@pytest.mark.parametrize("kind", [LeaseKind.SWAP, LeaseKind.LOAD, LeaseKind.STORE])
def test_leases_are_for_blocks_of_the_right_life(driver: Driver, kind: LeaseKind) -> None:
    pending = driver.pool.table_blocks(driver.open(prompt(1, 500)))
    committed = driver.pool.table_blocks(driver.run(prompt(1)))
    cached = int64(*driver.cache(prompt(1, 100)))
    good, bad = ([pending], [committed, cached]) if kind is LeaseKind.LOAD else ([committed, cached], [pending])
    before = driver.stats
    for ids in bad:
        with pytest.raises(InvalidArgument, match=r"LOAD is for|SWAP and STORE are for"):
            driver.pool.lease(ids, kind)
    assert driver.stats == before
    for ids in good:
        with driver.pool.lease(ids, kind) as lease:
            assert (lease.kind, lease.blocks.tolist(), lease.released) == (kind.value, ids.tolist(), False)
        assert lease.released
    assert driver.stats == before


def test_a_loaded_block_stays_until_the_load_has_ended(driver: Driver) -> None:
    table = driver.open(prompt(2))
    lease = driver.pool.lease(driver.pool.table_blocks(table)[:1].copy(), LeaseKind.LOAD)
    driver.pool.close_table(table)
    assert driver.lives() == (7, 1, 0, 0)
    lease.release()
    assert driver.lives() == (8, 0, 0, 0)


def test_a_lease_ends_once(driver: Driver) -> None:
    lease = driver.pool.lease(int64(*driver.cache(prompt(1))), LeaseKind.SWAP)
    lease.release()
    before = driver.stats
    with pytest.raises(InvalidArgument, match="released already"):
        lease.release()
    with pytest.raises(InvalidArgument, match="released already"):
        driver.pool.release(lease)
    with pytest.raises(TypeError, match="cannot be made here"):
        Lease()
    assert driver.stats == before


def test_a_lease_that_is_forgotten_keeps_its_blocks_and_is_counted(driver: Driver) -> None:
    ids = driver.cache(prompt(2))
    lease = driver.pool.lease(int64(*ids), LeaseKind.STORE)
    del lease
    gc.collect()
    assert (driver.stats.abandoned_leases, driver.stats.leases, driver.stats.evictable) == (1, 1, 0)
    assert driver.pool.drop_cached() == 0


class Event:
    def __init__(self) -> None:
        self.done = False
        self.queries = 0

    def query(self) -> bool:
        self.queries += 1
        return self.done


def test_a_lease_after_an_event_ends_at_the_first_open_or_grow_after_it(driver: Driver) -> None:
    ids = int64(*driver.cache(prompt(8)))
    event = Event()
    lease = driver.pool.lease(ids, LeaseKind.SWAP)
    driver.pool.release(lease, after=event)
    assert (driver.pool.deferred, lease.released) == (1, False)
    assert driver.pool.open(OTHER, prompt(1), limit=0, keep_free=0) is None
    with pytest.raises(InvalidArgument, match="released already"):
        driver.pool.release(lease)
    event.done = True
    assert driver.pool.open(OTHER, prompt(1), limit=0, keep_free=0) is not None
    assert (driver.pool.deferred, lease.released) == (0, True)


def test_a_lease_after_a_completed_event_ends_at_once(driver: Driver) -> None:
    event = Event()
    event.done = True
    lease = driver.pool.lease(int64(*driver.cache(prompt(1))), LeaseKind.SWAP)
    driver.pool.release(lease, after=event)
    assert (lease.released, driver.pool.deferred, driver.pool.poll()) == (True, 0, 0)


def test_the_deferred_list_is_bounded_and_events_complete_in_any_order() -> None:
    pool = BlockPool(4, SIZE, deferred_limit=2)
    opened = pool.open(ROOT, prompt(3), limit=0, keep_free=0)
    assert opened is not None
    leases = [pool.lease(int64(block), LeaseKind.LOAD) for block in pool.table_blocks(opened[0])]
    events = [Event() for _ in leases]
    for lease, event in zip(leases[:2], events, strict=False):
        pool.release(lease, after=event)
    for call in (lambda: pool.release(leases[2], after=events[2]), lambda: pool.check_release(leases[2])):
        with pytest.raises(InvalidArgument, match="2 leases are waiting"):
            call()
    with pytest.raises(InvalidArgument, match="released already"):
        pool.check_release(leases[0])
    events[1].done = True
    pool.check_release(leases[2])
    pool.release(leases[2], after=events[2])
    assert [lease.released for lease in leases] == [False, True, False]
    events[2].done = True
    assert pool.poll() == 1
    assert [lease.released for lease in leases] == [False, True, True]
    with pytest.raises(InvalidArgument, match="deferred_limit is 0"):
        BlockPool(4, SIZE, deferred_limit=0)


def test_a_lease_whose_event_cannot_be_asked_stays(driver: Driver) -> None:
    class Broken(Event):
        def query(self) -> bool:
            if self.done:
                raise AccelError("gone")
            return False

    event = Broken()
    lease = driver.pool.lease(int64(*driver.cache(prompt(1))), LeaseKind.SWAP)
    driver.pool.release(lease, after=event)
    event.done = True
    with pytest.raises(AccelError, match="gone"):
        driver.pool.poll()
    assert (driver.pool.deferred, lease.released) == (1, False)


#: What is wrong → a call on a pool with a table `t` of 6 tokens, its step `s`, a closed table `c` and its step `d`.
REFUSED: dict[str, Callable[[BlockPool, int, int, int, int], object]] = {
    r"root has 31 bytes": lambda p, t, s, c, d: p.match(bytes(31), prompt(1), 1),
    r"root is a str": lambda p, t, s, c, d: p.match("x" * 32, prompt(1), 1),  # type: ignore[arg-type]
    r"tokens is a list": lambda p, t, s, c, d: p.match(ROOT, [1, 2], 1),  # type: ignore[arg-type]
    r"tokens is an array of int64": lambda p, t, s, c, d: p.match(ROOT, int64(1, 2), 1),  # type: ignore[arg-type]
    r"tokens is an array of int32 that is not contiguous": lambda p, t, s, c, d: p.match(ROOT, prompt(2)[::2], 1),
    r"tokens has 2 dimensions": lambda p, t, s, c, d: p.match(ROOT, np.zeros((2, 2), np.int32), 1),
    r"tokens is not aligned": lambda p, t, s, c, d: p.match(
        ROOT, np.frombuffer(bytes(13), np.int32, count=3, offset=1), 1
    ),
    r"match: limit is -1": lambda p, t, s, c, d: p.match(ROOT, prompt(1), -1),
    r"match: tokens\[1\] is -5": lambda p, t, s, c, d: p.match(ROOT, int32(1, -5), 1),
    r"open: limit is -1": lambda p, t, s, c, d: p.open(ROOT, prompt(1), limit=-1, keep_free=0),
    r"keep_free is -1": lambda p, t, s, c, d: p.open(ROOT, prompt(1), limit=0, keep_free=-1),
    r"open: tokens\[0\] is -1": lambda p, t, s, c, d: p.open(ROOT, int32(-1), limit=0, keep_free=0),
    r"grow: table \d+ is closed": lambda p, t, s, c, d: p.grow(int64(t, c), int32(20, 8)),
    r"grow: table 7 is closed or was never": lambda p, t, s, c, d: p.grow(int64(7), int32(8)),
    r"grow: ends\[1\] is -1": lambda p, t, s, c, d: p.grow(int64(t, t), int32(20, -1)),
    r"have 1 and 2 rows": lambda p, t, s, c, d: p.grow(int64(t), int32(1, 2)),
    r"begin_step: table \d+ is closed": lambda p, t, s, c, d: p.begin_step(
        int64(t, c), int32(4, 4), np.zeros((2, 2), np.int32)
    ),
    r"tables\[1\] names a table a second time": lambda p, t, s, c, d: p.begin_step(
        int64(t, t), int32(4, 4), np.zeros((2, 2), np.int32)
    ),
    r"begin_step: ends\[0\] is -1": lambda p, t, s, c, d: p.begin_step(int64(t), int32(-1), np.zeros((1, 2), np.int32)),
    r"ends\[0\] is 9; the table covers 8 tokens": lambda p, t, s, c, d: p.begin_step(
        int64(t), int32(9), np.zeros((1, 9), np.int32)
    ),
    r"which is 2 blocks; out has 1 columns": lambda p, t, s, c, d: p.begin_step(
        int64(t), int32(8), np.zeros((1, 1), np.int32)
    ),
    r"tables and out have 1 and 2 rows": lambda p, t, s, c, d: p.begin_step(
        int64(t), int32(8), np.zeros((2, 2), np.int32)
    ),
    r"out is read-only": lambda p, t, s, c, d: p.begin_step(
        int64(t), int32(8), np.broadcast_to(np.int32(0), (1, 1)).view()
    ),
    r"commit_step: step 7 has ended or was never begun": lambda p, t, s, c, d: p.commit_step(
        7, flags(True), int32(0), int32(0)
    ),
    r"2 rows; the step has 1": lambda p, t, s, c, d: p.commit_step(s, flags(True, True), int32(0, 0), int32(0, 0)),
    r"alive and tokens have 1 and 2 rows": lambda p, t, s, c, d: p.commit_step(s, flags(True), int32(4), int32(1, 2)),
    r"alive is an array of int32": lambda p, t, s, c, d: p.commit_step(s, int32(1), int32(4), int32(1)),  # type: ignore[arg-type]
    r"alive\[0\] is true, but its table": lambda p, t, s, c, d: p.commit_step(d, flags(True), int32(4), int32(1)),
    r"computed\[0\] is -1": lambda p, t, s, c, d: p.commit_step(s, flags(True), int32(-1), int32(1)),
    r"computed\[0\] is 8; the step ends at 7": lambda p, t, s, c, d: p.commit_step(s, flags(True), int32(8), int32(1)),
    r"computed\[0\] is 7; the table knows 6": lambda p, t, s, c, d: p.commit_step(s, flags(True), int32(7), int32(1)),
    r"drop_step: step 7 has ended": lambda p, t, s, c, d: p.drop_step(7),
    r"close_table: table \d+ is closed": lambda p, t, s, c, d: p.close_table(c),
    r"table_blocks: table \d+ is closed": lambda p, t, s, c, d: p.table_blocks(c),
    r"table_tokens: table -1 is closed": lambda p, t, s, c, d: p.table_tokens(-1),
    r"kind is 'STEP'.*steps make STEP": lambda p, t, s, c, d: p.lease(int64(), LeaseKind.STEP),
    r"kind is 'REQUEST'": lambda p, t, s, c, d: p.lease(int64(), LeaseKind.REQUEST),
    r"ids\[1\] is 4294967304, which is stale or never was": lambda p, t, s, c, d: p.lease(
        np.append(p.table_blocks(t)[:1], 1 << 32 | 8), LeaseKind.LOAD
    ),
    r"ids\[0\] is 0, which is stale": lambda p, t, s, c, d: p.lease(int64(0), LeaseKind.LOAD),
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_calls_are_refused_by_name_and_change_nothing(driver: Driver, message: str) -> None:
    pool = driver.pool
    closed = driver.open(prompt(1, 900))
    dead = driver.begin(closed)
    pool.close_table(closed)
    table = driver.open(np.arange(6, dtype=np.int32))
    step = pool.begin_step(int64(table), int32(7), np.empty((1, 2), np.int32))
    before = pool.stats()
    with pytest.raises(InvalidArgument, match=message):
        REFUSED[message](pool, table, step, closed, dead)
    assert pool.stats() == before
    pool.check()
    assert driver.finish(step, 6) == 1


@pytest.mark.parametrize(
    ("blocks", "size", "message"),
    [
        (0, 16, "blocks is 0; it must be 1 to"),
        (2**28 + 1, 16, "blocks is 268435457"),
        (8, 0, "block_size is 0"),
        (8, 65537, "block_size is 65537; it must be 1 to 65536"),
    ],
)
def test_impossible_sizes_are_refused(blocks: int, size: int, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        BlockPool(blocks, size)


def test_a_pool_is_whole_or_is_not_there() -> None:
    cls: Any = _core.BlockPool
    for make in (cls, lambda: cls.__new__(cls), lambda: cls(8), lambda: cls(8.5, 4), lambda: cls(8, 4, 2)):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(TypeError):
        object.__new__(cls)
    with pytest.raises(TypeError):
        type("Derived", (cls,), {})
    pool = cls(block_size=4, blocks=8)
    with pytest.raises(TypeError):
        pool.__init__(1, 1)
    assert (pool.blocks, pool.block_size) == (8, 4)


def test_the_stats_are_the_native_ones(driver: Driver) -> None:
    native = _core.BlockPool(3, 5)
    pool = BlockPool(3, 5, native=native)
    assert (pool.blocks, pool.block_size) == (3, 5)
    assert PoolStats(**native.stats()) == pool.stats()
    assert {kind.value for kind in LeaseKind} == {"REQUEST", "STEP", "SWAP", "LOAD", "STORE"}
