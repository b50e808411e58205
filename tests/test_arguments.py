"""Whatever a caller passes becomes a plain value within its limits, or one typed error that names it."""

from __future__ import annotations

import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from accel.arguments import flag, real, shown, whole
from accel.errors import InvalidArgument, InvalidRequest


def kind(value: object) -> str:
    """The name of a case: its value may be one that cannot be written."""
    return type(value).__name__


class Broken:
    """Its own __repr__ raises."""

    def __repr__(self) -> str:
        raise RuntimeError("planted")


@pytest.mark.parametrize("value", [5, True, np.int8(5), np.uint64(5), np.array(5)], ids=kind)
def test_a_whole_number_of_any_type_becomes_an_int(value: Any) -> None:
    assert type(whole("n", value, 0, 9)) is int
    assert whole("n", value, 0, 9) == int(value)


@pytest.mark.parametrize(
    "value",
    [None, 5.0, "5", b"5", [5], float("nan"), np.float32(5), 1j, object(), Broken(), 10**5000, -(10**5000), 10],
    ids=kind,
)
def test_what_is_no_whole_number_within_the_limits_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^n is .*; it must be .*0 to 9$"):
        whole("n", value, 0, 9)
    with pytest.raises(InvalidRequest):
        whole("n", value, 0, 9, error=InvalidRequest)


@pytest.mark.parametrize(
    "value", [1, True, 0.5, np.float16(0.5), Fraction(1, 2), Decimal("0.5"), np.array(0.5)], ids=kind
)
def test_a_number_of_any_type_becomes_a_float(value: Any) -> None:
    assert type(real("x", value, "0 to 1", 0.0, 1.0)) is float
    assert real("x", value, "0 to 1", 0.0, 1.0) == float(value)


@pytest.mark.parametrize(
    "value",
    [None, "0.5", b"1", [0.5], float("nan"), Decimal("NaN"), 1j, 2, 10**400, 10**5000, np.array([0.1, 0.2]), Broken()],
    ids=kind,
)
def test_what_is_no_number_within_the_limits_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"(?s)^x is .*; it must be 0 to 1$"):
        real("x", value, "0 to 1", 0.0, 1.0)


@pytest.mark.parametrize(("value", "wanted"), [(True, True), (0, False), (np.True_, True), (np.int32(1), True)])
def test_a_flag_becomes_a_bool(value: Any, wanted: bool) -> None:
    assert flag("f", value) is wanted


@pytest.mark.parametrize("value", [None, "false", "", 2, -1, 0.0, [], Broken(), 10**5000], ids=kind)
def test_what_is_neither_true_nor_false_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^f is .*; it must be True or False$"):
        flag("f", value)


@pytest.mark.parametrize(
    "value", [10**5000, "x" * 10**6, [10**5000], list(range(10**4)), Broken(), b"x" * 10**5], ids=kind
)
def test_whatever_is_shown_is_short(value: Any) -> None:
    assert len(shown(value)) < 300


def test_small_numbers_are_shown_as_they_are() -> None:
    assert [shown(n) for n in (-5, 2**64, sys.maxsize)] == ["-5", str(2**64), str(sys.maxsize)]
