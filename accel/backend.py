"""The backend contract: what a device must offer, and nothing about any vendor. Read this file first.

::

    Backend ──probe()──> Probe        cheap, never raises, imports no framework
       └────open(i)────> Device ──stream()──> Stream ─┐ wait(event)
                           │     ──event()───> Event <┘ record(stream)
                           ├─ empty / copy / copy_batch / fill
                           └─ ops ──> OpTable          one entry for every op, or its reason to be absent

Rules that hold on every backend (tests/runtime checks each of them on the host):

* A stream runs in submission order. Two streams are unordered unless an event joins them.
* ``Stream.wait`` captures the newest record of the event at call time; an event that was never recorded is complete.
* ``query`` never blocks. Every blocking call takes a timeout in seconds and raises ``Timeout``.
* Every copy and every op takes its stream explicitly.
* Argument errors are raised before anything is queued. A device error is raised exactly once, at the next
  synchronise or query of that stream, and names the op; later work on that stream is skipped until ``reset``.
* A capability is a claim with a test: NATIVE shows real asynchrony, EMULATED gives the same results but may block the
  host, NONE raises ``Unsupported``.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NewType

if TYPE_CHECKING:
    from accel.ops.table import OpTable

__all__ = [
    "Backend",
    "Capabilities",
    "CopyRun",
    "Device",
    "DeviceInfo",
    "Event",
    "Gate",
    "HostRegistration",
    "LogicalId",
    "PhysicalId",
    "Probe",
    "ProbeState",
    "Stream",
    "Support",
    "VisibleId",
    "Weight",
]

#: Index an engine opens: ``gpu:0`` is the first device this process was given.
LogicalId = NewType("LogicalId", int)
#: Index in what the vendor's runtime enumerates after it applied its visible-devices list.
VisibleId = NewType("VisibleId", int)
#: Name the driver gives the card, whatever is visible: an index ("3") or a UUID ("GPU-…").
PhysicalId = NewType("PhysicalId", str)

#: Seconds a blocking call waits when the caller names no limit.
DEFAULT_TIMEOUT: float = 60.0


class Support(enum.Enum):
    """How a backend has a capability."""

    NATIVE = "native"
    EMULATED = "emulated"
    NONE = "none"


class ProbeState(enum.Enum):
    """What a probe found."""

    ABSENT = "absent"  # no such hardware here
    UNUSABLE = "unusable"  # hardware is present, but the stack cannot drive it
    AVAILABLE = "available"


@dataclass(frozen=True)
class DeviceInfo:
    """One device as the probe saw it. `total_bytes` is 0 where only an open device can tell."""

    name: str
    vendor: str
    logical: LogicalId
    physical: PhysicalId
    total_bytes: int = 0
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """Outcome of ``Backend.probe``.

    `reason` says in one line why the state is what it is; `hint` names the command or setting that would change it
    (empty when AVAILABLE); `versions` holds what was read of drivers, SDKs and the framework build; `notes` are
    oddities that do not decide the state, a line each.
    """

    state: ProbeState
    reason: str
    hint: str = ""
    devices: tuple[DeviceInfo, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def available(self) -> bool:
        return self.state is ProbeState.AVAILABLE


@dataclass(frozen=True)
class Capabilities:
    """What a device claims. A claim is tested both ways: what is NATIVE must show it, what is NONE must raise."""

    async_copy: Support
    events: Support
    event_timing: Support
    host_register: Support
    host_call: Support
    gate: Support
    memory_info: Support
    peer_copy: Support
    ipc: Support
    graph_capture: Support
    deterministic: Support

    #: Lanes that execute together; 0 where the device is not SIMT.
    warp_size: int
    #: Bytes every allocation is aligned to.
    alignment: int
    #: Dtypes of activations, of weights as they are held, and of the KV cache.
    dtypes: tuple[str, ...]
    weight_formats: tuple[str, ...]
    kv_dtypes: tuple[str, ...]
    kv_layouts: tuple[str, ...]
    #: True where the current stream runs on the caller's thread, so a launch returns when it is done.
    host_executed: bool


@dataclass(frozen=True)
class CopyRun:
    """One contiguous copy of `nbytes` from `src` + `src_offset` to `dst` + `dst_offset` (bytes)."""

    dst: Any
    dst_offset: int
    src: Any
    src_offset: int
    nbytes: int


class Gate(ABC):
    """A point in a stream that holds everything behind it until the host opens it. For bring-up and tests."""

    @abstractmethod
    def open(self) -> None:
        """Let the stream go on. Idempotent."""


class Event(ABC):
    """A point in a stream that others can wait for. May be recorded again; earlier waiters keep their record."""

    @abstractmethod
    def record(self, stream: Stream) -> None:
        """Complete when everything submitted to `stream` so far is."""

    @abstractmethod
    def query(self) -> bool:
        """True when the newest record is complete (or there is none). Never blocks."""

    @abstractmethod
    def synchronize(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Block until the newest record is complete. Raises Timeout after `timeout` seconds."""

    @abstractmethod
    def elapsed_ms(self, end: Event) -> float:
        """Milliseconds from this record to that of `end`. Raises Unsupported without ``event_timing``,
        InvalidArgument unless both are recorded and complete."""


