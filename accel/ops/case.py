"""What a case is: a named, seeded call of one op, and the values that calls are made of.

Invariant: a case is its name and a seed. Built twice, in any order, on any machine, it gives the same bytes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel.ops.operand import Operand, WeightOperand
from accel.ops.rounding import GGUF_BLOCK, GGUF_ROW_BYTES, decode, dequantize, encode, storage_dtype
from accel.ops.spec import OpSpec, op_spec

__all__ = [
    "FAMILIES",
    "MIXED",
    "ORDERS",
    "Call",
    "Case",
    "Params",
    "Rng",
    "block_tables",
    "define",
    "floats",
    "ints",
    "kv_pool",
    "normal",
    "parse_requests",
    "random_weight",
    "sweep",
    "word_lists",
]

Rng = np.random.Generator
Params = Mapping[str, Any]

#: Dimensions of the pool view [N, L, 2, KV, S, D] from outermost to innermost in memory.
ORDERS: Mapping[str, tuple[int, ...]] = {"page_first": (0, 1, 2, 3, 4, 5), "layer_first": (1, 2, 0, 3, 4, 5)}

#: A batch of decodes, whole prompts and chunks, for ``parse_requests``.
MIXED = "1/33+5/5+7/20+1/1+1/16+16/32"


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
        return FAMILIES[self.op][0](rng, **dict(self.params))


FAMILIES: dict[str, tuple[Callable[..., Call], list[Params]]] = {}


def define(op: str, *params: Iterable[Params]) -> Callable[[Callable[..., Call]], Callable[..., Call]]:
    """Register the decorated builder and its parameters for `op`."""

    def add(build: Callable[..., Call]) -> Callable[..., Call]:
        FAMILIES[op] = (build, [p for group in params for p in group])
        return build

    return add


def sweep(key: str, values: Iterable[Any], **fixed: Any) -> list[Params]:
    """One parameter over several values, others fixed."""
    return [{key: value, **fixed} for value in values]


# --- values -----------------------------------------------------------------------------------------------------------


def normal(rng: Rng, *shape: int) -> NDArray[np.float32]:
    """Standard normal float32 values."""
    return rng.standard_normal(shape, np.float32)


def floats(rng: Rng, *shape: int, special: str = "", padding: tuple[int, ...] = ()) -> Operand:
    """Normal values; `special` puts "nan" in one element of row 0, or "inf" of both signs in rows 0 and 1."""
    values = normal(rng, *shape)
    if special == "nan":
        values[0, ..., -1] = np.nan
    elif special == "inf":
        values[0, ..., 0], values[1, ..., -1] = np.inf, -np.inf
    elif special == "huge":
        values[0], values[1] = values[0] * 1e15, values[1] * 1e-15
    return Operand.of(values, "float32", padding=padding)


def ints(values: Any, dtype: str = "int32") -> Operand:
    return Operand.of(np.asarray(values, storage_dtype(dtype)), dtype)


def random_weight(rng: Rng, n: int, k: int, format: str, encoding: str = "float32") -> WeightOperand:
    """A weight [n, k] held as `format`, made of rows of `encoding`; its products with normal values are of order 1."""
    if encoding not in GGUF_ROW_BYTES:
        plain = encode(normal(rng, n, k) / np.float32(math.sqrt(k)), encoding)
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


def parse_requests(text: str) -> list[tuple[int, int]]:
    """``"7/20+1/33"`` as [(query tokens, KV tokens), ...]; "none" is an empty batch."""
    if text == "none":
        return []
    return [(int(query), int(kv)) for query, kv in (part.split("/") for part in text.split("+"))]


def kv_pool(rng: Rng, shape: tuple[int, ...], dtype: str, order: str, *, filled: bool = True) -> Operand:
    """A pool [N, L, 2, KV, S, D] of random values, or of guard values (NaN)."""
    pool = Operand.empty(shape, dtype, order=ORDERS[order])
    if filled and dtype in ("int8", "uint8"):
        pool.array[...] = rng.integers(0, 256, shape, np.uint8).view(dtype)
    elif filled:
        pool.array[...] = encode(normal(rng, *shape), dtype)
    return pool


def block_tables(rng: Rng, kv_lens: list[int], block_size: int) -> tuple[NDArray[np.int32], int]:
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


def word_lists(
    rng: Rng, rows: int, ids: int, most: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Up to `most` words of 1 to 4 tokens below `ids` for each of `rows`, row 0 having all: row_start, word_start and
    words of ``accel.ops.ragged``.
    """
    counts = rng.integers(0, most + 1, rows)
    counts[:1] = most
    row_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    lengths = rng.integers(1, 5, int(row_start[-1]))
    lengths[:1] = 1
    word_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return row_start, word_start, rng.integers(0, ids, int(word_start[-1])).astype(np.int32)
