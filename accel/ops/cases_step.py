"""The cases of step state and pages, defined when this is imported; see cases.py."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accel.ops.case import (
    MIXED,
    ORDERS,
    Call,
    Params,
    Rng,
    block_tables,
    define,
    ints,
    kv_pool,
    parse_requests,
    sweep,
    word_lists,
)
from accel.ops.operand import Operand
from accel.ops.pages import POOL_DTYPES
from accel.ops.rounding import storage_dtype

# --- step state -------------------------------------------------------------------------------------------------------


@define(
    "pack_step",
    sweep("requests", ("none", "1/1", "1/16", "1/17", "5/5", "16/16", "17/33", MIXED), S=16),
    sweep("S", (1, 3, 64), requests="7/20+1/33+4/4"),
    [{"requests": "1/9+1/30+1/2", "S": 8, "source": "sampled"}],
)
def _pack_step(rng: Rng, *, requests: str, S: int, source: str = "host") -> Call:
    plan = parse_requests(requests)
    starts = np.concatenate([[0], np.cumsum([query for query, _ in plan])]).astype(np.int32)
    tokens = rng.integers(0, 1000, starts[-1])
    tokens[rng.random(len(tokens)) < (1.0 if source == "sampled" else 0.2)] = -1
    tables, _ = block_tables(rng, [length for _, length in plan], S)
    held = len(plan) + 2
    operands = {
        "input_ids": Operand.empty(tokens.shape, "int32"),
        "positions": Operand.empty(tokens.shape, "int32"),
        "slot_mapping": Operand.empty(tokens.shape, "int64"),
        "kv_lens": Operand.empty((len(plan),), "int32"),
        "last_rows": Operand.empty((len(plan),), "int32"),
        "tokens": ints(tokens),
        "slots": ints(rng.permutation(held)[: len(plan)]),
        "query_start": ints(starts),
        "computed": ints([length - query for query, length in plan]),
        "block_tables": ints(tables),
        "last_token": ints(rng.integers(0, 1000, held)),
    }
    return Call(operands, {"block_size": S})


@define(
    "stop_check",
    sweep("R", (0, 1, 40), E=2),
    sweep("E", (0, 1, 5), R=20),
    sweep("words", (1, 4), R=40, E=1),
    [{"R": 20, "E": 1, "words": 0, "S": 1, "L": 1}],
)
def _stop_check(rng: Rng, *, R: int, E: int, words: int = 2, S: int = 9, L: int = 12) -> Call:
    """Two ids in the histories and the words, so that words of up to four tokens are met."""
    lengths = rng.integers(0, L + 1, R) if words else np.zeros(R, np.int64)
    row_start, word_start, tokens = word_lists(rng, R, 2, words)
    operands = {
        "reason": Operand.empty((R,), "int32"),
        "sampled": ints(rng.choice([-1, *range(6)], R, p=[0.1, 0.3, 0.3, 0.1, 0.1, 0.05, 0.05])),
        "generated": ints(rng.integers(1, 7, R)),
        "max_tokens": ints(rng.integers(1, 20, R)),
        "min_tokens": ints(rng.choice([0, 0, 0, 2, 5], R)),
        "ignore_eos": ints(rng.integers(0, 2, R), "uint8"),
        "eos": ints(rng.permutation(6)[:E]),
        "history": ints(rng.integers(0, 2, (S, L))),
        "slots": ints(rng.integers(0, S, R)),
        "lengths": ints(lengths),
        "row_start": ints(row_start),
        "word_start": ints(word_start),
        "words": ints(tokens),
    }
    return Call(operands, {})


@define("update_slots", sweep("R", (0, 1, 5, 20), slots=20))
def _update_slots(rng: Rng, *, R: int, slots: int) -> Call:
    sampled = rng.integers(0, 1000, R)
    sampled[1::3] = -1
    operands = {
        "last_token": ints(rng.integers(0, 1000, slots)),
        "slots": ints(rng.permutation(slots)[:R]),
        "sampled": ints(sampled),
    }
    return Call(operands, {})


@define("write_history", sweep("n", (0, 1, 5, 40), L=20), sweep("L", (1, 300), n=7))
def _write_history(rng: Rng, *, n: int, L: int) -> Call:
    """Some places twice: the later token stays."""
    tokens = rng.integers(0, 1000, n)
    tokens[1::3] = -1
    operands = {
        "history": ints(rng.integers(1000, 2000, (4, L))),
        "slots": ints(rng.integers(0, 4, n)),
        "positions": ints(rng.integers(0, L, n)),
        "tokens": ints(tokens),
    }
    return Call(operands, {})


# --- pages ------------------------------------------------------------------------------------------------------------

_PAGE_PARAMS: list[Params] = [
    *({"n": n, "dtype": "float32", "order": order} for n in (0, 1, 4) for order in ORDERS),
    *({"n": 3, "dtype": dtype, "order": order} for dtype in POOL_DTYPES[1:] for order in ORDERS),
    *({"n": 2, "dtype": "bfloat16", "order": order, "L": 1, "KV": 1, "S": 1, "D": 2} for order in ORDERS),
    *({"n": 4, "dtype": "bfloat16", "order": order, "L": 4, "KV": 3, "S": 16, "D": 64} for order in ORDERS),
    *({"n": 2, "dtype": "float16", "order": order, "L": 3, "KV": 1, "S": 3, "D": 10} for order in ORDERS),
]


def _paged(
    rng: Rng, n: int, dtype: str, order: str, L: int, KV: int, S: int, D: int
) -> tuple[Operand, NDArray[np.intp], int]:
    """A pool, `n` distinct blocks of it in random order, and the bytes of a page."""
    pool = kv_pool(rng, (2 * n + 3, L, 2, KV, S, D), dtype, order)
    return pool, rng.permutation(2 * n + 3), L * 2 * KV * S * D * storage_dtype(dtype).itemsize


@define("pages_gather", _PAGE_PARAMS)
def _pages_gather(rng: Rng, *, n: int, dtype: str, order: str, L: int = 2, KV: int = 2, S: int = 4, D: int = 8) -> Call:
    pool, blocks, size = _paged(rng, n, dtype, order, L, KV, S, D)
    repeated = np.concatenate([blocks[: n - 1], blocks[:1]]) if n > 1 else blocks[:n]
    operands = {"out": Operand.empty((n, size), "uint8"), "pool": pool, "blocks": ints(repeated)}
    return Call(operands, {})


@define("pages_scatter", _PAGE_PARAMS)
def _pages_scatter(
    rng: Rng, *, n: int, dtype: str, order: str, L: int = 2, KV: int = 2, S: int = 4, D: int = 8
) -> Call:
    pool, blocks, size = _paged(rng, n, dtype, order, L, KV, S, D)
    data = rng.integers(0, 256, (n, size), np.uint8)
    return Call({"pool": pool, "data": ints(data, "uint8"), "blocks": ints(blocks[:n])}, {})


@define("pages_copy", _PAGE_PARAMS)
def _pages_copy(rng: Rng, *, n: int, dtype: str, order: str, L: int = 2, KV: int = 2, S: int = 4, D: int = 8) -> Call:
    pool, blocks, _ = _paged(rng, n, dtype, order, L, KV, S, D)
    # One source feeds two copies, as when a beam splits.
    source = np.concatenate([blocks[: n - 1], blocks[:1]]) if n > 1 else blocks[:n]
    return Call({"pool": pool, "src": ints(source), "dst": ints(blocks[n : 2 * n])}, {})


@define("pages_zero", _PAGE_PARAMS)
def _pages_zero(rng: Rng, *, n: int, dtype: str, order: str, L: int = 2, KV: int = 2, S: int = 4, D: int = 8) -> Call:
    pool, blocks, _ = _paged(rng, n, dtype, order, L, KV, S, D)
    return Call({"pool": pool, "blocks": ints(blocks[:n])}, {})


@define("pages_checksum", _PAGE_PARAMS)
def _pages_checksum(
    rng: Rng, *, n: int, dtype: str, order: str, L: int = 2, KV: int = 2, S: int = 4, D: int = 8
) -> Call:
    pool, blocks, _ = _paged(rng, n, dtype, order, L, KV, S, D)
    return Call({"out": Operand.empty((n,), "uint64"), "pool": pool, "blocks": ints(blocks[:n])}, {})
