"""What goes wrong in a step ends the requests that were in it, with a typed error, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from accel import Engine, SamplingParams
from accel.errors import AccelError, AsyncFailure, EngineClosed, OutOfMemory, Timeout
from accel.runner.plan import PendingStep, StepPlan

SHORT = SamplingParams(max_tokens=5, ignore_eos=True)


def whole(engine: Engine) -> None:
    """The engine works, and gives what one that never failed gives."""
    assert len(engine.generate([5, 6, 7], SHORT)[0].token_ids) == 5
    engine.wait_idle(20)
    assert engine.scheduler.pool.stats().owned == 0


def fail_step(engine: Engine, monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException, late: bool) -> None:
    """Make the step `number` from now raise, when it is launched or when its result is waited for."""
    execute, seen = engine.runner.execute, [0]

    def broken(plan: StepPlan) -> PendingStep:
        seen[0] += 1
        if seen[0] != number:
            return execute(plan)
        if not late:
            raise error

        def collect() -> Any:
            raise error

        return PendingStep(execute(plan).event, collect)

    monkeypatch.setattr(engine.runner, "execute", broken)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("depth", [0, 2])
def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, late: bool, number: int, depth: int
) -> None:
    engine = engine_of(depth=depth)
    wanted = engine.generate([5, 6, 7], SHORT)[0].token_ids
    fail_step(engine, monkeypatch, number, OutOfMemory("planted"), late)
    with pytest.raises(OutOfMemory, match="planted") as caught:
        engine.generate([[5, 6], [7]], SHORT)
    outputs = caught.value.values["outputs"]
    assert [output.finish_reason for output in outputs] == ["error", "error"]
    assert engine.scheduler.stats().counters.failed_steps >= 1
    assert engine.generate([5, 6, 7], SHORT)[0].token_ids == wanted
    whole(engine)


def test_an_error_of_another_kind_becomes_a_typed_one_that_names_it(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of()
    fail_step(engine, monkeypatch, 2, ZeroDivisionError("planted"), False)
    with pytest.raises(AccelError, match="a step failed: ZeroDivisionError: planted") as caught:
        list(engine.stream([5], SHORT))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    whole(engine)


def test_an_op_that_fails_in_the_middle_of_a_step_leaves_the_stream_usable(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of()
    stream = engine.device.current_stream()

    def broken(*_arguments: object, **_attributes: object) -> None:
        stream.host_call(lambda: 1 / 0)  # type: ignore[arg-type, return-value]

    with monkeypatch.context() as patch:
        patch.setattr(engine.device.ops, "silu_and_mul", broken)
        with pytest.raises(AsyncFailure):
            engine.generate([5], SHORT)
    whole(engine)


def test_only_the_requests_of_the_failed_step_end(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One runs, two wait for its slot: the step fails it alone."""
    engine = engine_of(max_requests=1)
    fail_step(engine, monkeypatch, 2, OutOfMemory("planted"), False)
    with pytest.raises(OutOfMemory) as caught:
        engine.generate([[5], [6], [7]], SHORT)
    outputs = caught.value.values["outputs"]
    assert [output.finish_reason for output in outputs] == ["error", "length", "length"]
    assert [len(output.token_ids) for output in outputs] == [1, 5, 5]


def test_a_stream_of_several_raises_the_first_error_and_aborts_the_rest(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(max_requests=1)
    fail_step(engine, monkeypatch, 2, OutOfMemory("planted"), False)
    with pytest.raises(OutOfMemory):
        list(engine.stream([[5], [6]], SHORT))
    whole(engine)


def test_blocks_that_a_failed_step_wrote_are_not_in_the_cache(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of()
    fail_step(engine, monkeypatch, 1, OutOfMemory("planted"), True)
    prompt = list(range(5, 45))
    with pytest.raises(OutOfMemory):
        engine.generate(prompt, SHORT)
    assert engine.generate(prompt, SHORT)[0].metrics.hit_tokens == 0


def test_a_step_that_hangs_ends_the_engine_and_close_says_so_in_bounded_time(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of()
    entered, release = threading.Event(), threading.Event()

    def hang(_plan: StepPlan) -> PendingStep:
        entered.set()
        release.wait(30)
        raise OutOfMemory("too late")

    monkeypatch.setattr(engine.runner, "execute", hang)
    stream = engine.stream([5], SHORT)
    assert entered.wait(20)
    with pytest.raises(Timeout, match=r"did not end in 0\.2 s"):
        engine.close(timeout=0.2)
    with pytest.raises(EngineClosed):
        list(stream)
    release.set()
    assert engine._loop._stopped.wait(20)


def test_a_result_that_never_comes_ends_the_engine_with_a_timeout(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(step_timeout=0.2)
    device = engine.device
    execute = engine.runner.execute
    other = device.stream()
    gates = []

    def stuck(plan: StepPlan) -> PendingStep:
        execute(plan).result()
        gates.append(other.gate())
        event = device.event()
        event.record(other)
        return PendingStep(event, lambda: None)  # type: ignore[arg-type, return-value]

    monkeypatch.setattr(engine.runner, "execute", stuck)
    with pytest.raises(Timeout):
        engine.generate([5], SHORT)
    for gate in gates:
        gate.open()
    with pytest.raises(Timeout):
        engine.generate([5], SHORT)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", [SystemExit("planted"), KeyboardInterrupt("planted"), GeneratorExit("planted")])
@pytest.mark.parametrize("depth", [0, 2])
def test_what_ends_a_thread_ends_the_engine_and_nobody_waits(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, error: BaseException, late: bool, depth: int
) -> None:
    engine = engine_of(depth=depth)
    fail_step(engine, monkeypatch, 3, error, late)
    with pytest.raises(AccelError, match=f"the engine's loop failed: {type(error).__name__}"):
        engine.generate([[5], [6]], SHORT, deadline=60)
    with pytest.raises(AccelError, match="the engine's loop failed"):
        engine.generate([5], SHORT, deadline=60)
    engine.close(20)
    stats = engine.scheduler.pool.stats()
    assert (stats.owned, stats.steps) == (0, 0)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_an_engine_that_is_closed_with_steps_in_flight_holds_no_blocks(
    engine_of: Callable[..., Engine], depth: int
) -> None:
    engine = engine_of(depth=depth)
    stream = engine.stream([[5], [6]], SamplingParams(max_tokens=400, ignore_eos=True))
    next(stream)
    engine.close(20)
    stats = engine.scheduler.pool.stats()
    assert (stats.owned, stats.steps) == (0, 0)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_step_that_cannot_be_launched_leaves_the_outputs_of_those_before_it(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """The short request's last step is in flight when the next one, which is not for it, raises."""
    engine = engine_of(depth=depth)
    wanted = engine.generate([5], SamplingParams(max_tokens=1, ignore_eos=True))[0].token_ids
    fail_step(engine, monkeypatch, 2, OutOfMemory("planted"), False)
    both = [SamplingParams(max_tokens=1, ignore_eos=True), SHORT]
    with pytest.raises(OutOfMemory) as caught:
        engine.generate([[5], [6]], both)
    outputs = caught.value.values["outputs"]
    assert [output.finish_reason for output in outputs] == ["length", "error"]
    assert outputs[0].token_ids == wanted
    whole(engine)
