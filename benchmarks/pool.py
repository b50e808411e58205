"""ns a block of opening and closing tables, us to digest and match 1,000 tokens, beside plain Python in the same run.

The reference is what a careful Python program does: a dict for the index, a list of free blocks, hashlib for digests of
the same records. It checks nothing, has no leases and evicts nothing, so it does less than the pool does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

from accel.cli.measure import Result, interleave, machine, print_report, rounds_progress
from benchmarks.options import parser

_LEAST_SECONDS = 0.05
_BLOCKS, _SIZE, _TOKENS = 4096, 16, 1000
_ROOT = bytes(32)


class PlainPool:
    """Digest → block, a list of free blocks, tables as lists."""

    def __init__(self, blocks: int) -> None:
        self.free = list(range(blocks))
        self.index: dict[bytes, int] = {}
        self.counts = [0] * blocks

    def open(self, blocks: int) -> list[int]:
        table = [self.free.pop() for _ in range(blocks)]
        for block in table:
            self.counts[block] = 1
        return table

    def close(self, table: list[int]) -> None:
        for block in reversed(table):
            self.counts[block] -= 1
            if not self.counts[block]:
                self.free.append(block)

    def match(self, tokens: list[int]) -> int:
        from accel.cache.identity import block_digest

        digest, hits = _ROOT, 0
        for start in range(0, len(tokens) - _SIZE + 1, _SIZE):
            digest = block_digest(digest, tokens[start : start + _SIZE])
            if digest not in self.index:
                break
            hits += 1
        return hits


def _seconds(call: Callable[[], object]) -> float:
    """Seconds a call, over as many as take a while."""
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < _LEAST_SECONDS or not count:
        call()
        count += 1
    return spent / count


def measure(rounds: int) -> list[Result]:
    import numpy as np

    from accel import _core
    from accel.cache.identity import chain
    from accel.cache.pool import BlockPool

    pool, plain = BlockPool(_BLOCKS, _SIZE), PlainPool(_BLOCKS)
    tokens = (np.arange(_TOKENS, dtype=np.int64) * 7919 % 32000).astype(np.int32)
    listed = tokens.tolist()
    full = _TOKENS // _SIZE
    plain.index = {digest: block for block, digest in enumerate(chain(_ROOT, listed, _SIZE))}
    opened = pool.open(_ROOT, tokens, limit=0, keep_free=0)
    if opened is None:
        raise SystemExit(f"{_BLOCKS} blocks are too few for {_TOKENS} tokens")
    table, row = np.array([opened[0]], np.int64), np.array([_TOKENS], np.int32)
    step = pool.begin_step(table, row, np.empty((1, full + 1), np.int32))
    pool.commit_step(step, np.array([True]), row, np.array([-1], np.int32))

    def open_close() -> None:
        now = pool.open(_ROOT, tokens, limit=0, keep_free=0)  # limit 0: fresh blocks only
        if now is not None:
            pool.close_table(now[0])

    def bulk() -> None:
        now = pool.open(_ROOT, long, limit=0, keep_free=0)
        if now is not None:
            pool.close_table(now[0])

    long = np.zeros(3000 * _SIZE, np.int32)
    per_table = 1e9 / (full + 1)
    calls: dict[str, tuple[Callable[[], object], Callable[[], object], float, str]] = {
        "open_close": (open_close, lambda: plain.close(plain.open(full + 1)), per_table, "ns/block"),
        "open_close.3000": (bulk, lambda: plain.close(plain.open(3000)), 1e9 / 3000, "ns/block"),
        "digest": (
            lambda: _core.block_digests(_ROOT, tokens, _SIZE),
            lambda: chain(_ROOT, listed, _SIZE),
            1e6,
            "us/1000 tokens",
        ),
        "match": (lambda: pool.match(_ROOT, tokens, full), lambda: plain.match(listed), 1e6, "us/1000 tokens"),
    }
    if pool.match(_ROOT, tokens, full) != plain.match(listed):
        raise SystemExit("the two pools disagree")
    sides = {name: partial(_seconds, ours) for name, (ours, _, _, _) in calls.items()}
    sides |= {f"{name}.python": partial(_seconds, theirs) for name, (_, theirs, _, _) in calls.items()}
    with rounds_progress("pool", (rounds + 1) * len(sides)) as step_done:
        interleave(sides, 1, step_done)
        seconds = interleave(sides, rounds, step_done)
    return [
        Result(name, seconds[name] * scale, unit, seconds[f"{name}.python"] * scale)
        for name, (_, _, scale, unit) in calls.items()
    ]


def main() -> int:
    arguments = parser(__doc__, rounds=5).parse_args()
    print_report(measure(arguments.rounds), machine(blocks=_BLOCKS, block_size=_SIZE), arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
