"""Chat templates: Jinja programs that ship with a model and turn messages into its prompt format.

Invariant: a template is untrusted. It runs in Jinja's immutable sandbox, sees only the messages and the names of the
special tokens, and whatever it raises becomes an InvalidRequest.

The environment is that of ``apply_chat_template`` in Hugging Face transformers, for which the templates are written:
block trimming, loop controls, ``raise_exception``, ``strftime_now``, a plain ``tojson``, and ``{% generation %}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from accel.errors import InvalidRequest, ModelError

__all__ = ["ChatTemplate"]


class _Generation(Extension):
    """``{% generation %}…{% endgeneration %}``: marks the model's own words for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own declaration is a mutable class attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template.

    Args:
        source: the Jinja text.
        special_tokens: ``bos_token`` and the like, which templates refer to by these names.

    Raises:
        ModelError: the text is not a template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelError(f"the chat template is not valid Jinja: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The prompt text of a conversation.

        Args:
            messages: objects with ``role`` and ``content``, and whatever else this template knows.
            add_generation_prompt: end where the model's answer begins.

        Raises:
            InvalidRequest: no messages, one without a role, or a conversation the template refuses.
        """
        if not messages:
            raise InvalidRequest("a conversation needs at least one message")
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise InvalidRequest(f"message {index} has no role", hint='expected {"role": ..., "content": ...}')
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except Exception as error:  # a template is a program and may raise anything
            raise InvalidRequest(
                f"the chat template refuses these messages: {error}",
                hint="check their roles, their order and their content",
            ) from error


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes HTML characters, which would end up in prompts.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
