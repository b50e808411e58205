"""Two streams are unordered unless an event joins them; and with one, always ordered."""

from __future__ import annotations

from accel.conformance.context import SOON, Context
from accel.conformance.registry import case

_NEEDS = ("events", "gate")


@case("ordering", needs=("gate",))
def streams_do_not_wait_for_each_other(context: Context) -> None:
    """q1 = [gate]     q2 = [copy]: no default stream synchronises what nobody joined"""
    q1, q2 = context.stream(), context.stream()
    source, target = context.bytes(64), context.zeros(64)
    gate = q1.gate()
    context.device.copy(target, source, q2)
    q2.synchronize(SOON)
    context.equal(target, source, "a copy beside a stream that is held")
    gate.open()
    q1.synchronize(SOON)


@case("ordering", needs=_NEEDS)
def a_diamond_joins(context: Context) -> None:
    """q0 = [gate, w, e!]   q1 = [e?, a, x!]   q2 = [e?, b, y!]   q3 = [x?, y?, read both]"""
    left, right = (context.empty((64,), "uint8") for _ in range(2))
    start = context.upload(context.bytes(64))
    q0, q1, q2, q3 = (context.stream() for _ in range(4))
    e, x, y = (context.event() for _ in range(3))
    gate, new = q0.gate(), context.bytes(64)
    context.device.copy(start, new, q0)
    e.record(q0)
    for stream, target, event in ((q1, left, x), (q2, right, y)):
        stream.wait(e)
        context.device.copy(target, start, stream)
        event.record(stream)
    q3.wait(x)
    q3.wait(y)
    seen = [context.zeros(64) for _ in range(2)]
    for host, tensor in zip(seen, (left, right), strict=True):
        context.device.copy(host, tensor, q3)
    context.check(not q3.query(), "the join did not wait")
    gate.open()
    q3.synchronize(SOON)
    context.equal(seen[0], new, "the left branch")
    context.equal(seen[1], new, "the right branch")


@case("ordering", needs=_NEEDS)
def ping_pong_between_two_streams_loses_no_write(context: Context) -> None:
    """q1 and q2 write one tensor in turns, each behind the other's event"""
    tensor, streams = context.upload(context.zeros(64)), [context.stream(), context.stream()]
    sources = [context.bytes(64) for _ in range(40)]
    reads = [context.zeros(64) for _ in sources]
    event = context.event()
    for turn, (source, read) in enumerate(zip(sources, reads, strict=True)):
        stream = streams[turn % 2]
        stream.wait(event)
        context.device.copy(tensor, source, stream)
        context.device.copy(read, tensor, stream)
        event.record(stream)
    event.synchronize(SOON)
    for turn, (source, read) in enumerate(zip(sources, reads, strict=True)):
        context.equal(read, source, f"what turn {turn} read")
