"""Slots: where a running request's parameters lie while it runs, so that a step takes them with one gather each.

Invariant: a slot is written whole when a request enters it; nothing of the one before is left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from accel.scheduler.request import Request

__all__ = ["Slots"]

#: Field of StepPlan → dtype and how a request gives it. What a request cannot change while it runs.
_FIELDS: dict[str, tuple[Any, Any]] = {
    "temperature": (np.float32, lambda r: r.params.temperature),
    "top_k": (np.int32, lambda r: r.params.top_k),
    "top_p": (np.float32, lambda r: r.params.top_p),
    "min_p": (np.float32, lambda r: r.params.min_p),
    "seed": (np.uint64, lambda r: r.seed),
    "prompt_len": (np.int32, lambda r: r.prompt_len),
    "min_tokens": (np.int32, lambda r: r.params.min_tokens),
    "max_tokens": (np.int32, lambda r: r.max_new_tokens),
    "ignore_eos": (np.uint8, lambda r: r.params.ignore_eos),
}


class Slots:
    """`count` slots, lowest first; one that was given back is taken again before others."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._columns = {name: np.zeros(count, dtype) for name, (dtype, _) in _FIELDS.items()}

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, request: Request) -> int:
        """A free slot, with the request's parameters in it. The caller has seen that there is one."""
        slot = self._free.pop()
        for name, (_, read) in _FIELDS.items():
            self._columns[name][slot] = read(request)
        return slot

    def give(self, slot: int) -> None:
        self._free.append(slot)

    def columns(self, slots: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[Any]]:
        """The parameters of `slots`, as fields of a StepPlan."""
        return {name: column[slots] for name, column in self._columns.items()}
