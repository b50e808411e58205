"""The engine's surface: prompts in, outputs out, errors that say what to do, and nothing left behind."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import accel
from accel import Device, Engine, SamplingParams
from accel.errors import InvalidArgument, InvalidRequest, ModelError, OutOfMemory, Unsupported
from accel.scheduler.request import EndReason


def test_one_prompt_or_many_give_one_output_each_in_order(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    single = engine.generate([5, 6, 7], params)
    many = engine.generate([[9], [5, 6, 7], [8, 8]], params)
    assert len(single) == 1
    assert [output.prompt_token_ids for output in many] == [[9], [5, 6, 7], [8, 8]]
    assert many[1].token_ids == single[0].token_ids
    assert all(len(output.token_ids) == 3 and output.finish_reason == "length" for output in many)
    assert single[0].text is None


def test_end_of_sequence_stops_unless_it_is_ignored(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    free = engine.generate([5, 6, 7], SamplingParams(max_tokens=40, ignore_eos=True))[0]
    # Make the token that comes third the end of sequence.
    stop = free.token_ids[2]
    ended = engine_of()
    ended.runner._post._eos = ended.device.view(np.array([stop], np.int32))
    first = free.token_ids.index(stop)
    output = ended.generate([5, 6, 7], SamplingParams(max_tokens=40))[0]
    assert output.token_ids == free.token_ids[: first + 1]
    assert output.finish_reason == "stop"
    assert len(ended.generate([5, 6, 7], SamplingParams(max_tokens=40, ignore_eos=True))[0].token_ids) == 40


def test_a_request_ends_at_the_length_of_the_model(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(max_model_len=16)
    output = engine.generate([3] * 10, SamplingParams(max_tokens=100, ignore_eos=True))[0]
    assert len(output.token_ids) == 6
    assert output.finish_reason == "length"


def test_a_seed_repeats_and_the_output_tells_a_fresh_one(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    params = SamplingParams(max_tokens=16, temperature=1.0, ignore_eos=True)
    fresh = engine.generate([5, 6, 7], params)[0]
    again = engine.generate([5, 6, 7], SamplingParams(16, 1.0, seed=fresh.seed, ignore_eos=True))[0]
    assert again.token_ids == fresh.token_ids
    assert engine.generate([5, 6, 7], params)[0].seed != fresh.seed


def test_streams_of_several_threads_interleave_and_agree_with_running_alone(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(max_requests=3, num_blocks=24)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    prompts = [[n, n + 1, n + 2] for n in range(5, 13)]
    wanted = [engine.generate([prompt], params)[0].token_ids for prompt in prompts]
    results: dict[int, list[int]] = {}

    def run(index: int) -> None:
        results[index] = [token.token_id for token in engine.stream(prompts[index], params)]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [results[i] for i in range(len(prompts))] == wanted


def test_leaving_a_stream_gives_its_blocks_back(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(num_blocks=8)
    stream = engine.stream([5] * 20, SamplingParams(max_tokens=90, ignore_eos=True))
    next(stream)
    assert engine.scheduler.pool.stats().owned > 0
    stream.close()
    engine.wait_idle(10)
    assert engine.scheduler.pool.stats().owned == 0
    assert engine.scheduler.stats().counters.ended[EndReason.ABORT] == 1


def test_more_requests_than_fit_wait_for_their_turn(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(num_blocks=4, max_requests=2)
    outputs = engine.generate([[n] * 20 for n in range(5, 15)], SamplingParams(max_tokens=10, ignore_eos=True))
    assert all(len(output.token_ids) == 10 for output in outputs)
    assert engine.scheduler.pool.stats().owned == 0


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ([320], "token id 320 at position 0 is outside the vocabulary; ids are 0 to 319"),
        ([5, -1], "token id -1 at position 1"),
        ([5] * 512, "512 tokens; the limit is 511"),
        ("text", "pass token ids"),
        ([5, 6.5], "whole numbers"),  # type: ignore[list-item]
        ([None], "whole numbers"),  # type: ignore[list-item]
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused_with_value_and_limit(
    prompt: str | list[int], message: str, engine_of: Callable[..., Engine]
) -> None:
    engine = engine_of()
    with pytest.raises(InvalidRequest, match=message):
        engine.generate([prompt])
    assert engine.generate([[5]], SamplingParams(max_tokens=1))[0].token_ids


def test_one_bad_prompt_of_several_runs_none_of_them(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(num_blocks=4)
    with pytest.raises(InvalidRequest, match="need 7 blocks of 16 tokens; num_blocks is 4"):
        engine.generate([[5], [5] * 100], SamplingParams(max_tokens=12))
    assert engine.scheduler.idle
    assert engine.scheduler.stats().counters.steps == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -0.5}, "temperature is -0.5"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1e-50}, "top_p is 1e-50"),
        ({"temperature": 3.2e38}, "temperature is 3.2e\\+38"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 1 << 31}, "1 to 2147483647"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5; it must be a whole number"),
        ({"temperature": 1e39}, "temperature is 1e\\+39"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_sampling_values_out_of_range_are_refused_by_name(values: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        SamplingParams(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"num_blocks": 0}, InvalidArgument, "num_blocks is 0"),
        ({"num_blocks": "8"}, InvalidArgument, "num_blocks is '8'"),
        ({"max_batch_tokens": None}, InvalidArgument, "max_batch_tokens is None"),
        ({"block_size": 16.0}, InvalidArgument, "block_size is 16.0"),
        ({"device": None}, InvalidArgument, "device is None"),
        ({"block_size": 0}, InvalidArgument, "block_size is 0"),
        ({"max_batch_tokens": 0}, InvalidArgument, "max_batch_tokens is 0"),
        ({"max_model_len": 513}, InvalidArgument, "takes 2 to 512"),
        ({"dtype": "int3"}, Unsupported, "int3"),
        ({"kv_dtype": "int8"}, Unsupported, "int8"),
        ({"kv_order": "sideways"}, InvalidArgument, "sideways"),
        ({"num_blocks": 1 << 44}, OutOfMemory, "does not fit"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(
    settings: dict[str, object], error: type[Exception], message: str, engine_of: Callable[..., Engine]
) -> None:
    with pytest.raises(error, match=message):
        engine_of(**settings)


def test_a_model_with_experts_is_refused_with_the_reason(reference_data: Path, cpu: Device) -> None:
    with pytest.raises(accel.errors.AccelError, match="dense"):
        Engine(str(reference_data / "tiny_models" / "ernie4_5_moe"), cpu)


def test_a_missing_model_leaves_the_device_of_the_caller_open(cpu: Device) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        Engine("nowhere", cpu)
    cpu.synchronize()


def test_num_blocks_none_measures_and_stays_within_what_is_useful(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(num_blocks=None, max_requests=3)
    # 512 tokens are 32 blocks, and three requests can use no more than that each.
    assert engine.num_blocks == 96
    tight = engine_of(num_blocks=None, max_requests=64, memory_fraction=1e-6)
    assert 1 <= tight.num_blocks < 2048
    # A step longer than the model: several requests in the step that is measured.
    short = engine_of(num_blocks=None, max_model_len=24, max_batch_tokens=100, max_requests=3)
    assert short.num_blocks == 6
    with pytest.raises(InvalidArgument, match="memory_fraction is 2"):
        engine_of(num_blocks=None, memory_fraction=2)


def test_progress_runs_from_above_zero_to_the_whole_file(reference_data: Path, cpu: Device) -> None:
    seen: list[tuple[int, int]] = []
    path = str(reference_data / "tiny_models" / "llama")
    Engine(path, cpu, num_blocks=8, progress=lambda done, total: seen.append((done, total))).close()
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_kv_dtypes_hold_less_and_stay_near(engine_of: Callable[..., Engine]) -> None:
    prompt = list(range(5, 45))
    exact = engine_of("qwen3").logits(prompt)
    for kv_dtype, limit in (("bfloat16", 0.1), ("float16", 0.02)):
        engine = engine_of("qwen3", kv_dtype=kv_dtype)
        assert engine.runner.pool.layout.page_bytes * 2 == engine_of("qwen3").runner.pool.layout.page_bytes
        difference = np.abs(engine.logits(prompt) - exact).max()
        assert 0 < difference < limit
