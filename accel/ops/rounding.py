"""Number formats NumPy does not have, and the rounding into them. The one place that says how references see them.

Invariant: in a reference, a ``uint16`` array is bfloat16 bits, and nothing else is: no op has an argument of real
uint16 elements. float16 and float32 are NumPy's own. A packed weight is the plain float32 matrix ``[N, K]`` of the
values it stands for (``dequantize`` makes it from GGUF rows). Every conversion rounds to nearest, ties to even.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from accel.errors import InvalidArgument

__all__ = ["GGUF_ROW_BYTES", "decode", "dequantize", "encode", "from_bfloat16", "storage_dtype", "to_bfloat16"]

#: Elements a GGUF block of the encodings below holds.
GGUF_BLOCK: Final = 32
#: Bytes of a block.
GGUF_ROW_BYTES: Final = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def to_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The bfloat16 bits nearest to `values` (float32, any shape); a NaN stays a quiet NaN of the same sign."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    high = bits >> np.uint32(16)
    # Adding just under half a step, plus the lowest kept bit, carries exactly when nearest-even rounds up.
    rounded = (bits + (np.uint32(0x7FFF) + (high & np.uint32(1)))) >> np.uint32(16)
    return np.asarray(np.where(np.isnan(values), high | np.uint32(0x40), rounded), np.uint16)


def from_bfloat16(bits: NDArray[Any]) -> NDArray[np.float32]:
    """The float32 values of bfloat16 `bits` (uint16, any shape); exact."""
    values: NDArray[np.float32] = (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def storage_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype that holds elements of the accel dtype `name`: uint16 for bfloat16, else its namesake."""
    return np.dtype(np.uint16) if name == "bfloat16" else np.dtype(name)


def encode(values: NDArray[Any], name: str) -> NDArray[Any]:
    """`values` (float32) rounded to dtype `name`, as that dtype is stored. Too large becomes infinity."""
    if name == "bfloat16":
        return to_bfloat16(values)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(storage_dtype(name))


def decode(stored: NDArray[Any]) -> NDArray[Any]:
    """Values of a stored array as float32 (uint16 is bfloat16), or the array itself where it holds integers."""
    if stored.dtype == np.uint16:
        return from_bfloat16(stored)
    if stored.dtype == np.float16:
        return stored.astype(np.float32)
    return stored


def dequantize(encoding: str, rows: NDArray[Any], k: int) -> NDArray[np.float32]:
    """The float32 matrix ``[N, K]`` that raw GGUF `rows` (uint8 ``[N, K / 32 * bytes a block]``) mean.

    Source: ggml's block_q4_0, block_q4_1 and block_q8_0. A block is 32 consecutive elements: a float16 scale, for Q4_1
    a float16 minimum, then 16 bytes of nibbles (low: elements 0-15, high: 16-31) or 32 int8. Q4_0 is centred on 8.
    float32 holds ``q * scale`` exactly, and ``q * scale + minimum`` is rounded once.

    Raises:
        InvalidArgument: an unknown encoding, K not a multiple of 32, or rows of another length.
    """
    if encoding not in GGUF_ROW_BYTES:
        raise InvalidArgument(f"encoding {encoding!r} is none of {', '.join(GGUF_ROW_BYTES)}", encoding=encoding)
    width = k // GGUF_BLOCK * GGUF_ROW_BYTES[encoding]
    if k % GGUF_BLOCK or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != width:
        raise InvalidArgument(
            f"{encoding} rows of {k} elements are uint8 [N, {width}] with {k} a multiple of {GGUF_BLOCK}, "
            f"got {rows.dtype} {list(rows.shape)}",
            k=k,
        )
    blocks = np.ascontiguousarray(rows).reshape(len(rows), k // GGUF_BLOCK, GGUF_ROW_BYTES[encoding])
    scale = blocks[..., :2].copy().view(np.float16).astype(np.float64)
    if encoding == "Q8_0":
        minimum, quants = np.zeros_like(scale), blocks[..., 2:].copy().view(np.int8).astype(np.float64)
    else:
        minimum = blocks[..., 2:4].copy().view(np.float16).astype(np.float64) if encoding == "Q4_1" else -8 * scale
        nibbles = blocks[..., -16:]
        quants = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).astype(np.float64)
    return np.asarray(quants * scale + minimum, np.float32).reshape(len(rows), k)
