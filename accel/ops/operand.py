"""Arguments of an op as a check holds them: tensors inside guarded buffers, and weights.

Invariant: every byte of an operand's buffer that is not an element of its view holds a guard value that depends on its
position and reads as NaN in every float dtype. So a write outside the view is found afterwards, and a read outside it
shows in the result::

    buffer   g g g | r o w 0 g g | r o w 1 g g | r o w 2 | g g g          g guard, gaps between rows included

A buffer starts at an odd element, so that no kernel may count on more than the alignment of an element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel.ops.rounding import encode, storage_dtype

__all__ = ["Operand", "WeightOperand"]

#: Elements of guard before and after; odd, see the module docstring.
_GUARD = 37


@dataclass
class Operand:
    """A strided tensor of accel dtype `dtype` in a guarded `buffer` (1-D, of ``storage_dtype(dtype)``).

    `offset` and `strides` count elements.
    """

    buffer: NDArray[Any]
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def empty(
        cls, shape: Sequence[int], dtype: str, *, padding: Sequence[int] = (), order: Sequence[int] = ()
    ) -> Operand:
        """A tensor of nothing but guard values.

        `padding[i]` elements separate the entries of dimension i; `order` lists the dimensions from outermost to
        innermost in memory where that is not their own order.
        """
        order = tuple(order) or tuple(range(len(shape)))
        gaps = tuple(padding) or (0,) * len(shape)
        strides = [0] * len(shape)
        step = 1
        for dim in reversed(order):
            step += gaps[dim]
            strides[dim] = step
            step *= max(shape[dim], 1)
        return cls(_guards(step + 2 * _GUARD, dtype), dtype, tuple(shape), tuple(strides), _GUARD)

    @classmethod
    def of(cls, values: NDArray[Any], dtype: str, *, padding: Sequence[int] = ()) -> Operand:
        """A tensor of `values`, rounded to `dtype` where they are float32 and it is narrower."""
        operand = cls.empty(values.shape, dtype, padding=padding)
        operand.array[...] = encode(values, dtype)
        return operand

    @property
    def array(self) -> NDArray[Any]:
        """The view, as NumPy sees it (bfloat16 as uint16)."""
        size = self.buffer.itemsize
        strides = [stride * size for stride in self.strides]
        view: NDArray[Any] = np.ndarray(self.shape, self.buffer.dtype, self.buffer, self.offset * size, strides)
        return view

    @property
    def contiguous(self) -> bool:
        """True where the view's elements follow each other without gaps."""
        return bool(self.array.flags.c_contiguous)

    @property
    def rows_contiguous(self) -> bool:
        """True where the elements of the last dimension follow each other without gaps."""
        return self.strides[-1] == 1 or self.shape[-1] <= 1 or 0 in self.shape

    def part(self, *index: Any) -> Operand:
        """The sub-view ``self[index]`` in the same buffer; what it leaves out stays what it is."""
        view = self.array[index]
        start = view.__array_interface__["data"][0] - self.buffer.__array_interface__["data"][0]
        size = self.buffer.itemsize
        return Operand(self.buffer, self.dtype, view.shape, tuple(s // size for s in view.strides), start // size)

    def copy(self) -> Operand:
        """The same view over a copy of the whole buffer."""
        return Operand(self.buffer.copy(), self.dtype, self.shape, self.strides, self.offset)

    def outside(self) -> NDArray[Any]:
        """The bytes of the buffer that no element of the view covers, in order (uint8)."""
        mask = np.ones(len(self.buffer), np.bool_)
        cover = Operand(mask, "bool", self.shape, self.strides, self.offset)
        cover.array[...] = False
        return np.asarray(self.buffer[mask].view(np.uint8))


@dataclass(frozen=True)
class WeightOperand:
    """A weight to be held as `format`: source `rows` (uint8 [N, row_bytes]) of `encoding`, and the float32 `matrix`
    [N, K] of the values that are held in the end.
    """

    format: str
    encoding: str
    rows: NDArray[np.uint8]
    matrix: NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.shape


def _guards(count: int, dtype: str) -> NDArray[Any]:
    stored = storage_dtype(dtype)
    words = math.ceil(count * stored.itemsize / 2)
    # 0x7FC0 upwards: a NaN as float16, as bfloat16, and, in pairs, as float32.
    pattern = (0x7FC0 | (np.arange(words) * 37 & 0x3F)).astype("<u2")
    guards: NDArray[Any] = pattern.view(np.uint8)[: count * stored.itemsize].copy().view(stored)
    return guards
