"""Row look-ups: token embeddings from a packed weight, and the last token's row of each request.

Invariant: values are moved (and widened), never computed on, so every backend agrees bit for bit.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from accel.ops.linear import WEIGHT_FORMATS
from accel.ops.spec import EXACT, Access, Arg, OpSpec, register

__all__ = ["EMBEDDING", "GATHER_ROWS", "embedding_reference", "gather_rows_reference"]


def embedding_reference(out: NDArray[Any], ids: NDArray[Any], weight: NDArray[Any]) -> None:
    """``out[t] = weight[ids[t]]``: weight [V, H] as float32 values."""
    out[...] = weight[ids]


def gather_rows_reference(out: NDArray[Any], x: NDArray[Any], index: NDArray[Any]) -> None:
    """``out[r] = x[index[r]]``; rows may repeat."""
    out[...] = x[index]


EMBEDDING = register(
    OpSpec(
        name="embedding",
        family="embedding",
        summary="Rows of a packed weight, as float32.",
        args=(
            Arg("out", ("T", "H"), ("float32",), Access.WRITE),
            Arg("ids", ("T",), ("int32",)),
            Arg("weight", ("V", "H"), WEIGHT_FORMATS, packed=True),
        ),
        attributes={},
        reference=embedding_reference,
        tolerance={"float32": EXACT},
        nan="propagate",
        source="definition",
        notes={"limits": "0 <= ids < V"},
    )
)

GATHER_ROWS = register(
    OpSpec(
        name="gather_rows",
        family="embedding",
        summary="Rows of a matrix by index, e.g. the last token of each request.",
        args=(
            Arg("out", ("R", "H"), ("float32",), Access.WRITE),
            Arg("x", ("T", "H"), ("float32",)),
            Arg("index", ("R",), ("int32",)),
        ),
        attributes={},
        reference=gather_rows_reference,
        tolerance={"float32": EXACT},
        nan="bytes",
        source="definition",
        notes={"limits": "0 <= index < T"},
    )
)
