"""Every rule of sampling and stopping, seen through the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from test_concurrency import Turnstile

from accel import Engine, SamplingParams
from accel.errors import InvalidRequest

PROMPT = list(range(5, 40))


def test_each_choice_is_what_its_seed_gives_alone_and_the_prompt_is_computed_once(
    engine_of: Callable[..., Engine],
) -> None:
    engine = engine_of()
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=2**64 - 2, n=4, ignore_eos=True)
    choices = engine.generate(PROMPT, params)
    assert [choice.choice for choice in choices] == [0, 1, 2, 3]
    assert [choice.seed for choice in choices] == [2**64 - 2, 2**64 - 1, 0, 1]
    assert [choice.metrics.hit_tokens for choice in choices] == [0, 32, 32, 32]
    other = engine_of()
    for choice in choices:
        alone = SamplingParams(max_tokens=8, temperature=1.0, seed=choice.seed, ignore_eos=True)
        assert other.generate(PROMPT, alone)[0].token_ids == choice.token_ids


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def test_logprobs_are_the_log_softmax_of_the_models_own_logits(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(max_batch_tokens=16)
    # What shapes the logits must not show in them.
    params = SamplingParams(
        max_tokens=6,
        temperature=0.7,
        top_k=5,
        repetition_penalty=1.5,
        seed=1,
        logprobs=4,
        prompt_logprobs=3,
        ignore_eos=True,
    )
    output = engine.generate([PROMPT, [9, 9]], params)[0]
    wanted = log_softmax(engine.logits([*PROMPT, *output.token_ids]))
    assert output.logprobs is not None
    assert output.prompt_logprobs is not None
    assert len(output.logprobs) == 6
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(PROMPT)
    found = [*output.prompt_logprobs[1:], *output.logprobs]
    for row, item in zip(wanted, found, strict=False):
        assert item is not None
        assert item.logprob == pytest.approx(row[item.token_id], abs=1e-4)
        assert item.rank == 1 + np.count_nonzero(row > row[item.token_id])
        best = np.argsort(-row, kind="stable")[: len(item.top)]
        assert [token for token, _ in item.top] == best.tolist()
        assert [value for _, value in item.top] == pytest.approx(row[best].tolist(), abs=1e-4)
    assert [item.token_id for item in output.logprobs] == output.token_ids
    assert {len(item.top) for item in output.logprobs} == {4}
    assert {len(item.top) for item in output.prompt_logprobs[1:] if item} == {3}


def test_logprobs_are_given_only_to_those_who_asked_and_as_many_as_they_asked(
    engine_of: Callable[..., Engine],
) -> None:
    params = [SamplingParams(max_tokens=3, ignore_eos=True, logprobs=k) for k in (None, 0, 7)]
    outputs = engine_of().generate([[5], [6], [7]], params)
    assert outputs[0].logprobs is None
    assert [len(item.top) for item in outputs[1].logprobs or []] == [0, 0, 0]
    assert [len(item.top) for item in outputs[2].logprobs or []] == [7, 7, 7]


def test_a_bias_forces_and_bans(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    free = engine.generate(PROMPT, SamplingParams(max_tokens=8, ignore_eos=True))[0].token_ids
    forced = engine.generate(PROMPT, SamplingParams(max_tokens=4, ignore_eos=True, logit_bias={7: 1e4}))[0]
    assert forced.token_ids == [7] * 4
    banned = SamplingParams(max_tokens=8, ignore_eos=True, logit_bias=dict.fromkeys(free, -np.inf))
    assert not set(engine.generate(PROMPT, banned)[0].token_ids) & set(free)


def test_bad_words_are_never_generated_and_change_nothing_before_their_place(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    free = engine.generate(PROMPT, SamplingParams(max_tokens=12, ignore_eos=True))[0].token_ids
    word = tuple(free[4:7])
    held = engine.generate(PROMPT, SamplingParams(max_tokens=12, ignore_eos=True, bad_words=(word,)))[0].token_ids
    assert held[:6] == free[:6]
    assert held[6] != free[6]
    assert all(tuple(held[i : i + 3]) != word for i in range(10))


def test_penalties_see_the_prompt_or_the_output_as_defined(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    strong = SamplingParams(max_tokens=30, ignore_eos=True, presence_penalty=1e4)
    output = engine.generate(PROMPT, strong)[0].token_ids
    assert len(set(output)) == len(output)
    repetition = SamplingParams(max_tokens=30, ignore_eos=True, repetition_penalty=1e30)
    output = engine.generate(PROMPT, repetition)[0].token_ids
    assert len({*output, *PROMPT}) == len(output) + len(PROMPT)


def test_stop_ids_and_sequences_end_with_their_last_token_and_are_named(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    free = engine.generate(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True))[0].token_ids
    pair = (free[4], free[5])
    first = next(i for i in range(1, 20) if (free[i - 1], free[i]) == pair)
    output = engine.generate(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True, stop_sequences=(pair,)))[0]
    assert (output.token_ids, output.finish_reason, output.stop_reason) == (free[: first + 1], "stop", pair)
    output = engine.generate(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True, stop_token_ids=(free[3],)))[0]
    assert (output.token_ids, output.stop_reason) == (free[: free.index(free[3]) + 1], free[3])
    # A sequence that begins in the prompt is none of the output.
    border = (PROMPT[-1], free[0])
    output = engine.generate(PROMPT, SamplingParams(max_tokens=5, ignore_eos=True, stop_sequences=(border,)))[0]
    assert output.finish_reason == "length"


def test_before_min_tokens_nothing_stops_and_end_tokens_are_not_drawn(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    free = engine.generate(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True))[0].token_ids
    stop = free[2]
    params = SamplingParams(max_tokens=20, ignore_eos=True, stop_token_ids=(stop,), min_tokens=6)
    output = engine.generate(PROMPT, params)[0].token_ids
    assert len(output) >= 6
    assert stop not in output[:6]
    assert output[:2] == free[:2]


def test_banning_every_token_ends_the_request_with_the_reason(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    everything = dict.fromkeys(range(engine.config.vocab_size), -np.inf)
    with pytest.raises(InvalidRequest, match="leave no token to choose"):
        engine.generate(PROMPT, SamplingParams(logit_bias=everything))
    assert engine.generate(PROMPT, SamplingParams(max_tokens=1, ignore_eos=True))[0].token_ids


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"logit_bias": {320: 1.0}}, "logit_bias names token id 320; the vocabulary has 320"),
        ({"stop_token_ids": (999,)}, "stop_token_ids names token id 999"),
        ({"bad_words": ((5, 400),)}, "bad_words names token id 400"),
        ({"stop": ("x",)}, "a stop string needs a tokenizer"),
        ({"bad_words": ("x",)}, "a bad word given as text needs a tokenizer"),
    ],
)
def test_rules_this_model_cannot_have_are_refused(
    values: dict[str, object], message: str, engine_of: Callable[..., Engine]
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        engine_of().generate([5], SamplingParams(**values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_p": 1.5}, "min_p is 1.5; it must be 0 to 1"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9; it must be at most max_tokens, 8"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty is nan"),
        ({"presence_penalty": float("inf")}, "presence_penalty is inf"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias of token 1 is inf"),
        ({"logit_bias": {1: "x"}}, "logit_bias of token 1 is 'x'"),
        ({"logit_bias": [1]}, "must map"),
        ({"bad_words": ((),)}, "bad_words holds 0 token ids"),
        ({"stop": ("",)}, "stop holds a text of 0 characters"),
        ({"stop": tuple("a" for _ in range(1025))}, "stop has 1025 entries; the limit is 1024"),
        ({"stop_sequences": ((1, -2),)}, "token id -2"),
        ({"stop_sequences": (("a",),)}, "stop_sequences must hold token ids"),
        ({"n": 0}, "n is 0; it must be 1 to 128"),
        ({"n": 129}, "n is 129"),
        ({"logprobs": 101}, "logprobs is 101; it must be 0 to 100"),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
    ],
)
def test_values_out_of_range_are_refused_by_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        SamplingParams(**values)  # type: ignore[arg-type]


# --- text -------------------------------------------------------------------------------------------------------------


def test_streamed_text_is_the_text_and_has_no_half_characters(text_engine: Callable[..., Engine]) -> None:
    engine = text_engine()
    for seed in range(8):
        params = SamplingParams(max_tokens=60, temperature=1.5, seed=seed)
        tokens = list(engine.stream("the abcd é 漢", params))
        output = tokens[-1].output
        assert output is not None
        assert output.text == "".join(token.text for token in tokens)
        assert output.text == engine.tokenizer.decode(output.token_ids)  # type: ignore[union-attr]
        for token in tokens:
            token.text.encode("utf-8")


def _is_text(engine: Engine, token: int) -> bool:
    text = engine.tokenizer.decode([token])  # type: ignore[union-attr]
    return text.isascii() and text.isalpha()


def test_a_stop_string_ends_the_text_wherever_tokens_end(text_engine: Callable[..., Engine]) -> None:
    engine = text_engine()
    # Letters and pairs of letters, so that strings lie across the borders of tokens as well as within them.
    letters = {token: 9.0 for token in range(engine.config.vocab_size) if _is_text(engine, token)}
    params = SamplingParams(max_tokens=30, temperature=1.0, seed=3, ignore_eos=True, logit_bias=letters)
    free = engine.generate("abc", params)[0]
    assert free.text is not None
    checked = 0
    for begin in range(0, len(free.text) - 5, 2):
        stop = free.text[begin : begin + 4]
        checked += 1
        held = replace(params, stop=(stop,))
        tokens = list(engine.stream("abc", held))
        output = tokens[-1].output
        assert output is not None
        assert output.text == free.text[: free.text.index(stop)]
        assert "".join(token.text for token in tokens) == output.text
        assert (output.finish_reason, output.stop_reason) == ("stop", stop)
        assert output.token_ids == free.token_ids[: len(output.token_ids)]
        kept = engine.generate("abc", replace(held, include_stop=True))
        assert kept[0].text == output.text + stop
        assert kept[0].token_ids == output.token_ids
    assert checked >= 10


def test_a_stop_string_is_not_looked_for_before_min_tokens(text_engine: Callable[..., Engine]) -> None:
    engine = text_engine()
    free = engine.generate("abc", SamplingParams(30, 1.0, seed=3, ignore_eos=True))[0]
    assert free.text
    params = SamplingParams(30, 1.0, seed=3, ignore_eos=True, stop=(free.text[0],), min_tokens=10)
    output = engine.generate("abc", params)[0]
    assert len(output.token_ids) >= 10


def test_text_held_back_for_a_stop_string_comes_when_the_request_ends_without_it(
    text_engine: Callable[..., Engine],
) -> None:
    engine = text_engine()
    free = engine.generate("abc", SamplingParams(30, 1.0, seed=3, ignore_eos=True))[0]
    assert free.text
    params = SamplingParams(30, 1.0, seed=3, ignore_eos=True, stop=(free.text + "never",))
    tokens = list(engine.stream("abc", params))
    assert "".join(token.text for token in tokens) == free.text
    assert all(token.text == "" for token in tokens[:-1])


def test_bad_words_given_as_text_are_banned_with_and_without_a_space_before(
    text_engine: Callable[..., Engine],
) -> None:
    engine = text_engine()
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=5, ignore_eos=True, bad_words=("a", "the"))
    outputs = [engine.generate("abc", SamplingParams(40, 1.0, seed=s, ignore_eos=True))[0] for s in range(6)]
    letter = engine.tokenizer.encode("a", add_special_tokens=False)[0]  # type: ignore[union-attr]
    assert any(letter in output.token_ids for output in outputs)
    assert letter not in engine.generate("abc", params)[0].token_ids


def test_a_conversation_is_put_into_the_models_chat_format(text_engine: Callable[..., Engine]) -> None:
    engine = text_engine()
    messages = [{"role": "user", "content": "abc"}]
    output = engine.generate(messages, SamplingParams(max_tokens=2))[0]
    assert engine.tokenizer.decode(output.prompt_token_ids) == "user:abc;a:"  # type: ignore[union-attr]
    both = engine.generate([messages, "abc", [5, 6]], SamplingParams(max_tokens=2))
    assert [len(output.prompt_token_ids) for output in both] == [len(output.prompt_token_ids), 3, 2]


def test_half_a_character_at_the_end_is_no_stop_string_before_min_tokens(
    text_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = text_engine()
    assert engine.tokenizer is not None
    half = 0
    while True:  # a token that is the first byte of a character: nothing comes until the text is over
        text = engine.tokenizer.stream()
        if (text.push(half), text.finish()) == ("", "\ufffd"):
            break
        half += 1
    gate = Turnstile(engine, monkeypatch)
    params = SamplingParams(40, ignore_eos=True, stop=("\ufffd",), min_tokens=30, logit_bias={half: 1e6})
    stream = engine.stream([5], params)
    gate.allow(2)
    next(stream)
    stream.abort()
    gate.allow(500)
    output = [token.output for token in stream][-1]
    assert output is not None
    assert output.text is not None
    assert set(output.token_ids) == {half}
    assert output.text.endswith("\ufffd")
    assert (output.finish_reason, output.stop_reason) == ("abort", None)
