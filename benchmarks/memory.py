"""GB/s of the page ops over a KV pool, beside memcpy of as many bytes in the same run.

A page counts once, however often an op reads or writes it. The reference is NumPy's copy of one contiguous array (a
memcpy on one thread) for the ops that move pages, memset for ``pages_zero``, and none for the checksum.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from accel.cli.measure import Result, interleave, machine, print_report, rounds_progress
from benchmarks.options import parser

if TYPE_CHECKING:
    from accel.backend import Device

_LEAST_SECONDS = 0.05
_REFERENCES = {"pages_gather": "memcpy", "pages_scatter": "memcpy", "pages_copy": "memcpy", "pages_zero": "memset"}


def _rate(call: Callable[[], object], nbytes: int) -> float:
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < _LEAST_SECONDS or not count:
        call()
        count += 1
    return count * nbytes / spent / 1e9


def measure(device: Device, order: str, pages: int, rounds: int) -> list[Result]:
    """One result an op. The pool has the shape of SmolLM2-135M: 30 layers, 3 KV heads of 64, blocks of 16, float32."""
    import numpy as np

    from accel.cache.pages import KVLayout, KVPool

    layout = KVLayout(30, 3, 64, 16, "float32", order)
    pool = KVPool(device, layout, 2 * pages).view
    stream, ops = device.current_stream(), device.ops
    nbytes = pages * layout.page_bytes
    # Every other page: neighbours that happen to lie together would be one long copy.
    blocks = device.view(np.arange(0, 2 * pages, 2, dtype=np.int32))
    others = device.view(np.arange(1, 2 * pages, 2, dtype=np.int32))
    ops.pages_zero(stream, pool, blocks)
    ops.pages_zero(stream, pool, others)
    host = np.zeros((pages, layout.page_bytes), np.uint8)
    target = np.zeros_like(host)
    records, sums = device.view(host), device.view(np.zeros(pages, np.uint64))
    calls: dict[str, Callable[[], object]] = {
        "memcpy": lambda: np.copyto(target, host),
        "memset": lambda: target.fill(1),
        "pages_gather": lambda: ops.pages_gather(stream, records, pool, blocks),
        "pages_scatter": lambda: ops.pages_scatter(stream, pool, records, blocks),
        "pages_copy": lambda: ops.pages_copy(stream, pool, blocks, others),
        "pages_zero": lambda: ops.pages_zero(stream, pool, blocks),
        "pages_checksum": lambda: ops.pages_checksum(stream, sums, pool, blocks),
    }
    sides = {name: partial(_rate, call, nbytes) for name, call in calls.items()}
    with rounds_progress(f"memory, {order}", (rounds + 1) * len(sides)) as step:
        interleave(sides, 1, step)
        rates = interleave(sides, rounds, step)
    return [
        Result(f"{name}.{order}", rate, "GB/s", rates[_REFERENCES[name]] if name in _REFERENCES else None)
        for name, rate in rates.items()
        if name.startswith("pages_")
    ]


def main() -> int:
    options = parser(__doc__, rounds=5)
    options.add_argument("--device", default="cpu")
    options.add_argument("--pages", type=int, default=64, help="pages an op moves (%(default)s)")
    arguments = options.parse_args()
    import accel

    with accel.open(arguments.device) as device:
        orders = device.capabilities.kv_layouts
        results = [result for order in orders for result in measure(device, order, arguments.pages, arguments.rounds)]
        about = machine(device=device.name, threads=getattr(device, "threads", None), pages=arguments.pages)
    print_report(results, about, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
