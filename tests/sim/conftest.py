"""Fixtures for the simulated device, and the pieces its tests share. Nothing here sleeps: gates hold streams.

Queues are drawn in comments, as in tests/runtime: ``# q1 = [gate, copy, e!]``, ``q2 = [e?]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import accel

#: Seconds after which something that must happen has not.
SOON = 30.0


@pytest.fixture
def sim() -> Iterator[Any]:
    """A threaded simulated device of 4 MiB."""
    with accel.open("sim", memory=4 << 20) as device:
        yield device
