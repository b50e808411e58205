"""The native pool does what a pool of dicts and lists does, whatever is asked of it and in whatever order."""

from __future__ import annotations

from pool_machine import drive

from accel import _core


def test_the_pool_agrees_with_its_model() -> None:
    reached = drive(_core.BlockPool, examples=120, steps=50)
    assert min(reached.values()) > 10, f"the run was too tame to prove anything: {reached}"
