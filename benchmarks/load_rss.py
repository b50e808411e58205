"""How much memory loading a model takes beyond the weights themselves.

A fresh process opens the device and makes a first tensor, so that the framework is there, notes its resident memory,
loads, and reads the peak (VmHWM). ``load_peak`` is peak minus before; its reference is the limit, 1.3 times the bytes
of the weights as they are held, and 64 MiB. ``load_peak_per_held`` is the same peak over those bytes. Exit code 1 above
the limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from accel.cli.measure import Result, machine, print_report, rounds_progress
from benchmarks.options import parser

_MIB = 1 << 20
FACTOR, ALLOWANCE = 1.3, 64 * _MIB


def _status(key: str) -> int:
    """A field of /proc/self/status in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def _reset_peak() -> None:
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return  # then the peak is that of the imports too: larger, never smaller


def child(model: str, device_spec: str, dtype: str) -> None:
    """Load, and print what it took as JSON."""
    import accel
    from accel.models.files import open_model
    from accel.models.loader import load_weights

    with accel.open(device_spec) as device:
        device.empty([1], "float32")
        with open_model(model) as files:
            # The tensor names and the config are part of the load, the framework is not.
            before = _status("VmRSS")
            _reset_peak()
            weights = load_weights(device, files.config, files.weights, dtype)
            peak = _status("VmHWM")
        print(json.dumps({"before": before, "peak": peak, "held": weights.nbytes}))


def measure(model: str, device: str, dtype: str, rounds: int) -> dict[str, int]:
    """The worst of `rounds` fresh processes: bytes before, at the peak, and of the weights as held."""
    command = [sys.executable, "-m", "benchmarks.load_rss", "--child", "--model", model]
    command += ["--device", device, "--dtype", dtype]
    found: list[dict[str, int]] = []
    with rounds_progress("load", rounds) as step:
        for _ in range(rounds):
            found.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
            step()
    return max(found, key=lambda one: one["peak"] - one["before"])


def report(found: dict[str, int]) -> list[Result]:
    """The two results."""
    taken, held = found["peak"] - found["before"], found["held"]
    limit = FACTOR * held + ALLOWANCE
    return [
        Result("load_peak", taken / _MIB, "MiB", limit / _MIB),
        Result("load_peak_per_held", taken / held, "bytes per byte of weights"),
    ]


def main() -> int:
    options = parser(__doc__, rounds=3)
    options.add_argument("--model", default="demo")
    options.add_argument("--device", default="cpu")
    options.add_argument("--dtype", default="auto")
    options.add_argument("--child", action="store_true", help="(internal)")
    arguments = options.parse_args()
    if arguments.child:
        child(arguments.model, arguments.device, arguments.dtype)
        return 0
    found = measure(arguments.model, arguments.device, arguments.dtype, arguments.rounds)
    about: dict[str, Any] = machine(device=arguments.device, dtype=arguments.dtype, weights_bytes=found["held"])
    results = report(found)
    print_report(results, about, arguments.json)
    return 0 if (results[0].ratio or 0) <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
