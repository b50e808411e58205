"""CPU devices with one defect each, as a careless port would have it. The suite must reject every one of them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from accel.backend import DEFAULT_TIMEOUT, CopyRun, Device, Event, Gate, Stream, Support
from accel.backends.cpu.backend import CpuBackend, CpuDevice
from accel.errors import AccelError, AsyncFailure
from accel.ops.table import Implementation, Kind


class ProxyStream(Stream):
    """A stream of the device beneath, for defects to hide in."""

    def __init__(self, native: Stream) -> None:
        self.native = native

    def wait(self, event: Event) -> None:
        self.native.wait(native(event))

    def host_call(self, fn: Callable[[], None]) -> None:
        self.native.host_call(fn)

    def gate(self) -> Gate:
        return self.native.gate()

    def query(self) -> bool:
        return self.native.query()

    def synchronize(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.native.synchronize(timeout)

    def reset(self) -> None:
        self.native.reset()


class ProxyEvent(Event):
    """The same for an event."""

    def __init__(self, native: Event) -> None:
        self.native = native

    def record(self, stream: Stream) -> None:
        self.native.record(native(stream))

    def query(self) -> bool:
        return self.native.query()

    def synchronize(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.native.synchronize(timeout)

    def elapsed_ms(self, end: Event) -> float:
        return self.native.elapsed_ms(native(end))


def native(object_: Any) -> Any:
    return getattr(object_, "native", object_)


class Honest(CpuDevice):
    """Streams and events are proxies; nothing is wrong with it."""

    stream_class: type[ProxyStream] = ProxyStream
    event_class: type[ProxyEvent] = ProxyEvent

    def stream(self) -> Stream:
        return self.stream_class(super().stream())

    def event(self, *, timing: bool = False) -> Event:
        return self.event_class(super().event(timing=timing))

    def copy(self, dst: Any, src: Any, stream: Stream) -> None:
        super().copy(dst, src, native(stream))

    def copy_batch(self, runs: Sequence[CopyRun], stream: Stream) -> None:
        super().copy_batch(runs, native(stream))

    def fill(self, dst: Any, byte: int, stream: Stream) -> None:
        super().fill(dst, byte, native(stream))


def backend_of(device: type[CpuDevice]) -> CpuBackend:
    """A CPU backend that opens `device`."""

    class Sabotaged(CpuBackend):
        def open(self, index: Any = 0, **options: Any) -> Device:
            super().open(index, **options).close()  # the checks of arguments
            opened = super().open(index, **options)
            opened.__class__ = device
            return opened

    return Sabotaged()


# --- the saboteurs ----------------------------------------------------------------------------------------------------


class CopyDropsTheLastByte(Honest):
    def copy(self, dst: Any, src: Any, stream: Stream) -> None:
        whole = self.view(src)
        if whole.nbytes > 1 and whole.dtype == "uint8" and len(whole.shape) == 1:
            count = whole.nbytes - 1
            super().copy(self.view(dst).narrow(0, 0, count), whole.narrow(0, 0, count), stream)
        else:
            super().copy(dst, src, stream)


class CopyDoesNotWaitForItsStream(Honest):
    def copy(self, dst: Any, src: Any, stream: Stream) -> None:
        super().copy(dst, src, self.current_stream())


class BatchIsNotCheckedFirst(Honest):
    def copy_batch(self, runs: Sequence[CopyRun], stream: Stream) -> None:
        for run in runs:
            super().copy_batch([run], stream)


class FillGoesOneTooFar(Honest):
    def fill(self, dst: Any, byte: int, stream: Stream) -> None:
        super().fill(dst, byte, stream)
        view = self.view(dst)
        ctypes.memset(view.ptr + view.nbytes, byte, 1)


class RecordDoesNothing(Honest):
    class event_class(ProxyEvent):
        def record(self, stream: Stream) -> None:
            pass


class WaitDoesNothing(Honest):
    class stream_class(ProxyStream):
        def wait(self, event: Event) -> None:
            pass


class QueryIsAlwaysTrue(Honest):
    class stream_class(ProxyStream):
        def query(self) -> bool:
            return True


class WaitFollowsTheFirstRecord(Honest):
    """A new record does not replace the old one."""

    class event_class(ProxyEvent):
        def record(self, stream: Stream) -> None:
            if not hasattr(self, "recorded"):
                self.recorded = True
                super().record(stream)


class ErrorsAreSwallowed(Honest):
    class stream_class(ProxyStream):
        def synchronize(self, timeout: float = DEFAULT_TIMEOUT) -> None:
            try:
                super().synchronize(timeout)
            except AsyncFailure:
                super().reset()


class ErrorsComeTwice(Honest):
    class stream_class(ProxyStream):
        def synchronize(self, timeout: float = DEFAULT_TIMEOUT) -> None:
            if hasattr(self, "failure"):
                raise self.failure
            try:
                super().synchronize(timeout)
            except AsyncFailure as error:
                self.failure = error
                raise


class EveryStreamIsOne(Honest):
    """A default stream that synchronises everything."""

    def stream(self) -> Stream:
        if not hasattr(self, "only"):
            self.only = super().stream()
        return self.only


class OutOfMemoryIsAnyError(Honest):
    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        try:
            return super().empty(shape, dtype)
        except AccelError as error:
            raise AccelError("allocation failed, code 2") from error


class MemoryIsMadeUp(Honest):
    def memory(self) -> tuple[int, int]:
        return 0, 0


class TimingIsClaimedAbsentAndWorks(Honest):
    @property
    def capabilities(self) -> Any:
        return replace(self.__dict__["capabilities"], event_timing=Support.NONE)

    def event(self, *, timing: bool = False) -> Event:
        return self._native.event(timing=timing)


class NormForgetsEpsilon(Honest):
    @property
    def ops(self) -> Any:
        table = super().ops
        if not hasattr(table, "spoilt"):
            honest = table.rms_norm
            table.rms_norm = lambda *a, eps: honest(*a, eps=0.0)
            table.spoilt = True
        return table


class AnOpWritesBesideItsOutput(Honest):
    @property
    def ops(self) -> Any:
        table = super().ops
        if not hasattr(table, "spoilt"):
            honest = table.silu_and_mul

            def spoilt(stream: Any, out: Any, x: Any) -> None:
                honest(stream, out, x)
                if isinstance(x, np.ndarray) and x.size:
                    x.flat[0] += 1  # its input, which nobody gave it to write

            table.silu_and_mul, table.spoilt = spoilt, True
        return table


class AnOpHasNoNote(Honest):
    @property
    def ops(self) -> Any:
        table = super().ops
        table._implementations["rotary"] = Implementation(Kind.NATIVE, table.rotary, " ")
        return table


class ClosingLeavesItUsable(Honest):
    def close(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        super().close()


#: Saboteur -> the section that must reject it.
EXPECTED: dict[type[CpuDevice], str] = {
    CopyDropsTheLastByte: "copies",
    CopyDoesNotWaitForItsStream: "streams",
    BatchIsNotCheckedFirst: "copies",
    FillGoesOneTooFar: "copies",
    RecordDoesNothing: "events",
    WaitDoesNothing: "events",
    QueryIsAlwaysTrue: "streams",
    WaitFollowsTheFirstRecord: "events",
    ErrorsAreSwallowed: "faults",
    ErrorsComeTwice: "faults",
    EveryStreamIsOne: "ordering",
    OutOfMemoryIsAnyError: "memory",
    MemoryIsMadeUp: "memory",
    TimingIsClaimedAbsentAndWorks: "capabilities",
    NormForgetsEpsilon: "ops",
    AnOpWritesBesideItsOutput: "ops",
    AnOpHasNoNote: "support",
    ClosingLeavesItUsable: "device",
}
