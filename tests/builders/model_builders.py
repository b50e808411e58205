"""Small model files for the tests: the same weights as a Hugging Face folder and as the GGUF llama.cpp would write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

Weights = dict[str, npt.NDArray[np.float32]]

#: A llama small enough for a test, with head_dim 8, and 4 heads over 2.
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}

_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_weights(config: dict[str, Any] = CONFIG, seed: int = 0) -> Weights:
    """Random weights of a llama with this config, by Hugging Face name."""
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = hidden // config["num_attention_heads"]
    kv = head * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}self_attn.q_proj.weight"] = (hidden, hidden)
        shapes[f"{prefix}self_attn.k_proj.weight"] = (kv, hidden)
        shapes[f"{prefix}self_attn.v_proj.weight"] = (kv, hidden)
        shapes[f"{prefix}self_attn.o_proj.weight"] = (hidden, hidden)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}mlp.gate_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, inner)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_folder(folder: Path, config: dict[str, Any] = CONFIG, weights: Weights | None = None) -> Path:
    """A Hugging Face folder with one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(make_weights() if weights is None else weights, folder / "model.safetensors")
    return folder


def write_sharded(folder: Path, config: dict[str, Any] = CONFIG) -> Path:
    """The same in two shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = make_weights(config)
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: weights[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def permute(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of q or k as llama.cpp's converter stores them: halves of a head become neighbours."""
    size = rows.shape[0] // heads
    order = [
        head * size + half * size // 2 + pair for head in range(heads) for pair in range(size // 2) for half in (0, 1)
    ]
    return rows[order]


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    linear, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_GGUF_NAMES[linear]}.{kind}"


def write_gguf(
    path: Path,
    config: dict[str, Any] = CONFIG,
    weights: Weights | None = None,
    *,
    architecture: str = "llama",
    quantization: str = "F32",
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, npt.NDArray[np.float32]] | None = None,
) -> Path:
    """A GGUF file with these weights. `metadata` adds keys or replaces ours; None as a value leaves a key out."""
    weights = make_weights(config) if weights is None else weights
    values: dict[str, Any] = {
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.attention.head_count": config["num_attention_heads"],
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        f"{architecture}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.rope.freq_base": config["rope_theta"],
        f"{architecture}.vocab_size": config["vocab_size"],
    }
    values.update(metadata or {})
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        _add(writer, key, value)
    kind = gguf.GGMLQuantizationType[quantization]
    for name, tensor in weights.items():
        stored = tensor
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            stored = permute(tensor, heads)
        # Vectors stay in float32, as every converter keeps them.
        packed = stored if tensor.ndim == 1 else gguf.quants.quantize(stored, kind)
        writer.add_tensor(gguf_name(name), packed, raw_dtype=None if tensor.ndim == 1 else kind)
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
