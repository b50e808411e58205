"""Attention over paged KV, and the write that fills the pages.

Invariant (the visible-range rule): a query at absolute position p sees the KV tokens max(0, p - window + 1) .. p of
its own request and no others. What lies outside is never read, so it may hold anything, NaN included.

One layer of the pool is the strided view ``[N, 2, KV, S, D]``: block, K or V, head, token in the block, element. Both
pool orders (page_first, layer_first) are just strides of it::

    request's tokens   0 ........ S-1 | S ...... 2S-1 | 2S .. kv_len-1      the last n of them are this step's queries
    block_tables[r]       block 7     |    block 2    |    block 5          entries past kv_len are never read
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel.ops.rounding import decode, encode
from accel.ops.spec import EXACT, Access, Arg, OpSpec, Tolerance, register

__all__ = ["ATTENTION", "KV_DTYPES", "WRITE_KV", "attention_reference", "visible_range", "write_kv_reference"]

KV_DTYPES = ("float32", "bfloat16", "float16")
_KV_SHAPE = ("N", 2, "KV", "S", "D")


def visible_range(position: int, window: int) -> tuple[int, int]:
    """First visible position and one past the last, for a query at `position`; `window` 0 is unlimited."""
    return (max(0, position - window + 1) if window else 0), position + 1


def write_kv_reference(kv: NDArray[Any], k: NDArray[Any], v: NDArray[Any], slot_mapping: NDArray[Any]) -> None:
    """Store token t of `k`, `v` [T, KV, D] at slot ``block * S + offset``; a negative slot is skipped."""
    block_size = kv.shape[3]
    rows = np.flatnonzero(slot_mapping >= 0)
    block, offset = np.divmod(slot_mapping[rows], block_size)
    name = "bfloat16" if kv.dtype == np.uint16 else kv.dtype.name
    kv[block, 0, :, offset] = encode(k[rows], name)
    kv[block, 1, :, offset] = encode(v[rows], name)


def attention_reference(
    out: NDArray[Any],
    q: NDArray[Any],
    kv: NDArray[Any],
    block_tables: NDArray[Any],
    query_start: NDArray[Any],
    kv_lens: NDArray[Any],
    *,
    scale: float,
    window: int = 0,
) -> None:
    """Causal softmax attention of each request's queries over its own pages, dense and in float64.

    Request r owns rows ``query_start[r] .. query_start[r + 1]`` of `q` [T, A, D]; they are the last positions of its
    `kv_lens[r]` tokens, which this step's write_kv has already stored. Query head h reads KV head ``h // (A / KV)``.
    """
    block_size, group = kv.shape[3], q.shape[1] // kv.shape[2]
    for r, length in enumerate(kv_lens.tolist()):
        first, last = int(query_start[r]), int(query_start[r + 1])
        for row in range(first, last):
            position = length - (last - row)
            tokens = np.arange(*visible_range(position, window))
            blocks, offsets = block_tables[r, tokens // block_size], tokens % block_size
            keys, values = (decode(kv[blocks, which, :, offsets]).repeat(group, axis=1) for which in (0, 1))
            out[row] = _attend(q[row].astype(np.float64), keys.astype(np.float64), values.astype(np.float64), scale)


def _attend(q: NDArray[Any], keys: NDArray[Any], values: NDArray[Any], scale: float) -> NDArray[Any]:
    """One query [A, D] over its visible keys and values [tokens, A, D]."""
    with np.errstate(invalid="ignore"):
        scores = scale * np.einsum("ad,tad->ta", q, keys)
        weights = np.exp(scores - scores.max(axis=0))
        result: NDArray[Any] = np.einsum("ta,tad->ad", weights / weights.sum(axis=0), values)
    return result


WRITE_KV = register(
    OpSpec(
        name="write_kv",
        family="attention",
        summary="Store K and V of new tokens in their pages, rounded to the cache's dtype; a negative slot is skipped.",
        args=(
            Arg("kv", _KV_SHAPE, KV_DTYPES, Access.READ_WRITE, contiguous=False),
            Arg("k", ("T", "KV", "D"), ("float32",), contiguous=False),
            Arg("v", ("T", "KV", "D"), ("float32",), contiguous=False),
            Arg("slot_mapping", ("T",), ("int64",)),
        ),
        attributes={},
        reference=write_kv_reference,
        tolerance=dict.fromkeys(KV_DTYPES, EXACT),
        nan="bytes",
        source="rounding to nearest, ties to even (IEEE 754)",
        # A NaN stays a NaN when it is narrowed, but its payload is the hardware's business.
        notes={"limits": "slot_mapping < N * S", "rounds": True},
    )
)

ATTENTION = register(
    OpSpec(
        name="attention",
        family="attention",
        summary="Causal attention over paged KV: prefill, chunk and decode in one batch; GQA; sliding window.",
        args=(
            Arg("out", ("T", "A", "D"), ("float32",), Access.WRITE, contiguous=False),
            Arg("q", ("T", "A", "D"), ("float32",), contiguous=False),
            Arg("kv", _KV_SHAPE, KV_DTYPES, contiguous=False),
            Arg("block_tables", ("R", "M"), ("int32",)),
            Arg("query_start", ("R+1",), ("int32",)),
            Arg("kv_lens", ("R",), ("int32",)),
        ),
        attributes={
            "scale": "float, multiplies q . k",
            "window": "int = 0; each query sees at most this many latest positions, itself included; 0 is all",
        },
        reference=attention_reference,
        tolerance={"float32": Tolerance(rtol=2e-5, atol=1e-5, mean=1e-6)},
        nan="propagate",
        source="Vaswani et al., arXiv:1706.03762; grouped heads arXiv:2305.13245; sliding window arXiv:2310.06825",
        notes={
            "limits": "A a multiple of KV; query_start rises from 0 to T (a request may have no query); "
            "query length <= kv_lens <= M * S; "
            "0 <= used block_tables < N"
        },
    )
)
