"""The decoder gives what an independent implementation gives: five tiny families, and a real model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from accel import Device, Engine, SamplingParams

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "ernie4_5")
PROMPTS = (0, 1, 2)
LOGIT_TOLERANCE = 2e-3
#: A greedy step is compared only where the two best logits are further apart than this.
MARGIN = 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_reference(family: str, reference_data: Path, engine_of: Callable[..., Engine]) -> None:
    golden = np.load(reference_data / "tiny_models" / family / "golden.npz")
    engine = engine_of(family)
    for i in PROMPTS:
        got = engine.logits(golden[f"prompt_{i}"].tolist())
        assert np.abs(got - golden[f"logits_{i}"]).max() <= LOGIT_TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_teacher_forced_argmax_is_the_reference_token_at_every_clear_step(
    family: str, reference_data: Path, engine_of: Callable[..., Engine]
) -> None:
    golden = np.load(reference_data / "tiny_models" / family / "golden.npz")
    engine = engine_of(family)
    for i in PROMPTS:
        prompt, greedy, margin = (golden[f"{name}_{i}"] for name in ("prompt", "greedy", "margin"))
        logits = engine.logits([*prompt.tolist(), *greedy[:-1].tolist()])
        chosen = logits[len(prompt) - 1 :].argmax(axis=1)
        clear = margin > MARGIN
        assert clear.sum() >= len(greedy) // 2
        assert np.array_equal(chosen[clear], greedy[clear])


def test_the_real_model_continues_as_the_reference_does(demo: str, reference_data: Path, cpu: Device) -> None:
    cases = json.loads((reference_data / "smollm2_greedy.json").read_text())
    with Engine(demo, cpu, num_blocks=64) as engine:
        params = SamplingParams(max_tokens=len(cases[0]["greedy"]), ignore_eos=True)
        outputs = engine.generate([case["prompt"] for case in cases], params)
    assert [output.prompt_token_ids for output in outputs] == [case["prompt_ids"] for case in cases]
    assert [output.token_ids for output in outputs] == [case["greedy"] for case in cases]


def test_quantised_weights_give_the_bits_of_their_float32_values(demo: str, cpu: Device) -> None:
    """Held as 4 bits or widened at load: the values are the same, so every logit is."""
    ids = [504, 3575, 282, 4649, 314]
    with Engine(demo, cpu, num_blocks=8) as held:
        packed = held.logits(ids)
        held_bytes = held.decoder.weights.nbytes
    with Engine(demo, cpu, num_blocks=8, dtype="float32") as wide:
        widened = wide.logits(ids)
        assert wide.decoder.weights.nbytes > 5 * held_bytes
    assert np.array_equal(packed.view(np.uint32), widened.view(np.uint32))
