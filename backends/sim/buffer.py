"""Device memory as a tensor without a framework: address, shape and dtype, and the duty to give the memory back.

Invariant: a buffer's memory goes exactly once: at `free`, or in the order of the compute stream when the last reference
goes, as a framework's allocator reuses a dropped tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from accel.dtypes import dtype as dtype_of

if TYPE_CHECKING:
    from accel.backends.sim._native import Control

__all__ = ["Buffer"]


class Buffer:
    """A contiguous row-major tensor in simulated device memory. The host cannot read it; copy it (``Device.copy``)."""

    def __init__(self, control: Control, device: str, shape: Sequence[int], dtype: str) -> None:
        self.shape = tuple(int(extent) for extent in shape)
        self.dtype = dtype
        self.device = device
        self.nbytes = math.prod(self.shape) * dtype_of(dtype).bytes
        self._control = control
        self._live = False
        self.ptr = control.allocate(self.nbytes)
        self._live = True

    def data_ptr(self) -> int:
        """The device address."""
        return self.ptr

    def free(self) -> None:
        """Give the memory back now. Raises InvalidArgument the second time."""
        self._live = False
        self._control.free(self.ptr)

    def __del__(self) -> None:
        if getattr(self, "_live", False):
            self._live = False
            self._control.release(self.ptr)

    def __repr__(self) -> str:
        return f"Buffer({self.dtype} {list(self.shape)} on {self.device})"
