"""Copies and fills: every byte, no other, in stream order."""

from __future__ import annotations

import numpy as np

from accel.backend import CopyRun
from accel.conformance.context import SOON, Context
from accel.conformance.registry import case
from accel.errors import InvalidArgument

#: Around the borders of vectors, pages and huge copies.
SIZES = (1, 2, 3, 15, 16, 17, 63, 64, 65, 255, 4095, 4096, 4097, 1 << 20)


@case("copies")
def bring_every_byte_there_and_back(context: Context) -> None:
    """Host to device to host, sizes around all borders."""
    for size in SIZES:
        want = context.bytes(size)
        context.equal(context.download(context.upload(want), want), want, f"{size} bytes")


@case("copies")
def between_tensors_of_the_device(context: Context) -> None:
    """Device to device on a stream of its own."""
    want = context.bytes(10_007)
    source, target = context.upload(want), context.empty((10_007,), "uint8")
    stream = context.stream()
    context.device.copy(target, source, stream)
    stream.synchronize(SOON)
    context.equal(context.download(target, want), want, "the copy")


@case("copies")
def of_nothing_succeed(context: Context) -> None:
    """Zero bytes, either way."""
    empty = np.empty(0, np.uint8)
    context.equal(len(context.download(context.upload(empty), empty)), 0, "bytes")


@case("copies")
def touch_no_byte_beside_their_range(context: Context) -> None:
    """A part of a tensor, with guards on both sides."""
    for offset, count in ((1, 1), (3, 61), (64, 64), (65, 127)):
        before, new = context.bytes(256), context.bytes(count)
        tensor = context.upload(before)
        stream = context.stream()
        context.device.copy(context.device.view(tensor).narrow(0, offset, count), new, stream)
        stream.synchronize(SOON)
        want = before.copy()
        want[offset : offset + count] = new
        context.equal(context.download(tensor, want), want, f"{count} bytes at {offset}")


@case("copies")
def in_a_batch_go_where_each_says(context: Context) -> None:
    """Adjacent runs may be merged, others must not."""
    source, target = context.bytes(1000), context.bytes(1000)
    tensor = context.upload(target)
    runs = [(0, 500, 100), (100, 600, 50), (150, 0, 30), (300, 40, 7), (307, 900, 100)]
    stream = context.stream()
    context.device.copy_batch([CopyRun(tensor, to, source, start, count) for start, to, count in runs], stream)
    stream.synchronize(SOON)
    want = target.copy()
    for start, to, count in runs:
        want[to : to + count] = source[start : start + count]
    context.equal(context.download(tensor, want), want, "the target")


@case("copies")
def of_a_batch_with_one_bad_run_do_nothing(context: Context) -> None:
    """All runs are checked before the first is queued."""
    source, target = context.bytes(100), context.bytes(100)
    tensor = context.upload(target)
    runs = [CopyRun(tensor, 0, source, 0, 50), CopyRun(tensor, 80, source, 0, 50)]
    stream = context.stream()
    with context.raises(InvalidArgument, "", "a run past the end"):
        context.device.copy_batch(runs, stream)
    stream.synchronize(SOON)
    context.equal(context.download(tensor, target), target, "the target afterwards")


@case("copies")
def of_different_sizes_are_refused(context: Context) -> None:
    """With both sizes in the message."""
    tensor = context.empty((10,), "uint8")
    with context.raises(InvalidArgument, "10", "copying 9 bytes over 10"):
        context.device.copy(tensor, context.zeros(9), context.stream())


@case("copies")
def fills_set_every_byte_of_their_range(context: Context) -> None:
    """And none beside it."""
    before = context.bytes(300)
    tensor = context.upload(before)
    stream = context.stream()
    context.device.fill(context.device.view(tensor).narrow(0, 17, 200), 0xA5, stream)
    stream.synchronize(SOON)
    want = before.copy()
    want[17:217] = 0xA5
    context.equal(context.download(tensor, want), want, "the tensor")
