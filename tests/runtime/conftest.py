"""Fixtures for the host runtime and the simulated one, which keep the same rules. Nothing here sleeps: a gate holds a
stream, and what a test waits for has a timeout.

Queues are drawn in comments: ``# q1 = [gate, copy]`` is a stream with a shut gate and a copy behind it; ``e!`` records
the event e, ``e?`` waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import accel
from accel.backend import Device, Stream

#: Files whose tests say nothing of where a runtime executes, so both runtimes take them.
SHARED = {"test_streams", "test_failures", "test_copies"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        shared = metafunc.module.__name__ in SHARED
        metafunc.parametrize("device", ["cpu", "sim"] if shared else ["cpu"], indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = accel.open(request.param, threads=1)
    yield opened
    opened.close()


@pytest.fixture
def q1(device: Device) -> Stream:
    return device.stream()


@pytest.fixture
def q2(device: Device) -> Stream:
    return device.stream()
