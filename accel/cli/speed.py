"""How fast an engine decodes and prefills, and where the time of a step goes.

Invariant: what is timed is the engine's own loop as a caller sees it, scheduling and detokenising included. The
shares come from another run than the speeds, which no instrument slows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from accel.errors import AccelError, InvalidArgument
from accel.sampling_params import SamplingParams

if TYPE_CHECKING:
    from accel.engine import Engine
    from accel.ops.table import OpTable

__all__ = ["OpTimer", "bench_ids", "decode_seconds", "prefill_seconds", "shares"]

#: How long the loop may be held while requests are submitted.
_GO_SECONDS: Final = 60.0


class OpTimer:
    """Seconds spent in each op of a table while this is entered. Only where a launch returns when it is done.

    The instrument itself costs a fraction of a microsecond a call, which counts as time outside ops.
    """

    def __init__(self, table: OpTable) -> None:
        self._table = table
        self.seconds: dict[str, float] = {}
        self.clear()
        #: What `seconds` was at the last `mark`.
        self.marked = self.seconds

    def clear(self) -> None:
        """Start again from zero."""
        self.seconds = dict.fromkeys(self._table, 0.0)

    def mark(self) -> None:
        """Keep what there is; what comes later is not in it."""
        self.marked = dict(self.seconds)

    @contextmanager
    def attached(self) -> Iterator[OpTimer]:
        """Time every call through the table until this is left."""
        originals = {name: getattr(self._table, name) for name in self._table}
        try:
            for name, call in originals.items():
                setattr(self._table, name, self._timed(name, call))
            yield self
        finally:
            for name, call in originals.items():
                setattr(self._table, name, call)

    def _timed(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        clock = time.perf_counter

        def timed(*arguments: object, **attributes: object) -> None:
            start = clock()
            try:
                call(*arguments, **attributes)
            finally:
                self.seconds[name] += clock() - start

        return timed


def bench_ids(count: int, vocab_size: int) -> list[int]:
    """A prompt of `count` token ids that is the same in every run and has few repeats."""
    return [(1009 * index + 17) % vocab_size for index in range(count)]


def decode_seconds(engine: Engine, ids: Sequence[int], batch: int, steps: int, timer: OpTimer | None = None) -> float:
    """Seconds of `steps` greedy decode steps of `batch` requests, from the commit of their prompts on.

    Args:
        timer: begins and ends with what is timed.

    Raises:
        InvalidArgument: the prompts do not fit one step, so that their first tokens would come in different steps.
    """
    limit = engine.runner.max_batch_tokens
    if batch * len(ids) > limit:
        raise InvalidArgument(
            f"{batch} prompts of {len(ids)} tokens do not fit one step of {limit}", hint="raise --max-batch-tokens"
        )
    clock = _CommitClock(engine, steps, timer)
    with clock.attached():
        params = SamplingParams(max_tokens=steps + 1, ignore_eos=True)
        stream = engine.stream([list(ids)] * batch, params)
        clock.go.set()
        for _ in stream:
            pass
    return clock.seconds


def prefill_seconds(engine: Engine, ids: Sequence[int], timer: OpTimer | None = None) -> float:
    """Seconds until the first token after a prompt, as the engine's loop tells them."""
    if timer is not None:
        timer.clear()
    output = engine.generate(list(ids), SamplingParams(max_tokens=1, ignore_eos=True))[0]
    if timer is not None:
        timer.mark()
    return output.metrics.time_to_first_token


def shares(engine: Engine, measure: Callable[[OpTimer], float]) -> dict[str, float]:
    """Where the time goes: the share of each op, and of all that is outside ops under the name "".

    Args:
        measure: runs and times once, with a timer that it begins and ends.
    """
    timer = OpTimer(engine.device.ops)
    with timer.attached():
        total = measure(timer)
    parts = {name: spent / total for name, spent in timer.marked.items() if spent}
    return {"": 1 - sum(parts.values()), **dict(sorted(parts.items(), key=lambda part: -part[1]))}


class _CommitClock:
    """Times `steps` steps on the engine's loop thread, where no other thread's turn comes between.

    The loop is held until `go`, so that all requests of a call begin in one step.
    """

    def __init__(self, engine: Engine, steps: int, timer: OpTimer | None) -> None:
        self._scheduler = engine.scheduler
        self._steps = steps
        self._timer = timer
        self._commits = 0
        self._began = 0.0
        self._ended = 0.0
        self.go = threading.Event()

    @property
    def seconds(self) -> float:
        """What was timed. Raises AccelError where the steps did not come."""
        if self._commits <= self._steps:
            raise AccelError(f"{self._commits - 1} decode steps came, {self._steps} were to be timed")
        return self._ended - self._began

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Stand between the loop and the scheduler until this is left."""
        schedule, commit = self._scheduler.schedule, self._scheduler.commit
        held: Any = lambda: schedule() if self.go.wait(_GO_SECONDS) else None  # noqa: E731
        timed: Any = lambda output: self._commit(commit, output)  # noqa: E731
        self._scheduler.schedule, self._scheduler.commit = held, timed  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.go.set()
            del self._scheduler.schedule, self._scheduler.commit

    def _commit(self, commit: Callable[[Any], Any], output: Any) -> Any:
        updates = commit(output)
        if self._commits == 0:
            if self._timer is not None:
                self._timer.clear()
            self._began = time.perf_counter()
        elif self._commits == self._steps:
            self._ended = time.perf_counter()
            if self._timer is not None:
                self._timer.mark()
        self._commits += 1
        return updates
