"""Weights from safetensors: one file, or a folder with an index of shards.

The safetensors library validates each file, and the tensors are then read through a memory map of our own: those the
library hands out are copies, or keep its whole map resident, and a loader's peak memory would grow with the file.

Invariant: after construction every byte range named by a header lies inside its file, and no tensor is claimed twice.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from accel.errors import ModelError
from accel.models.fields import Fields, read_json
from accel.models.mapped import MappedFile
from accel.models.weights import WeightEntry

__all__ = ["SafetensorsSource", "open_safetensors"]

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_ENCODINGS: Final = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_LENGTH_BYTES: Final = 8


@dataclass(frozen=True)
class _Place:
    file: MappedFile
    offset: int
    length: int


class SafetensorsSource:
    """A :class:`~accel.models.weights.WeightSource` over one or more safetensors files.

    Raises:
        ModelError: a file that is missing, truncated or corrupt, or a tensor that two files hold; names the file.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._files: list[MappedFile] = []
        self._places: dict[str, _Place] = {}
        entries: dict[str, WeightEntry] = {}
        for path in paths:
            file = MappedFile(path)
            self._files.append(file)
            for entry, place in _read_header(file):
                if entry.name in entries:
                    other = self._places[entry.name].file.path
                    raise ModelError(f"tensor {entry.name} is in both {other} and {path}", tensor=entry.name)
                entries[entry.name] = entry
                self._places[entry.name] = place
        self._entries = MappingProxyType(entries)

    @property
    def entries(self) -> Mapping[str, WeightEntry]:
        return self._entries

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        place = self._place(name)
        entry = self._entries[name]
        return place.file.view(place.offset, place.length).reshape(entry.rows, entry.row_bytes)

    def release(self, name: str) -> None:
        place = self._place(name)
        place.file.release(place.offset, place.length)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _place(self, name: str) -> _Place:
        try:
            return self._places[name]
        except KeyError:
            raise ModelError(f"no tensor {name} in {self._files[0].path.parent}", tensor=name) from None


def open_safetensors(path: Path) -> SafetensorsSource:
    """Open a safetensors file, or a folder with ``model.safetensors``, else ``model.safetensors.index.json``.

    Raises:
        ModelError: nothing of the kind there, a shard the index names is absent or damaged, or the index names a
            tensor its shard does not hold.
    """
    if os.path.isfile(path):
        return SafetensorsSource([path])
    single, index = path / _SINGLE, path / _INDEX
    if os.path.isfile(single):
        return SafetensorsSource([single])
    if not os.path.isfile(index):
        found = sorted(file.name for file in path.glob("*.safetensors"))
        raise ModelError(
            f"{path} has no {_SINGLE} or {_INDEX}" + (f", only {', '.join(found[:3])}" if found else ""),
            hint="weights in another format must be converted to safetensors first",
            path=str(path),
        )
    return _open_sharded(path, index)


def _open_sharded(folder: Path, index: Path) -> SafetensorsSource:
    fields = Fields(read_json(index), str(index))
    weight_map: dict[str, Any] = fields.mapping("weight_map")
    for tensor, shard in weight_map.items():
        # A shard is a plain name: an index must not lead out of its folder.
        if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", "..", "."):
            raise fields.error("weight_map", f"gives {tensor} the shard {shard!r}, which is not a file name")
    shards = sorted(set(weight_map.values()))
    if not shards:
        raise fields.error("weight_map", "is empty")
    absent = [shard for shard in shards if not os.path.isfile(folder / shard)]
    if absent:
        raise ModelError(
            f"{index} names {absent[0]}, which is not in {folder} ({len(absent)} of {len(shards)} shards absent)",
            hint="fetch the missing shards",
            path=str(folder / absent[0]),
        )
    source = SafetensorsSource([folder / shard for shard in shards])
    for tensor, shard in weight_map.items():
        if tensor not in source.entries or source._place(tensor).file.path.name != shard:
            raise ModelError(f"{index} says {tensor} is in {shard}, and it is not", tensor=tensor, path=str(index))
    return source


def _read_header(file: MappedFile) -> list[tuple[WeightEntry, _Place]]:
    _validate(file.path)
    start = _LENGTH_BYTES + int.from_bytes(file.buffer[:_LENGTH_BYTES], "little")
    header: dict[str, Any] = json.loads(file.buffer[_LENGTH_BYTES:start])
    header.pop("__metadata__", None)
    found = []
    for name, info in header.items():
        begin, end = info["data_offsets"]
        # The library has checked this already, on its own map; the file could have changed in between.
        if not 0 <= begin <= end <= file.size - start:
            raise ModelError(f"{file.path}: tensor {name} lies outside the file", path=str(file.path), tensor=name)
        encoding = _ENCODINGS.get(info["dtype"], info["dtype"])
        entry = WeightEntry(name, tuple(info["shape"]), encoding, end - begin)
        found.append((entry, _Place(file, start + begin, end - begin)))
    return found


def _validate(path: Path) -> None:
    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path} is not a whole safetensors file: {error}", hint="fetch the file again", path=str(path)
        ) from error
