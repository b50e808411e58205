"""How KV pages lie in memory.

A page is the K and V of one block of tokens, in every layer. Seen through :class:`KVLayout` it always has the shape
``[blocks, layers, 2, kv_heads, block_size, head_dim]``; what differs is the order in memory::

    page_first   block 0: layer 0 K,V | layer 1 K,V | …        block 1: …         a page is one run of bytes
    layer_first  layer 0: K of all blocks | V of all blocks | layer 1: …          where an attention library needs it

Either way the K (or V) of a head in a block is ``[block_size, head_dim]`` without gaps. page_first is the canonical
record:
the form of a page on the host, in a file and in a store.

Invariant: a layout is a value. Two caches may exchange pages only if their fingerprints are equal.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from accel.backend import Device
from accel.dtypes import dtype as dtype_of
from accel.errors import InvalidArgument, Unsupported

__all__ = ["KVLayout", "KVPool"]

#: Order of dimensions in memory, as indices into the logical order (blocks, layers, 2, kv_heads, block_size, head_dim).
_MEMORY_ORDER = {
    "page_first": (0, 1, 2, 3, 4, 5),
    "layer_first": (1, 2, 0, 3, 4, 5),
}

#: Raised when what a page means changes, so that old pages are not taken for new ones.
_FINGERPRINT_VERSION = 1


@dataclass(frozen=True)
class KVLayout:
    """Shape, order, dtype and scales of KV pages. `block_size` counts tokens.

    `scales` are the static scales of a cache of 8-bit values, ``[layers, 2, kv_heads]`` flattened in that order (K
    before V); None for a cache of floats.

    Raises:
        InvalidArgument: a size below 1, an unknown order or dtype; scales for a dtype that has none, of another number,
            or not finite and above 0.
    """

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int = 16
    dtype: str = "float32"
    order: str = "page_first"
    scales: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim", "block_size"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} of a KV layout is {getattr(self, name)}; it must be 1 or more")
        if self.order not in _MEMORY_ORDER:
            raise InvalidArgument(f"KV order is {self.order!r}; it must be one of {', '.join(_MEMORY_ORDER)}")
        dtype_of(self.dtype)
        self._check_scales()

    def _check_scales(self) -> None:
        if self.scales is None:
            return
        if dtype_of(self.dtype).bytes != 1:
            raise InvalidArgument(
                f"a KV layout of {self.dtype} has scales; only 8-bit caches are scaled", hint="leave scales out"
            )
        # Whoever passes a list or NumPy numbers gets a value like any other.
        object.__setattr__(self, "scales", tuple(float(scale) for scale in self.scales))
        wanted = self.layers * 2 * self.kv_heads
        if len(self.scales) != wanted:
            raise InvalidArgument(
                f"a KV layout has {len(self.scales)} scales; layers * 2 * kv_heads = {wanted} are needed", limit=wanted
            )
        bad = next((i for i, scale in enumerate(self.scales) if not (math.isfinite(scale) and scale > 0)), None)
        if bad is not None:
            raise InvalidArgument(f"scales[{bad}] of a KV layout is {self.scales[bad]}; it must be finite and above 0")

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        elements = self.layers * 2 * self.kv_heads * self.block_size * self.head_dim
        return elements * dtype_of(self.dtype).bytes

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens need."""
        return -(-tokens // self.block_size)

    def logical_shape(self, blocks: int) -> tuple[int, ...]:
        """``[blocks, layers, 2, kv_heads, block_size, head_dim]``."""
        return (blocks, self.layers, 2, self.kv_heads, self.block_size, self.head_dim)

    def memory_shape(self, blocks: int) -> tuple[int, ...]:
        """The same dimensions in the order they have in memory."""
        logical = self.logical_shape(blocks)
        return tuple(logical[i] for i in _MEMORY_ORDER[self.order])

    def logical_view(self, device: Device, tensor: Any) -> Any:
        """`tensor` (of ``memory_shape``) seen in the logical order."""
        order = _MEMORY_ORDER[self.order]
        return device.view(tensor).permute([order.index(i) for i in range(len(order))])

    def canonical(self) -> KVLayout:
        """The layout of a page's record: the same page on the host, in a file and in a store, whatever the order of the
        pool. Two pools may exchange records where the fingerprints of these are equal."""
        return self if self.order == "page_first" else replace(self, order="page_first")

    def fingerprint(self) -> str:
        """Hex digest over everything that decides what the bytes of a page mean, and where."""
        fields = sorted((name, value) for name, value in asdict(self).items() if value is not None)
        text = "\n".join([f"accel.kv_layout.{_FINGERPRINT_VERSION}", *(f"{name}={value}" for name, value in fields)])
        return hashlib.sha256(text.encode()).hexdigest()


class KVPool:
    """The KV cache of one device: one framework tensor, held for the engine's life.

    Args:
        blocks: number of blocks, 1 or more.

    Raises:
        Unsupported: the device does not have this layout or dtype.
        OutOfMemory: the pool does not fit.
    """

    def __init__(self, device: Device, layout: KVLayout, blocks: int) -> None:
        check_layout(device, layout)
        if blocks < 1:
            raise InvalidArgument(f"num_blocks is {blocks}; a KV pool needs 1 or more", num_blocks=blocks)
        self.layout = layout
        self.blocks = blocks
        self.tensor = device.empty(layout.memory_shape(blocks), layout.dtype)
        #: ``[blocks, layers, 2, kv_heads, block_size, head_dim]``: what the page ops take.
        self.view = layout.logical_view(device, self.tensor)
        #: One ``[blocks, 2, kv_heads, block_size, head_dim]`` a layer: what write_kv and attention take.
        self.layer_views = tuple(self.view.select(1, layer) for layer in range(layout.layers))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool."""
        return self.blocks * self.layout.page_bytes


def check_layout(device: Device, layout: KVLayout) -> None:
    """Raise Unsupported when `device` cannot hold `layout`; called before a model is loaded."""
    capabilities = device.capabilities
    if layout.order not in capabilities.kv_layouts:
        raise Unsupported(
            f"KV order {layout.order!r} is not available here",
            device=device.name,
            hint=f"use one of {', '.join(capabilities.kv_layouts)}",
        )
    if layout.dtype not in capabilities.kv_dtypes:
        raise Unsupported(
            f"KV dtype {layout.dtype!r} is not available here",
            device=device.name,
            hint=f"use one of {', '.join(capabilities.kv_dtypes)}",
        )
