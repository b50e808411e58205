"""2,000 requests of all sorts through 64 blocks.

Bounds, of which each run is held to:

* Preemptions of a request: no more than tokens it generated, because every life gives one (the harness looks at each).
  Of all together: no more than requests, because a preemption doubles the reserve that admissions leave.
* Waiting for the first turn: requests are admitted in their order, so whoever has rows in a step while a request waits
  either ran when it arrived or stands before it. A step computes at least one of their tokens, and a life no more than
  the longest sequence, so it waits for no more steps than the sum of (1 + preemptions) * longest over those.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from scheduler_model import Harness, Track

from accel.runner.plan import StepPlan
from accel.scheduler.request import EndReason, State
from accel.scheduler.scheduler import SchedulerConfig

BLOCKS, TURN_SECONDS = 64, 0.01


@dataclass
class Wait:
    """A request that has not been admitted yet: steps since it arrived, and who may have a turn before it."""

    steps: int = 0
    ahead: set[int] = field(default_factory=set)


class Soak:
    def __init__(self, depth: int, requests: int) -> None:
        self.requests = requests
        self.rng = random.Random(depth)
        config = SchedulerConfig(
            max_batch_tokens=48,
            max_requests=12,
            depth=depth,
            output_reserve=4,
            priority_seconds=0.5,
        )
        self.h = Harness(blocks=BLOCKS, config=config, reach=False, every=16 if requests <= 500 else 128)
        self.stems = [[self.rng.randrange(97) for _ in range(40)] for _ in range(4)]
        self.waits: dict[int, Wait] = {}
        self.waited: dict[int, Wait] = {}
        self.doomed: list[tuple[float, Track]] = []

    def run(self) -> None:
        h, rng = self.h, self.rng
        while len(h.tracks) < self.requests or not h.scheduler.idle:
            if len(h.tracks) < self.requests and rng.random() < 0.06:
                for _ in range(min(rng.choice([1, 1, 2, 12]), self.requests - len(h.tracks))):
                    self.add()
            h.advance(TURN_SECONDS)
            for due, track in [item for item in self.doomed if item[0] <= h.now]:
                self.doomed.remove((due, track))
                h.abort(track)
            self.turn()
        h.drain()

    def add(self) -> None:
        rng, h = self.rng, self.h
        prompt = rng.choice(self.stems)[: rng.randint(1, 40)] + [rng.randrange(97) for _ in range(rng.randrange(4))]
        running = {track.request.number for track in h.live() if track.state is State.RUNNING}
        track = h.add(
            prompt,
            rng.randint(1, 40),
            priority=rng.randint(-2, 2),
            deadline=h.now + rng.uniform(0, 4) if rng.random() < 0.05 else None,
        )
        self.waits[track.request.number] = Wait(ahead=running)
        if rng.random() < 0.1:
            self.doomed.append((h.now + rng.uniform(0, 2), track))

    def turn(self) -> None:
        h = self.h
        lives = {track.request.number for track in h.live() if track.state is State.RUNNING}
        plan = h.schedule()
        if plan is not None:
            self.see(plan, lives)
        if plan is None or self.rng.random() < 0.7:
            while h.launched:
                h.execute()
        if h.outputs and (plan is None or self.rng.random() < 0.5):
            h.commit(self.rng.randrange(len(h.outputs)))

    def see(self, plan: StepPlan, lives: set[int]) -> None:
        """Nobody is admitted before one who stands before it; who waits counts the step."""
        tracks = self.h.tracks
        rows = set(plan.request.tolist())
        admitted = [tracks[number].order for number in rows - lives]
        waiting = [track.order for track in self.h.live() if track.state is State.WAITING]
        assert not admitted or not waiting or max(admitted) < min(waiting), "somebody was passed"
        for number in list(self.waits):
            wait = self.waits[number]
            if tracks[number].state is not State.WAITING:
                self.waited[number] = self.waits.pop(number)
                continue
            wait.steps += 1
            before = {other for other in rows if tracks[other].order < tracks[number].order}
            assert rows <= before | wait.ahead, "somebody runs who came later and stands behind"
            wait.ahead |= before


@pytest.mark.parametrize(("depth", "requests"), [(0, 500), (1, 500), (2, 2000), (3, 500)])
def test_all_sorts_of_requests_end_as_they_should_within_their_bounds(depth: int, requests: int) -> None:
    soak = Soak(depth, requests)
    soak.run()
    tracks = soak.h.tracks
    assert len(tracks) == requests
    for track in tracks.values():
        cut = track.reason in (EndReason.ABORT, EndReason.DEADLINE)
        assert cut or (track.reason is EndReason.LENGTH and track.request.output == track.expected), track
    for number, wait in soak.waited.items():
        work = sum((1 + tracks[other].preemptions) * tracks[other].request.longest for other in wait.ahead)
        assert wait.steps <= work, f"{tracks[number]} waited for {wait.steps} steps, of {work}"
    stats = soak.h.scheduler.stats()
    assert (stats.waiting, stats.running) == (0, 0)
    counters = stats.counters
    assert 0 < counters.preemptions <= requests
    assert min(counters.hit_tokens, counters.ended[EndReason.ABORT], counters.ended[EndReason.DEADLINE]) > 0
    pool = soak.h.pool.stats()
    assert pool.free + pool.cached == BLOCKS
