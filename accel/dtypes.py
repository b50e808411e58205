"""Element types: the one place that relates a name to its size and its DLPack code.

Invariant: the rest of the library passes dtypes by these names, which are also Paddle's and NumPy's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from accel.errors import InvalidArgument

__all__ = ["DTYPES", "DType", "dtype"]


@dataclass(frozen=True)
class DType:
    """One element type. ``code`` and ``bits`` are DLPack's (dlpack.h, ``DLDataTypeCode``)."""

    name: str
    bytes: int
    code: int
    floating: bool

    @property
    def bits(self) -> int:
        return self.bytes * 8


_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6

DTYPES: Final[dict[str, DType]] = {
    d.name: d
    for d in (
        DType("float32", 4, _FLOAT, True),
        DType("float16", 2, _FLOAT, True),
        DType("bfloat16", 2, _BFLOAT, True),
        DType("float64", 8, _FLOAT, True),
        DType("int8", 1, _INT, False),
        DType("int32", 4, _INT, False),
        DType("int64", 8, _INT, False),
        DType("uint8", 1, _UINT, False),
        DType("uint32", 4, _UINT, False),
        DType("uint64", 8, _UINT, False),
        DType("bool", 1, _BOOL, False),
    )
}


def dtype(name: str) -> DType:
    """The element type called `name`.

    Raises:
        InvalidArgument: no such type; the known ones are listed.
    """
    try:
        return DTYPES[name]
    except KeyError:
        raise InvalidArgument(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}", dtype=name) from None
