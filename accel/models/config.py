"""What a model is: one frozen value, parsed from config.json or from GGUF metadata.

Invariant: a ModelConfig that exists is consistent. Every field was read with its type and limits, and what the decoder
cannot run (partial rotary, another activation, experts, windows by another rule) was refused here, before any weight
was read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from accel.errors import ModelError, Unsupported
from accel.models.families import FAMILIES, Family, family_of_gguf, family_of_hf, mixture_of_experts
from accel.models.fields import MAX_COUNT, Fields
from accel.models.rope import RopeConfig

__all__ = ["ModelConfig", "MoeConfig", "from_gguf", "from_hf"]

#: Layers are loops and names; more than this is damage.
_MAX_LAYERS: Final = 4096
_DTYPES: Final = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class MoeConfig:
    """Routed experts. No parser makes one yet: dense families only.

    A family with experts adds its rule to :mod:`accel.models.families` and fills this from its config.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    num_shared_experts: int = 0
    #: Per layer: True where the feed-forward block is routed.
    routed_layers: tuple[bool, ...] = ()


@dataclass(frozen=True)
class ModelConfig:
    """The shape of one model.

    Args:
        architecture: a key of ``FAMILIES``.
        rope_interleaved: rotated pairs are neighbours (2j, 2j + 1) instead of halves (j, j + head_dim / 2).
        windows: per layer, how many of the newest positions a token sees, itself included; 0 for all.
        qkv_bias, out_bias, mlp_bias: biases of q/k/v, of the attention output, and of the feed-forward linears.
        qk_norm: RMS norm over each head of q and k before rotation.
        tie_embeddings: the output projection is the embedding matrix.
        eos_token_ids: any of these ends a sequence.
        dtype: the dtype the weights were published in; what they are held in is the loader's choice.

    Raises:
        ModelError: values that contradict each other, naming both.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    max_position: int
    rope: RopeConfig
    rope_interleaved: bool = False
    windows: tuple[int, ...] = ()
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"
    moe: MoeConfig | None = None

    def __post_init__(self) -> None:
        if self.architecture not in FAMILIES:
            raise ModelError(f"unknown architecture {self.architecture!r}", hint=f"known: {', '.join(FAMILIES)}")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}",
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
            )
        if self.rope.dim != self.head_dim:
            raise Unsupported(
                f"partial rotary: {self.rope.dim} of {self.head_dim} dimensions of a head are rotated",
                hint="only models that rotate the whole head are supported",
            )
        if len(self.windows) != self.num_layers:
            raise ModelError(f"{len(self.windows)} windows for num_layers {self.num_layers}")
        for token in (self.bos_token_id, *self.eos_token_ids):
            if token is not None and not 0 <= token < self.vocab_size:
                raise ModelError(f"special token id {token} is outside the vocabulary of {self.vocab_size}")


def from_hf(
    config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None, *, origin: str = "config.json"
) -> ModelConfig:
    """The config of a Hugging Face folder.

    Args:
        config: config.json, in the old form (``rope_theta``, ``rope_scaling``, ``torch_dtype``) or in that of
            transformers 5 (``rope_parameters``, ``dtype``).
        generation_config: generation_config.json; its bos and eos ids take precedence, as in transformers.
        origin: the name of the file, for messages.

    Raises:
        ModelError: a field that is missing, of a wrong type, out of range or contradictory.
        Unsupported: experts, partial rotary, an unknown rope type, an activation other than silu.
    """
    family = family_of_hf(Fields(config, origin).text("model_type"), origin)
    # An explicit null overrides a default: a mistral without a window says "sliding_window": null.
    fields = Fields({**family.hf_defaults, **config}, origin)
    _refuse_hf(fields)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = _head_dim(fields, "head_dim", hidden, "num_attention_heads", heads)
    layers = fields.integer("num_hidden_layers", high=_MAX_LAYERS)
    max_position = fields.integer("max_position_embeddings")
    overrides = {key: value for key, value in (generation_config or {}).items() if value is not None}
    tokens = Fields({**config, **overrides}, origin)
    vocab = fields.integer("vocab_size")
    return ModelConfig(
        architecture=family.architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", default=heads),
        head_dim=head_dim,
        intermediate_size=fields.integer("intermediate_size"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        max_position=max_position,
        rope=_hf_rope(fields, head_dim, max_position),
        rope_interleaved=family.rope_interleaved,
        windows=_hf_windows(fields, family, layers),
        qkv_bias=_flag(fields, family.qkv_bias),
        out_bias=_flag(fields, family.out_bias),
        mlp_bias=_flag(fields, family.mlp_bias),
        qk_norm=family.qk_norm,
        tie_embeddings=fields.boolean("tie_word_embeddings", default=False),
        bos_token_id=tokens.integer("bos_token_id", low=0, high=vocab - 1, default=None),
        eos_token_ids=_eos_ids(tokens, vocab),
        dtype=_hf_dtype(fields),
    )


def _refuse_hf(fields: Fields) -> None:
    for name in ("num_experts", "num_local_experts", "moe_num_experts", "n_routed_experts"):
        if fields.integer(name, low=0, default=0) > 0:
            raise mixture_of_experts(fields.origin, f"{name} {fields.values[name]}")
    quantization = fields.mapping("quantization_config", default=None)
    if quantization:
        method = quantization.get("quant_method", "unknown")
        raise Unsupported(
            f"{fields.origin}: weights quantised by {method!r} are not supported",
            hint="use the model without quantisation, or a GGUF file of it",
        )
    activation = fields.text("hidden_act", default="silu")
    if activation != "silu":
        raise Unsupported(f"{fields.origin}: hidden_act {activation!r} is not supported", hint="supported: silu")
    rope = fields.mapping("rope_parameters", default={})
    for source in (fields, Fields(rope, fields.origin)):
        partial = source.number("partial_rotary_factor", default=1.0)
        if partial != 1.0:
            raise Unsupported(
                f"{fields.origin}: partial_rotary_factor {partial:g} is not supported",
                hint="only models that rotate the whole head (1.0) are supported",
            )


def _head_dim(fields: Fields, name: str, hidden: int, heads_name: str, heads: int) -> int:
    explicit: int | None = fields.integer(name, default=None)
    if explicit is None and hidden % heads:
        raise fields.error(name, f"is missing, and the hidden size {hidden} is not a multiple of {heads_name} {heads}")
    head_dim = hidden // heads if explicit is None else explicit
    if head_dim % 2:
        raise fields.error(name, f"is {head_dim}; rotary needs an even one", value=head_dim)
    return head_dim


def _flag(fields: Fields, rule: bool | str) -> bool:
    return rule if isinstance(rule, bool) else bool(fields.boolean(rule, default=False))


def _hf_dtype(fields: Fields) -> str:
    # transformers 5 renamed the key and still reads the old one.
    name: str = fields.text("dtype", default=None) or fields.text("torch_dtype", default="float32")
    name = name.removeprefix("torch.")
    if name not in _DTYPES:
        raise fields.error("dtype", f"is {name!r}; known: {', '.join(_DTYPES)}", value=name)
    return name


def _eos_ids(fields: Fields, vocab: int) -> tuple[int, ...]:
    value = fields.values.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    checked = [Fields({"eos_token_id": i}, fields.origin).integer("eos_token_id", low=0, high=vocab - 1) for i in ids]
    return tuple(dict.fromkeys(checked))


def _hf_windows(fields: Fields, family: Family, layers: int) -> tuple[int, ...]:
    types: list[str] | None = fields.items("layer_types", str, default=None)
    if types is None:
        return family.window(fields, layers)
    if len(types) != layers:
        raise fields.error("layer_types", f"has {len(types)} entries for num_hidden_layers {layers}")
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown:
        raise Unsupported(
            f"{fields.origin}: layer type {unknown[0]!r} is not supported",
            hint="supported: full_attention, sliding_attention",
        )
    if "sliding_attention" not in types:
        return (0,) * layers
    window = fields.integer("sliding_window")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)


def _hf_rope(fields: Fields, dim: int, max_position: int) -> RopeConfig:
    new_form = "rope_parameters" in fields
    name = "rope_parameters" if new_form else "rope_scaling"
    values = fields.mapping(name, default={})
    if any(isinstance(value, dict) for value in values.values()):
        raise Unsupported(
            f"{fields.origin}: {name} differs by layer type ({', '.join(sorted(values))})",
            hint="only one rotary rule for all layers is supported",
        )
    rope = Fields(values, f"{fields.origin}: {name}")
    theta = (rope if "rope_theta" in rope else fields).number("rope_theta", default=10000.0)
    kind = rope.text("rope_type", default=None) or rope.text("type", default="default")
    original = rope.integer("original_max_position_embeddings", default=None) or fields.integer(
        "original_max_position_embeddings", default=max_position if kind == "yarn" else 0
    )
    # A yarn config may give only the two context lengths; transformers then takes their ratio.
    derived = max_position / original if kind == "yarn" else 1.0
    needs_factor = kind in ("linear", "llama3")
    return RopeConfig(
        dim=dim,
        theta=theta,
        kind=kind,
        factor=rope.number("factor") if needs_factor else rope.number("factor", default=derived),
        original_max_position=original,
        low_freq_factor=rope.number("low_freq_factor") if kind == "llama3" else 1.0,
        high_freq_factor=rope.number("high_freq_factor") if kind == "llama3" else 4.0,
        beta_fast=rope.number("beta_fast", default=32.0),
        beta_slow=rope.number("beta_slow", default=1.0),
        attention_factor=rope.number("attention_factor", default=None),
        mscale=rope.number("mscale", above=-1.0, default=None),
        mscale_all_dim=rope.number("mscale_all_dim", above=-1.0, default=None),
        truncate=rope.boolean("truncate", default=True),
    )


def from_gguf(
    metadata: Mapping[str, Any],
    *,
    tensor_names: Collection[str],
    rope_divisors: Sequence[float] | None = None,
    origin: str = "GGUF metadata",
) -> ModelConfig:
    """The config of a GGUF file, from the keys llama.cpp writes.

    GGUF has no flag for biases or tied embeddings: the presence of the tensors is the statement.

    Args:
        metadata: every key and value of the file.
        tensor_names: canonical names of its tensors.
        rope_divisors: the values of ``rope_freqs.weight`` [head_dim / 2], which is how llama3 scaling is stored.
        origin: the name of the file, for messages.

    Raises:
        ModelError, Unsupported: as :func:`from_hf`.
    """
    architecture = Fields(metadata, origin).text("general.architecture")
    family = family_of_gguf(architecture, origin)
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    fields, common = Fields(own, f"{origin}: {architecture}"), Fields(metadata, origin)
    _refuse_gguf(fields)
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    head_dim = _head_dim(fields, "attention.key_length", hidden, "head_count", heads)
    if fields.integer("attention.value_length", default=head_dim) != head_dim:
        raise Unsupported(f"{origin}: key and value heads of different sizes are not supported")
    tokens: list[str] | None = common.items("tokenizer.ggml.tokens", str, default=None)
    vocab = len(tokens) if tokens else fields.integer("vocab_size")
    layers = fields.integer("block_count", high=_MAX_LAYERS)
    max_position = fields.integer("context_length")
    return ModelConfig(
        architecture=family.architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", default=heads),
        head_dim=head_dim,
        intermediate_size=fields.integer("feed_forward_length"),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        max_position=max_position,
        rope=_gguf_rope(fields, head_dim, max_position, rope_divisors),
        rope_interleaved=family.rope_interleaved,
        windows=(fields.integer("attention.sliding_window", low=0, default=0),) * layers,
        qkv_bias="model.layers.0.self_attn.q_proj.bias" in tensor_names,
        out_bias="model.layers.0.self_attn.o_proj.bias" in tensor_names,
        mlp_bias="model.layers.0.mlp.gate_proj.bias" in tensor_names,
        qk_norm=family.qk_norm,
        tie_embeddings="lm_head.weight" not in tensor_names,
        bos_token_id=common.integer("tokenizer.ggml.bos_token_id", low=0, high=vocab - 1, default=None),
        eos_token_ids=_gguf_eos(common, vocab),
    )


def _refuse_gguf(fields: Fields) -> None:
    if fields.integer("expert_count", low=0, default=0) > 0:
        raise mixture_of_experts(fields.origin, f"expert_count {fields.values['expert_count']}")
    for name in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        if isinstance(fields.values.get(name), list):
            raise Unsupported(f"{fields.origin}: {name} differs by layer", hint="only one value for all is supported")
    if "attention.sliding_window_pattern" in fields:
        raise Unsupported(f"{fields.origin}: attention.sliding_window_pattern is not supported")


def _gguf_eos(fields: Fields, vocab: int) -> tuple[int, ...]:
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [fields.integer(f"tokenizer.ggml.{n}", low=0, high=vocab - 1, default=None) for n in names]
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def _gguf_rope(fields: Fields, dim: int, max_position: int, divisors: Sequence[float] | None) -> RopeConfig:
    rotated = fields.integer("rope.dimension_count", default=dim)
    # Without a type, llama.cpp takes a factor as linear; scale_linear is its name in the first GGUF files.
    factor = fields.number("rope.scaling.factor", default=None) or fields.number("rope.scale_linear", default=1.0)
    kind = fields.text("rope.scaling.type", default="linear")
    if kind == "none" or (kind == "linear" and factor == 1.0):
        kind, factor = "default", 1.0
    if fields.number("rope.scaling.yarn_log_multiplier", above=-float(MAX_COUNT), default=0.0) != 0.0:
        raise Unsupported(f"{fields.origin}: rope.scaling.yarn_log_multiplier is not supported")
    original = max_position if kind == "yarn" else 0
    multiplier = fields.number("rope.scaling.attn_factor", default=None)
    if multiplier is None:
        multiplier = fields.number("rope.scaling.yarn_attn_factor", default=1.0)
    rope = RopeConfig(
        dim=rotated,
        theta=fields.number("rope.freq_base", default=10000.0),
        kind=kind,
        factor=factor,
        original_max_position=fields.integer("rope.scaling.original_context_length", default=original),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", default=32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", default=1.0),
        divisors=None if divisors is None else tuple(map(float, divisors)),
    )
    # llama.cpp multiplies its factor onto the paper's instead of replacing it.
    if kind != "yarn" or multiplier == 1.0:
        return rope
    return RopeConfig(**{**rope.__dict__, "attention_factor": rope.scale * multiplier})
