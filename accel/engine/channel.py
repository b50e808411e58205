"""The way of a stream's tokens from the loop thread to whoever follows it, a thread or a task.

Invariant: `put` never blocks. Unbounded on purpose: a request puts at most max_tokens + 1 items, and their number is
bounded by those that may wait and run.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Channel"]

Item = TypeVar("Item")


class Channel(Generic[Item]):
    """Many producers, one consumer."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._poked = False
        self._wake: Callable[[], None] | None = None

    def put(self, item: Item) -> None:
        """Add an item and wake the consumer."""
        with self._changed:
            self._items.append(item)
            wake = self._notify()
        wake()

    def poke(self) -> None:
        """Wake the consumer without an item: something else may have changed for it."""
        with self._changed:
            self._poked = True
            wake = self._notify()
        wake()

    def get(self, timeout: float) -> Item | None:
        """The next item; None after a poke, or `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(self._ready, timeout)
            return self._take()

    async def aget(self) -> Item | None:
        """As `get`, for a task; waits for as long as the producer lives."""
        loop = asyncio.get_running_loop()
        with self._changed:
            if self._ready():
                return self._take()
            future: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                loop.call_soon_threadsafe(_finish, future)

            self._wake = wake
        try:
            await future
        finally:
            with self._changed:
                self._wake = None
        with self._changed:
            return self._take()

    def _ready(self) -> bool:
        return bool(self._items) or self._poked

    def _take(self) -> Item | None:
        if self._items:
            return self._items.popleft()
        self._poked = False
        return None

    def _notify(self) -> Callable[[], None]:
        self._changed.notify()
        wake, self._wake = self._wake, None
        return _nothing if wake is None else lambda: _call(wake)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _nothing() -> None:
    return None


def _call(wake: Callable[[], None]) -> None:
    # The consumer's event loop may be closed: then nobody waits, and the stream is aborted when it is collected.
    with contextlib.suppress(RuntimeError):
        wake()
