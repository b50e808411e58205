"""One decoder for the Llama family: llama, mistral, qwen2, qwen3, ernie4_5. What differs between them is in the config.

::

    ids ─ embedding ─> x ──────────────────────────────┬────────────────────────┬─ … ─> norm ─> head ─> logits
                       └ norm ─ qkv ─ [qk norm] ─ rotary ┐ attention ─ out ─> (+) ─ norm ─ feed-forward ─> (+)
                                             write_kv ───┘ pages

Invariant: a step is a fixed list of op calls on the device's current stream over buffers that were made once. No op
here loops over tokens in Python, and none allocates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from accel.backend import Device, Stream
from accel.cache.pages import KVPool
from accel.models.config import ModelConfig
from accel.models.loader import DecoderWeights, LayerWeights, Projection
from accel.models.rope import rotary_table

__all__ = ["Decoder", "DecoderInput", "Workspace"]


@dataclass(frozen=True)
class DecoderInput:
    """What one step computes, T tokens of R requests, as views on the device.

    Args:
        tokens: T.
        ids, positions: int32 [T].
        slot_mapping: int64 [T], block * block_size + offset of each token.
        block_tables: int32 [R, M]; query_start: int32 [R + 1]; kv_lens: int32 [R], this step's tokens included.
    """

    tokens: int
    ids: Any
    positions: Any
    slot_mapping: Any
    block_tables: Any
    query_start: Any
    kv_lens: Any


@dataclass(frozen=True)
class Activations:
    """The buffers of a step of T tokens, as views: cut once, so that a layer makes no view of its own.

    ::

        qkv [T, (A + 2 KV) D]:  | q: A heads | k: KV heads | v: KV heads |     one row a token
                                | turned (rotary)          |
    """

    residual: Any  # [T, H]
    hidden: Any  # [T, H]
    qkv: Any
    q: Any  # [T, A, D]
    k: Any  # [T, KV, D]
    v: Any  # [T, KV, D]
    turned: Any  # [T, A + KV, D]
    attended: Any  # [T, A, D]
    attended_flat: Any  # [T, A * D]
    gate_up: Any  # [T, 2 I]
    activated: Any  # [T, I]


class Workspace:
    """The activations of a step of at most `max_tokens` tokens, allocated once."""

    #: Numbers of tokens whose views are kept: a decode batch repeats its own, chunks of a prompt theirs.
    _KEPT: Final = 64

    def __init__(self, device: Device, config: ModelConfig, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._config = config
        heads = config.num_heads * config.head_dim
        self._widths = {
            "residual": config.hidden_size,
            "hidden": config.hidden_size,
            "qkv": heads + 2 * config.num_kv_heads * config.head_dim,
            "attended_flat": heads,
            "gate_up": 2 * config.intermediate_size,
            "activated": config.intermediate_size,
        }
        self._full = {
            name: device.view(device.empty([max_tokens, width], "float32")) for name, width in self._widths.items()
        }
        self._cut: dict[int, Activations] = {}

    def activations(self, tokens: int) -> Activations:
        """The first `tokens` rows of every buffer."""
        found = self._cut.get(tokens)
        if found is None:
            if len(self._cut) >= self._KEPT:
                self._cut.clear()
            found = self._cut[tokens] = self._cut_rows(tokens)
        return found

    def _cut_rows(self, tokens: int) -> Activations:
        rows = {name: full.narrow(0, 0, tokens) for name, full in self._full.items()}
        heads, kv_heads, dim = self._config.num_heads, self._config.num_kv_heads, self._config.head_dim
        by_head = rows["qkv"].reshape([tokens, heads + 2 * kv_heads, dim])
        return Activations(
            **rows,
            q=by_head.narrow(1, 0, heads),
            k=by_head.narrow(1, heads, kv_heads),
            v=by_head.narrow(1, heads + kv_heads, kv_heads),
            turned=by_head.narrow(1, 0, heads + kv_heads),
            attended=rows["attended_flat"].reshape([tokens, heads, dim]),
        )


class DenseFeedForward:
    """down(silu(gate(x)) * up(x)). A routed feed-forward (MoE) will stand beside it with the same call."""

    def __init__(self, device: Device, layer: LayerWeights) -> None:
        self._ops = device.ops
        self._gate_up = layer.gate_up
        self._down = layer.down

    def __call__(self, stream: Stream, act: Activations) -> None:
        """`act.hidden` in place."""
        project(self._ops, stream, act.gate_up, act.hidden, self._gate_up)
        self._ops.silu_and_mul(stream, act.activated, act.gate_up)
        project(self._ops, stream, act.hidden, act.activated, self._down)


def project(ops: Any, stream: Stream, out: Any, x: Any, projection: Projection) -> None:
    """out [T, width] = x W^T + b."""
    bias = projection.bias
    if len(projection.parts) == 1:
        ops.linear(stream, out, x, projection.parts[0][1], bias)
        return
    for first, weight in projection.parts:
        width = weight.shape[0]
        part = None if bias is None else bias.narrow(0, first, width)
        ops.linear(stream, out.narrow(1, first, width), x, weight, part)


class Decoder:
    """A loaded model on a device.

    Args:
        max_positions: longest sequence; the rotary table covers it.
    """

    def __init__(self, device: Device, config: ModelConfig, weights: DecoderWeights, max_positions: int) -> None:
        self.config = config
        self.weights = weights
        self.max_positions = max_positions
        self._device = device
        self._ops = device.ops
        self._scale = config.head_dim**-0.5
        self._rotary = device.view(_upload(device, rotary_table(config.rope, max_positions)))
        self._feed_forward = [DenseFeedForward(device, layer) for layer in weights.layers]

    def forward(self, stream: Stream, batch: DecoderInput, pool: KVPool, space: Workspace) -> Any:
        """Run all layers and write the step's K and V into `pool`.

        Returns:
            The normalised hidden states, float32 [T, H]; a buffer of `space`.
        """
        ops, eps = self._ops, self.config.rms_norm_eps
        act = space.activations(batch.tokens)
        ops.embedding(stream, act.residual, batch.ids, self.weights.embedding)
        layers = self.weights.layers
        ops.rms_norm(stream, act.hidden, act.residual, layers[0].input_norm, eps=eps)
        for index, layer in enumerate(layers):
            self._attend(stream, index, layer, batch, pool, act)
            ops.add_rms_norm(stream, act.hidden, act.residual, act.hidden, layer.post_norm, eps=eps)
            self._feed_forward[index](stream, act)
            following = layers[index + 1].input_norm if index + 1 < len(layers) else self.weights.norm
            ops.add_rms_norm(stream, act.hidden, act.residual, act.hidden, following, eps=eps)
        return act.hidden

    def head(self, stream: Stream, logits: Any, hidden: Any) -> None:
        """logits [R, vocab] of hidden states [R, H]."""
        project(self._ops, stream, logits, hidden, self.weights.head)

    def _attend(
        self, stream: Stream, index: int, layer: LayerWeights, batch: DecoderInput, pool: KVPool, act: Activations
    ) -> None:
        """Attention of one layer over the normalised hidden states, in place."""
        ops, config = self._ops, self.config
        project(ops, stream, act.qkv, act.hidden, layer.qkv)
        if layer.q_norm is not None:
            ops.rms_norm(stream, act.q, act.q, layer.q_norm, eps=config.rms_norm_eps)
            ops.rms_norm(stream, act.k, act.k, layer.k_norm, eps=config.rms_norm_eps)
        # q and k lie side by side and turn by the same angles: one call.
        ops.rotary(stream, act.turned, batch.positions, self._rotary, interleaved=config.rope_interleaved)
        pages = pool.layer_views[index]
        ops.write_kv(stream, pages, act.k, act.v, batch.slot_mapping)
        ops.attention(
            stream,
            act.attended,
            act.q,
            pages,
            batch.block_tables,
            batch.query_start,
            batch.kv_lens,
            scale=self._scale,
            window=config.windows[index] if config.windows else 0,
        )
        project(ops, stream, act.hidden, act.attended_flat, layer.attention_out)


def _upload(device: Device, host: Any) -> Any:
    tensor = device.empty(host.shape, "float32")
    stream = device.current_stream()
    device.copy(tensor, host, stream)
    stream.synchronize()
    return tensor
