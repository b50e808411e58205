"""Many requests through one engine: each a stream of its own, followed by one task.

::

    Ready ─> engine.stream ─> _follow ─┬─> tokens ──> progress        (stderr, a terminal only)
    Ready ─> engine.stream ─> _follow ─┴─> Done ────> emit            (one call a choice, as it ends)

Invariant: a request that fails ends alone; the others go on. Whatever `emit` has taken was done, so an interrupted run
loses only what was under way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from accel.cli.output import stderr_is_terminal, stdout_is_terminal
from accel.cli.records import Done
from accel.errors import AccelError

if TYPE_CHECKING:
    from accel.cli.jobs import Ready
    from accel.engine import Engine

__all__ = ["Progress", "requests_progress", "run_all"]

#: A bar that moves more often than this only costs time.
_REDRAW_SECONDS: Final = 0.1


class Progress:
    """Counts what is done. This one shows nothing; see `requests_progress`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.requests = 0
        self.tokens = 0
        self.started = time.perf_counter()

    def token(self) -> None:
        """A token came."""
        self.tokens += 1

    def request(self, write: Callable[[], None]) -> None:
        """A request ended, which `write` tells."""
        self.requests += 1
        write()

    @property
    def rate(self) -> float:
        """Tokens a second so far."""
        return self.tokens / max(1e-9, time.perf_counter() - self.started)


class _Bar(Progress):
    """Draws itself with `bar`, a rich Progress; gets out of the way of a stdout on the same terminal."""

    def __init__(self, total: int, bar: Any) -> None:
        super().__init__(total)
        self._bar = bar
        self._task = bar.add_task("requests", total=total, rate="")
        self._drawn = self.started
        self._shared = stdout_is_terminal()

    def token(self) -> None:
        super().token()
        if time.perf_counter() - self._drawn >= _REDRAW_SECONDS:
            self._draw()

    def request(self, write: Callable[[], None]) -> None:
        if self._shared:
            self._bar.stop()
        try:
            super().request(write)
        finally:
            if self._shared:
                self._bar.start()
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.perf_counter()
        self._bar.update(self._task, completed=self.requests, rate=f"{self.rate:.1f} tokens/s")


@contextmanager
def requests_progress(total: int, quiet: bool = False) -> Iterator[Progress]:
    """A bar of requests and tokens a second on stderr, gone afterwards; only counts where nobody would see it."""
    if quiet or not stderr_is_terminal():
        yield Progress(total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    # stdout is the result's: rich would send it to stderr.
    with Bar(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        yield _Bar(total, bar)


def run_all(engine: Engine, jobs: Sequence[Ready], emit: Callable[[Done], None], progress: Progress) -> list[Done]:
    """Run all requests at once, as far as the engine takes them.

    Args:
        emit: takes each choice as it ends, on this thread. What it raises ends the run.

    Returns:
        All choices, in the order of requests and choices.
    """
    done: list[Done] = []

    def finish(item: Done) -> None:
        done.append(item)
        progress.request(lambda: emit(item))

    async def every() -> None:
        tasks = [
            asyncio.create_task(_follow(engine, ready, index, finish, progress)) for index, ready in enumerate(jobs)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    asyncio.run(every())
    return sorted(done, key=lambda item: (item.index, item.choice))


async def _follow(engine: Engine, ready: Ready, index: int, finish: Callable[[Done], None], progress: Progress) -> None:
    job = ready.job
    under_way = set(range(job.params.n))
    try:
        with engine.stream(ready.ids, job.params, priority=job.priority, deadline=job.deadline) as stream:
            async for token in stream:
                if token.token_id is not None:
                    progress.token()
                if token.output is not None:
                    under_way.discard(token.choice)
                    finish(Done(ready, index, token.choice, token.output))
    except AccelError as error:
        for choice in sorted(under_way):
            finish(Done(ready, index, choice, None, error))
