"""From a weight file to weights on a device.

Every tensor is packed a few MiB of rows at a time, straight from the memory map into the form the device computes
with, and the pages of the map are given back as it goes: at no time is there a second copy of a tensor in memory.

Invariant: what a weight is held in is decided by one rule. "auto" keeps what the file has where the device holds it
without loss, and widens to float32 where it does not; a dtype that was named is used for every matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from accel.backend import Device, Weight
from accel.errors import Unsupported
from accel.models.config import ModelConfig
from accel.models.weights import WeightEntry, WeightSource, dequantize, logical_rows

__all__ = ["AUTO_DTYPE", "DecoderWeights", "LayerWeights", "Projection", "check_dtype", "load_weights"]

AUTO_DTYPE: Final = "auto"
_WIDEST: Final = "float32"
#: Bytes of file read before the map's pages are given back.
_CHUNK_BYTES: Final = 4 << 20

#: Called with (bytes done, bytes in all) of the file.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Projection:
    """A linear layer: y = x W^T + b, or several side by side that read the same x.

    `parts` are (first output column, weight); neighbours of one format are one weight. `bias` is float32 [width] or
    None.
    """

    width: int
    parts: tuple[tuple[int, Weight], ...]
    bias: Any = None

    @property
    def nbytes(self) -> int:
        return sum(weight.nbytes for _, weight in self.parts)


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. Norms are float32 vectors; q_norm and k_norm are None without QK norm."""

    input_norm: Any
    qkv: Projection
    q_norm: Any
    k_norm: Any
    attention_out: Projection
    post_norm: Any
    gate_up: Projection
    down: Projection


@dataclass(frozen=True)
class DecoderWeights:
    """All weights of a decoder; `head` is the embedding itself where the two are tied."""

    embedding: Weight
    layers: tuple[LayerWeights, ...]
    norm: Any
    head: Projection
    nbytes: int


def check_dtype(device: Device, dtype: str) -> None:
    """Raise Unsupported unless `dtype` is "auto" or a weight format of `device`."""
    formats = device.capabilities.weight_formats
    plain = tuple(name for name in formats if name in ("float32", "bfloat16", "float16"))
    if dtype != AUTO_DTYPE and dtype not in plain:
        raise Unsupported(
            f"weights cannot be held as {dtype!r} here",
            device=device.name,
            hint=f"use {AUTO_DTYPE} or one of {', '.join(plain)}",
        )


def load_weights(
    device: Device, config: ModelConfig, source: WeightSource, dtype: str = AUTO_DTYPE, progress: Progress | None = None
) -> DecoderWeights:
    """Pack every weight of the model onto `device`.

    Args:
        source: open, and checked against `config`.
        dtype: "auto", or the dtype every matrix is held in.
        progress: called after each chunk.

    Raises:
        Unsupported: the device does not hold `dtype`.
        OutOfMemory: the weights do not fit.
    """
    check_dtype(device, dtype)
    return _Loader(device, config, source, dtype, progress).load()


