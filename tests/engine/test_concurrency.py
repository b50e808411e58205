"""Threads and tasks over one engine: each gets its own tokens, and whatever leaves, leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from accel import Engine, SamplingParams
from accel.errors import EngineClosed, InvalidRequest, Overloaded
from accel.scheduler.request import EndReason

LONG = SamplingParams(max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(max_tokens=6, ignore_eos=True)


class Turnstile:
    """Holds an engine's steps: each `allow` lets one through."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._permits = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)
        execute = engine.runner.execute

        def held(plan: object) -> object:
            self.arrived.release()
            if not self._permits.acquire(timeout=30):
                raise AssertionError("a step was never let through")
            return execute(plan)  # type: ignore[arg-type]

        monkeypatch.setattr(engine.runner, "execute", held)

    def allow(self, steps: int = 1) -> None:
        for _ in range(steps):
            self._permits.release()


def nothing_left(engine: Engine) -> None:
    engine.wait_idle(20)
    stats = engine.scheduler.pool.stats()
    assert (stats.owned, stats.tables, stats.steps) == (0, 0, 0)
    assert stats.free + stats.cached == stats.blocks


def test_threads_and_tasks_get_what_they_get_alone(engine_of: Callable[..., Engine]) -> None:
    prompts = [[n, n + 1, n + 2] * 6 for n in range(5, 21)]
    params = [SamplingParams(max_tokens=10, temperature=0.9, seed=n, ignore_eos=True) for n in range(16)]
    alone = engine_of()
    wanted = [alone.generate(prompt, p)[0].token_ids for prompt, p in zip(prompts, params, strict=True)]
    engine = engine_of(num_blocks=20, max_requests=5, output_reserve=0)
    results: dict[int, list[int | None]] = {}

    def follow(index: int) -> None:
        results[index] = [token.token_id for token in engine.stream(prompts[index], params[index])]

    async def follow_all(indices: range) -> None:
        async def one(index: int) -> None:
            results[index] = [token.token_id async for token in engine.stream(prompts[index], params[index])]

        await asyncio.gather(*(one(index) for index in indices))

    threads = [threading.Thread(target=follow, args=(index,)) for index in range(8)]
    threads.append(threading.Thread(target=lambda: asyncio.run(follow_all(range(8, 16)))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [results[index] for index in range(16)] == wanted
    nothing_left(engine)


def test_abort_by_id_ends_all_requests_of_the_call_and_gives_what_there_is(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(max_requests=1)
    gate = Turnstile(engine, monkeypatch)
    stream = engine.stream([[5], [6], [7]], LONG, request_id="mine")
    gate.allow(2)
    assert next(stream).token_id is not None
    assert engine.abort("mine")
    gate.allow(500)
    outputs = [token.output for token in stream if token.output]
    assert sorted(output.index for output in outputs) == [0, 1, 2]
    assert {output.finish_reason for output in outputs} == {"abort"}
    assert {output.request_id for output in outputs} == {"mine"}
    assert not engine.abort("mine")
    assert not engine.abort("never was")
    nothing_left(engine)
    assert engine.scheduler.stats().counters.ended[EndReason.ABORT] == 3


def test_a_request_id_in_use_is_refused_and_free_again_afterwards(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    stream = engine.stream([5], LONG, request_id="mine")
    with pytest.raises(InvalidRequest, match="'mine' is in use"):
        engine.stream([5], SHORT, request_id="mine")
    stream.close()
    engine.wait_idle(20)
    assert engine.generate([5], SHORT, request_id="mine")[0].request_id == "mine"


def test_a_stream_that_is_forgotten_aborts_its_requests(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    stream = engine.stream([5], LONG)
    next(stream)
    del stream
    gc.collect()
    never_started = engine.stream([6], LONG)
    del never_started
    gc.collect()
    nothing_left(engine)
    assert engine.scheduler.stats().counters.ended[EndReason.ABORT] == 2


def test_cancelling_a_task_aborts_its_requests(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of()
    gate = Turnstile(engine, monkeypatch)

    async def main() -> None:
        task = asyncio.ensure_future(engine.generate_async([[5], [6]], LONG))
        await asyncio.get_running_loop().run_in_executor(None, gate.arrived.acquire)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    gate.allow(500)
    nothing_left(engine)
    assert engine.scheduler.stats().counters.ended[EndReason.ABORT] == 2


def test_requests_beyond_max_waiting_are_held_back_and_all_come(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(max_waiting=2, max_requests=2)
    outputs = engine.generate([[n] for n in range(5, 45)], SHORT)
    assert [output.index for output in outputs] == list(range(40))
    assert all(len(output.token_ids) == 6 for output in outputs)
    nothing_left(engine)


def test_without_waiting_a_full_engine_refuses_and_runs_none_of_the_call(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(max_waiting=2, max_requests=1)
    gate = Turnstile(engine, monkeypatch)
    running = engine.stream([5], SHORT)
    assert gate.arrived.acquire(timeout=20)
    with pytest.raises(Overloaded, match="2 requests are waiting; the limit is 2") as caught:
        engine.generate([[6], [7], [8]], SHORT, wait=False)
    assert caught.value.values == {"waiting": 2, "limit": 2}
    assert not caught.value.caller_fault
    gate.allow(500)
    assert len(list(running)) == 6
    nothing_left(engine)
    assert engine.generate([[6], [7]], SHORT, wait=False)


def test_a_deadline_ends_waiting_and_running_requests_with_what_there_is(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(max_requests=1)
    now = [0.0]
    monkeypatch.setattr(engine.scheduler, "clock", lambda: now[0])
    gate = Turnstile(engine, monkeypatch)
    stream = engine.stream([[5], [6]], LONG, deadline=1.0)
    gate.allow(3)
    tokens = [next(stream) for _ in range(2)]
    now[0] = 2.0
    gate.allow(500)
    tokens += list(stream)
    ended = {token.index: token.output for token in tokens if token.output}
    assert ended[0] is not None
    assert ended[1] is not None
    assert (ended[0].finish_reason, ended[1].finish_reason) == ("deadline", "deadline")
    assert 2 <= len(ended[0].token_ids) < 400
    assert ended[1].token_ids == []
    nothing_left(engine)


def test_a_deadline_ends_requests_that_are_held_back_for_want_of_room(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(max_requests=1, max_waiting=1)
    now = [0.0]
    monkeypatch.setattr(engine.scheduler, "clock", lambda: now[0])
    gate = Turnstile(engine, monkeypatch)
    running = engine.stream([5], LONG)
    assert gate.arrived.acquire(timeout=20)
    waiting = engine.stream([6], LONG)
    held_back = engine.stream([[7], [8]], LONG, deadline=1.0)
    now[0] = 2.0
    gate.allow(3)
    outputs = [token.output for token in held_back if token.output]
    assert [output.finish_reason for output in outputs] == ["deadline", "deadline"]
    assert not running.finished
    assert not waiting.finished
    running.close()
    waiting.close()
    gate.allow(500)
    nothing_left(engine)


@pytest.mark.parametrize("deadline", [0.0, -1.0, float("nan"), float("inf")])
def test_a_deadline_that_is_none_is_refused(deadline: float, engine_of: Callable[..., Engine]) -> None:
    with pytest.raises(InvalidRequest, match="deadline is"):
        engine_of().generate([5], SHORT, deadline=deadline)


def test_close_while_busy_ends_every_request_at_once(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(max_waiting=4, max_requests=2)
    streams = [engine.stream([[n], [n + 1]], LONG) for n in range(5, 11)]
    next(streams[0])
    failures: list[BaseException] = []

    def follow(index: int) -> None:
        try:
            list(streams[index])
        except EngineClosed as error:
            failures.append(error)

    threads = [threading.Thread(target=follow, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    engine.close(timeout=20)
    for thread in threads:
        thread.join(20)
    assert len(failures) == 6
    engine.close()
    with pytest.raises(EngineClosed, match="closed"):
        engine.generate([5])
    assert engine.scheduler.pool.stats().owned == 0


def test_an_engine_that_is_forgotten_closes_itself(engine_of: Callable[..., Engine], cpu: object) -> None:
    before = threading.active_count()
    engine = Engine(str(engine_of().config and engine_of()._files.path), cpu, num_blocks=8)  # type: ignore[arg-type]
    loop = engine._loop
    del engine
    gc.collect()
    assert loop.closed
    assert threading.active_count() >= before
    assert loop._stopped.wait(20)


FORKED = """
import os, sys
from accel import Engine, SamplingParams
from accel.errors import EngineClosed
engine = Engine(sys.argv[1], "cpu", num_blocks=64)
params = SamplingParams(max_tokens=40, ignore_eos=True)
wanted = engine.generate([5], params)[0].token_ids
stream = engine.stream([5], params)
calls = {
    "generate": lambda: engine.generate([5], params),
    "follow": lambda: list(stream),
    "wait_idle": engine.wait_idle,
    "logits": lambda: engine.logits([5]),
}
child = os.fork()
if child == 0:
    refused = []
    for name, call in calls.items():
        try:
            call()
        except EngineClosed as error:
            refused.append(str(error))
    stream.close()
    engine.close()
    sys.exit(len(refused) if all("belongs to process" in text for text in refused) else 99)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == len(calls), status
assert [token.token_id for token in stream] == wanted
if os.fork() == 0:
    sys.exit(0)  # an engine that is not closed does not hold the exit of a child up
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""


def test_an_engine_in_a_forked_process_refuses_and_leaves_the_parents_alone(reference_data: Path) -> None:
    model = str(reference_data / "tiny_models" / "llama")
    done = subprocess.run(
        [sys.executable, "-c", FORKED, model], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_higher_priority_goes_first_and_nobody_is_passed_for_ever(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(max_requests=1)
    gate = Turnstile(engine, monkeypatch)
    order: list[str] = []
    streams = {"running": engine.stream([5], SHORT)}
    assert gate.arrived.acquire(timeout=20)
    for name, priority in (("low", -1), ("plain", 0), ("high", 5)):
        streams[name] = engine.stream([5, 6], SHORT, priority=priority, request_id=name)
    ended = engine.metrics.ended
    monkeypatch.setattr(engine._loop, "_observer", _Recorder(order, ended))
    gate.allow(500)
    for stream in streams.values():
        list(stream)
    assert order[1:] == ["high", "plain", "low"]
    with pytest.raises(InvalidRequest, match="priority is 1001; it must be -1000 to 1000"):
        engine.stream([5], SHORT, priority=1001)


class _Recorder:
    def __init__(self, order: list[str], ended: Callable[..., None]) -> None:
        self._order, self._ended = order, ended

    def step(self, plan: object) -> None:
        pass

    def ended(self, output: object) -> None:
        self._order.append(output.request_id)  # type: ignore[attr-defined]
        self._ended(output)


def test_a_salt_keeps_the_cache_of_one_tenant_from_another(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    prompt = list(range(5, 45))

    def hits(salt: str) -> int:
        return engine.generate(prompt, SHORT, salt=salt)[0].metrics.hit_tokens

    assert [hits(salt) for salt in ("a", "a", "b", "", "b", "")] == [0, 32, 0, 0, 32, 32]
