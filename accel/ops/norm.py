"""Normalisation: rms_norm, alone and fused with the residual addition before it.

Invariant: each row is normalised by itself; no value of one row reaches another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel.ops.spec import EXACT, Access, Arg, OpSpec, Tolerance, register

__all__ = ["ADD_RMS_NORM", "RMS_NORM", "add_rms_norm_reference", "rms_norm_reference"]

_SOURCE = "Zhang & Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467"
_TOLERANCE = {"float32": Tolerance(rtol=5e-6, atol=1e-6, mean=3e-7)}
_EPS = {"eps": "float >= 0, added to the mean of squares"}


def rms_norm_reference(out: NDArray[Any], x: NDArray[Any], weight: NDArray[Any], *, eps: float) -> None:
    """``out = x / sqrt(mean(x^2) + eps) * weight`` over the last dimension H. `out` may be `x`."""
    values = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean_square = np.mean(values * values, axis=-1, keepdims=True)
        out[...] = values * (1.0 / np.sqrt(mean_square + eps)) * weight.astype(np.float64)


def add_rms_norm_reference(
    out: NDArray[Any], residual: NDArray[Any], x: NDArray[Any], weight: NDArray[Any], *, eps: float
) -> None:
    """``residual += x`` (one float32 addition), then ``out = rms_norm(residual)``."""
    with np.errstate(invalid="ignore"):
        residual[...] = residual + x
    rms_norm_reference(out, residual, weight, eps=eps)


RMS_NORM = register(
    OpSpec(
        name="rms_norm",
        family="norm",
        summary="Root-mean-square normalisation over the last dimension; out may be x.",
        args=(
            Arg("out", ("T", "A?", "H"), ("float32",), Access.WRITE, contiguous=False),
            Arg("x", ("T", "A?", "H"), ("float32",), contiguous=False),
            Arg("weight", ("H",), ("float32",)),
        ),
        attributes=_EPS,
        reference=rms_norm_reference,
        tolerance=_TOLERANCE,
        nan="propagate",
        source=_SOURCE,
    )
)

ADD_RMS_NORM = register(
    OpSpec(
        name="add_rms_norm",
        family="norm",
        summary="Add x to the residual stream, then normalise the sum.",
        args=(
            Arg("out", ("T", "H"), ("float32",), Access.WRITE),
            Arg("residual", ("T", "H"), ("float32",), Access.READ_WRITE),
            Arg("x", ("T", "H"), ("float32",)),
            Arg("weight", ("H",), ("float32",)),
        ),
        attributes=_EPS,
        reference=add_rms_norm_reference,
        tolerance=_TOLERANCE,
        nan="propagate",
        source=_SOURCE,
        # One IEEE addition has one answer.
        notes={"tolerance": {"residual": EXACT}},
    )
)
