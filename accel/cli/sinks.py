"""Where the outputs of several requests go: lines of JSON, one document, or texts under headers.

Invariant: a sink gets each `Done` once, as it ends, and the summary last. What it has taken of lines is out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Protocol

from accel.cli.output import note, write_json
from accel.cli.records import Done, create_lines, record, write_line

__all__ = ["Sink", "open_sink"]


class Sink(Protocol):
    """Takes outputs."""

    def take(self, done: Done) -> None:
        """A choice ended."""

    def finish(self, done: Sequence[Done], numbers: dict[str, Any]) -> None:
        """All have: `done` in the order of requests and choices, `numbers` as ``records.summary``."""


@contextmanager
def open_sink(
    expected: Sequence[tuple[int, int]], load_time: float, *, target: str | None, force: bool, json: bool
) -> Iterator[Sink]:
    """The sink that the options ask for.

    Args:
        expected: (index, choice) of all outputs, in order.
        target: where lines go, a path or ``-``; None for a document (`json`) or texts.

    Raises:
        InvalidArgument: the file cannot be made.
    """
    if target is not None:
        with create_lines(target, force) as file:
            yield _Lines(file, load_time)
    elif json:
        yield _Document(load_time)
    else:
        yield _Texts(expected)


class _Lines:
    def __init__(self, file: IO[str], load_time: float) -> None:
        self._file = file
        self._load_time = load_time

    def take(self, done: Done) -> None:
        write_line(record(done, self._load_time), self._file)

    def finish(self, done: Sequence[Done], numbers: dict[str, Any]) -> None:
        write_line({"summary": numbers}, self._file)


class _Document:
    def __init__(self, load_time: float) -> None:
        self._load_time = load_time

    def take(self, done: Done) -> None:
        pass

    def finish(self, done: Sequence[Done], numbers: dict[str, Any]) -> None:
        write_json([*(record(item, self._load_time) for item in done), {"summary": numbers}])


class _Texts:
    """Prints an output once those before it are there."""

    def __init__(self, expected: Sequence[tuple[int, int]]) -> None:
        self._expected = list(expected)[::-1]
        self._many = any(choice for _, choice in expected)
        self._held: dict[tuple[int, int], Done] = {}
        self._first = True

    def take(self, done: Done) -> None:
        self._held[done.index, done.choice] = done
        while self._expected and self._expected[-1] in self._held:
            self._print(self._held.pop(self._expected.pop()))

    def finish(self, done: Sequence[Done], numbers: dict[str, Any]) -> None:
        pass

    def _print(self, done: Done) -> None:
        name = f"{done.ready.job.id}, choice {done.choice}" if self._many else f"{done.ready.job.id}"
        print(f"{'' if self._first else chr(10)}==> {name} <==")
        self._first = False
        if done.output is None:
            note(f"{name}: {done.error}")
            print(flush=True)
            return
        text = done.output.text
        print(" ".join(map(str, done.output.token_ids)) if text is None else text, flush=True)
