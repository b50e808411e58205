"""Fixtures for the host runtime. Nothing here sleeps: a gate holds a stream, and what a test waits for has a timeout.

Queues are drawn in comments: ``# q1 = [gate, copy]`` is a stream with a shut gate and a copy behind it; ``e!`` records
the event e, ``e?`` waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import accel
from accel.backend import Device, Stream


@pytest.fixture
def device() -> Iterator[Device]:
    opened = accel.open("cpu", threads=1)
    yield opened
    opened.close()


@pytest.fixture
def q1(device: Device) -> Stream:
    return device.stream()


@pytest.fixture
def q2(device: Device) -> Stream:
    return device.stream()
