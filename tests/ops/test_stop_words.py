"""Stop words, bad words and the history they are matched against, across every border, by reference and device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling_calls import both, on, words_in_rows

from accel.errors import InvalidArgument
from accel.ops.step import STOP_EOS, STOP_LENGTH, STOP_NONE, STOP_WORD, stop_check_reference
from accel.runner.plan import FinishReason

Word = list[int]
EOS = [90, 91]
#: A prompt and a text as one slot's history holds them; row 1 of the history is another's, and past the end lies junk.
PROMPT, TEXT = [1, 2, 3], [4, 5, 6, 5, 6]
HISTORY = np.full((2, 12), 7, np.int32)
HISTORY[0, :8] = PROMPT + TEXT


def stop(
    run: Callable[..., None],
    sampled: int,
    words: list[Word],
    *,
    generated: int = 6,
    max_tokens: int = 100,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    length: int = 8,
    history: NDArray[np.int32] = HISTORY,
) -> int:
    """The reason for one request in slot 0, whose history holds PROMPT and TEXT and not yet `sampled`."""
    reason = np.full(1, -7, np.int32)

    def row(value: Any, kind: str = "i4") -> NDArray[Any]:
        return np.array([value], kind)

    run(
        reason,
        *(row(sampled), row(generated), row(max_tokens), row(min_tokens), row(ignore_eos, "u1")),
        np.array(EOS, np.int32),
        *(history.copy(), row(0), row(length)),
        *words_in_rows([words]).values(),
    )
    return int(reason[0])


@pytest.fixture(params=["reference", "cpu"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    return dict(both("stop_check"))[request.param]


def test_the_reasons_are_those_of_the_runner() -> None:
    assert [int(reason) for reason in FinishReason] == [STOP_NONE, STOP_EOS, STOP_LENGTH, STOP_WORD]
    assert int(FinishReason.STOP) == STOP_WORD


@pytest.mark.parametrize(
    ("sampled", "word", "want"),
    [
        (9, [9], STOP_WORD),
        (9, [6, 9], STOP_WORD),
        (9, [5, 6, 9], STOP_WORD),
        (9, [4, 5, 6, 5, 6, 9], STOP_WORD),  # the whole text
        (9, [3, 4, 5, 6, 5, 6, 9], STOP_NONE),  # one token into the prompt
        (9, [1, 2, 3, 4, 5, 6, 5, 6, 9], STOP_NONE),  # prompt and text
        (9, [0, 1, 2, 3, 4, 5, 6, 5, 6, 9], STOP_NONE),  # longer than everything
        (9, [7, 9], STOP_NONE),  # what lies past the end, and in the other slot
        (9, [5, 9], STOP_NONE),  # in the text, but not its end
        (9, [9, 6], STOP_NONE),  # the sampled token is the last one
        (6, [5, 6], STOP_NONE),  # complete in the text already, which ended nothing then
        (6, [6, 6], STOP_WORD),
        (9, [6, 9, 9], STOP_NONE),
    ],
)
def test_a_word_ends_a_request_where_it_is_the_end_of_the_generated_tokens(
    run: Callable[..., None], sampled: int, word: Word, want: int
) -> None:
    assert stop(run, sampled, [word]) == want


@pytest.mark.parametrize("generated", range(1, 7))
def test_a_word_never_reaches_into_the_prompt(run: Callable[..., None], generated: int) -> None:
    """The same tokens, of which more and more are the prompt's: a word must fit into what was generated."""
    everything = [*PROMPT, *TEXT, 9]
    for size in range(1, len(everything) + 1):
        word = everything[-size:]
        want = STOP_WORD if size <= generated else STOP_NONE
        assert stop(run, 9, [word], generated=generated) == want, size


def test_the_first_token_can_be_a_word_of_one_only(run: Callable[..., None]) -> None:
    assert stop(run, 9, [[9]], generated=1, length=3) == STOP_WORD
    assert stop(run, 9, [[3, 9]], generated=1, length=3) == STOP_NONE


def test_any_of_several_words_ends_a_request(run: Callable[..., None]) -> None:
    for place in range(4):
        words = [[8], [6, 8], [5, 6, 8], [6, 9, 9]]
        words[place] = [6, 9]
        assert stop(run, 9, words) == STOP_WORD
    assert stop(run, 9, [[8], [6, 8]]) == STOP_NONE
    assert stop(run, 9, []) == STOP_NONE


