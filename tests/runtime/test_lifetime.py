"""Ends: closing, dropping, threads, forks and the interpreter itself."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from waiting import SOON

import accel
from accel.backend import CopyRun, Device, Stream
from accel.errors import DeviceLost, InvalidArgument, Timeout


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


def test_a_closed_device_refuses_everything(device: Device, q1: Stream) -> None:
    event, compute, buffer = device.event(timing=True), device.current_stream(), np.zeros(4, np.uint8)
    device.close()
    device.close()  # idempotent
    calls: list[Callable[[], object]] = [
        device.memory,
        device.stream,
        device.event,
        device.synchronize,
        lambda: device.copy(buffer, np.ones(4, np.uint8), q1),
        lambda: device.copy_batch([CopyRun(buffer, 0, np.ones(4, np.uint8), 0, 4)], q1),
        lambda: device.fill(buffer, 1, q1),
        lambda: device.register_host(buffer),
        lambda: event.record(q1),
        lambda: q1.wait(event),
        lambda: q1.host_call(lambda: None),
        q1.gate,
        q1.query,
        q1.synchronize,
        q1.reset,
        lambda: compute.host_call(lambda: None),
        compute.query,
    ]
    for call in calls:
        with pytest.raises(DeviceLost, match=r"cpu:0 was closed"):
            call()
    assert event.query(), "what an event last said stays true"


def test_a_with_statement_closes() -> None:
    with accel.open("cpu", threads=1) as device:
        stream = device.stream()
    with pytest.raises(DeviceLost):
        stream.query()


def test_a_shut_gate_does_not_hold_up_closing(device: Device, q1: Stream, q2: Stream) -> None:
    # q1 = [gate, call, e!]     q2 = [e?, call]     compute = [e?]
    ran: list[int] = []
    event, gate = device.event(), q1.gate()
    q1.host_call(lambda: ran.append(1))
    event.record(q1)
    q2.wait(event)
    q2.host_call(lambda: ran.append(2))
    device.current_stream().wait(event)
    device.close()
    assert ran == [], "queued work is abandoned"
    assert event.query(), "nobody waits for ever"
    gate.open()


def test_what_is_abandoned_is_released(device: Device, q1: Stream) -> None:
    # q1 = [gate, call]
    released = threading.Event()

    class Canary:
        def __del__(self) -> None:
            released.set()

    gate, canary = q1.gate(), Canary()
    q1.host_call(lambda canary=canary: None)
    del canary
    device.close()
    assert released.is_set()
    del gate


def test_closing_wakes_a_thread_that_waits(device: Device, q1: Stream) -> None:
    # q1 = [gate, e!], and three threads that wait for a day
    event, gate = device.event(), q1.gate()
    event.record(q1)
    outcomes: list[str] = []
    waiting = threading.Barrier(4, timeout=SOON)

    def wait(call: Callable[[float], None]) -> None:
        waiting.wait()
        try:
            call(86400.0)
            outcomes.append("complete")
        except DeviceLost:
            outcomes.append("lost")

    threads = [
        threading.Thread(target=wait, args=(c,)) for c in (q1.synchronize, device.synchronize, event.synchronize)
    ]
    for thread in threads:
        thread.start()
    waiting.wait()
    device.close()
    for thread in threads:
        thread.join(SOON)
    assert len(outcomes) == 3
    gate.open()


def test_a_dropped_stream_finishes_what_was_queued(device: Device) -> None:
    # q = [gate, call, copy, e!], and nobody holds q any more
    stream, event, ran = device.stream(), device.event(), threading.Event()
    source, target = np.ones(16, np.uint8), np.zeros(16, np.uint8)
    gate = stream.gate()
    stream.host_call(ran.set)
    device.copy(target, source, stream)
    event.record(stream)
    del stream
    gate.open()
    event.synchronize(SOON)
    assert ran.is_set()
    assert (target == 1).all()


def test_the_device_waits_for_dropped_streams(device: Device) -> None:
    ran: list[int] = []
    for i in range(8):
        device.stream().host_call(lambda i=i: ran.append(i))
    device.synchronize(SOON)
    assert sorted(ran) == list(range(8))


def test_many_short_streams_leave_no_threads(device: Device) -> None:
    def native_threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before = native_threads()
    for _ in range(300):
        device.stream().host_call(lambda: None)
    device.synchronize(SOON)
    keep = device.stream()  # ended threads are collected when a stream is made
    keep.synchronize(SOON)
    assert native_threads() < before + 50


def test_a_dropped_device_ends_its_threads() -> None:
    before = len(os.listdir("/proc/self/task"))
    for _ in range(5):
        device = accel.open("cpu", threads=1)
        stream = device.stream()
        gate = stream.gate()
        del gate, stream, device
        gc.collect()
    assert len(os.listdir("/proc/self/task")) <= before + 1


def test_the_last_reference_may_go_inside_work() -> None:
    # q1 = [gate, call that holds the only references]: the device closes itself, without waiting for its own thread
    device = accel.open("cpu", threads=1)
    stream, done = device.stream(), threading.Event()
    gate = stream.gate()

    def last(device: Device = device, stream: Stream = stream) -> None:
        done.set()

    stream.host_call(last)
    del device, stream, last
    gate.open()
    assert done.wait(SOON)


def test_closing_from_inside_work_is_refused(device: Device, q1: Stream) -> None:
    errors: list[BaseException] = []

    def close() -> None:
        try:
            device.close()
        except InvalidArgument as error:
            errors.append(error)

    device.current_stream().host_call(close)
    q1.host_call(close)
    q1.synchronize(SOON)
    assert len(errors) == 2
    assert all("host_call" in str(error) for error in errors)
    assert device.memory()


def test_many_threads_share_a_device(device: Device) -> None:
    """Each thread has its own streams and checks its own results; events cross between them."""
    errors: list[BaseException] = []
    shared = device.event()

    def work(seed: int) -> None:
        try:
            stream, event = device.stream(), device.event()
            source = np.full(256, seed, np.uint8)
            target = np.zeros(256, np.uint8)
            for _ in range(50):
                device.fill(target, 0, stream)
                stream.wait(shared)
                device.copy(target, source, stream)
                event.record(stream)
                event.synchronize(SOON)
                assert (target == seed).all()
                assert stream.query()
        except BaseException as error:
            errors.append(error)

    recording = device.stream()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        shared.record(recording)
        shared.query()
        threads[0].join(0.001)
        threads = [thread for thread in threads if thread.is_alive()] or threads
    assert errors == []


def test_closing_races_with_use() -> None:
    for _ in range(20):
        device = accel.open("cpu", threads=1)
        begun = threading.Barrier(5, timeout=SOON)
        errors: list[BaseException] = []

        def use(
            device: Device = device, begun: threading.Barrier = begun, errors: list[BaseException] = errors
        ) -> None:
            begun.wait()
            try:
                while True:
                    stream = device.stream()
                    stream.host_call(lambda: None)
                    device.event().record(stream)
                    stream.query()
            except DeviceLost:
                return
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait()
        device.close()
        for thread in threads:
            thread.join(SOON)
        assert errors == []


def test_ctrl_c_ends_a_wait() -> None:
    # q1 = [gate]: the main thread waits for a day, and a signal comes
    program = """
