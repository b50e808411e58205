"""Sampling and penalties over many random rows: as the references say, with the frequencies that probability asks for,
and unchanged by everything that must not matter.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling_calls import Arrays, both, on, picks, sampling

from accel.ops.logits import penalties_reference
from accel.ops.sampling import acceptable_picks, sample_reference, uniforms

ROWS = 10_000
SETTINGS = [("auto", 1), ("auto", 2), ("auto", 3), ("generic", 1), ("generic", 2), ("generic", 3), ("avx2", 3)]


def random_parameters(rng: np.random.Generator, rows: int, vocab: int) -> Arrays:
    """Every rule on in about half of the rows, and a tenth of them greedy."""

    def half(values: NDArray[Any], off: float) -> NDArray[Any]:
        return np.where(rng.random(rows) < 0.5, values, off)

    return sampling(
        rows,
        temperature=np.where(rng.random(rows) < 0.1, 0, rng.uniform(0.1, 3, rows)),
        top_k=half(rng.integers(1, vocab + 3, rows), 0),
        top_p=half(rng.uniform(0.01, 1, rows), 1),
        min_p=half(rng.uniform(0, 1, rows) ** 3, 0),
        seed=rng.integers(0, 2**64, rows, np.uint64),
        position=rng.integers(0, 2**40, rows),
    )


def random_logits(rng: np.random.Generator, rows: int, vocab: int) -> NDArray[np.float32]:
    """A third plain, a third with many ties, a third with NaN and minus infinity; plus infinity here and there."""
    logits = (rng.standard_normal((rows, vocab)) * 3).astype(np.float32)
    logits[::3] = np.round(logits[::3])
    wrong = rng.random((rows, vocab))
    wrong[np.arange(rows) % 3 != 1] = 1
    logits[wrong < 0.2], logits[wrong < 0.1] = -np.inf, np.nan
    logits[::101, 2] = np.inf
    logits[::211] = np.nan
    return logits


def plain_pick(x: NDArray[np.float64], top_k: int, top_p: float, min_p: float, noise: NDArray[np.float64]) -> int:
    """The pick of one row by the textbook: probabilities, three cuts, the best of x + noise."""
    kept = sorted(range(len(x)), key=lambda i: (-x[i], i))[: top_k or len(x)]
    weights = np.exp(x[kept])
    total, running, prefix = weights.sum(), 0.0, []
    for token, weight in zip(kept, weights, strict=True):
        prefix.append(token)
        running += weight
        if running >= top_p * total:
            break
    kept = [token for token in (prefix if top_p < 1 else kept) if np.exp(x[token]) >= min_p]
    return max(kept, key=lambda i: (x[i] + noise[i], -i))


def test_the_reference_picks_what_the_textbook_picks() -> None:
    rng, vocab, rows = np.random.default_rng(20), 21, 300
    logits = rng.permuted(np.tile(np.arange(vocab) / 4, (rows, 1)), axis=1).astype(np.float32)
    parameters = random_parameters(rng, rows, vocab)
    parameters["temperature"] = np.exp2(rng.integers(-2, 2, rows)).astype(np.float32)  # x is exact
    got, want = picks(sample_reference, logits, parameters), []
    for r in range(rows):
        row = {name: values[r] for name, values in parameters.items()}
        x = (logits[r].astype(np.float64) - logits[r].max()) / row["temperature"]
        noise = -np.log(-np.log(uniforms(int(row["seed"]), int(row["position"]), vocab).astype(np.float64)))
        want.append(plain_pick(x, int(row["top_k"]), float(row["top_p"]), float(row["min_p"]), noise))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("vocab", [3, 61, 200])
def test_ten_thousand_random_rows_are_picked_as_the_reference_picks(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    rows = ROWS if vocab == 61 else ROWS // 5
    logits, parameters = random_logits(rng, rows, vocab), random_parameters(rng, rows, vocab)
    got, want = picks(on("sample"), logits, parameters), picks(sample_reference, logits, parameters)
    assert acceptable_picks(got, logits, *parameters.values()).all()
    # A near tie is rare, so nearly all are the same token.
    assert np.count_nonzero(got != want) <= rows // 1000


def random_penalties(rng: np.random.Generator, rows: int, vocab: int) -> Arrays:
    """Arguments of `penalties` but the logits; each penalty off in a third of the rows."""
    slots, length = 500, 40
    lengths = rng.integers(0, length + 1, rows)

    def some(values: NDArray[Any], off: float) -> NDArray[np.float32]:
        return np.where(rng.random(rows) < 1 / 3, off, values).astype(np.float32)

    return {
        "history": rng.integers(0, vocab, (slots, length)).astype(np.int32),
        "slots": rng.integers(0, slots, rows).astype(np.int32),
        "prompt_lens": (lengths * rng.random(rows)).astype(np.int32),
        "lengths": lengths.astype(np.int32),
        "repetition": some(rng.uniform(0.1, 3, rows), 1),
        "frequency": some(rng.normal(0, 1, rows), 0),
        "presence": some(rng.normal(0, 1, rows), 0),
    }


def test_ten_thousand_random_rows_are_penalised_as_the_reference_says_to_the_bit() -> None:
    rng = np.random.default_rng(22)
    logits, arguments = random_logits(rng, ROWS, 50), random_penalties(rng, ROWS, 50)
    got, want = logits.copy(), logits.copy()
    on("penalties")(got, *arguments.values())
    penalties_reference(want, *arguments.values())
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), ~numbers)
    np.testing.assert_array_equal(got[numbers].view(np.uint32), want[numbers].view(np.uint32))
    assert np.count_nonzero(got[numbers] != logits[numbers]) > ROWS


def test_penalties_of_the_reference_are_those_of_a_count_by_hand() -> None:
    rng, vocab = np.random.default_rng(23), 12
    arguments = random_penalties(rng, 60, vocab)
    logits = rng.normal(0, 3, (60, vocab)).astype(np.float32)
    got = logits.copy()
    penalties_reference(got, *arguments.values())
    for r in range(60):
        row = {name: values[r] for name, values in arguments.items() if name != "history"}
        text = arguments["history"][row["slots"], : row["lengths"]].tolist()
        counts = Counter(text[row["prompt_lens"] :])
        for token in range(vocab):
            want = np.float32(logits[r, token])
            if token in text:
                want = want / row["repetition"] if want > 0 else want * row["repetition"]
                want -= row["frequency"] * np.float32(counts[token])
                want -= row["presence"] if counts[token] else np.float32(0)
            assert got[r, token] == want


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_each_penalty_alone_does_what_its_name_says(name: str) -> None:
    """Token 0 in the prompt, 1 twice and 2 once in the text, 3 nowhere; token 2 is unlikely as it is."""
    history, zero, one = np.array([[0, 1, 2, 1, 3]], np.int32), np.zeros(1, np.int32), np.ones(1, np.int32)
    for penalties, want in (
        ((2, 0, 0), [2, 2, -8, 4]),
        ((1, 0.5, 0), [4, 3, -4.5, 4]),
        ((1, 0, 0.5), [4, 3.5, -4.5, 4]),
        ((2, 1, 0.5), [2, -0.5, -9.5, 4]),
        ((1, 0, 0), [4, 4, -4, 4]),
    ):
        logits = np.array([[4, 4, -4, 4]], np.float32)
        values = [np.array([value], np.float32) for value in penalties]
        dict(both("penalties"))[name](logits, history, zero, one, np.array([4], np.int32), *values)
        assert logits.tolist() == [want]


# --- frequencies ------------------------------------------------------------------------------------------------------


def chi_square_limit(freedom: int) -> float:
    """What chance exceeds once in a thousand times.

    The distribution is the regularised incomplete gamma function by its power series (Abramowitz and Stegun, 6.5.29).
    """
    shape, terms = freedom / 2, np.arange(1, 400)

    def below(statistic: float) -> float:
        x = statistic / 2
        series = 1 + np.cumprod(x / (shape + terms)).sum()
        return float(np.exp(shape * np.log(x) - x - math.lgamma(shape + 1)) * series)

    low, high = 1e-3, 20.0 * freedom
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < 0.999 else (low, middle)
    return low


def test_the_chi_square_limit_is_that_of_the_tables() -> None:
    for freedom, want in ((1, 10.83), (2, 13.82), (3, 16.27), (5, 20.52), (10, 29.59), (30, 59.70)):
        assert abs(chi_square_limit(freedom) - want) < 0.006


def probabilities(logits: NDArray[np.float64], temperature: float, top_k: int, top_p: float, min_p: float) -> Any:
    """Softmax after the cuts; zero for what they remove."""
    p = np.exp((logits - logits.max()) / temperature)
    order = np.argsort(-p, kind="stable")
    keep = order[: top_k or len(p)]
    running = np.cumsum(p[keep])
    keep = keep[: np.count_nonzero(running < top_p * running[-1]) + 1] if top_p < 1 else keep
    keep = keep[p[keep] >= min_p * p.max()]
    kept = np.zeros_like(p)
    kept[keep] = p[keep]
    return kept / kept.sum()


@pytest.mark.parametrize("counted_by", ["position", "seed"])
@pytest.mark.parametrize(
    "parameters",
    [
        (1.0, 0, 1.0, 0.0),
        (0.6, 0, 1.0, 0.0),
        (1.7, 0, 1.0, 0.0),
        (1.0, 7, 1.0, 0.0),
        (1.0, 0, 0.8, 0.0),
        (1.0, 0, 1.0, 0.15),
        (1.3, 12, 0.9, 0.05),
        (0.8, 3, 0.99, 0.1),
        (2.5, 0, 0.7, 0.3),
    ],
    ids=str,
)
def test_sampled_frequencies_pass_a_chi_square_test(
    parameters: tuple[float, int, float, float], counted_by: str
) -> None:
    draws, vocab = 20_000, 19
    logits = np.random.default_rng(24).normal(0, 1.2, vocab).astype(np.float32)
    temperature, top_k, top_p, min_p = parameters
    counter = np.arange(draws) if counted_by == "position" else np.full(draws, 77)
    seed = np.full(draws, 41) if counted_by == "position" else np.arange(draws) * 2654435761
    arguments = sampling(
        draws, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, position=counter
    )
    counts = np.bincount(picks(on("sample"), np.tile(logits, (draws, 1)), arguments), minlength=vocab)
    expected = probabilities(logits.astype(np.float64), *parameters) * draws
    kept = expected > 0
    assert expected[kept].min() >= 5, "too few for the approximation"
    assert not counts[~kept].any(), "a token that the rules removed was picked"
    statistic = np.sum((counts[kept] - expected[kept]) ** 2 / expected[kept])
    assert statistic < chi_square_limit(int(kept.sum()) - 1)


# --- what must not matter ---------------------------------------------------------------------------------------------


def test_rows_in_another_order_give_the_same_picks_in_that_order() -> None:
    rng = np.random.default_rng(25)
    logits, parameters = random_logits(rng, 500, 90), random_parameters(rng, 500, 90)
    order = rng.permutation(500)
    want = picks(on("sample"), logits, parameters)
    moved = picks(on("sample"), logits[order], {name: values[order] for name, values in parameters.items()})
    np.testing.assert_array_equal(moved, want[order])


def test_penalised_rows_in_another_order_are_the_same_rows() -> None:
    rng = np.random.default_rng(26)
    logits, arguments = random_logits(rng, 300, 40), random_penalties(rng, 300, 40)
    order = rng.permutation(300)
    want, moved = logits.copy(), logits[order].copy()
    on("penalties")(want, *arguments.values())
    on("penalties")(moved, *(v if name == "history" else v[order] for name, v in arguments.items()))
    np.testing.assert_array_equal(moved, want[order])


@pytest.mark.parametrize("batch", [1, 2, 17, 64])
def test_one_seed_and_position_pick_the_same_token_in_any_batch(batch: int) -> None:
    rng = np.random.default_rng(27)
    logits, parameters = random_logits(rng, batch, 90), random_parameters(rng, batch, 90)
    mine, own = random_logits(rng, 1, 90), sampling(1, temperature=1.5, top_p=0.95, min_p=0.02, seed=9, position=4)
    want = picks(on("sample"), mine, own)
    for place in {0, batch // 2, batch - 1}:
        logits[place] = mine[0]
        for name, values in parameters.items():
            values[place] = own[name][0]
        assert picks(on("sample"), logits, parameters)[place] == want[0]


@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9}], ids=str)
def test_a_constant_added_to_all_logits_changes_no_greedy_pick(greedy: dict[str, float]) -> None:
    rng = np.random.default_rng(28)
    # Eighths and whole constants: the sums are exact, and no two logits of a row are the same.
    logits = rng.permuted(np.tile(np.arange(60) / 8, (40, 1)), axis=1).astype(np.float32)
    parameters = sampling(40, **greedy)
    want = picks(on("sample"), logits, parameters)
    np.testing.assert_array_equal(want, np.argmax(logits, axis=1))
    for constant in (-1000, -3, 1, 4096):
        np.testing.assert_array_equal(picks(on("sample"), logits + np.float32(constant), parameters), want)


@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize("others", [{}, {"top_k": 40}, {"top_p": 0.99}, {"top_k": 45, "top_p": 0.999}], ids=str)
def test_min_p_1_is_greedy_among_ties(name: str, others: dict[str, float]) -> None:
    rng, rows = np.random.default_rng(29), 400
    logits = np.round(rng.normal(0, 1, (rows, 50))).astype(np.float32)
    got = picks(dict(both("sample"))[name], logits, sampling(rows, min_p=1.0, temperature=2.0, **others))
    assert (logits[np.arange(rows), got] == logits.max(axis=1)).all()
    alone = (logits == logits.max(axis=1, keepdims=True)).sum(axis=1) == 1
    np.testing.assert_array_equal(got[alone], np.argmax(logits, axis=1)[alone])
    assert (got != np.argmax(logits, axis=1)).any(), "among ties chance decides"


def test_min_p_keeps_a_token_exactly_at_its_share() -> None:
    """log(2**-n) in float32, and a logit there: kept. One float below it: out."""
    for share in (0.5, 0.25, 2.0**-10):
        border = np.float32(np.log(share))
        logits = np.array([[0, border, np.nextafter(border, np.float32(-np.inf))]], np.float32)
        seen = set(picks(sample_reference, np.tile(logits, (4000, 1)), sampling(4000, min_p=share)).tolist())
        assert seen == {0, 1}


@pytest.mark.parametrize(("isa", "threads"), SETTINGS)
def test_no_setting_changes_a_bit_of_any_rule(isa: str, threads: int) -> None:
    rng, rows, vocab = np.random.default_rng(30), 200, 333
    logits, parameters = random_logits(rng, rows, vocab), random_parameters(rng, rows, vocab)
    arguments, tokens = random_penalties(rng, rows, vocab), rng.integers(-1, vocab, rows).astype(np.int32)

    def all_rules(isa: str, threads: int) -> list[bytes]:
        penalised = np.where(np.isnan(logits), np.float32(-3), logits)  # one NaN is as good as another
        on("penalties", isa, threads)(penalised, *arguments.values())
        outputs = [np.zeros(rows, "f4"), np.zeros(rows, "i4"), np.zeros((rows, 9), "i4"), np.zeros((rows, 9), "f4")]
        on("logprobs", isa, threads)(*outputs, logits, tokens)
        outputs = [np.nan_to_num(values, nan=7.0) for values in outputs]
        sampled = picks(on("sample", isa, threads), logits, parameters)
        return [values.tobytes() for values in (penalised, *outputs, sampled)]

    assert all_rules(isa, threads) == all_rules("auto", 2)
