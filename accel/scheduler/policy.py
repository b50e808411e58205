"""The rules of the scheduler that are choices: who goes first, how much room outputs get, how much of a prompt may be a
hit.

Invariants: the order of two requests never changes after both have arrived, so nobody is passed for ever. All of it is
a function of what was added and when; the clock is the scheduler's.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from accel.scheduler.request import Request, State

__all__ = ["Deadlines", "OutputReserve", "WaitingQueue", "hit_limit", "order_key"]


def order_key(arrival: float, priority: int, priority_seconds: float) -> float:
    """Smaller goes first: a unit of priority counts as having arrived `priority_seconds` earlier.

    A request is therefore passed only by those that arrive within that head start, however many they are.
    """
    return arrival - priority * priority_seconds


def hit_limit(tokens: int, block_size: int) -> int:
    """Blocks of `tokens` known tokens that may come from the cache: the full-hit rule.

    The last token is always computed, because its logits give the next one; and with it its block, because blocks in
    the cache are not written.
    """
    return (tokens - 1) // block_size


class OutputReserve:
    """Tokens of output for which an admission leaves room, for each request that then runs.

    Starts at `least`; a preemption shows that it was too little and doubles it, up to `most`; quiet steps bring it
    back.
    """

    #: What a quiet step takes off the distance to `least`.
    DECAY = 0.02

    def __init__(self, least: int, most: int) -> None:
        self._least = float(least)
        self._most = float(max(least, most))
        self._tokens = self._least

    @property
    def tokens(self) -> int:
        return int(self._tokens)

    def step(self, preempted: bool) -> None:
        """Learn from a step."""
        if preempted:
            self._tokens = min(self._most, 2 * self._tokens + 1)
        else:
            self._tokens += (self._least - self._tokens) * self.DECAY


class WaitingQueue:
    """Requests in the order of their keys, then numbers. Those that ended while they waited fall out when met."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.key, request.number, request))

    def take(self, admit: Callable[[Request], bool]) -> bool:
        """Offer the first request that may run now; whether there was one and `admit` took it.

        One whose leader has still to compute the prompt is passed over: it would compute the same again.
        """
        passed: list[tuple[float, int, Request]] = []
        taken = False
        while self._heap:
            entry = self._heap[0]
            request = entry[2]
            if request.state is not State.WAITING:
                heapq.heappop(self._heap)
                continue
            if _held_back(request):
                passed.append(heapq.heappop(self._heap))
                continue
            taken = admit(request)
            if taken:
                heapq.heappop(self._heap)
            break
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return taken

    def prune(self, live: int) -> None:
        """Forget ended requests when they outnumber the `live` ones."""
        if len(self._heap) > 2 * live + 64:
            self._heap = [entry for entry in self._heap if entry[2].state is State.WAITING]
            heapq.heapify(self._heap)


class Deadlines:
    """Requests by their deadlines. Those that ended before fall out when met, or when they outnumber the others."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []

    def push(self, request: Request) -> None:
        """Watch `request`, if it has a deadline."""
        if request.deadline is not None:
            heapq.heappush(self._heap, (request.deadline, request.number, request))

    @property
    def earliest(self) -> float | None:
        """That of the first request that has not ended; None without one."""
        while self._heap and self._heap[0][2].ended:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def expired(self, now: Callable[[], float]) -> Iterator[Request]:
        """The requests whose time is over, first first; the caller ends each before it asks for the next."""
        while (earliest := self.earliest) is not None and earliest <= now():
            yield heapq.heappop(self._heap)[2]

    def prune(self, live: int) -> None:
        """Forget ended requests when they outnumber the `live` ones: their deadlines may be far away."""
        if len(self._heap) > 2 * live + 64:
            self._heap = [entry for entry in self._heap if not entry[2].ended]
            heapq.heapify(self._heap)


def _held_back(request: Request) -> bool:
    leader = request.leader
    return leader is not None and not leader.prompt_done and not leader.ended