class Stream(ABC):
    """A queue of work that runs in submission order."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Hold later work of this stream until the record `event` has now is complete. Does not block the host."""

    @abstractmethod
    def host_call(self, fn: Callable[[], None]) -> None:
        """Run `fn` on a runtime thread in stream order. An exception in it fails the stream (AsyncFailure)."""

    @abstractmethod
    def gate(self) -> Gate:
        """Insert a gate here."""

    @abstractmethod
    def query(self) -> bool:
        """True when the stream is empty. Never blocks. Raises a pending AsyncFailure."""

    @abstractmethod
    def synchronize(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Block until the stream is empty. Raises a pending AsyncFailure, or Timeout."""

    @abstractmethod
    def reset(self) -> None:
        """After a failure: forget it, and accept work again."""


class HostRegistration(ABC):
    """Host memory that a device may copy to and from directly; `close` undoes it."""

    @abstractmethod
    def close(self) -> None:
        """Unregister. Idempotent."""


class Weight(ABC):
    """A weight matrix [out_features, in_features] in the form a device's `linear` and `embedding` take.

    Made by ``Device.weight`` and filled row by row, so that a loader never holds a second copy of a tensor.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""

    @property
    @abstractmethod
    def format(self) -> str:
        """How it is held: one of ``Capabilities.weight_formats``."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes it occupies on the device."""

    @abstractmethod
    def pack_rows(self, encoding: str, rows: Any, targets: Any = None, first: int = 0) -> None:
        """Place rows (uint8 [count, row_bytes], each `encoding`) as output features ``targets[i]`` (int64), or
        ``first + i`` without targets. Raises InvalidArgument."""


class Device(ABC):
    """One opened device. Usable from any thread; a context manager that closes it."""

    info: DeviceInfo
    capabilities: Capabilities

    @property
    @abstractmethod
    def name(self) -> str:
        """``backend:index``, e.g. ``cpu:0``."""

    @property
    @abstractmethod
    def place(self) -> Any:
        """The framework's place for tensors of this device. Imports the framework."""

    @property
    @abstractmethod
    def ops(self) -> OpTable:
        """Implementation of every op, see ``accel.ops``."""

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """(free, total) bytes as the system sees them. Raises Unsupported where ``memory_info`` is NONE."""

    @abstractmethod
    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """An uninitialised framework tensor on this device. Raises OutOfMemory."""

    @abstractmethod
    def weight_format(self, encoding: str, in_features: int) -> str | None:
        """The format that holds rows of `encoding` ("bfloat16", "Q4_1", …) without loss; None when there is none and
        they must be dequantised first."""

    @abstractmethod
    def weight(self, format: str, out_features: int, in_features: int) -> Weight:
        """An empty (zero) weight. Raises InvalidArgument for a format that is not in the capabilities, OutOfMemory."""

    @abstractmethod
    def view(
        self,
        tensor: Any,
        *,
        dtype: str | None = None,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> Any:
        """A native view of a tensor or array, which ops take at no cost and which keeps its owner alive. `dtype`
        reinterprets elements of the same size; `shape` and `strides` (in elements) rearrange them. Raises
        InvalidArgument."""

    @abstractmethod
    def register_host(self, buffer: Any) -> HostRegistration:
        """Make host memory copyable without staging. Raises Unsupported where ``host_register`` is NONE."""

    @abstractmethod
    def current_stream(self) -> Stream:
        """The stream on which the framework and our ops compute."""

    @abstractmethod
    def stream(self) -> Stream:
        """A new stream for copies, unordered with all others."""

    @abstractmethod
    def event(self, *, timing: bool = False) -> Event:
        """A new event. Raises Unsupported when `timing` is asked of a device without it."""

    @abstractmethod
    def copy(self, dst: Any, src: Any, stream: Stream) -> None:
        """Copy `src` over `dst` (same number of bytes, both contiguous) in stream order. The caller keeps both
        alive until the stream has passed. Raises InvalidArgument on a size mismatch or overlap."""

    @abstractmethod
    def copy_batch(self, runs: Sequence[CopyRun], stream: Stream) -> None:
        """Several copies; adjacent ones are merged. All are checked before the first is queued."""

    @abstractmethod
    def fill(self, dst: Any, byte: int, stream: Stream) -> None:
        """Set every byte of `dst`."""

    @abstractmethod
    def capture(self) -> Any:
        """Begin recording a graph. Raises Unsupported where ``graph_capture`` is NONE."""

    @abstractmethod
    def empty_cache(self) -> None:
        """Give memory that the framework's allocator holds but does not use back to the system."""

    @abstractmethod
    def synchronize(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Wait for all streams of this device. Raises a pending AsyncFailure, or Timeout."""

    @abstractmethod
    def close(self) -> None:
        """Release what the device holds. Idempotent."""

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Backend(ABC):
    """A kind of device. Registered under the entry-point group ``accel.backends``; constructed without arguments."""

    #: The name users write: ``accel.open("name:0")``.
    name: ClassVar[str]
    #: Order in which "auto" asks: higher first, the CPU has 0. A backend below 0 has to be named.
    priority: ClassVar[int]
    #: Conformance cases that are not run, and cases that are expected to fail: id -> the written reason.
    conformance_exclusions: ClassVar[Mapping[str, str]] = {}
    conformance_failures: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def probe(self) -> Probe:
        """What is here. Cheap (well under a second), imports no framework, never raises."""

    @abstractmethod
    def open(self, index: LogicalId = LogicalId(0), **options: Any) -> Device:
        """Open a device. `options` are the backend's own and documented in its README.

        Raises:
            BackendUnavailable: the probe's reason and hint.
            InvalidArgument: no such index, or an unknown option.
        """
