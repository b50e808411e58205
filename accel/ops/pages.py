"""Moving KV pages between the pool and flat records, and their checksum.

Invariant: a page's record is its bytes in canonical order ``[L, 2, KV, S, D]``, whatever the order of the pool in
memory; the pool is always seen as the view ``[N, L, 2, KV, S, D]`` whose last three dimensions are contiguous::

    page_first   memory [N, L, 2, KV, S, D]    a page is one run
    layer_first  memory [L, 2, N, KV, S, D]    a page is L * 2 runs
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel.ops.spec import EXACT, Access, Arg, OpSpec, register

__all__ = [
    "PAGES_CHECKSUM",
    "PAGES_COPY",
    "PAGES_GATHER",
    "PAGES_SCATTER",
    "PAGES_ZERO",
    "POOL_DTYPES",
    "checksum",
    "pages_checksum_reference",
    "pages_copy_reference",
    "pages_gather_reference",
    "pages_scatter_reference",
    "pages_zero_reference",
]

POOL_DTYPES = ("float32", "bfloat16", "float16", "int8", "uint8")

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def pages_gather_reference(out: NDArray[Any], pool: NDArray[Any], blocks: NDArray[Any]) -> None:
    """``out[i]`` [page_bytes] = the record of page ``blocks[i]``; pages may repeat."""
    for i, block in enumerate(blocks.tolist()):
        out[i] = _record(pool, block)


def pages_scatter_reference(pool: NDArray[Any], data: NDArray[Any], blocks: NDArray[Any]) -> None:
    """Page ``blocks[i]`` = the record ``data[i]`` [page_bytes]; no page twice."""
    for i, block in enumerate(blocks.tolist()):
        pool[block] = np.ascontiguousarray(data[i]).view(pool.dtype).reshape(pool.shape[1:])


def pages_copy_reference(pool: NDArray[Any], src: NDArray[Any], dst: NDArray[Any]) -> None:
    """Page ``dst[i]`` = page ``src[i]``; no destination twice, and none that is a source."""
    for source, target in zip(src.tolist(), dst.tolist(), strict=True):
        pool[target] = pool[source]


def pages_zero_reference(pool: NDArray[Any], blocks: NDArray[Any]) -> None:
    """Every byte of the pages `blocks` becomes zero; no page twice."""
    for block in blocks.tolist():
        pool[block] = np.zeros((), pool.dtype)


def pages_checksum_reference(out: NDArray[Any], pool: NDArray[Any], blocks: NDArray[Any]) -> None:
    """``out[i]`` (uint64) = ``checksum`` of the record of page ``blocks[i]``."""
    for i, block in enumerate(blocks.tolist()):
        out[i] = checksum(_record(pool, block))


def checksum(record: NDArray[Any]) -> int:
    """Sum of ``mix(w_i + (i + 1) * 0x9E3779B97F4A7C15)`` mod 2^64 over the little-endian uint32 words w_i of `record`
    (uint8, a multiple of four bytes). It depends on order, and any number of lanes may share the sum.

    Source: mix is the finaliser of splitmix64 (Steele, Lea & Flood, OOPSLA 2014), so a record of zero words sums that
    generator's stream from seed 0.
    """
    words = np.ascontiguousarray(record).view("<u4").astype(np.uint64)
    state = words + np.arange(1, len(words) + 1, dtype=np.uint64) * _GAMMA
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int(np.sum(state ^ (state >> np.uint64(31)), dtype=np.uint64))


def _record(pool: NDArray[Any], block: int) -> NDArray[np.uint8]:
    return np.ascontiguousarray(pool[block]).reshape(-1).view(np.uint8)


def _pool(access: Access = Access.READ) -> Arg:
    return Arg("pool", ("N", "L", 2, "KV", "S", "D"), POOL_DTYPES, access, contiguous=False)


_BLOCKS = Arg("blocks", ("n",), ("int32",))
_BYTES = dict.fromkeys(POOL_DTYPES, EXACT)

PAGES_GATHER = register(
    OpSpec(
        name="pages_gather",
        family="pages",
        summary="Copy pages out of the pool into contiguous records.",
        args=(Arg("out", ("n", "page_bytes"), ("uint8",), Access.WRITE), _pool(), _BLOCKS),
        attributes={},
        reference=pages_gather_reference,
        tolerance={"uint8": EXACT},
        nan="bytes",
        source="definition",
        notes={"limits": "page_bytes = L * 2 * KV * S * D * element size; 0 <= blocks < N"},
    )
)

PAGES_SCATTER = register(
    OpSpec(
        name="pages_scatter",
        family="pages",
        summary="Copy contiguous records into pages of the pool.",
        args=(_pool(Access.READ_WRITE), Arg("data", ("n", "page_bytes"), ("uint8",)), _BLOCKS),
        attributes={},
        reference=pages_scatter_reference,
        tolerance=_BYTES,
        nan="bytes",
        source="definition",
        notes={"limits": "page_bytes = L * 2 * KV * S * D * element size; 0 <= blocks < N, no duplicates"},
    )
)

PAGES_COPY = register(
    OpSpec(
        name="pages_copy",
        family="pages",
        summary="Copy pages to other pages of the pool (copy on write).",
        args=(_pool(Access.READ_WRITE), Arg("src", ("n",), ("int32",)), Arg("dst", ("n",), ("int32",))),
        attributes={},
        reference=pages_copy_reference,
        tolerance=_BYTES,
        nan="bytes",
        source="definition",
        notes={"limits": "0 <= src, dst < N; dst without duplicates and disjoint from src"},
    )
)

PAGES_ZERO = register(
    OpSpec(
        name="pages_zero",
        family="pages",
        summary="Zero pages of the pool.",
        args=(_pool(Access.READ_WRITE), _BLOCKS),
        attributes={},
        reference=pages_zero_reference,
        tolerance=_BYTES,
        nan="bytes",
        source="definition",
        notes={"limits": "0 <= blocks < N, no duplicates"},
    )
)

PAGES_CHECKSUM = register(
    OpSpec(
        name="pages_checksum",
        family="pages",
        summary="64-bit checksum of each page's record.",
        args=(Arg("out", ("n",), ("uint64",), Access.WRITE), _pool(), _BLOCKS),
        attributes={},
        reference=pages_checksum_reference,
        tolerance={"uint64": EXACT},
        nan="bytes",
        source="Steele, Lea & Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014 (the finaliser)",
        notes={"limits": "a run of the page a multiple of 4 bytes; 0 <= blocks < N"},
    )
)
