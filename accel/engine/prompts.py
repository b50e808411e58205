"""From what a caller gives to what the scheduler takes: token ids within limits, parameters in ids.

Invariant: everything that can make a request impossible is found here, before anything runs.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from accel.arguments import shown
from accel.errors import InvalidRequest
from accel.models.tokenizer import Tokenizer, require_tokenizer
from accel.sampling_params import SamplingParams

__all__ = ["Prompt", "as_prompts", "check_prompt", "encode", "resolve"]

#: A text, token ids, or the messages of a conversation ({"role": …, "content": …}).
Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as several. A sequence of numbers, or of messages, is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    listed = _listed(prompts)
    if listed and all(isinstance(item, int | np.integer | Mapping) for item in listed):
        return [listed]
    return listed


def encode(prompt: Prompt, tokenizer: Tokenizer | None, max_model_len: int, vocab_size: int) -> list[int]:
    """Token ids of a prompt, checked. Raises InvalidRequest."""
    if isinstance(prompt, str):
        ids = require_tokenizer(tokenizer, "a text prompt").encode(prompt)
    else:
        listed = _listed(prompt)
        if listed and all(isinstance(item, Mapping) for item in listed):
            chat = require_tokenizer(tokenizer, "a conversation")
            # The template writes the special tokens itself.
            ids = chat.encode(chat.apply_chat_template(listed), add_special_tokens=False)
        else:
            ids = _whole_numbers(listed)
    check_prompt(ids, max_model_len, vocab_size)
    return ids


def _listed(prompt: Any) -> list[Any]:
    """The entries of a sequence that is no text, as they are now: the caller may change it later."""
    if isinstance(prompt, bytes | bytearray | memoryview) or not isinstance(prompt, Sequence | np.ndarray):
        raise InvalidRequest(f"a prompt is a {type(prompt).__name__}; it must be a text, token ids or messages")
    if isinstance(prompt, np.ndarray) and prompt.ndim == 0:
        raise InvalidRequest(f"a prompt is one number, {prompt}; it must be a text, token ids or messages")
    return list(prompt)


def check_prompt(ids: Sequence[int], max_model_len: int, vocab_size: int) -> None:
    """Raise InvalidRequest for a prompt that no engine with these limits can serve. Needs no loaded model."""
    if not ids:
        raise InvalidRequest("the prompt is empty; it must have at least 1 token")
    if len(ids) >= max_model_len:
        raise InvalidRequest(
            f"the prompt has {len(ids)} tokens; the limit is {max_model_len - 1}, one less than the model's longest"
            " sequence",
            hint="shorten the prompt",
            tokens=len(ids),
            limit=max_model_len - 1,
        )
    for position, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"token id {shown(token)} at position {position} is outside the vocabulary;"
                f" ids are 0 to {vocab_size - 1}",
                token=token,
                limit=vocab_size,
            )


def resolve(params: SamplingParams, tokenizer: Tokenizer | None, vocab_size: int) -> SamplingParams:
    """`params` with bad words as token ids, all ids checked against the vocabulary, and nothing in it that the caller
    can still change. Raises InvalidRequest."""
    if params.stop:
        require_tokenizer(tokenizer, "a stop string")
    words: list[tuple[int, ...]] = []
    for word in params.bad_words:
        words += _spellings(word, tokenizer) if isinstance(word, str) else [word]
    for name, ids in (
        ("logit_bias", params.logit_bias),
        ("stop_token_ids", params.stop_token_ids),
        *(("stop_sequences", word) for word in params.stop_sequences),
        *(("bad_words", word) for word in words),
    ):
        for token in ids:
            if token >= vocab_size:
                raise InvalidRequest(
                    f"{name} names token id {token}; the vocabulary has {vocab_size}", token=token, limit=vocab_size
                )
    if not params.bad_words and not params.logit_bias:
        return params
    # With a bias of its own: the caller may change the mapping while the request runs, and other requests with it.
    return replace(params, bad_words=tuple(words))


def _spellings(word: str, tokenizer: Tokenizer | None) -> list[tuple[int, ...]]:
    """A word as it is tokenised at the start of a text and after a space."""
    chosen = require_tokenizer(tokenizer, "a bad word given as text")
    found = dict.fromkeys(
        tuple(chosen.encode(text, add_special_tokens=False)) for text in (word, " " + word.lstrip(" "))
    )
    return [ids for ids in found if ids]


def _whole_numbers(tokens: Sequence[Any]) -> list[int]:
    """Token ids as ints; what is no whole number is refused rather than rounded."""
    try:
        return [operator.index(token) for token in tokens]
    except TypeError as error:
        raise InvalidRequest(f"a prompt of token ids must hold whole numbers only: {error}") from None
