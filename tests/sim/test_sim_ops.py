"""Ops on the simulated device: the CPU kernels' bits, in stream order, checked as far as can be at the call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import accel
from accel.errors import AsyncFailure, DeviceLost, InvalidArgument
from accel.ops.cases import Case, cases
from accel.ops.checks import Operand, WeightOperand, run_case
from accel.ops.names import OP_NAMES
from accel.ops.spec import all_specs
from accel.ops.table import Kind

SOON = 30.0
ALL = [case for spec in all_specs().values() for case in cases(spec, seed=0)]


@dataclass
class DeviceTarget:
    """A device with memory of its own: operands are copied there with their guards, and back."""

    device: Any
    packed: dict[int, tuple[WeightOperand, Any]] = field(default_factory=dict)
    buffers: dict[int, tuple[Operand, Any]] = field(default_factory=dict)

    def tensor(self, operand: Operand) -> Any:
        # The buffer's bytes as elements of the operand's dtype, then a window of them.
        raw = operand.buffer.reshape(-1)
        if id(operand.buffer) not in self.buffers:
            buffer = self.device.empty([raw.size], operand.dtype)
            self.device.copy(buffer, raw, self.device.current_stream())
            self.buffers[id(operand.buffer)] = (operand, buffer)
        buffer = self.buffers[id(operand.buffer)][1]
        return Window(buffer, operand)

    def weight(self, weight: WeightOperand) -> Any:
        if id(weight) not in self.packed:
            packed = self.device.weight(weight.format, *weight.shape)
            packed.pack_rows(weight.encoding, weight.rows)
            self.packed[id(weight)] = (weight, packed)
        return self.packed[id(weight)][1]

    def call(self, op: str, tensors: Sequence[Any], attributes: Mapping[str, Any]) -> None:
        getattr(self.device.ops, op)(self.device.current_stream(), *tensors, **attributes)
        self.device.current_stream().synchronize(SOON)

    def fetch(self, tensor: Any, operand: Operand) -> None:
        raw = operand.buffer.reshape(-1)
        self.device.copy(raw, self.buffers[id(operand.buffer)][1], self.device.current_stream())
        self.device.current_stream().synchronize(SOON)


class Window:
    """Part of a buffer, as a framework's view of a tensor is."""

    def __init__(self, buffer: Any, operand: Operand) -> None:
        self.buffer, self.operand = buffer, operand
        self.shape, self.strides = tuple(operand.shape), tuple(operand.strides)
        self.dtype, self.device = operand.dtype, "sim:0"

    def data_ptr(self) -> int:
        return int(self.buffer.ptr + self.operand.offset * self.operand.buffer.itemsize)


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    with accel.open("sim", memory=256 << 20) as device:
        yield device


def test_every_op_is_there(shared: Any) -> None:
    assert set(shared.ops) == OP_NAMES
    assert all(shared.ops.implementation(name).kind is Kind.NATIVE for name in OP_NAMES)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_every_op_does_what_its_spec_says(case: Case, shared: Any) -> None:
    for report in run_case(DeviceTarget(shared), case):
        assert report.ok, report.message
    assert shared.sim.races() == []


def test_a_wrong_shape_is_refused_at_the_call(sim: Any) -> None:
    out, x, weight = (sim.empty(shape, "float32") for shape in ([2, 8], [2, 8], [9]))
    with pytest.raises(InvalidArgument, match=r"weight has shape \[9\]"):
        sim.ops.rms_norm(sim.current_stream(), out, x, weight, eps=0.0)
    assert sim.sim.counters()["launch"] == 0


def test_a_wrong_value_in_device_memory_is_the_streams_error(sim: Any) -> None:
    out, x, index = sim.empty([1, 4], "float32"), sim.empty([3, 4], "float32"), sim.empty([1], "int32")
    stream = sim.current_stream()
    sim.copy(index, np.array([3], np.int32), stream)
    sim.ops.gather_rows(stream, out, x, index)
    with pytest.raises(AsyncFailure, match=r"index\[0\] is 3") as raised:
        stream.synchronize(SOON)
    assert raised.value.op == "gather_rows"


def test_host_memory_is_no_argument(sim: Any) -> None:
    out, x = sim.empty([2, 8], "float32"), sim.empty([2, 8], "float32")
    with pytest.raises(InvalidArgument, match="weight is in host memory"):
        sim.ops.rms_norm(sim.current_stream(), out, x, np.ones(8, np.float32), eps=0.0)


def test_a_stream_of_another_runtime_is_refused(sim: Any, cpu: Any) -> None:
    out, x = sim.empty([1, 4], "float32"), sim.empty([1, 8], "float32")
    with pytest.raises(InvalidArgument, match="cpu:0, which is not simulated"):
        sim.ops.silu_and_mul(cpu.current_stream(), out, x)


def test_an_op_on_a_closed_device_is_refused() -> None:
    device = accel.open("sim", memory=1 << 20)
    out, x, stream = device.empty([1, 4], "float32"), device.empty([1, 8], "float32"), device.current_stream()
    device.close()
    with pytest.raises(DeviceLost):
        device.ops.silu_and_mul(stream, out, x)


def test_a_device_closes_while_its_ops_run() -> None:
    for _ in range(10):
        device = accel.open("sim", memory=1 << 20)
        out, x = device.empty([16, 64], "float32"), device.empty([16, 128], "float32")
        for _ in range(50):
            device.ops.silu_and_mul(device.current_stream(), out, x)
        device.close()


def test_an_op_is_held_by_a_gate(sim: Any) -> None:
    # compute = [gate, silu_and_mul]
    out, x = sim.empty([1, 4], "float32"), sim.empty([1, 8], "float32")
    gate = sim.current_stream().gate()
    sim.ops.silu_and_mul(sim.current_stream(), out, x)
    assert not sim.current_stream().query()
    assert sim.sim.counters()["executed"] == 0
    gate.open()
    sim.current_stream().synchronize(SOON)
    assert sim.sim.counters()["executed"] == 1


def test_ids_on_the_host_are_taken_at_the_call(sim: Any) -> None:
    # q = [gate, pages_zero]: the array changes before the op runs
    stream, pool = sim.stream(), sim.empty([3, 1, 2, 1, 4, 4], "float32")
    sim.fill(pool, 1, stream)
    gate, ids = stream.gate(), np.array([1], np.int32)
    sim.ops.pages_zero(stream, pool, ids)
    ids[0] = 1 << 30
    gate.open()
    host = np.zeros((3, 1, 2, 1, 4, 4), np.float32)
    sim.copy(host, pool, stream)
    stream.synchronize(SOON)
    assert [bool(page.any()) for page in host] == [True, False, True]
    with pytest.raises(InvalidArgument, match=r"blocks\[0\] is 3"):
        sim.ops.pages_zero(stream, pool, np.array([3], np.int32))
