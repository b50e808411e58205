"""The names of all ops: what a backend's table must account for. Importing this loads no reference and no NumPy.

Invariant: equals the names registered by the family modules (checked by tests/ops/test_names.py).
"""

from __future__ import annotations

from typing import Final

__all__ = ["OP_NAMES"]

OP_NAMES: Final[frozenset[str]] = frozenset(
    {
        "rms_norm",
        "add_rms_norm",
        "rotary",
        "write_kv",
        "attention",
        "silu_and_mul",
        "linear",
        "embedding",
        "gather_rows",
        "penalties",
        "logit_bias",
        "bad_words",
        "argmax",
        "sample",
        "logprobs",
        "pack_step",
        "stop_check",
        "update_slots",
        "write_history",
        "pages_gather",
        "pages_scatter",
        "pages_copy",
        "pages_zero",
        "pages_checksum",
    }
)
