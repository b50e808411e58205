"""Random calls of the sampling ops and two ways to run them, shared by the tests of sampling rules.

Invariant: a call is a dict of NumPy arrays in the order of its spec, so that any row of it may be taken or moved.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import accel
from accel import Device
from accel.errors import Unsupported
from accel.ops.spec import op_spec

Arrays = dict[str, NDArray[Any]]
Run = Callable[..., None]


@cache
def device(isa: str = "auto", threads: int = 2) -> Device:
    """One device for each setting, kept for the whole run; skips where the machine lacks the instruction set."""
    try:
        return accel.open("cpu", threads=threads, isa=isa)
    except Unsupported as missing:
        pytest.skip(f"this machine lacks {isa}: {missing}")


def on(op: str, isa: str = "auto", threads: int = 2) -> Run:
    """The op of a device, called like a reference."""
    where = device(isa, threads)
    return lambda *arrays: getattr(where.ops, op)(where.current_stream(), *arrays)


def both(op: str) -> list[tuple[str, Run]]:
    """The reference and the device, for what must hold of either."""
    return [("reference", op_spec(op).reference), ("cpu", on(op))]


def sampling(rows: int, **parameters: Any) -> Arrays:
    """Parameters of `sample` for so many rows; each may be one value or [rows]. Position counts up from 0."""
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 5, "position": np.arange(rows)}
    types = {"temperature": "f4", "top_k": "i4", "top_p": "f4", "min_p": "f4", "seed": "u8", "position": "i8"}
    unknown = parameters.keys() - defaults.keys()
    if unknown:
        raise KeyError(", ".join(sorted(unknown)))
    values = {**defaults, **parameters}
    return {name: np.broadcast_to(np.asarray(values[name], types[name]), (rows,)).copy() for name in defaults}


def picks(run: Run, logits: NDArray[Any], parameters: Arrays) -> NDArray[np.int32]:
    out = np.full(len(logits), -7, np.int32)
    run(out, logits, *parameters.values())
    return out


def words_in_rows(rows: list[list[list[int]]]) -> Arrays:
    """Words of each row as the ops take them."""
    flat = [word for words in rows for word in words]
    return {
        "row_start": np.cumsum([0, *(len(words) for words in rows)]).astype(np.int32),
        "word_start": np.cumsum([0, *(len(word) for word in flat)]).astype(np.int32),
        "words": np.array([token for word in flat for token in word], np.int32),
    }
