"""The shape classes of every op, as named and seeded cases.

Invariant: a case is its name and a seed. ``rms_norm[T=3,H=33]`` built twice, in any order, on any machine, gives the
same bytes, so a failure is run again by the name it was reported with. Nothing here knows a device.

Classes covered: 0 and 1 tokens, odd sizes and sizes beside multiples of 16 and 32, block borders, GQA ratios 1, 2, 3
and 8, head sizes 1 to 128, windows, mixed batches of prefill, chunk and decode, both pool orders, every KV dtype and
weight format, strided rows, and NaN and infinity where they may turn up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accel.errors import InvalidArgument
from accel.ops import cases_sampling, cases_step  # noqa: F401  their cases register themselves
from accel.ops.attention import KV_DTYPES, visible_range
from accel.ops.case import (
    FAMILIES,
    MIXED,
    ORDERS,
    Call,
    Case,
    Rng,
    block_tables,
    define,
    floats,
    ints,
    kv_pool,
    normal,
    parse_requests,
    random_weight,
    sweep,
)
from accel.ops.operand import Operand, WeightOperand
from accel.ops.rounding import encode
from accel.ops.spec import OpSpec, op_spec

__all__ = ["ORDERS", "Call", "Case", "case", "cases", "parse_requests", "random_weight"]

#: How a weight is held, and what the rows are that it is made of.
_FORMATS = (
    ("float32", "float32"),
    ("float32", "float16"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
    ("float16", "float16"),
    ("float16", "float32"),
    ("float16", "bfloat16"),
    ("q8", "Q8_0"),
    ("q4", "Q4_0"),
    ("q4", "Q4_1"),
)


def cases(spec: OpSpec, seed: int = 0) -> list[Case]:
    """Every case of the op `spec`. Names are unique."""
    if spec.name not in FAMILIES:
        raise InvalidArgument(f"op {spec.name!r} has no cases; known: {', '.join(FAMILIES)}", op=spec.name)
    return [Case(spec.name, tuple(params.items()), seed) for params in FAMILIES[spec.name][1]]


def case(name: str, seed: int = 0) -> Case:
    """The case called `name`, as a failure printed it."""
    op = name.partition("[")[0]
    known = cases(op_spec(op), seed) if op in FAMILIES else []
    for candidate in known:
        if str(candidate) == name:
            return candidate
    raise InvalidArgument(f"no case {name!r}; {op!r} has {len(known)}", case=name)


# --- norm, rotary, activation -----------------------------------------------------------------------------------------

_ODD_ROWS = (1, 15, 16, 17, 31, 32, 33, 64, 100, 576)


@define(
    "rms_norm",
    sweep("H", _ODD_ROWS, T=3),
    sweep("T", (0, 1, 17), H=33),
    [{"T": 3, "H": 64, "eps": 1e-6}, {"T": 64, "H": 1024}],
    [{"T": 5, "A": 3, "H": h, "layout": layout} for h in (16, 80) for layout in ("plain", "strided", "in_place")],
    [{"T": 4, "H": 33, "layout": layout} for layout in ("strided", "in_place")],
    [{"T": 3, "H": 33, "special": special} for special in ("nan", "inf", "huge")],
)
def _rms_norm(
    rng: Rng, *, T: int, H: int, A: int = 0, eps: float = 1e-5, layout: str = "plain", special: str = ""
) -> Call:
    shape = (T, A, H) if A else (T, H)
    padding = (11, 5, 0)[-len(shape) :] if layout != "plain" else ()
    x = floats(rng, *shape, special=special, padding=padding)
    out = x if layout == "in_place" else Operand.empty(shape, "float32", padding=padding)
    weight = floats(rng, H)
    return Call({"out": out, "x": x, "weight": weight}, {"eps": eps})


@define(
    "add_rms_norm",
    sweep("H", _ODD_ROWS, T=3),
    sweep("T", (0, 1, 17), H=33),
    [{"T": 64, "H": 1024}],
    [{"T": 3, "H": 33, "special": special} for special in ("nan", "inf", "huge")],
)
def _add_rms_norm(rng: Rng, *, T: int, H: int, special: str = "") -> Call:
    residual, x, weight = floats(rng, T, H), floats(rng, T, H, special=special), floats(rng, H)
    operands = {"out": Operand.empty((T, H), "float32"), "residual": residual, "x": x, "weight": weight}
    return Call(operands, {"eps": 1e-5})


@define(
    "rotary",
    sweep("T", (0, 1, 7), A=2, D=64, E=64),
    [
        {"T": 3, "A": 3, "D": d, "E": e, "interleaved": interleaved}
        for d, e in ((2, 2), (16, 16), (34, 34), (64, 64), (80, 80), (128, 128), (64, 32), (80, 20), (33, 30))
        for interleaved in (False, True)
    ],
    [{"T": 64, "A": 8, "D": 64, "E": 64}],
    [{"T": 4, "A": 2, "D": 64, "E": 32, "interleaved": i, "layout": "strided"} for i in (False, True)],
    [{"T": 3, "A": 2, "D": 32, "E": 32, "special": special} for special in ("nan", "inf")],
)
def _rotary(
    rng: Rng,
    *,
    T: int,
    A: int,
    D: int,
    E: int,
    interleaved: bool = False,
    layout: str = "plain",
    special: str = "",
) -> Call:
    limit = 50
    angles = np.outer(np.arange(limit), 10000.0 ** (-np.arange(E // 2) / max(E // 2, 1)))
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    positions = rng.integers(0, limit, T)
    positions[-1:] = limit - 1
    x = floats(rng, T, A, D, special=special, padding=(23, 7, 0) if layout == "strided" else ())
    operands = {"x": x, "positions": ints(positions), "table": Operand.of(table, "float32")}
    return Call(operands, {"interleaved": interleaved})


@define(
    "silu_and_mul",
    sweep("I", (1, 15, 16, 17, 33, 100, 1536), T=3),
    sweep("T", (0, 1, 17), I=33),
    [{"T": 3, "I": 33, "special": special} for special in ("nan", "inf", "large")],
)
def _silu_and_mul(rng: Rng, *, T: int, I: int, special: str = "") -> Call:  # noqa: E741
    x = floats(rng, T, 2 * I, special=special if special != "large" else "")
    if special == "large":
        # Around where exp overflows and underflows float32, and beyond.
        gates = [-1e30, -200, -104, -88.9, -88.6, -87, -20, 20, 88, 104, 1e30]
        x.array[:, :I] = rng.choice(np.array(gates, np.float32), (T, I))
    return Call({"out": Operand.empty((T, I), "float32"), "x": x}, {})


# --- attention --------------------------------------------------------------------------------------------------------


@define(
    "write_kv",
    sweep("T", (0, 1, 19), KV=2, D=16, S=4),
    [{"T": 9, "KV": 2, "D": d, "S": 16} for d in (1, 33, 64, 80, 128)],
    [
        {"T": 11, "KV": 3, "D": 16, "S": 4, "kv": kv, "order": order, "special": special}
        for kv in KV_DTYPES
        for order in ORDERS
        for special in ("edges", "skip", "nan")
    ],
    [{"T": 5, "KV": 2, "D": 33, "S": 1, "kv": kv, "layout": "strided"} for kv in KV_DTYPES],
)
def _write_kv(
    rng: Rng,
    *,
    T: int,
    KV: int,
    D: int,
    S: int,
    kv: str = "float32",
    order: str = "page_first",
    layout: str = "plain",
    special: str = "",
) -> Call:
    blocks = T // S + 3
    padding = (D, 3, 0) if layout == "strided" else ()
    k = floats(rng, T, KV, D, special="nan" if special == "nan" else "", padding=padding)
    v = floats(rng, T, KV, D, padding=padding)
    if special == "edges":
        k.array[...] = _rounding_edges(rng, T * KV * D).reshape(T, KV, D)
    slots = rng.permutation(blocks * S)[:T].astype(np.int64)
    if special == "skip":
        slots[::3] = -1
    layers = kv_pool(rng, (blocks, 2, 2, KV, S, D), kv, order)
    operands = {"kv": layers.part(slice(None), 1), "k": k, "v": v, "slot_mapping": ints(slots, "int64")}
    return Call(operands, {})


def _rounding_edges(rng: Rng, count: int) -> NDArray[np.float32]:
    """Values where rounding to 16 bits is delicate: ties, carries into the exponent, overflow, subnormals, zeros."""
    edges = np.array(
        [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 1 + 2**-11, 1 + 3 * 2**-11, 1.9999999, 65519, 65520,
         -65536, 3.4e38, np.inf, -np.inf, 2**-14, 2**-24, 2**-25, 1.5 * 2**-24, 2.5 * 2**-24, 1e-8, 1e-38],
        np.float32,
    )  # fmt: skip
    return rng.choice(edges, count)


_HEADS = ((1, 1), (2, 2), (4, 2), (6, 2), (3, 1), (8, 1), (24, 3))
_SPECIALS = ("nan_query", "nan_last_key", "nan_value", "inf_value", "hot")


@define(
    "attention",
    sweep(
        "requests",
        ("none", "1/1", "1/15", "1/16", "1/17", "1/31", "15/15", "16/16", "17/17", "2/17", "33/97", "3/3+0/5+1/4"),
    ),
    sweep("D", (1, 2, 8, 16, 24, 32, 64, 80, 96, 128), requests="3/3+1/18"),
    [{"A": a, "KV": kv, "requests": "4/21+1/40"} for a, kv in _HEADS],
    [{"kv": kv, "order": order, "requests": MIXED} for kv in KV_DTYPES for order in ORDERS],
    sweep("S", (1, 4, 32, 64), requests="1/64+9/70+1/5"),
    sweep("window", (1, 2, 15, 16, 17, 40, 1000), requests="20/40+1/50+1/3"),
    sweep("window", (5, 32), requests=MIXED, kv="bfloat16", order="layer_first"),
    [{"requests": "7/20+1/33+4/4", "special": s} for s in _SPECIALS],
    [{"requests": "7/20+1/33+4/4", "D": d, "layout": "strided"} for d in (16, 80)],
    [{"A": 8, "KV": 2, "D": 64, "requests": "64/128+1/300+1/17", "kv": "bfloat16"}],
    [{"requests": "+".join(["1/33", "5/5", "7/20", "1/1"] * 4), "kv": "bfloat16"}],
)
def _attention(
    rng: Rng,
    *,
    requests: str,
    A: int = 4,
    KV: int = 2,
    D: int = 16,
    S: int = 16,
    kv: str = "float32",
    order: str = "page_first",
    window: int = 0,
    layout: str = "plain",
    special: str = "",
) -> Call:
    plan = parse_requests(requests)
    lengths = np.array([query for query, _ in plan], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    shape = (int(starts[-1]), A, D)
    tables, blocks = block_tables(rng, [length for _, length in plan], S)
    layer = kv_pool(rng, (blocks, 2, 2, KV, S, D), kv, order, filled=False).part(slice(None), 1)
    for (query, length), table in zip(plan, tables, strict=True):
        # Only what some query sees is filled: the rest stays NaN, and must not be read.
        tokens = np.arange(visible_range(length - query, window)[0], length)
        values = encode(normal(rng, len(tokens), 2, KV, D), kv)
        layer.array[table[tokens // S], :, :, tokens % S] = values
    q = floats(rng, *shape, padding=(2 * KV * D, 3, 0) if layout == "strided" else ())
    out = Operand.empty(shape, "float32", padding=(9, 5, 0) if layout == "strided" else ())
    if special:
        _attention_special(special, plan[0], tables[0], q, layer)
    operands = {
        "out": out,
        "q": q,
        "kv": layer,
        "block_tables": ints(tables),
        "query_start": ints(starts),
        "kv_lens": ints([length for _, length in plan]),
    }
    return Call(operands, {"scale": 2.0 if special == "hot" else D**-0.5, "window": window})


def _attention_special(
    special: str, request: tuple[int, int], table: NDArray[np.int32], q: Operand, layer: Operand
) -> None:
    """Put the special value in the first request: its second query, its last key, or its last value."""
    last = request[1] - 1
    block, offset = table[last // layer.shape[3]], last % layer.shape[3]
    if special == "nan_query":
        q.array[1, 0, -1] = np.nan
    elif special == "nan_last_key":
        layer.array[block, 0, 0, offset, 0] = np.nan
    elif special == "nan_value":
        layer.array[block, 1, 0, offset, 0] = np.nan
    elif special == "inf_value":
        layer.array[block, 1, 0, offset, 0] = np.inf


# --- linear, embedding ------------------------------------------------------------------------------------------------


@define(
    "linear",
    [
        {"T": t, "N": n, "K": k, "format": format, "encoding": encoding}
        for format, encoding in _FORMATS
        for t, n, k in ((1, 33, 32), (3, 100, 96), (8, 31, 64), (17, 64, 576))
    ],
    [
        {"T": t, "N": n, "K": k, "format": format}
        for format in ("float32", "bfloat16", "float16")
        for t, n, k in ((0, 5, 3), (1, 1, 1), (2, 32, 31), (5, 33, 33), (4, 65, 17))
    ],
    [{"T": 0, "N": 40, "K": 64, "format": "q4", "encoding": "Q4_0"}],
    [{"T": 3, "N": 33, "K": 64, "format": format, "encoding": e, "bias": True} for format, e in _FORMATS],
    [{"T": 3, "N": 33, "K": 64, "format": f, "encoding": e, "special": s} for f, e in _FORMATS for s in ("nan", "inf")],
    [{"T": 40, "N": 500, "K": 256, "format": format, "encoding": encoding} for format, encoding in _FORMATS],
)
def _linear(
    rng: Rng, *, T: int, N: int, K: int, format: str, encoding: str = "float32", bias: bool = False, special: str = ""
) -> Call:
    operands: dict[str, Operand | WeightOperand | None] = {
        "out": Operand.empty((T, N), "float32"),
        "x": floats(rng, T, K, special=special),
        "weight": random_weight(rng, N, K, format, encoding),
        "bias": floats(rng, N) if bias else None,
    }
    return Call(operands, {})


@define(
    "embedding",
    [{"T": 5, "V": 70, "H": 96, "format": format, "encoding": encoding} for format, encoding in _FORMATS],
    [{"T": t, "V": 33, "H": 33, "format": format} for format in ("float32", "bfloat16", "float16") for t in (0, 1, 40)],
    [{"T": 3, "V": 1, "H": 1, "format": "float32"}],
)
def _embedding(rng: Rng, *, T: int, V: int, H: int, format: str, encoding: str = "float32") -> Call:
    ids = rng.integers(0, V, T)
    ids[:1], ids[-1:] = 0, V - 1
    weight = random_weight(rng, V, H, format, encoding)
    return Call({"out": Operand.empty((T, H), "float32"), "ids": ints(ids), "weight": weight}, {})


@define(
    "gather_rows",
    sweep("R", (0, 1, 5), T=9, H=33),
    sweep("H", (1, 16, 17, 576), R=3, T=4),
    [{"R": 0, "T": 0, "H": 7}],
    [{"R": 3, "T": 2, "H": 17, "special": special} for special in ("nan", "inf")],
)
def _gather_rows(rng: Rng, *, R: int, T: int, H: int, special: str = "") -> Call:
    index = rng.integers(0, max(T, 1), R)
    index[:1] = T - 1
    x = floats(rng, T, H, special=special)
    return Call({"out": Operand.empty((R, H), "float32"), "x": x, "index": ints(index)}, {})
