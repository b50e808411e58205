"""What the scheduler promises, in plain Python, and a harness that drives a scheduler and holds it to that.

::

    verb (add, schedule, execute, commit, fail, abort, finish, advance)
      ├──> the scheduler under test, its pool, a FakeRunner
      └──> the model: states, epochs, tokens known, who wrote which block      then check(): both agree

The model knows a scheduler by its plans, updates and ended requests only. What it cannot foresee, which decode is
preempted, it takes from the request's state and judges. Tokens are compared with `expected_output`, which saw no block.

Invariant: every complaint is an AssertionError (or the AccelError that the scheduler or the pool raised).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from fake_runner import FakeRunner, expected_output

from accel.cache.pages import KVLayout
from accel.cache.pool import BlockPool
from accel.errors import AccelError
from accel.runner.plan import LAST_SAMPLED, StepOutput, StepPlan
from accel.sampling_params import SamplingParams
from accel.scheduler.request import EndReason, Request, State
from accel.scheduler.scheduler import Scheduler, SchedulerConfig, Update

VOCAB = 97
ROOT = bytes(32)
STEP_FAILED = AccelError("the step failed", hint="a test did this")


@dataclass(eq=False)
class Life:
    """One stay in RUNNING."""

    slot: int
    planned: int
    in_flight: int = 0
    gained: int = 0
    #: Place in the request → block that this life writes there, until that block is committed.
    written: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class Track:
    """What the model knows of a request."""

    request: Request
    prompt: list[int]
    max_new: int
    expected: list[int]
    order: tuple[float, int]
    output: list[int] = field(default_factory=list)
    state: State = State.WAITING
    epoch: int = 0
    reason: EndReason | None = None
    life: Life | None = None
    prompt_done: bool = False
    preemptions: int = 0

    @property
    def known(self) -> list[int]:
        return self.prompt + self.output

    @property
    def preemptable(self) -> bool:
        life = self.life
        return life is not None and life.gained > 0 and len(self.known) - life.planned <= 1

    @property
    def whole(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Every token it can ever have."""
        return np.array(self.prompt + self.expected, np.int32)


@dataclass(frozen=True)
class Planned:
    """One row of a plan."""

    track: Track
    epoch: int
    begin: int
    end: int
    sample: bool
    blocks: tuple[int, ...]


