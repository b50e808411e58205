"""Slots have one owner at a time: what is stale, in use or unusable is refused, and what is refused changes nothing."""

from __future__ import annotations

import errno
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swap_bench import DENSE, LAYOUT, FaultyDevice, index, int64

from accel import Device
from accel.backend import Support
from accel.cache.host_pool import PAD, HostPool
from accel.cache.trailer import MAGIC, TRAILER, TRAILER_BYTES, VERSION
from accel.errors import AccelError, DeviceLost, InvalidArgument, OutOfMemory


@pytest.fixture
def pool(cpu: Device) -> Iterator[HostPool]:
    with HostPool(cpu, LAYOUT, 4) as made:
        yield made


def take(pool: HostPool, count: int) -> Any:
    taken = pool.allocate(count)
    assert taken is not None
    return taken


def test_a_slot_is_page_trailer_and_pad_at_a_multiple_of_4_kib(pool: HostPool, cpu: Device) -> None:
    assert (pool.page_bytes, pool.slot_bytes, pool.nbytes) == (1024, PAD, 4 * PAD)
    assert pool.memory.ctypes.data % PAD == 0
    slot = int(take(pool, 2)[1])
    pool.record(slot)[...] = np.arange(PAD, dtype=np.uint16).astype(np.uint8)
    assert pool.payload(slot).ctypes.data == pool.memory.ctypes.data + PAD
    assert np.array_equal(np.concatenate([pool.payload(slot), pool.trailer(slot)]), pool.record(slot)[: 1024 + 64])
    with HostPool(cpu, DENSE, 2) as other:
        assert (other.page_bytes, other.slot_bytes, other.dense) == (PAD, 2 * PAD, False), "the trailer needs room"
    with HostPool(cpu, DENSE, 2, trailer=False) as other:
        assert (other.slot_bytes, other.dense) == (PAD, True)
        with pytest.raises(InvalidArgument, match="no trailer"):
            other.trailer(int(take(other, 1)[0]))


def test_the_trailer_lies_as_it_is_drawn(pool: HostPool) -> None:
    assert TRAILER.itemsize == TRAILER_BYTES == 64
    digest, namespace = bytes(range(32)), b"NAMESPAC"
    slot = int(take(pool, 1)[0])
    pool.trailer(slot).view(TRAILER)[0] = (MAGIC, VERSION, 0, 1024, 2**63 + 5, namespace, digest)
    expected = struct.pack("<4sHHQQ8s32s", b"akvp", 1, 0, 1024, 2**63 + 5, namespace, digest)
    assert pool.trailer(slot).tobytes() == expected


def test_the_memory_has_no_name_a_fixed_size_and_can_be_shared(pool: HostPool) -> None:
    slot = int(take(pool, 1)[0])
    pool.payload(slot)[...] = 9
    assert os.readlink(f"/proc/self/fd/{pool.fileno()}").endswith("(deleted)")
    assert not os.get_inheritable(pool.fileno())
    with mmap.mmap(pool.fileno(), pool.nbytes) as other:
        assert other[:1024] == bytes([9]) * 1024
    with pytest.raises(PermissionError):
        os.ftruncate(pool.fileno(), 0)


def test_the_lowest_free_slots_come_first_and_ids_carry_a_generation(pool: HostPool) -> None:
    first = take(pool, 3)
    assert first.tolist() == [1 << 32, 1 << 32 | 1, 1 << 32 | 2]
    pool.free(first[:2])
    assert take(pool, 2).tolist() == [2 << 32, 2 << 32 | 1]
    assert pool.allocate(2) is None
    assert take(pool, 0).tolist() == []
    assert take(pool, 1).tolist() == [1 << 32 | 3]
    stats = pool.stats()
    assert (stats.free, stats.empty, stats.allocations, stats.frees) == (0, 4, 6, 2)


def test_a_stale_double_or_foreign_id_is_refused_and_nothing_is_freed(pool: HostPool) -> None:
    old, kept = take(pool, 2).tolist()
    pool.free(int64(old))
    again = int(take(pool, 1)[0])
    assert again != old
    for ids, message in (
        ([kept, old], "stale"),
        ([kept, kept], "twice"),
        ([kept, 1 << 32 | 3], "stale"),
        ([kept, 4], "never was a slot"),
        ([kept, -1], "never was a slot"),
    ):
        for call in (pool.free, pool.mark_full):
            with pytest.raises(InvalidArgument, match=message):
                call(int64(*ids))
        assert (pool.stats().free, pool.stats().full) == (2, 0)
    for look in (pool.payload, pool.trailer, pool.record, pool.is_full):
        with pytest.raises(InvalidArgument, match="stale"):
            look(old)
    with pytest.raises(InvalidArgument, match="int64"):
        pool.free(np.array([3], np.int32))  # type: ignore[arg-type]
    pool.free(int64(kept))
    with pytest.raises(InvalidArgument, match="stale"):
        pool.free(int64(kept))