import os, signal, threading, accel
device = accel.open("cpu", threads=1)
stream = device.stream()
gate = stream.gate()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    stream.synchronize(86400)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_a_forked_child_is_told_and_ends() -> None:
    program = """
import os, sys, warnings, accel
from accel.errors import DeviceLost
warnings.simplefilter("ignore")
device = accel.open("cpu", threads=1)
stream = device.stream()
gate = stream.gate()
stream.host_call(lambda: None)
child = os.fork()
if child == 0:
    try:
        stream.query()
    except DeviceLost as error:
        assert "parent process" in str(error), error
        with accel.open("cpu", threads=1) as own:
            ran = []
            mine = own.stream()
            mine.host_call(lambda: ran.append(1))
            mine.synchronize(30)
            assert ran == [1]
        sys.exit(7)  # runs the exit handlers, which close what is open
    sys.exit(1)
_, status = os.waitpid(child, 0)
gate.open()
stream.synchronize(30)
device.close()
print(os.waitstatus_to_exitcode(status))
"""
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


@pytest.mark.parametrize(
    "ending",
    ["", "device.close()", "import sys; sys.exit(0)", "del device", "del stream, gate", "del device, stream, gate"],
    ids=["open", "closed", "exit", "no device", "no stream", "nothing"],
)
def test_the_interpreter_ends_with_work_queued(ending: str) -> None:
    program = f"""
import accel
device = accel.open("cpu", threads=1)
stream = device.stream()
gate = stream.gate()
stream.host_call(lambda: print("never"))
busy = device.stream()
for _ in range(100):
    busy.host_call(lambda: None)
{ending}
"""
    done = run_python(program)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if "gate" not in ending:
        assert done.stdout == ""


def test_an_uncaught_error_ends_the_interpreter_normally() -> None:
    done = run_python(
        'import accel\nd = accel.open("cpu")\ns = d.stream()\ng = s.gate()\ns.host_call(print)\nraise ValueError("x")'
    )
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: x\n")