class Harness:
    """A scheduler, a pool, a runner and the model of what they must do.

    Args:
        scheduler: the class under test; pool: instead of a native one.
        reach: look after each verb whether exactly the committed blocks are reachable by prefix.
        every: compare after each so many verbs; for long runs.
    """

    def __init__(
        self,
        *,
        blocks: int,
        block_size: int = 4,
        config: SchedulerConfig,
        scheduler: type[Scheduler] = Scheduler,
        pool: Any = None,
        eos: int | None = None,
        reach: bool = True,
        every: int = 1,
    ) -> None:
        self.now = 0.0
        self.block_size = block_size
        self.config = config
        self.pool = BlockPool(blocks, block_size) if pool is None else pool
        self.scheduler = scheduler(self.pool, KVLayout(1, 1, 1, block_size), config, clock=lambda: self.now)
        self.runner = FakeRunner(blocks, block_size, config.max_requests, vocab=VOCAB, eos=eos)
        self.reach = reach
        self.every = every
        self._verbs = 0
        self.tracks: dict[int, Track] = {}
        #: Plans that the runner has not got; outputs that the scheduler has not got; those it has got.
        self.launched: deque[StepPlan] = deque()
        self.outputs: list[StepOutput] = []
        self.taken: list[StepOutput] = []
        #: Steps in flight, in order, as the model sees them; outputs that came before those of earlier steps.
        self.steps: dict[int, list[Planned]] = {}
        self.late: dict[int, StepOutput] = {}
        #: Block → the tokens from position 0 to its end, where its K and V were committed and no step writes it since.
        self.committed: dict[int, tuple[int, ...]] = {}
        self.counts = dict.fromkeys(("stale", "duplicates", "preemptions", "generated", "failed"), 0)
        self.unreported: list[int] = []

    # --- verbs --------------------------------------------------------------------------------------------------------

    def add(
        self,
        prompt: Sequence[int],
        max_new: int,
        *,
        priority: int = 0,
        deadline: float | None = None,
        leader: Request | None = None,
        all_logits: bool = False,
        seed: int | None = None,
        params: SamplingParams | None = None,
    ) -> Track:
        number = len(self.tracks)
        seed = number if seed is None else seed
        params = SamplingParams(max_tokens=max_new) if params is None else replace(params, max_tokens=max_new)
        request = Request(
            number, np.array(prompt, np.int32), params, max_model_len=1 << 20, seed=seed, root=ROOT, priority=priority,
            deadline=deadline, leader=leader, all_logits=all_logits,
        )  # fmt: skip
        self.scheduler.add(request)
        expected = expected_output(prompt, seed, max_new, vocab=VOCAB, eos=self.runner.eos)
        key = self.now - priority * self.config.priority_seconds
        track = Track(request, list(prompt), max_new, expected, (key, number))
        self.tracks[number] = track
        self.check()
        return track

    def schedule(self) -> StepPlan | None:
        for track in self.live():
            if track.request.deadline is not None and track.request.deadline <= self.now:
                self._end(track, EndReason.DEADLINE)
        full = len(self.steps) > self.config.depth
        plan = self.scheduler.schedule()
        victims = self._see_preemptions()
        if plan is not None:
            assert not full, "planned a step beyond the depth"
            self._see_plan(plan, bool(victims))
            self.launched.append(plan)
        self._check_progress()
        self.check()
        return plan

    def execute(self) -> None:
        """Run the oldest step that was not run."""
        if self.launched:
            self.outputs.append(self.runner.execute(self.launched.popleft()))

    def commit(self, index: int = 0, *, no_number: bool = False) -> list[Update]:
        """Hand an output over; `no_number`: as if the logits of its rows had held none."""
        output = self.outputs.pop(index)
        if no_number:
            output = replace(output, token=np.full_like(output.token, -1))
        self.taken.append(output)
        self.late[output.step] = output
        wanted = self._take_late()
        updates = self.scheduler.commit(output)
        self._compare(updates, wanted)
        self.check()
        return updates

    def duplicate(self, index: int) -> None:
        """Hand over once more what was handed over."""
        self.counts["duplicates"] += 1
        assert self.scheduler.commit(self.taken[index]) == [], "an output counted twice"
        self.check()

    def fail(self, step: int) -> None:
        """A step in flight failed: before it ran, after, or after its output was there already."""
        self.launched = deque(plan for plan in self.launched if plan.step != step)
        self.outputs = [output for output in self.outputs if output.step != step]
        self.late.pop(step, None)
        self.counts["failed"] += 1
        for row in self.steps.pop(step):
            if self._alive(row):
                self._end(row.track, EndReason.ERROR)
        wanted = self._take_late()
        self._compare(self.scheduler.fail(step, STEP_FAILED), wanted)
        self.check()

    def abort(self, track: Track) -> None:
        ended = track.state in (State.FINISHED, State.ABORTED)
        assert self.scheduler.abort(track.request) is not ended
        if not ended:
            self._end(track, EndReason.ABORT)
        self.check()

    def finish(self, track: Track) -> None:
        """A stop string was seen in what it gave."""
        ended = track.state in (State.FINISHED, State.ABORTED)
        assert self.scheduler.finish(track.request, EndReason.STOP) is not ended
        if not ended:
            self._end(track, EndReason.STOP)
        self.check()

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def turn(self) -> StepPlan | None:
        """What an engine does: plan and launch, or take the oldest output."""
        plan = self.schedule()
        self.execute()
        if plan is None and self.outputs:
            self.commit()
        return plan

    def drain(self, limit: int = 3000) -> None:
        """Until nothing is left; then everything must be back."""
        for _ in range(limit):
            if self.scheduler.idle:
                break
            self.turn()
        assert self.scheduler.idle, f"no end within {limit} turns: {self.scheduler.stats()}, {self.live()}"
        self.reach, self.every = True, 1
        self.check()
        assert not self.steps
        assert not self.live(), "idle with live requests"
        stats = self.pool.stats()
        assert stats.free + stats.cached == stats.blocks, stats
        assert stats.evictable == stats.cached, stats
        assert (stats.tables, stats.steps, stats.leases) == (0, 0, 0), stats

    def live(self) -> list[Track]:
        return [track for track in self.tracks.values() if track.state in (State.WAITING, State.RUNNING)]

    # --- the model ----------------------------------------------------------------------------------------------------

    def _end(self, track: Track, reason: EndReason) -> None:
        finished = reason in (EndReason.EOS, EndReason.STOP, EndReason.LENGTH)
        self._leave(track)
        track.state, track.reason = State.FINISHED if finished else State.ABORTED, reason
        self.unreported.append(track.request.number)

    def _leave(self, track: Track) -> None:
        if track.state is State.RUNNING:
            track.epoch += 1
        track.life = None

    def _alive(self, row: Planned) -> bool:
        return row.track.state is State.RUNNING and row.track.epoch == row.epoch

    def _see_preemptions(self) -> list[Track]:
        victims = [
            track
            for track in self.tracks.values()
            if track.state is State.RUNNING and track.request.state is State.WAITING
        ]
        for track in victims:
            assert track.preemptable, f"preempted before it gave a token, or in its prompt: {track}"
            track.preemptions += 1
            assert track.preemptions <= len(track.output)
            self.counts["preemptions"] += 1
        for track in victims:
            self._leave(track)
            track.state = State.WAITING
        for victim in victims:
            worse = [other for other in self.live() if other.preemptable and other.order > victim.order]
            assert not worse, f"{victim} was preempted, {worse} were not"
        return victims

    def _see_plan(self, plan: StepPlan, preempted: bool) -> None:
        assert plan.num_tokens <= self.config.max_batch_tokens, "more tokens than the budget"
        numbers = plan.request.tolist()
        assert len(set(numbers)) == len(numbers)
        rows = []
        for index, number in enumerate(numbers):
            row = self._see_row(plan, index, self.tracks[number], preempted)
            rows.append(row)
        self.steps[plan.step] = rows
        lives = [track for track in self.tracks.values() if track.life is not None]
        slots = [track.life.slot for track in lives if track.life is not None]
        assert len(set(slots)) == len(slots) <= self.config.max_requests, "a slot has two requests"
        for row in rows:
            self._see_writes(row, lives)
        kinds = [row.end - row.begin > 1 for row in rows]
        first_life = [row.track.life is not None and row.track.life.gained == 0 for row in rows]
        assert all(kinds[i] or first_life[i] for i in range(len(rows)) if True in kinds[:i]), "a decode after a chunk"

    def _see_row(self, plan: StepPlan, index: int, track: Track, preempted: bool) -> Planned:
        first, last = plan.query_start[index : index + 2].tolist()
        begin = int(plan.computed[index])
        end = begin + last - first
        known = track.known
        assert end > begin, "a row that computes nothing"
        assert plan.epoch[index] == track.epoch, "a plan for another life"
        if track.state is State.WAITING:
            assert not preempted, "admitted in a step that had to preempt"
            assert begin % self.block_size == 0
            assert begin < len(known), "everything is a hit: nothing gives the next token"
            wants_all = track.request.all_logits or track.request.params.prompt_logprobs is not None
            assert begin == 0 or not wants_all or track.prompt_done, "a hit where all of the prompt is wanted"
            track.state, track.life = State.RUNNING, Life(int(plan.slot[index]), begin)
        life = track.life
        assert life is not None, f"a row for {track}"
        assert (life.slot, life.planned) == (int(plan.slot[index]), begin)
        total = len(known) + life.in_flight
        ids = plan.tokens[first:last].tolist()
        assert ids == (known[begin:end] if end <= len(known) else [LAST_SAMPLED]), "other tokens than the request's"
        assert end <= total
        assert bool(plan.sample[index]) is (end == total)
        assert plan.generated[index] == total - len(track.prompt) < track.max_new, "more than it may generate"
        blocks = tuple(plan.block_tables[index, : -(-end // self.block_size)].tolist())
        for i in range(-(-begin // self.block_size)):
            prefix = tuple(known[: (i + 1) * self.block_size])
            mine = life.written.get(i) == blocks[i]
            shared = (i + 1) * self.block_size <= begin and self.committed.get(blocks[i]) == prefix
            assert mine or shared, f"block {blocks[i]} at {i} is neither its own nor a committed one: {track}"
        life.planned = end
        life.in_flight += end == total
        return Planned(track, track.epoch, begin, end, end == total, blocks)

    def _see_writes(self, row: Planned, lives: list[Track]) -> None:
        """What a step writes belongs to that life alone, steps in flight included."""
        assert row.track.life is not None
        for i in range(row.begin // self.block_size, len(row.blocks)):
            block = row.blocks[i]
            for other in lives:
                named = other.life is not None and other is not row.track and block in other.life.written.values()
                assert not named, f"block {block} has two requests"
            for rows in self.steps.values():
                for held in rows:
                    same = held.track is row.track and held.epoch == row.epoch
                    assert same or block not in held.blocks, f"block {block} was given away under a step"
            self.committed.pop(block, None)
            row.track.life.written[i] = block

    def _take_late(self) -> list[tuple[int, int | None]]:
        """Apply the outputs whose turn it is; returns the updates that must come of it."""
        wanted: list[tuple[int, int | None]] = []
        while self.steps and (oldest := next(iter(self.steps))) in self.late:
            output = self.late.pop(oldest)
            for row, token in zip(self.steps.pop(oldest), output.token.tolist(), strict=True):
                wanted += self._take_row(row, token)
        return wanted

    def _take_row(self, row: Planned, token: int) -> list[tuple[int, int | None]]:
        track = row.track
        if not self._alive(row):
            self.counts["stale"] += row.sample
            return []
        if row.sample and token < 0:
            self._end(track, EndReason.ERROR)
            return []
        assert track.life is not None
        if row.sample:
            track.output.append(token)
            track.life.in_flight -= 1
            track.life.gained += 1
            self.counts["generated"] += 1
        for i in range(row.end // self.block_size):
            self.committed[row.blocks[i]] = tuple(track.known[: (i + 1) * self.block_size])
            track.life.written.pop(i, None)
        track.prompt_done = track.prompt_done or row.end >= len(track.prompt)
        if row.sample and token == self.runner.eos:
            self._end(track, EndReason.EOS)
        elif row.sample and len(track.output) == track.max_new:
            self._end(track, EndReason.LENGTH)
        return [(track.request.number, token if row.sample else None)]

    # --- agreement ----------------------------------------------------------------------------------------------------

    def _compare(self, updates: list[Update], wanted: list[tuple[int, int | None]]) -> None:
        assert [(update.request.number, update.token) for update in updates] == wanted

    def check(self) -> None:
        """The scheduler is where the model says."""
        self._verbs += 1
        if self._verbs % self.every:
            return
        for track in self.tracks.values():
            request = track.request
            assert (request.state, request.epoch, request.reason) == (track.state, track.epoch, track.reason), track
            assert request.output == track.output, track
            assert track.output == track.expected[: len(track.output)], f"other tokens than alone: {track}"
        ended = [request.number for request in self.scheduler.drain_ended()]
        assert sorted(ended) == sorted(self.unreported), "each request ends once"
        self.unreported.clear()
        self._check_stats()
        self._check_pool()

    def _check_progress(self) -> None:
        """Blocks that only a step holds may be waited for; with none in flight somebody can always go on."""
        assert self.steps or not self.live(), f"nothing is in flight, and nobody goes on: {self.live()}"

    def _check_stats(self) -> None:
        stats = self.scheduler.stats()
        states = [track.state for track in self.tracks.values()]
        assert (stats.waiting, stats.running) == (states.count(State.WAITING), states.count(State.RUNNING))
        assert stats.steps_in_flight == len(self.steps) == self.scheduler.steps_in_flight <= self.config.depth + 1
        counters = stats.counters
        assert self.counts == {
            "stale": counters.stale_outputs,
            "duplicates": counters.duplicate_outputs,
            "preemptions": counters.preemptions,
            "generated": counters.generated_tokens,
            "failed": counters.failed_steps,
        }
        reasons = [track.reason for track in self.tracks.values()]
        assert counters.ended == {reason: reasons.count(reason) for reason in EndReason}

    def _check_pool(self) -> None:
        self.pool.check()
        stats = self.pool.stats()
        assert stats.owned + stats.cached + stats.free == stats.blocks, stats
        assert stats.tables == sum(track.state is State.RUNNING for track in self.tracks.values())
        assert stats.steps == len(self.steps)
        size = self.block_size
        for block, prefix in self.committed.items():
            cells = self.runner.cells[block * size : (block + 1) * size].tolist()
            assert cells == list(prefix[-size:]), f"block {block} holds {cells}, not the end of {prefix}"
        if self.reach:
            found = reachable(self.pool, self.tracks.values(), size)
            assert len(found) == stats.committed + stats.cached, "a committed block that no prefix of a request reaches"


def reachable(pool: Any, tracks: Any, size: int) -> set[tuple[int, ...]]:
    """The prefixes in the index, looked up along all that the requests can ever have."""
    found: set[tuple[int, ...]] = set()
    for track in tracks:
        whole = track.whole
        count = pool.match(ROOT, whole, len(whole) // size)
        found |= {tuple(whole[: (i + 1) * size].tolist()) for i in range(count)}
    return found
