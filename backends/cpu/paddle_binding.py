"""What the CPU backend asks of Paddle: place, empty tensor, allocator cache. The only file here that imports it."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Sequence
from typing import Any

__all__ = ["empty", "empty_cache", "place"]


def _paddle() -> Any:
    """The framework, imported when it is first needed: it takes seconds."""
    with warnings.catch_warnings():
        # A hint for those who compile extensions with Paddle; nobody who runs a model can do anything about it.
        warnings.filterwarnings("ignore", message="No ccache found")
        import paddle
    return paddle


def place() -> Any:
    """Paddle's CPU place."""
    return _paddle().CPUPlace()


def empty(shape: Sequence[int], dtype: str) -> Any:
    """An uninitialised tensor in host memory, whatever Paddle's default device is. Raises MemoryError."""
    paddle = _paddle()
    # Whether Paddle builds tensors or a static graph is a property of the thread: it follows the thread that imported
    # Paddle first, and all others are told "graph".
    mode = contextlib.nullcontext() if paddle.in_dynamic_mode() else paddle.base.dygraph.guard(paddle.CPUPlace())
    with mode:
        # The default place of a GPU or XPU build is not the host, so it is named.
        return paddle.empty(list(shape), dtype=getattr(paddle, dtype), device="cpu")


def empty_cache() -> None:
    """Drop tensors that only reference cycles keep alive. Paddle's host allocator returns freed memory by itself and
    has no call that would make it do more."""
    gc.collect()
