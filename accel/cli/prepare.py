"""The engine of ``accel generate``: as large as the requests need, and no larger than the machine.

Invariant: every request has been checked against the model when `prepare` returns, so none is refused once some run.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from accel.cli.jobs import Job, Ready, at, encode_jobs
from accel.cli.loading import load_progress
from accel.cli.output import note
from accel.errors import InvalidArgument

if TYPE_CHECKING:
    from accel.backend import Device
    from accel.engine import Engine
    from accel.models.config import ModelConfig

__all__ = ["MOST_AT_ONCE", "Settings", "prepare"]

#: Requests that run at once unless told otherwise.
MOST_AT_ONCE: Final = 64
#: Requests that may always wait.
_WAITING: Final = 1024
#: A pool that takes less than this share of the free memory is made without measuring what fits.
_SMALL_SHARE: Final = 1 / 8


@dataclass(frozen=True)
class Settings:
    """What the engine is made with, as the options gave it."""

    model: str
    max_batch_tokens: int
    block_size: int
    num_blocks: int | None
    dtype: str
    kv_dtype: str
    kv_order: str
    max_requests: int | None
    depth: int | None
    prefix_cache: bool
    metrics_port: int | None
    quiet: bool

    def __post_init__(self) -> None:
        # The engine checks the others when it is made, before a load; these decide how it is made.
        for name, value in (("max_requests", self.max_requests), ("block_size", self.block_size)):
            if value is not None and value < 1:
                raise InvalidArgument(f"{name} is {value}; it must be 1 or more")


def prepare(settings: Settings, jobs: list[Job], device: Device, stack: ExitStack) -> tuple[Engine, list[Ready]]:
    """The engine, and requests that it can all serve. Raises InvalidRequest for the first that it cannot."""
    from accel.models.files import open_model

    with open_model(settings.model) as files:
        ready = encode_jobs(jobs, files)
        longest = files.config.max_position
        requests = sum(job.params.n for job in jobs)
        at_once = min(requests, settings.max_requests or MOST_AT_ONCE)
        blocks = settings.num_blocks
        if blocks is None:
            page_bytes = _page_bytes(files.config, settings)
            needs = sorted(
                -(-item.tokens(longest) // settings.block_size) for item in ready for _ in range(item.job.params.n)
            )
            blocks = _pool_size(sum(needs[-at_once:]), page_bytes, device)
    engine = stack.enter_context(_engine(settings, blocks, at_once, requests, device))
    for item in ready:
        with at(item.job.where):
            engine.scheduler.check_fits(
                len(item.ids), min(item.job.params.max_tokens, engine.max_model_len - len(item.ids))
            )
    return engine, ready


def _page_bytes(config: ModelConfig, settings: Settings) -> int:
    """Bytes of a KV block in all layers."""
    from accel.dtypes import dtype

    per_token = config.num_layers * 2 * config.num_kv_heads * config.head_dim
    return per_token * settings.block_size * dtype(settings.kv_dtype).bytes


def _pool_size(blocks: int, page_bytes: int, device: Device) -> int | None:
    """`blocks` where they surely fit, else None: then the engine measures what does, which takes its largest step."""
    from accel.backend import Support

    if device.capabilities.memory_info is Support.NONE:
        return blocks
    free, _ = device.memory()
    return blocks if blocks * page_bytes <= free * _SMALL_SHARE else None


def _engine(settings: Settings, blocks: int | None, at_once: int, requests: int, device: Device) -> Engine:
    from accel.engine import Engine
    from accel.engine.metrics import ADDRESS

    with load_progress("loading", settings.quiet) as report:
        engine = Engine(
            settings.model,
            device,
            block_size=settings.block_size,
            num_blocks=blocks,
            max_batch_tokens=settings.max_batch_tokens,
            max_requests=at_once,
            dtype=settings.dtype,
            kv_dtype=settings.kv_dtype,
            kv_order=settings.kv_order,
            depth=settings.depth,
            # All may wait: then the scheduler knows all priorities and deadlines from the start.
            max_waiting=max(_WAITING, requests),
            prefix_cache=settings.prefix_cache,
            metrics_port=settings.metrics_port,
            progress=report,
        )
    if engine.metrics.port is not None and not settings.quiet:
        note(f"metrics on http://{ADDRESS}:{engine.metrics.port}/metrics")
    return engine
