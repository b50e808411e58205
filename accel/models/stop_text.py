"""Stop strings: ends a text at the first of several strings, whatever borders the pieces have.

::

    stops ["STOP"]     push("on S") -> "on "     push("TO") -> ""     push("P it") -> "", found STOP
                            └ "S" may be the start of one: held back until it is or is not

Invariant: the pieces that come out, joined, are the text up to the first stop string; which one that is does not depend
on how the text was cut. Nothing that could still become part of a stop string comes out.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopText"]


class StopText:
    """Watches one text.

    Args:
        stops: the strings, none empty. Of two that begin at the same character the one that is complete first ends the
            text; of two that are complete at the same character, the one that began first.
        include: let the string itself out as well.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self._longest = max((len(stop) for stop in stops), default=1)

    def push(self, text: str) -> tuple[str, str | None]:
        """Take more text. Returns what is certain to come before any stop string, and the one that was found."""
        self._held += text
        # The text ends where a stop string first becomes complete, so that later text cannot change the answer.
        found: tuple[int, int, str] | None = None
        for stop in self._stops:
            begin = self._held.find(stop)
            if begin >= 0:
                candidate = (begin + len(stop), begin, stop)
                found = candidate if found is None else min(found, candidate)
        if found is not None:
            end, begin, stop = found
            out, self._held = self._held[: end if self._include else begin], ""
            return out, stop
        keep = self._kept()
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out, None

    def finish(self) -> str:
        """The text is over: what was held back."""
        out, self._held = self._held, ""
        return out

    def _kept(self) -> int:
        """Length of the longest end of the held text that a stop string begins with."""
        for length in range(min(len(self._held), self._longest - 1), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