def test_the_end_token_wins_over_a_word_and_a_word_over_the_length(run: Callable[..., None]) -> None:
    assert stop(run, 90, [[90]], max_tokens=6) == STOP_EOS
    assert stop(run, 90, [[90]], max_tokens=6, ignore_eos=True) == STOP_WORD
    assert stop(run, 90, [], max_tokens=6, ignore_eos=True) == STOP_LENGTH
    assert stop(run, 9, [[9]], max_tokens=6) == STOP_WORD
    assert stop(run, 9, [[8]], max_tokens=6) == STOP_LENGTH
    assert stop(run, 9, [[8]], max_tokens=7) == STOP_NONE
    assert stop(run, 91, []) == STOP_EOS


@pytest.mark.parametrize("generated", [3, 4, 5])
def test_below_min_tokens_only_the_length_ends_a_request(run: Callable[..., None], generated: int) -> None:
    early = generated < 4
    assert stop(run, 90, [], generated=generated, min_tokens=4) == (STOP_NONE if early else STOP_EOS)
    assert stop(run, 9, [[6, 9]], generated=generated, min_tokens=4) == (STOP_NONE if early else STOP_WORD)
    assert stop(run, 9, [[9]], generated=generated, min_tokens=4) == (STOP_NONE if early else STOP_WORD)
    for sampled, words, late in ((90, [], STOP_EOS), (9, [[9]], STOP_WORD)):
        reason = stop(run, sampled, words, generated=generated, min_tokens=4, max_tokens=generated)
        assert reason == (STOP_LENGTH if early else late)


def test_a_negative_sample_ends_nothing_but_by_length(run: Callable[..., None]) -> None:
    assert stop(run, -1, [[6], [5, 6]]) == STOP_NONE
    assert stop(run, -1, [[6], [5, 6]], max_tokens=6) == STOP_LENGTH


def test_without_longer_words_nobody_reads_the_history(run: Callable[..., None]) -> None:
    nothing = np.zeros((1, 1), np.int32)
    assert stop(run, 9, [[8], [9]], length=0, history=nothing) == STOP_WORD
    assert stop(run, 9, [], length=0, history=nothing) == STOP_NONE
    # A count that the history contradicts ends nothing, and reads nothing before it.
    assert stop(run, 9, [[0, 9], [0, 0, 0, 9]], length=0, history=nothing) == STOP_NONE


def test_random_stop_checks_are_those_of_a_search_in_the_text() -> None:
    """Python's own lists as the oracle: the generated tokens and the sampled one end with a word."""
    rng, rows = np.random.default_rng(31), 3000
    prompts = [rng.integers(0, 3, rng.integers(1, 5)).tolist() for _ in range(rows)]
    texts = [rng.integers(0, 3, rng.integers(0, 6)).tolist() for _ in range(rows)]
    words = [[rng.integers(0, 3, rng.integers(1, 5)).tolist() for _ in range(rng.integers(0, 4))] for _ in range(rows)]
    history = np.zeros((rows, 12), np.int32)
    slots = rng.permutation(rows).astype(np.int32)
    for slot, prompt, text in zip(slots, prompts, texts, strict=True):
        history[slot, : len(prompt) + len(text)] = prompt + text
    sampled = rng.integers(-1, 5, rows).astype(np.int32)
    generated = np.array([len(text) + 1 for text in texts], np.int32)
    max_tokens, min_tokens = rng.integers(1, 9, rows).astype(np.int32), rng.integers(0, 5, rows).astype(np.int32)
    ignore, eos = rng.integers(0, 2, rows).astype(np.uint8), np.array([3], np.int32)
    want = []
    for r in range(rows):
        whole, open_ = [*texts[r], int(sampled[r])], generated[r] >= min_tokens[r] and sampled[r] >= 0
        if open_ and sampled[r] == 3 and not ignore[r]:
            want.append(STOP_EOS)
        elif open_ and any(whole[-len(word) :] == word for word in words[r]):
            want.append(STOP_WORD)
        else:
            want.append(STOP_LENGTH if generated[r] >= max_tokens[r] else STOP_NONE)
    lengths = np.array([len(p) + len(t) for p, t in zip(prompts, texts, strict=True)], np.int32)
    lists = words_in_rows(words).values()
    for op in (stop_check_reference, on("stop_check"), on("stop_check", "generic", 3)):
        reason = np.full(rows, -7, np.int32)
        op(reason, sampled, generated, max_tokens, min_tokens, ignore, eos, history, slots, lengths, *lists)
        np.testing.assert_array_equal(reason, want)
    assert set(want) == {STOP_NONE, STOP_EOS, STOP_LENGTH, STOP_WORD}


