"""Linear layers over packed weights.

Invariant: the reference multiplies the values a packed weight stands for, in float64; how they are held (float formats,
GGUF blocks) is the backend's business and never part of the result's definition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel.ops.spec import Access, Arg, OpSpec, Tolerance, register

__all__ = ["LINEAR", "WEIGHT_FORMATS", "linear_reference"]

WEIGHT_FORMATS = ("float32", "bfloat16", "float16", "q8", "q4")


def linear_reference(out: NDArray[Any], x: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any] | None) -> None:
    """``out = x weight^T + bias``: x [T, K], weight [N, K] as float32 values, bias [N] or None, out [T, N]."""
    with np.errstate(invalid="ignore", over="ignore"):
        result = x.astype(np.float64) @ weight.astype(np.float64).T
        out[...] = result if bias is None else result + bias


LINEAR = register(
    OpSpec(
        name="linear",
        family="linear",
        summary="Matrix product with a packed weight (float32, bfloat16, float16, 8-bit, 4-bit), and bias.",
        args=(
            Arg("out", ("T", "N"), ("float32",), Access.WRITE),
            Arg("x", ("T", "K"), ("float32",)),
            Arg("weight", ("N", "K"), WEIGHT_FORMATS, packed=True),
            Arg("bias", ("N",), ("float32",), optional=True),
        ),
        attributes={},
        reference=linear_reference,
        # For sums of order one and K up to 8192: K float32 fmas drift by about sqrt(K) half-ulps, by K at worst.
        # Its mean error is 1.3e-8 sqrt(K), measured from 256 to 8192: 0.8e-6 at 4096 and 1.2e-6 at 8192.
        tolerance={"float32": Tolerance(rtol=1e-5, atol=1e-5, mean=2e-6)},
        nan="propagate",
        source="definition; quantised values as ggml's block_q4_0, block_q4_1 and block_q8_0",
        notes={"limits": "q8 and q4: K a multiple of 32"},
    )
)
