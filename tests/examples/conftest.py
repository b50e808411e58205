"""A small model for the examples, and the examples on the path."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_builders import write_folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of 40 tokens and 128 positions."""
    return write_folder(tmp_path_factory.mktemp("models") / "llama")
