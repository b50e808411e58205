"""Decoding rows, the order of permuted rows, and the check of weights against a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_builders import CONFIG, gguf_name, make_weights, permute

from accel.errors import AccelError, InvalidArgument, ModelError, Unsupported
from accel.models.config import from_hf
from accel.models.families import canonical_name
from accel.models.weights import ENCODINGS, WeightEntry, check_weights, dequantize, expected_tensors, logical_rows


class Shapes:
    """A source that has entries and no bytes."""

    def __init__(self, entries: Mapping[str, WeightEntry]) -> None:
        self.entries = entries

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        raise NotImplementedError

    def release(self, name: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def entries(encoding: str = "float32", **changes: Any) -> dict[str, WeightEntry]:
    shapes: dict[str, tuple[int, ...] | None] = {n: w.shape for n, w in make_weights().items()}
    shapes |= {name.replace("__", "."): shape for name, shape in changes.items()}
    return {n: WeightEntry(n, s, encoding, 4 * int(np.prod(s))) for n, s in shapes.items() if s is not None}


def bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return values.view(np.uint8).reshape(values.shape[0], -1)


def test_plain_encodings_decode_exactly() -> None:
    values = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    np.testing.assert_array_equal(dequantize("float32", bits(values)), values)
    half = values.astype(np.float16)
    np.testing.assert_array_equal(dequantize("float16", half.view(np.uint8)), half.astype(np.float32))
    # A bfloat16 is a float32 whose lower half is zero.
    short = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    stored = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    np.testing.assert_array_equal(dequantize("bfloat16", stored.view(np.uint8)), short)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_bfloat16_keeps_infinities_and_nan(special: float) -> None:
    stored = (np.array([[special, 1.0]], np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    np.testing.assert_array_equal(dequantize("bfloat16", stored.view(np.uint8)), np.array([[special, 1.0]], np.float32))


@pytest.mark.parametrize("encoding", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_block_encodings_come_back_within_their_step_and_by_chunks_alike(encoding: str) -> None:
    values = np.random.default_rng(1).uniform(-1, 1, (7, 64)).astype(np.float32)
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[encoding])
    whole = dequantize(encoding, raw)
    assert whole.shape == values.shape
    assert whole.dtype == np.float32
    assert np.abs(whole - values).max() < 2 / 2 ** (int(encoding[1]) - 0.5)
    chunks = [dequantize(encoding, raw[:3]), dequantize(encoding, raw[3:])]
    np.testing.assert_array_equal(np.concatenate(chunks), whole)


@pytest.mark.parametrize("encoding", ENCODINGS[3:])
def test_every_listed_block_encoding_decodes_a_row_of_zero_bytes(encoding: str) -> None:
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[encoding]]
    assert dequantize(encoding, np.zeros((2, size), np.uint8)).shape == (2, block)


def test_unknown_encodings_and_torn_rows_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"'Q8_K'.*Q4_0"):
        dequantize("Q8_K", np.zeros((1, 292), np.uint8))
    with pytest.raises(InvalidArgument, match=r"\(1, 19\).*18-byte Q4_0"):
        dequantize("Q4_0", np.zeros((1, 19), np.uint8))


@given(heads=st.integers(1, 8), pairs=st.integers(1, 16), seed=st.integers(0, 99))
def test_logical_rows_undo_the_converters_permutation(heads: int, pairs: int, seed: int) -> None:
    original = np.random.default_rng(seed).standard_normal((heads * pairs * 2, 3)).astype(np.float32)
    # As convert_hf_to_gguf.py writes it.
    stored = original.reshape(heads, 2, pairs, 3).swapaxes(1, 2).reshape(original.shape)
    np.testing.assert_array_equal(stored, permute(original, heads))
    target = logical_rows(WeightEntry("w", original.shape, "float32", original.nbytes, heads))
    packed = np.empty_like(original)
    packed[target] = stored
    np.testing.assert_array_equal(packed, original)


def test_rows_without_permutation_stay_where_they_are() -> None:
    np.testing.assert_array_equal(logical_rows(WeightEntry("w", (6, 2), "float32", 48)), np.arange(6))


def test_rows_that_do_not_divide_into_heads_are_an_error() -> None:
    with pytest.raises(ModelError, match="6 rows do not divide into 2 heads"):
        logical_rows(WeightEntry("w", (6, 2), "float32", 48, 2))


def test_gguf_names_map_to_the_canonical_ones() -> None:
    for name in make_weights():
        assert canonical_name(gguf_name(name)) == name
    for other in ("rope_freqs.weight", "blk.x.attn_q.weight", "blk.0.ssm.weight", "blk", ""):
        assert canonical_name(other) == other


def test_expected_tensors_are_those_of_a_real_model() -> None:
    expected = expected_tensors(from_hf(CONFIG))
    assert {name: want.shape for name, want in expected.items()} == {n: w.shape for n, w in make_weights().items()}


def test_expected_tensors_follow_the_flags() -> None:
    tied = expected_tensors(from_hf({**CONFIG, "model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": True}))
    assert "lm_head.weight" not in tied
    assert tied["model.layers.1.self_attn.q_norm.weight"].shape == (8,)
    biased = expected_tensors(from_hf({**CONFIG, "model_type": "qwen2"}))
    assert biased["model.layers.0.self_attn.k_proj.bias"].shape == (16,)
    assert "model.layers.0.self_attn.o_proj.bias" not in biased


def test_matching_weights_pass_and_unused_ones_are_counted() -> None:
    assert check_weights(from_hf(CONFIG), Shapes(entries())) == 0
    assert check_weights(from_hf(CONFIG), Shapes(entries(rotary__inv_freq=(4,)))) == 1
    # A tied model may still carry the matrix it does not use.
    assert check_weights(from_hf({**CONFIG, "tie_word_embeddings": True}), Shapes(entries())) == 1


@pytest.mark.parametrize(
    ("changes", "config", "message"),
    [
        ({"model__norm__weight": None}, {}, r"missing tensors: model\.norm\.weight"),
        ({"lm_head__weight": None}, {}, "missing tensors: lm_head.weight.*tie_word_embeddings"),
        ({}, {"num_hidden_layers": 3}, "missing tensors: .* and 6 more.*num_layers 3"),
        ({}, {"vocab_size": 41}, r"embed_tokens.weight is \[40, 32\], the config says \[41, 32\] \(vocab_size = 41\)"),
        ({}, {"intermediate_size": 96}, r"\(intermediate_size = 96\)"),
        ({}, {"head_dim": 16}, r"q_proj.weight is \[32, 32\].*\(num_heads \* head_dim = 64\)"),
        ({"model__norm__weight": (32, 1)}, {}, r"model.norm.weight is \[32, 1\].*\(hidden_size\)"),
    ],
)
def test_each_contradiction_names_tensor_shapes_and_field(
    changes: dict[str, Any], config: dict[str, int], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        check_weights(from_hf({**CONFIG, **config}), Shapes(entries(**changes)))


def test_an_unreadable_encoding_is_refused_before_loading() -> None:
    with pytest.raises(AccelError, match=r"embed_tokens.weight is encoded as F8_E4M3"):
        check_weights(from_hf(CONFIG), Shapes(entries("F8_E4M3")))
