"""A whole model on the simulated device: the CPU's tokens exactly, and nothing that is not ordered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import accel
from accel import Engine, SamplingParams

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9, 8, 7], [5] * 20]
SAMPLING = SamplingParams(max_tokens=8)


def tokens(engine: Engine) -> list[list[int]]:
    return [list(output.token_ids) for output in engine.generate(PROMPTS, SAMPLING)]


@pytest.mark.parametrize("seed", [None, 0, 1, 2], ids=lambda seed: "threads" if seed is None else f"seed {seed}")
@pytest.mark.parametrize("profile", ["gpu", "iluvatar"])
def test_the_tokens_are_the_cpus(seed: int | None, profile: str, engine_of: Callable[..., Any]) -> None:
    want = tokens(engine_of("llama", num_blocks=64))
    with accel.open("sim", profile=profile, seed=seed, memory=256 << 20) as device:
        engine = engine_of("llama", num_blocks=64, device=device)
        assert tokens(engine) == want
        engine.close()
        assert device.sim.races() == []  # type: ignore[attr-defined]
        assert device.sim.counters()["launch"] > 100  # type: ignore[attr-defined]
