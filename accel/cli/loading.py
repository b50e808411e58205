"""Opening what a command runs on: the device, and the model with a bar while it loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from accel.cli.output import stderr_is_terminal

if TYPE_CHECKING:
    from accel.backend import Device

__all__ = ["load_progress", "open_device"]

Report = Callable[[int, int], None]


def open_device(spec: str, threads: int | None = None) -> Device:
    """``accel.open(spec)``, with the option `threads` where it was given.

    Raises:
        BackendUnavailable, InvalidArgument: as accel.open.
    """
    from accel import registry
    from accel.errors import InvalidArgument

    if threads is not None and threads < 1:
        raise InvalidArgument(f"threads is {threads}; it must be 1 or more")
    return registry.open(spec) if threads is None else registry.open(spec, threads=threads)


@contextmanager
def load_progress(label: str, quiet: bool = False) -> Iterator[Report | None]:
    """A bar of loaded bytes on stderr, gone afterwards; None where nobody would see it."""
    if quiet or not stderr_is_terminal():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: list[TaskID] = []

        def report(done: int, total: int) -> None:
            # Not before the size is known: a bar would begin as "0/?".
            if not tasks:
                tasks.append(progress.add_task(label, total=total))
            progress.update(tasks[0], completed=done, total=total)

        yield report
