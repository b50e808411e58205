"""A device of a third party: the host's runtime, the CPU's kernels, and one op of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import accel
from accel import _core
from accel.backend import Backend, DeviceInfo, LogicalId, PhysicalId, Probe, ProbeState, Stream, Weight
from accel.errors import InvalidArgument
from accel.ops.table import Implementation, Kind, OpTable
from accel.runtime_device import RuntimeDevice

INFO = DeviceInfo("Toy 1", "Toys Ltd", LogicalId(0), PhysicalId("toy-0"))


def _array(tensor: Any) -> Any:
    """A tensor (of the framework, NumPy, or a view) as the array whose memory it is."""
    return _core.view(tensor).numpy()


def silu_and_mul(stream: Stream, out: Any, x: Any) -> None:
    """An op of our own. Work that is Python goes into the stream as a host_call, so that it keeps its turn."""
    target, source = _array(out), _array(x)

    def run() -> None:
        gate, up = np.split(source, 2, axis=-1)
        with np.errstate(over="ignore", invalid="ignore"):
            target[...] = gate / (1 + np.exp(-gate)) * up

    stream.host_call(run)


class ToyDevice(RuntimeDevice):
    backend_name = "toy"

    def __init__(self) -> None:
        self._cpu = accel.open("cpu")
        super().__init__(_core.host_runtime(), 0, INFO, self._cpu.capabilities)
        table = {name: self._cpu.ops.implementation(name) for name in self._cpu.ops}
        table["silu_and_mul"] = Implementation(Kind.LIBRARY, silu_and_mul, "NumPy, to show how an op is replaced")
        self._ops = OpTable(self.name, table)

    @property
    def ops(self) -> OpTable:
        return self._ops

    # What only the framework knows, and the form of weights, are the CPU's.
    @property
    def place(self) -> Any:
        return self._cpu.place

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        return self._cpu.empty(shape, dtype)

    def weight_format(self, encoding: str, in_features: int) -> str | None:
        return self._cpu.weight_format(encoding, in_features)

    def weight(self, format: str, out_features: int, in_features: int) -> Weight:
        return self._cpu.weight(format, out_features, in_features)

    def empty_cache(self) -> None:
        self._cpu.empty_cache()

    def close(self) -> None:
        super().close()
        self._cpu.close()


class ToyBackend(Backend):
    name = "toy"
    priority = -1  # never chosen by "auto"

    def probe(self) -> Probe:
        return Probe(ProbeState.AVAILABLE, "a toy is always there", devices=(INFO,))

    def open(self, index: LogicalId = LogicalId(0), **options: Any) -> ToyDevice:
        if index != 0:
            raise InvalidArgument(f"there is no toy:{index}; there is one toy, toy:0")
        if options:
            raise InvalidArgument(f"unknown options: {', '.join(options)}; a toy has none")
        return ToyDevice()
