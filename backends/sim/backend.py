"""Probe and open the simulated device.

Options of ``accel.open("sim", …)``:

profile   "gpu" (default), "dcu", "iluvatar" or "xpu": whose habits the device has (profiles.py)
memory    bytes of device memory, default 1 GiB
seed      None (default): each stream has a thread. A number: work runs only inside query, wait and synchronise, in an
          order that the seed decides, so that it can be repeated
check     whether the happens-before checker runs, default True
threads   size of the kernels' thread pool, default 1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from accel.backend import Backend, DeviceInfo, LogicalId, PhysicalId, Probe, ProbeState, Support, Weight
from accel.backends.sim.buffer import Buffer
from accel.backends.sim.profiles import PROFILES, Profile
from accel.errors import InvalidArgument, OutOfMemory, Unsupported
from accel.ops.table import OpTable
from accel.runtime_device import RuntimeDevice

__all__ = ["SimBackend", "SimDevice"]

_DEFAULT_MEMORY = 1 << 30
_MOST_MEMORY = 1 << 40
_MOST_THREADS = 1024
_OPTIONS = ("profile", "memory", "seed", "check", "threads")

#: What rows of an encoding become without loss, as on the CPU, whose kernels run here.
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


class SimDevice(RuntimeDevice):
    """A simulated accelerator. `sim` steers and reads it: faults, delays, counters, races, trace, host_access."""

    def __init__(self, info: DeviceInfo, profile: Profile, memory: int, seed: int | None, check: bool, threads: int):
        from accel import _core
        from accel.backends.sim import _native
        from accel.backends.sim.ops import op_table

        Weight.register(_native.PackedWeight)
        self.profile = profile
        self.sim = _native.Control(
            limit=memory,
            seed=seed,
            check=check,
            emulated_events=profile.events is Support.EMULATED,
            memory_info=profile.memory_info is not Support.NONE,
            oom_retry=profile.oom_retry,
        )
        kernels = _native.Ops(threads=threads)
        self.sim.adopt()
        runtime = _core.runtime_from_capsule(_native.runtime_capsule(), "accel.backends.sim")
        super().__init__(runtime, 0, info, profile.capabilities())
        self._ops = op_table(self.name, _native, kernels)

    @property
    def backend_name(self) -> str:
        return SimBackend.name

    @property
    def place(self) -> Any:
        raise Unsupported(
            "the simulated device has no place of the framework",
            device=self.name,
            hint="use Device.empty, Device.copy and Device.view",
            feature="place",
        )

    @property
    def ops(self) -> OpTable:
        return self._ops

    def empty(self, shape: Sequence[int], dtype: str) -> Buffer:
        from accel.dtypes import dtype as dtype_of

        width = dtype_of(dtype).bytes
        if not all(hasattr(extent, "__index__") and 0 <= extent < 1 << 62 for extent in shape):
            raise InvalidArgument(f"shape is {list(shape)}; extents must be whole numbers, 0 or more", device=self.name)
        requested = math.prod(shape) * width
        if requested >= 1 << 62:
            raise OutOfMemory(f"a tensor of {dtype} {list(shape)} is larger than any memory", device=self.name)
        try:
            return Buffer(self.sim, self.name, shape, dtype)
        except OutOfMemory:
            if not self.profile.oom_retry:  # else the allocator has waited for what was dropped
                self.empty_cache()
        try:
            return Buffer(self.sim, self.name, shape, dtype)
        except OutOfMemory as error:
            used, total = self.sim.counters()["live_bytes"], self.info.total_bytes
            raise OutOfMemory(
                f"a tensor of {requested} bytes ({dtype} {list(shape)}) does not fit: {error}",
                device=self.name,
                hint="use fewer KV blocks (num_blocks), smaller steps (max_batch_tokens) or a smaller model",
                requested=requested,
                free=total - used,
                total=total,
            ) from error

    def weight_format(self, encoding: str, in_features: int) -> str | None:
        held = _LOSSLESS.get(encoding)
        return None if held in _BLOCK_FORMATS and in_features % _BLOCK else held

    def weight(self, format: str, out_features: int, in_features: int) -> Weight:
        from accel.backends.sim import _native

        storage = self.empty([_native.packed_bytes(format, out_features, in_features)], "uint8")
        stream = self.current_stream()
        self.fill(storage, 0, stream)
        stream.synchronize()  # rows are placed by the host
        weight: Weight = _native.wrap_on_device(self._native, storage, format, out_features, in_features)
        return weight

    def empty_cache(self) -> None:
        """Wait until what was dropped is free: there is no cache but the order of the compute stream."""
        self.current_stream().synchronize()


class SimBackend(Backend):
    """The simulator. It has to be named."""

    name: ClassVar[str] = "sim"
    priority: ClassVar[int] = -10

    def probe(self) -> Probe:
        try:
            from accel.backends.sim import _native
        except ImportError as error:
            return Probe(
                ProbeState.ABSENT,
                f"the native module of the simulator was not built: {error}",
                "build it with ACCEL_TARGETS='cpu;sim'",
            )
        versions = {"accel module": _native.build_tag()}
        return Probe(
            ProbeState.AVAILABLE,
            f"simulated, profiles {', '.join(PROFILES)}",
            devices=(_info("gpu"),),
            versions=versions,
        )

    def open(self, index: LogicalId = LogicalId(0), **options: Any) -> SimDevice:
        unknown = options.keys() - set(_OPTIONS)
        if unknown:
            raise InvalidArgument(
                f"unknown option {sorted(unknown)[0]!r}; the sim backend takes {', '.join(_OPTIONS)}", backend=self.name
            )
        if index != 0:
            raise InvalidArgument(
                f"device index {index} does not exist; the sim backend has 1 device", backend=self.name
            )
        profile = options.get("profile") or "gpu"
        if profile not in PROFILES:
            raise InvalidArgument(f"profile is {profile!r}; known: {', '.join(PROFILES)}", backend=self.name)
        memory = _whole(options, "memory", _DEFAULT_MEMORY, 1, _MOST_MEMORY)
        seed = None if options.get("seed") is None else _whole(options, "seed", 0, 0, (1 << 64) - 1)
        threads = _whole(options, "threads", 1, 1, _MOST_THREADS)
        check = options.get("check", True)
        if not isinstance(check, bool):
            raise InvalidArgument(f"check is {check!r}; it must be True or False", backend=self.name)
        return SimDevice(_info(profile, memory), PROFILES[profile], memory, seed, check, threads)


def _whole(options: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = options.get(name, default)
    if not (hasattr(value, "__index__") and not isinstance(value, bool) and least <= value <= most):
        raise InvalidArgument(
            f"{name} is {value!r}; it must be a whole number, {least} to {most}", backend=SimBackend.name
        )
    return int(value)


def _info(profile: str, memory: int = _DEFAULT_MEMORY) -> DeviceInfo:
    return DeviceInfo(
        name=f"simulated device ({profile})",
        vendor="simulated",
        logical=LogicalId(0),
        physical=PhysicalId("0"),
        total_bytes=memory,
        details={"profile": profile},
    )
