"""Only a request's own tokens decide its logits: not the batch, the chunks, the threads or the order of the pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import accel
from accel import Engine, SamplingParams
from accel.runner.plan import Logits, PlanRow, StepPlan

FAMILIES = ("llama", "mistral", "ernie4_5")


def prompts(count: int, vocab: int, seed: int = 7) -> list[list[int]]:
    """Prompts of 1 to 70 tokens: below, at and above the borders of blocks and of attention tiles."""
    rng = np.random.default_rng(seed)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 70, 5, 40]
    return [rng.integers(3, vocab, lengths[i % len(lengths)]).tolist() for i in range(count)]


def mixed_step(engine: Engine, ids: list[list[int]], cut: int) -> list[npt.NDArray[np.float32]]:
    """Logits of all prompts computed together: `cut` tokens of each in one step, the rest in another."""
    layout = engine.runner.pool.layout
    blocks, first = [], 0
    for prompt in ids:
        count = layout.blocks_for(len(prompt))
        blocks.append(list(range(first, first + count)))
        first += count
    rows: list[list[npt.NDArray[np.float32]]] = [[] for _ in ids]
    for part in ("head", "tail"):
        plan_rows, owners = [], []
        for index, prompt in enumerate(ids):
            begin, end = (0, min(cut, len(prompt))) if part == "head" else (min(cut, len(prompt)), len(prompt))
            if begin == end:
                continue
            owners.append(index)
            plan_rows.append(
                PlanRow(index, 0, index, begin, prompt[begin:end], blocks[index], False, SamplingParams(), 0, 0, 1)
            )
        if not plan_rows:
            continue
        plan = StepPlan.of(plan_rows, Logits.ALL)
        output = engine.runner.execute(plan).result()
        assert output.logits is not None
        for row, index in enumerate(owners):
            rows[index].append(output.logits[plan.query_start[row] : plan.query_start[row + 1]])
    return [np.concatenate(parts) for parts in rows]


def bits(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    return array.view(np.uint32)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cut", [1, 9, 1000])
def test_logits_alone_are_the_bits_of_a_mixed_batch_of_16(
    family: str, cut: int, engine_of: Callable[..., Engine]
) -> None:
    engine = engine_of(family, max_batch_tokens=1024)
    ids = prompts(16, engine.config.vocab_size)
    for prompt, together in zip(ids, mixed_step(engine, ids, cut), strict=True):
        assert np.array_equal(bits(engine.logits(prompt)), bits(together))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_chunks_of_8_are_the_bits_of_one_chunk(family: str, engine_of: Callable[..., Engine]) -> None:
    prompt = prompts(16, 320)[13] * 3
    small, large = engine_of(family, max_batch_tokens=8), engine_of(family, max_batch_tokens=4096)
    assert np.array_equal(bits(small.logits(prompt)), bits(large.logits(prompt)))


@pytest.mark.parametrize("setting", ["threads", "order", "block_size", "isa"])
def test_logits_do_not_depend_on(setting: str, engine_of: Callable[..., Engine]) -> None:
    prompt = prompts(16, 320)[13] * 3
    variants: dict[str, list[dict[str, Any]]] = {
        "threads": [{"device": accel.open("cpu", threads=n)} for n in (1, 2, 3)],
        "order": [{"kv_order": order} for order in ("page_first", "layer_first")],
        "block_size": [{"block_size": size} for size in (1, 16, 64)],
        "isa": [{"device": accel.open("cpu", isa=isa)} for isa in ("generic", "auto")],
    }
    results = [engine_of("mistral", num_blocks=512, **variant).logits(prompt) for variant in variants[setting]]
    for other in results[1:]:
        assert np.array_equal(bits(results[0]), bits(other))


def test_sampled_tokens_are_the_same_alone_and_among_others(engine_of: Callable[..., Engine]) -> None:
    ids = prompts(16, 320)
    params = SamplingParams(max_tokens=20, temperature=0.8, top_k=40, top_p=0.9, seed=11, ignore_eos=True)
    together = engine_of(max_batch_tokens=64).generate(ids, params)
    alone = engine_of(max_batch_tokens=16)
    for prompt, output in zip(ids, together, strict=True):
        assert alone.generate([prompt], params)[0].token_ids == output.token_ids


def test_decoding_gives_the_logits_of_prefilling_the_same_tokens(engine_of: Callable[..., Engine]) -> None:
    """The greedy continuation, fed back as a prompt, chooses itself at every step: exactly, with no margin."""
    engine = engine_of("llama")
    for prompt in prompts(6, 320):
        output = engine.generate([prompt], SamplingParams(max_tokens=24, ignore_eos=True))[0]
        logits = engine.logits([*prompt, *output.token_ids[:-1]])
        assert logits[len(prompt) - 1 :].argmax(axis=1).tolist() == output.token_ids
