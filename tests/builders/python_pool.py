"""The model of the block pool (pool_model.py) with the face of ``accel.cache.pool.BlockPool``, as far as the scheduler
looks: a pool that a test may give any fault, and that has no guards of its own.

Invariant: a step's row on a table that was closed is taken as if the table were open (`tolerant`), so whoever plants a
fault in the scheduler sees what the scheduler's own tests see, and not what the pool refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pool_model import PoolModel, Table

from accel.cache.pool import PoolStats


class TolerantModel(PoolModel):
    """Closed tables stay, for steps that were begun before."""

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__(blocks, block_size)
        self.closed: dict[int, Table] = {}

    def close_table(self, table: int) -> None:
        found = self.table(table)
        super().close_table(table)
        self.closed[table] = found

    def commit_step(self, step: int, alive: Sequence[bool], computed: Sequence[int], tokens: Sequence[int]) -> int:
        rows = self.steps.pop(step)
        commits = 0
        for row, lives, done, token in zip(rows, alive, computed, tokens, strict=True):
            if lives:
                table = self.tables.get(row.table) or self.closed[row.table]
                if token >= 0:
                    table.tokens.append(token)
                commits += sum(self.commit(table, i) for i in range(done // self.block_size))
            for block in reversed(row.blocks):
                self.let_go(block, "STEP")
        return commits

    def commit(self, table: Table, i: int) -> bool:
        # Of a closed table only what a step still holds can be entered.
        return bool(table.blocks[i].holders) and super().commit(table, i)


class PythonPool:
    """What the scheduler calls of a BlockPool, over `model`."""

    def __init__(self, model: PoolModel) -> None:
        self.model = model
        self.blocks = len(model.pool)
        self.block_size = model.block_size

    def match(self, root: bytes, tokens: Any, limit: int) -> int:
        return self.model.match(root, tokens.tolist(), limit)

    def open(self, root: bytes, tokens: Any, *, limit: int, keep_free: int) -> tuple[int, int] | None:
        return self.model.open(root, tokens.tolist(), limit, keep_free)

    def grow(self, tables: Any, ends: Any) -> int:
        return self.model.grow(tables.tolist(), ends.tolist())

    def begin_step(self, tables: Any, ends: Any, out: Any) -> int:
        step, rows = self.model.begin_step(tables.tolist(), ends.tolist(), out.shape[1])
        out[:] = rows
        return step

    def commit_step(self, step: int, alive: Any, computed: Any, tokens: Any) -> int:
        return self.model.commit_step(step, alive.tolist(), computed.tolist(), tokens.tolist())

    def drop_step(self, step: int) -> None:
        self.model.drop_step(step)

    def close_table(self, table: int) -> None:
        self.model.close_table(table)

    def table_blocks(self, table: int) -> Any:
        return np.array([block.id for block in self.model.table(table).blocks], np.int64)

    def stats(self) -> PoolStats:
        return PoolStats(**self.model.stats())

    def check(self) -> None:
        """Nothing: who uses this pool looks for faults from outside."""