def test_a_slot_is_empty_again_for_its_next_owner(pool: HostPool) -> None:
    slot = take(pool, 1)
    assert not pool.is_full(int(slot[0]))
    pool.mark_full(slot)
    assert pool.is_full(int(slot[0]))
    pool.free(slot)
    assert not pool.is_full(int(take(pool, 1)[0]))


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=40))
def test_slots_are_those_of_a_set(calls: list[tuple[bool, int]]) -> None:
    import accel

    with accel.open("cpu", threads=1) as device, HostPool(device, LAYOUT, 6) as pool:
        held: list[int] = []
        for take_some, count in calls:
            if take_some:
                taken = pool.allocate(count)
                assert (taken is None) == (len(held) + count > 6)
                held += [] if taken is None else taken.tolist()
            else:
                pool.free(int64(*held[:count]))
                del held[:count]
            assert len(set(index(held))) == len(held)
            assert pool.stats().free == 6 - len(held)


@pytest.mark.parametrize("slots", [0, -1, 2**28 + 1])
def test_a_number_of_slots_out_of_range_is_refused(slots: int, cpu: Device) -> None:
    with pytest.raises(InvalidArgument, match="slots is"):
        HostPool(cpu, LAYOUT, slots)


def test_more_than_the_memory_that_is_free_is_refused_before_it_is_taken(cpu: Device) -> None:
    with pytest.raises(OutOfMemory, match="use fewer slots") as raised:
        HostPool(cpu, LAYOUT, 2**28)
    assert raised.value.values["requested"] == 2**28 * PAD


@pytest.mark.parametrize(
    ("call", "number", "kind"),
    [
        ("posix_fallocate", errno.ENOSPC, OutOfMemory),
        ("posix_fallocate", errno.ENOMEM, OutOfMemory),
        ("memfd_create", errno.EMFILE, AccelError),
    ],
)
def test_what_the_system_refuses_is_a_typed_error_and_leaves_no_file(
    call: str, number: int, kind: type[AccelError], cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> None:
        raise OSError(number, os.strerror(number))

    files = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(AccelError) as raised:
        HostPool(cpu, LAYOUT, 2)
    assert type(raised.value) is kind
    assert len(os.listdir("/proc/self/fd")) == files


def test_threads_never_get_the_same_slot(pool: HostPool) -> None:
    errors: list[str] = []
    start = threading.Barrier(4)

    def work(mine: int) -> None:
        start.wait(30)
        for _ in range(200):
            slots = pool.allocate(1)
            if slots is None:
                continue
            pool.payload(int(slots[0]))[...] = mine
            pool.mark_full(slots)
            if not (pool.payload(int(slots[0])) == mine).all():
                errors.append(f"slot {slots[0]} has two owners")
            pool.free(slots)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    stats = pool.stats()
    assert (errors, stats.free, stats.allocations) == ([], 4, stats.frees)


def test_large_memory_is_registered_in_pieces_and_a_failed_piece_takes_the_others_back(cpu: Device) -> None:
    whole: Any = FaultyDevice(cpu)
    with HostPool(whole, LAYOUT, 5, registration_bytes=2 * PAD) as pool:
        assert (whole.registered, pool.piece) == (3, 2)
    assert whole.registered == 0
    files = len(os.listdir("/proc/self/fd"))
    broken: Any = FaultyDevice(cpu, ["register_host"], nth=1)
    with pytest.raises(DeviceLost, match="register_host"):
        HostPool(broken, LAYOUT, 5, registration_bytes=2 * PAD)
    assert broken.registered == 0
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_device_that_cannot_register_copies_through_pageable_memory(cpu: Device) -> None:
    device: Any = FaultyDevice(cpu, host_register=Support.NONE)
    with HostPool(device, LAYOUT, 2) as pool:
        assert device.registered == 0
        pool.payload(int(take(pool, 1)[0]))[...] = 1


def test_close_gives_everything_back_and_a_closed_pool_refuses(cpu: Device) -> None:
    files = len(os.listdir("/proc/self/fd"))
    device: Any = FaultyDevice(cpu)
    pool = HostPool(device, LAYOUT, 2)
    slot = take(pool, 1)
    seen = pool.payload(int(slot[0]))
    pool.close()
    pool.close()  # idempotent
    seen[...] = 3  # a view that is left keeps the mapping
    for call in (
        lambda: pool.allocate(1),
        lambda: pool.free(slot),
        lambda: pool.payload(int(slot[0])),
        pool.fileno,
        lambda: pool.memory,
    ):
        with pytest.raises(InvalidArgument, match="closed"):
            call()
    del seen
    assert device.registered == 0
    assert len(os.listdir("/proc/self/fd")) == files
