"""Text to token ids and back, over the ``tokenizers`` library.

Invariant: one class whatever the file; a :class:`Tokenizer` from GGUF metadata (``gguf_tokenizer.py``) encodes and
decodes as the one from the model's tokenizer.json does. A model without a tokenizer has None, and
:func:`require_tokenizer` turns that into the caller's error where text is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import tokenizers

from accel.errors import InvalidArgument, InvalidRequest, ModelError
from accel.models.chat_template import ChatTemplate
from accel.models.detokenize import TokenStream, stream_factory
from accel.models.fields import Fields, read_json

__all__ = ["TokenStream", "Tokenizer", "load_tokenizer", "require_tokenizer"]

_SPECIAL_NAMES: Final = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """A model's tokenizer with its chat template.

    Args:
        tokenizer: the loaded or built tokenizer.
        special_tokens: texts of ``bos_token``, ``eos_token``, ``unk_token``, ``pad_token``, as far as they exist.
        chat_template: Jinja text, or None where the model has none.
    """

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, special_tokens: Mapping[str, str], chat_template: str | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._special_tokens = dict(special_tokens)
        self.chat_template = chat_template
        self._start_stream = stream_factory(tokenizer)

    @property
    def vocab_size(self) -> int:
        """Tokens including added ones. A model's embedding may have more rows, for alignment."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def bos_id(self) -> int | None:
        return self._special_id("bos_token")

    @property
    def eos_id(self) -> int | None:
        return self._special_id("eos_token")

    def _special_id(self, name: str) -> int | None:
        text = self._special_tokens.get(name)
        return None if text is None else self._tokenizer.token_to_id(text)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens written in it are recognised.

        Args:
            add_special_tokens: add what the model expects around a prompt, such as a bos token. Pass False for the
                result of :meth:`apply_chat_template`, which holds them already.

        Raises:
            InvalidRequest: text with lone surrogates, which no encoding can express.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the text has a lone surrogate {text[error.start]!r} at character {error.start}",
                hint="pass UTF-8 text",
            ) from error
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; ids beyond the vocabulary add nothing, bytes that are not UTF-8 become U+FFFD.

        Raises:
            InvalidArgument: an id below 0 or beyond 32 bits.
        """
        for id_ in ids:
            if not 0 <= id_ < 2**32:
                raise InvalidArgument(f"token id {id_} is outside 0..{2**32 - 1}", token=id_)
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def stream(self, skip_special_tokens: bool = True) -> TokenStream:
        """A new incremental detokeniser; see :mod:`accel.models.detokenize`."""
        return self._start_stream(skip_special_tokens)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The prompt text of a conversation; encode it with ``add_special_tokens=False``.

        Raises:
            InvalidRequest: the model has no chat template, or the template refuses the messages.
            ModelError: the model's template is broken.
        """
        if self.chat_template is None:
            raise InvalidRequest("this model has no chat template", hint="pass a plain prompt")
        return self._compiled.render(messages, add_generation_prompt)

    @cached_property
    def _compiled(self) -> ChatTemplate:
        return ChatTemplate(self.chat_template or "", self._special_tokens)


def require_tokenizer(tokenizer: Tokenizer | None, what: str) -> Tokenizer:
    """`tokenizer`, for a caller that cannot go on without one; `what` is what it was asked to do ("a text prompt").

    Raises:
        InvalidRequest: there is none.
    """
    if tokenizer is None:
        raise InvalidRequest(f"{what} needs a tokenizer, and this model has none", hint="pass token ids")
    return tokenizer


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face folder, or None where it has no tokenizer.json.

    Special tokens and template come from tokenizer_config.json, special_tokens_map.json and chat_template.jinja, in
    the precedence of transformers.

    Raises:
        ModelError: one of these files is damaged.
    """
    path = folder / "tokenizer.json"
    if not os.path.isfile(path):
        return None
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for every fault of the file
        raise ModelError(f"{path} is not a tokenizer: {error}", hint="fetch the file again", path=str(path)) from error
    # Settings of training and batching that some files carry; they would cut or pad prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config_path, map_path = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    config = read_json(config_path) if os.path.isfile(config_path) else {}
    special_map = read_json(map_path) if os.path.isfile(map_path) else {}
    special = {}
    for name in _SPECIAL_NAMES:
        text = _token_text(config.get(name)) or _token_text(special_map.get(name))
        if text is not None:
            special[name] = text
    return Tokenizer(tokenizer, special, _chat_template(folder, Fields(config, str(config_path))))


def _token_text(value: object) -> str | None:
    # A special token is a string, or the fields of an AddedToken.
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_template(folder: Path, config: Fields) -> str | None:
    own_file = folder / "chat_template.jinja"
    if os.path.isfile(own_file):
        try:
            return own_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"cannot read {own_file}: {error}", path=str(own_file)) from error
    if not isinstance(config.values.get("chat_template"), list):
        template: str | None = config.text("chat_template", default=None)
        return template
    for item in config.items("chat_template", dict):
        named = Fields(item, config.origin)
        if named.text("name") == "default":
            found: str = named.text("template")
            return found
    raise config.error("chat_template", 'is a list without one named "default"')
