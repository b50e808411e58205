"""How requests are served changes nothing: each gets the same tokens and log-probabilities, bit for bit, whatever runs
beside it, however steps are cut, planned ahead, preempted, delivered late, or found in the cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import accel
from accel import Engine, RequestOutput, SamplingParams
from accel.cache.pool import BlockPool
from accel.runner.plan import StepOutput
from accel.scheduler.request import Request
from accel.scheduler.scheduler import Scheduler, SchedulerConfig, Update

VOCAB = 320


def cases() -> list[tuple[list[int], SamplingParams]]:
    """16 requests: prompts around the borders of blocks, some sharing their beginning; every rule of sampling."""
    rng = np.random.default_rng(11)
    common = rng.integers(3, VOCAB, 48).tolist()
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 70, 5, 40]
    rules: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.2, "top_k": 30, "min_p": 0.02},
        {"repetition_penalty": 1.4},
        {"temperature": 0.9, "frequency_penalty": 0.7, "presence_penalty": 0.2},
        {"bad_words": ((7,), (12, 13), (200, 201, 202))},
        {"logit_bias": {5: 3.0, 9: -np.inf}, "temperature": 1.0},
        {"min_tokens": 12, "stop_token_ids": tuple(range(0, VOCAB, 4))},
        {"stop_sequences": ((1, 2), (3, 4, 5)), "temperature": 1.0},
        {"logprobs": 5},
        {"logprobs": 0, "temperature": 0.7, "repetition_penalty": 1.2},
        {"prompt_logprobs": 2, "logprobs": 1},
        {"temperature": 1.0, "stop_token_ids": tuple(range(1, VOCAB, 9))},
        {"prompt_logprobs": 0},
        {"temperature": 2.0, "logprobs": 3},
        {"presence_penalty": 2.0, "stop_sequences": ((8, 9),)},
    ]
    found = []
    for index, (length, rule) in enumerate(zip(lengths, rules, strict=True)):
        shared = min(length, 48) if index % 2 else 0
        prompt = common[:shared] + rng.integers(3, VOCAB, length - shared).tolist()
        params = SamplingParams(**{"max_tokens": 40, "seed": 100 + index, "ignore_eos": True, **rule})
        found.append((prompt, params))
    return found


CASES = cases()
Result = tuple[list[int], str, Any, Any, Any]


def result(output: RequestOutput) -> Result:
    """What may not change. Floats are compared as they are: equal bits, since none is NaN."""
    return (output.token_ids, output.finish_reason, output.stop_reason, output.logprobs, output.prompt_logprobs)


@pytest.fixture(scope="module")
def alone(reference_data: Any, cpu: accel.Device) -> list[Result]:
    """Each case in an engine of its own, with an empty cache and no company."""
    found = []
    for prompt, params in CASES:
        model = str(reference_data / "tiny_models" / "llama")
        with Engine(model, cpu, num_blocks=16, max_batch_tokens=1024, max_requests=1) as engine:
            found.append(result(engine.generate(prompt, params)[0]))
    return found


def together(engine: Engine) -> list[Result]:
    prompts, params = [list(part) for part in zip(*CASES, strict=True)]
    return [result(output) for output in engine.generate(prompts, params)]


#: 8 blocks of 16 tokens: each request fits, but hardly two of the long ones.
FEW = {"num_blocks": 8, "output_reserve": 0}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_batch_tokens": 8},
        {"max_batch_tokens": 4096},
        {"max_requests": 3},
        FEW,
        {**FEW, "max_batch_tokens": 8},
        {**FEW, "depth": 1},
        {**FEW, "depth": 3},
        {"depth": 1},
        {"depth": 2, "max_batch_tokens": 24},
        {"depth": 3},
        {"prefix_cache": False},
        {"block_size": 4, "num_blocks": 32, "output_reserve": 0, "depth": 2},
        {"block_size": 1, "num_blocks": 125, "output_reserve": 0},
        {"kv_order": "layer_first"},
    ],
    ids=str,
)
def test_served_together_a_request_gets_what_it_gets_alone(
    settings: dict[str, Any], alone: list[Result], engine_of: Callable[..., Engine]
) -> None:
    engine = engine_of(**settings)
    assert together(engine) == alone
    counters = engine.scheduler.stats().counters
    if "output_reserve" in settings:
        assert counters.preemptions >= 4, "the blocks were meant to be too few"
    if settings.get("depth") and "output_reserve" in settings:
        assert counters.stale_outputs >= 1, "a preemption was meant to find steps in flight"
    # Once more, with what is left in the cache.
    hits = counters.hit_tokens
    assert together(engine) == alone
    if settings.get("prefix_cache", True) and engine.num_blocks * engine.runner.pool.layout.block_size > 300:
        assert engine.scheduler.stats().counters.hit_tokens > hits + 100


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "ernie4_5"])
def test_every_family_gives_the_same_when_it_is_preempted_and_restored(
    family: str, engine_of: Callable[..., Engine]
) -> None:
    ample, scarce = engine_of(family), engine_of(family, depth=2, **FEW)
    assert together(scarce) == together(ample)
    assert scarce.scheduler.stats().counters.preemptions >= 4


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_changes_nothing(
    threads: int, alone: list[Result], engine_of: Callable[..., Engine]
) -> None:
    with accel.open("cpu", threads=threads) as device:
        engine = engine_of(device=device, **FEW)
        assert together(engine) == alone
        engine.close()


def test_the_same_seed_in_other_company_gives_the_same_tokens(engine_of: Callable[..., Engine]) -> None:
    prompt, params = [5, 6, 7] * 9, SamplingParams(max_tokens=20, temperature=1.0, seed=77, ignore_eos=True)
    outputs = []
    for company in (0, 3, 9):
        others = [[n] * (3 * n) for n in range(4, 4 + company)]
        every = [replace(params, seed=n) for n in range(company)]
        engine = engine_of(max_batch_tokens=64)
        batch = engine.generate([*others, prompt, prompt], [*every, params, params])
        outputs += [output.token_ids for output in batch[company:]]
    assert len(outputs) == 6
    assert all(tokens == outputs[0] for tokens in outputs)


def run_by_hand(engine: Engine, depth: int, blocks: int, order: str) -> tuple[list[list[int]], Scheduler]:
    """The engine's runner under a scheduler of our own, whose outputs come late, and in another order."""
    layout = engine.runner.pool.layout
    config = SchedulerConfig(64, 16, depth, output_reserve=0)
    scheduler = Scheduler(BlockPool(blocks, layout.block_size), layout, config)
    requests = []
    for number, (prompt, params) in enumerate(CASES):
        requests.append(
            Request(
                number, np.array(prompt, np.int32), params, max_model_len=512, seed=params.seed or 0, root=bytes(32)
            )
        )
        scheduler.add(requests[-1])
    late: deque[StepOutput] = deque()
    updates: list[Update] = []
    rng = np.random.default_rng(depth)
    while not scheduler.idle:
        plan = scheduler.schedule()
        if plan is not None:
            # The device is done with the step; the scheduler hears of it later.
            late.append(engine.runner.execute(plan).result())
            continue
        if order == "shuffled":
            late.rotate(int(rng.integers(len(late))))
        output = late.popleft()
        updates += scheduler.commit(output)
        assert scheduler.commit(output) == [], "a second delivery is dropped"
    return [request.output for request in requests], scheduler


@pytest.mark.parametrize("order", ["late", "shuffled"])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_outputs_that_come_late_and_out_of_order_change_nothing(
    depth: int, order: str, alone: list[Result], engine_of: Callable[..., Engine]
) -> None:
    tokens, scheduler = run_by_hand(engine_of(), depth, 8, order)
    assert tokens == [want[0] for want in alone]
    stats = scheduler.stats()
    assert stats.counters.preemptions >= 4
    assert stats.counters.duplicate_outputs > 0
    pool = scheduler.pool.stats()
    assert pool.free + pool.cached == pool.blocks
