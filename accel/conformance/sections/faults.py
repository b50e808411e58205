"""Errors: of arguments at once, of queued work exactly once, and life afterwards."""

from __future__ import annotations

import numpy as np

from accel.conformance.context import SOON, Context
from accel.conformance.registry import case
from accel.errors import AsyncFailure, InvalidArgument

_NEEDS = ("host_call", "gate")


def _fail() -> None:
    raise RuntimeError("planted by the suite")


@case("faults", needs=_NEEDS)
def queued_work_that_fails_is_told_exactly_once(context: Context) -> None:
    """q1 = [fail]; synchronize raises, the next does not raise it again"""
    stream = context.stream()
    stream.host_call(_fail)
    with context.raises(AsyncFailure, "planted by the suite", "synchronize after failed work"):
        stream.synchronize(SOON)
    stream.reset()
    stream.synchronize(SOON)
    context.check(stream.query(), "the stream is not done")


@case("faults", needs=_NEEDS)
def a_query_tells_of_failed_work_as_well(context: Context) -> None:
    """q1 = [fail, e!]"""
    stream, event = context.stream(), context.event()
    stream.host_call(_fail)
    event.record(stream)
    event.synchronize(SOON)
    with context.raises(AsyncFailure, "planted", "query after failed work"):
        stream.query()
    stream.reset()


@case("faults", needs=_NEEDS)
def work_behind_a_failure_is_skipped_until_reset(context: Context) -> None:
    """q1 = [gate, fail, copy]; after reset [copy]"""
    stream, source, target = context.stream(), context.bytes(64), context.zeros(64)
    gate = stream.gate()
    stream.host_call(_fail)
    context.device.copy(target, source, stream)
    gate.open()
    with context.raises(AsyncFailure, "", "synchronize"):
        stream.synchronize(SOON)
    context.equal(target, context.zeros(64), "the target of a copy behind the failure")
    stream.reset()
    context.device.copy(target, source, stream)
    stream.synchronize(SOON)
    context.equal(target, source, "the target of a copy after reset")


@case("faults", needs=_NEEDS)
def a_failure_stays_in_its_stream(context: Context) -> None:
    """q1 = [fail]     q2 = [copy]"""
    bad, good = context.stream(), context.stream()
    bad.host_call(_fail)
    source, target = context.bytes(64), context.zeros(64)
    context.device.copy(target, source, good)
    good.synchronize(SOON)
    context.equal(target, source, "a copy on the other stream")
    with context.raises(AsyncFailure, "planted", "synchronize of the failed stream"):
        bad.synchronize(SOON)
    bad.reset()


@case("faults", needs=_NEEDS)
def the_device_tells_of_a_failed_stream(context: Context) -> None:
    """q1 = [fail]; synchronising the device raises it"""
    stream = context.stream()
    stream.host_call(_fail)
    with context.raises(AsyncFailure, "planted", "Device.synchronize"):
        context.device.synchronize(SOON)
    stream.reset()
    context.device.synchronize(SOON)


@case("faults")
def a_refused_op_has_queued_nothing_and_written_nothing(context: Context) -> None:
    """rms_norm with a weight of the wrong length names op, argument, value and limit"""
    device, stream = context.device, context.device.current_stream()
    guard = np.full((2, 8), 7.0, np.float32)
    out, x = context.upload(guard), context.upload(guard)
    weight = context.upload(np.ones(5, np.float32))
    with context.raises(InvalidArgument, "rms_norm", "rms_norm with a weight of 5 for rows of 8"):
        device.ops.rms_norm(stream, device.view(out), device.view(x), device.view(weight), eps=1e-6)
    context.equal(context.download(out, guard), guard, "the output of a refused op")


@case("faults")
def an_op_that_does_not_exist_is_no_attribute(context: Context) -> None:
    """A typo must not give None"""
    try:
        context.device.ops.no_such_op  # noqa: B018
    except AttributeError:
        return
    context.check(False, "ops.no_such_op gave something")
