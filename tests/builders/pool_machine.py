"""Drives a block pool and its model (pool_model.py) with the same verbs, and compares everything after each.

Run as a program it takes a folder and the name of a native module in it, drives that module's pool, and exits with 0
when nothing was found and 3 when something was: tests/cache/test_pool_faults.py runs it on pools with a planted fault.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from pool_model import PoolModel

from accel import _core
from accel.errors import AccelError, InvalidArgument

T = TypeVar("T")

BLOCKS, BLOCK_SIZE, COLUMNS = 7, 2, 5
ROOTS = (bytes(32), bytes(range(32)))
#: So few tokens that prompts share prefixes all the time.
TOKENS = st.lists(st.integers(0, 1), min_size=0, max_size=9)


def int32(values: object) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def int64(values: object) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


def outcome(call: Callable[[], T]) -> T | None:
    """The result, or None where the arguments were refused."""
    try:
        return call()
    except InvalidArgument:
        return None


class Refused:
    """Stands for a call that raised InvalidArgument."""


class PoolMachine(RuleBasedStateMachine):
    native_class: Any = _core.BlockPool

    def __init__(self) -> None:
        super().__init__()
        self.native = self.native_class(BLOCKS, BLOCK_SIZE)
        self.model = PoolModel(BLOCKS, BLOCK_SIZE)
        #: Model's number → the native pool's id; those that have ended stay, to be used once more.
        self.tables: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        self.leases: dict[int, tuple[Any, str]] = {}
        self.seen: set[int] = {1 << 32 | BLOCKS, 0, -1}

    def both(self, native: Callable[[], Any], model: Callable[[], Any]) -> tuple[Any, Any]:
        """Results of the two, Refused for both where the arguments were refused."""
        results: list[Any] = []
        for call in (native, model):
            try:
                results.append(call())
            except InvalidArgument:
                results.append(Refused)
        refused = [result is Refused for result in results]
        assert refused[0] == refused[1], f"refused by (native, model): {refused}"
        return results[0], results[1]

    def same(self, native: Callable[[], Any], model: Callable[[], Any]) -> None:
        ours, theirs = self.both(native, model)
        assert ours == theirs

    def some(self, data: st.DataObject, known: dict[int, Any], live: dict[int, Any]) -> int | None:
        """A number, mostly of something that lives."""
        candidates = list(live) if live and data.draw(st.integers(0, 9)) else list(known)
        return data.draw(st.sampled_from(candidates)) if candidates else None

    @rule(root=st.sampled_from(ROOTS), tokens=TOKENS, limit=st.integers(0, 5), keep_free=st.integers(0, 2))
    def open(self, root: bytes, tokens: list[int], limit: int, keep_free: int) -> None:
        ours = self.native.open(root, int32(tokens), limit=limit, keep_free=keep_free)
        theirs = self.model.open(root, tokens, limit, keep_free)
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours[1] == theirs[1]
            self.tables[theirs[0]] = ours[0]

    @rule(root=st.sampled_from(ROOTS), tokens=TOKENS, limit=st.integers(0, 5))
    def match(self, root: bytes, tokens: list[int], limit: int) -> None:
        assert self.native.match(root, int32(tokens), limit) == self.model.match(root, tokens, limit)

    def draw_rows(self, data: st.DataObject, distinct: bool) -> list[int]:
        rows = [self.some(data, self.tables, self.model.tables) for _ in range(data.draw(st.integers(1, 3)))]
        found = [row for row in rows if row is not None]
        return list(dict.fromkeys(found)) if distinct else found

    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        rows = self.draw_rows(data, distinct=False)
        ends = [data.draw(st.integers(0, 10)) for _ in rows]
        self.same(
            lambda: self.native.grow(int64([self.tables[row] for row in rows]), int32(ends)),
            lambda: self.model.grow(rows, ends),
        )

    @rule(data=st.data())
    def begin_step(self, data: st.DataObject) -> None:
        rows = self.draw_rows(data, distinct=bool(data.draw(st.integers(0, 9))))
        ends = []
        for row in rows:
            table = self.model.tables.get(row)
            covered = len(table.blocks) * BLOCK_SIZE if table else 2
            ends.append(data.draw(st.integers(0, covered) | st.just(covered) | st.just(covered + 1)))
        out = np.full((len(rows), COLUMNS), 99, np.int32)
        ours, theirs = self.both(
            lambda: self.native.begin_step(int64([self.tables[row] for row in rows]), int32(ends), out),
            lambda: self.model.begin_step(rows, ends, COLUMNS),
        )
        if ours is not Refused:
            assert out.tolist() == theirs[1]
            self.steps[theirs[0]] = ours

    @rule(data=st.data())
    def commit_step(self, data: st.DataObject) -> None:
        step = self.some(data, self.steps, self.model.steps)
        if step is None:
            return
        alive, computed, tokens = [], [], []
        for row in self.model.steps.get(step, []):
            table = self.model.tables.get(row.table)
            alive.append(bool(data.draw(st.integers(0, 9))) == (table is not None))
            known = len(table.tokens) if table else 0
            most = min(row.end, known)
            computed.append(data.draw(st.integers(0, most) | st.just(most) | st.just(most) | st.integers(0, most + 1)))
            tokens.append(data.draw(st.integers(-1, 1)))
        self.same(
            lambda: self.native.commit_step(
                self.steps[step], np.array(alive, np.bool_), int32(computed), int32(tokens)
            ),
            lambda: self.model.commit_step(step, alive, computed, tokens),
        )

    @rule(data=st.data())
    def drop_step(self, data: st.DataObject) -> None:
        step = self.some(data, self.steps, self.model.steps)
        if step is not None:
            self.same(lambda: self.native.drop_step(self.steps[step]), lambda: self.model.drop_step(step))

    @rule(data=st.data())
    def close_table(self, data: st.DataObject) -> None:
        table = self.some(data, self.tables, self.model.tables)
        if table is not None:
            self.same(lambda: self.native.close_table(self.tables[table]), lambda: self.model.close_table(table))

    @rule(data=st.data(), kind=st.sampled_from(["SWAP", "LOAD", "STORE"]))
    def lease(self, data: st.DataObject, kind: str) -> None:
        life = "PENDING" if kind == "LOAD" else "COMMITTED"
        good = [block.id for block in self.model.pool if block.life == life]
        source = st.sampled_from(sorted(self.seen))
        ids = data.draw(st.lists(st.sampled_from(good) if good else source, max_size=3) | st.lists(source, max_size=2))
        ours, theirs = self.both(lambda: self.native.lease(int64(ids), kind), lambda: self.model.lease(ids, kind))
        if ours is not Refused:
            assert (ours.kind, ours.blocks.tolist(), ours.released) == (kind, ids, False)
            self.leases[theirs] = (ours, kind)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = self.some(data, self.leases, self.model.leases)
        if lease is None:
            return
        native, kind = self.leases[lease]
        if lease in self.model.leases:
            native.release()
            self.model.release(lease, kind)
        else:
            assert outcome(lambda: [native.release()]) is None, "a second release was taken"
        assert native.released

    @rule()
    def drop_cached(self) -> None:
        assert self.native.drop_cached() == self.model.drop_cached()

    @invariant()
    def agrees(self) -> None:
        self.native.check()
        stats = self.native.stats()
        assert stats == self.model.stats()
        assert stats["owned"] + stats["cached"] + stats["free"] == stats["blocks"]
        for number, table in self.model.tables.items():
            ids = self.native.table_blocks(self.tables[number]).tolist()
            self.seen.update(ids)
            assert ids == [block.id for block in table.blocks]
            assert self.native.table_tokens(self.tables[number]).tolist() == table.tokens

    def teardown(self) -> None:
        """Whatever happened, once everybody has let go every block is free or cached."""
        for step in self.model.steps:
            self.native.drop_step(self.steps[step])
        for table in self.model.tables:
            self.native.close_table(self.tables[table])
        for lease in self.model.leases:
            self.leases[lease][0].release()
        self.native.check()
        stats = self.native.stats()
        assert (stats["owned"], stats["draining"], stats["evictable"]) == (0, 0, stats["cached"])
        assert self.native.drop_cached() == stats["cached"]
        self.native.check()
        assert self.native.stats()["free"] == BLOCKS


def drive(native_class: Any, examples: int, steps: int) -> None:
    """Run the machine on `native_class`; raises what it found."""
    machine = type("Machine", (PoolMachine,), {"native_class": native_class})
    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=options)


def main() -> int:
    folder, name = sys.argv[1:]
    sys.path.insert(0, folder)
    try:
        drive(importlib.import_module(name).BlockPool, 60, 40)
    except (AssertionError, AccelError) as found:
        print(f"found: {type(found).__name__}: {found}")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
