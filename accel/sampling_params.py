"""How a request wants its tokens chosen. One definition for the engine, the CLI and the runner."""

from __future__ import annotations

from dataclasses import dataclass

from accel.errors import InvalidRequest

__all__ = ["SamplingParams"]

_SEED_LIMIT = 1 << 64
_INT32_LIMIT = 1 << 31
#: Temperatures and top_p reach the device as float32; the limit is that of the op `sample`.
_MOST_FLOAT32 = 3e38
#: The smallest that float32 holds with all its digits.
_LEAST_FLOAT32 = 2.0**-126


def _require_whole(name: str, value: object) -> None:
    if not hasattr(value, "__index__"):
        raise InvalidRequest(f"{name} is {value!r}; it must be a whole number")


@dataclass(frozen=True)
class SamplingParams:
    """Sampling and stop rules of one request.

    Args:
        max_tokens: tokens to generate at most, 1 or more.
        temperature: 0 picks the most likely token; else logits are divided by it.
        top_k: only the k most likely tokens; 0 for all.
        top_p: only the smallest set of most likely tokens whose probability reaches it; in (0, 1].
        seed: of this request's random numbers; the same seed gives the same tokens whatever else runs. None: a fresh
            one, which the output tells.
        ignore_eos: go on after an end-of-sequence token.

    Raises:
        InvalidRequest: a value outside its range.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name in ("max_tokens", "top_k", *(() if self.seed is None else ("seed",))):
            _require_whole(name, getattr(self, name))
        if not 1 <= self.max_tokens < _INT32_LIMIT:
            raise InvalidRequest(
                f"max_tokens is {self.max_tokens}; it must be 1 to {_INT32_LIMIT - 1}", max_tokens=self.max_tokens
            )
        if not 0 <= self.temperature <= _MOST_FLOAT32:
            raise InvalidRequest(
                f"temperature is {self.temperature}; it must be 0 to {_MOST_FLOAT32:g}",
                temperature=self.temperature,
            )
        if not 0 <= self.top_k < _INT32_LIMIT:
            raise InvalidRequest(f"top_k is {self.top_k}; it must be 0 (off) to {_INT32_LIMIT - 1}", top_k=self.top_k)
        if not _LEAST_FLOAT32 <= self.top_p <= 1:
            raise InvalidRequest(f"top_p is {self.top_p}; it must be above 0 and at most 1", top_p=self.top_p)
        if self.seed is not None and not 0 <= self.seed < _SEED_LIMIT:
            raise InvalidRequest(f"seed is {self.seed}; it must be 0 to {_SEED_LIMIT - 1}", seed=self.seed)
