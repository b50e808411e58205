"""What a scheduler counts. Gauges are read when they are asked for, counters only rise."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from accel.scheduler.request import EndReason

__all__ = ["Counters", "SchedulerStats"]


@dataclass
class Counters:
    """Totals since the scheduler was made.

    Args:
        steps, batch_tokens: steps planned, and the tokens they computed.
        prompt_tokens, hit_tokens: of admitted requests, counted at the first admission only.
        preemptions: and `recomputed_tokens`, computed again because of one.
        stale_outputs: tokens of an earlier life of their request, dropped.
        duplicate_outputs: outputs of steps that had been committed, or never planned, dropped.
        failed_steps: steps that raised.
        ended: requests that ended, by reason.
    """

    steps: int = 0
    batch_tokens: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    stale_outputs: int = 0
    duplicate_outputs: int = 0
    failed_steps: int = 0
    ended: dict[EndReason, int] = field(default_factory=lambda: dict.fromkeys(EndReason, 0))

    def copy(self) -> Counters:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Counters(**{**values, "ended": dict(self.ended)})


@dataclass(frozen=True)
class SchedulerStats:
    """One coherent look at a scheduler: requests by state, steps in flight, the output reserve in tokens, totals."""

    waiting: int
    running: int
    steps_in_flight: int
    output_reserve: int
    counters: Counters
