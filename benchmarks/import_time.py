"""How long ``import accel`` and ``accel devices`` take in a fresh interpreter.

Both are the median over interleaved rounds, net of ``python -c pass``; the reference is the limit that the project
holds itself to: 100 ms and 1 s. The exit code is 1 when one is exceeded, or when the import brings the framework or
NumPy along.
"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

from accel.cli.measure import Result, interleave, machine, print_report, rounds_progress
from benchmarks.options import parser

#: Milliseconds.
LIMITS = {"import_accel": 100.0, "accel_devices": 1000.0}
_COMMANDS = {
    "nothing": ("-c", "pass"),
    "import_accel": ("-c", "import accel"),
    "accel_devices": ("-m", "accel.cli", "devices"),
}
_CHECK = "import sys, accel; sys.exit(any(name in sys.modules for name in ('paddle', 'numpy', 'accel._core')))"


def _run(arguments: tuple[str, ...]) -> float:
    """Milliseconds of one interpreter with `arguments`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1e3


def measure(rounds: int) -> list[Result]:
    """One result a limit."""
    sides = {name: partial(_run, arguments) for name, arguments in _COMMANDS.items()}
    with rounds_progress("import time", (rounds + 1) * len(sides)) as step:
        interleave(sides, 1, step)  # the files come into the page cache
        medians = interleave(sides, rounds, step)
    return [Result(name, medians[name] - medians["nothing"], "ms", limit) for name, limit in LIMITS.items()]


def main() -> int:
    arguments = parser(__doc__, rounds=15).parse_args()
    clean = subprocess.run([sys.executable, "-c", _CHECK]).returncode == 0
    results = measure(arguments.rounds)
    print_report(results, machine(rounds=arguments.rounds, imports_nothing_heavy=clean), arguments.json)
    return 0 if clean and all(result.value <= LIMITS[result.name] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
