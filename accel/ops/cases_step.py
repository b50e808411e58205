"""The cases of sampling, step state and pages, defined when this is imported; see cases.py."""

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
    normal,
    parse_requests,
    sweep,
)
from accel.ops.operand import Operand
from accel.ops.pages import POOL_DTYPES
from accel.ops.rounding import storage_dtype

# --- sampling ---------------------------------------------------------------------------------------------------------


def _logits(rng: Rng, R: int, V: int, special: str) -> NDArray[np.float32]:
    """Logits of spread 3; `special`: "ties", "nan" scattered with -inf, "nothing" to pick, "inf" once in each row."""
    logits: NDArray[np.float32] = normal(rng, R, V) * np.float32(3)
    if special == "ties":
        logits = (np.round(logits / 3) * 3).astype(np.float32)
    elif special == "nan":
        logits[rng.random((R, V)) < 0.3] = np.nan
        logits[rng.random((R, V)) < 0.3] = -np.inf
        # A NaN before and after the largest value, wherever vectors begin.
        logits[:, 0], logits[:, -1] = np.nan, np.nan
    elif special == "nothing":
        logits[0], logits[1], logits[2, ::2], logits[2, 1::2] = np.nan, -np.inf, np.nan, -np.inf
    elif special == "inf":
        logits[np.arange(R), rng.integers(0, V, R)] = np.inf
    return logits


_VOCABS = (1, 2, 15, 16, 17, 33, 100, 1000)
_LOGIT_SPECIALS = ("ties", "nan", "nothing", "inf")


@define(
    "argmax",
    sweep("V", _VOCABS, R=3),
    sweep("R", (0, 1, 17), V=33),
    [{"R": 4, "V": 50, "special": special} for special in _LOGIT_SPECIALS],
    [{"R": 2, "V": 49152}],
)
def _argmax(rng: Rng, *, R: int, V: int, special: str = "") -> Call:
    operands = {"out": Operand.empty((R,), "int32"), "logits": Operand.of(_logits(rng, R, V, special), "float32")}
    return Call(operands, {})


@define(
    "sample",
    sweep("V", _VOCABS, R=5),
    sweep("R", (0, 1, 17), V=33),
    [{"R": 24, "V": 100, "mode": mode} for mode in ("greedy", "temperature", "top_k", "top_p", "both")],
    [{"R": 6, "V": 50, "special": special} for special in _LOGIT_SPECIALS],
    [{"R": 6, "V": 50, "mode": m, "special": s} for m in ("temperature", "top_p", "both") for s in _LOGIT_SPECIALS],
    [{"R": 3, "V": 49152, "mode": mode} for mode in ("temperature", "top_k", "top_p", "both")],
    [{"R": 6, "V": 50, "mode": m, "t": t} for m in ("temperature", "top_k", "both") for t in (1e-38, 1e-5, 1e38)],
    [{"R": 6, "V": 50, "t": 1e-38, "special": special} for special in _LOGIT_SPECIALS],
)
def _sample(rng: Rng, *, R: int, V: int, mode: str = "mixed", special: str = "", t: float = 0.0) -> Call:
    temperature = rng.uniform(0.2, 2.0, R).astype(np.float32)
    if t > 0:
        temperature[:] = t
    top_k = rng.choice([1, 2, 5, 17, V, V + 3], R)
    top_p = rng.choice(np.array([1e-6, 0.1, 0.5, 0.9, 0.999], np.float32), R)
    if mode == "greedy":
        temperature[:] = 0
    if mode in ("temperature", "top_p"):
        top_k[:] = 0
    if mode in ("temperature", "top_k"):
        top_p[:] = 1
    if mode == "mixed":
        temperature[::4], top_k[::2], top_p[::3] = 0, 0, 1
    operands = {
        "out": Operand.empty((R,), "int32"),
        "logits": Operand.of(_logits(rng, R, V, special), "float32"),
        "temperature": Operand.of(temperature, "float32"),
        "top_k": ints(top_k),
        "top_p": Operand.of(top_p, "float32"),
        "seed": ints(rng.integers(0, 2**64, R, np.uint64), "uint64"),
        # Beyond 32 bits as well: the counter has both halves.
        "position": ints(rng.integers(0, 2**40, R), "int64"),
    }
    return Call(operands, {})


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


@define("stop_check", sweep("R", (0, 1, 40), E=2), sweep("E", (0, 1, 5), R=20))
def _stop_check(rng: Rng, *, R: int, E: int) -> Call:
    operands = {
        "reason": Operand.empty((R,), "int32"),
        "sampled": ints(rng.integers(0, 6, R)),
        "generated": ints(rng.integers(1, 5, R)),
        "max_tokens": ints(rng.integers(1, 5, R)),
        "ignore_eos": ints(rng.integers(0, 2, R), "uint8"),
        "eos": ints(rng.permutation(6)[:E]),
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
