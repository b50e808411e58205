"""How fast an engine decodes and prefills, and where the time of a step goes.

Invariant: what is timed is the engine's own loop as a caller sees it, scheduling and detokenising included. The
shares come from another run than the speeds, which no instrument slows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from accel.errors import InvalidArgument
from accel.sampling_params import SamplingParams

if TYPE_CHECKING:
    from accel.engine import Engine
    from accel.ops.table import OpTable

__all__ = ["OpTimer", "bench_ids", "decode_seconds", "prefill_seconds", "shares"]


class OpTimer:
    """Seconds spent in each op of a table while this is entered. Only where a launch returns when it is done.

    The instrument itself costs a fraction of a microsecond a call, which counts as time outside ops.
    """

    def __init__(self, table: OpTable) -> None:
        self._table = table
        self.seconds: dict[str, float] = {}
        self.clear()

    def clear(self) -> None:
        """Start again from zero."""
        self.seconds = dict.fromkeys(self._table, 0.0)

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


def decode_seconds(
    engine: Engine, ids: Sequence[int], batch: int, steps: int, started: Callable[[], None] = lambda: None
) -> float:
    """Seconds of `steps` greedy decode steps of `batch` requests, from the first token of the last of them on.

    Args:
        started: called when the prompts are done and decoding begins.

    Raises:
        InvalidArgument: the prompts do not fit one step, so that their first tokens would come in different steps.
    """
    limit = engine.runner.max_batch_tokens
    if batch * len(ids) > limit:
        raise InvalidArgument(
            f"{batch} prompts of {len(ids)} tokens do not fit one step of {limit}", hint="raise --max-batch-tokens"
        )
    waiting = batch
    start = 0.0
    for _ in engine.stream([list(ids)] * batch, SamplingParams(max_tokens=steps + 1, ignore_eos=True)):
        waiting -= 1
        if waiting == 0:
            started()
            start = time.perf_counter()
    return time.perf_counter() - start


def prefill_seconds(engine: Engine, ids: Sequence[int], started: Callable[[], None] = lambda: None) -> float:
    """Seconds until the first token after a prompt."""
    started()
    start = time.perf_counter()
    engine.generate(list(ids), SamplingParams(max_tokens=1, ignore_eos=True))
    return time.perf_counter() - start


def shares(engine: Engine, measure: Callable[[Callable[[], None]], float]) -> dict[str, float]:
    """Where the time goes: the share of each op, and of all that is outside ops under the name "".

    Args:
        measure: runs and times once; calls what it is given when the timed part begins.
    """
    timer = OpTimer(engine.device.ops)
    with timer.attached():
        total = measure(timer.clear)
    parts = {name: spent / total for name, spent in timer.seconds.items() if spent}
    return {"": 1 - sum(parts.values()), **dict(sorted(parts.items(), key=lambda part: -part[1]))}