def test_a_signal_in_a_worker_does_not_end_the_process() -> None:
    """Worker threads are the library's: Python's handlers run in the main thread, as they should."""
    seen: list[int] = []
    previous = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    try:
        with accel.open("cpu", threads=1) as device:
            stream = device.stream()
            stream.host_call(lambda: os.kill(os.getpid(), signal.SIGUSR1))
            stream.synchronize(SOON)
        assert seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_ctrl_c_ends_the_wait_of_a_launch() -> None:
    # q1 = [gate, e!]     compute = [e?, call]: the launch waits on the main thread, and a signal comes
    program = """
import os, signal, threading, accel
device = accel.open("cpu", threads=1)
stream, event, ran = device.stream(), device.event(), []
gate = stream.gate()
event.record(stream)
compute = device.current_stream()
compute.wait(event)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    compute.host_call(lambda: ran.append(1))
except KeyboardInterrupt:
    print("interrupted", ran)
gate.open()
compute.host_call(lambda: ran.append(2))
print(ran)
"""
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, "interrupted []\n[2]\n"), done.stderr


def test_a_signal_while_an_error_is_raised_is_not_lost() -> None:
    # The handler raises while the class of the error is called: its error is the one that leaves, not a RuntimeError.
    program = """
import os, signal, accel, accel.errors
device = accel.open("cpu", threads=1)
stream = device.stream()
gate = stream.gate()
real = accel.errors.AccelError.__init__
def init(self, *args, **fields):
    os.kill(os.getpid(), signal.SIGINT)
    real(self, *args, **fields)
accel.errors.AccelError.__init__ = init
try:
    stream.synchronize(0)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


@pytest.mark.parametrize(
    "call",
    ["stream.synchronize(86400)", "compute.host_call(time.time)", "stream.query()", "device.event().query()"],
)
def test_daemon_threads_inside_the_library_do_not_abort_the_exit(call: str) -> None:
    program = f"""
import threading, time, accel
device = accel.open("cpu", threads=1)
stream, compute = device.stream(), device.current_stream()
gate = stream.gate() if "synchronize" in {call!r} else None
begun = threading.Barrier(5)
def work():
    begun.wait()
    while True:
        try:
            {call}
        except Exception:
            pass
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
"""
    done = run_python(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_closing_ends_the_wait_of_a_launch(device: Device, q1: Stream) -> None:
    # q1 = [gate, e!]     compute = [e?, call], launched by a thread that waits inside
    event, gate, compute = device.event(), q1.gate(), device.current_stream()
    event.record(q1)
    compute.wait(event)
    outcomes: list[str] = []
    begun = threading.Event()

    def launch() -> None:
        begun.set()
        try:
            compute.host_call(lambda: outcomes.append("ran"))
        except DeviceLost:
            outcomes.append("lost")

    thread = threading.Thread(target=launch)
    thread.start()
    begun.wait(SOON)
    device.close()
    thread.join(SOON)
    assert outcomes == ["lost"]
    gate.open()


def test_closing_names_work_that_does_not_end() -> None:
    # q1 = [call that waits for the test]: closing gives up, and works once the call has ended
    device = accel.open("cpu", threads=1)
    stream, inside, leave = device.stream(), threading.Event(), threading.Event()

    def call() -> None:
        inside.set()
        leave.wait(SOON)

    stream.host_call(call)
    assert inside.wait(SOON)
    with pytest.raises(Timeout, match="host_call"):
        device._native.close(0.1)  # type: ignore[attr-defined]
    assert device.closed  # type: ignore[attr-defined]
    with pytest.raises(DeviceLost):
        stream.query()
    leave.set()
    device.close()


def test_ctrl_c_ends_closing() -> None:
    # q1 = [call without end]
    program = """
import os, queue, signal, threading, accel, accel.runtime_device
accel.runtime_device._EXIT_LIMIT = 0.1
device = accel.open("cpu", threads=1)
stream, inside = device.stream(), threading.Event()
stream.host_call(lambda: (inside.set(), queue.Queue().get()))
inside.wait()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    device._native.close(86400)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


@pytest.mark.parametrize("stream", ["device.stream()", "device.current_stream()"], ids=["worker", "inline"])
def test_work_without_end_does_not_keep_the_interpreter(stream: str) -> None:
    program = f"""
import queue, threading, accel, accel.runtime_device
accel.runtime_device._EXIT_LIMIT = 0.2
device = accel.open("cpu", threads=1)
stream, inside = {stream}, threading.Event()
call = lambda: (inside.set(), queue.Queue().get())
threading.Thread(target=lambda: stream.host_call(call), daemon=True).start()
inside.wait()
"""
    done = run_python(program)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    assert "abandoned" in done.stderr
