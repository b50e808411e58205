"""Log probabilities: what must hold of them, and that they are what float64 says, on the reference and the device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling_calls import both, on

from accel.ops.spec import op_spec

LIMIT = op_spec("logprobs").tolerance["float32"]
Results = tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]


def logprobs(run: Callable[..., None], logits: NDArray[np.float32], tokens: list[int], top: int) -> Results:
    """value, rank, top_ids, top_values."""
    rows = len(logits)
    out = (
        np.full(rows, 9, np.float32),
        np.full(rows, -9, np.int32),
        np.full((rows, top), -9, np.int32),
        np.full((rows, top), 9, np.float32),
    )
    run(*out, logits, np.array(tokens, np.int32))
    return out


@pytest.fixture(params=["reference", "cpu", "generic"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    return on("logprobs", "generic", 1) if request.param == "generic" else dict(both("logprobs"))[request.param]


@pytest.mark.parametrize(("vocab", "spread"), [(5, 1.0), (1000, 0.01), (1000, 5.0), (50_000, 3.0), (50_000, 100.0)])
def test_values_are_the_log_softmax_of_float64(run: Callable[..., None], vocab: int, spread: float) -> None:
    logits = (np.random.default_rng(32).standard_normal((4, vocab)) * spread).astype(np.float32)
    tokens = np.random.default_rng(33).integers(0, vocab, 4)
    value, rank, ids, values = logprobs(run, logits, tokens.tolist(), 5)
    wide = logits.astype(np.float64)
    want = wide - wide.max(axis=1, keepdims=True)
    want -= np.log(np.exp(want).sum(axis=1, keepdims=True))
    for got, expected in ((value, want[np.arange(4), tokens]), (values, np.take_along_axis(want, ids, axis=1))):
        np.testing.assert_allclose(got, expected, rtol=2 * LIMIT.rtol, atol=LIMIT.atol)
    np.testing.assert_array_equal(rank, 1 + (logits > logits[np.arange(4), tokens][:, None]).sum(axis=1))


def test_all_of_a_vocabulary_sums_to_one_in_falling_order(run: Callable[..., None]) -> None:
    logits = (np.random.default_rng(34).standard_normal((3, 777)) * 4).astype(np.float32)
    _, _, ids, values = logprobs(run, logits, [0, 0, 0], 777)
    np.testing.assert_allclose(np.exp(values.astype(np.float64)).sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(np.sort(ids, axis=1), np.tile(np.arange(777), (3, 1)))
    assert (np.diff(values, axis=1) <= 0).all()


def test_the_token_of_rank_n_is_the_nth_of_the_list_and_has_its_value(run: Callable[..., None]) -> None:
    logits = np.random.default_rng(35).permutation(60).astype(np.float32)[None] / 4
    for token in range(60):
        value, rank, ids, values = logprobs(run, logits, [token], 60)
        assert ids[0, rank[0] - 1] == token
        assert values[0, rank[0] - 1] == value[0]


def test_equals_share_a_rank_and_are_listed_by_rising_id(run: Callable[..., None]) -> None:
    logits = np.array([[2, 5, 2, 5, 5, 1]], np.float32)
    ranks = [int(logprobs(run, logits, [token], 0)[1][0]) for token in range(6)]
    assert ranks == [4, 1, 4, 1, 1, 6]
    assert logprobs(run, logits, [0], 6)[2].tolist() == [[1, 3, 4, 0, 2, 5]]


@pytest.mark.parametrize("top", [0, 1, 3, 33])
def test_any_number_of_best_tokens_begins_the_whole_list(run: Callable[..., None], top: int) -> None:
    logits = np.round(np.random.default_rng(36).standard_normal((7, 33)) * 2).astype(np.float32)
    whole = logprobs(run, logits, [3] * 7, 33)
    part = logprobs(run, logits, [3] * 7, top)
    assert part[2].shape == (7, top)
    for got, want in zip(part, whole, strict=True):
        np.testing.assert_array_equal(got, want if got.ndim == 1 else want[:, :top])


def test_nan_counts_as_minus_infinity_and_comes_last(run: Callable[..., None]) -> None:
    nan, inf = np.nan, np.inf
    logits = np.array([[nan, 1, -inf, 1, nan]], np.float32)
    value, rank, ids, values = logprobs(run, logits, [0], 5)
    assert (value[0], rank[0]) == (-inf, 3)
    assert ids.tolist() == [[1, 3, 0, 2, 4]]
    np.testing.assert_allclose(values, [[np.log(0.5), np.log(0.5), -inf, -inf, -inf]], rtol=1e-6)


def test_a_row_without_a_number_says_so_and_so_does_a_token_that_is_none(run: Callable[..., None]) -> None:
    nan, inf = np.nan, np.inf
    logits = np.array([[nan, -inf, nan], [-inf] * 3, [0, 1, 2]], np.float32)
    value, rank, ids, values = logprobs(run, logits, [1, -1, -1], 2)
    assert np.isnan(value).all()
    assert rank.tolist() == [0, 0, 0]
    assert ids.tolist() == [[-1, -1], [-1, -1], [2, 1]]
    np.testing.assert_array_equal(np.isnan(values), [[True, True], [True, True], [False, False]])


def test_beside_plus_infinity_nothing_counts(run: Callable[..., None]) -> None:
    inf = np.inf
    value, rank, ids, values = logprobs(run, np.array([[3, inf, 8, inf]], np.float32), [2], 4)
    assert (value[0], rank[0]) == (-inf, 3)
    assert ids.tolist() == [[1, 3, 2, 0]]
    np.testing.assert_allclose(values, [[np.log(0.5), np.log(0.5), -inf, -inf]], rtol=1e-6)


def test_rows_in_another_order_and_alone_give_the_same_bits() -> None:
    rng = np.random.default_rng(37)
    logits, tokens = (rng.standard_normal((50, 300)) * 3).astype(np.float32), rng.integers(0, 300, 50)
    order = rng.permutation(50)
    whole = logprobs(on("logprobs"), logits, tokens.tolist(), 6)
    moved = logprobs(on("logprobs"), logits[order], tokens[order].tolist(), 6)
    for got, want in zip(moved, whole, strict=True):
        assert got.tobytes() == want[order].tobytes()
    for row in (0, 17, 49):
        alone = logprobs(on("logprobs", threads=1), logits[row : row + 1], [int(tokens[row])], 6)
        for got, want in zip(alone, whole, strict=True):
            assert got.tobytes() == want[row : row + 1].tobytes()


def test_a_constant_added_to_all_logits_changes_no_bit() -> None:
    logits = np.random.default_rng(38).integers(-80, 80, (5, 200)).astype(np.float32) / 8
    want = logprobs(on("logprobs"), logits, [0, 1, 2, 3, 4], 9)
    for constant in (-512, 3, 4096):
        got = logprobs(on("logprobs"), logits + np.float32(constant), [0, 1, 2, 3, 4], 9)
        for one, other in zip(got, want, strict=True):
            assert one.tobytes() == other.tobytes()
