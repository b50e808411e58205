"""Parsing config.json and GGUF metadata: what is read, and that each fault is an error naming it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_builders import CONFIG

from accel.errors import AccelError, ModelError, Unsupported
from accel.models.config import ModelConfig, from_gguf, from_hf

LLAMA3_OLD = {
    "rope_theta": 5e5,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


def hf(**changes: Any) -> ModelConfig:
    """The config of CONFIG with changes; ``...`` as a value removes the key."""
    return from_hf({k: v for k, v in {**CONFIG, **changes}.items() if v is not ...})


def qwen2(**changes: Any) -> ModelConfig:
    return hf(**{"model_type": "qwen2", **changes})


def test_every_field_of_a_llama_is_read() -> None:
    config = hf()
    assert (config.architecture, config.vocab_size, config.hidden_size, config.num_layers) == ("llama", 40, 32, 2)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.intermediate_size) == (4, 2, 8, 64)
    assert (config.rms_norm_eps, config.max_position, config.dtype) == (1e-5, 128, "float32")
    assert (config.rope.kind, config.rope.theta, config.rope.dim) == ("default", 1e4, 8)
    assert config.windows == (0, 0)
    flags = (config.qkv_bias, config.out_bias, config.mlp_bias, config.qk_norm, config.tie_embeddings)
    assert flags == (False,) * 5
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert config.moe is None


def test_old_and_new_form_give_the_same_config() -> None:
    old = hf(**LLAMA3_OLD, torch_dtype="bfloat16")
    new = hf(
        rope_theta=...,
        torch_dtype=...,
        dtype="bfloat16",
        rope_parameters={**LLAMA3_OLD["rope_scaling"], "rope_theta": 5e5},  # type: ignore[dict-item]
    )
    assert old == new
    assert new.rope.kind == "llama3"
    assert new.rope.original_max_position == 64


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_rope_type_is_read_under_both_names(key: str) -> None:
    assert hf(rope_scaling={key: "linear", "factor": 2.0}).rope.kind == "linear"


def test_yarn_without_a_factor_takes_the_ratio_of_the_context_lengths() -> None:
    rope = hf(rope_scaling={"type": "yarn", "original_max_position_embeddings": 32}).rope
    assert (rope.factor, rope.original_max_position) == (4.0, 32)


def test_generation_config_wins_for_special_tokens() -> None:
    config = from_hf(CONFIG, {"eos_token_id": [5, 6, 5], "bos_token_id": 3})
    assert (config.bos_token_id, config.eos_token_ids) == (3, (5, 6))


def test_explicit_head_dim_wins() -> None:
    assert hf(model_type="qwen3", head_dim=16).head_dim == 16


def test_qwen3_without_head_dim_takes_its_classes_default() -> None:
    assert hf(model_type="qwen3").head_dim == 128


@pytest.mark.parametrize(
    ("model_type", "flags", "expected"),
    [
        ("llama", {"attention_bias": True}, (True, True, False)),
        ("llama", {"mlp_bias": True}, (False, False, True)),
        ("mistral", {"attention_bias": True}, (False, False, False)),
        ("qwen2", {}, (True, False, False)),
        ("qwen3", {"attention_bias": True}, (True, True, False)),
        ("ernie4_5", {"use_bias": True}, (True, True, True)),
    ],
)
def test_each_family_has_its_own_biases(
    model_type: str, flags: dict[str, bool], expected: tuple[bool, bool, bool]
) -> None:
    config = hf(model_type=model_type, **flags)
    assert (config.qkv_bias, config.out_bias, config.mlp_bias) == expected


def test_only_ernie_rotates_neighbours_and_only_qwen3_norms_heads() -> None:
    types = ("llama", "mistral", "qwen2", "qwen3", "ernie4_5")
    assert [hf(model_type=t).rope_interleaved for t in types] == [False, False, False, False, True]
    assert [hf(model_type=t).qk_norm for t in types] == [False, False, False, True, False]


def test_mistral_windows_cover_every_layer() -> None:
    assert hf(model_type="mistral", sliding_window=16).windows == (16, 16)
    assert hf(model_type="mistral", sliding_window=None).windows == (0, 0)


def test_qwen_windows_start_at_max_window_layers_and_need_the_switch() -> None:
    window = {"sliding_window": 32, "max_window_layers": 1}
    assert qwen2(**window).windows == (0, 0)
    assert qwen2(**window, use_sliding_window=True).windows == (0, 32)


def test_layer_types_decide_where_they_are_given() -> None:
    types = ["sliding_attention", "full_attention"]
    assert qwen2(layer_types=types, sliding_window=8).windows == (8, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": ...}, "vocab_size is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "32"}, "hidden_size is '32', not an integer"),
        ({"hidden_size": 32.0}, "hidden_size is 32.0, not an integer"),
        ({"hidden_size": True}, "hidden_size is True, not an integer"),
        ({"hidden_size": -1}, r"hidden_size is -1, outside 1\.\."),
        ({"num_hidden_layers": 0}, r"num_hidden_layers is 0, outside 1\.\.4096"),
        ({"num_hidden_layers": 10**9}, r"num_hidden_layers is 1000000000, outside 1\.\.4096"),
        ({"num_attention_heads": 5}, "not a multiple of num_attention_heads 5"),
        ({"num_attention_heads": 32}, "head_dim is 1"),
        ({"num_key_value_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0.0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps is 'tiny', not a number"),
        ({"rope_theta": 10**400}, "rope_theta does not fit"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, not true or false"),
        ({"eos_token_id": 40}, r"eos_token_id is 40, outside 0\.\.39"),
        ({"bos_token_id": -1}, "bos_token_id is -1"),
        ({"torch_dtype": "int8"}, "dtype is 'int8'; known: float32, bfloat16, float16"),
        ({"rope_scaling": 3}, "rope_scaling is 3, not an object"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "low_freq_factor is missing"),
        ({"model_type": ...}, "model_type is missing"),
        ({"model_type": "gpt_neox"}, "unknown architecture 'gpt_neox'.*llama, mistral, qwen2, qwen3, ernie4_5"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for num_hidden_layers 2"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window is missing"),
    ],
)
def test_each_fault_names_field_value_and_limit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        hf(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen3_moe"}, "dense families"),
        ({"model_type": "mixtral"}, "dense families"),
        ({"model_type": "ernie4_5_moe"}, "dense families"),
        ({"num_local_experts": 8}, "num_local_experts 8 is a mixture of experts"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, "0.25"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope'"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e4}}},
            "differs by layer type",
        ),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer type 'linear_attention'"),
    ],
)
def test_what_the_decoder_cannot_run_is_unsupported(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        hf(**changes)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(
    base=st.sampled_from(["llama", "mistral", "qwen2", "qwen3", "ernie4_5"]),
    changes=st.dictionaries(
        st.sampled_from([*CONFIG, "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "dtype"]),
        JSON,
        max_size=3,
    ),
)
def test_any_json_value_gives_a_config_or_a_typed_error(base: str, changes: dict[str, Any]) -> None:
    try:
        config = hf(**{"model_type": base, **changes})
    except AccelError:
        return
    assert config.num_heads % config.num_kv_heads == 0
    assert len(config.windows) == config.num_layers


FAMILY_NAMES = ["llama", "qwen2", "qwen3", "mistral", "ernie4_5"]


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_reference_configs_parse(reference_data: Path, name: str) -> None:
    values = json.loads((reference_data / "tiny_models" / name / "config.json").read_text())
    config = from_hf(values)
    assert config.architecture == name
    assert config.num_layers == values["num_hidden_layers"]
    assert config.rope.kind == values["rope_parameters"]["rope_type"]


def gguf(
    changes: dict[str, Any] | None = None, *, architecture: str = "llama", names: tuple[str, ...] = ("lm_head.weight",)
) -> ModelConfig:
    keys: dict[str, Any] = {
        "block_count": 2,
        "embedding_length": 32,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "feed_forward_length": 64,
        "context_length": 128,
        "rope.freq_base": 1e4,
        "vocab_size": 40,
    }
    keys.update(changes or {})
    metadata = {f"{architecture}.{k}": v for k, v in keys.items() if v is not ...}
    metadata |= {"general.architecture": architecture, "tokenizer.ggml.bos_token_id": 1}
    metadata |= {"tokenizer.ggml.eos_token_id": 2}
    return from_gguf(metadata, tensor_names=names)


def test_gguf_metadata_gives_the_config_of_the_same_model() -> None:
    assert gguf() == hf()


def test_gguf_flags_follow_from_the_tensors() -> None:
    assert gguf(names=()).tie_embeddings
    assert not gguf().tie_embeddings
    config = gguf(architecture="qwen2", names=("model.layers.0.self_attn.q_proj.bias",))
    assert (config.qkv_bias, config.out_bias, config.mlp_bias) == (True, False, False)


def test_gguf_key_length_and_window_are_read() -> None:
    config = gguf({"attention.key_length": 16, "attention.value_length": 16}, architecture="qwen3")
    assert (config.head_dim, config.qk_norm) == (16, True)
    assert gguf({"attention.sliding_window": 64}).windows == (64, 64)


def test_gguf_scaling_keys_are_read() -> None:
    linear = gguf({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}).rope
    assert (linear.kind, linear.factor) == ("linear", 4.0)
    yarn = gguf(
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": 0.5,
        }
    ).rope
    assert (yarn.kind, yarn.factor, yarn.original_max_position) == ("yarn", 4.0, 32)
    assert yarn.scale == pytest.approx(0.5 * 1.1386294361119890)
    assert gguf({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}).rope.kind == "default"


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"block_count": ...}, ModelError, "block_count is missing"),
        ({"attention.head_count": [4, 4]}, Unsupported, "attention.head_count differs by layer"),
        ({"expert_count": 8}, Unsupported, "expert_count 8 is a mixture of experts"),
        ({"rope.dimension_count": 4}, Unsupported, "partial rotary: 4 of 8"),
        ({"rope.scaling.type": "longrope"}, Unsupported, "rope type 'longrope'"),
        ({"attention.value_length": 4}, Unsupported, "different sizes"),
        ({"attention.head_count_kv": 3}, ModelError, "num_kv_heads 3"),
        ({"vocab_size": ...}, ModelError, "vocab_size is missing"),
    ],
)
def test_gguf_faults_are_named(changes: dict[str, Any], kind: type[AccelError], message: str) -> None:
    with pytest.raises(kind, match=message):
        gguf(changes)


@pytest.mark.parametrize(("architecture", "kind"), [("bert", ModelError), ("qwen3moe", Unsupported)])
def test_gguf_architectures_outside_the_table_list_it(architecture: str, kind: type[AccelError]) -> None:
    with pytest.raises(kind, match="llama, mistral, qwen2, qwen3, ernie4_5"):
        gguf(architecture=architecture)
