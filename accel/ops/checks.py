"""Does an implementation do what its spec says? The comparison used by the tests and by the conformance suite.

Invariant: a check looks at everything a call may change. Outputs are compared element by element and in the mean, NaN
and infinity must stand where the reference has them, inputs must come back bit for bit, and so must every guard byte
around and between the rows of each buffer (``accel.ops.operand``).

A device takes part through a ``Target``: how to make a tensor of an operand, to call an op, to bring a buffer back.
``HostTarget`` serves devices that work on host memory, ``ReferenceTarget`` runs the references themselves. Example::

    target = HostTarget(accel.open("cpu"))
    for case in cases(op_spec("rms_norm")):
        for report in run_case(target, case):
            assert report.ok, report.message
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from accel.errors import InvalidArgument
from accel.ops.cases import Call, Case, case, cases
from accel.ops.operand import Operand, WeightOperand
from accel.ops.rounding import decode, storage_dtype
from accel.ops.spec import EXACT, Access, OpSpec, Tolerance, op_spec

__all__ = [
    "Call",
    "Case",
    "HostTarget",
    "Operand",
    "ReferenceTarget",
    "Report",
    "Target",
    "WeightOperand",
    "bind",
    "case",
    "cases",
    "compare",
    "compare_guards",
    "execute",
    "run_case",
]


@dataclass(frozen=True)
class Report:
    """Outcome of one comparison. `worst` is the largest error among finite elements, at `index`; `mean` their mean."""

    ok: bool
    message: str
    worst: float = 0.0
    mean: float = 0.0
    index: tuple[int, ...] | None = None

    def __bool__(self) -> bool:
        return self.ok


class Target(Protocol):
    """A device as the checks see it."""

    def tensor(self, operand: Operand) -> Any:
        """A tensor of the device with the operand's shape, strides and dtype, whose surroundings hold its guards."""

    def weight(self, weight: WeightOperand) -> Any:
        """The packed form of `weight`."""

    def call(self, op: str, tensors: Sequence[Any], attributes: Mapping[str, Any]) -> None:
        """Run `op` on the device's current stream and wait for it."""

    def fetch(self, tensor: Any, operand: Operand) -> None:
        """Make ``operand.buffer``, guards included, what the device's memory now holds."""


@dataclass
class HostTarget:
    """A device whose ops work on host memory in place: NumPy arrays, and its own views where NumPy lacks the dtype."""

    device: Any
    packed: dict[int, tuple[WeightOperand, Any]] = field(default_factory=dict)

    def tensor(self, operand: Operand) -> Any:
        if operand.dtype != "bfloat16":
            return operand.array
        return self.device.view(operand.array, dtype="bfloat16")

    def weight(self, weight: WeightOperand) -> Any:
        # Keyed by identity and holding the weight, so that an id is not taken over by another one.
        if id(weight) not in self.packed:
            packed = self.device.weight(weight.format, *weight.shape)
            packed.pack_rows(weight.encoding, weight.rows)
            self.packed[id(weight)] = (weight, packed)
        return self.packed[id(weight)][1]

    def call(self, op: str, tensors: Sequence[Any], attributes: Mapping[str, Any]) -> None:
        stream = self.device.current_stream()
        getattr(self.device.ops, op)(stream, *tensors, **attributes)
        stream.synchronize()

    def fetch(self, tensor: Any, operand: Operand) -> None:
        """Nothing to do: the tensor is the operand's memory."""


class ReferenceTarget:
    """The references as a device; it passes every check by definition, so it proves the checks and the cases."""

    def tensor(self, operand: Operand) -> Any:
        return operand.array

    def weight(self, weight: WeightOperand) -> Any:
        return weight.matrix

    def call(self, op: str, tensors: Sequence[Any], attributes: Mapping[str, Any]) -> None:
        op_spec(op).reference(*tensors, **attributes)

    def fetch(self, tensor: Any, operand: Operand) -> None:
        """Nothing to do: the tensor is the operand's memory."""


def run_case(target: Target, case: Case) -> tuple[Report, ...]:
    """Run `case` on `target` and on the reference: a report for each output, then one for guards and inputs."""
    spec, before = case.spec, case.build()
    want, got = before.copy(), before.copy()
    spec.reference(*(_plain(operand) for operand in want.operands.values()), **want.attributes)
    execute(target, spec.name, got)
    reports = [
        _named(case, arg.name, _compare_output(spec, arg.name, before, got, want))
        for arg in spec.args
        if arg.access is not Access.READ
    ]
    return (*reports, _named(case, "guards and inputs", compare_guards(spec, before, got)))


