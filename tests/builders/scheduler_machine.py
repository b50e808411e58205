"""Two drivers of the scheduler's harness (scheduler_model.py): a hypothesis machine, and a seeded walk that is quicker.

Invariant: both use so few blocks and so alike prompts that hits, preemptions, two requests with one block's tokens and
stale outputs are common.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from scheduler_model import Harness, Track

from accel.errors import Overloaded
from accel.scheduler.scheduler import MAX_DEPTH, Scheduler, SchedulerConfig

BLOCK_SIZE = 2
EOS = 5
#: All prompts begin like one of these.
STEMS = ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 9, 9, 9, 9, 9])


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of calls, outputs late, out of order and twice."""

    harness: Harness

    @initialize(
        blocks=st.sampled_from([7, 8, 9, 12]),
        depth=st.integers(0, MAX_DEPTH),
        budget=st.sampled_from([3, 5, 16]),
        slots=st.sampled_from([2, 4]),
        reserve=st.sampled_from([0, 0, 2, 8]),
        lengths=st.lists(st.integers(1, 7), min_size=3, max_size=5),
        stem=st.sampled_from(STEMS),
        turns=st.integers(0, 8),
    )
    def start(
        self,
        blocks: int,
        depth: int,
        budget: int,
        slots: int,
        reserve: int,
        lengths: list[int],
        stem: list[int],
        turns: int,
    ) -> None:
        """Some requests run already, or most examples would end before a block is short."""
        config = SchedulerConfig(budget, slots, depth, output_reserve=reserve, priority_seconds=1.0, max_waiting=8)
        self.harness = Harness(blocks=blocks, block_size=BLOCK_SIZE, config=config, eos=EOS)
        for number, length in enumerate(lengths):
            self.harness.add([*stem[:length], number], 6)
        self.turns(turns)

    @rule(
        stem=st.sampled_from(STEMS),
        length=st.integers(1, 9),
        tail=st.lists(st.integers(0, 1), max_size=2),
        max_new=st.integers(1, 5),
        priority=st.integers(-2, 2),
        deadline=st.none() | st.integers(0, 9),
        choices=st.sampled_from([1, 1, 1, 3]),
        all_logits=st.sampled_from([False, False, False, True]),
    )
    def add(
        self, stem: list[int], length: int, tail: list[int], choices: int, deadline: int | None, **more: Any
    ) -> None:
        prompt = [*stem[:length], *tail]
        more["max_new"] = min(more["max_new"], self.harness.pool.blocks * BLOCK_SIZE + 1 - len(prompt))
        more["deadline"] = None if deadline is None else self.harness.now + deadline
        leader = None
        for _ in range(choices):
            # More than may: those that were preempted wait as well.
            full = self.harness.scheduler.stats().waiting >= self.harness.config.max_waiting
            if full and deadline != 0:  # one whose time is over takes no room
                with pytest.raises(Overloaded):
                    self.harness.add(prompt, leader=leader, **more)
                return
            track = self.harness.add(prompt, leader=leader, **more)
            leader = leader or track.request

    @rule()
    def schedule(self) -> None:
        self.harness.schedule()

    @rule(count=st.integers(1, 4))
    def execute(self, count: int) -> None:
        for _ in range(count):
            self.harness.execute()

    @rule(count=st.integers(1, 12))
    def turns(self, count: int) -> None:
        """Bring it forward, or most runs would not get far."""
        for _ in range(count):
            self.harness.turn()

    @precondition(lambda self: self.harness.outputs)
    @rule(data=st.data(), no_number=st.sampled_from([False] * 15 + [True]))
    def commit(self, data: st.DataObject, no_number: bool) -> None:
        last = len(self.harness.outputs) - 1
        self.harness.commit(data.draw(st.integers(0, last)), no_number=no_number)

    @precondition(lambda self: self.harness.taken)
    @rule(data=st.data())
    def duplicate(self, data: st.DataObject) -> None:
        self.harness.duplicate(data.draw(st.integers(0, len(self.harness.taken) - 1)))

    @precondition(lambda self: self.harness.steps)
    @rule(data=st.data(), often=st.integers(0, 2))
    def fail(self, data: st.DataObject, often: int) -> None:
        if not often:
            self.harness.fail(data.draw(st.sampled_from(list(self.harness.steps))))

    def some(self, data: st.DataObject) -> Track:
        return data.draw(st.sampled_from(list(self.harness.tracks.values())))

    @rule(data=st.data(), often=st.integers(0, 2))
    def abort(self, data: st.DataObject, often: int) -> None:
        if not often:
            self.harness.abort(self.some(data))

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        with_output = [track for track in self.harness.tracks.values() if track.output]
        live = [track for track in with_output if track in self.harness.live()]
        if with_output:
            self.harness.finish(data.draw(st.sampled_from(live or with_output)))

    @rule(seconds=st.integers(0, 4))
    def advance(self, seconds: int) -> None:
        self.harness.advance(seconds)

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.drain()


