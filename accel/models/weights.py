"""Weights as a file holds them: where each tensor lies, how it is encoded, and whether it fits the config.

Invariant: nothing here copies a tensor. A :class:`WeightSource` hands out views of a memory map, a packer dequantises
chunks of rows straight into its own layout and releases the tensor, and so a load never holds more than the packed
weights plus a chunk.

::

    file ──map──▶ raw(name): uint8 [rows, row_bytes]
                    └─ rows in chunks ─▶ dequantize(encoding, chunk): float32 [chunk, cols]
                                           └─ row r goes to row logical_rows(entry)[r] of the packed matrix
                  release(name)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from accel.errors import InvalidArgument, ModelError, Unsupported
from accel.models.config import ModelConfig
from accel.models.families import Expected, expected_tensors

__all__ = [
    "ENCODINGS",
    "WeightEntry",
    "WeightSource",
    "check_weights",
    "dequantize",
    "expected_tensors",
    "logical_rows",
]

#: Block-quantised encodings of GGUF that can be read.
_BLOCK_ENCODINGS: Final = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
    *("TQ1_0", "TQ2_0", "MXFP4"),
)
_PLAIN_ENCODINGS: Final = ("float32", "bfloat16", "float16")

#: Every encoding that :func:`dequantize` reads.
ENCODINGS: Final = (*_PLAIN_ENCODINGS, *_BLOCK_ENCODINGS)


@dataclass(frozen=True)
class WeightEntry:
    """One tensor of a file.

    Args:
        name: the Hugging Face name, as in ``model.layers.0.self_attn.q_proj.weight``.
        shape: [out, in] of a matrix, [n] of a vector.
        encoding: one of :data:`ENCODINGS`, or the file's own name for one that cannot be read.
        nbytes: bytes in the file.
        row_permutation: the number of heads whose rows are stored interleaved (pairs 2j, 2j + 1) where Hugging Face
            has halves; None where the order is Hugging Face's. See :func:`logical_rows`.
    """

    name: str
    shape: tuple[int, ...]
    encoding: str
    nbytes: int
    row_permutation: int | None = None

    @property
    def rows(self) -> int:
        """Rows of :meth:`WeightSource.raw`: the product of all dimensions but the last; 1 for a vector."""
        return math.prod(self.shape[:-1])

    @property
    def cols(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return self.nbytes // self.rows if self.rows else 0


class WeightSource(Protocol):
    """An open model file or folder."""

    @property
    def entries(self) -> Mapping[str, WeightEntry]:
        """Every tensor, by name."""

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as a read-only view, uint8 [rows, row_bytes]; a vector is one row.

        Raises:
            ModelError: no tensor of that name.
            InvalidArgument: after ``close``.
        """

    def release(self, name: str) -> None:
        """Take the tensor's pages out of resident memory. Views of it stay valid and read from the file again."""

    def close(self) -> None:
        """Let go of the files. Idempotent; views handed out stay valid."""