class _Loader:
    def __init__(
        self, device: Device, config: ModelConfig, source: WeightSource, dtype: str, progress: Progress | None
    ) -> None:
        self._device = device
        self._config = config
        self._source = source
        self._dtype = dtype
        self._progress = progress
        self._done = 0
        self._total = sum(entry.nbytes for entry in source.entries.values())
        self._held = 0

    def load(self) -> DecoderWeights:
        config = self._config
        embedding_name = "model.embed_tokens.weight"
        embedding = self._weight((embedding_name,), self._format(embedding_name))
        head = (
            Projection(config.vocab_size, ((0, embedding),))
            if config.tie_embeddings
            else self._projection(("lm_head",), biased=False)
        )
        layers = tuple(self._layer(f"model.layers.{i}") for i in range(config.num_layers))
        norm = self._vector("model.norm.weight")
        self._device.synchronize()
        self._report(self._total - self._done)
        return DecoderWeights(embedding, layers, norm, head, self._held)

    def _layer(self, prefix: str) -> LayerWeights:
        config = self._config
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return LayerWeights(
            input_norm=self._vector(f"{prefix}.input_layernorm.weight"),
            qkv=self._projection([f"{attention}.{x}_proj" for x in "qkv"], config.qkv_bias),
            q_norm=self._vector(f"{attention}.q_norm.weight") if config.qk_norm else None,
            k_norm=self._vector(f"{attention}.k_norm.weight") if config.qk_norm else None,
            attention_out=self._projection((f"{attention}.o_proj",), config.out_bias),
            post_norm=self._vector(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=self._projection([f"{mlp}.gate_proj", f"{mlp}.up_proj"], config.mlp_bias),
            down=self._projection((f"{mlp}.down_proj",), config.mlp_bias),
        )

    def _projection(self, names: Sequence[str], biased: bool) -> Projection:
        parts: list[tuple[int, Weight]] = []
        column = 0
        for format, group in self._same_format([f"{name}.weight" for name in names]):
            weight = self._weight(group, format)
            parts.append((column, weight))
            column += weight.shape[0]
        bias = self._vectors([f"{name}.bias" for name in names]) if biased else None
        return Projection(column, tuple(parts), bias)

    def _same_format(self, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        """Runs of neighbours that are held alike."""
        group: list[str] = []
        current = ""
        for name in names:
            format = self._format(name)
            if group and format != current:
                yield current, group
                group = []
            current = format
            group.append(name)
        yield current, group

    def _format(self, name: str) -> str:
        if self._dtype != AUTO_DTYPE:
            return self._dtype
        entry = self._source.entries[name]
        return self._device.weight_format(entry.encoding, entry.cols) or _WIDEST

    def _weight(self, names: Sequence[str], format: str) -> Weight:
        entries = [self._source.entries[name] for name in names]
        weight = self._device.weight(format, sum(entry.rows for entry in entries), entries[0].cols)
        first = 0
        for entry in entries:
            self._pack(weight, entry, first)
            first += entry.rows
        self._held += weight.nbytes
        return weight

    def _pack(self, weight: Weight, entry: WeightEntry, first: int) -> None:
        raw = self._source.raw(entry.name)
        keep = self._device.weight_format(entry.encoding, entry.cols) == weight.format
        # A dtype that was named takes any plain encoding as it is; blocks are numbers first.
        keep = keep or entry.encoding in ("float32", "bfloat16", "float16")
        order = logical_rows(entry) if entry.row_permutation else None
        step = max(1, _CHUNK_BYTES // max(1, entry.row_bytes))
        for begin in range(0, entry.rows, step):
            rows = raw[begin : begin + step]
            encoding = entry.encoding
            if not keep:
                rows = dequantize(encoding, rows).view(np.uint8)
                encoding = _WIDEST
            targets = None if order is None else first + order[begin : begin + step]
            weight.pack_rows(encoding, rows, targets, first + begin)
            self._source.release(entry.name)
            self._report(len(rows) * entry.row_bytes)

    def _vector(self, name: str) -> Any:
        return self._vectors([name])

    def _vectors(self, names: Sequence[str]) -> Any:
        """float32 vectors, end to end, as one tensor on the device."""
        values: list[npt.NDArray[np.float32]] = []
        for name in names:
            entry = self._source.entries[name]
            values.append(dequantize(entry.encoding, self._source.raw(name)).reshape(-1))
            self._source.release(name)
            self._report(entry.nbytes)
        host = np.concatenate(values)
        tensor = self._device.empty([len(host)], _WIDEST)
        stream = self._device.current_stream()
        self._device.copy(tensor, host, stream)
        if not self._device.capabilities.host_executed:
            stream.synchronize()  # `host` goes away with this call
        self._held += host.nbytes
        return self._device.view(tensor)

    def _report(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)
