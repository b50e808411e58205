"""Windows between the threads of a stream, its closers, the collector and the loop: each driven to its worst case."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from test_concurrency import LONG, SHORT, Turnstile, nothing_left

from accel import Engine
from accel.engine.live import Live
from accel.errors import AccelError, EngineClosed, InvalidArgument, Overloaded, Timeout
from accel.scheduler.request import EndReason


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ends(thread: threading.Thread) -> None:
    thread.join(20)
    assert not thread.is_alive(), "it waits for ever"


def test_a_stream_that_another_thread_closes_ends_for_its_follower(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of()
    gate = Turnstile(engine, monkeypatch)
    stream = engine.stream([[5], [6]], LONG)
    waiting = threading.Event()
    get = stream._channel.get
    monkeypatch.setattr(stream._channel, "get", lambda timeout: (waiting.set(), get(timeout))[1])
    follower = in_thread(lambda: list(stream))
    assert waiting.wait(20)
    stream.close()
    gate.allow(500)
    ends(follower)
    nothing_left(engine)


def test_a_stream_that_another_task_closes_ends_for_its_follower(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()

    async def main() -> None:
        stream = engine.stream([[5], [6]], LONG)
        started = asyncio.Event()

        async def follow() -> None:
            async for _ in stream:
                started.set()

        task = asyncio.create_task(follow())
        await started.wait()
        await stream.aclose()
        await asyncio.wait_for(task, 20)

    asyncio.run(main())
    nothing_left(engine)


def test_room_that_comes_between_a_refusal_and_the_wait_for_it_is_not_missed(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine gets through all that waited, and falls idle, before the refused stream has said a word."""
    engine = engine_of(max_waiting=1, max_requests=1)
    gate = Turnstile(engine, monkeypatch)
    running = engine.stream([5], SHORT)
    assert gate.arrived.acquire(timeout=20)
    waiting = engine.stream([6], SHORT)
    submit, refused = engine._loop.submit, []

    def slow(*arguments: Any) -> None:
        try:
            submit(*arguments)
        except Overloaded:
            refused.append(True)
            if len(refused) < 3:  # at the call, and before the task waits; then it is woken, and looks again
                raise
            gate.allow(500)
            assert len(list(running)) == len(list(waiting)) == 6
            engine.wait_idle(20)
            raise

    monkeypatch.setattr(engine._loop, "submit", slow)

    async def main() -> list[Any]:
        stream = engine.stream([7], SHORT)
        task = asyncio.create_task(_collect(stream))
        asyncio.get_running_loop().call_soon(gate.allow)  # a step that makes no room, once the task waits
        return await asyncio.wait_for(task, 20)

    assert len(asyncio.run(main())) == 6
    nothing_left(engine)


async def _collect(stream: Any) -> list[Any]:
    return [token async for token in stream]


