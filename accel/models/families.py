"""The model families: one row each, holding everything in which they differ.

Invariant: nothing else in the library asks which family a model is. Adding a dense family is adding a row of
:data:`FAMILIES`; the names and shapes of tensors follow from :data:`LAYER_TENSORS` and the config's flags.

========  ===============  =========  ========  ===============  =======  ==============  =====================
row       q, k, v bias     out bias   mlp bias  window           qk norm  pairs of a head  rows in GGUF
========  ===============  =========  ========  ===============  =======  ==============  =====================
llama     attention_bias   same       mlp_bias  none             no       halves          q, k permuted
mistral   never            never      never     every layer      no       halves          (stored as llama)
qwen2     always           never      never     the last layers  no       halves          as in Hugging Face
qwen3     attention_bias   same       never     the last layers  yes      halves          as in Hugging Face
ernie4_5  use_bias         same       use_bias  none             no       neighbours      as in Hugging Face
========  ===============  =========  ========  ===============  =======  ==============  =====================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from accel.errors import ModelError, Unsupported
from accel.models.fields import Fields

if TYPE_CHECKING:
    from accel.models.config import ModelConfig

__all__ = [
    "FAMILIES",
    "LAYER_TENSORS",
    "Expected",
    "Family",
    "LayerTensor",
    "canonical_name",
    "expected_tensors",
    "family_of_gguf",
    "family_of_hf",
]

WindowRule = Callable[[Fields, int], tuple[int, ...]]


def _no_window(fields: Fields, layers: int) -> tuple[int, ...]:
    return (0,) * layers


def _every_layer(fields: Fields, layers: int) -> tuple[int, ...]:
    return (fields.integer("sliding_window", default=0),) * layers


def _last_layers(fields: Fields, layers: int) -> tuple[int, ...]:
    if not fields.boolean("use_sliding_window", default=False):
        return (0,) * layers
    window = fields.integer("sliding_window", default=0)
    first = fields.integer("max_window_layers", low=0)
    return tuple(window if layer >= first else 0 for layer in range(layers))


@dataclass(frozen=True)
class Family:
    """One row of the table.

    Args:
        architecture: the name used throughout the library.
        hf_model_types: values of ``model_type`` in config.json.
        gguf_architectures: values of ``general.architecture``.
        qkv_bias, out_bias, mlp_bias: a constant, or the name of the config.json flag that says so.
        qk_norm: an RMS norm over each head of q and k.
        rope_interleaved: a pair to rotate is (2j, 2j + 1) of a head, else (j, j + dim / 2).
        gguf_permuted: GGUF stores the rows of q and k in the interleaved order.
        window: how config.json assigns sliding windows where it has no ``layer_types``.
        hf_defaults: what Hugging Face's config class assumes for a field config.json leaves out.
    """

    architecture: str
    hf_model_types: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool = False
    rope_interleaved: bool = False
    gguf_permuted: bool = False
    window: WindowRule = _no_window
    hf_defaults: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        family.architecture: family
        for family in (
            Family(
                "llama",
                hf_model_types=("llama",),
                gguf_architectures=("llama",),
                qkv_bias="attention_bias",
                out_bias="attention_bias",
                mlp_bias="mlp_bias",
                gguf_permuted=True,
            ),
            Family(
                "mistral",
                hf_model_types=("mistral",),
                gguf_architectures=(),
                gguf_permuted=True,
                window=_every_layer,
                hf_defaults={"num_key_value_heads": 8, "sliding_window": 4096},
            ),
            Family(
                "qwen2",
                hf_model_types=("qwen2",),
                gguf_architectures=("qwen2",),
                qkv_bias=True,
                window=_last_layers,
                hf_defaults={"num_key_value_heads": 32, "max_window_layers": 28},
            ),
            Family(
                "qwen3",
                hf_model_types=("qwen3",),
                gguf_architectures=("qwen3",),
                qkv_bias="attention_bias",
                out_bias="attention_bias",
                qk_norm=True,
                window=_last_layers,
                hf_defaults={"num_key_value_heads": 32, "head_dim": 128, "max_window_layers": 28},
            ),
            Family(
                "ernie4_5",
                hf_model_types=("ernie4_5",),
                gguf_architectures=("ernie4_5",),
                qkv_bias="use_bias",
                out_bias="use_bias",
                mlp_bias="use_bias",
                rope_interleaved=True,
                hf_defaults={
                    "num_key_value_heads": 2,
                    "head_dim": 128,
                    "rope_theta": 500000.0,
                    "tie_word_embeddings": True,
                },
            ),
        )
    }
)


def family_of_hf(model_type: str, origin: str) -> Family:
    """The row of a config.json ``model_type``.

    Raises:
        Unsupported: a mixture of experts.
        ModelError: an architecture no row names.
    """
    return _lookup(model_type, origin, "hf_model_types")


def family_of_gguf(architecture: str, origin: str) -> Family:
    """The row of a GGUF ``general.architecture``; errors as :func:`family_of_hf`."""
    return _lookup(architecture, origin, "gguf_architectures")


def _lookup(name: str, origin: str, column: str) -> Family:
    for family in FAMILIES.values():
        if name in getattr(family, column):
            return family
    known = ", ".join(FAMILIES)
    if "moe" in name.lower() or name == "mixtral":
        raise mixture_of_experts(origin, f"architecture {name!r}")
    raise ModelError(f"{origin}: unknown architecture {name!r}", hint=f"known: {known}", architecture=name)


def mixture_of_experts(origin: str, what: str) -> Unsupported:
    """The error for a model with routed experts; `what` is the evidence."""
    return Unsupported(
        f"{origin}: {what} is a mixture of experts; only dense families are supported",
        hint=f"dense families: {', '.join(FAMILIES)}",
    )


@dataclass(frozen=True)
class LayerTensor:
    """A tensor every layer has, if the config's flag `when` is set (empty: always). `dims` are names of sizes."""

    name: str
    gguf: str
    dims: tuple[str, ...]
    when: str = ""


