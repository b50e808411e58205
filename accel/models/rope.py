"""Rotary position tables for every scaling rule the supported families use.

Invariant: a table equals what the reference implementation computes in float32, so the angle is rounded to float32 once
as position * frequency; a "more exact" angle would differ from the one the models were trained with by up to 1e-2 at
position 100,000.

Sources: default, linear, llama3 and yarn as in ``modeling_rope_utils.py`` of Hugging Face transformers; yarn is Peng et
al., arXiv:2309.00071, section 3; llama3 is ``apply_scaling`` of Meta's llama-models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from accel.errors import InvalidArgument, ModelError, Unsupported

__all__ = ["ROPE_KINDS", "RopeConfig", "inverse_frequencies", "rotary_table"]

Float32 = npt.NDArray[np.float32]

#: Rows of a table computed at a time, which bounds the float64 temporaries at 1 MiB or so for a usual head.
_CHUNK: Final = 1024


@dataclass(frozen=True)
class RopeConfig:
    """How positions turn into angles. Fields below `factor` matter only to the kind named beside them.

    Raises:
        ModelError: a value outside its range, naming both.
        Unsupported: an unknown kind.
    """

    dim: int
    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0  # linear, llama3, yarn
    original_max_position: int = 0  # llama3, yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn; None: from factor, mscale and mscale_all_dim
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn: round the border dimensions outwards
    #: dim / 2 explicit divisors of the unscaled frequencies (GGUF ``rope_freqs.weight``), applied before any scaling.
    divisors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in _SCALING:
            raise Unsupported(
                f"rope type {self.kind!r} is not supported", hint=f"supported: {', '.join(_SCALING)}", rope=self.kind
            )
        if self.dim < 2 or self.dim % 2:
            raise ModelError(f"rope dimension is {self.dim}; it must be even and at least 2", dim=self.dim)
        if not (math.isfinite(self.theta) and self.theta > 1):
            raise ModelError(f"rope_theta is {self.theta}; it must be finite and above 1", rope_theta=self.theta)
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise ModelError(f"rope factor is {self.factor}; it must be finite and above 0", factor=self.factor)
        if self.kind in ("llama3", "yarn") and self.original_max_position < 1:
            raise ModelError(
                f"rope type {self.kind} needs original_max_position_embeddings >= 1, not {self.original_max_position}",
                original_max_position=self.original_max_position,
            )
        if self.kind == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ModelError(
                f"rope low_freq_factor {self.low_freq_factor} must be above 0 and below"
                f" high_freq_factor {self.high_freq_factor}"
            )
        if self.kind == "yarn" and not 0 < self.beta_slow <= self.beta_fast:
            raise ModelError(f"rope beta_slow {self.beta_slow} must be above 0 and at most beta_fast {self.beta_fast}")
        self._check_divisors()

    def _check_divisors(self) -> None:
        if self.divisors is None:
            return
        if len(self.divisors) != self.dim // 2:
            raise ModelError(f"{len(self.divisors)} rope divisors for {self.dim // 2} frequencies")
        wrong = [d for d in self.divisors if not (math.isfinite(d) and d > 0)]
        if wrong:
            raise ModelError(f"rope divisor {wrong[0]} must be finite and above 0")

    @property
    def scale(self) -> float:
        """What cos and sin are multiplied by: yarn's attention factor, 1 for the other kinds."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return _mscale(self.factor, self.mscale) / _mscale(self.factor, self.mscale_all_dim)
        return _mscale(self.factor, 1.0)


def rotary_table(rope: RopeConfig, positions: int) -> Float32:
    """cos and sin of every angle of the first `positions` positions.

    Returns:
        float32 [positions, dim]: column j < dim/2 is scale * cos(p * f_j), column dim/2 + j is scale * sin(p * f_j).

    Raises:
        InvalidArgument: `positions` below 1 or beyond 2**24, from where float32 no longer holds every integer.
    """
    if not 1 <= positions <= 2**24:
        raise InvalidArgument(f"positions is {positions}, outside 1..{2**24}", positions=positions)
    half = rope.dim // 2
    frequencies = inverse_frequencies(rope)
    scale = np.float32(rope.scale)
    table = np.empty((positions, rope.dim), np.float32)
    for start in range(0, positions, _CHUNK):
        end = min(start + _CHUNK, positions)
        angles = np.arange(start, end, dtype=np.float32)[:, None] * frequencies
        # float64 functions of the float32 angle: no dependence on the machine's float32 sine.
        wide = angles.astype(np.float64)
        table[start:end, :half] = np.cos(wide)
        table[start:end, half:] = np.sin(wide)
        table[start:end] *= scale
    return table


def inverse_frequencies(rope: RopeConfig) -> Float32:
    """The angle per position of each pair of a head. Returns float32 [dim / 2]."""
    periods = _periods(rope)
    if rope.divisors is not None:
        periods = periods * np.array(rope.divisors, np.float32)
    return _SCALING[rope.kind](rope, periods)


def _periods(rope: RopeConfig) -> Float32:
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    # The power in float64, rounded once: the correctly rounded float32 power, which vector libraries aim for.
    periods: npt.NDArray[np.float64] = np.power(rope.theta, exponents.astype(np.float64))
    return periods.astype(np.float32)


def _default(rope: RopeConfig, periods: Float32) -> Float32:
    frequencies: Float32 = np.reciprocal(periods)
    return frequencies


def _linear(rope: RopeConfig, periods: Float32) -> Float32:
    frequencies: Float32 = np.divide(np.reciprocal(periods), np.float32(rope.factor))
    return frequencies


def _llama3(rope: RopeConfig, periods: Float32) -> Float32:
    plain = np.reciprocal(periods)
    wavelength = np.float32(2 * math.pi) / plain
    context = np.float32(rope.original_max_position)
    low, high = np.float32(rope.low_freq_factor), np.float32(rope.high_freq_factor)
    slowed = plain / np.float32(rope.factor)
    # 0 at the longest wavelength that is stretched in full, 1 at the shortest that is touched at all.
    mix = (context / wavelength - low) / (high - low)
    blended = (np.float32(1) - mix) * slowed + mix * plain
    result = np.where(wavelength > context / low, slowed, blended)
    return np.where(wavelength < context / high, plain, result).astype(np.float32)


def _yarn(rope: RopeConfig, periods: Float32) -> Float32:
    low, high = _yarn_borders(rope)
    ramp = (np.arange(rope.dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = np.float32(1) - np.clip(ramp, 0, 1, dtype=np.float32)
    extrapolated = np.reciprocal(periods)
    interpolated = np.reciprocal(np.float32(rope.factor) * periods)
    frequencies: Float32 = interpolated * (np.float32(1) - keep) + extrapolated * keep
    return frequencies


def _yarn_borders(rope: RopeConfig) -> tuple[float, float]:
    def dimension(rotations: float) -> float:
        turns = rope.original_max_position / (rotations * 2 * math.pi)
        return rope.dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    return low, high + 0.001 if low == high else high


def _mscale(factor: float, multiplier: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0


_SCALING: Final[dict[str, Callable[[RopeConfig, Float32], Float32]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}

#: The supported values of ``RopeConfig.kind``.
ROPE_KINDS: Final = tuple(_SCALING)
