"""The table of implementations accounts for every op."""

from __future__ import annotations

from accel.conformance.context import Context
from accel.conformance.registry import case
from accel.ops.names import OP_NAMES
from accel.ops.table import Kind


@case("support")
def every_op_is_accounted_for(context: Context) -> None:
    """with a kind, and a note that says why"""
    context.equal(set(context.device.ops), set(OP_NAMES), "ops of the table")
    for name in context.device.ops:
        entry = context.device.ops.implementation(name)
        context.check(bool(entry.note.strip()), f"op {name} has no note")
        context.check((entry.call is None) == (entry.kind is Kind.ABSENT), f"op {name} is {entry.kind.value}")


@case("support")
def most_ops_are_there(context: Context) -> None:
    """a device that can next to nothing does not pass by being honest about it"""
    absent = [name for name in context.device.ops if context.device.ops.implementation(name).kind is Kind.ABSENT]
    context.check(len(absent) * 4 <= len(OP_NAMES), f"{len(absent)} of {len(OP_NAMES)} ops are absent: {absent}")
