"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from text_model import write_text_model

from accel import Device, Engine


@pytest.fixture(scope="session")
def text_model(reference_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that has a tokenizer."""
    return write_text_model(reference_data / "tiny_models" / "llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def text_engine(text_model: Path, cpu: Device) -> Iterator[Callable[..., Engine]]:
    """Makes an engine over it: ``text_engine(num_blocks=64)``."""
    engines: list[Engine] = []

    def make(**settings: object) -> Engine:
        settings.setdefault("num_blocks", 128)
        engines.append(Engine(str(text_model), cpu, **settings))  # type: ignore[arg-type]
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
