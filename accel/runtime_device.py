"""A Device over a native runtime table: the part of the contract that is the same on every backend.

A backend supplies the table (``accel._core.host_runtime()``, or its own through a capsule), its capabilities, its op
table and the three things only the framework knows: the place, an empty tensor, and how to empty the allocator's cache.

Invariant: this module knows no framework and no vendor.
"""

from __future__ import annotations

import atexit
import sys
import time
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, cast

from accel import _core
from accel.backend import (
    DEFAULT_TIMEOUT,
    Capabilities,
    CopyRun,
    Device,
    DeviceInfo,
    Event,
    Gate,
    HostRegistration,
    Stream,
    Support,
)
from accel.errors import Timeout, Unsupported

__all__ = ["RuntimeDevice", "require"]

Stream.register(_core.Stream)
Event.register(_core.Event)
Gate.register(_core.Gate)
HostRegistration.register(_core.HostRegistration)

#: Seconds that work has to end when the interpreter does; what takes longer is abandoned.
_EXIT_LIMIT = 5.0

#: Devices still open; their worker threads must end before the interpreter does.
_open_devices: weakref.WeakSet[RuntimeDevice] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    limit = time.monotonic() + _EXIT_LIMIT
    stuck = []
    for device in list(_open_devices):
        try:
            device._native.close(max(limit - time.monotonic(), 0.0))
        except Timeout as error:
            stuck.append(str(error))
    if stuck:  # abandoned: the process ends all the same
        print(f"accel: work was still running at exit and is abandoned: {'; '.join(stuck)}", file=sys.stderr)


def require(capabilities: Capabilities, device: str, feature: str, alternative: str) -> None:
    """Raise Unsupported when `feature` (a field of Capabilities) is NONE; `alternative` is the nearest way out."""
    if getattr(capabilities, feature) is Support.NONE:
        raise Unsupported(f"{feature} is not available here", device=device, hint=alternative, feature=feature)


class RuntimeDevice(Device):
    """Streams, events, copies and memory over `runtime`; see the module's docstring for what a subclass adds."""

    def __init__(self, runtime: _core.Runtime, index: int, info: DeviceInfo, capabilities: Capabilities) -> None:
        self.info = info
        self.capabilities = capabilities
        self.runtime = runtime
        self._index = index
        self._native = runtime.open(index, self.name)
        self._compute: Stream = self._native.current_stream()
        _open_devices.add(self)

    @property
    @abstractmethod
    def backend_name(self) -> str:
        """Name of the backend this device belongs to."""

    @property
    def name(self) -> str:
        return f"{self.backend_name}:{self.info.logical}"

    @property
    def closed(self) -> bool:
        return bool(self._native.closed)

    def memory(self) -> tuple[int, int]:
        require(self.capabilities, self.name, "memory_info", "give an explicit num_blocks")
        free, total = self._native.memory()
        return free, total

    def register_host(self, buffer: Any) -> HostRegistration:
        require(self.capabilities, self.name, "host_register", "copy through pageable memory")
        registration: Any = self._native.register_host(buffer)
        return cast(HostRegistration, registration)

    def current_stream(self) -> Stream:
        return self._compute

    def stream(self) -> Stream:
        stream: Stream = self._native.stream()
        return stream

    def event(self, *, timing: bool = False) -> Event:
        if timing:
            require(self.capabilities, self.name, "event_timing", "take host time after synchronize")
        event: Event = self._native.event(timing=timing)
        return event

    def copy(self, dst: Any, src: Any, stream: Stream) -> None:
        self._native.copy(dst, src, stream)

    def copy_batch(self, runs: Sequence[CopyRun], stream: Stream) -> None:
        self._native.copy_batch(runs, stream)

    def fill(self, dst: Any, byte: int, stream: Stream) -> None:
        self._native.fill(dst, byte, stream)

    def capture(self) -> Any:
        require(self.capabilities, self.name, "graph_capture", "run the step eagerly")
        raise Unsupported("graph capture is claimed, but this device does not implement it", device=self.name)

    def synchronize(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._native.synchronize(timeout)

    def view(
        self,
        tensor: Any,
        *,
        dtype: str | None = None,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> _core.View:
        """A native view of a tensor or array, which ops take at no cost. `dtype` reinterprets elements of the same size
        (bfloat16 over NumPy's uint16); `shape` and `strides` (in elements) rearrange them."""
        return _core.view(
            tensor,
            dtype=dtype,
            shape=None if shape is None else list(shape),
            strides=None if strides is None else list(strides),
        )

    def close(self) -> None:
        self._native.close()
        _open_devices.discard(self)
