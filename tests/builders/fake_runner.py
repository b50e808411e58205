"""A runner without a model, for the scheduler's tests: its "KV cache" holds token ids, and it chooses each token by a
hash of all the ids it reads there.

So a wrong block table, a block in two lives, a hit on a block that nobody wrote, or a stale write shows as other tokens
than `expected_output` gives, which never saw a block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from accel.runner.plan import LAST_SAMPLED, FinishReason, StepOutput, StepPlan

#: What fills a slot nobody wrote.
POISON = -7


def next_token(tokens: Sequence[int], seed: int, vocab: int) -> int:
    """The token after `tokens`: any function would do that depends on all of them."""
    data = np.asarray(tokens, np.int32).tobytes() + seed.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") % vocab


def expected_output(prompt: Sequence[int], seed: int, max_new: int, *, vocab: int, eos: int | None = None) -> list[int]:
    """What a request generates, alone and without a cache."""
    tokens, out = list(prompt), []
    while len(out) < max_new:
        token = next_token(tokens, seed, vocab)
        tokens.append(token)
        out.append(token)
        if token == eos:
            break
    return out


class FakeRunner:
    """Executes plans over `blocks` blocks of `block_size` tokens, in the order they are given."""

    def __init__(self, blocks: int, block_size: int, slots: int, *, vocab: int = 97, eos: int | None = None) -> None:
        self.block_size = block_size
        self.vocab = vocab
        self.eos = eos
        self.cells: npt.NDArray[np.int32] = np.full(blocks * block_size, POISON, np.int32)
        self.last = np.full(slots, POISON, np.int32)
        self.steps = 0
        #: Called before each step, to inject delays or faults.
        self.before: Callable[[StepPlan], None] = lambda plan: None

    def execute(self, plan: StepPlan) -> StepOutput:
        """Write the step's tokens, then read each request's sequence back and choose."""
        self.before(plan)
        self.steps += 1
        token = np.full(plan.num_requests, -1, np.int32)
        finish = np.full(plan.num_requests, FinishReason.NONE, np.int32)
        for row in range(plan.num_requests):
            first, end = plan.query_start[row : row + 2].tolist()
            ids = plan.tokens[first:end].copy()
            ids[ids == LAST_SAMPLED] = self.last[plan.slot[row]]
            begin = int(plan.computed[row])
            cells = self._cells(plan, row, begin + len(ids))
            self.cells[cells[begin:]] = ids
            if plan.sample[row]:
                token[row] = next_token(self.cells[cells].tolist(), int(plan.seed[row]), self.vocab)
                self.last[plan.slot[row]] = token[row]
                if token[row] == self.eos and not plan.ignore_eos[row]:
                    finish[row] = FinishReason.EOS
                elif plan.generated[row] + 1 >= plan.max_tokens[row]:
                    finish[row] = FinishReason.LENGTH
        return StepOutput(plan.request, plan.epoch, token, finish, step=plan.step)

    def _cells(self, plan: StepPlan, row: int, length: int) -> npt.NDArray[np.int64]:
        positions = np.arange(length)
        blocks = plan.block_tables[row, positions // self.block_size].astype(np.int64)
        return blocks * self.block_size + positions % self.block_size
