"""Streams run in submission order and do not block the host."""

from __future__ import annotations

import threading

from accel.conformance.context import SOON, Context
from accel.conformance.registry import case
from accel.errors import Timeout


@case("streams", needs=("host_call", "gate"))
def run_in_submission_order(context: Context) -> None:
    """q1 = [gate, 0, 1, ..., 99]"""
    stream, seen = context.stream(), list[int]()
    gate = stream.gate()
    for i in range(100):
        stream.host_call(lambda i=i: seen.append(i))  # type: ignore[misc]
    context.equal(seen, [], "what ran behind a shut gate")
    gate.open()
    stream.synchronize(SOON)
    context.equal(seen, list(range(100)), "the order")


@case("streams", needs=("gate",))
def copies_of_one_stream_run_in_order(context: Context) -> None:
    """q1 = [gate, a -> t, t -> b, c -> t]: b holds a"""
    a, c, b = context.bytes(512), context.bytes(512), context.zeros(512)
    tensor, stream = context.empty((512,), "uint8"), context.stream()
    gate = stream.gate()
    for target, source in ((tensor, a), (b, tensor), (tensor, c)):
        context.device.copy(target, source, stream)
    context.check(not stream.query(), "three copies are done behind a shut gate")
    context.equal(b, context.zeros(512), "what was copied behind a shut gate")
    gate.open()
    stream.synchronize(SOON)
    context.equal(b, a, "what was read between the two writes")
    context.equal(context.download(tensor, c), c, "what was written last")


@case("streams", needs=("gate",))
def a_query_tells_the_truth_and_does_not_block(context: Context) -> None:
    """q1 = [gate]"""
    stream = context.stream()
    context.check(stream.query(), "an empty stream is not done")
    gate = stream.gate()
    context.check(not stream.query(), "a stream with a shut gate says it is done")
    gate.open()
    stream.synchronize(SOON)
    context.check(stream.query(), "a stream is not done after synchronize")


@case("streams", needs=("gate",))
def a_gate_opens_twice_and_when_it_is_dropped(context: Context) -> None:
    """q1 = [g1, g2]"""
    stream = context.stream()
    first, second = stream.gate(), stream.gate()
    first.open()
    first.open()
    context.check(not stream.query(), "the second gate does not hold")
    del second
    stream.synchronize(SOON)


@case("streams", needs=("gate",))
def a_synchronize_that_is_too_short_times_out_and_the_work_goes_on(context: Context) -> None:
    """q1 = [gate, copy]"""
    stream, source, target = context.stream(), context.bytes(64), context.zeros(64)
    gate = stream.gate()
    context.device.copy(target, source, stream)
    with context.raises(Timeout, "", "synchronize(0.05)"):
        stream.synchronize(0.05)
    gate.open()
    stream.synchronize(SOON)
    context.equal(target, source, "the copy")


@case("streams", needs=("host_call",))
def a_host_call_runs_on_another_thread(context: Context) -> None:
    """It must not run on the caller's, which goes on at once."""
    seen: list[int] = []
    stream = context.stream()
    stream.host_call(lambda: seen.append(threading.get_ident()))
    stream.synchronize(SOON)
    context.check(len(seen) == 1, f"the call ran {len(seen)} times")
    context.check(seen[0] != threading.get_ident(), "the call ran on the thread that queued it")


@case("streams", needs=("gate",))
def a_dropped_stream_finishes_what_was_queued(context: Context) -> None:
    """q1 = [gate, copy, e!], and nobody holds q1"""
    stream, event = context.stream(), context.event()
    source, target = context.bytes(64), context.zeros(64)
    gate = stream.gate()
    context.device.copy(target, source, stream)
    event.record(stream)
    del stream
    gate.open()
    event.synchronize(SOON)
    context.equal(target, source, "the copy")
