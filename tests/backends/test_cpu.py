"""The CPU backend says the truth about itself: each capability is checked both ways, each option has its limit."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest

import accel
from accel import Device, Support
from accel.backend import ProbeState
from accel.backends.cpu.backend import CpuBackend
from accel.errors import InvalidArgument, OutOfMemory, Unsupported
from accel.ops.names import OP_NAMES
from accel.ops.table import Kind


def test_the_probe_is_available_and_tells_builds() -> None:
    probe = CpuBackend().probe()
    assert probe.state is ProbeState.AVAILABLE
    assert probe.versions["accel module"].startswith(f"accel {accel.__version__}")
    assert "cpu" in probe.versions["paddle"]
    assert probe.devices[0].total_bytes > 0


def test_every_op_is_native_and_none_is_forgotten(cpu: Device) -> None:
    assert set(cpu.ops) == OP_NAMES
    assert all(cpu.ops.implementation(name).kind is Kind.NATIVE for name in OP_NAMES)
    with pytest.raises(AttributeError, match="no op is called 'rms_nrom'"):
        cpu.ops.rms_nrom  # noqa: B018


def test_no_capability_is_undefined(cpu: Device) -> None:
    for item in fields(cpu.capabilities):
        assert getattr(cpu.capabilities, item.name) is not None


def test_memory_info_is_plausible_and_moves_with_what_is_touched(cpu: Device) -> None:
    free, total = cpu.memory()
    assert 0 < free <= total
    size = 256 << 20
    held = np.ones(size, np.uint8)
    assert free - cpu.memory()[0] > size // 4
    del held


def test_copies_of_a_stream_do_not_run_on_the_callers_thread(cpu: Device) -> None:
    """async_copy NATIVE: a gate holds the copy, and the caller goes on."""
    # q1 = [gate, copy]
    source, target = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    stream = cpu.stream()
    gate = stream.gate()
    cpu.copy(target, source, stream)
    assert not stream.query()
    assert target.tolist() == [0, 0, 0, 0]
    gate.open()
    stream.synchronize(10)
    assert target.tolist() == source.tolist()


@pytest.mark.parametrize("feature", ["peer_copy", "ipc", "graph_capture"])
def test_what_is_none_is_declared(feature: str, cpu: Device) -> None:
    assert getattr(cpu.capabilities, feature) is Support.NONE


def test_capture_is_unsupported_and_names_the_alternative(cpu: Device) -> None:
    with pytest.raises(Unsupported, match="eagerly"):
        cpu.capture()


def test_place_and_tensors_are_the_frameworks(cpu: Device) -> None:
    assert cpu.place.is_cpu_place() if hasattr(cpu.place, "is_cpu_place") else "cpu" in str(cpu.place).lower()
    tensor = cpu.empty([3, 5], "bfloat16")
    assert list(tensor.shape) == [3, 5]
    assert cpu.view(tensor).dtype == "bfloat16"


def test_an_allocation_that_cannot_fit_tells_requested_free_and_total(cpu: Device) -> None:
    with pytest.raises(OutOfMemory) as caught:
        cpu.empty([1 << 44], "float32")
    assert caught.value.values["requested"] == 1 << 46
    assert caught.value.values["total"]


@pytest.mark.parametrize("shape", [[-1], [1.5], [None], [1 << 70]])
def test_a_shape_that_is_none_is_refused(shape: list[object], cpu: Device) -> None:
    with pytest.raises(InvalidArgument, match="shape is"):
        cpu.empty(shape, "float32")  # type: ignore[arg-type]


def test_a_dtype_or_size_that_cannot_be_is_refused(cpu: Device) -> None:
    with pytest.raises(InvalidArgument, match="unknown dtype 'foo'"):
        cpu.empty([1], "foo")
    with pytest.raises(OutOfMemory):
        cpu.empty([1 << 61, 1 << 61], "float32")


def test_threads_follow_the_affinity_mask_the_option_and_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEL_CPU_THREADS", raising=False)
    with accel.open("cpu") as device:
        assert 1 <= device.threads <= len(os.sched_getaffinity(0))  # type: ignore[attr-defined]
    monkeypatch.setenv("ACCEL_CPU_THREADS", "3")
    with accel.open("cpu") as device:
        assert device.threads == 3  # type: ignore[attr-defined]
    with accel.open("cpu", threads=1) as device:
        assert device.threads == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": -1}, "threads is -1"),
        ({"threads": "2"}, "threads is '2'"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"isa": 5}, "isa is 5"),
        ({"threads": 100000}, "threads is 100000"),
        ({"isa": "mmx"}, "unknown instruction set 'mmx'"),
        ({"colour": 1}, "unknown option 'colour'"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        accel.open("cpu", **options)


def test_a_variable_that_is_no_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_CPU_THREADS", "many")
    with pytest.raises(InvalidArgument, match="ACCEL_CPU_THREADS is 'many'"):
        accel.open("cpu")


def test_there_is_one_cpu() -> None:
    with pytest.raises(InvalidArgument, match=r"cpu:1|index 1"):
        accel.open("cpu:1")


def test_tensors_can_be_made_on_any_thread_whichever_imported_the_framework_first() -> None:
    """Paddle's mode belongs to the thread that imported it; the others would build a static graph."""
    program = (
        "import threading, accel\n"
        "device = accel.open('cpu')\n"
        "made = []\n"
        "def make(): made.append(device.view(device.empty((3,), 'uint8')).nbytes)\n"
        "for _ in range(2):\n"
        "    thread = threading.Thread(target=make); thread.start(); thread.join()\n"
        "make()\n"
        "print(made)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split("\n")[0] == "[3, 3, 3]", done.stderr
