"""A foreign engine over the primitives gives the tokens of ours."""

from __future__ import annotations

import inspect
from pathlib import Path

import external_engine
import pytest

import accel

PROMPTS = [[5, 6, 7], [11], list(range(3, 37)), [9, 9]]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_engine, "MAX_MODEL_LEN", 64)


def test_a_foreign_engine_gives_the_tokens_of_ours_for_prompts_of_all_lengths(model: Path) -> None:
    with accel.open("cpu") as device:
        runner = external_engine.open_runner(device, str(model))
        got = external_engine.generate(runner, PROMPTS, max_tokens=24)
    with accel.Engine(str(model), "cpu", num_blocks=32) as engine:
        want = engine.generate(PROMPTS, accel.SamplingParams(max_tokens=24))
    assert got == [output.token_ids for output in want]


def test_one_runner_serves_one_round_after_another(model: Path) -> None:
    with accel.open("cpu") as device:
        runner = external_engine.open_runner(device, str(model))
        first = external_engine.generate(runner, PROMPTS, max_tokens=8)
        alone = [external_engine.generate(runner, [prompt], max_tokens=8)[0] for prompt in PROMPTS]
    assert alone == first


def test_it_uses_the_primitives_alone_and_is_short() -> None:
    source = inspect.getsource(external_engine)
    assert len(source.splitlines()) < 100
    assert "accel.engine" not in source
    assert "accel.scheduler" not in source
    assert ".execute(" not in source
