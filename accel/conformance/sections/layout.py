"""KV pages: the same page, whatever the order in memory."""

from __future__ import annotations

import numpy as np

from accel.cache.pages import KVLayout, KVPool, check_layout
from accel.conformance.context import SOON, Context
from accel.conformance.registry import case
from accel.errors import Unsupported


def _pool(context: Context, order: str, blocks: int = 6) -> KVPool:
    return KVPool(context.device, KVLayout(3, 2, 8, block_size=4, order=order), blocks)


@case("layout")
def a_page_is_the_same_bytes_in_every_order(context: Context) -> None:
    """scatter random pages, gather them, in each order that is claimed"""
    device, stream = context.device, context.device.current_stream()
    for order in device.capabilities.kv_layouts:
        pool = _pool(context, order)
        pages = context.rng.integers(0, 256, (3, pool.layout.page_bytes), np.uint8)
        blocks = context.upload(np.array([4, 0, 5], np.int32))
        data, out = context.upload(pages), context.upload(np.zeros_like(pages))
        device.ops.pages_scatter(stream, pool.view, device.view(data), device.view(blocks))
        device.ops.pages_gather(stream, device.view(out), pool.view, device.view(blocks))
        stream.synchronize(SOON)
        context.equal(context.download(out, pages), pages, f"pages through a {order} pool")


@case("layout")
def a_page_first_page_is_one_run_of_bytes(context: Context) -> None:
    """block b of the tensor is page b, so a swap is one copy"""
    device, stream = context.device, context.device.current_stream()
    if "page_first" not in device.capabilities.kv_layouts:
        return
    pool = _pool(context, "page_first")
    pages = context.rng.integers(0, 256, (6, pool.layout.page_bytes), np.uint8)
    every = context.upload(np.arange(6, dtype=np.int32))
    data = context.upload(pages)
    device.ops.pages_scatter(stream, pool.view, device.view(data), device.view(every))
    stream.synchronize(SOON)
    whole = np.zeros(pages.size // 4, np.float32)
    context.equal(context.download(pool.tensor, whole).view(np.uint8), pages.reshape(-1), "the pool's bytes")


@case("layout")
def what_is_not_claimed_is_refused_before_a_load(context: Context) -> None:
    """an order or dtype that the device lacks raises Unsupported"""
    claimed = context.device.capabilities
    for order in {"page_first", "layer_first"} - set(claimed.kv_layouts):
        with context.raises(Unsupported, order, f"a pool in {order}"):
            check_layout(context.device, KVLayout(1, 1, 8, order=order))
    for dtype in {"float32", "bfloat16", "float16", "float64"} - set(claimed.kv_dtypes):
        with context.raises(Unsupported, dtype, f"a pool of {dtype}"):
            check_layout(context.device, KVLayout(1, 1, 8, dtype=dtype))
