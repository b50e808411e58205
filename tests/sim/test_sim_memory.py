"""Device memory: the host cannot touch it, nothing outside an allocation can be used, and what was freed is gone."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accel
from accel.errors import AsyncFailure, InvalidArgument, OutOfMemory

SOON = 30.0
PAGE = 4096


def fetch(device: Any, buffer: Any) -> npt.NDArray[np.uint8]:
    """The bytes of a buffer, copied out on the compute stream."""
    host = np.zeros(buffer.nbytes, np.uint8)
    device.copy(host, buffer, device.current_stream())
    device.current_stream().synchronize(SOON)
    return host


@pytest.mark.parametrize("access", ["read", "write"])
def test_a_host_touch_faults_at_once(access: str) -> None:
    touch = "memoryview(p).tobytes()" if access == "read" else "p[0] = 1"
    program = (
        "import accel, ctypes\n"
        "device = accel.open('sim', memory=1 << 20)\n"
        "buffer = device.empty([64], 'uint8')\n"
        "p = (ctypes.c_ubyte * 64).from_address(buffer.ptr)\n"
        "print('before', flush=True)\n"
        f"{touch}\n"
        "print('after', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "before\n"
    assert done.returncode == -signal.SIGSEGV


def test_bytes_come_back_as_they_went(sim: Any) -> None:
    source = np.arange(3 * PAGE + 5).astype(np.uint8)
    buffer = sim.empty([source.size], "uint8")
    sim.copy(buffer, source, sim.current_stream())
    assert np.array_equal(fetch(sim, buffer), source)


def test_fresh_memory_is_poisoned(sim: Any) -> None:
    buffer = sim.empty([100], "uint8")
    assert (fetch(sim, buffer) == 0xCD).all()


def test_freed_memory_is_poisoned_under_work_that_still_runs(sim: Any) -> None:
    """A view made before is read by work in flight: it sees the poison, not the bytes that were there."""
    # q = [call: free, then copy]: the copy passed its check when it was queued, so its own check at execution stops it
    buffer, host, stream = sim.empty([16], "uint8"), np.zeros(16, np.uint8), sim.stream()
    gate = stream.gate()
    sim.copy(host, buffer, stream)
    buffer.free()
    gate.open()
    with pytest.raises(AsyncFailure, match="copy: uses device memory that was freed"):
        stream.synchronize(SOON)
    assert not host.any(), "nothing was copied"


def test_a_double_free_an_interior_and_a_foreign_one_are_errors(sim: Any) -> None:
    buffer = sim.empty([2 * PAGE], "uint8")
    with pytest.raises(InvalidArgument, match="inside an allocation"):
        sim.sim.free(buffer.ptr + PAGE)
    with pytest.raises(InvalidArgument, match="not an allocation of this device"):
        sim.sim.free(np.zeros(1).ctypes.data)
    buffer.free()
    with pytest.raises(InvalidArgument, match="freed it twice"):
        buffer.free()
    assert sim.sim.counters()["frees"] == 1


@pytest.mark.parametrize("shift", [-1, 1, PAGE])
def test_a_range_that_leaves_its_allocation_is_refused_at_the_call(sim: Any, shift: int) -> None:
    class Shifted:
        shape, dtype, device = (PAGE,), "uint8", "sim:0"

        def data_ptr(self) -> int:
            return int(buffer.ptr) + shift

    buffer, host = sim.empty([PAGE], "uint8"), np.zeros(PAGE, np.uint8)
    before = sim.sim.counters()["copy"]
    for dst, src in ((Shifted(), host), (host, Shifted())):
        with pytest.raises(InvalidArgument, match=r"run 0 uses"):
            sim.copy(dst, src, sim.current_stream())
    with pytest.raises(InvalidArgument, match="the fill uses"):
        sim.fill(Shifted(), 0, sim.current_stream())
    assert sim.sim.counters()["copy"] == before, "nothing was queued"


def test_a_use_after_free_is_refused_at_the_call(sim: Any) -> None:
    out, x, weight = (sim.empty(shape, "float32") for shape in ([2, 8], [2, 8], [8]))
    x.free()
    with pytest.raises(InvalidArgument, match="x uses device memory that was freed") as raised:
        sim.ops.rms_norm(sim.current_stream(), out, x, weight, eps=0.0)
    assert raised.value.op == "rms_norm"
    with pytest.raises(InvalidArgument, match="freed"):
        sim.copy(np.zeros(16, np.float32), x, sim.current_stream())


def test_a_use_after_free_is_an_error_when_the_op_runs(sim: Any) -> None:
    # compute = [gate, rms_norm], and x is freed meanwhile
    out, x, weight = (sim.empty(shape, "float32") for shape in ([2, 8], [2, 8], [8]))
    gate = sim.current_stream().gate()
    sim.ops.rms_norm(sim.current_stream(), out, x, weight, eps=0.0)
    x.free()
    gate.open()
    with pytest.raises(AsyncFailure, match="x uses device memory that was freed") as raised:
        sim.current_stream().synchronize(SOON)
    assert raised.value.op == "rms_norm"


def test_a_dropped_buffer_goes_in_the_order_of_the_compute_stream(sim: Any) -> None:
    # compute = [gate, copy, free]: what was queued before the drop may still use it
    buffer, host = sim.empty([16], "uint8"), np.zeros(16, np.uint8)
    gate = sim.current_stream().gate()
    sim.copy(host, buffer, sim.current_stream())
    del buffer
    assert sim.sim.counters()["live_allocations"] == 1
    gate.open()
    sim.current_stream().synchronize(SOON)
    assert (host == 0xCD).all()
    assert sim.sim.counters()["live_allocations"] == 0
    assert sim.sim.races() == []


def test_the_limit_is_kept_and_told(sim: Any) -> None:
    free, total = sim.memory()
    assert free == total == 4 << 20
    held = sim.empty([3 << 20], "uint8")
    assert sim.memory() == (1 << 20, 4 << 20)
    with pytest.raises(OutOfMemory, match="do not fit") as raised:
        sim.empty([(1 << 20) + 1], "uint8")
    assert raised.value.values["requested"] == (1 << 20) + 1
    assert raised.value.values["free"] == 1 << 20
    held.free()
    assert sim.memory() == (4 << 20, 4 << 20)
    sim.empty([4 << 20], "uint8").free()  # life after it


def test_memory_that_is_dropped_but_not_yet_free_is_waited_for(sim: Any) -> None:
    # compute = [gate, free 3 MiB]: an allocation that needs it waits for the stream
    stream = sim.current_stream()
    held = sim.empty([3 << 20], "uint8")
    gate = stream.gate()
    del held
    assert sim.memory()[0] == 1 << 20
    gate.open()
    assert sim.empty([3 << 20], "uint8").nbytes == 3 << 20


def test_an_address_is_not_handed_out_again_at_once(sim: Any) -> None:
    first = sim.empty([PAGE], "uint8")
    stale = first.ptr
    first.free()
    assert all(sim.empty([PAGE], "uint8").ptr != stale for _ in range(20))


def test_nothing_takes_a_page_and_zero_bytes_always_succeed(sim: Any) -> None:
    empty = sim.empty([0, 7], "float32")
    sim.copy(empty, np.zeros((0, 7), np.float32), sim.current_stream())
    sim.fill(empty, 1, sim.current_stream())
    sim.current_stream().synchronize(SOON)


def test_a_view_knows_that_the_host_cannot_read_it(sim: Any) -> None:
    view = sim.view(sim.empty([2, 3], "float32"))
    assert (view.shape, view.dtype) == ((2, 3), "float32")
    with pytest.raises(InvalidArgument, match="not in host memory"):
        view.numpy()


def test_memory_outlives_a_closed_device_only_as_a_number() -> None:
    device = accel.open("sim", memory=1 << 20)
    buffer = device.empty([8], "uint8")
    device.close()
    del buffer  # neither hangs nor raises
    assert device.sim.counters()["live_allocations"] == 0  # type: ignore[attr-defined]


@settings(derandomize=True, deadline=None, max_examples=30, database=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 3 * PAGE)), max_size=60))
def test_any_order_of_allocations_keeps_them_apart(steps: list[tuple[bool, int, int]]) -> None:
    """Against a dict: sizes add up, ranges and their guards do not meet, contents stay."""
    with accel.open("sim", memory=1 << 17, check=False) as device:
        held: dict[int, tuple[Any, int]] = {}
        for free, key, size in steps:
            if free or key in held:
                if key in held:
                    buffer, byte = held.pop(key)
                    if buffer.nbytes:
                        assert (fetch(device, buffer) == byte).all()
                    buffer.free()
                continue
            buffer = device.empty([size], "uint8")
            device.fill(buffer, key, device.current_stream())
            held[key] = (buffer, key)
            spans = sorted((b.ptr, b.ptr + max(b.nbytes, 1)) for b, _ in held.values())
            assert all(end + 1 <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
            assert all(begin // PAGE > (end - 1) // PAGE + 1 for (_, end), (begin, _) in itertools.pairwise(spans))
        pages = sum(max(1, -(-b.nbytes // PAGE)) for b, _ in held.values())
        assert device.sim.counters()["live_bytes"] == pages * PAGE  # type: ignore[attr-defined]
        assert device.sim.counters()["live_allocations"] == len(held)  # type: ignore[attr-defined]
