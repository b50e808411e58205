"""Activations: the gated SiLU of Llama-family feed-forward blocks.

Invariant: elementwise; an output depends on its own two inputs only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel.ops.spec import Access, Arg, OpSpec, Tolerance, register

__all__ = ["SILU_AND_MUL", "silu_and_mul_reference"]


def silu_and_mul_reference(out: NDArray[Any], x: NDArray[Any]) -> None:
    """``out = gate / (1 + exp(-gate)) * up`` with gate, up the halves of `x` [T, 2I].

    IEEE as written: the exponential overflows to infinity where float32 does, so a large negative gate gives -0.0 and
    minus infinity gives NaN.
    """
    width = out.shape[1]
    gate, up = x[:, :width].astype(np.float64), x[:, width:].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        exponential = np.exp(-gate).astype(np.float32).astype(np.float64)
        out[...] = gate / (1.0 + exponential) * up


SILU_AND_MUL = register(
    OpSpec(
        name="silu_and_mul",
        family="activation",
        summary="silu of the first half of a row times its second half.",
        args=(
            Arg("out", ("T", "I"), ("float32",), Access.WRITE),
            Arg("x", ("T", "2*I"), ("float32",)),
        ),
        attributes={},
        reference=silu_and_mul_reference,
        tolerance={"float32": Tolerance(rtol=2e-6, atol=1e-7, mean=2e-7)},
        nan="propagate",
        source="Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202",
    )
)