def _linear(name: str, gguf: str, dims: tuple[str, str], bias_when: str) -> tuple[LayerTensor, LayerTensor]:
    return (
        LayerTensor(f"{name}.weight", f"{gguf}.weight", dims),
        LayerTensor(f"{name}.bias", f"{gguf}.bias", dims[:1], bias_when),
    )


#: The tensors of one layer: canonical name after ``model.layers.N.``, GGUF name after ``blk.N.``, sizes.
LAYER_TENSORS: Final[tuple[LayerTensor, ...]] = (
    LayerTensor("input_layernorm.weight", "attn_norm.weight", ("hidden",)),
    *_linear("self_attn.q_proj", "attn_q", ("query", "hidden"), "qkv_bias"),
    *_linear("self_attn.k_proj", "attn_k", ("key", "hidden"), "qkv_bias"),
    *_linear("self_attn.v_proj", "attn_v", ("key", "hidden"), "qkv_bias"),
    LayerTensor("self_attn.q_norm.weight", "attn_q_norm.weight", ("head",), "qk_norm"),
    LayerTensor("self_attn.k_norm.weight", "attn_k_norm.weight", ("head",), "qk_norm"),
    *_linear("self_attn.o_proj", "attn_output", ("hidden", "query"), "out_bias"),
    LayerTensor("post_attention_layernorm.weight", "ffn_norm.weight", ("hidden",)),
    *_linear("mlp.gate_proj", "ffn_gate", ("inner", "hidden"), "mlp_bias"),
    *_linear("mlp.up_proj", "ffn_up", ("inner", "hidden"), "mlp_bias"),
    *_linear("mlp.down_proj", "ffn_down", ("hidden", "inner"), "mlp_bias"),
)

_GLOBAL_TENSORS: Final[tuple[LayerTensor, ...]] = (
    LayerTensor("model.embed_tokens.weight", "token_embd.weight", ("vocab", "hidden")),
    LayerTensor("model.norm.weight", "output_norm.weight", ("hidden",)),
    LayerTensor("lm_head.weight", "output.weight", ("vocab", "hidden"), "untied"),
)

_GLOBAL_NAMES: Final = {tensor.gguf: tensor.name for tensor in _GLOBAL_TENSORS}
_LAYER_NAMES: Final = {tensor.gguf: tensor.name for tensor in LAYER_TENSORS}


def canonical_name(gguf_name: str) -> str:
    """The Hugging Face name of a GGUF tensor; names that no family uses stay as they are."""
    if gguf_name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[gguf_name]
    block, _, rest = gguf_name.partition(".")
    layer, _, tensor = rest.partition(".")
    if block == "blk" and layer.isdecimal() and tensor in _LAYER_NAMES:
        return f"model.layers.{int(layer)}.{_LAYER_NAMES[tensor]}"
    return gguf_name


@dataclass(frozen=True)
class Expected:
    """What the config says a tensor must be: its shape, and the config field behind each dimension."""

    shape: tuple[int, ...]
    fields: tuple[str, ...]


def expected_tensors(config: ModelConfig) -> dict[str, Expected]:
    """Every tensor a model of this config must have, by canonical name."""
    sizes = {
        "vocab": (config.vocab_size, "vocab_size"),
        "hidden": (config.hidden_size, "hidden_size"),
        "query": (config.num_heads * config.head_dim, "num_heads * head_dim"),
        "key": (config.num_kv_heads * config.head_dim, "num_kv_heads * head_dim"),
        "head": (config.head_dim, "head_dim"),
        "inner": (config.intermediate_size, "intermediate_size"),
    }
    flags = {
        "": True,
        "qkv_bias": config.qkv_bias,
        "out_bias": config.out_bias,
        "mlp_bias": config.mlp_bias,
        "qk_norm": config.qk_norm,
        "untied": not config.tie_embeddings,
    }

    def expect(tensor: LayerTensor) -> Expected:
        return Expected(tuple(sizes[d][0] for d in tensor.dims), tuple(sizes[d][1] for d in tensor.dims))

    expected = {tensor.name: expect(tensor) for tensor in _GLOBAL_TENSORS if flags[tensor.when]}
    for layer in range(config.num_layers):
        for tensor in LAYER_TENSORS:
            if flags[tensor.when]:
                expected[f"model.layers.{layer}.{tensor.name}"] = expect(tensor)
    return expected
