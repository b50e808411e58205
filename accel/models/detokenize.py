"""Incremental detokenisation: text as tokens arrive.

Invariant: the pieces of a stream, joined with ``finish()``, equal ``decode`` of all its ids, and no piece ends in half
a character. Each token costs a constant, because what a decoder keeps between tokens is bytes, not the token history.

=========  ==============================================  ======================================================
stream     decoder of the tokenizer                        what is held back
=========  ==============================================  ======================================================
bytes      ByteLevel (gpt2, llama 3, qwen)                 the bytes of a character that is not complete
pieces     Replace, ByteFallback, Fuse, Strip (llama 2)    a run of byte tokens, which decodes as a whole or not at all
window     any other                                       the ids since the last complete character
=========  ==============================================  ======================================================
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import tokenizers

__all__ = ["TokenStream", "byte_level_alphabet", "stream_factory"]

_REPLACEMENT: Final = "\ufffd"


class TokenStream(Protocol):
    """Text of one sequence, token by token."""

    def push(self, token: int) -> str:
        """Take one id and return the text that became certain; often empty. An id without a token adds nothing."""

    def finish(self) -> str:
        """Return what was held back, incomplete bytes as U+FFFD. The stream is done."""


def byte_level_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary, and its byte (GPT-2's ``bytes_to_unicode``).

    Printable bytes stand for themselves; the others, in order, for the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(0x100) if byte not in printable)
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF: Final = byte_level_alphabet()

#: The token of an id, or None where it is to be skipped.
TokenOf = Callable[[int], "str | None"]


class _ByteStream:
    """Byte-level vocabularies: every token is bytes, their concatenation is UTF-8."""

    def __init__(self, token_of: TokenOf) -> None:
        self._token_of = token_of
        # "replace" makes one U+FFFD of each maximal invalid part, as the decoder of the tokenizers library does.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        piece = self._token_of(token)
        return self._decoder.decode(_token_bytes(piece)) if piece else ""

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def _token_bytes(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in piece])
    except KeyError:  # an added token, which is plain text
        return piece.encode("utf-8")


@dataclass(frozen=True)
class _PieceRules:
    """The steps of a decoder chain that concern single pieces."""

    replace: tuple[tuple[str, str], ...]
    byte_fallback: bool
    strip: str
    strip_left: int


class _PieceStream:
    """SentencePiece vocabularies: tokens are text, with ``<0xE2>`` for the bytes of characters they lack."""

    def __init__(self, token_of: TokenOf, rules: _PieceRules) -> None:
        self._token_of = token_of
        self._rules = rules
        self._run = bytearray()
        self._to_strip = rules.strip_left

    def push(self, token: int) -> str:
        piece = self._token_of(token)
        if piece is None:
            return ""
        for old, new in self._rules.replace:
            piece = piece.replace(old, new)
        byte = _fallback_byte(piece) if self._rules.byte_fallback else None
        if byte is not None:
            self._run.append(byte)
            return ""
        return self._strip(self._end_run() + piece)

    def finish(self) -> str:
        return self._strip(self._end_run())

    def _end_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode("utf-8")
        except UnicodeDecodeError:
            return _REPLACEMENT * len(run)

    def _strip(self, text: str) -> str:
        while text and self._to_strip:
            if text[0] != self._rules.strip:
                self._to_strip = 0
            else:
                self._to_strip -= 1
                text = text[1:]
        return text


def _fallback_byte(piece: str) -> int | None:
    if len(piece) != 6 or not piece.startswith("<0x") or not piece.endswith(">"):
        return None
    try:
        return int(piece[3:5], 16)
    except ValueError:
        return None


class _WindowStream:
    """Any decoder: decode the ids since the last safe border, and once more without the new ones, and compare.

    The window moves on at each complete character, or when it holds `limit` ids, so it stays short.
    """

    def __init__(self, token_of: TokenOf, decode: Callable[[list[int]], str], limit: int = 16) -> None:
        self._token_of = token_of
        self._decode = decode
        self._limit = limit
        self._seen: list[int] = []
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        if self._token_of(token) is None:
            return ""
        self._pending.append(token)
        return self._emit(force=len(self._pending) >= self._limit)

    def finish(self) -> str:
        return self._emit(force=True) if self._pending else ""

    def _emit(self, force: bool) -> str:
        before = self._decode(self._seen)
        text = self._decode(self._seen + self._pending)
        if text.endswith(_REPLACEMENT) and not force:
            return ""
        self._seen, self._pending = self._pending, []
        return text[len(before) :]


def stream_factory(tokenizer: tokenizers.Tokenizer) -> Callable[[bool], TokenStream]:
    """A function that starts streams of `tokenizer`; its argument is ``skip_special_tokens``."""
    decoder = tokenizer.decoder
    # A component pickles as the JSON that tokenizer.json holds for it: the library's only way to read it back.
    spec: dict[str, Any] = json.loads(decoder.__getstate__()) if decoder is not None else {}
    special = {id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    rules = _piece_rules(spec)

    def start(skip_special_tokens: bool) -> TokenStream:
        def token_of(token: int) -> str | None:
            return None if skip_special_tokens and token in special else tokenizer.id_to_token(token)

        if spec.get("type") == "ByteLevel":
            return _ByteStream(token_of)
        if rules is not None:
            return _PieceStream(token_of, rules)
        return _WindowStream(token_of, lambda ids: tokenizer.decode(ids, skip_special_tokens=False))

    return start


def _piece_rules(spec: dict[str, Any]) -> _PieceRules | None:
    """The rules of a chain Replace* ByteFallback? Fuse Strip?, in that order; None for any other."""
    if spec.get("type") != "Sequence":
        return None
    steps = list(spec["decoders"])
    replace: list[tuple[str, str]] = []
    while steps and steps[0]["type"] == "Replace" and "String" in steps[0]["pattern"]:
        step = steps.pop(0)
        replace.append((step["pattern"]["String"], step["content"]))
    byte_fallback = bool(steps) and steps[0]["type"] == "ByteFallback"
    if byte_fallback:
        steps.pop(0)
    if not steps or steps.pop(0)["type"] != "Fuse":
        return None
    strip, left = "", 0
    if steps and steps[0]["type"] == "Strip" and steps[0]["stop"] == 0:
        strip, left = steps[0]["content"], steps[0]["start"]
        steps.pop(0)
    return None if steps else _PieceRules(tuple(replace), byte_fallback, strip, left)
