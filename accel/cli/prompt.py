"""From what was typed to token ids. What can be known of a prompt before a load is checked before it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accel.errors import InvalidRequest

if TYPE_CHECKING:
    from accel.models.files import ModelFiles

__all__ = ["PromptSource", "parse_ids", "read_source"]

_STDIN = "-"
_NUMBER = re.compile(r"[+-]?\d{1,18}", re.ASCII)


@dataclass(frozen=True)
class PromptSource:
    """A prompt before the model is known: text or token ids, one of the two. `system` is for a chat."""

    text: str | None
    ids: tuple[int, ...] = ()
    chat: bool = False
    system: str | None = None

    def encode(self, files: ModelFiles) -> list[int]:
        """Token ids for the model.

        Raises:
            InvalidRequest: text for a model without a tokenizer, or a chat for one without a template.
        """
        if self.text is None:
            return list(self.ids)
        from accel.models.tokenizer import require_tokenizer

        tokenizer = require_tokenizer(files.tokenizer, "a text prompt")
        if not self.chat:
            return tokenizer.encode(self.text)
        messages = [{"role": "user", "content": self.text}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        # The template writes the special tokens itself.
        return tokenizer.encode(tokenizer.apply_chat_template(messages), add_special_tokens=False)


def read_source(prompt: str | None, prompt_ids: str | None, chat: bool, system: str | None) -> PromptSource:
    """The prompt that the options give; ``-`` as text is read from stdin.

    Raises:
        InvalidRequest: none or two of them, nothing in it, or options that do not go together.
    """
    if (prompt is None) == (prompt_ids is None):
        given = "neither was" if prompt is None else "both were"
        raise InvalidRequest(f"give one of --prompt and --prompt-ids; {given} given", hint="--prompt - reads stdin")
    if system is not None and not chat:
        raise InvalidRequest("--system needs --chat, which puts it into the model's chat format", hint="add --chat")
    if prompt_ids is not None:
        if chat:
            raise InvalidRequest("--chat needs a text; --prompt-ids are taken as they are", hint="use --prompt")
        return PromptSource(None, parse_ids(prompt_ids))
    text = _stdin() if prompt == _STDIN else prompt
    if not text:
        raise InvalidRequest("the prompt is empty; it must have at least 1 token")
    return PromptSource(text, chat=chat, system=system)


def parse_ids(text: str) -> tuple[int, ...]:
    """Token ids out of "5,6,7". Raises InvalidRequest for what is no number, and where there is none."""
    if not text.strip():
        raise InvalidRequest("the prompt is empty; it must have at least 1 token", hint="e.g. --prompt-ids 5,6,7")
    parts = [part.strip() for part in text.split(",")]
    for position, part in enumerate(parts):
        if _NUMBER.fullmatch(part) is None:
            shown = part if len(part) <= 40 else part[:40] + "…"
            raise InvalidRequest(
                f"token id {shown!r} at position {position} is not a whole number",
                hint="give token ids separated by commas, e.g. --prompt-ids 5,6,7",
            )
    return tuple(int(part) for part in parts)


def _stdin() -> str:
    """All of stdin as UTF-8, without its last line end, which a shell's echo adds."""
    data = sys.stdin.buffer.read()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the prompt on stdin is not UTF-8: byte 0x{data[error.start]:02x} at {error.start}", hint="pass UTF-8 text"
        ) from error
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")
