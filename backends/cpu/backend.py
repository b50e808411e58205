"""Probe and open the CPU.

Options of ``accel.open("cpu", …)``, each with its environment variable (the option wins):

threads   ACCEL_CPU_THREADS   size of the thread pool; 0 or unset: one a CPU in this process's affinity mask
isa       ACCEL_CPU_ISA       "auto", "generic", "avx2" or "avx512"; results are the same on each
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from typing import Any, ClassVar

from accel.backend import (
    Backend,
    Capabilities,
    DeviceInfo,
    LogicalId,
    PhysicalId,
    Probe,
    ProbeState,
    Support,
    Weight,
)
from accel.backends._paddle import paddle_build
from accel.backends._system import System
from accel.errors import InvalidArgument, OutOfMemory
from accel.ops.table import OpTable
from accel.runtime_device import RuntimeDevice

__all__ = ["CpuBackend", "CpuDevice"]

_THREADS_VARIABLE = "ACCEL_CPU_THREADS"
_ISA_VARIABLE = "ACCEL_CPU_ISA"
_MOST_THREADS = 1024

#: What rows of an encoding become without loss. Block encodings also need in_features to be whole blocks.
_LOSSLESS = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "Q4_0": "q4",
    "Q4_1": "q4",
    "Q8_0": "q8",
}
_BLOCK_FORMATS = ("q4", "q8")
_BLOCK = 32

CAPABILITIES = Capabilities(
    async_copy=Support.NATIVE,
    events=Support.NATIVE,
    event_timing=Support.NATIVE,
    host_register=Support.NATIVE,
    host_call=Support.NATIVE,
    gate=Support.NATIVE,
    memory_info=Support.NATIVE,
    peer_copy=Support.NONE,
    ipc=Support.NONE,
    graph_capture=Support.NONE,
    deterministic=Support.NATIVE,
    warp_size=0,
    alignment=64,
    dtypes=("float32",),
    weight_formats=("float32", "bfloat16", "float16", "q8", "q4"),
    kv_dtypes=("float32", "bfloat16", "float16"),
    kv_layouts=("page_first", "layer_first"),
    host_executed=True,
)


class CpuDevice(RuntimeDevice):
    """The host as a device: compute runs on the caller's thread (and the pool), copies on worker streams."""

    def __init__(self, info: DeviceInfo, threads: int, isa: str) -> None:
        from accel import _core
        from accel.backends.cpu import _native
        from accel.backends.cpu.ops import op_table

        Weight.register(_native.PackedWeight)
        self._kernels = _native.Ops(threads=threads, isa=isa)
        super().__init__(_core.host_runtime(), 0, info, CAPABILITIES)
        self._ops = op_table(self.name, self._kernels)

    @property
    def backend_name(self) -> str:
        return CpuBackend.name

    @property
    def place(self) -> Any:
        from accel.backends.cpu import paddle_binding

        return paddle_binding.place()

    @property
    def ops(self) -> OpTable:
        return self._ops

    @property
    def threads(self) -> int:
        """Threads of the pool, the caller's included."""
        return int(self._kernels.threads)

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return str(self._kernels.isa)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        from accel.backends.cpu import paddle_binding
        from accel.dtypes import dtype as dtype_of

        width = dtype_of(dtype).bytes
        if not all(hasattr(extent, "__index__") and 0 <= extent < 1 << 62 for extent in shape):
            raise InvalidArgument(f"shape is {list(shape)}; extents must be whole numbers, 0 or more", device=self.name)
        if math.prod(shape) * width >= 1 << 62:
            raise OutOfMemory(f"a tensor of {dtype} {list(shape)} is larger than any memory", device=self.name)
        try:
            return paddle_binding.empty(shape, dtype)
        except (MemoryError, RuntimeError) as error:
            requested = math.prod(shape) * width
            free, total = self.memory()
            raise OutOfMemory(
                f"a tensor of {requested} bytes ({dtype} {list(shape)}) does not fit: {free} of {total} bytes are free",
                device=self.name,
                hint="use fewer KV blocks (num_blocks), smaller steps (max_batch_tokens) or a smaller model",
                requested=requested,
                free=free,
                total=total,
            ) from error

    def weight_format(self, encoding: str, in_features: int) -> str | None:
        held = _LOSSLESS.get(encoding)
        return None if held in _BLOCK_FORMATS and in_features % _BLOCK else held

    def weight(self, format: str, out_features: int, in_features: int) -> Weight:
        from accel.backends.cpu import _native

        storage = self.empty([_native.packed_bytes(format, out_features, in_features)], "uint8")
        self.fill(storage, 0, self.current_stream())
        weight: Weight = _native.wrap_packed(storage, format, out_features, in_features)
        return weight

    def empty_cache(self) -> None:
        from accel.backends.cpu import paddle_binding

        paddle_binding.empty_cache()


class CpuBackend(Backend):
    """The host. Always there, and last in the order of "auto"."""

    name: ClassVar[str] = "cpu"
    priority: ClassVar[int] = 0

    def probe(self) -> Probe:
        try:
            from accel.backends.cpu import _native
        except ImportError as error:
            return Probe(
                ProbeState.UNUSABLE,
                f"the native module of the cpu backend cannot be loaded: {error}",
                "build it again: `make setup` in a checkout, or install the wheel you built",
            )
        isa = _native.available_isas()[-1]
        threads = _native.affinity_threads()
        info = DeviceInfo(
            name=_model_name(),
            vendor=platform.machine(),
            logical=LogicalId(0),
            physical=PhysicalId("0"),
            total_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            details={"threads": str(threads), "isa": isa},
        )
        versions = {"paddle": paddle_build(System()).describe(), "accel module": _native.build_tag()}
        return Probe(ProbeState.AVAILABLE, f"{info.name}, {threads} threads, {isa}", devices=(info,), versions=versions)

    def open(self, index: LogicalId = LogicalId(0), **options: Any) -> CpuDevice:
        unknown = options.keys() - {"threads", "isa"}
        if unknown:
            raise InvalidArgument(
                f"unknown option {sorted(unknown)[0]!r}; the cpu backend takes threads and isa", backend=self.name
            )
        if index != 0:
            raise InvalidArgument(
                f"device index {index} does not exist; the cpu backend has 1 device", backend=self.name
            )
        threads = options.get("threads")
        if threads is None:
            threads = _threads_from_environment()
        if not (hasattr(threads, "__index__") and 0 <= threads <= _MOST_THREADS):
            raise InvalidArgument(
                f"threads is {threads!r}; it must be a whole number, 0 (automatic) to {_MOST_THREADS}",
                backend=self.name,
            )
        isa = options.get("isa") or os.environ.get(_ISA_VARIABLE) or "auto"
        if not isinstance(isa, str):
            raise InvalidArgument(f"isa is {isa!r}; it must be the name of an instruction set", backend=self.name)
        return CpuDevice(self.probe().devices[0], threads, isa)


def _threads_from_environment() -> int:
    text = os.environ.get(_THREADS_VARIABLE, "").strip()
    if not text:
        return 0
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(
            f"{_THREADS_VARIABLE} is {text!r}; it must be a number of threads", backend=CpuBackend.name
        ) from None


def _model_name() -> str:
    """The processor's name where the system tells it, else its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name" and value.strip():
                    return value.strip()
    except OSError:
        return platform.machine()
    return platform.machine()
