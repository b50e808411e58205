"""Properties of the NumPy references: what must hold of the mathematics, whoever computes it.

Oracles are other formulations (a masked matrix for attention, a loop over tokens for the step), published test vectors
(Philox, splitmix64), the gguf package for quantised blocks, and identities.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from accel.errors import InvalidArgument
from accel.ops.activation import silu_and_mul_reference
from accel.ops.attention import attention_reference, write_kv_reference
from accel.ops.cases import ORDERS, random_weight
from accel.ops.embedding import embedding_reference, gather_rows_reference
from accel.ops.linear import linear_reference
from accel.ops.norm import add_rms_norm_reference, rms_norm_reference
from accel.ops.operand import Operand
from accel.ops.pages import (
    checksum,
    pages_checksum_reference,
    pages_copy_reference,
    pages_gather_reference,
    pages_scatter_reference,
    pages_zero_reference,
)
from accel.ops.rotary import rotary_reference
from accel.ops.rounding import decode, dequantize, encode, from_bfloat16, to_bfloat16
from accel.ops.sampling import acceptable_picks, argmax_reference, philox4x32, sample_reference, uniforms
from accel.ops.step import pack_step_reference, update_slots_reference

seeds = st.integers(0, 2**32 - 1)
floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape, np.float32)


def filled(shape: Any, dtype: Any = np.float32) -> NDArray[Any]:
    """An output that cannot be mistaken for a result."""
    return np.full(shape, 0x7F, dtype)


# --- rounding ---------------------------------------------------------------------------------------------------------


def test_every_bfloat16_survives_a_round_trip() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    values = from_bfloat16(bits)
    # A signalling NaN may become the quiet one.
    np.testing.assert_array_equal(to_bfloat16(values)[~np.isnan(values)], bits[~np.isnan(values)])
    assert np.isnan(from_bfloat16(to_bfloat16(values[np.isnan(values)]))).all()


@given(st.integers(0, 0x7F7E), st.integers(0, 2**16 - 1), st.booleans())
def test_bfloat16_takes_the_nearest_and_the_even_one_of_two(high: int, low: int, negative: bool) -> None:
    value = np.array([(high << 16) | low | (negative << 31)], np.uint32).view(np.float32)
    below, above = from_bfloat16(np.array([high, high + 1], np.uint16)).astype(np.float64)
    magnitude = abs(float(value[0]))
    down, up = magnitude - below, above - magnitude
    want = high if down < up or (down == up and high % 2 == 0) else high + 1
    assert int(to_bfloat16(value)[0]) == want | (negative << 15)


def test_bfloat16_overflows_to_infinity_and_keeps_the_sign_of_nan() -> None:
    values = np.array([3.4e38, -3.4e38, np.inf, np.nan, -np.nan], np.float32)
    assert [hex(bits) for bits in to_bfloat16(values)] == ["0x7f80", "0xff80", "0x7f80", "0x7fc0", "0xffc0"]


@pytest.mark.parametrize("encoding", ["Q4_0", "Q4_1", "Q8_0"])
def test_quantised_rows_mean_what_the_gguf_package_says(encoding: str) -> None:
    rng = np.random.default_rng(1)
    weight = random_weight(rng, 7, 96, "q8" if encoding == "Q8_0" else "q4", encoding)
    want = gguf.quants.dequantize(weight.rows, gguf.GGMLQuantizationType[encoding])
    np.testing.assert_allclose(weight.matrix, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("encoding", "bytes_", "k"), [("Q4_0", 18, 33), ("Q8_0", 33, 32), ("Q6_K", 18, 32)])
def test_rows_that_are_no_blocks_are_refused(encoding: str, bytes_: int, k: int) -> None:
    with pytest.raises(InvalidArgument, match=encoding):
        dequantize(encoding, np.zeros((2, bytes_), np.uint8), k)


# --- norm -------------------------------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 70), st.floats(0.01, 100))
def test_a_normalised_row_has_unit_mean_square_whatever_its_scale(seed: int, width: int, scale: float) -> None:
    x = normal(np.random.default_rng(seed), 2, width) * np.float32(scale)
    out = filled(x.shape)
    rms_norm_reference(out, x, np.ones(width, np.float32), eps=0.0)
    np.testing.assert_allclose(np.mean(out.astype(np.float64) ** 2, axis=1), 1, rtol=1e-5)


def test_adding_then_normalising_is_the_fused_op_and_in_place_is_the_same() -> None:
    rng = np.random.default_rng(2)
    residual, x, weight = normal(rng, 3, 33), normal(rng, 3, 33), normal(rng, 33)
    total = residual + x
    out, separate = filled(x.shape), filled(x.shape)
    add_rms_norm_reference(out, residual, x, weight, eps=1e-5)
    rms_norm_reference(separate, total, weight, eps=1e-5)
    np.testing.assert_array_equal(residual, total)
    np.testing.assert_array_equal(out, separate)
    rms_norm_reference(total, total, weight, eps=1e-5)
    np.testing.assert_array_equal(total, separate)


# --- rotary -----------------------------------------------------------------------------------------------------------


def rope_table(limit: int, width: int) -> NDArray[np.float32]:
    angles = np.outer(np.arange(limit), 100.0 ** (-np.arange(width // 2) / (width // 2)))
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@given(seeds, st.sampled_from([(2, 2), (16, 16), (20, 8), (33, 32)]), st.booleans())
def test_rotation_keeps_the_norm_and_the_tail_and_is_nothing_at_position_0(
    seed: int, sizes: tuple[int, int], interleaved: bool
) -> None:
    rng = np.random.default_rng(seed)
    head, width = sizes
    x = normal(rng, 4, 3, head)
    rotated = x.copy()
    rotary_reference(rotated, np.array([0, 1, 7, 30]), rope_table(31, width), interleaved=interleaved)
    np.testing.assert_array_equal(rotated[0], x[0])
    np.testing.assert_array_equal(rotated[..., width:], x[..., width:])
    np.testing.assert_allclose(np.linalg.norm(rotated, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)
    assert not np.allclose(rotated[2, :, :width], x[2, :, :width])


@given(seeds, st.integers(0, 20), st.booleans())
def test_rotated_dot_products_depend_on_the_distance_only(seed: int, shift: int, interleaved: bool) -> None:
    rng = np.random.default_rng(seed)
    table = rope_table(64, 16)
    pair = normal(rng, 2, 1, 16)
    near, far = pair.copy(), pair.copy()
    rotary_reference(near, np.array([3, 10]), table, interleaved=interleaved)
    rotary_reference(far, np.array([3, 10]) + shift, table, interleaved=interleaved)
    np.testing.assert_allclose(near[0] @ near[1].T, far[0] @ far[1].T, atol=1e-4)


def test_interleaved_pairs_are_halves_in_another_order() -> None:
    rng = np.random.default_rng(3)
    x, positions, table = normal(rng, 3, 2, 12), np.array([1, 5, 9]), rope_table(10, 12)
    order = np.concatenate([np.arange(0, 12, 2), np.arange(1, 12, 2)])
    halves, interleaved = x[..., order].copy(), x.copy()
    rotary_reference(halves, positions, table)
    rotary_reference(interleaved, positions, table, interleaved=True)
    np.testing.assert_array_equal(interleaved[..., order], halves)


# --- attention --------------------------------------------------------------------------------------------------------


class Paged:
    """K and V of one request per entry of `lengths`, in a pool whose blocks are dealt out by `seed`."""

    def __init__(self, seed: int, lengths: list[int], *, heads: int = 2, dim: int = 8, block: int = 4) -> None:
        rng = np.random.default_rng(seed)
        self.lengths = np.array(lengths, np.int32)
        self.k, self.v = ([normal(rng, n, heads, dim) for n in lengths] for _ in range(2))
        used = [-(-n // block) for n in lengths]
        self.pool = np.full((sum(used) + 2, 2, heads, block, dim), np.nan, np.float32)
        self.tables = np.full((len(used), max(used) + 1), -1, np.int32)
        self.block = block
        free = rng.permutation(len(self.pool))
        for row, count in enumerate(used):
            self.tables[row, :count], free = free[:count], free[count:]
            positions = np.arange(lengths[row])
            slots = self.tables[row, positions // block].astype(np.int64) * block + positions % block
            write_kv_reference(self.pool, self.k[row], self.v[row], slots)

    def attend(self, q: NDArray[Any], queries: list[int], *, rows: Any = slice(None), **options: Any) -> NDArray[Any]:
        out = filled(q.shape)
        starts = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
        options.setdefault("scale", 0.3)
        attention_reference(out, q, self.pool, self.tables[rows], starts, self.lengths[rows], **options)
        return out


def masked_attention(
    q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], scale: float, window: int = 0
) -> NDArray[np.float64]:
    """The textbook form: all scores of one request as a matrix, minus infinity where a query may not look."""
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v))
    scores = np.einsum("qad,tad->aqt", q.astype(np.float64), keys) * scale
    position, token = np.arange(len(k) - len(q), len(k))[:, None], np.arange(len(k))[None, :]
    hidden = (token > position) | ((position - token >= window) & (window > 0))
    weights = np.exp(np.where(hidden, -np.inf, scores))
    result: NDArray[np.float64] = np.einsum("aqt,tad->qad", weights / weights.sum(axis=-1, keepdims=True), values)
    return result


@given(seeds, st.integers(0, 12), st.sampled_from([2, 4, 6]))
def test_paged_attention_is_the_masked_matrix(seed: int, window: int, heads: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 20, 3).tolist()
    queries = [int(rng.integers(1, n + 1)) for n in lengths]
    kv, q = Paged(seed, lengths), normal(rng, sum(queries), heads, 8)
    out = kv.attend(q, queries, window=window)
    first = 0
    for row, count in enumerate(queries):
        want = masked_attention(q[first : first + count], kv.k[row], kv.v[row], 0.3, window)
        np.testing.assert_allclose(out[first : first + count], want, rtol=1e-5, atol=1e-6)
        first += count


@given(seeds, st.integers(0, 5))
def test_a_window_as_long_as_the_text_is_no_window(seed: int, extra: int) -> None:
    kv, q = Paged(seed, [9, 13]), normal(np.random.default_rng(seed), 6, 4, 8)
    np.testing.assert_array_equal(kv.attend(q, [5, 1]), kv.attend(q, [5, 1], window=13 + extra))


def test_a_window_of_one_returns_the_tokens_own_value() -> None:
    kv, q = Paged(4, [7]), normal(np.random.default_rng(4), 7, 4, 8)
    np.testing.assert_array_equal(kv.attend(q, [7], window=1), np.repeat(kv.v[0], 2, axis=1))


@given(seeds)
def test_where_the_blocks_lie_makes_no_difference(seed: int) -> None:
    kv, q = Paged(seed, [9, 13, 1]), normal(np.random.default_rng(seed), 7, 4, 8)
    before = kv.attend(q, [4, 2, 1])
    move = np.random.default_rng(seed).permutation(len(kv.pool))
    pool = np.empty_like(kv.pool)
    pool[move] = kv.pool
    kv.pool, kv.tables = pool, np.where(kv.tables >= 0, move[kv.tables], -1).astype(np.int32)
    np.testing.assert_array_equal(kv.attend(q, [4, 2, 1]), before)


@given(seeds, st.integers(1, 10))
def test_a_chunked_prompt_and_a_lone_request_give_the_same_rows(seed: int, cut: int) -> None:
    kv, q = Paged(seed, [11, 6]), normal(np.random.default_rng(seed), 12, 4, 8)
    whole = kv.attend(q, [11, 1])
    kv.lengths[0] = cut
    head = kv.attend(q[:cut], [cut], rows=slice(0, 1))
    kv.lengths[0] = 11
    tail = kv.attend(q[cut:11], [11 - cut], rows=slice(0, 1))
    np.testing.assert_array_equal(np.concatenate([head, tail]), whole[:11])
    np.testing.assert_array_equal(kv.attend(q[11:], [1], rows=slice(1, 2)), whole[11:])


def test_equal_keys_average_the_values_and_scale_0_does_too() -> None:
    kv, q = Paged(5, [10]), normal(np.random.default_rng(5), 1, 2, 8)
    want = kv.v[0].mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(kv.attend(q, [1], scale=0.0)[0], want, rtol=1e-5, atol=1e-6)
    kv.pool[:, 0] = np.where(np.isnan(kv.pool[:, 0]), np.nan, 1)
    np.testing.assert_allclose(kv.attend(q, [1])[0], want, rtol=1e-5, atol=1e-6)


def test_a_nan_stays_in_its_query_and_a_later_token_reaches_no_earlier_one() -> None:
    kv, q = Paged(6, [5, 5]), normal(np.random.default_rng(6), 10, 2, 8)
    clean = kv.attend(q, [5, 5])
    kv.pool[kv.tables[0, 1], 1, 0, 0, 2] = np.nan  # the value of token 4 of request 0
    q[7] = np.nan
    out = kv.attend(q, [5, 5])
    wrong = np.isnan(out)
    assert wrong[4, 0, 2]
    assert wrong[7].all()
    assert wrong.sum() == 1 + wrong[7].size
    np.testing.assert_array_equal(out[~wrong], clean[~wrong])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("order", list(ORDERS))
def test_write_kv_rounds_to_the_cache_and_skips_negative_slots(dtype: str, order: str) -> None:
    rng = np.random.default_rng(7)
    pool = Operand.empty((3, 2, 2, 2, 4, 5), dtype, order=ORDERS[order])
    before = pool.array.copy()
    k, v = normal(rng, 3, 2, 5), normal(rng, 3, 2, 5)
    write_kv_reference(pool.array[:, 1], k, v, np.array([11, -1, 4]))
    for row, (block, offset) in ((0, (2, 3)), (2, (1, 0))):
        for which, source in ((0, k), (1, v)):
            np.testing.assert_array_equal(pool.array[block, 1, which, :, offset], encode(source[row], dtype))
            before[block, 1, which, :, offset] = encode(source[row], dtype)
    np.testing.assert_array_equal(decode(pool.array), decode(before))


# --- activation, linear, embedding ------------------------------------------------------------------------------------


@given(st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=20))
def test_silu_of_x_less_silu_of_minus_x_is_x(values: list[float]) -> None:
    gate, ones = np.array([values], np.float32), np.ones((1, len(values)), np.float32)
    plus, minus = filled(gate.shape), filled(gate.shape)
    silu_and_mul_reference(plus, np.concatenate([gate, ones], axis=1))
    silu_and_mul_reference(minus, np.concatenate([-gate, ones], axis=1))
    np.testing.assert_allclose(plus.astype(np.float64) - minus, gate, rtol=1e-6, atol=1e-6)


def test_silu_follows_ieee_at_the_ends() -> None:
    gate = np.array([[-1e30, -np.inf, np.inf, 0.0, np.nan]], np.float32)
    out = filled(gate.shape)
    silu_and_mul_reference(out, np.concatenate([gate, np.ones_like(gate)], axis=1))
    assert out[0, 0] == 0
    assert np.signbit(out[0, 0])
    np.testing.assert_array_equal(out[0, 1:], [np.nan, np.inf, 0.0, np.nan])


def test_linear_of_a_unit_row_is_a_column_and_embedding_is_its_transpose() -> None:
    rng = np.random.default_rng(8)
    weight, bias = normal(rng, 5, 4), normal(rng, 5)
    out, rows = filled((4, 5)), filled((5, 4))
    linear_reference(out, np.eye(4, dtype=np.float32), weight, bias)
    np.testing.assert_allclose(out, weight.T + bias, rtol=1e-6)
    embedding_reference(rows, np.arange(5), weight)
    np.testing.assert_array_equal(rows, weight)


def test_gather_rows_takes_rows_in_the_order_asked() -> None:
    x, out = normal(np.random.default_rng(9), 4, 3), filled((3, 3))
    gather_rows_reference(out, x, np.array([3, 0, 3]))
    np.testing.assert_array_equal(out, [x[3], x[0], x[3]])


# --- sampling ---------------------------------------------------------------------------------------------------------


def sample(logits: Any, **parameters: Any) -> NDArray[np.int32]:
    logits = np.atleast_2d(np.asarray(logits, np.float32))
    rows = len(logits)
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "position": np.arange(rows)}
    types = {"temperature": "f4", "top_k": "i4", "top_p": "f4", "min_p": "f4", "seed": "u8", "position": "i8"}
    arrays = {
        name: np.broadcast_to(np.asarray(parameters.get(name, default), types[name]), rows).copy()
        for name, default in defaults.items()
    }
    out = np.full(rows, -7, np.int32)
    sample_reference(out, logits, **arrays)
    assert acceptable_picks(out, logits, **arrays).all()
    return out


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ([0, 0, 0, 0], (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter: list[int], key: tuple[int, int], want: str) -> None:
    words = philox4x32(np.array([counter], np.uint64), key)[0]
    assert " ".join(f"{word:08x}" for word in words) == want


def test_uniforms_lie_strictly_between_0_and_1_and_differ_by_seed_position_and_id() -> None:
    base = uniforms(1, 2, 4000)
    assert 0 < base.min() < 0.01
    assert 0.99 < base.max() < 1
    assert len(np.unique(base)) > 3990
    for other in (
        uniforms(2, 2, 4000),
        uniforms(1, 3, 4000),
        uniforms(1 + 2**32, 2, 4000),
        uniforms(1, 2 + 2**32, 4000),
    ):
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.05
    # A longer row begins like a shorter one.
    np.testing.assert_array_equal(uniforms(1, 2, 4001)[:4000], base)


@given(st.lists(st.lists(floats32, min_size=3, max_size=3), min_size=1, max_size=4), seeds)
def test_temperature_0_and_top_k_1_and_a_tiny_top_p_are_argmax(rows: list[list[float]], seed: int) -> None:
    logits = np.array(rows, np.float32)
    greedy = np.full(len(rows), -7, np.int32)
    argmax_reference(greedy, logits)
    np.testing.assert_array_equal(greedy, np.argmax(logits, axis=1))
    for parameters in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-30}):
        np.testing.assert_array_equal(sample(logits, seed=seed, **parameters), greedy)


@given(st.permutations([-90.0, -3.5, -1.0, 0.0, 2.0, 30.0]), st.sampled_from([0.0, -100.0, 60.0]), seeds)
def test_a_temperature_near_0_is_argmax(values: list[float], shift: float, seed: int) -> None:
    logits = np.array([values], np.float32) + np.float32(shift)
    for temperature in (1e-45, 1e-38, 1e-20, 1e-3):
        for cut in ({}, {"top_k": 3}, {"top_p": 0.9}):
            assert sample(logits, seed=seed, temperature=temperature, **cut)[0] == np.argmax(logits)


def test_argmax_takes_the_lowest_of_equals_and_never_a_nan() -> None:
    nan, inf = np.nan, np.inf
    logits = np.array([[1, 3, 3], [nan, 1, nan], [nan, -inf, nan], [-inf] * 3, [inf, nan, inf]], np.float32)
    out = np.full(5, -7, np.int32)
    argmax_reference(out, logits)
    assert out.tolist() == [1, 1, -1, -1, 0]
    assert sample(logits[2:]).tolist() == [-1, -1, 0]
    assert sample(logits[2:], top_p=0.5, top_k=2).tolist() == [-1, -1, 0]


#: Degrees of freedom → the value that chance exceeds once in a thousand times.
CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"temperature": 0.5}, [0, 1, 2, 3, 4]),
        ({"top_k": 3}, [1, 2, 4]),
        ({"top_p": 0.8}, [2, 4]),
        ({"temperature": 2.0, "top_k": 4, "top_p": 0.85}, [1, 2, 4]),
        ({"min_p": 0.2}, [1, 2, 4]),
        ({"temperature": 0.5, "min_p": 0.2}, [2, 4]),
        ({"top_k": 4, "top_p": 0.95, "min_p": 0.01}, [1, 2, 4]),
    ],
)
def test_frequencies_are_the_renormalised_softmax_of_what_is_kept(parameters: dict[str, Any], kept: list[int]) -> None:
    logits = np.array([-1.0, 0.5, 2.0, -0.5, 1.5])
    weights = np.exp(logits / parameters.get("temperature", 1.0))
    expected = np.where(np.isin(np.arange(5), kept), weights, 0)
    expected /= expected.sum()
    draws = 4000
    counts = np.bincount(sample(np.tile(logits, (draws, 1)), seed=11, **parameters), minlength=5)
    assert set(np.flatnonzero(counts)) == set(kept)
    chi_square = np.sum((counts[kept] - expected[kept] * draws) ** 2 / (expected[kept] * draws))
    assert chi_square < CHI_SQUARE[len(kept) - 1]


def test_a_pick_depends_on_seed_and_position_and_not_on_its_row() -> None:
    logits = np.tile(normal(np.random.default_rng(10), 1, 50), (40, 1))
    picks = sample(logits, seed=np.arange(40))
    assert len(set(picks.tolist())) > 5
    order = np.random.default_rng(0).permutation(40)
    np.testing.assert_array_equal(
        sample(logits, seed=np.arange(40)[order], position=np.arange(40)[order]), picks[order]
    )


def test_ties_at_the_edge_of_top_k_keep_the_lowest_ids() -> None:
    picks = sample(np.ones((300, 6)), top_k=2)
    assert set(picks.tolist()) == {0, 1}


@given(seeds)
def test_nan_and_minus_infinity_are_never_picked(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = normal(rng, 6, 9)
    logits[rng.random(logits.shape) < 0.4] = np.nan
    logits[rng.random(logits.shape) < 0.4] = -np.inf
    picks = sample(logits, top_p=[1, 1, 1, 0.9, 0.9, 0.9], top_k=[0, 2, 4, 0, 2, 4], seed=seed)
    for row, pick in enumerate(picks):
        assert np.isfinite(logits[row, pick]) if np.isfinite(logits[row]).any() else pick == -1


def test_a_near_tie_of_scores_is_acceptable_and_a_clear_loser_is_not() -> None:
    noise = -np.log(-np.log(uniforms(3, 4, 3).astype(np.float64)))
    # Scores 1, 1 - 5e-5 and 0.9, once the noise is added.
    logits = (np.array([[1, 1 - 5e-5, 0.9]]) - noise).astype(np.float32)
    arguments = [
        np.array([value], kind) for value, kind in ((1, "f4"), (0, "i4"), (1, "f4"), (0, "f4"), (3, "u8"), (4, "i8"))
    ]
    picks = [bool(acceptable_picks(np.array([token], np.int32), logits, *arguments)[0]) for token in (0, 1, 2, -1, 3)]
    assert picks == [True, True, False, False, False]


# --- step state -------------------------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 5), st.integers(1, 9))
def test_packing_a_step_is_a_walk_over_its_tokens(seed: int, requests: int, block_size: int) -> None:
    rng = np.random.default_rng(seed)
    queries, computed = rng.integers(1, 8, requests), rng.integers(0, 12, requests).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    tables = rng.permutation(requests * 20).reshape(requests, 20).astype(np.int32)
    slots, last_token = rng.permutation(requests + 2)[:requests].astype(np.int32), rng.integers(100, 200, requests + 2)
    tokens = rng.integers(-1, 5, starts[-1]).astype(np.int32)
    ids, positions, mapping = (
        filled(len(tokens), np.int32),
        filled(len(tokens), np.int32),
        filled(len(tokens), np.int64),
    )
    kv_lens, last_rows = filled(requests, np.int32), filled(requests, np.int32)
    pack_step_reference(
        *(ids, positions, mapping, kv_lens, last_rows),
        *(tokens, slots, starts, computed, tables, last_token),
        block_size=block_size,
    )
    row = 0
    for r in range(requests):
        for i in range(queries[r]):
            place = int(computed[r]) + i
            assert positions[row] == place
            assert ids[row] == (tokens[row] if tokens[row] >= 0 else last_token[slots[r]])
            # The slot leads back to the request's block and to the place in it.
            assert (
                tables[r].tolist().index(mapping[row] // block_size) * block_size + mapping[row] % block_size == place
            )
            row += 1
        assert (kv_lens[r], last_rows[r]) == (place + 1, row - 1)


def test_a_sampled_token_comes_back_in_the_next_step() -> None:
    last_token = np.array([5, 6, 7], np.int32)
    update_slots_reference(last_token, np.array([2, 0], np.int32), np.array([40, -1], np.int32))
    assert last_token.tolist() == [5, 6, 40]
    ids, positions, mapping = filled(1, np.int32), filled(1, np.int32), filled(1, np.int64)
    pack_step_reference(
        *(ids, positions, mapping, filled(1, np.int32), filled(1, np.int32)),
        *(np.array([-1]), np.array([2]), np.array([0, 1]), np.array([9]), np.array([[1, 2, 3]]), last_token),
        block_size=4,
    )
    assert (ids[0], positions[0], mapping[0]) == (40, 9, 13)


# --- pages ------------------------------------------------------------------------------------------------------------


def random_pool(seed: int, order: str, dtype: str = "bfloat16") -> Operand:
    pool = Operand.empty((5, 3, 2, 2, 4, 6), dtype, order=ORDERS[order])
    pool.array[...] = encode(normal(np.random.default_rng(seed), *pool.shape), dtype)
    return pool


def page_bytes(pool: Operand) -> int:
    return int(pool.array[0].nbytes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_record_is_the_same_from_either_order_and_scatters_back(dtype: str) -> None:
    blocks = np.array([3, 0], np.int32)
    records = []
    for order in ORDERS:
        pool = random_pool(1, order, dtype)
        out, sums = filled((2, page_bytes(pool)), np.uint8), filled(2, np.uint64)
        pages_gather_reference(out, pool.array, blocks)
        pages_checksum_reference(sums, pool.array, blocks)
        records.append((out, sums))
        other = random_pool(2, order, dtype)
        pages_scatter_reference(other.array, out, blocks)
        np.testing.assert_array_equal(other.array[blocks], pool.array[blocks])
        np.testing.assert_array_equal(other.array[[1, 2, 4]], random_pool(2, order, dtype).array[[1, 2, 4]])
    np.testing.assert_array_equal(records[0][0], records[1][0])
    np.testing.assert_array_equal(records[0][1], records[1][1])


@pytest.mark.parametrize("order", list(ORDERS))
def test_copy_and_zero_touch_the_named_pages_only(order: str) -> None:
    pool, before = random_pool(3, order), random_pool(3, order).array
    pages_copy_reference(pool.array, np.array([1, 1]), np.array([4, 0]))
    pages_zero_reference(pool.array, np.array([2]))
    for block, want in ((0, before[1]), (1, before[1]), (2, 0 * before[2]), (3, before[3]), (4, before[1])):
        np.testing.assert_array_equal(pool.array[block], want)


def test_the_checksum_of_zero_words_sums_the_splitmix64_stream_of_seed_0() -> None:
    stream = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    for count in (1, 2, 3):
        assert checksum(np.zeros(4 * count, np.uint8)) == sum(stream[:count]) % 2**64


@given(st.binary(min_size=1, max_size=20), st.data())
def test_any_changed_byte_or_exchanged_words_change_the_checksum(content: bytes, data: st.DataObject) -> None:
    record = np.frombuffer(content * 4, np.uint8).copy()
    before = checksum(record)
    index, flip = data.draw(st.integers(0, len(record) - 1)), data.draw(st.integers(1, 255))
    record[index] ^= np.uint8(flip)
    assert checksum(record) != before
    words = record.view("<u4")
    one, other = data.draw(st.integers(0, len(words) - 1)), data.draw(st.integers(0, len(words) - 1))
    if words[one] != words[other]:
        changed = checksum(record)
        words[[one, other]] = words[[other, one]]
        assert checksum(record) != changed
