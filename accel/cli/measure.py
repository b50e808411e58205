"""What every benchmark reports, and how it is printed: one shape for ``accel bench`` and ``benchmarks/``.

::

    {"machine": {…}, "results": [{"name", "value", "unit", "reference", "ratio"}]}

Invariant: a reference is either a limit that the benchmark's own text names, or was measured in the same run on the
same machine; else it is null, and then so is the ratio.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from accel.cli.output import print_table, stderr_is_terminal, write_json

__all__ = ["Result", "interleave", "machine", "print_report", "rounds_progress"]


@dataclass(frozen=True)
class Result:
    """One number. `reference` is what it is held against, in the same unit; None without one."""

    name: str
    value: float
    unit: str
    reference: float | None = None

    @property
    def ratio(self) -> float | None:
        """value / reference; None without a reference."""
        return self.value / self.reference if self.reference else None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "reference": self.reference,
            "ratio": self.ratio,
        }


def machine(**more: Any) -> dict[str, Any]:
    """What the numbers depend on: this machine, its software, and `more` that a benchmark adds.

    Returns:
        processor, architecture, cpus (this process may use), load (processes that wanted to run, mean of the last
        minute), memory_bytes, system, python, accel, and `more`.
    """
    import accel

    return {
        "processor": _processor(),
        "architecture": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "accel": accel.__version__,
        **more,
    }


def interleave(sides: Mapping[str, Callable[[], float]], rounds: int, step: Callable[[], None]) -> dict[str, float]:
    """The median of each side over `rounds`, in which they take turns: what slows the machine for a while slows both.

    Args:
        sides: each measures once and returns its number.
        step: called after each measurement, for a progress bar.
    """
    seen: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(rounds):
        # Each goes first in turn: the first may find the caches, or the clock, as the other left them.
        order = list(sides) if index % 2 == 0 else list(sides)[::-1]
        for name in order:
            seen[name].append(sides[name]())
            step()
    return {name: statistics.median(values) for name, values in seen.items()}


def print_report(results: Sequence[Result], about: Mapping[str, Any], json: bool) -> None:
    """Print results as the JSON document above, or as a table with the machine above it."""
    if json:
        write_json({"machine": dict(about), "results": [result.to_json() for result in results]})
        return
    print(", ".join(f"{key} {value}" for key, value in about.items() if value is not None))
    print_table(
        ("name", "value", "unit", "reference", "ratio"),
        [
            (
                result.name,
                _short(result.value),
                result.unit,
                "-" if result.reference is None else _short(result.reference),
                "-" if result.ratio is None else f"{result.ratio:.2f}",
            )
            for result in results
        ],
        right=("value", "reference", "ratio"),
    )


@contextmanager
def rounds_progress(label: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr that its function moves by one; nothing where stderr is no terminal."""
    if not stderr_is_terminal():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda: progress.advance(task)


def _short(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def _processor() -> str:
    """The processor's name, as the cpu backend tells it."""
    from accel import registry

    devices = registry.probe("cpu").devices
    return devices[0].name if devices else platform.machine()
