"""Rotary position embedding, applied in place from a table of cosines and sines.

Invariant: the op knows no scaling variant. Default, linear, llama3 and yarn differ only in the table the model builds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel.ops.spec import Access, Arg, OpSpec, Tolerance, register

__all__ = ["ROTARY", "rotary_reference"]


def rotary_reference(
    x: NDArray[Any], positions: NDArray[Any], table: NDArray[Any], *, interleaved: bool = False
) -> None:
    """Rotate the first E elements of every head of `x` [T, A, D] by the angles of `positions` [T].

    `table` [P, E] holds E/2 cosines, then E/2 sines. Pair i is (i, i + E/2), or (2i, 2i + 1) when `interleaved`:
    ``a' = a cos - b sin``, ``b' = b cos + a sin``. Elements from E on are left as they are.
    """
    half = table.shape[1] // 2
    angles = table[positions].astype(np.float64)[:, None, :]
    cos, sin = angles[..., :half], angles[..., half:]
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    a, b = x[..., first].astype(np.float64), x[..., second].astype(np.float64)
    with np.errstate(invalid="ignore"):
        x[..., first] = a * cos - b * sin
        x[..., second] = b * cos + a * sin


ROTARY = register(
    OpSpec(
        name="rotary",
        family="rotary",
        summary="Rotary position embedding in place; pairs are halves or interleaved.",
        args=(
            Arg("x", ("T", "A", "D"), ("float32",), Access.READ_WRITE, contiguous=False),
            Arg("positions", ("T",), ("int32",)),
            Arg("table", ("P", "E"), ("float32",)),
        ),
        attributes={"interleaved": "bool = False; pairs (2i, 2i + 1) instead of (i, i + E/2)"},
        reference=rotary_reference,
        tolerance={"float32": Tolerance(rtol=1e-6, atol=1e-6, mean=1e-7)},
        nan="propagate",
        source="Su et al., RoFormer, arXiv:2104.09864",
        notes={"limits": "E even, E <= D, 0 <= positions < P"},
    )
)
