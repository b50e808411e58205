"""What callers pass, made into plain values: one check for each kind of argument, for every public call.

Invariant: whatever is given (another type, NaN, an int of a million digits, an array, an object that raises when it is
shown), the answer is a plain value within its limits, or one typed error that names the argument, what was given and
the limits.
"""

from __future__ import annotations

import operator
import reprlib
from typing import Any, Final

from accel.errors import AccelError, InvalidArgument

__all__ = ["at_least", "flag", "real", "shown", "whole"]

_SHOWN_CHARACTERS: Final = 80
_SHOWN_BITS: Final = 256

_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = _shown.maxlong = _SHOWN_CHARACTERS


def shown(value: Any) -> str:
    """`value` as an error message shows it: short, whatever it is."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        # Python refuses to write very large ones, and nobody reads them.
        return f"{'-' if value < 0 else ''}2**{value.bit_length() - 1} or more"
    try:
        return _shown.repr(value)
    except Exception as error:  # the value's own __repr__ is broken, which must not hide what is wrong with the value
        return f"<{type(value).__name__}, which cannot be shown: {type(error).__name__}>"


def whole(
    name: str, value: Any, least: int, most: int | None = None, *, error: type[AccelError] = InvalidArgument
) -> int:
    """`value` as an int of `least` to `most`. Raises `error`."""
    try:
        number: int | None = operator.index(value)
    except TypeError:
        number = None
    if number is not None and least <= number and (most is None or number <= most):
        return number
    limits = f"{least} or more" if most is None else f"{least} to {most}"
    wanted = f"a whole number, {limits}" if number is None else limits
    raise error(f"{name} is {shown(value)}; it must be {wanted}", **{name: value})


def at_least(name: str, value: Any, most: int = 2**31 - 1, *, least: int = 1) -> int:
    """`value` as an int of `least` or more. `most`, which only the representation sets, is named to who passes it."""
    return whole(name, whole(name, value, least), least, most)


def real(
    name: str, value: Any, limits: str, least: float, most: float, *, error: type[AccelError] = InvalidArgument
) -> float:
    """`value` as a float of `least` to `most`, both included; `limits` says so in words. Raises `error`."""
    wrong = error(f"{name} is {shown(value)}; it must be {limits}", **{name: value})
    # A text has no __float__, though float() would read it.
    if not hasattr(value, "__float__") and not hasattr(value, "__index__"):
        raise wrong
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    if not least <= number <= most:
        raise wrong
    return number


def flag(name: str, value: Any, *, error: type[AccelError] = InvalidArgument) -> bool:
    """`value` as a bool: True, False, 1, 0 or what compares equal to them. Raises `error`."""
    try:
        number = operator.index(value)
    except TypeError:
        # NumPy's bool is no index, but says what it is.
        number = value.item() if type(value).__name__ in ("bool", "bool_") and hasattr(value, "item") else -1
    if number not in (0, 1):
        raise error(f"{name} is {shown(value)}; it must be True or False", **{name: value})
    return bool(number)
