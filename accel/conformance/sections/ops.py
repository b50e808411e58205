"""Every op against its NumPy reference: the cases of ``accel.ops.cases``, with guards around every buffer.

An op that the device's table calls absent must raise Unsupported with the reason.
"""

from __future__ import annotations

from collections.abc import Callable

from accel.conformance.context import Context
from accel.conformance.registry import Case, add
from accel.errors import Unsupported
from accel.ops.checks import Case as OpCase
from accel.ops.checks import HostTarget, cases, run_case
from accel.ops.spec import all_specs
from accel.ops.table import Kind


def _against_reference(op_case: OpCase) -> Callable[[Context], None]:
    def run(context: Context) -> None:
        device = context.device
        implementation = device.ops.implementation(op_case.op)
        if implementation.kind is Kind.ABSENT:
            with context.raises(Unsupported, "", f"the absent op {op_case.op}"):
                getattr(device.ops, op_case.op)(device.current_stream())
            return
        if not device.capabilities.host_executed:
            raise Unsupported("the suite cannot compare ops of a device that does not work on host memory yet")
        for report in run_case(HostTarget(device), op_case):
            context.check(report.ok, report.message)

    return run


for _spec in all_specs().values():
    for _case in cases(_spec):
        add(Case("ops", str(_case), _against_reference(_case), proves=_spec.summary))