@pytest.mark.parametrize("place", ["clock", "pool"])
def test_a_stream_that_is_collected_while_the_scheduler_is_locked_does_not_lock_it_for_ever(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The collector runs wherever something is allocated: on the loop's thread, and under any lock."""
    engine = engine_of()
    streams = [engine.stream([5], LONG)]
    next(streams[0])
    owner, name = (engine.scheduler, "clock") if place == "clock" else (engine.scheduler.pool, "commit_step")
    usual = getattr(owner, name)

    def collected(*arguments: Any) -> Any:
        streams.clear()
        return usual(*arguments)

    monkeypatch.setattr(owner, name, collected)
    follower = in_thread(lambda: engine.generate([6], SHORT))
    ends(follower)
    assert not streams
    nothing_left(engine)
    assert engine.scheduler.stats().counters.ended[EndReason.ABORT] == 1


def test_an_engine_that_is_collected_on_its_own_loops_thread_closes_itself(
    engine_of: Callable[..., Engine], cpu: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(str(engine_of()._files.path), cpu, num_blocks=8)  # type: ignore[arg-type]
    loop, held = engine._loop, [engine]
    turn = loop._turn

    def collected() -> None:
        held.clear()
        gc.collect()
        turn()

    monkeypatch.setattr(loop, "_turn", collected)
    stream = engine.stream([5], SHORT)
    del engine
    with pytest.raises(EngineClosed):
        list(stream)
    assert loop._stopped.wait(20)
    assert not held


def test_a_request_that_another_thread_aborts_never_ends_without_a_reason(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two writes that end a request, the loop looks at it."""
    engine = engine_of()
    seen: list[tuple[bool, object]] = []
    stream = engine.stream([5], LONG)
    request = stream._lives[0].request
    kind = type(request)

    def watch(self: Any, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        seen.append((self.state.name in ("FINISHED", "ABORTED"), self.reason))

    with monkeypatch.context() as patch:
        patch.setattr(kind, "__setattr__", watch)
        engine.scheduler.abort(request)
    assert (True, None) not in seen
    nothing_left(engine)


def test_a_request_that_is_aborted_and_refused_at_once_ends_once(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held back, then refused by a closed engine, while another thread aborts it."""
    engine = engine_of(max_waiting=1, max_requests=1)
    gate = Turnstile(engine, monkeypatch)
    stream = engine.stream([[5], [6], [7], [8]], SHORT)
    submit, held = engine._loop.submit, []

    def refused(live: Live, *more: Any) -> None:
        try:
            submit(live, *more)
        except EngineClosed:
            held.append(in_thread(stream.abort))
            ends(held[0])
            raise

    monkeypatch.setattr(engine._loop, "submit", refused)
    gate.allow(500)
    in_thread(engine.close).join(20)
    ended: Counter[int] = Counter()
    channel_get = stream._channel.get
    outputs = in_thread(lambda: _count(stream, ended))
    ends(outputs)
    assert held
    while (item := channel_get(0.0)) is not None:
        ended[item.index] += item.output is not None
    assert set(ended.values()) <= {1}


def _count(stream: Any, ended: Counter[int]) -> None:
    stream._keep_errors = True
    for token in stream:
        ended[token.index] += token.output is not None


def test_a_request_that_ends_on_two_threads_gives_one_output(engine_of: Callable[..., Engine]) -> None:
    """A step that hangs comes back while `close` gives up on it."""
    engine = engine_of()
    stream = engine.stream([5], LONG)
    next(stream)
    live = stream._lives[0]
    engine.close()
    assert live.done
    assert live.end(EndReason.ABORT) is None
    assert live.send(final=True) is None


def test_an_interrupted_follower_does_not_submit_a_request_twice(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(max_waiting=1, max_requests=1)
    stream = engine.stream([[n] for n in range(5, 9)], SHORT)
    submit, interrupted = engine._loop.submit, []

    def once(*arguments: Any) -> None:
        submit(*arguments)
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    monkeypatch.setattr(engine._loop, "submit", once)
    tokens = []
    with pytest.raises(KeyboardInterrupt):
        tokens += list(stream)
    rest = list(stream)
    assert {token.index for token in rest if token.output} >= {1, 2, 3}
    nothing_left(engine)
    assert engine.scheduler.stats().waiting == 0


def test_callers_that_fail_together_get_errors_of_their_own(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step fails the requests of two callers: neither sees the other's outputs."""
    engine = engine_of()
    gate = Turnstile(engine, monkeypatch)
    caught: dict[int, AccelError] = {}

    def call(first: int) -> None:
        with pytest.raises(AccelError) as error:
            engine.generate([[first], [first + 1]], LONG)
        caught[first] = error.value

    threads = [in_thread(lambda first=first: call(first)) for first in (5, 9)]
    assert gate.arrived.acquire(timeout=20)
    while engine._loop.live < 4:
        gate.allow()
        assert gate.arrived.acquire(timeout=20)
    closer = in_thread(engine.close)
    gate.allow(500)
    for thread in (*threads, closer):
        ends(thread)
    assert caught[5] is not caught[9]
    for first, error in caught.items():
        outputs: Any = error.values["outputs"]
        assert [output.prompt_token_ids for output in outputs] == [[first], [first + 1]]
    late: list[EngineClosed] = []
    for _ in range(2):
        with pytest.raises(EngineClosed) as refused:
            engine.generate([5])
        late.append(refused.value)
    assert late[0] is not late[1]


def test_all_who_close_find_the_engine_closed_and_may_try_again(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of()
    gate = Turnstile(engine, monkeypatch)
    stream = engine.stream([5], LONG)
    assert gate.arrived.acquire(timeout=20)
    with pytest.raises(Timeout):
        engine.close(0.05)  # the step hangs
    found: list[bool] = []

    def close() -> None:
        engine.close(20)
        found.append(engine._loop._stopped.is_set())

    threads = [in_thread(close) for _ in range(4)]
    gate.allow(500)
    for thread in threads:
        ends(thread)
    assert found == [True] * 4
    with pytest.raises(EngineClosed):
        list(stream)


def test_an_engine_that_a_finalizer_closes_on_its_loops_thread_closes(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of()
    turn = engine._loop._turn
    monkeypatch.setattr(engine._loop, "_turn", lambda: (engine.close(), turn()))
    with pytest.raises(EngineClosed):
        engine.generate([5], LONG)
    assert engine._loop._stopped.wait(20)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "x", None])
def test_a_timeout_that_cannot_be_is_refused_and_closes_nothing(engine_of: Callable[..., Engine], timeout: Any) -> None:
    engine = engine_of()
    for call in (engine.close, engine.wait_idle):
        with pytest.raises(InvalidArgument, match="timeout is"):
            call(timeout)
    assert len(engine.generate([5], SHORT)[0].token_ids) == 6
