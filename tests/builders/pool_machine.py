"""Drives a block pool and its model (pool_model.py) with the same verbs, and compares everything after each.

Run as a program it takes a folder and the name of a native module in it, drives that module's pool, and exits with 0
when nothing was found and 3 when something was: tests/cache/test_pool_faults.py runs it on pools with a planted fault.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from pool_model import PoolModel

from accel import _core
from accel.errors import AccelError, InvalidArgument


class Picks(Random):
    """Choices that print as what they come from, so that a failing run can be typed in again."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __repr__(self) -> str:
        return f"Picks({self.number})"


BLOCKS, BLOCK_SIZE, COLUMNS = 9, 2, 6
ROOTS = (bytes(32), bytes(range(32)))
#: So few that prompts share prefixes all the time; each is cut at some length.
PROMPTS = ((0, 0, 0, 0, 0, 0, 0, 0, 0), (0, 0, 1, 1, 0, 0, 0, 0, 0), (1, 0, 0, 0, 0, 1, 0, 1, 1))
#: A rule draws one seed and takes its choices from it: hypothesis favours extremes, which hardly commit a block.
SEEDS = st.builds(Picks, st.integers(0, 2**32 - 1))


def int32(values: object) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def int64(values: object) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


class Refused:
    """Stands for a call that raised InvalidArgument."""


