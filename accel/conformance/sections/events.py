"""The rules of events. One that breaks them shows as corrupt pages under load, months later."""

from __future__ import annotations

from accel.conformance.context import SOON, Context
from accel.conformance.registry import case
from accel.errors import Timeout

_NEEDS = ("events", "gate")


@case("events", needs=("events",))
def never_recorded_is_complete(context: Context) -> None:
    """q1 = [e?]"""
    event, stream = context.event(), context.stream()
    context.check(event.query(), "an event without a record is not complete")
    event.synchronize(0)
    stream.wait(event)
    stream.synchronize(SOON)


@case("events", needs=_NEEDS)
def completes_with_what_was_before_it_and_not_behind(context: Context) -> None:
    """q1 = [g1, copy, e!, g2]"""
    stream, event = context.stream(), context.event()
    source, target = context.bytes(64), context.zeros(64)
    first = stream.gate()
    context.device.copy(target, source, stream)
    event.record(stream)
    second = stream.gate()
    context.check(not event.query(), "the event is complete before what it stands for")
    first.open()
    event.synchronize(SOON)
    context.equal(target, source, "the copy before the event")
    context.check(not stream.query(), "the stream is done though a gate behind the event is shut")
    second.open()
    stream.synchronize(SOON)


@case("events", needs=_NEEDS)
def joins_two_streams(context: Context) -> None:
    """q1 = [gate, a -> t, e!]     q2 = [e?, t -> b]"""
    q1, q2, event = context.stream(), context.stream(), context.event()
    a, b = context.bytes(256), context.zeros(256)
    tensor = context.upload(context.bytes(256))
    gate = q1.gate()
    context.device.copy(tensor, a, q1)
    event.record(q1)
    q2.wait(event)
    context.device.copy(b, tensor, q2)
    context.check(not q2.query(), "the second stream did not wait")
    context.equal(b, context.zeros(256), "what the second stream copied behind a shut gate")
    gate.open()
    q2.synchronize(SOON)
    context.equal(b, a, "what the second stream copied")


@case("events", needs=_NEEDS)
def a_wait_captures_the_newest_record(context: Context) -> None:
    """q1 = [e!, gate, e!]     q2 = [e?] is held by the second record"""
    q1, q2, event = context.stream(), context.stream(), context.event()
    event.record(q1)
    gate = q1.gate()
    event.record(q1)
    q2.wait(event)
    context.check(not q2.query(), "the wait followed an older record")
    gate.open()
    q2.synchronize(SOON)


@case("events", needs=_NEEDS)
def recording_again_keeps_earlier_waiters(context: Context) -> None:
    """q1 = [g1, e!, g2, e!]     q2 = [e?] (the first record)"""
    q1, q2, event = context.stream(), context.stream(), context.event()
    first = q1.gate()
    event.record(q1)
    q2.wait(event)
    second = q1.gate()
    event.record(q1)
    first.open()
    q2.synchronize(SOON)
    context.check(not event.query(), "a query does not follow the newest record")
    second.open()
    event.synchronize(SOON)


@case("events", needs=_NEEDS)
def on_an_idle_stream_completes_at_once(context: Context) -> None:
    """q1 = [gate, e!]     q2 = [e!]: the newest record counts, and q2 has nothing to wait for"""
    q1, q2, event = context.stream(), context.stream(), context.event()
    gate = q1.gate()
    event.record(q1)
    event.record(q2)
    event.synchronize(SOON)
    context.check(event.query(), "the event still follows the older record")
    gate.open()
    q1.synchronize(SOON)


@case("events", needs=_NEEDS)
def a_chain_over_many_streams_keeps_its_order(context: Context) -> None:
    """q0 = [gate, w0, e0!]     q1 = [e0?, w1, e1!]     ..., all writing one tensor"""
    tensor, last = context.empty((64,), "uint8"), context.zeros(64)
    streams = [context.stream() for _ in range(8)]
    gate, previous = streams[0].gate(), None
    sources = []
    for stream in streams:
        if previous is not None:
            stream.wait(previous)
        sources.append(context.bytes(64))
        context.device.copy(tensor, sources[-1], stream)
        previous = context.event()
        previous.record(stream)
    gate.open()
    for stream in streams:
        stream.synchronize(SOON)
    last = context.download(tensor, last)
    context.equal(last, sources[-1], "what was written last")


@case("events", needs=_NEEDS)
def a_synchronize_that_is_too_short_times_out(context: Context) -> None:
    """q1 = [gate, e!]"""
    stream, event = context.stream(), context.event()
    gate = stream.gate()
    event.record(stream)
    with context.raises(Timeout, "", "synchronize(0.05)"):
        event.synchronize(0.05)
    gate.open()
    event.synchronize(SOON)


@case("events", needs=("event_timing", "gate"))
def times_are_not_negative_and_grow(context: Context) -> None:
    """q1 = [a!, copy, b!]"""
    stream, source, target = context.stream(), context.bytes(1 << 20), context.zeros(1 << 20)
    begin, end = context.device.event(timing=True), context.device.event(timing=True)
    begin.record(stream)
    context.device.copy(target, source, stream)
    end.record(stream)
    end.synchronize(SOON)
    took = begin.elapsed_ms(end)
    context.check(0 <= took < 1e5, f"a copy took {took} ms")
