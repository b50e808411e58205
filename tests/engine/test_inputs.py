"""Whatever a caller passes works or is one typed error, and the engine goes on as if nothing had been asked."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_concurrency import Turnstile

from accel import Device, Engine, SamplingParams
from accel.errors import AccelError, InvalidArgument, InvalidRequest

SHORT = SamplingParams(max_tokens=3, ignore_eos=True)
HUGE = 10**5000

PROMPTS: list[Any] = [None, 5, 5.5, True, b"abc", bytearray(b"abc"), memoryview(b"abc"), np.array(5), np.array([5.0])]
PROMPTS += [[], [[]], [[[5]]], [HUGE], [-1], [2**63], "text without a tokenizer", [{}], [{"role": 1}], {}, object()]
PROMPTS += [iter([5]), {5}, [5, None], [b"ab"], np.array(["a"])]

VALUES: list[Any] = [
    None,
    "x",
    "",
    b"x",
    0.5,
    float("nan"),
    HUGE,
    -HUGE,
    [1],
    {},
    object(),
    1j,
    np.array([1, 2]),
    2,
    -1,
]
NAMES = sorted(name for name, field in SamplingParams.__dataclass_fields__.items() if field.init)


def unharmed(engine: Engine) -> None:
    engine.wait_idle(20)
    assert engine.scheduler.pool.stats().owned == 0
    assert len(engine.generate([5, 6, 7], SHORT, deadline=60)[0].token_ids) == 3


@pytest.mark.parametrize("call", ["generate", "stream", "encode", "logits"])
def test_what_is_no_prompt_is_refused(engine_of: Callable[..., Engine], call: str) -> None:
    engine = engine_of()
    for prompt in PROMPTS:
        with pytest.raises(InvalidRequest):
            getattr(engine, call)(prompt)
    unharmed(engine)


def test_prompts_of_any_whole_numbers_are_the_same_prompt(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    wanted = engine.generate([5, 6], SHORT)[0].token_ids
    same: list[Any] = [(5, 6), range(5, 7), [np.int64(5), 6], *(np.array([5, 6], d) for d in ("u1", "i8", object))]
    for prompt in same:
        assert engine.generate(prompt, SHORT)[0].token_ids == wanted


@pytest.mark.parametrize("name", NAMES)
def test_params_of_any_kind_work_or_are_refused_and_never_harm_the_engine(
    engine_of: Callable[..., Engine], name: str
) -> None:
    engine = engine_of()
    for value in VALUES:
        try:
            params = SamplingParams(**{"max_tokens": 2, name: value})
            output = engine.generate([5], params, deadline=60)[0]
        except InvalidRequest as error:
            refusal = str(error)
        else:
            refusal = ""
            assert output.finish_reason in ("stop", "length")
        assert not refusal or name in refusal or "needs a tokenizer" in refusal
    unharmed(engine)


def test_numbers_of_params_are_plain_whatever_they_were_given_as(engine_of: Callable[..., Engine]) -> None:
    plain = SamplingParams(max_tokens=100, seed=2**64 - 1, n=2, temperature=0.5, ignore_eos=True, logit_bias={7: 1.0})
    odd = SamplingParams(
        max_tokens=np.int8(100),  # type: ignore[arg-type]
        seed=np.uint64(2**64 - 1),  # type: ignore[arg-type]
        n=np.uint8(2),  # type: ignore[arg-type]
        temperature=np.float16(0.5),  # type: ignore[arg-type]
        ignore_eos=np.True_,  # type: ignore[arg-type]
        logit_bias={np.int32(7): np.float32(1)},  # type: ignore[dict-item]
    )
    assert odd == plain
    assert all(type(getattr(odd, name)) is type(getattr(plain, name)) for name in NAMES)
    engine = engine_of()
    prompt = [5] * 120  # with it, 100 more pass what an int8 holds
    tokens = [[output.token_ids for output in engine.generate(prompt, params)] for params in (plain, odd)]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("name", ["stop", "bad_words", "stop_token_ids", "stop_sequences"])
def test_a_sequence_that_never_ends_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} h.* more than 1024 "):
        SamplingParams(**{name: itertools.repeat("x") if name in ("stop", "bad_words") else itertools.count()})


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("priority", [None, 0.5, "x", float("nan"), HUGE, [1]]),
        ("deadline", [0, "x", b"1", float("nan"), float("inf"), HUGE, [1]]),
        ("salt", [None, 5, b"x", ["x"]]),
        ("request_id", [5, b"x", ["x"]]),
        ("wait", [None, "x", 2, []]),
        ("params", [5, "x", [], [SHORT] * 2, [None], {}, iter([SHORT])]),
    ],
)
def test_an_argument_of_a_call_that_cannot_be_is_refused_by_name(
    engine_of: Callable[..., Engine], argument: str, values: list[Any]
) -> None:
    engine = engine_of()
    for value in values:
        with pytest.raises(InvalidRequest, match=argument):
            engine.generate([5], **{"params": SHORT, argument: value})
    with pytest.raises(InvalidRequest, match="request_id"):
        engine.abort([5])  # type: ignore[arg-type]
    unharmed(engine)


@pytest.mark.parametrize(
    "name",
    [
        *("model", "device", "block_size", "num_blocks", "max_batch_tokens", "max_requests", "dtype", "kv_dtype"),
        *("kv_order", "max_model_len", "memory_fraction", "progress", "depth", "max_waiting", "output_reserve"),
        *("priority_seconds", "prefix_cache", "step_timeout", "metrics_port"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(reference_data: Path, cpu: Device, name: str) -> None:
    right = {"model": str(reference_data / "tiny_models" / "llama"), "device": cpu, "num_blocks": 8}
    for value in (float("nan"), -1, -HUGE, b"", [], object()):
        with pytest.raises(AccelError) as caught:
            Engine(**{**right, name: value})
        assert isinstance(caught.value, InvalidArgument)
        assert name in str(caught.value)


def test_a_name_that_was_made_up_never_takes_that_of_a_caller(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    long = SamplingParams(max_tokens=400, ignore_eos=True)
    mine = {f"request-{number}": engine.stream([5], long, request_id=f"request-{number}") for number in range(12)}
    others = [engine.stream([6], long) for _ in range(4)]
    assert not {other.request_id for other in others} & mine.keys()
    for name in mine:
        engine.abort(name)
    for stream in (*mine.values(), *others):
        stream.close()
    unharmed(engine)


def test_a_bias_that_is_changed_while_its_request_runs_changes_nothing(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of()
    params = SamplingParams(max_tokens=6, ignore_eos=True, logit_bias={7: 0.5})
    wanted = engine.generate([[5], [6]], params)
    gate = Turnstile(engine, monkeypatch)
    streams = [engine.stream([5], params), engine.stream([6], params)]
    gate.allow(2)
    next(streams[0])
    params.logit_bias[10**6] = float("nan")  # type: ignore[index]
    gate.allow(500)
    outputs = [token.output for stream in streams for token in stream if token.output]
    assert [output.token_ids for output in outputs] == [output.token_ids for output in wanted]
    unharmed(engine)