class PoolMachine(RuleBasedStateMachine):
    native_class: Any = _core.BlockPool
    #: Sums over all runs of what was reached, from the model's counters.
    reached: ClassVar[Counter[str]] = Counter()

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
        assert ours == theirs, f"native {ours}, model {theirs}"

    def live_tables(self, pick: Random, most: int = 3) -> list[int]:
        """Numbers of some tables that are open, in any order."""
        live = list(self.model.tables)
        return pick.sample(live, min(len(live), pick.randint(1, most)))

    def ids(self, rows: list[int]) -> Any:
        return int64([self.tables[row] for row in rows])

    @rule(pick=SEEDS, length=st.integers(0, 9))
    def open(self, pick: Random, length: int) -> None:
        root, tokens = pick.choice((0, 0, 0, 1)), pick.choice(PROMPTS)[:length]
        limit, keep_free = pick.choice((0, 1, 4, 4, 4)), pick.choice((0, 0, 0, 1, 2))
        for _ in range(pick.choice((1, 1, 2))):  # two that compute the same
            self.open_table(ROOTS[root], tokens, limit, keep_free)

    def open_table(self, root: bytes, tokens: tuple[int, ...], limit: int, keep_free: int) -> int | None:
        before = self.model.stats()
        ours = self.native.open(root, int32(tokens), limit=limit, keep_free=keep_free)
        theirs = self.model.open(root, tokens, limit, keep_free)
        assert (ours is None) == (theirs is None)
        if ours is None or theirs is None:
            assert self.model.stats() == before
            return None
        assert ours[1] == theirs[1]
        self.tables[theirs[0]] = ours[0]
        return theirs[0]

    @rule(pick=SEEDS, limit=st.integers(0, 5))
    def match(self, pick: Random, limit: int) -> None:
        root, tokens = pick.choice(ROOTS), pick.choice(PROMPTS)[: pick.randint(0, 9)]
        assert self.native.match(root, int32(tokens), limit) == self.model.match(root, tokens, limit)

    @rule(pick=SEEDS)
    def grow(self, pick: Random) -> None:
        rows = self.live_tables(pick)
        ends = [len(self.model.tables[row].tokens) + pick.choice((-1, 0, 1, 1, 3)) for row in rows]
        ends = [max(0, min(end, COLUMNS * BLOCK_SIZE)) for end in ends]
        self.same(lambda: self.native.grow(self.ids(rows), int32(ends)), lambda: self.model.grow(rows, ends))

    @rule(pick=SEEDS)
    def begin_step(self, pick: Random) -> None:
        rows = self.live_tables(pick)
        covered = [len(self.model.tables[row].blocks) * BLOCK_SIZE for row in rows]
        self.begin(rows, [end if pick.random() < 0.7 else pick.randint(0, end) for end in covered])

    def begin(self, rows: list[int], ends: list[int]) -> int | None:
        out = np.full((len(rows), COLUMNS), 99, np.int32)
        ours, theirs = self.both(
            lambda: self.native.begin_step(self.ids(rows), int32(ends), out),
            lambda: self.model.begin_step(rows, ends, COLUMNS),
        )
        if ours is Refused:
            assert (out == 99).all()
            return None
        assert out.tolist() == theirs[1]
        self.steps[theirs[0]] = ours
        return int(theirs[0])

    @rule(pick=SEEDS)
    def commit_step(self, pick: Random) -> None:
        if self.model.steps:  # any of them: in order or late
            self.commit(pick, pick.choice(list(self.model.steps)), misuse=0.0)

    def commit(self, pick: Random, step: int, misuse: float) -> None:
        alive, computed, tokens = [], [], []
        for row in self.model.steps.get(step, []):
            table = self.model.tables.get(row.table)
            alive.append(table is not None and pick.random() < 0.9)
            most = min(row.end, len(table.tokens) if table else 0)
            computed.append(most if pick.random() < 0.8 else pick.randint(0, most))
            tokens.append(pick.choice((-1, 0, 0, 1)))
            if pick.random() < misuse:
                alive[-1], computed[-1] = True, most + 1
        flags = np.array(alive, np.bool_)
        self.same(
            lambda: self.native.commit_step(self.steps[step], flags, int32(computed), int32(tokens)),
            lambda: self.model.commit_step(step, alive, computed, tokens),
        )

    @rule(pick=SEEDS)
    def another(self, pick: Random) -> None:
        """Make room by closing the oldest request, and open another."""
        if self.model.tables:
            self.close(next(iter(self.model.tables)))
        tokens = pick.choice(PROMPTS)[: pick.randint(4, 9)]
        for _ in range(pick.choice((1, 1, 2))):
            self.open_table(ROOTS[0], tokens, 4, 0)
        if pick.random() < 0.6:
            self.go_on(pick)

    @rule(pick=SEEDS)
    def whole_step(self, pick: Random) -> None:
        self.go_on(pick)

    def go_on(self, pick: Random) -> None:
        """What an engine does most of the time: every request goes on by what it knows, and the output comes back."""
        rows = list(self.model.tables)
        ends = [min(len(self.model.tables[row].tokens), COLUMNS * BLOCK_SIZE) for row in rows]
        grown = self.model.grow(rows, ends)
        assert self.native.grow(self.ids(rows), int32(ends)) == grown
        if grown == len(rows):
            step = self.begin(rows, ends)
            if step is not None:
                self.commit(pick, step, misuse=0.0)

    @rule(pick=SEEDS)
    def drop_step(self, pick: Random) -> None:
        if self.model.steps:
            step = pick.choice(list(self.model.steps))
            self.same(lambda: self.native.drop_step(self.steps[step]), lambda: self.model.drop_step(step))

    @rule(pick=SEEDS)
    def close_table(self, pick: Random) -> None:
        for table in self.live_tables(pick, most=2):
            self.close(table)

    @rule(pick=SEEDS, kind=st.sampled_from(["SWAP", "LOAD", "STORE"]))
    def lease(self, pick: Random, kind: str) -> None:
        life = "PENDING" if kind == "LOAD" else "COMMITTED"
        good = [block.id for block in self.model.pool if block.life == life]
        if life == "COMMITTED" and pick.random() < 0.6:
            good = self.idle_blocks() or good
        self.take([pick.choice(good) for _ in range(pick.randint(0, 2))] if good else [], kind)

    def idle_blocks(self) -> list[int]:
        """Blocks in the middle or at the end of prefixes that nobody uses; closes tables until there are some."""
        while True:
            idle = [block.id for block in self.model.queue if block.key and len(block.key[1]) > BLOCK_SIZE]
            if idle or not self.model.tables:
                return idle
            self.close(next(iter(self.model.tables)))

    def close(self, table: int) -> None:
        self.same(lambda: self.native.close_table(self.tables[table]), lambda: self.model.close_table(table))

    def take(self, ids: list[int], kind: str) -> None:
        ours, theirs = self.both(lambda: self.native.lease(int64(ids), kind), lambda: self.model.lease(ids, kind))
        if ours is not Refused:
            assert (ours.kind, ours.blocks.tolist(), ours.released) == (kind, ids, False)
            self.leases[theirs] = (ours, kind)

    @rule(pick=SEEDS)
    def release(self, pick: Random) -> None:
        if self.model.leases:
            lease = pick.choice(list(self.model.leases))
            native, kind = self.leases[lease]
            native.release()
            self.model.release(lease, kind)
            assert native.released

    @rule(pick=SEEDS)
    def drop_cached(self, pick: Random) -> None:
        if pick.random() < 0.2:
            assert self.native.drop_cached() == self.model.drop_cached()

    @rule(pick=SEEDS)
    def misuse(self, pick: Random) -> None:
        """Ids that have ended, ends that lie too far, leases of the wrong kind: refused alike, and nothing changes."""
        tables, steps = list(self.tables), list(self.steps)
        which = pick.randrange(5)
        if which == 0 and tables:
            table = pick.choice(tables)
            rows = [*self.live_tables(pick), table]
            self.same(
                lambda: self.native.grow(self.ids(rows), int32([1] * len(rows))),
                lambda: self.model.grow(rows, [1] * len(rows)),
            )
            if table not in self.model.tables:
                self.close(table)
        elif which == 1 and tables:
            rows = [pick.choice(tables) for _ in range(pick.randint(1, 3))]
            self.begin(rows, [pick.randint(0, 9) for _ in rows])
        elif which == 2 and steps:
            self.commit(pick, pick.choice(steps), misuse=0.4)
        elif which == 3:
            self.take([pick.choice(sorted(self.seen)) for _ in range(2)], pick.choice(("SWAP", "LOAD", "STORE")))
        elif which == 4:
            for lease in self.leases.keys() - self.model.leases.keys():
                try:
                    self.leases[lease][0].release()
                except InvalidArgument:
                    continue
                raise AssertionError("a second release was taken")

    @invariant()
    def agrees(self) -> None:
        self.native.check()
        stats = self.native.stats()
        assert stats == self.model.stats(), f"native {stats}, model {self.model.stats()}"
        assert stats["owned"] + stats["cached"] + stats["free"] == stats["blocks"]
        for number, table in self.model.tables.items():
            ids = self.native.table_blocks(self.tables[number]).tolist()
            self.seen.update(ids)
            assert ids == [block.id for block in table.blocks]
            assert self.native.table_tokens(self.tables[number]).tolist() == table.tokens

    def teardown(self) -> None:
        """Whatever happened, once everybody has let go every block is free or cached."""
        self.reached.update(self.model.counters)
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


def drive(native_class: Any, examples: int, steps: int, shrink: bool = True) -> Counter[str]:
    """Run the machine on `native_class`; raises what it found, returns what it reached."""
    reached: Counter[str] = Counter()
    machine = type("Machine", (PoolMachine,), {"native_class": native_class, "reached": reached})
    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(machine, settings=options)
    return reached


def main() -> int:
    folder, name = sys.argv[1:]
    sys.path.insert(0, folder)
    try:
        drive(importlib.import_module(name).BlockPool, examples=150, steps=50, shrink=False)
    except (AssertionError, AccelError) as found:
        print(f"found: {type(found).__name__}: {found}")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
