"""A runner that calls the command line in this process, and small models for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from model_builders import CONFIG, make_weights, write_folder, write_gguf
from tokenizer_builders import byte_level_metadata

from accel.cli import main

CHAT_TEMPLATE = "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}A:"


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("generate", "--prompt", "hi")``: the command in this process, away from the caller's settings."""
    for name in ("ACCEL_DEVICE", "ACCEL_DEBUG", "ACCEL_PEER_PYTHON", "ACCEL_CPU_THREADS", "ACCEL_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def ids_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of 40 tokens, 128 positions and no tokenizer."""
    return write_folder(tmp_path_factory.mktemp("models") / "ids")


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as GGUF, with a byte-level tokenizer of 265 tokens and a chat template."""
    metadata = {**byte_level_metadata(), "tokenizer.chat_template": CHAT_TEMPLATE}
    config = {**CONFIG, "vocab_size": len(metadata["tokenizer.ggml.tokens"])}
    path = tmp_path_factory.mktemp("models") / "text.gguf"
    return write_gguf(path, config, make_weights(config), metadata=metadata)
