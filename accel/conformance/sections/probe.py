"""What a probe says must be true, cheap and harmless."""

from __future__ import annotations

import subprocess
import sys
import time

from accel.backend import Probe
from accel.conformance.context import Context
from accel.conformance.registry import case

_MODULES = "import sys, {module} as m; m.{cls}().probe(); print('paddle' in sys.modules)"


@case("probe")
def says_that_this_device_is_available(context: Context) -> None:
    """It is open, so it must be listed."""
    probe = context.backend.probe()
    context.check(probe.available, f"the probe says {probe.state.value}: {probe.reason}")
    names = [f"{context.backend.name}:{info.logical}" for info in probe.devices]
    context.check(context.device.name in names, f"{context.device.name} is open, and not among {names}")


@case("probe")
def gives_the_same_answer_twice(context: Context) -> None:
    """A probe has no side effects."""
    first, second = context.backend.probe(), context.backend.probe()
    context.check(isinstance(first, Probe), f"probe() gave a {type(first).__name__}")
    context.equal([i.name for i in second.devices], [i.name for i in first.devices], "devices of a second probe")


@case("probe")
def is_cheap(context: Context) -> None:
    """Well under a second, whatever is installed."""
    started = time.perf_counter()
    context.backend.probe()
    seconds = time.perf_counter() - started
    context.check(seconds < 2.0, f"a probe took {seconds:.1f} s; it may take 2")


@case("probe")
def loads_no_framework(context: Context) -> None:
    """In a fresh interpreter."""
    kind = type(context.backend)
    program = _MODULES.format(module=kind.__module__, cls=kind.__qualname__)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    context.check(done.returncode == 0, f"a probe in a fresh interpreter failed: {done.stderr.strip()[-300:]}")
    context.equal(done.stdout.split()[-1], "False", "framework loaded by the probe")
