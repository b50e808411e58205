"""Copies and fills: checked before anything is queued, right to the byte, whatever is merged."""

from __future__ import annotations

import mmap
import random

import numpy as np
import numpy.typing as npt
import pytest
from waiting import SOON

from accel.backend import CopyRun, Device, Stream
from accel.errors import InvalidArgument

Bytes = npt.NDArray[np.uint8]


def ramp(count: int, start: int = 0) -> Bytes:
    return ((np.arange(count) + start) % 251).astype(np.uint8)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 4096, 1_000_003])
def test_copy(device: Device, q1: Stream, count: int) -> None:
    source, target = ramp(count), np.zeros(count, np.uint8)
    device.copy(target, source, q1)
    q1.synchronize(SOON)
    assert np.array_equal(source, target)


def test_shapes_and_dtypes_are_free_as_long_as_the_bytes_agree(device: Device, q1: Stream) -> None:
    source = np.arange(12, dtype=np.float32).reshape(3, 4)
    target = np.zeros(48, np.uint8)
    device.copy(target, source, q1)
    q1.synchronize(SOON)
    assert target.tobytes() == source.tobytes()


@pytest.mark.parametrize("byte", [0, 1, 255])
def test_fill(device: Device, q1: Stream, byte: int) -> None:
    target = np.full(102, 7, np.uint8)
    device.fill(target[1:101], byte, q1)
    q1.synchronize(SOON)
    assert (target[1:101] == byte).all()
    assert target[0] == target[101] == 7


@pytest.mark.parametrize("byte", [-1, 256])
def test_fill_refuses_what_is_no_byte(device: Device, q1: Stream, byte: int) -> None:
    with pytest.raises(InvalidArgument, match=f"byte is {byte}"):
        device.fill(np.zeros(1, np.uint8), byte, q1)


def test_sizes_must_agree(device: Device, q1: Stream) -> None:
    with pytest.raises(InvalidArgument, match="dst has 4 bytes and src 5"):
        device.copy(np.zeros(4, np.uint8), np.zeros(5, np.uint8), q1)


def test_overlap_is_refused(device: Device, q1: Stream) -> None:
    memory = ramp(100)
    for target, source in ((memory[:50], memory[49:99]), (memory[1:], memory[:-1]), (memory, memory)):
        with pytest.raises(InvalidArgument, match="overlap"):
            device.copy(target, source, q1)
    device.copy(memory[:50], memory[50:], q1)  # side by side is not over
    q1.synchronize(SOON)
    assert np.array_equal(memory[:50], memory[50:])


def test_strided_memory_is_refused(device: Device, q1: Stream) -> None:
    with pytest.raises(InvalidArgument, match="src is not contiguous"):
        device.copy(np.zeros(4, np.uint8), np.zeros(8, np.uint8)[::2], q1)
    with pytest.raises(InvalidArgument, match="dst is not contiguous"):
        device.fill(np.zeros((4, 4), np.uint8).T[1:], 0, q1)


def test_read_only_memory_is_no_destination(device: Device, q1: Stream) -> None:
    frozen = ramp(8)
    frozen.flags.writeable = False
    for call in (
        lambda: device.copy(frozen, np.zeros(8, np.uint8), q1),
        lambda: device.fill(frozen, 1, q1),
        lambda: device.copy_batch([CopyRun(frozen, 0, np.zeros(8, np.uint8), 0, 8)], q1),
        lambda: device.fill(device.view(frozen), 1, q1),
    ):
        with pytest.raises(InvalidArgument, match="read-only"):
            call()
    device.copy(np.zeros(8, np.uint8), frozen, q1)


@pytest.mark.parametrize("wrong", [None, 3, "text", [1, 2], b"bytes"])
def test_what_is_no_tensor_is_refused(device: Device, q1: Stream, wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="tensor"):
        device.copy(np.zeros(1, np.uint8), wrong, q1)


def test_a_refused_call_queues_nothing(device: Device, q1: Stream) -> None:
    # q1 = []: the first run of the batch is fine, the second is not
    target = np.zeros(8, np.uint8)
    runs = [CopyRun(target, 0, ramp(8, 1), 0, 8), CopyRun(target, 4, ramp(8), 0, 8)]
    with pytest.raises(InvalidArgument, match="run 1 of 8 bytes at 4 leaves dst of 8"):
        device.copy_batch(runs, q1)
    with pytest.raises(InvalidArgument, match="run 1 of 4 bytes overlaps itself"):
        device.copy_batch([runs[0], CopyRun(target, 0, target, 2, 4)], q1)
    assert q1.query()
    assert (target == 0).all()


