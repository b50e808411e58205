"""Weights and metadata from a GGUF file.

The header is read here and not by ``gguf.GGUFReader``, which builds several NumPy views for each element of each array
and so takes 3 s on a vocabulary of 50,000 tokens and their merges; this takes some 50 ms. Quantisation sizes and block
decoding are the gguf package's.

Invariant: after construction the whole header was read within the file's bounds, every tensor extent lies inside the
file, and no name occurs twice. Any other file is a ModelError.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from accel.errors import InvalidArgument, ModelError
from accel.models.config import ModelConfig, from_gguf
from accel.models.families import FAMILIES, canonical_name
from accel.models.mapped import MappedFile
from accel.models.weights import WeightEntry, dequantize

__all__ = ["GgufSource", "read_config"]

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32
#: GGUF value type -> struct code.
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9
_MAX_DIMS: Final = 4
#: The float encodings by the names the rest of the library uses.
_PLAIN: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
#: Tensors with one factor per rotary frequency: how llama3 scaling is stored.
_ROPE_FREQS: Final = "rope_freqs.weight"
#: Architectures whose q and k rows llama.cpp stores interleaved.
_PERMUTED: Final = frozenset(
    name for family in FAMILIES.values() if family.gguf_permuted for name in family.gguf_architectures
)


@dataclass(frozen=True)
class _Info:
    """A tensor as the header describes it; `dims` has the innermost dimension first."""

    name: str
    dims: tuple[int, ...]
    type_id: int
    offset: int


class _Cursor:
    """Reads the header front to back; a read past the end of the file is a ModelError."""

    def __init__(self, file: MappedFile) -> None:
        self.data = file.buffer
        self.size = file.size
        self.path = file.path
        self.offset = 0

    def fail(self, problem: str) -> ModelError:
        return ModelError(
            f"{self.path}: {problem} at byte {self.offset} of {self.size}",
            hint="the file is damaged or incomplete; fetch it again",
            path=str(self.path),
        )

    def take(self, length: int) -> bytes:
        if length > self.size - self.offset:
            raise self.fail(f"{length} bytes of the header lie past the end,")
        start, self.offset = self.offset, self.offset + length
        return self.data[start : self.offset]

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def string(self) -> str:
        raw = self.take(self.number("Q"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail("a string is not UTF-8,") from None

    def value(self) -> Any:
        kind = self.number("I")
        if kind == _STRING:
            return self.string()
        return self._array() if kind == _ARRAY else self._scalars(kind, 1)[0]

    def _array(self) -> list[Any]:
        kind, count = self.number("I"), self.number("Q")
        # Checked before anything is allocated: each element takes at least a byte, a string at least its length.
        if count > self.size - self.offset:
            raise self.fail(f"an array of {count} elements lies past the end,")
        return self._strings(count) if kind == _STRING else self._scalars(kind, count)

    def _scalars(self, kind: int, count: int) -> list[Any]:
        if kind not in _SCALARS:
            raise self.fail(f"unknown or nested value type {kind}")
        code = _SCALARS[kind]
        # One byte booleans may hold anything; struct takes every non-zero byte for true.
        return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(f"<{code}"))))

    def _strings(self, count: int) -> list[str]:
        # The one hot loop of opening a model: vocabulary and merges, some 10^5 to 10^6 strings.
        data, offset, size = self.data, self.offset, self.size
        length_at = struct.Struct("<Q").unpack_from
        strings = []
        try:
            for _ in range(count):
                (length,) = length_at(data, offset)
                offset += 8
                if length > size - offset:
                    raise self.fail(f"a string of {length} bytes lies past the end,")
                strings.append(data[offset : offset + length].decode("utf-8"))
                offset += length
        except (struct.error, UnicodeDecodeError) as error:
            raise self.fail(f"a damaged string array ({error})") from error
        self.offset = offset
        return strings


class GgufSource:
    """A :class:`~accel.models.weights.WeightSource` over a GGUF file, and its metadata.

    Tensors carry their Hugging Face names (``families.canonical_name``); those no family uses keep their own.

    Raises:
        ModelError: not a GGUF file, another version or byte order, truncated, damaged, one part of a split model, or
            with a quantisation the gguf package does not know.
    """

    def __init__(self, path: Path) -> None:
        self._file = MappedFile(path)
        cursor = _Cursor(self._file)
        tensors, pairs = _read_preamble(cursor)
        self.metadata: Mapping[str, Any] = MappingProxyType(_read_metadata(cursor, pairs))
        infos = [_read_info(cursor) for _ in range(tensors)]
        self._entries: dict[str, WeightEntry] = {}
        self._offsets: dict[str, int] = {}
        self._add_tensors(infos, _data_start(cursor, self.metadata))

    def _add_tensors(self, infos: list[_Info], start: int) -> None:
        heads = _permuted_heads(self.metadata)
        for info in infos:
            entry = _entry(info, heads, self._file.path)
            end = start + info.offset + entry.nbytes
            if end > self._file.size:
                raise ModelError(
                    f"{self._file.path}: tensor {info.name} ends at byte {end} of {self._file.size}",
                    hint="the file is truncated; fetch it again",
                    path=str(self._file.path),
                    tensor=info.name,
                )
            if entry.name in self._entries:
                raise ModelError(f"{self._file.path}: tensor {info.name} occurs twice", tensor=info.name)
            self._entries[entry.name] = entry
            self._offsets[entry.name] = start + info.offset

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def entries(self) -> Mapping[str, WeightEntry]:
        return MappingProxyType(self._entries)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        entry = self._entry_of(name)
        return self._file.view(self._offsets[name], entry.nbytes).reshape(entry.rows, entry.row_bytes)

    def release(self, name: str) -> None:
        self._file.release(self._offsets[self._entry_of(name).name], self._entries[name].nbytes)

    def close(self) -> None:
        self._file.close()

    def _entry_of(self, name: str) -> WeightEntry:
        try:
            return self._entries[name]
        except KeyError:
            raise ModelError(f"no tensor {name} in {self._file.path}", tensor=name) from None


def read_config(source: GgufSource) -> ModelConfig:
    """The config in the metadata of an open file, with the frequency factors it may hold as a tensor.

    Raises:
        ModelError, Unsupported: as :func:`accel.models.config.from_gguf`.
    """
    divisors = None
    if _ROPE_FREQS in source.entries:
        try:
            values = dequantize(source.entries[_ROPE_FREQS].encoding, source.raw(_ROPE_FREQS))
        except InvalidArgument as error:
            raise ModelError(f"{source.path}: {_ROPE_FREQS} is damaged: {error}", tensor=_ROPE_FREQS) from error
        divisors = values.reshape(-1).tolist()
    return from_gguf(
        source.metadata, tensor_names=source.entries.keys(), rope_divisors=divisors, origin=str(source.path)
    )


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    magic = cursor.take(len(_MAGIC))
    if magic != _MAGIC:
        raise ModelError(
            f"{cursor.path} is not a GGUF file: it starts with {magic!r}, not {_MAGIC!r}", path=str(cursor.path)
        )
    version = cursor.number("I")
    if version & 0xFFFF == 0:
        raise ModelError(
            f"{cursor.path} is a big-endian GGUF file", hint="only little endian is read", path=str(cursor.path)
        )
    if version not in _VERSIONS:
        raise ModelError(f"{cursor.path} is GGUF version {version}; versions 2 and 3 are read", path=str(cursor.path))
    return cursor.number("Q"), cursor.number("Q")


def _read_metadata(cursor: _Cursor, pairs: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    # Not trusted as a size: a wrong count runs into the end of the file.
    for _ in range(pairs):
        key = cursor.string()
        if key in metadata:
            raise cursor.fail(f"metadata key {key!r} occurs twice,")
        metadata[key] = cursor.value()
    parts = metadata.get("split.count", 1)
    if parts != 1:
        raise ModelError(
            f"{cursor.path} is one of {parts} parts of a model",
            hint="join them with llama-gguf-split --merge",
            path=str(cursor.path),
        )
    return metadata


def _read_info(cursor: _Cursor) -> _Info:
    name, count = cursor.string(), cursor.number("I")
    if not 1 <= count <= _MAX_DIMS:
        raise cursor.fail(f"tensor {name!r} has {count} dimensions, outside 1..{_MAX_DIMS},")
    dims = tuple(cursor.number("Q") for _ in range(count))
    if 0 in dims:
        raise cursor.fail(f"tensor {name!r} has an empty dimension,")
    return _Info(name, dims, cursor.number("I"), cursor.number("Q"))


def _data_start(cursor: _Cursor, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment {alignment!r} is not a power of two,")
    return (cursor.offset + alignment - 1) // alignment * alignment


def _permuted_heads(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Heads of the linears whose rows llama.cpp permutes when it converts a model, by the linear's name."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _PERMUTED:
        return {}
    heads = metadata.get(f"{architecture}.attention.head_count")
    kv_heads = metadata.get(f"{architecture}.attention.head_count_kv", heads)
    # A count of another type is refused when the config is read.
    found = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}
    return {name: count for name, count in found.items() if isinstance(count, int)}


def _entry(info: _Info, heads: Mapping[str, int], path: Path) -> WeightEntry:
    # Imported here: 0.1 s that only a GGUF file needs to spend.
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(info.type_id)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise ModelError(
            f"{path}: tensor {info.name} has the unknown quantisation type {info.type_id}",
            hint="a newer gguf package may know it: pip install --upgrade gguf",
            path=str(path),
            tensor=info.name,
        ) from None
    if info.dims[0] % block:
        raise ModelError(
            f"{path}: tensor {info.name} has rows of {info.dims[0]}, not a multiple of the {block} of {kind.name}",
            path=str(path),
            tensor=info.name,
        )
    name = canonical_name(info.name)
    linear = name.split(".", 3)[-1].rpartition(".")[0] if name.startswith("model.layers.") else ""
    return WeightEntry(
        name,
        tuple(reversed(info.dims)),
        _PLAIN.get(kind.name, kind.name),
        math.prod(info.dims) // block * block_bytes,
        heads.get(linear),
    )
