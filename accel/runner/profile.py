"""How many KV blocks a device has room for.

    blocks = (free - peak) * fraction / page_bytes

where *free* is what the device has left once the weights are loaded, and *peak* what the largest step takes, measured
by running one. The fraction leaves room for what no profile sees: the framework's own caches, fragmentation and, on a
device that shares the host's memory, everything else that runs there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from accel.backend import Device, Support
from accel.cache.pages import KVLayout, KVPool
from accel.errors import InvalidArgument, OutOfMemory
from accel.runner.plan import PlanRow, StepPlan
from accel.runner.runner import Runner
from accel.sampling_params import SamplingParams

__all__ = ["FRACTION_OF_DEVICE", "FRACTION_OF_HOST", "default_fraction", "profile_blocks"]

#: Of a memory that is the device's own.
FRACTION_OF_DEVICE: Final = 0.9
#: Of the host's memory, which is not ours alone.
FRACTION_OF_HOST: Final = 0.5


def default_fraction(device: Device) -> float:
    """The fraction used when none is given."""
    return FRACTION_OF_HOST if device.capabilities.host_executed else FRACTION_OF_DEVICE


def profile_blocks(
    device: Device,
    layout: KVLayout,
    make_runner: Callable[[KVPool], Runner],
    *,
    most: int,
    fraction: float | None = None,
) -> tuple[int, Runner]:
    """Run the largest step once and work out the number of blocks; at most `most`.

    Args:
        make_runner: makes the runner over a small pool; the same runner is returned, to be given the real pool.
        fraction: of (free - peak); in (0, 1].

    Raises:
        InvalidArgument: the device cannot tell its memory, so `num_blocks` must be given; or a fraction out of range.
        OutOfMemory: not one block fits.
    """
    if device.capabilities.memory_info is Support.NONE:
        raise InvalidArgument(
            "this device cannot tell how much memory is free, so num_blocks must be given", device=device.name
        )
    fraction = default_fraction(device) if fraction is None else fraction
    if not 0 < fraction <= 1:
        raise InvalidArgument(f"memory_fraction is {fraction}; it must be above 0 and at most 1")
    free, total = device.memory()
    pool = KVPool(device, layout, 1)
    runner = make_runner(pool)
    plan = _largest_step(runner)
    runner.attach(KVPool(device, layout, int(plan.block_tables.max()) + 1))
    runner.execute(plan).result()
    after, _ = device.memory()
    peak = max(0, free - after - runner.pool.nbytes)
    runner.attach(pool)
    device.empty_cache()
    blocks = int((free - peak) * fraction) // layout.page_bytes
    if blocks < 1:
        raise OutOfMemory(
            f"no KV block of {layout.page_bytes} bytes fits: {free} of {total} bytes are free, a step takes {peak}, and"
            f" {fraction:g} of the rest may be used",
            device=device.name,
            hint="lower max_batch_tokens, or use a smaller model or block size",
            requested=layout.page_bytes,
            free=free,
            total=total,
        )
    return min(blocks, most), runner


def _largest_step(runner: Runner) -> StepPlan:
    """max_batch_tokens tokens, in as few requests as the model's length allows."""
    layout, longest = runner.pool.layout, runner.decoder.max_positions
    lengths = [min(longest, runner.max_batch_tokens - first) for first in range(0, runner.max_batch_tokens, longest)]
    rows, first = [], 0
    for index, length in enumerate(lengths[: runner.max_requests]):
        rows.append(
            PlanRow(
                request=index,
                epoch=0,
                slot=index,
                computed=0,
                tokens=[0] * length,
                blocks=range(first, first + layout.blocks_for(length)),
                sample=True,
                params=SamplingParams(max_tokens=1),
                seed=0,
                generated=0,
                max_tokens=1,
            )
        )
        first += layout.blocks_for(length)
    return StepPlan.of(rows)
