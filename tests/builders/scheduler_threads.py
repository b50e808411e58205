"""One scheduler, three threads: one plans and runs steps, one commits outputs, one adds and aborts requests.

::

    planner    schedule ─> FakeRunner.execute ─> outputs
    committer  outputs, in any order and some twice ─> commit ─> stop strings: finish
    visitor    add, abort
                  │
                  └── each says when it stands at the scheduler's door; inside, verbs of the pool hand over there

A verb of the pool that hands over waits until another thread stands at the door, or until all others rest: calls meet
where it matters, and nothing sleeps. Which verbs do, and what each thread does, follows from a seed; how the threads
then interleave does not, so what is checked afterwards holds for every order.

Invariant: no thread waits while it holds what another needs to come to the door. A wait that does not end is an
AssertionError.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from fake_runner import FakeRunner, expected_output
from scheduler_machine import BLOCK_SIZE, STEMS
from scheduler_model import ROOT, VOCAB

from accel.cache.pages import KVLayout
from accel.cache.pool import BlockPool
from accel.runner.plan import StepOutput
from accel.sampling_params import SamplingParams
from accel.scheduler.request import EndReason, Request
from accel.scheduler.scheduler import MAX_DEPTH, Scheduler, SchedulerConfig

T = TypeVar("T")

#: A wait of so many seconds has no end.
GUARD = 20.0


class Meeting:
    """Where the threads are, and what has happened."""

    def __init__(self, seed: int, names: tuple[str, ...]) -> None:
        self.changed = threading.Condition()
        self._rng = random.Random(seed)
        self._where = dict.fromkeys(names, "out")
        self._lock: threading.Lock | None = None
        self._calls = dict.fromkeys(names, 0)
        self._until: dict[str, Callable[[], bool]] = {}
        self.handovers = 0
        self.failed: list[BaseException] = []

    def watch(self, scheduler: Scheduler) -> None:
        self._lock = scheduler._lock

    def call(self, name: str, verb: Callable[[], T]) -> T:
        """Call the scheduler from the thread `name`."""
        self._is(name, "door")
        try:
            return verb()
        finally:
            with self.changed:
                self._calls[name] += 1
            self._is(name, "out")

    def rest(self, name: str, until: Callable[[], bool]) -> None:
        """Wait for what another thread does. AssertionError when all rest, and none of them will ever go on."""
        with self.changed:
            self._until[name] = until
            self._is(name, "rests")
            self._wait(lambda: until() or self._nobody_goes_on())
            assert self.failed or until(), "all threads rest for ever"
            self._is(name, "out")

    def gone(self, name: str) -> None:
        self._is(name, "gone")

    def _nobody_goes_on(self) -> bool:
        resting = [name for name, where in self._where.items() if where == "rests"]
        return self.others_rest("") and not any(self._until[name]() for name in resting)

    def calls_of_others(self, name: str) -> int:
        """How often the other threads have called the scheduler."""
        return sum(calls for other, calls in self._calls.items() if other != name)

    def others_rest(self, name: str) -> bool:
        return all(where in ("rests", "gone") for other, where in self._where.items() if other != name)

    def hand_over(self) -> None:
        """Inside the scheduler: let another thread come to its door, sometimes."""
        name = threading.current_thread().name
        if name not in self._where:
            return
        with self.changed:
            if self._rng.random() < 0.5:
                return
            self.handovers += 1
            calls = self.calls_of_others(name)
        inside = self._lock is not None and self._lock.locked()

        def met() -> bool:
            # Where the lock is not held, which is a fault, the other one shall come through as well.
            others = any(where == "door" for other, where in self._where.items() if other != name)
            return self.others_rest(name) or (others if inside else self.calls_of_others(name) > calls)

        self._wait(met)

    def _is(self, name: str, where: str) -> None:
        with self.changed:
            self._where[name] = where
            self.changed.notify_all()

    def _wait(self, until: Callable[[], bool]) -> None:
        with self.changed:
            ended = self.changed.wait_for(lambda: bool(self.failed) or until(), GUARD)
            assert ended, f"stuck: {self._where}"


class HandoverPool:
    """A pool whose verbs hand over before they do anything and after."""

    def __init__(self, pool: Any, meeting: Meeting) -> None:
        self._pool = pool
        self.meeting = meeting

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._pool, name)
        if name not in ("open", "grow", "begin_step", "commit_step", "close_table"):
            return found

        def verb(*args: Any, **how: Any) -> Any:
            self.meeting.hand_over()
            result = found(*args, **how)
            self.meeting.hand_over()
            return result

        return verb


class Race:
    """A run of the three threads; `run` raises what was found wrong."""

    def __init__(self, seed: int, scheduler: type[Scheduler] = Scheduler, pool: Any = BlockPool) -> None:
        self.rng = random.Random(seed)
        blocks = self.rng.choice([9, 11, 14])
        self.meeting = Meeting(seed, ("planner", "committer", "visitor"))
        self.pool = HandoverPool(pool(blocks, BLOCK_SIZE), self.meeting)
        config = SchedulerConfig(
            max_batch_tokens=self.rng.choice([3, 6, 24]),
            max_requests=self.rng.choice([3, 5]),
            depth=self.rng.randint(0, MAX_DEPTH),
            output_reserve=0,
        )
        self.scheduler = scheduler(self.pool, KVLayout(1, 1, 1, BLOCK_SIZE), config, clock=lambda: 0.0)  # type: ignore[arg-type]
        self.meeting.watch(self.scheduler)
        self.runner = FakeRunner(blocks, BLOCK_SIZE, config.max_requests, vocab=VOCAB)
        self.requests = [self._request(number, blocks) for number in range(10)]
        self.outputs: list[StepOutput] = []
        self.taken: list[StepOutput] = []
        self.commits = 0
        self.tokens: dict[int, list[int]] = {request.number: [] for request in self.requests}
        self.visited = False
        self.done = False

    def _request(self, number: int, blocks: int) -> Request:
        rng = self.rng
        prompt = [*rng.choice(STEMS)[: rng.randint(1, 9)], *(rng.randrange(2) for _ in range(rng.randrange(3)))]
        most = min(8, blocks * BLOCK_SIZE + 1 - len(prompt))
        params = SamplingParams(max_tokens=rng.randint(1, most))
        return Request(number, np.array(prompt, np.int32), params, max_model_len=1000, seed=number, root=ROOT)

    def run(self) -> None:
        bodies = {"planner": self._plan, "committer": self._commit, "visitor": self._visit}
        threads = [threading.Thread(target=self._guarded, args=item, name=item[0]) for item in bodies.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * GUARD)
            assert not thread.is_alive(), f"{thread.name} does not end"
        if self.meeting.failed:
            raise self.meeting.failed[0]
        self._check()

    def _guarded(self, name: str, body: Callable[[random.Random], None]) -> None:
        try:
            body(random.Random(f"{name}{self.rng.random()}"))
        except BaseException as error:  # told to whoever waits, raised by run()
            self.meeting.failed.append(error)
        finally:
            self.meeting.gone(name)

    # --- the threads --------------------------------------------------------------------------------------------------

    def _plan(self, rng: random.Random) -> None:
        meeting = self.meeting
        while not meeting.failed:
            visited, seen = self.visited, meeting.calls_of_others("planner")
            plan = meeting.call("planner", self.scheduler.schedule)
            if plan is not None:
                output = self.runner.execute(plan)
                with meeting.changed:
                    self.outputs.append(output)
                    meeting.changed.notify_all()
            elif visited and meeting.call("planner", lambda: self.scheduler.idle):
                break
            else:
                meeting.rest(
                    "planner",
                    lambda seen=seen, visited=visited: (  # type: ignore[misc]
                        meeting.calls_of_others("planner") > seen or self.visited > visited
                    ),
                )
        self.done = True

    def _commit(self, rng: random.Random) -> None:
        meeting = self.meeting
        while not meeting.failed:
            meeting.rest("committer", lambda: bool(self.outputs) or self.done)
            if not self.outputs:
                break
            with meeting.changed:
                output = self.outputs.pop(rng.randrange(len(self.outputs)))
            updates = meeting.call("committer", lambda output=output: self.scheduler.commit(output))  # type: ignore[misc]
            self.taken.append(output)
            for update in updates:
                if update.token is not None:
                    self.tokens[update.request.number].append(update.token)
                    if rng.random() < 0.03:
                        request = update.request
                        meeting.call("committer", lambda it=request: self.scheduler.finish(it, EndReason.STOP))  # type: ignore[misc]
            with meeting.changed:
                self.commits += 1
                meeting.changed.notify_all()
            if rng.random() < 0.2:
                again = rng.choice(self.taken)
                assert meeting.call("committer", lambda again=again: self.scheduler.commit(again)) == []  # type: ignore[misc]

    def _visit(self, rng: random.Random) -> None:
        meeting = self.meeting
        for number, request in enumerate(self.requests):
            meeting.call("visitor", lambda it=request: self.scheduler.add(it))  # type: ignore[misc]
            if rng.random() < 0.4:
                due = self.commits + rng.randrange(4)
                meeting.rest("visitor", lambda due=due: self.commits >= due or meeting.others_rest("visitor"))  # type: ignore[misc]
            if rng.random() < 0.3:
                victim = self.requests[rng.randint(0, number)]
                meeting.call("visitor", lambda it=victim: self.scheduler.abort(it))  # type: ignore[misc]
        with meeting.changed:
            self.visited = True
            meeting.changed.notify_all()

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self.pool.check()
        ended = [request.number for request in self.scheduler.drain_ended()]
        assert sorted(ended) == [request.number for request in self.requests], "each request ends once"
        wholes = []
        for request in self.requests:
            prompt = request.tokens[: request.prompt_len].tolist()
            expected = expected_output(prompt, request.seed, request.max_new_tokens, vocab=VOCAB)
            wholes.append(np.array(prompt + expected, np.int32))
            cut = request.reason in (EndReason.ABORT, EndReason.STOP)
            assert request.ended
            assert cut or request.reason is EndReason.LENGTH, request.reason
            assert request.output == (expected[: request.generated] if cut else expected), "other tokens than alone"
            assert request.output == self.tokens[request.number], "a token got lost, or was never told"
        stats = self.scheduler.stats()
        assert (stats.waiting, stats.running, stats.steps_in_flight) == (0, 0, 0)
        blocks = self.pool.stats()
        assert blocks.free + blocks.cached == blocks.blocks, blocks
        assert (blocks.tables, blocks.steps) == (0, 0)
        self._check_cached(wholes, blocks.cached)

    def _check_cached(self, wholes: list[Any], cached: int) -> None:
        """What is in the index begins what some request can have, and its cells hold those tokens."""
        found = set()
        for whole in wholes:
            count = self.pool.match(ROOT, whole, len(whole) // BLOCK_SIZE)
            opened = self.pool.open(ROOT, whole[: count * BLOCK_SIZE], limit=count, keep_free=0)
            assert opened is not None
            assert opened[1] == count * BLOCK_SIZE
            for i, block in enumerate((self.pool.table_blocks(opened[0]) & 0xFFFFFFFF).tolist()):
                cells = self.runner.cells[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE]
                assert cells.tolist() == whole[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE].tolist(), (
                    "a stale block is cached"
                )
                found.add(tuple(whole[: (i + 1) * BLOCK_SIZE].tolist()))
            self.pool.close_table(opened[0])
        assert len(found) == cached, "something is cached that no request can have"
