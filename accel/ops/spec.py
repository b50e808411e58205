"""What an op is: its arguments, what it changes, the reference that defines it and how close is close enough.

Invariant: an ``OpSpec`` is the only definition of an op. A backend implements it, the conformance suite compares the
implementation with ``reference``, and ``accel ops`` prints it; none of them restates it.

Call form. Every implementation is called as ``fn(stream, *tensors, **attributes)``: outputs first, then inputs, in the
order of ``OpSpec.args``; attributes by keyword. Page ops take any stream, the others the current one. Arguments must
not change during the call. An output must not overlap itself or another argument, save where the summary says so.

A reference has the same signature without the stream, takes NumPy arrays, and writes its outputs in place. To a
reference a uint16 array is bfloat16 bits, and a packed weight is the float32 matrix it stands for
(``accel.ops.rounding``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Access", "Arg", "OpSpec", "Tolerance", "all_specs", "op_spec", "register"]


class Access(enum.Enum):
    """What an op does to an argument. A launch declares the same to the runtime."""

    READ = "in"
    WRITE = "out"
    READ_WRITE = "inout"


@dataclass(frozen=True)
class Arg:
    """One tensor argument.

    `shape` is symbolic: names bind at first use and must agree afterwards (``("T", "H")``); an int is itself, ``"2*I"``
    and ``"R+1"`` are what they say, and a dimension marked ``"A?"`` may be missing.
    `dtypes` are the names allowed; ``contiguous`` False means that only the last dimension must be.
    `optional` arguments may be None. A `packed` one is a backend's PackedWeight, and its `dtypes` are weight formats.
    """

    name: str
    shape: tuple[str | int, ...]
    dtypes: tuple[str, ...]
    access: Access = Access.READ
    contiguous: bool = True
    optional: bool = False
    packed: bool = False


@dataclass(frozen=True)
class Tolerance:
    """How far an output may be: ``|got - want| <= atol + rtol * |want|`` for each element, and over all of them
    ``mean |got - want| <= mean * max(1, mean |want|)``.
    """

    rtol: float
    atol: float
    mean: float

    @property
    def exact(self) -> bool:
        return self.rtol == 0 and self.atol == 0


#: Bitwise: index and byte ops.
EXACT = Tolerance(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class OpSpec:
    """One op.

    `nan` is its policy: "propagate" (a NaN in gives a NaN out, in the same elements as the reference), "ignore" (NaN is
    never picked) or "bytes" (values are moved, not read).
    `tolerance` maps the dtype of the first output to the distance allowed.
    `notes` that mean something to the checks: "tolerance" {output: Tolerance} for an output with its own; "acceptable",
    a function of the reference's signature giving the rows that are right though they differ; "rounds", the payload of
    a NaN is free. "limits" is for readers.
    """

    name: str
    family: str
    summary: str
    args: tuple[Arg, ...]
    attributes: Mapping[str, str]
    reference: Callable[..., None]
    tolerance: Mapping[str, Tolerance]
    nan: str
    source: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)


_SPECS: dict[str, OpSpec] = {}

#: Modules that register specs when imported.
_FAMILIES = ("norm", "rotary", "attention", "activation", "linear", "embedding", "logits", "sampling", "step", "pages")


def register(spec: OpSpec) -> OpSpec:
    """Add `spec`; a second op of the same name is a programming error."""
    if spec.name in _SPECS:
        raise ValueError(f"op {spec.name!r} is defined twice")
    _SPECS[spec.name] = spec
    return spec


def all_specs() -> Mapping[str, OpSpec]:
    """Every op by name, in order of family. Imports the reference modules (NumPy) on first use."""
    import importlib

    for family in _FAMILIES:
        importlib.import_module(f"accel.ops.{family}")
    # A family may have been imported before its turn.
    return dict(sorted(_SPECS.items(), key=lambda item: _FAMILIES.index(item[1].family)))


def op_spec(name: str) -> OpSpec:
    """The op called `name`. Raises KeyError."""
    return all_specs()[name]
