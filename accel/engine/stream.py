"""A stream: the tokens of one call, for a thread (``for``) or a task (``async for``).

Invariant: requests that are not finished when a stream is closed, left or forgotten are aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from types import TracebackType

from accel.engine.channel import Channel
from accel.engine.live import Live
from accel.engine.loop import EngineLoop
from accel.engine.outputs import TokenOutput
from accel.errors import AccelError, Overloaded

__all__ = ["Stream"]

#: A follower that hears nothing looks this often whether there is room, should a wake-up have been lost.
_LOOK_SECONDS = 5.0


class Stream(Iterator[TokenOutput], AsyncIterator[TokenOutput]):
    """Iterates over tokens as they come, of all requests of the call. Follow it from one thread or task.

    A request that failed raises its error, and the others are aborted. Requests beyond what the engine takes at once
    are held back, and submitted when there is room.
    """

    def __init__(
        self,
        loop: EngineLoop,
        lives: list[Live],
        channel: Channel[TokenOutput],
        *,
        keep_errors: bool = False,
        wait: bool = True,
    ) -> None:
        self._loop = loop
        self._lives = lives
        #: Only the follower touches it: who closes ends the requests, and the follower passes over ended ones.
        self._held_back = deque(lives)
        self._channel = channel
        self._keep_errors = keep_errors
        self._closed = False
        #: Requests whose output has not been taken.
        self._open = len(lives)
        self._feed(first=True, wait=wait)

    @property
    def request_id(self) -> str:
        """What `Engine.abort` takes."""
        return self._lives[0].request_id

    @property
    def finished(self) -> bool:
        """Whether every request has ended."""
        return all(live.done for live in self._lives)

    def abort(self) -> bool:
        """End what has not ended; the outputs still come. False when all had ended. For any thread."""
        return sum(self._loop.abort(live) for live in self._lives if not live.done) > 0

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> TokenOutput:
        while self._open and not self._closed:
            self._loop.check_process()
            self._feed()
            item = self._channel.get(_LOOK_SECONDS)
            if item is not None and not self._closed:
                return self._take(item)
        raise StopIteration

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> TokenOutput:
        while self._open and not self._closed:
            self._loop.check_process()
            self._feed()
            item = await self._channel.aget()
            if item is not None and not self._closed:
                return self._take(item)
        raise StopAsyncIteration

    def close(self) -> None:
        """Abort what is not finished; whoever follows sees the end. Idempotent, for any thread."""
        self._closed = True
        if not self._loop.forked:
            self.abort()
            self._channel.poke()

    async def aclose(self) -> None:
        """As `close`."""
        self.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # On whatever thread the collector runs, under whatever lock that one holds: nothing here may wait.
        if not getattr(self, "_closed", True):
            self._loop.forget(self._lives)

    def _take(self, item: TokenOutput) -> TokenOutput:
        if item.output is not None:
            self._open -= 1
            if item.output.error is not None and not self._keep_errors:
                self.close()
                raise item.output.error
        return item

    def _feed(self, *, first: bool = False, wait: bool = True) -> None:
        """Submit what is held back, as far as there is room. The `first` time what is wrong raises."""
        while self._held_back:
            live = self._held_back[0]
            if live.done:  # aborted before its turn
                self._held_back.popleft()
                continue
            try:
                self._loop.submit(live, self._channel if wait else None)
            except Overloaded:
                if not wait:
                    self.close()
                    raise
                return
            except AccelError as error:
                if first:
                    self.close()
                    raise
                self._loop.refuse(live, error)
            self._held_back.popleft()
