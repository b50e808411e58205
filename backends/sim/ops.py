"""Which implementation each op has on the simulated device: the CPU kernels, queued as a device's would be.

An op is checked twice. At the call: shapes, dtypes, and whether the memory is live. In stream order: everything again,
and the values that lie in device memory (ids, lengths), which only then are known. So a bad index is an error of the
stream.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from accel.ops.names import OP_NAMES
from accel.ops.table import Implementation, Kind, OpTable

__all__ = ["op_table"]

_NOTE = "the CPU kernel (csrc/cpu) as work of a simulated stream"


def op_table(device: str, native: Any, kernels: Any) -> OpTable:
    """The op table of one simulated device over its native module and `kernels` (``native.Ops``)."""
    return OpTable(
        device,
        {
            name: Implementation(Kind.NATIVE, partial(native.submit, name, getattr(kernels, name)), _NOTE)
            for name in OP_NAMES
        },
    )
