"""Prompts from options: texts, conversations, token ids. What can be known without a model is checked here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from accel.cli.sampling import parse_ids
from accel.errors import InvalidRequest

if TYPE_CHECKING:
    from accel.engine import Prompt

__all__ = ["STDIN", "in_chat", "read_prompts"]

#: Means stdin where a text or a file is asked for.
STDIN = "-"


def read_prompts(texts: Sequence[str], ids: Sequence[str], chat: bool, system: str | None) -> list[Prompt]:
    """The prompts that the options give, texts first; ``-`` as a text is read from stdin.

    Raises:
        InvalidRequest: nothing in one of them, or options that do not go together.
    """
    if ids and chat:
        raise InvalidRequest("--chat needs a text; --prompt-ids are taken as they are", hint="use --prompt")
    if texts.count(STDIN) > 1:
        raise InvalidRequest(f"--prompt - is given {texts.count(STDIN)} times; stdin can be read once")
    prompts: list[Prompt] = []
    for text in texts:
        read = _stdin() if text == STDIN else text
        if not read:
            raise InvalidRequest("the prompt is empty; it must have at least 1 token")
        prompts.append(in_chat(read, system) if chat else read)
    return [*prompts, *(parse_ids(text) for text in ids)]


def in_chat(text: str, system: str | None) -> Prompt:
    """`text` as a user's message, after the message `system` where there is one."""
    messages = [{"role": "user", "content": text}]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


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