def drive(examples: int, steps: int) -> None:
    """Run the machine; raises what it found."""
    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(SchedulerMachine, settings=options)


def walk(
    seed: int,
    *,
    scheduler: type[Scheduler] = Scheduler,
    pool: Callable[[int, int], Any] | None = None,
    requests: int = 14,
    harness: type[Harness] = Harness,
) -> Harness:
    """A random run from start to end; `pool` makes one of (blocks, block_size). Returns the drained harness."""
    rng = random.Random(seed)
    blocks = rng.choice([8, 10, 12, 14])
    config = SchedulerConfig(
        max_batch_tokens=rng.choice([3, 6, 24]),
        max_requests=rng.choice([2, 3, 5]),
        depth=rng.randint(0, MAX_DEPTH),
        output_reserve=rng.choice([0, 0, 2, 8]),
        priority_seconds=1.0,
    )
    made = pool(blocks, BLOCK_SIZE) if pool else None
    h = harness(blocks=blocks, block_size=BLOCK_SIZE, config=config, scheduler=scheduler, pool=made, eos=EOS)
    late = rng.random() < 0.5
    leader: Track | None = None
    while requests or not h.scheduler.idle:
        if requests and rng.random() < 0.3:
            requests -= 1
            prompt = [*rng.choice(STEMS)[: rng.randint(1, 9)], *(rng.randrange(2) for _ in range(rng.randrange(3)))]
            same = leader is not None and rng.random() < 0.2
            if same and leader is not None:
                prompt = leader.prompt
            until = h.now + rng.randint(5, 40) if rng.random() < 0.1 else None
            track = h.add(
                prompt,
                rng.randint(1, min(8, blocks * BLOCK_SIZE + 1 - len(prompt))),
                priority=rng.randint(-2, 2),
                deadline=until,
                leader=leader.request if same and leader is not None else None,
            )
            leader = leader if same else track
        _one_turn(h, rng, late)
        assert h.scheduler.stats().counters.steps < 2000, f"no end: {h.live()}"
    h.drain()
    return h


def _one_turn(h: Harness, rng: random.Random, late: bool) -> None:
    h.advance(rng.choice([0, 0, 1]))
    plan = h.schedule()
    if rng.random() < 0.8 or plan is None:
        while h.launched:
            h.execute()
    if h.outputs and (plan is None or rng.random() < 0.5):
        h.commit(rng.randrange(len(h.outputs)) if late else 0, no_number=rng.random() < 0.01)
    chance = rng.random()
    live = h.live()
    if chance < 0.03 and live:
        h.abort(rng.choice(live))
    elif chance < 0.06 and live:
        track = rng.choice(live)
        if track.output:
            h.finish(track)
    elif chance < 0.08 and h.steps:
        h.fail(rng.choice(list(h.steps)))
    elif chance < 0.11 and h.taken:
        h.duplicate(rng.randrange(len(h.taken)))
