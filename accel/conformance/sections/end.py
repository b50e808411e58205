"""Many threads, closing with work queued, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np

from accel.conformance.context import SOON, Context
from accel.conformance.registry import case
from accel.errors import AccelError, AsyncFailure, DeviceLost

_EXIT = (
    "import numpy as np, accel\n"
    "device = accel.open({name!r})\n"
    "stream = device.stream()\n"
    "source, target = np.ones(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)\n"
    "for _ in range(50): device.copy(target, source, stream)\n"
    "print('leaving')\n"
)


@case("end")
def many_threads_use_streams_of_their_own(context: Context) -> None:
    """eight threads, fifty copies each, through one device"""
    failures: list[str] = []

    def work(index: int) -> None:
        try:
            stream, host = context.device.stream(), np.full(256, index, np.uint8)
            tensor, back = context.empty((256,), "uint8"), context.zeros(256)
            for _ in range(50):
                context.device.copy(tensor, host, stream)
                context.device.copy(back, tensor, stream)
            stream.synchronize(SOON)
            if not np.array_equal(back, host):
                failures.append(f"thread {index} read what it did not write")
        except AccelError as error:
            failures.append(f"thread {index}: {error}")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    context.equal(failures, [], "failures")


@case("end", needs=("gate",))
def closing_wakes_who_waits(context: Context) -> None:
    """q1 = [gate, e!] of another device, and a thread that waits for a day"""
    other = context.reopen()
    stream, event = other.stream(), other.event()
    gate = stream.gate()
    event.record(stream)
    ended: list[str] = []

    def wait() -> None:
        try:
            event.synchronize(86400.0)
            ended.append("complete")
        except (DeviceLost, AsyncFailure):
            ended.append("lost")

    thread = threading.Thread(target=wait)
    thread.start()
    other.close()
    thread.join(SOON)
    context.equal(ended, ["lost"], "how the wait ended")
    gate.open()


@case("end")
def a_process_ends_with_work_queued(context: Context) -> None:
    """in a fresh interpreter, by itself and without an error"""
    program = _EXIT.format(name=context.device.name)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=90, check=False)
    context.check(done.returncode == 0, f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    context.equal(done.stdout.split(), ["leaving"], "what it printed")


@case("end", needs=("memory_info",))
def streams_and_events_that_are_dropped_are_gone(context: Context) -> None:
    """a thousand of each: the threads of the process do not grow"""
    before = threading.active_count()
    for _ in range(1000):
        stream, event = context.device.stream(), context.device.event()
        event.record(stream)
        del stream, event
    context.device.synchronize(SOON)
    context.check(threading.active_count() <= before + 1, f"{threading.active_count()} threads, {before} before")
