"""One request while it runs: its tokens, its blocks, how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from accel.runner.plan import FinishReason
from accel.sampling_params import SamplingParams

__all__ = ["Sequence"]


@dataclass
class Sequence:
    """A request inside the loop.

    Args:
        number: the internal number, unique in an engine's life.
        prompt: token ids, one or more.
        limit: tokens at which it ends for length, prompt included.
        seed: of its random numbers.

    ``computed`` counts the tokens whose K and V are in the cache; while it decodes that is one less than the tokens
    known.
    """

    number: int
    prompt: npt.NDArray[np.int32]
    params: SamplingParams
    limit: int
    seed: int
    epoch: int = 0
    slot: int = -1
    computed: int = 0
    blocks: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    output: list[int] = field(default_factory=list)
    finish: FinishReason = FinishReason.NONE

    @property
    def prefilling(self) -> bool:
        """Whether part of the prompt is not in the cache yet."""
        return self.computed < len(self.prompt)

    @property
    def max_new_tokens(self) -> int:
        """Tokens it may generate in all."""
        return min(self.params.max_tokens, self.limit - len(self.prompt))