@pytest.mark.parametrize(
    ("dst_offset", "src_offset", "nbytes"),
    [(-1, 0, 1), (0, -1, 1), (9, 0, 0), (0, 9, 0), (0, 0, 9), (8, 0, 1), (0, 8, 1), (0, 0, -1), (2**62, 0, 2**62)],
)
def test_runs_must_stay_inside(device: Device, q1: Stream, dst_offset: int, src_offset: int, nbytes: int) -> None:
    target, source = np.zeros(8, np.uint8), ramp(8)
    with pytest.raises(InvalidArgument, match="run 0"):
        device.copy_batch([CopyRun(target, dst_offset, source, src_offset, nbytes)], q1)


def test_zero_bytes_always_succeed(device: Device, q1: Stream) -> None:
    nothing, target = np.zeros(0, np.uint8), ramp(4)
    device.copy(nothing, nothing, q1)
    device.fill(nothing, 1, q1)
    device.copy_batch([], q1)
    device.copy_batch([CopyRun(target, 4, target, 4, 0), CopyRun(nothing, 0, nothing, 0, 0)], q1)
    assert q1.query()


def test_adjacent_runs_arrive_as_one(device: Device, q1: Stream) -> None:
    source, target = ramp(64), np.zeros(64, np.uint8)
    device.copy_batch([CopyRun(target, i * 8, source, i * 8, 8) for i in range(8)], q1)
    q1.synchronize(SOON)
    assert np.array_equal(source, target)


@pytest.mark.parametrize("size", [8, 4096, 100_000])
def test_a_shift_in_pieces_is_not_merged_into_an_overlap(device: Device, q1: Stream, size: int) -> None:
    # memory = [a b c d] -> [b c d d]: each run is fine, and next to the one before, but all together overlap
    memory = np.repeat(ramp(4), size)
    device.copy_batch([CopyRun(memory, i * size, memory, (i + 1) * size, size) for i in range(3)], q1)
    q1.synchronize(SOON)
    assert np.array_equal(memory, np.repeat(np.array([1, 2, 3, 3], np.uint8), size))


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_is_its_runs_one_after_the_other(device: Device, q1: Stream, seed: int) -> None:
    chance = random.Random(seed)
    memory = ramp(512)
    expected = memory.copy()
    runs = []
    start, step = chance.randrange(256), chance.choice([1, 2, 4, 8])
    for i in range(60):
        length = chance.choice([0, step, step, step])
        dst, src = (
            (chance.randrange(480), chance.randrange(480)) if chance.random() < 0.5 else (start, start + i * step)
        )
        start += length
        if dst + length > 512 or src + length > 512 or (length and abs(dst - src) < length):
            continue
        runs.append(CopyRun(memory, dst, memory, src, length))
        expected[dst : dst + length] = expected[src : src + length].copy()
    device.copy_batch(runs, q1)
    q1.synchronize(SOON)
    assert np.array_equal(memory, expected)


def test_a_stream_of_another_device_is_refused(device: Device) -> None:
    import accel

    with accel.open("cpu", threads=1) as other:
        foreign = other.stream()
        buffer = np.zeros(4, np.uint8)
        for call in (
            lambda: device.copy(buffer, np.ones(4, np.uint8), foreign),
            lambda: device.fill(buffer, 1, foreign),
            lambda: device.copy_batch([CopyRun(buffer, 0, np.ones(4, np.uint8), 0, 4)], foreign),
            lambda: device.event().record(foreign),
        ):
            with pytest.raises(InvalidArgument, match="belongs to"):
                call()


def test_host_memory_can_be_registered(device: Device, q1: Stream) -> None:
    with mmap.mmap(-1, 1 << 16) as memory:
        pool = np.frombuffer(memory, np.uint8)
        registration = device.register_host(pool)
        target = np.zeros(pool.size, np.uint8)
        device.copy(target, pool, q1)
        q1.synchronize(SOON)
        with pytest.raises(InvalidArgument, match="registered already"):
            device.register_host(pool[100:200])
        registration.close()
        registration.close()  # idempotent
        again = device.register_host(pool)
        del again  # the last reference unregisters
        device.register_host(pool).close()
        del registration, pool


def test_an_empty_range_cannot_be_registered(device: Device) -> None:
    with pytest.raises(InvalidArgument, match="at least 1 byte"):
        device.register_host(np.zeros(0, np.uint8))


def test_memory_is_plausible(device: Device) -> None:
    free, total = device.memory()
    assert 0 <= free <= total
    assert total > 1 << 27
