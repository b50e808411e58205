"""Which implementation each op has on the CPU, and why: all native, because no library keeps the promise of "Numbers"
(docs/architecture.md) that a result depends on nothing but the values that enter it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.ops.names import OP_NAMES
from accel.ops.table import Implementation, Kind, OpTable

if TYPE_CHECKING:
    from accel.backends.cpu._native import Ops

__all__ = ["op_table"]

_NOTE = "vectorised C++ (csrc/cpu), same bits on every instruction set"


def op_table(device: str, ops: Ops) -> OpTable:
    """The op table of one CPU device."""
    return OpTable(device, {name: Implementation(Kind.NATIVE, getattr(ops, name), _NOTE) for name in OP_NAMES})