# --- bad words --------------------------------------------------------------------------------------------------------


def banned(run: Callable[..., None], words: list[list[Word]], prompt_lens: list[int], lengths: list[int]) -> list[Any]:
    """The ids that are banned in each row; rows share slot 0."""
    logits = np.ones((len(words), 12), np.float32)
    slots = np.zeros(len(words), np.int32)
    lens = (np.array(values, np.int32) for values in (prompt_lens, lengths))
    run(logits, HISTORY.copy(), slots, *lens, *words_in_rows(words).values())
    assert set(np.unique(logits)) <= {1, -np.inf}
    return [np.flatnonzero(row == -np.inf).tolist() for row in logits]


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_the_token_that_would_complete_a_bad_word_is_banned(name: str) -> None:
    run = dict(both("bad_words"))[name]
    words = [[8], [6, 9], [4, 5, 6, 5, 6, 10], [3, 4, 5, 6, 5, 6, 11], [5, 1], [6, 6, 2], [7, 3]]
    assert banned(run, [words], [3], [8]) == [[8, 9, 10]]
    # The same history with another border between prompt and text.
    assert banned(run, [words, words], [2, 8], [8, 8]) == [[8, 9, 10, 11], [8]]
    # Each row its own lists, and its own end of the text.
    rows = [[[1]], [], [[5, 2], [4, 5, 3]], [[6, 5, 6, 4], [0], [0]]]
    assert banned(run, rows, [3, 3, 3, 3], [3, 8, 5, 8]) == [[1], [], [2, 3], [0, 4]]


# --- biases -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_biases_add_up_in_order_and_minus_infinity_bans_whatever_was_there(name: str) -> None:
    logits = np.array([[1, np.nan, np.inf, -np.inf, 2], [1e8, 0, 0, 0, 0]], np.float32)
    tokens = np.array([0, 1, 2, 3, 0, 1, 0, 0], np.int32)
    values = np.array([0.5, -np.inf, -np.inf, 7, 0.25, 3, 1, -1e8], np.float32)
    dict(both("logit_bias"))[name](logits, np.array([0, 6, 8], np.int32), tokens, values)
    # 1e8 + 1 is 1e8 in float32, so the order shows.
    want = [[1.75, -np.inf, -np.inf, -np.inf, 2], [0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(logits, np.array(want, np.float32))


# --- history ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_tokens_go_to_their_places_and_a_negative_one_leaves_its_place_alone(name: str) -> None:
    history = np.full((3, 4), 50, np.int32)
    arrays = [[2, 0, 2, 1, 2], [0, 3, 1, 1, 0], [7, 8, -1, -5, 9]]
    dict(both("write_history"))[name](history, *(np.array(values, np.int32) for values in arrays))
    assert history.tolist() == [[50, 50, 50, 8], [50] * 4, [9, 50, 50, 50]]


def test_an_id_outside_the_vocabulary_is_refused_where_a_penalty_reads_it() -> None:
    history, lengths = np.array([[1, 2, 3], [1, 9, 3]], np.int32), np.array([3, 3], np.int32)
    slots, prompts = np.array([0, 1], np.int32), np.zeros(2, np.int32)
    off, penalty = np.zeros(2, np.float32), np.array([1.5, 1], np.float32)
    logits = np.ones((2, 5), np.float32)
    arguments = (history, slots, prompts, lengths, penalty, off, off)
    on("penalties")(logits, *arguments)
    assert logits.tolist()[1] == [1] * 5
    before = logits.copy()
    for bad in (9, 5, -1, np.iinfo(np.int32).max, np.iinfo(np.int32).min):
        history[1, 1], penalty[1] = bad, 2
        with pytest.raises(InvalidArgument, match=rf"history\[1, 1\] is {bad}; .*\[0, 5\)"):
            on("penalties")(logits, *arguments)
        np.testing.assert_array_equal(logits, before)
    lengths[1] = 1  # past the length nobody looks
    on("penalties")(logits, *arguments)
    assert logits[1].tolist() == [1, 0.5, 1, 1, 1]
