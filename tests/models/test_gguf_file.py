"""Reading GGUF: the same numbers as the Hugging Face form, and damage anywhere is a ModelError."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_builders import CONFIG, make_weights, write_gguf

from accel.errors import AccelError, ModelError
from accel.models.config import from_hf
from accel.models.gguf_file import GgufSource, read_config
from accel.models.rope import inverse_frequencies
from accel.models.weights import check_weights, dequantize, logical_rows


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    metadata = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "x.list": [1, 2], "x.flag": True}
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", metadata=metadata)


def test_config_equals_that_of_the_folder(small: Path) -> None:
    config, other = read_config(GgufSource(small)), from_hf(CONFIG)
    assert config.rms_norm_eps == pytest.approx(other.rms_norm_eps)
    assert {**config.__dict__, "rms_norm_eps": 0} == {**other.__dict__, "rms_norm_eps": 0}


def test_unpermuted_rows_equal_the_weights_of_the_folder(small: Path) -> None:
    source = GgufSource(small)
    assert check_weights(read_config(source), source) == 0
    for name, values in make_weights().items():
        entry = source.entries[name]
        stored = dequantize(entry.encoding, source.raw(name)).reshape(values.shape)
        packed = np.empty_like(values)
        packed[logical_rows(entry)] = stored
        np.testing.assert_array_equal(packed, values, err_msg=name)
        source.release(name)


def test_only_q_and_k_of_a_llama_are_permuted(small: Path, tmp_path: Path) -> None:
    heads = {name: entry.row_permutation for name, entry in GgufSource(small).entries.items()}
    assert {name for name, count in heads.items() if count} == {
        f"model.layers.{layer}.self_attn.{linear}.weight" for layer in (0, 1) for linear in ("q_proj", "k_proj")
    }
    assert heads["model.layers.0.self_attn.q_proj.weight"] == 4
    assert heads["model.layers.0.self_attn.k_proj.weight"] == 2
    other = GgufSource(write_gguf(tmp_path / "q.gguf", architecture="qwen3"))
    assert {entry.row_permutation for entry in other.entries.values()} == {None}


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_quantised_rows_equal_the_gguf_packages(tmp_path: Path, quantization: str) -> None:
    path = write_gguf(tmp_path / "q.gguf", quantization=quantization)
    source = GgufSource(path)
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name != "blk.1.ffn_down.weight":
            continue
        entry = source.entries["model.layers.1.mlp.down_proj.weight"]
        assert entry.nbytes == tensor.n_bytes
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(dequantize(entry.encoding, source.raw(entry.name)), expected)


def test_metadata_equals_the_gguf_packages(small: Path) -> None:
    reader = gguf.GGUFReader(small)
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert dict(GgufSource(small).metadata) == expected


def test_stored_rope_factors_become_divisors(tmp_path: Path) -> None:
    factors = np.array([1, 2, 4, 8], np.float32)
    path = write_gguf(tmp_path / "r.gguf", tensors={"rope_freqs.weight": factors})
    source = GgufSource(path)
    config = read_config(source)
    assert config.rope.divisors == (1.0, 2.0, 4.0, 8.0)
    plain = inverse_frequencies(from_hf(CONFIG).rope)
    np.testing.assert_allclose(inverse_frequencies(config.rope), plain / factors, rtol=1e-6)
    assert check_weights(config, source) == 1


def test_a_model_without_output_matrix_is_tied(tmp_path: Path) -> None:
    weights = {name: values for name, values in make_weights().items() if name != "lm_head.weight"}
    source = GgufSource(write_gguf(tmp_path / "t.gguf", weights=weights))
    config = read_config(source)
    assert config.tie_embeddings
    assert check_weights(config, source) == 0


def header_length(path: Path) -> int:
    return gguf.GGUFReader(path).data_offset


def test_a_file_cut_anywhere_in_the_header_is_a_model_error(small: Path, tmp_path: Path) -> None:
    content = small.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(0, header_length(small), 7):
        cut.write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            GgufSource(cut)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_file_cut_in_the_data_is_a_model_error(small: Path, data: st.DataObject) -> None:
    content = small.read_bytes()
    end = max(t.data_offset + t.n_bytes for t in gguf.GGUFReader(small).tensors)
    length = data.draw(st.integers(header_length(small), end - 1))
    cut = small.with_name("cut.gguf")
    cut.write_bytes(content[:length])
    with pytest.raises(ModelError, match=f"of {length}"):
        GgufSource(cut)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_changed_header_byte_gives_a_typed_error_or_tensors_within_the_file(small: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    content[data.draw(st.integers(0, header_length(small) - 1))] = data.draw(st.integers(0, 255))
    changed = small.with_name("changed.gguf")
    changed.write_bytes(content)
    try:
        source = GgufSource(changed)
        check_weights(read_config(source), source)
    except AccelError:
        return
    for name, entry in source.entries.items():
        assert source.raw(name).nbytes == entry.nbytes
        logical_rows(entry)


def preamble(version: int = 3, tensors: int = 0, pairs: int = 0, order: str = "<") -> bytes:
    return b"GGUF" + struct.pack(f"{order}IQQ", version, tensors, pairs)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def info(name: str = "t", dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"GG", "past the end"),
        (b"PK\x03\x04" + bytes(40), r"is not a GGUF file: it starts with b'PK"),
        (preamble(order=">"), "big-endian"),
        (preamble(version=1), "version 1; versions 2 and 3"),
        (preamble(pairs=2**60), "past the end"),
        (preamble(tensors=2**60), "past the end"),
        (preamble(pairs=1) + string("k") + struct.pack("<IIQ", 9, 8, 2**60), "an array of 1152921504606846976"),
        (preamble(pairs=1) + string("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64), "nested value type 9"),
        (preamble(pairs=1) + string("k") + struct.pack("<I", 77), "value type 77"),
        (preamble(pairs=1) + struct.pack("<Q", 1) + b"\xff" + bytes(8), "not UTF-8"),
        (preamble(pairs=2) + 2 * (string("k") + struct.pack("<IB", 0, 1)), "'k' occurs twice"),
        (preamble(pairs=1) + string("general.alignment") + struct.pack("<II", 4, 3), "alignment 3"),
        (preamble(pairs=1) + string("split.count") + struct.pack("<IH", 2, 3), "one of 3 parts.*--merge"),
        (preamble(tensors=1) + info(kind=99) + bytes(256), "unknown quantisation type 99"),
        (preamble(tensors=1) + info(dims=()) + bytes(256), "0 dimensions"),
        (preamble(tensors=1) + info(dims=(4, 0)) + bytes(256), "empty dimension"),
        (preamble(tensors=1) + info(dims=(33,), kind=2) + bytes(256), "rows of 33, not a multiple of the 32 of Q4_0"),
        (preamble(tensors=1) + info(offset=10**6) + bytes(256), "tensor t ends at byte"),
        (preamble(tensors=1) + info(dims=(2**62, 2**62)) + bytes(256), "tensor t ends at byte"),
        (preamble(tensors=2) + 2 * info() + bytes(512), "tensor t occurs twice"),
    ],
)
def test_each_kind_of_damage_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        GgufSource(path)


def test_metadata_of_the_wrong_type_is_a_model_error(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "w.gguf", metadata={"llama.block_count": "two"})
    with pytest.raises(ModelError, match="block_count is 'two', not an integer"):
        read_config(GgufSource(path))
