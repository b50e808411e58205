"""The shape classes of every op, as named and seeded cases.

Invariant: a case is its name and a seed. ``rms_norm[T=3,H=33]`` built twice, in any order, on any machine, gives the
same bytes, so a failure is run again by the name it was reported with. Nothing here knows a device.

Classes covered: 0 and 1 tokens, odd sizes and sizes beside multiples of 16 and 32, block borders, GQA ratios 1, 2, 3
and 8, head sizes 1 to 128, windows, mixed batches of prefill, chunk and decode, both pool orders, every KV dtype and
weight format, strided rows, and NaN and infinity where they may turn up.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel.errors import InvalidArgument
from accel.ops.attention import KV_DTYPES, visible_range
from accel.ops.operand import Operand, WeightOperand
from accel.ops.pages import POOL_DTYPES
from accel.ops.rounding import GGUF_BLOCK, GGUF_ROW_BYTES, decode, dequantize, encode, storage_dtype
from accel.ops.spec import OpSpec, op_spec

__all__ = ["ORDERS", "Call", "Case", "case", "cases", "parse_requests", "random_weight"]

Rng = np.random.Generator
Params = Mapping[str, Any]

#: Dimensions of the pool view [N, L, 2, KV, S, D] from outermost to innermost in memory.
ORDERS: Mapping[str, tuple[int, ...]] = {"page_first": (0, 1, 2, 3, 4, 5), "layer_first": (1, 2, 0, 3, 4, 5)}

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


@dataclass
class Call:
    """Arguments of one call in the order of the spec, and its attributes."""

    operands: Mapping[str, Operand | WeightOperand | None]
    attributes: Mapping[str, Any]

    def copy(self) -> Call:
        """The same call over copies of all buffers; views that share one still do."""
        buffers: dict[int, NDArray[Any]] = {}
        operands: dict[str, Operand | WeightOperand | None] = {}
        for name, operand in self.operands.items():
            if isinstance(operand, Operand):
                buffer = buffers.setdefault(id(operand.buffer), operand.buffer.copy())
                operand = Operand(buffer, operand.dtype, operand.shape, operand.strides, operand.offset)
            operands[name] = operand
        return Call(operands, dict(self.attributes))

    def operand(self, name: str) -> Operand:
        """The tensor argument `name`. Raises KeyError where there is none."""
        found = self.operands[name]
        if not isinstance(found, Operand):
            raise KeyError(name)
        return found


@dataclass(frozen=True)
class Case:
    """One shape class of one op. ``str(case)`` is its identity."""

    op: str
    params: tuple[tuple[str, Any], ...]
    seed: int

    def __str__(self) -> str:
        return f"{self.op}[{','.join(f'{key}={value}' for key, value in self.params)}]"

    @property
    def spec(self) -> OpSpec:
        return op_spec(self.op)

    def build(self) -> Call:
        """Fresh arguments; the same bytes each time."""
        rng = np.random.default_rng([self.seed, zlib.crc32(str(self).encode())])
        return _FAMILIES[self.op][0](rng, **dict(self.params))


def cases(spec: OpSpec, seed: int = 0) -> list[Case]:
    """Every case of the op `spec`. Names are unique."""
    if spec.name not in _FAMILIES:
        raise InvalidArgument(f"op {spec.name!r} has no cases; known: {', '.join(_FAMILIES)}", op=spec.name)
    return [Case(spec.name, tuple(params.items()), seed) for params in _FAMILIES[spec.name][1]]


def case(name: str, seed: int = 0) -> Case:
    """The case called `name`, as a failure printed it."""
    op = name.partition("[")[0]
    known = cases(op_spec(op), seed) if op in _FAMILIES else []
    for candidate in known:
        if str(candidate) == name:
            return candidate
    raise InvalidArgument(f"no case {name!r}; {op!r} has {len(known)}", case=name)


_FAMILIES: dict[str, tuple[Callable[..., Call], list[Params]]] = {}


def _cases(op: str, *params: Iterable[Params]) -> Callable[[Callable[..., Call]], Callable[..., Call]]:
    """Register the decorated builder and its parameters for `op`."""

    def add(build: Callable[..., Call]) -> Callable[..., Call]:
        _FAMILIES[op] = (build, [p for group in params for p in group])
        return build

    return add


def _sweep(key: str, values: Iterable[Any], **fixed: Any) -> list[Params]:
    return [{key: value, **fixed} for value in values]


# --- values -----------------------------------------------------------------------------------------------------------


def _normal(rng: Rng, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape, np.float32)


def _floats(rng: Rng, *shape: int, special: str = "", padding: tuple[int, ...] = ()) -> Operand:
    """Normal values; `special` puts "nan" in one element of row 0, or "inf" of both signs in rows 0 and 1."""
    values = _normal(rng, *shape)
    if special == "nan":
        values[0, ..., -1] = np.nan
    elif special == "inf":
        values[0, ..., 0], values[1, ..., -1] = np.inf, -np.inf
    elif special == "huge":
        values[0], values[1] = values[0] * 1e15, values[1] * 1e-15
    return Operand.of(values, "float32", padding=padding)


def _ints(values: Any, dtype: str = "int32") -> Operand:
    return Operand.of(np.asarray(values, storage_dtype(dtype)), dtype)


def random_weight(rng: Rng, n: int, k: int, format: str, encoding: str = "float32") -> WeightOperand:
    """A weight [n, k] held as `format`, made of rows of `encoding`; its products with normal values are of order 1."""
    if encoding not in GGUF_ROW_BYTES:
        plain = encode(_normal(rng, n, k) / np.float32(math.sqrt(k)), encoding)
        held = decode(encode(decode(plain), format))
        return WeightOperand(format, encoding, plain.view(np.uint8), held)
    blocks = rng.integers(0, 256, (n, k // GGUF_BLOCK, GGUF_ROW_BYTES[encoding]), np.uint8)
    spread = {"Q4_0": 5.0, "Q4_1": 5.0, "Q8_0": 75.0}[encoding] * math.sqrt(k)
    scale = (rng.uniform(0.5, 1.5, blocks.shape[:2]) * rng.choice([-1, 1], blocks.shape[:2]) / spread).astype("<f2")
    blocks[..., :2] = scale[..., None].view(np.uint8)
    if encoding == "Q4_1":
        blocks[..., 2:4] = (-8 * scale).astype("<f2")[..., None].view(np.uint8)
    rows = blocks.reshape(n, -1)
    return WeightOperand(format, encoding, rows, dequantize(encoding, rows, k))


# --- norm, rotary, activation -----------------------------------------------------------------------------------------

_ODD_ROWS = (1, 15, 16, 17, 31, 32, 33, 64, 100, 576)


@_cases(
    "rms_norm",
    _sweep("H", _ODD_ROWS, T=3),
    _sweep("T", (0, 1, 17), H=33),
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
    x = _floats(rng, *shape, special=special, padding=padding)
    out = x if layout == "in_place" else Operand.empty(shape, "float32", padding=padding)
    weight = _floats(rng, H)
    return Call({"out": out, "x": x, "weight": weight}, {"eps": eps})


@_cases(
    "add_rms_norm",
    _sweep("H", _ODD_ROWS, T=3),
    _sweep("T", (0, 1, 17), H=33),
    [{"T": 64, "H": 1024}],
    [{"T": 3, "H": 33, "special": special} for special in ("nan", "inf", "huge")],
)
def _add_rms_norm(rng: Rng, *, T: int, H: int, special: str = "") -> Call:
    residual, x, weight = _floats(rng, T, H), _floats(rng, T, H, special=special), _floats(rng, H)
    operands = {"out": Operand.empty((T, H), "float32"), "residual": residual, "x": x, "weight": weight}
    return Call(operands, {"eps": 1e-5})


@_cases(
    "rotary",
    _sweep("T", (0, 1, 7), A=2, D=64, E=64),
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
    x = _floats(rng, T, A, D, special=special, padding=(23, 7, 0) if layout == "strided" else ())
    operands = {"x": x, "positions": _ints(positions), "table": Operand.of(table, "float32")}
    return Call(operands, {"interleaved": interleaved})


@_cases(
    "silu_and_mul",
    _sweep("I", (1, 15, 16, 17, 33, 100, 1536), T=3),
    _sweep("T", (0, 1, 17), I=33),
    [{"T": 3, "I": 33, "special": special} for special in ("nan", "inf", "large")],
)
def _silu_and_mul(rng: Rng, *, T: int, I: int, special: str = "") -> Call:  # noqa: E741
    x = _floats(rng, T, 2 * I, special=special if special != "large" else "")
    if special == "large":
        # Around where exp overflows and underflows float32, and beyond.
        gates = [-1e30, -200, -104, -88.9, -88.6, -87, -20, 20, 88, 104, 1e30]
        x.array[:, :I] = rng.choice(np.array(gates, np.float32), (T, I))
    return Call({"out": Operand.empty((T, I), "float32"), "x": x}, {})


# --- attention --------------------------------------------------------------------------------------------------------


def parse_requests(text: str) -> list[tuple[int, int]]:
    """``"7/20+1/33"`` as [(query tokens, KV tokens), ...]; "none" is an empty batch."""
    if text == "none":
        return []
    return [(int(query), int(kv)) for query, kv in (part.split("/") for part in text.split("+"))]


def _pool(rng: Rng, shape: tuple[int, ...], dtype: str, order: str, *, filled: bool = True) -> Operand:
    """A pool [N, L, 2, KV, S, D] of random values, or of guard values (NaN)."""
    pool = Operand.empty(shape, dtype, order=ORDERS[order])
    if filled and dtype in ("int8", "uint8"):
        pool.array[...] = rng.integers(0, 256, shape, np.uint8).view(dtype)
    elif filled:
        pool.array[...] = encode(_normal(rng, *shape), dtype)
    return pool


@_cases(
    "write_kv",
    _sweep("T", (0, 1, 19), KV=2, D=16, S=4),
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
    k = _floats(rng, T, KV, D, special="nan" if special == "nan" else "", padding=padding)
    v = _floats(rng, T, KV, D, padding=padding)
    if special == "edges":
        k.array[...] = _rounding_edges(rng, T * KV * D).reshape(T, KV, D)
    slots = rng.permutation(blocks * S)[:T].astype(np.int64)
    if special == "skip":
        slots[::3] = -1
    layers = _pool(rng, (blocks, 2, 2, KV, S, D), kv, order)
    operands = {"kv": layers.part(slice(None), 1), "k": k, "v": v, "slot_mapping": _ints(slots, "int64")}
    return Call(operands, {})


def _rounding_edges(rng: Rng, count: int) -> NDArray[np.float32]:
    """Values where rounding to 16 bits is delicate: ties, carries into the exponent, overflow, subnormals, zeros."""
    edges = np.array(
        [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 1 + 2**-11, 1 + 3 * 2**-11, 1.9999999, 65519, 65520,
         -65536, 3.4e38, np.inf, -np.inf, 2**-14, 2**-24, 2**-25, 1.5 * 2**-24, 2.5 * 2**-24, 1e-8, 1e-38],
        np.float32,
    )  # fmt: skip
    return rng.choice(edges, count)


_MIXED = "1/33+5/5+7/20+1/1+1/16+16/32"
_HEADS = ((1, 1), (2, 2), (4, 2), (6, 2), (3, 1), (8, 1), (24, 3))
_SPECIALS = ("nan_query", "nan_last_key", "nan_value", "inf_value", "hot")


@_cases(
    "attention",
    _sweep(
        "requests",
        ("none", "1/1", "1/15", "1/16", "1/17", "1/31", "15/15", "16/16", "17/17", "2/17", "33/97", "3/3+0/5+1/4"),
    ),
    _sweep("D", (1, 2, 8, 16, 24, 32, 64, 80, 96, 128), requests="3/3+1/18"),
    [{"A": a, "KV": kv, "requests": "4/21+1/40"} for a, kv in _HEADS],
    [{"kv": kv, "order": order, "requests": _MIXED} for kv in KV_DTYPES for order in ORDERS],
    _sweep("S", (1, 4, 32, 64), requests="1/64+9/70+1/5"),
    _sweep("window", (1, 2, 15, 16, 17, 40, 1000), requests="20/40+1/50+1/3"),
    _sweep("window", (5, 32), requests=_MIXED, kv="bfloat16", order="layer_first"),
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
    tables, blocks = _block_tables(rng, [length for _, length in plan], S)
    layer = _pool(rng, (blocks, 2, 2, KV, S, D), kv, order, filled=False).part(slice(None), 1)
    for (query, length), table in zip(plan, tables, strict=True):
        # Only what some query sees is filled: the rest stays NaN, and must not be read.
        tokens = np.arange(visible_range(length - query, window)[0], length)
        values = encode(_normal(rng, len(tokens), 2, KV, D), kv)
        layer.array[table[tokens // S], :, :, tokens % S] = values
    q = _floats(rng, *shape, padding=(2 * KV * D, 3, 0) if layout == "strided" else ())
    out = Operand.empty(shape, "float32", padding=(9, 5, 0) if layout == "strided" else ())
    if special:
        _attention_special(special, plan[0], tables[0], q, layer)
    operands = {
        "out": out,
        "q": q,
        "kv": layer,
        "block_tables": _ints(tables),
        "query_start": _ints(starts),
        "kv_lens": _ints([length for _, length in plan]),
    }
    return Call(operands, {"scale": 2.0 if special == "hot" else D**-0.5, "window": window})


def _block_tables(rng: Rng, kv_lens: list[int], block_size: int) -> tuple[NDArray[np.int32], int]:
    """Random disjoint blocks for each request, and the number of blocks in the pool (some stay unused).

    Entries past a request's end are what nobody may follow.
    """
    used = [-(-length // block_size) for length in kv_lens]
    width = max(used, default=0) + 2
    tables = np.full((len(used), width), -1, np.int32)
    tables[:, -1:] = np.iinfo(np.int32).max
    free = rng.permutation(sum(used) + 3)
    for row, count in enumerate(used):
        tables[row, :count], free = free[:count], free[count:]
    return tables, sum(used) + 3


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


@_cases(
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
        "x": _floats(rng, T, K, special=special),
        "weight": random_weight(rng, N, K, format, encoding),
        "bias": _floats(rng, N) if bias else None,
    }
    return Call(operands, {})


@_cases(
    "embedding",
    [{"T": 5, "V": 70, "H": 96, "format": format, "encoding": encoding} for format, encoding in _FORMATS],
    [{"T": t, "V": 33, "H": 33, "format": format} for format in ("float32", "bfloat16", "float16") for t in (0, 1, 40)],
    [{"T": 3, "V": 1, "H": 1, "format": "float32"}],
)
def _embedding(rng: Rng, *, T: int, V: int, H: int, format: str, encoding: str = "float32") -> Call:
    ids = rng.integers(0, V, T)
    ids[:1], ids[-1:] = 0, V - 1
    weight = random_weight(rng, V, H, format, encoding)
    return Call({"out": Operand.empty((T, H), "float32"), "ids": _ints(ids), "weight": weight}, {})


@_cases(
    "gather_rows",
    _sweep("R", (0, 1, 5), T=9, H=33),
    _sweep("H", (1, 16, 17, 576), R=3, T=4),
    [{"R": 0, "T": 0, "H": 7}],
    [{"R": 3, "T": 2, "H": 17, "special": special} for special in ("nan", "inf")],
)
def _gather_rows(rng: Rng, *, R: int, T: int, H: int, special: str = "") -> Call:
    index = rng.integers(0, max(T, 1), R)
    index[:1] = T - 1
    x = _floats(rng, T, H, special=special)
    return Call({"out": Operand.empty((R, H), "float32"), "x": x, "index": _ints(index)}, {})


# --- sampling ---------------------------------------------------------------------------------------------------------


def _logits(rng: Rng, R: int, V: int, special: str) -> NDArray[np.float32]:
    """Logits of spread 3; `special`: "ties", "nan" scattered with -inf, "nothing" to pick, "inf" once in each row."""
    logits: NDArray[np.float32] = _normal(rng, R, V) * np.float32(3)
    if special == "ties":
        logits = np.round(logits / 3) * np.float32(3)
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


@_cases(
    "argmax",
    _sweep("V", _VOCABS, R=3),
    _sweep("R", (0, 1, 17), V=33),
    [{"R": 4, "V": 50, "special": special} for special in _LOGIT_SPECIALS],
    [{"R": 2, "V": 49152}],
)
def _argmax(rng: Rng, *, R: int, V: int, special: str = "") -> Call:
    operands = {"out": Operand.empty((R,), "int32"), "logits": Operand.of(_logits(rng, R, V, special), "float32")}
    return Call(operands, {})


@_cases(
    "sample",
    _sweep("V", _VOCABS, R=5),
    _sweep("R", (0, 1, 17), V=33),
    [{"R": 24, "V": 100, "mode": mode} for mode in ("greedy", "temperature", "top_k", "top_p", "both")],
    [{"R": 6, "V": 50, "special": special} for special in _LOGIT_SPECIALS],
    [{"R": 6, "V": 50, "mode": m, "special": s} for m in ("temperature", "top_p", "both") for s in _LOGIT_SPECIALS],
    [{"R": 3, "V": 49152, "mode": mode} for mode in ("temperature", "top_k", "top_p", "both")],
)
def _sample(rng: Rng, *, R: int, V: int, mode: str = "mixed", special: str = "") -> Call:
    temperature = rng.uniform(0.2, 2.0, R).astype(np.float32)
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
        "top_k": _ints(top_k),
        "top_p": Operand.of(top_p, "float32"),
        "seed": _ints(rng.integers(0, 2**64, R, np.uint64), "uint64"),
        # Beyond 32 bits as well: the counter has both halves.
        "position": _ints(rng.integers(0, 2**40, R), "int64"),
    }
    return Call(operands, {})


# --- step state -------------------------------------------------------------------------------------------------------


@_cases(
    "pack_step",
    _sweep("requests", ("none", "1/1", "1/16", "1/17", "5/5", "16/16", "17/33", _MIXED), S=16),
    _sweep("S", (1, 3, 64), requests="7/20+1/33+4/4"),
    [{"requests": "1/9+1/30+1/2", "S": 8, "source": "sampled"}],
)
def _pack_step(rng: Rng, *, requests: str, S: int, source: str = "host") -> Call:
    plan = parse_requests(requests)
    starts = np.concatenate([[0], np.cumsum([query for query, _ in plan])]).astype(np.int32)
    tokens = rng.integers(0, 1000, starts[-1])
    tokens[rng.random(len(tokens)) < (1.0 if source == "sampled" else 0.2)] = -1
    tables, _ = _block_tables(rng, [length for _, length in plan], S)
    held = len(plan) + 2
    operands = {
        "input_ids": Operand.empty(tokens.shape, "int32"),
        "positions": Operand.empty(tokens.shape, "int32"),
        "slot_mapping": Operand.empty(tokens.shape, "int64"),
        "kv_lens": Operand.empty((len(plan),), "int32"),
        "last_rows": Operand.empty((len(plan),), "int32"),
        "tokens": _ints(tokens),
        "slots": _ints(rng.permutation(held)[: len(plan)]),
        "query_start": _ints(starts),
        "computed": _ints([length - query for query, length in plan]),
        "block_tables": _ints(tables),
        "last_token": _ints(rng.integers(0, 1000, held)),
    }
    return Call(operands, {"block_size": S})


@_cases("stop_check", _sweep("R", (0, 1, 40), E=2), _sweep("E", (0, 1, 5), R=20))
def _stop_check(rng: Rng, *, R: int, E: int) -> Call:
    operands = {
        "reason": Operand.empty((R,), "int32"),
        "sampled": _ints(rng.integers(0, 6, R)),
        "generated": _ints(rng.integers(1, 5, R)),
        "max_tokens": _ints(rng.integers(1, 5, R)),
        "ignore_eos": _ints(rng.integers(0, 2, R), "uint8"),
        "eos": _ints(rng.permutation(6)[:E]),
    }
    return Call(operands, {})


@_cases("update_slots", _sweep("R", (0, 1, 5, 20), slots=20))
def _update_slots(rng: Rng, *, R: int, slots: int) -> Call:
    sampled = rng.integers(0, 1000, R)
    sampled[1::3] = -1
    operands = {
        "last_token": _ints(rng.integers(0, 1000, slots)),
        "slots": _ints(rng.permutation(slots)[:R]),
        "sampled": _ints(sampled),
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
    pool = _pool(rng, (2 * n + 3, L, 2, KV, S, D), dtype, order)
    return pool, rng.permutation(2 * n + 3), L * 2 * KV * S * D * storage_dtype(dtype).itemsize


@_cases("pages_gather", _PAGE_PARAMS)
def _pages_gather(rng: Rng, *, n: int, dtype: str, order: str, L: int = 2, KV: int = 2, S: int = 4, D: int = 8) -> Call:
    pool, blocks, size = _paged(rng, n, dtype, order, L, KV, S, D)
    repeated = np.concatenate([blocks[: n - 1], blocks[:1]]) if n > 1 else blocks[:n]
    operands = {"out": Operand.empty((n, size), "uint8"), "pool": pool, "blocks": _ints(repeated)}
    return Call(operands, {})


@_cases("pages_scatter", _PAGE_PARAMS)
def _pages_scatter(
    rng: Rng, *, n: int, dtype: str, order: str, L: int = 2, KV: int = 2, S: int = 4, D: int = 8
) -> Call:
    pool, blocks, size = _paged(rng, n, dtype, order, L, KV, S, D)
    data = rng.integers(0, 256, (n, size), np.uint8)
    return Call({"pool": pool, "data": _ints(data, "uint8"), "blocks": _ints(blocks[:n])}, {})


@_cases("pages_copy", _PAGE_PARAMS)
def _pages_copy(rng: Rng, *, n: int, dtype: str, order: str, L: int = 2, KV: int = 2, S: int = 4, D: int = 8) -> Call:
    pool, blocks, _ = _paged(rng, n, dtype, order, L, KV, S, D)
    # One source feeds two copies, as when a beam splits.
    source = np.concatenate([blocks[: n - 1], blocks[:1]]) if n > 1 else blocks[:n]
    return Call({"pool": pool, "src": _ints(source), "dst": _ints(blocks[n : 2 * n])}, {})


@_cases("pages_zero", _PAGE_PARAMS)
def _pages_zero(rng: Rng, *, n: int, dtype: str, order: str, L: int = 2, KV: int = 2, S: int = 4, D: int = 8) -> Call:
    pool, blocks, _ = _paged(rng, n, dtype, order, L, KV, S, D)
    return Call({"pool": pool, "blocks": _ints(blocks[:n])}, {})


@_cases("pages_checksum", _PAGE_PARAMS)
def _pages_checksum(
    rng: Rng, *, n: int, dtype: str, order: str, L: int = 2, KV: int = 2, S: int = 4, D: int = 8
) -> Call:
    pool, blocks, _ = _paged(rng, n, dtype, order, L, KV, S, D)
    return Call({"out": Operand.empty((n,), "uint64"), "pool": pool, "blocks": _ints(blocks[:n])}, {})