def execute(target: Target, op: str, call: Call) -> None:
    """Run `op` on the operands of `call`, in place."""
    tensors: dict[str, Any] = {}
    made: dict[tuple[Any, ...], Any] = {}
    for name, operand in call.operands.items():
        if isinstance(operand, Operand):
            # One view passed twice (out is x) is one tensor.
            key = (id(operand.buffer), operand.offset, operand.shape, operand.strides)
            if key not in made:
                made[key] = target.tensor(operand)
            tensors[name] = made[key]
        else:
            tensors[name] = None if operand is None else target.weight(operand)
    target.call(op, list(tensors.values()), call.attributes)
    for name, operand in call.operands.items():
        if isinstance(operand, Operand):
            target.fetch(tensors[name], operand)


def compare(
    spec: OpSpec,
    dtype: str,
    got: NDArray[Any],
    want: NDArray[Any],
    *,
    tolerance: Tolerance | None = None,
    acceptable: NDArray[np.bool_] | None = None,
) -> Report:
    """Compare an output of `spec` with the reference's.

    Args:
        dtype: the output's; arrays are as it is stored (uint16 for bfloat16).
        tolerance: instead of the spec's for `dtype`.
        acceptable: elements (or rows) that are right though they differ.
    """
    if got.shape != want.shape or got.dtype != want.dtype or got.dtype != storage_dtype(dtype):
        return Report(False, f"is {got.dtype} {list(got.shape)}, want {want.dtype} {list(want.shape)} as {dtype}")
    limit = tolerance or spec.tolerance[dtype]
    if limit.exact:
        wrong = _different(spec, got, want)
        return _exact_report(wrong if acceptable is None else wrong & ~acceptable, got, want)
    return _close_report(limit, decode(got), decode(want))


def compare_guards(spec: OpSpec, before: Call, after: Call) -> Report:
    """Inputs, and everything around each view, must be bit for bit what they were."""
    written = {id(after.operand(arg.name).buffer) for arg in spec.args if arg.access is not Access.READ}
    for name, operand in after.operands.items():
        if not isinstance(operand, Operand):
            continue
        old = before.operand(name)
        if id(operand.buffer) in written:
            changed = np.flatnonzero(operand.outside() != old.outside())
            where = "guard"
        else:
            changed = np.flatnonzero(operand.buffer.view(np.uint8) != old.buffer.view(np.uint8))
            where = "input"
        if len(changed):
            return Report(False, f"{where} of {name} changed: {len(changed)} bytes, the first at {changed[0]}")
    return Report(True, "intact")


def _compare_output(spec: OpSpec, name: str, before: Call, got: Call, want: Call) -> Report:
    operand = got.operand(name)
    acceptable = None
    if "acceptable" in spec.notes:
        # Judged on the inputs as they were, whatever the op did to them.
        inputs = [_plain(before.operands[arg.name]) for arg in spec.args[1:]]
        acceptable = spec.notes["acceptable"](operand.array, *inputs, **before.attributes)
    tolerance = spec.notes.get("tolerance", {}).get(name)
    if spec.args[0].name != name and tolerance is None and operand.dtype not in spec.tolerance:
        tolerance = EXACT
    expected = want.operand(name).array
    return compare(spec, operand.dtype, operand.array, expected, tolerance=tolerance, acceptable=acceptable)


def _different(spec: OpSpec, got: NDArray[Any], want: NDArray[Any]) -> NDArray[np.bool_]:
    """Elements that are not the same: bits for a "bytes" op, else values with NaN equal to NaN."""
    values = decode(got), decode(want)
    both_nan = np.isnan(values[0]) & np.isnan(values[1])
    if spec.nan == "bytes":
        bits = np.dtype(f"u{got.itemsize}")
        wrong = np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(want).view(bits)
        # The payload of a NaN that was narrowed is free; of one that was moved it is not.
        free = bool(spec.notes.get("rounds")) and got.itemsize == 2
        return np.asarray(wrong & ~both_nan if free else wrong)
    return np.asarray((values[0] != values[1]) & ~both_nan)


def _exact_report(wrong: NDArray[np.bool_], got: NDArray[Any], want: NDArray[Any]) -> Report:
    if not wrong.any():
        return Report(True, "exact")
    index = _first(wrong)
    text = f"{int(wrong.sum())} of {wrong.size} differ; first at {list(index)}: got {got[index]}, want {want[index]}"
    return Report(False, text, index=index)


