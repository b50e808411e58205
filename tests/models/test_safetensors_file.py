"""Reading safetensors: the bytes that were written come back, and damage anywhere is a ModelError."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_builders import make_weights, write_folder, write_sharded
from safetensors.numpy import save, save_file

from accel.errors import InvalidArgument, ModelError
from accel.models.safetensors_file import SafetensorsSource, open_safetensors
from accel.models.weights import dequantize

INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("write", [write_folder, write_sharded])
def test_every_tensor_comes_back(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    source = open_safetensors(write(tmp_path / "model"))
    weights = make_weights()
    assert source.entries.keys() == weights.keys()
    for name, values in weights.items():
        entry = source.entries[name]
        assert (entry.shape, entry.encoding, entry.nbytes) == (values.shape, "float32", values.nbytes)
        raw = source.raw(name)
        assert raw.shape == (entry.rows, entry.row_bytes)
        np.testing.assert_array_equal(dequantize(entry.encoding, raw), values.reshape(entry.rows, -1))
        source.release(name)
        np.testing.assert_array_equal(source.raw(name), raw)


def test_views_are_read_only_and_outlive_close(tmp_path: Path) -> None:
    source = open_safetensors(write_folder(tmp_path))
    raw = source.raw("model.norm.weight")
    expected = raw.copy()
    with pytest.raises(ValueError, match="read-only"):
        raw[0, 0] = 1
    source.close()
    source.close()
    np.testing.assert_array_equal(raw, expected)
    with pytest.raises(InvalidArgument, match="was closed"):
        source.raw("model.norm.weight")


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    source = open_safetensors(write_folder(tmp_path))
    with pytest.raises(ModelError, match="no tensor nothing"):
        source.raw("nothing")


def resident_file_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssFile:"):
            return int(line.split()[1]) * 1024
    pytest.skip("the kernel does not tell file-backed resident memory")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_release_takes_the_tensor_out_of_resident_memory(tmp_path: Path) -> None:
    size = 32 << 20
    save_file({"a": np.ones((size // 4096, 1024), np.float32)}, tmp_path / "big.safetensors")
    source = open_safetensors(tmp_path / "big.safetensors")
    before = resident_file_bytes()
    assert int(source.raw("a").sum()) > 0
    touched = resident_file_bytes()
    source.release("a")
    after = resident_file_bytes()
    assert touched - before > size // 2
    assert after - before < size // 16


SMALL = save({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16)})


@pytest.mark.parametrize("length", range(len(SMALL)))
def test_a_file_cut_anywhere_is_a_model_error(tmp_path: Path, length: int) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(SMALL[:length])
    with pytest.raises(ModelError, match=r"cut\.safetensors"):
        open_safetensors(path)


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, len(SMALL) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_gives_a_model_error_or_tensors_within_the_file(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    path.write_bytes(SMALL[:at] + bytes([byte]) + SMALL[at + 1 :])
    try:
        source = open_safetensors(path)
    except ModelError:
        return
    for name, entry in source.entries.items():
        assert source.raw(name).nbytes == entry.nbytes


def test_a_shard_the_index_names_must_exist(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"names model-00002-of-00002\.safetensors.*1 of 2 shards absent"):
        open_safetensors(folder)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path)
    shard = folder / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"model-00001-of-00002\.safetensors is not a whole safetensors file"):
        open_safetensors(folder)


def test_a_tensor_in_two_shards_is_an_error(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_file({"same": np.ones(2, np.float32)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ModelError, match=r"tensor same is in both .*one.* and .*two"):
        SafetensorsSource([tmp_path / "one.safetensors", tmp_path / "two.safetensors"])


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "weight_map is missing"),
        ({"weight_map": {}}, "weight_map is empty"),
        ({"weight_map": {"a": "../other.safetensors"}}, "not a file name"),
        ({"weight_map": {"a": 3}}, "not a file name"),
        ({"weight_map": {"absent": "model-00001-of-00002.safetensors"}}, "says absent is in model-00001"),
    ],
)
def test_a_wrong_index_is_a_model_error(tmp_path: Path, index: dict[str, object], message: str) -> None:
    folder = write_sharded(tmp_path)
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelError, match=message):
        open_safetensors(folder)


def test_a_folder_without_safetensors_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "other.safetensors").touch()
    with pytest.raises(ModelError, match=r"has no model\.safetensors.*only other\.safetensors"):
        open_safetensors(tmp_path)
