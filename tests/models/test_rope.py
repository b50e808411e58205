"""Rotary tables against formulas written again, in plain float64 Python, from the papers and reference code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from accel.errors import InvalidArgument, ModelError, Unsupported
from accel.models.rope import RopeConfig, inverse_frequencies, rotary_table


def plain(dim: int, theta: float) -> list[float]:
    return [theta ** (-2 * j / dim) for j in range(dim // 2)]


def llama3(dim: int, theta: float, factor: float, low: float, high: float, context: int) -> list[float]:
    scaled = []
    for frequency in plain(dim, theta):
        wavelength = 2 * math.pi / frequency
        if wavelength < context / high:
            scaled.append(frequency)
        elif wavelength > context / low:
            scaled.append(frequency / factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            scaled.append((1 - smooth) * frequency / factor + smooth * frequency)
    return scaled


def yarn(dim: int, theta: float, factor: float, context: int, fast: float, slow: float, truncate: bool) -> list[float]:
    def border(rotations: float) -> float:
        return dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = border(fast), border(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    scaled = []
    for j, frequency in enumerate(plain(dim, theta)):
        ramp = min(max((j - low) / (high - low), 0), 1)
        scaled.append(frequency * (1 - ramp) + frequency / factor * ramp)
    return scaled


CASES = [
    (RopeConfig(dim=64, theta=1e5), plain(64, 1e5)),
    (RopeConfig(dim=16, theta=1e4, kind="linear", factor=4.0), [f / 4 for f in plain(16, 1e4)]),
    (
        RopeConfig(dim=128, theta=5e5, kind="llama3", factor=8.0, original_max_position=8192),
        llama3(128, 5e5, 8.0, 1.0, 4.0, 8192),
    ),
    (
        RopeConfig(dim=16, theta=1e4, kind="llama3", factor=8.0, original_max_position=64),
        llama3(16, 1e4, 8.0, 1.0, 4.0, 64),
    ),
    (
        RopeConfig(dim=128, theta=1e6, kind="yarn", factor=4.0, original_max_position=32768),
        yarn(128, 1e6, 4.0, 32768, 32, 1, True),
    ),
    (
        RopeConfig(
            dim=64, theta=1e4, kind="yarn", factor=16.0, original_max_position=2048, beta_fast=16.0, truncate=False
        ),
        yarn(64, 1e4, 16.0, 2048, 16, 1, False),
    ),
]
IDS = ["default", "linear", "llama3-128", "llama3-16", "yarn", "yarn-not-truncated"]


@pytest.mark.parametrize(("rope", "expected"), CASES, ids=IDS)
def test_frequencies_follow_the_formula(rope: RopeConfig, expected: list[float]) -> None:
    np.testing.assert_allclose(inverse_frequencies(rope), expected, rtol=2e-6)


@pytest.mark.parametrize(("rope", "expected"), CASES, ids=IDS)
def test_table_is_cos_then_sin_of_the_float32_angle(rope: RopeConfig, expected: list[float]) -> None:
    positions = 3000  # more than one chunk
    table = rotary_table(rope, positions)
    assert table.shape == (positions, rope.dim)
    assert table.dtype == np.float32
    frequencies = inverse_frequencies(rope)
    for position in (0, 1, 7, 1023, 1024, 2999):
        for j in (0, 1, rope.dim // 2 - 1):
            angle = float(np.float32(position) * frequencies[j])
            assert table[position, j] == pytest.approx(rope.scale * math.cos(angle), abs=1e-6)
            assert table[position, rope.dim // 2 + j] == pytest.approx(rope.scale * math.sin(angle), abs=1e-6)


def test_yarn_scale_is_the_papers_unless_the_config_says_otherwise() -> None:
    base: dict[str, Any] = {"dim": 64, "kind": "yarn", "factor": 40.0, "original_max_position": 4096}
    paper = 0.1 * math.log(40.0) + 1
    assert RopeConfig(**base).scale == pytest.approx(paper)
    assert RopeConfig(**base, attention_factor=1.5).scale == 1.5
    assert RopeConfig(**base, mscale=1.0, mscale_all_dim=1.0).scale == pytest.approx(1.0)
    both = RopeConfig(**base, mscale=0.707, mscale_all_dim=1.0)
    assert both.scale == pytest.approx((0.0707 * math.log(40.0) + 1) / paper)
    assert RopeConfig(**base, mscale=0.707).scale == pytest.approx(paper)
    assert RopeConfig(**{**base, "factor": 0.5}).scale == 1.0


def test_yarn_scale_multiplies_every_entry() -> None:
    rope = RopeConfig(dim=8, kind="yarn", factor=4.0, original_max_position=32, attention_factor=2.0)
    table = rotary_table(rope, 16)
    np.testing.assert_allclose(table[:, :4] ** 2 + table[:, 4:] ** 2, 4.0, rtol=1e-6)


def test_explicit_divisors_equal_the_rule_they_were_made_from() -> None:
    rule = RopeConfig(dim=128, theta=5e5, kind="llama3", factor=32.0, original_max_position=8192)
    divisors = np.array(plain(128, 5e5)) / llama3(128, 5e5, 32.0, 1.0, 4.0, 8192)
    stored = RopeConfig(dim=128, theta=5e5, divisors=tuple(divisors.astype(np.float32).tolist()))
    np.testing.assert_allclose(inverse_frequencies(stored), inverse_frequencies(rule), rtol=5e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dim": 7}, "7"),
        ({"dim": 8, "theta": 1.0}, "rope_theta is 1.0"),
        ({"dim": 8, "theta": math.nan}, "nan"),
        ({"dim": 8, "factor": 0.0}, "factor is 0.0"),
        ({"dim": 8, "kind": "llama3"}, "original_max_position_embeddings"),
        ({"dim": 8, "kind": "llama3", "original_max_position": 8, "low_freq_factor": 4.0}, "low_freq_factor 4.0"),
        ({"dim": 8, "kind": "yarn", "original_max_position": 8, "beta_slow": 64.0}, "beta_slow 64.0"),
        ({"dim": 8, "divisors": (1.0,)}, "1 rope divisors for 4"),
        ({"dim": 8, "divisors": (1.0, 1.0, 1.0, 0.0)}, "0.0"),
    ],
)
def test_wrong_values_name_the_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        RopeConfig(**values)


def test_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(Unsupported, match=r"longrope.*default, linear, llama3, yarn"):
        RopeConfig(dim=8, kind="longrope")


@pytest.mark.parametrize("positions", [0, -1, 2**24 + 1])
def test_positions_outside_the_range_are_refused(positions: int) -> None:
    with pytest.raises(InvalidArgument, match=str(positions)):
        rotary_table(RopeConfig(dim=8), positions)