def dequantize(encoding: str, raw_rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Whole rows as numbers.

    Args:
        encoding: one of :data:`ENCODINGS`.
        raw_rows: uint8 [rows, row_bytes], any run of rows of :meth:`WeightSource.raw`.

    Returns:
        float32 [rows, cols]; for the float32 encoding a view of `raw_rows`, read-only if that is.

    Raises:
        Unsupported: an encoding not in the list.
        InvalidArgument: rows that are not a whole number of elements or blocks.
    """
    if encoding not in ENCODINGS:
        raise Unsupported(f"weight encoding {encoding!r} cannot be read", hint=f"readable: {', '.join(ENCODINGS)}")
    unit = _unit_bytes(encoding)
    if raw_rows.ndim != 2 or raw_rows.shape[1] % unit:
        raise InvalidArgument(f"raw rows of shape {raw_rows.shape} are not rows of whole {unit}-byte {encoding} units")
    if encoding in _BLOCK_ENCODINGS:
        return _dequantize_blocks(encoding, raw_rows)
    contiguous = np.ascontiguousarray(raw_rows)
    if encoding == "float32":
        return contiguous.view(np.float32)
    if encoding == "float16":
        return contiguous.view(np.float16).astype(np.float32)
    # bfloat16 is the upper half of a float32.
    wide: npt.NDArray[np.uint32] = np.left_shift(contiguous.view(np.uint16), np.uint32(16), dtype=np.uint32)
    return wide.view(np.float32)


def _unit_bytes(encoding: str) -> int:
    if encoding in _PLAIN_ENCODINGS:
        return 4 if encoding == "float32" else 2
    from gguf.constants import GGML_QUANT_SIZES

    return GGML_QUANT_SIZES[_ggml_type(encoding)][1]


def _ggml_type(encoding: str) -> Any:
    from gguf.constants import GGMLQuantizationType

    try:
        return GGMLQuantizationType[encoding]
    except KeyError:
        raise _old_gguf(encoding) from None


def _dequantize_blocks(encoding: str, raw_rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    # Imported here: 0.1 s that a model in plain floats need not spend.
    from gguf.quants import dequantize as dequantize_blocks

    try:
        rows: npt.NDArray[np.float32] = dequantize_blocks(raw_rows, _ggml_type(encoding))
    except NotImplementedError:
        raise _old_gguf(encoding) from None
    return rows


def _old_gguf(encoding: str) -> Unsupported:
    return Unsupported(f"the installed gguf package cannot read {encoding}", hint="pip install --upgrade gguf")


def logical_rows(entry: WeightEntry) -> npt.NDArray[np.int64]:
    """Where each stored row belongs in Hugging Face order.

    llama.cpp stores the rows of q and k of some families so that the two elements of a rotated pair are neighbours
    (``permute`` in its convert_hf_to_gguf.py). With d rows to a head, its row 2j + s holds row s * d/2 + j.

    Returns:
        int64 [shape[0]]: ``packed[result[r]] = stored[r]``. For a vector the rows are its elements.

    Raises:
        ModelError: rows that do not divide into the heads, each of an even size.
    """
    rows = entry.shape[0] if entry.shape else 1
    stored = np.arange(rows, dtype=np.int64)
    heads = entry.row_permutation
    if heads is None:
        return stored
    if heads < 1 or rows % (2 * heads):
        raise ModelError(f"{entry.name}: {rows} rows do not divide into {heads} heads of even size", tensor=entry.name)
    size = rows // heads
    within = stored % size
    return stored - within + (within % 2) * (size // 2) + within // 2


def check_weights(config: ModelConfig, source: WeightSource) -> int:
    """Compare every tensor with what the config says, before anything is loaded.

    Returns:
        The number of tensors no part of the model uses. They are ignored.

    Raises:
        ModelError: a tensor that is missing, or has another shape than the config implies (with the field at fault).
        Unsupported: a tensor in an encoding that cannot be read.
    """
    expected = expected_tensors(config)
    missing = [name for name in expected if name not in source.entries]
    if missing:
        raise _missing(config, missing)
    for name, want in expected.items():
        _check_entry(source.entries[name], want)
    return len(source.entries) - len(expected)


def _missing(config: ModelConfig, names: list[str]) -> ModelError:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    hint = f"the file is incomplete, or num_layers {config.num_layers} and the bias flags are not those of the weights"
    if names == ["lm_head.weight"]:
        hint = "tie_word_embeddings is false in the config; a model without its own output matrix needs true"
    return ModelError(f"missing tensors: {shown}", hint=hint, missing=tuple(names))


def _check_entry(entry: WeightEntry, want: Expected) -> None:
    if entry.shape != want.shape:
        raise ModelError(
            f"tensor {entry.name} is {list(entry.shape)}, the config says {list(want.shape)} ({_fault(entry, want)})",
            hint="config and weights are of different models",
            tensor=entry.name,
            shape=entry.shape,
            expected=want.shape,
        )
    if entry.encoding not in ENCODINGS:
        raise Unsupported(
            f"tensor {entry.name} is encoded as {entry.encoding}, which cannot be read",
            hint=f"readable: {', '.join(ENCODINGS)}",
            tensor=entry.name,
        )


def _fault(entry: WeightEntry, want: Expected) -> str:
    if len(entry.shape) != len(want.shape):
        return " x ".join(want.fields)
    wrong = [
        f"{name} = {size}" for name, size, got in zip(want.fields, want.shape, entry.shape, strict=True) if size != got
    ]
    return ", ".join(wrong)