def _close_report(limit: Tolerance, got: NDArray[Any], want: NDArray[Any]) -> Report:
    for kind, test in (("NaN", np.isnan), ("+inf", np.isposinf), ("-inf", np.isneginf)):
        wrong = test(got) != test(want)
        if wrong.any():
            index = _first(wrong)
            where = f"{kind} in {int(wrong.sum())} wrong places; first at {list(index)}"
            return Report(False, f"{where}: got {got[index]}, want {want[index]}", index=index)
    finite = np.isfinite(want)
    error = np.zeros(want.shape)
    error[finite] = np.abs(got[finite].astype(np.float64) - want[finite])
    if not finite.any():
        return Report(True, "no finite element")
    allowed = limit.atol + limit.rtol * np.abs(np.where(finite, want, 0).astype(np.float64))
    index = tuple(int(i) for i in np.unravel_index(np.argmax(error - allowed), error.shape))
    mean = float(error[finite].mean())
    exceeded = int(np.count_nonzero(error > allowed))
    message = (
        f"worst at {list(index)}: got {got[index]}, want {want[index]}, "
        f"error {error[index]:.3g} of {allowed[index]:.3g}; {exceeded} of {error.size} beyond; "
        f"mean error {mean:.3g} of {limit.mean:.3g}"
    )
    # A mean is absolute; where values are large, so may it be.
    scale = max(1.0, float(np.abs(want[finite].astype(np.float64)).mean()))
    return Report(exceeded == 0 and mean <= limit.mean * scale, message, float(error.max()), mean, index)


def _first(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])


def _named(case: Case, what: str, report: Report) -> Report:
    return Report(report.ok, f"{case} {what}: {report.message}", report.worst, report.mean, report.index)


def _plain(operand: Operand | WeightOperand | None) -> Any:
    """An operand as a reference takes it."""
    if isinstance(operand, Operand):
        return operand.array
    return operand.matrix if isinstance(operand, WeightOperand) else None


# --- a call against its spec ------------------------------------------------------------------------------------------

_DIMENSION = re.compile(r"(?:(?P<times>\d+)\*)?(?P<name>[A-Za-z_]+)(?:\+(?P<plus>\d+))?(?P<missing>\?)?")


def bind(spec: OpSpec, call: Call) -> dict[str, int]:
    """The value of each symbolic dimension in `call`.

    Raises:
        InvalidArgument: an operand is missing, of a dtype, rank or layout its argument does not allow, or of a shape
            that contradicts an earlier one. Names the op, the argument, the value and what was allowed.
    """
    sizes: dict[str, int] = {}
    if list(call.operands) != [arg.name for arg in spec.args]:
        raise InvalidArgument(f"operands are {list(call.operands)}, want {[a.name for a in spec.args]}", op=spec.name)
    for arg in spec.args:
        operand = call.operands[arg.name]
        if operand is None:
            if not arg.optional:
                raise InvalidArgument(f"{arg.name} is missing", op=spec.name)
            continue
        dtype = operand.format if isinstance(operand, WeightOperand) else operand.dtype
        if isinstance(operand, WeightOperand) is not arg.packed or dtype not in arg.dtypes:
            raise InvalidArgument(f"{arg.name} is {dtype}, want one of {', '.join(arg.dtypes)}", op=spec.name)
        if isinstance(operand, Operand) and not (operand.contiguous if arg.contiguous else operand.rows_contiguous):
            layout = f"strides {list(operand.strides)} for shape {list(operand.shape)}"
            raise InvalidArgument(f"{arg.name} has {layout}, want it contiguous", op=spec.name)
        _bind_shape(spec, arg.name, arg.shape, operand.shape, sizes)
    return sizes


def _bind_shape(
    spec: OpSpec, name: str, symbols: tuple[str | int, ...], shape: tuple[int, ...], sizes: dict[str, int]
) -> None:
    """Match one operand; raises InvalidArgument."""
    optional = [i for i, symbol in enumerate(symbols) if str(symbol).endswith("?")]
    if optional and len(shape) == len(symbols) - 1:
        # Whether it is there must agree between the arguments, so absence is remembered as size -1.
        shape = (*shape[: optional[0]], -1, *shape[optional[0] :])
    if len(shape) != len(symbols):
        raise InvalidArgument(f"{name} has shape {list(shape)}, want {list(symbols)}", op=spec.name)
    for symbol, size in zip(symbols, shape, strict=True):
        if isinstance(symbol, int):
            wanted, value = symbol, size
        else:
            match = _DIMENSION.fullmatch(symbol)
            if match is None:
                raise InvalidArgument(f"{name} has the unreadable dimension {symbol!r}", op=spec.name)
            value, rest = divmod(size - int(match["plus"] or 0), int(match["times"] or 1))
            wanted = sizes.setdefault(match["name"], value)
            if rest:
                wanted = -1
        if value != wanted:
            raise InvalidArgument(f"{name} has size {size} for {symbol}, want {wanted}", op=spec.name, argument=name)
