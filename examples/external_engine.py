"""A foreign engine: its own loop and its own block tables; of accel only open, pack, run, sample, stop and update.

    python examples/external_engine.py demo "504,3575,282,4649,314" "12615,36411,418"

Blocks are taken one by one, highest first, and prompts run whole; the tokens are those of accel's own Engine.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np

import accel
from accel.backend import Device
from accel.cache.pages import KVLayout, KVPool
from accel.models.decoder import Decoder
from accel.models.files import open_model
from accel.models.loader import load_weights
from accel.runner.plan import LAST_SAMPLED, FinishReason, PlanRow, StepPlan
from accel.runner.runner import Runner
from accel.sampling_params import SamplingParams

BLOCK_SIZE, MAX_MODEL_LEN, MAX_REQUESTS = 16, 256, 8


@dataclass
class Live:
    slot: int
    prompt: list[int]
    blocks: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    done: bool = False


def open_runner(device: Device, model: str) -> Runner:
    with open_model(model) as files:
        config = files.config
        decoder = Decoder(device, config, load_weights(device, config, files.weights), MAX_MODEL_LEN)
    layout = KVLayout(config.num_layers, config.num_kv_heads, config.head_dim, BLOCK_SIZE)
    pool = KVPool(device, layout, MAX_REQUESTS * layout.blocks_for(MAX_MODEL_LEN))
    return Runner(device, decoder, pool, max_batch_tokens=MAX_MODEL_LEN, max_requests=MAX_REQUESTS)


def plan_step(live: list[Live], free: list[int], max_tokens: int) -> StepPlan:
    """All requests at once: the whole prompt of a new one, else the token sampled last."""
    rows = []
    for one in live:
        computed = len(one.prompt) + len(one.output) - 1 if one.output else 0
        tokens = [LAST_SAMPLED] if one.output else one.prompt
        while len(one.blocks) * BLOCK_SIZE < computed + len(tokens):
            one.blocks.append(free.pop())
        rows.append(
            PlanRow(
                request=one.slot,
                epoch=0,
                slot=one.slot,
                computed=computed,
                tokens=tokens,
                blocks=one.blocks,
                sample=True,
                params=SamplingParams(),
                seed=0,
                generated=len(one.output),
                max_tokens=max_tokens,
            )
        )
    return StepPlan.of(rows)


def generate(runner: Runner, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    device, stream = runner.device, runner.device.current_stream()
    requests = [Live(slot, prompt) for slot, prompt in enumerate(prompts)]
    free = list(range(runner.pool.blocks))
    while live := [one for one in requests if not one.done]:
        packed = runner.pack(plan_step(live, free, max_tokens))
        hidden = runner.run(packed)
        rows = np.arange(len(live), dtype=np.int32)
        token = runner.sample(packed, rows, runner.logits(packed, hidden, rows))
        reason = runner.stop(packed, rows, token)
        runner.update(packed, rows, token)
        host = np.empty((2, len(live)), np.int32)
        device.copy(host[0], token, stream)
        device.copy(host[1], reason, stream)
        stream.synchronize()
        for one, picked, why in zip(live, *host.tolist(), strict=True):
            one.output.append(picked)
            one.done = why != FinishReason.NONE
    return [one.output for one in requests]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit('usage: external_engine.py MODEL "ids, separated by commas" …   e.g. demo "504,3575,282,4649,314"')
    with accel.open("auto") as opened:
        typed = [[int(token) for token in text.split(",")] for text in sys.argv[2:]]
        print(*generate(open_runner(opened, sys.argv[1]), typed, max_tokens=16), sep="\n")
