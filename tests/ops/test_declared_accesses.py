"""Every launch declares what it touches, and touches nothing else. The simulator's race checker builds on this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import accel
from accel import Device, _core
from accel.errors import InvalidArgument
from accel.ops.cases import Case, cases
from accel.ops.checks import HostTarget, execute
from accel.ops.operand import Operand
from accel.ops.spec import Access, all_specs

Bytes = npt.NDArray[np.bool_]
Declared = list[tuple[int, int, int, list[int], int, str]]

ALL = [case for spec in all_specs().values() for case in cases(spec, seed=0)]


@pytest.fixture(scope="module")
def recorded() -> Iterator[Device]:
    """A CPU device whose runtime logs launches."""
    patch = pytest.MonkeyPatch()
    patch.setattr(_core, "host_runtime", _core.recording_runtime)
    with accel.open("cpu", threads=1) as device:
        yield device
    patch.undo()


def run(device: Device, case: Case) -> tuple[dict[str, Operand], dict[str, npt.NDArray[Any]], Declared]:
    """Operands after the call, their buffers before it, and what was declared."""
    call = case.build()
    operands = {name: operand for name, operand in call.operands.items() if isinstance(operand, Operand)}
    before = {name: operand.buffer.copy() for name, operand in operands.items()}
    target = HostTarget(device)
    for operand in call.operands.values():
        if operand is not None and not isinstance(operand, Operand):
            target.weight(operand)
    _core.recorded_launches()
    execute(target, case.spec.name, call)
    launches = [entry for entry in _core.recorded_launches() if entry[0] == case.spec.name]
    assert len(launches) == 1
    return operands, before, launches[0][1]


def covered(declared: Declared, buffer: npt.NDArray[Any], mode: str) -> Bytes:
    """Which bytes of `buffer` are declared in a mode that contains `mode`."""
    base, size = buffer.ctypes.data, buffer.nbytes
    mask = np.zeros(size, np.bool_)
    for address, nbytes, stride, index, count, declared_mode in declared:
        if mode not in declared_mode:
            continue
        for step in index or range(count):
            begin = address + step * stride - base
            if 0 <= begin < size:
                assert begin + nbytes <= size, "a declared range leaves its buffer"
                mask[begin : begin + nbytes] = True
    return mask


@pytest.mark.parametrize("case", ALL, ids=str)
def test_every_byte_that_changed_was_declared_as_written(case: Case, recorded: Device) -> None:
    operands, before, declared = run(recorded, case)
    for name, operand in operands.items():
        changed = operand.buffer.reshape(-1).view(np.uint8) != before[name].reshape(-1).view(np.uint8)
        undeclared = changed & ~covered(declared, operand.buffer, "write")
        assert not undeclared.any(), f"{name}: {undeclared.sum()} bytes changed without a declaration"


@pytest.mark.parametrize("case", ALL, ids=str)
def test_every_tensor_of_the_spec_is_declared_in_its_mode(case: Case, recorded: Device) -> None:
    """One declaration at least for each tensor that has elements, in the mode the spec gives it."""
    operands, _, declared = run(recorded, case)
    for arg in case.spec.args:
        operand = operands.get(arg.name)
        # Block ids go into the launch by value; a kv or pool argument is declared by the pages that are touched.
        if operand is None or operand.array.size == 0 or arg.name in ("kv", "pool", "blocks", "src", "dst"):
            continue
        mode = "read" if arg.access is Access.READ else "write"
        assert covered(declared, operand.buffer, mode).any(), arg.name


@pytest.mark.parametrize("case", list(cases(all_specs()["attention"], seed=0)), ids=str)
def test_attention_reads_no_page_that_it_did_not_declare(case: Case, recorded: Device) -> None:
    operands, _, declared = run(recorded, case)
    want = operands["out"].array.copy()
    pages = case.build()
    kv = pages.operand("kv")
    # The same case again at other addresses: find the pages by their offset in the first one's buffer.
    unread = ~covered(declared, operands["kv"].buffer, "read")
    kv.buffer.reshape(-1).view(np.uint8)[unread] = 0xFF  # NaN in every KV dtype
    execute(HostTarget(recorded), "attention", pages)
    assert np.array_equal(pages.operand("out").array, want, equal_nan=True)


@pytest.mark.parametrize("op", sorted(name for name in all_specs() if not name.startswith("pages_")))
def test_an_op_that_computes_is_refused_on_a_copy_stream(op: str, cpu: Device) -> None:
    """Index arguments are checked at the call: on a queued stream they could change before they are used."""

    class Queued(HostTarget):
        def call(self, op: str, tensors: Any, attributes: Any) -> None:
            getattr(self.device.ops, op)(self.device.stream(), *tensors, **attributes)

    with pytest.raises(InvalidArgument, match="current_stream"):
        execute(Queued(cpu), op, cases(all_specs()[op], seed=0)[0].build())


def test_page_ops_on_a_copy_stream_keep_the_ids_they_were_given(cpu: Device) -> None:
    copies = cpu.stream()
    pool, out = np.ones((3, 1, 2, 1, 4, 4), np.float32), np.zeros((1, 128), np.uint8)
    gate, ids = copies.gate(), np.array([2], np.int32)
    cpu.ops.pages_gather(copies, out, pool, ids)
    ids[0] = 1 << 30
    gate.open()
    copies.synchronize(10)
    assert out.tobytes() == pool[2].tobytes()
