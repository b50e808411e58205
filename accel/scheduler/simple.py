"""The simplest scheduler that is correct: first come, first served, with the whole of a request reserved when it is
admitted.

::

    waiting ── blocks and a slot are free ──> running: prefill in chunks, then one token a step ──> done (all freed)

Invariant: an admitted request never waits for memory, so nothing is ever preempted. Decodes go before prefill chunks,
and a step never computes more than the token budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from accel.cache.pages import KVLayout
from accel.errors import InvalidRequest
from accel.runner.plan import LAST_SAMPLED, FinishReason, Logits, PlanRow, StepOutput, StepPlan
from accel.scheduler.sequence import Sequence

__all__ = ["SimpleScheduler"]


class SimpleScheduler:
    """Plans steps over `num_blocks` blocks.

    Args:
        max_batch_tokens: tokens of a step; max_requests: requests of a step.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, max_batch_tokens: int, max_requests: int) -> None:
        self._layout = layout
        self._num_blocks = num_blocks
        self._budget = max_batch_tokens
        # Popped from the end: low ids first, so that a small run touches little of a large pool.
        self._free_blocks = list(range(num_blocks - 1, -1, -1))
        self._free_slots = list(range(max_requests - 1, -1, -1))
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}
        self._planned: list[tuple[Sequence, int]] = []

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._waiting and not self._running

    @property
    def free_blocks(self) -> int:
        """Blocks that no request holds."""
        return len(self._free_blocks)

    @property
    def planned(self) -> list[tuple[Sequence, int]]:
        """What the last plan computes: each request and its number of tokens."""
        return self._planned

    def add(self, sequence: Sequence) -> None:
        """Queue a request. Raises InvalidRequest when the pool can never hold it."""
        tokens = len(sequence.prompt) + sequence.max_new_tokens
        needed = self._layout.blocks_for(tokens)
        if needed > self._num_blocks:
            raise InvalidRequest(
                f"a prompt of {len(sequence.prompt)} tokens and {sequence.max_new_tokens} to generate need {needed}"
                f" blocks of {self._layout.block_size} tokens; num_blocks is {self._num_blocks}",
                hint=f"raise num_blocks to {needed}, or lower max_tokens",
                needed=needed,
                num_blocks=self._num_blocks,
            )
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a request wherever it is; its blocks and slot are free again. Idempotent."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        if self._running.pop(sequence.number, None) is not None:
            sequence.epoch += 1
            self._free_blocks.extend(sequence.blocks.tolist()[::-1])
            self._free_slots.append(sequence.slot)

    def schedule(self) -> StepPlan | None:
        """The next step, or None when there is nothing to do."""
        self._admit()
        budget = self._budget
        chosen: list[tuple[Sequence, int]] = []
        for sequence in sorted(self._running.values(), key=lambda s: s.prefilling):
            count = min(len(sequence.prompt) - sequence.computed, budget) if sequence.prefilling else min(1, budget)
            if count:
                chosen.append((sequence, count))
                budget -= count
        self._planned = chosen
        return build_plan(chosen) if chosen else None

    def commit(self, output: StepOutput) -> list[Sequence]:
        """Take a step's output. Returns the requests that got a token, finished ones freed already."""
        advanced = []
        for row, (sequence, count) in enumerate(self._planned):
            if output.epoch[row] != sequence.epoch or sequence.number not in self._running:
                continue  # it left while the step ran
            sequence.computed += count
            if sequence.prefilling:
                continue
            sequence.output.append(int(output.token[row]))
            sequence.finish = FinishReason(int(output.finish[row]))
            advanced.append(sequence)
            if sequence.finish is not FinishReason.NONE:
                self.remove(sequence)
        self._planned = []
        return advanced

    def _admit(self) -> None:
        while self._waiting and self._free_slots:
            sequence = self._waiting[0]
            needed = self._layout.blocks_for(len(sequence.prompt) + sequence.max_new_tokens)
            if needed > len(self._free_blocks):
                return
            self._waiting.popleft()
            sequence.blocks = np.array([self._free_blocks.pop() for _ in range(needed)], np.int32)
            sequence.slot = self._free_slots.pop()
            self._running[sequence.number] = sequence


def build_plan(chosen: Iterable[tuple[Sequence, int]], logits: Logits = Logits.NONE) -> StepPlan:
    """A plan in which each sequence computes so many tokens: the next ones of its prompt, or the one last sampled."""
    return StepPlan.of(
        [
            PlanRow(
                request=sequence.number,
                epoch=sequence.epoch,
                slot=sequence.slot,
                computed=sequence.computed,
                tokens=sequence.prompt[sequence.computed : sequence.computed + count]
                if sequence.prefilling
                else [LAST_SAMPLED],
                blocks=sequence.blocks,
                sample=sequence.computed + count >= len(sequence.prompt),
                params=sequence.params,
                seed=sequence.seed,
                generated=len(sequence.output),
                max_tokens=sequence.max_new_tokens,
            )
            for sequence, count in chosen
        ],
        logits,
    )
