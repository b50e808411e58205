"""The block pool in plain Python: dicts, lists and whole-pool recounts, so that it is right at a glance.

Blocks are identified by all tokens up to their end, not by digests; the queue is derived from its definition after each
change of a lease. It has the verbs of the native pool, with its own numbers for tables, steps and leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from accel.errors import InvalidArgument

Key = tuple[bytes, tuple[int, ...]]


@dataclass(eq=False)
class Block:
    index: int
    generation: int = 0
    life: str = "FREE"
    key: Key | None = None
    holders: list[str] = field(default_factory=list)

    @property
    def id(self) -> int:
        return self.generation << 32 | self.index


@dataclass(eq=False)
class Table:
    root: bytes
    tokens: list[int]
    blocks: list[Block]


@dataclass(eq=False)
class Row:
    table: int
    end: int
    blocks: list[Block]


class PoolModel:
    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = [Block(i) for i in range(blocks)]
        self.free = list(reversed(self.pool))  # the next to be taken is the last
        self.queue: list[Block] = []  # the next to be evicted is the first
        self.tables: dict[int, Table] = {}
        self.steps: dict[int, list[Row]] = {}
        self.leases: dict[int, list[Block]] = {}
        self.numbers = 0
        names = ("allocations", "evictions", "commits", "duplicates", "hit_tokens", "queried_tokens")
        self.counters = dict.fromkeys(names, 0)

    # What follows from the lives and holders of blocks.

    def find(self, key: Key) -> Block | None:
        return next((block for block in self.pool if block.life == "COMMITTED" and block.key == key), None)

    def evictable(self, block: Block) -> bool:
        """Committed, and neither it nor anything that continues it is held."""
        if block.life != "COMMITTED" or block.key is None:
            return False
        root, tokens = block.key
        family = [
            other
            for other in self.pool
            if other.life == "COMMITTED"
            and other.key is not None
            and other.key[0] == root
            and other.key[1][: len(tokens)] == tokens
        ]
        return not any(other.holders for other in family)

    def requeue(self) -> None:
        """Those that can no longer be evicted leave; those that now can enter at the end, longest prefix first."""
        self.queue = [block for block in self.queue if self.evictable(block)]
        new = [block for block in self.pool if self.evictable(block) and block not in self.queue]
        self.queue += sorted(new, key=lambda block: -len(block.key[1]) if block.key else 0)

    def available(self) -> int:
        return len(self.free) + len(self.queue)

    def stats(self) -> dict[str, int]:
        def count(life: str, held: bool) -> int:
            return sum(block.life == life and bool(block.holders) == held for block in self.pool)

        pending, committed = count("PENDING", True), count("COMMITTED", True)
        return {
            "blocks": len(self.pool),
            "free": count("FREE", False),
            "pending": pending,
            "committed": committed,
            "cached": count("COMMITTED", False),
            "evictable": len(self.queue),
            "draining": sum(bool(block.holders) and set(block.holders) == {"STEP"} for block in self.pool),
            "owned": pending + committed,
            "tables": len(self.tables),
            "steps": len(self.steps),
            "leases": len(self.leases),
            **self.counters,
            "abandoned_leases": 0,
        }

    # Changes of one block.

    def hold(self, block: Block, holder: str) -> None:
        block.holders.append(holder)
        self.requeue()

    def let_go(self, block: Block, holder: str) -> None:
        block.holders.remove(holder)
        if not block.holders and block.life == "PENDING":
            block.life = "FREE"
            self.free.append(block)
        self.requeue()

    def evict(self) -> None:
        block = self.queue.pop(0)
        block.life, block.key = "FREE", None
        self.free.append(block)
        self.counters["evictions"] += 1

    def allocate(self) -> Block:
        if not self.free:
            self.evict()
        block = self.free.pop()
        block.life, block.generation, block.holders = "PENDING", block.generation + 1, ["REQUEST"]
        self.counters["allocations"] += 1
        return block

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def table(self, table: int) -> Table:
        if table not in self.tables:
            raise InvalidArgument("no such table")
        return self.tables[table]

    # The verbs.

    def hits(self, root: bytes, tokens: Sequence[int], limit: int) -> list[Block]:
        found: list[Block] = []
        while len(found) < limit and (len(found) + 1) * self.block_size <= len(tokens):
            block = self.find((root, tuple(tokens[: (len(found) + 1) * self.block_size])))
            if block is None:
                break
            found.append(block)
        return found

    def match(self, root: bytes, tokens: Sequence[int], limit: int) -> int:
        return len(self.hits(root, tokens, limit))

    def open(self, root: bytes, tokens: Sequence[int], limit: int, keep_free: int) -> tuple[int, int] | None:
        hits = self.hits(root, tokens, limit)
        new = self.blocks_for(len(tokens)) - len(hits)
        if self.available() - sum(block in self.queue for block in hits) - new < keep_free:
            return None
        for block in hits:
            self.hold(block, "REQUEST")
        table = self.number()
        self.tables[table] = Table(root, list(tokens), hits + [self.allocate() for _ in range(new)])
        self.counters["hit_tokens"] += len(hits) * self.block_size
        self.counters["queried_tokens"] += len(tokens)
        return table, len(hits) * self.block_size

    def grow(self, tables: Sequence[int], ends: Sequence[int]) -> int:
        found = [self.table(table) for table in tables]
        for row, (table, end) in enumerate(zip(found, ends, strict=True)):
            missing = self.blocks_for(end) - len(table.blocks)
            if missing > self.available():
                return row
            table.blocks += [self.allocate() for _ in range(missing)]
        return len(tables)

    def begin_step(self, tables: Sequence[int], ends: Sequence[int], columns: int) -> tuple[int, list[list[int]]]:
        if len(set(tables)) != len(tables):
            raise InvalidArgument("a table twice")
        rows = []
        for table, end in zip(tables, ends, strict=True):
            blocks = self.table(table).blocks
            if end > len(blocks) * self.block_size or self.blocks_for(end) > columns:
                raise InvalidArgument("an end too far")
            rows.append(Row(table, end, blocks[: self.blocks_for(end)]))
        for row in rows:
            for block in row.blocks:
                self.hold(block, "STEP")
        step = self.number()
        self.steps[step] = rows
        return step, [[block.index for block in row.blocks] + [0] * (columns - len(row.blocks)) for row in rows]

    def commit_step(self, step: int, alive: Sequence[bool], computed: Sequence[int], tokens: Sequence[int]) -> int:
        if step not in self.steps or len(alive) != len(self.steps[step]):
            raise InvalidArgument("no such step, or not its rows")
        rows = self.steps[step]
        for row, lives, done in zip(rows, alive, computed, strict=True):
            if lives and (done > row.end or done > len(self.table(row.table).tokens)):
                raise InvalidArgument("computed too far")
        commits = 0
        for row, lives, done, token in zip(rows, alive, computed, tokens, strict=True):
            if lives:
                table = self.tables[row.table]
                if token >= 0:
                    table.tokens.append(token)
                commits += sum(self.commit(table, i) for i in range(done // self.block_size))
            for block in reversed(row.blocks):
                self.let_go(block, "STEP")
        del self.steps[step]
        return commits

    def commit(self, table: Table, i: int) -> bool:
        block = table.blocks[i]
        if block.life != "PENDING":
            return False
        key = (table.root, tuple(table.tokens[: (i + 1) * self.block_size]))
        indexed = self.find(key)
        if indexed is None:
            block.life, block.key = "COMMITTED", key
            self.counters["commits"] += 1
            return True
        self.hold(indexed, "REQUEST")
        table.blocks[i] = indexed
        self.let_go(block, "REQUEST")
        self.counters["duplicates"] += 1
        return False

    def drop_step(self, step: int) -> None:
        if step not in self.steps:
            raise InvalidArgument("no such step")
        for row in self.steps.pop(step):
            for block in reversed(row.blocks):
                self.let_go(block, "STEP")

    def close_table(self, table: int) -> None:
        for block in reversed(self.table(table).blocks):
            self.let_go(block, "REQUEST")
        del self.tables[table]

    def lease(self, ids: Sequence[int], kind: str) -> int:
        blocks = []
        for block_id in ids:
            block = next((block for block in self.pool if block.id == block_id), None)
            if block is None or block.life != ("PENDING" if kind == "LOAD" else "COMMITTED"):
                raise InvalidArgument("no such block, or not for this kind")
            blocks.append(block)
        for block in blocks:
            self.hold(block, kind)
        lease = self.number()
        self.leases[lease] = blocks
        return lease

    def release(self, lease: int, kind: str) -> None:
        for block in reversed(self.leases.pop(lease)):
            self.let_go(block, kind)

    def drop_cached(self) -> int:
        count = len(self.queue)
        for _ in range(count):
            self.evict()
        return count
