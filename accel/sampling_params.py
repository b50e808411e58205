"""How a request wants its tokens chosen and when it ends. One definition for the engine, the CLI and the runner.

Invariant: values are checked when the object is made, so whoever holds one need not look again.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, Final

from accel.arguments import flag, real, shown, whole
from accel.errors import InvalidRequest

__all__ = ["MAX_CHOICES", "MAX_LOGPROBS", "MAX_WORDS", "SamplingParams"]

_SEED_LIMIT = 1 << 64
_OPTIONAL = ("seed", "logprobs", "prompt_logprobs")
_INT32_LIMIT = 1 << 31
#: Reals reach the device as float32; the limit is that of the op `sample`.
_MOST_FLOAT32 = 3e38
#: The smallest that float32 holds with all its digits.
_LEAST_FLOAT32 = 2.0**-126

#: Alternatives whose log-probabilities a token may bring.
MAX_LOGPROBS: Final = 100
#: Choices for one prompt.
MAX_CHOICES: Final = 128
#: Stop strings, stop sequences, stop ids or bad words of one request, each; and tokens or characters of one.
MAX_WORDS: Final = 1024


@dataclass(frozen=True)
class SamplingParams:
    """Sampling and stop rules of one request.

    Order: penalties, bad words and logit bias change the logits; temperature divides them; top-k, top-p and min-p
    cut; one token is drawn from what is left. Formulas: ``accel.ops.sampling``.

    Args:
        max_tokens: tokens to generate at most, 1 or more. A sequence also ends at the model's longest.
        temperature: 0 picks the most likely token; else logits are divided by it.
        top_k: only the k most likely tokens; 0 for all.
        top_p: only the smallest set of most likely tokens whose probability reaches it; in (0, 1].
        seed: of this request's random numbers; the same seed gives the same tokens whatever else runs. None: a fresh
            one, which the output tells.
        ignore_eos: go on after an end-of-sequence token.
        min_p: only tokens at least this share as likely as the most likely one; 0 for all.
        min_tokens: before so many are generated, end-of-sequence and stop tokens are not drawn and no stop rule ends
            the request.
        repetition_penalty: above 1 makes tokens of prompt and output less likely; 1 is off.
        frequency_penalty, presence_penalty: taken off a token's logit for each time it was generated, and once.
        logit_bias: token id -> what is added to its logit; minus infinity bans it.
        bad_words: never generated: texts, or sequences of token ids.
        stop: texts that end the request. The output's text ends before the first one (after it with `include_stop`).
        stop_token_ids: ids that end the request; they are the last of its ``token_ids``.
        stop_sequences: sequences of ids that do.
        include_stop: keep the stop string in the text.
        n: choices for the prompt. Choice i is what a request with ``seed + i`` gives.
        logprobs: None, or how many alternatives' log-probabilities come with each token (0: only the token's own).
            They are those of the model, before anything above changes them.
        prompt_logprobs: the same for each token of the prompt but the first. Such a prompt is computed in full.

    Raises:
        InvalidRequest: a value outside its range.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    min_p: float = 0.0
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[Any, ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_sequences: tuple[tuple[int, ...], ...] = ()
    include_stop: bool = False
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    # What follows from them, worked out once because every step asks.
    #: Whether a penalty is on.
    penalises: bool = field(init=False, repr=False, compare=False)
    #: Stop ids and stop sequences, as one list of sequences.
    stop_words: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    #: Whether a token depends on those before it by more than attention: the device keeps them then.
    uses_history: bool = field(init=False, repr=False, compare=False)
    #: Whether anything but temperature, top-k, top-p and min-p changes the logits.
    shapes_logits: bool = field(init=False, repr=False, compare=False)
    #: Whether none of the above is asked for, nor log-probabilities: most requests.
    plain: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        normal = {
            **self._numbers(),
            "logit_bias": _bias(self.logit_bias),
            "bad_words": tuple(
                _text("bad_words", item) if isinstance(item, str) else _ids("bad_words", item)
                for item in _several("bad_words", self.bad_words)
            ),
            # One stop string may be given as it is.
            "stop": tuple(_text("stop", item) for item in _several("stop", self.stop)),
            "stop_token_ids": _ids("stop_token_ids", self.stop_token_ids, empty=True),
            "stop_sequences": tuple(
                _ids("stop_sequences", item) for item in _several("stop_sequences", self.stop_sequences)
            ),
        }
        for name, value in normal.items():
            object.__setattr__(self, name, value)
        self._derive()

    def _derive(self) -> None:
        penalises = self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0
        stop_words = (*((token,) for token in self.stop_token_ids), *self.stop_sequences)
        uses_history = penalises or any(len(word) > 1 for word in (*self.bad_words, *self.stop_sequences))
        shapes = bool(penalises or self.logit_bias or self.bad_words or self.min_tokens)
        logprobs = self.logprobs is not None or self.prompt_logprobs is not None
        derived = {
            "penalises": penalises,
            "stop_words": stop_words,
            "uses_history": uses_history,
            "shapes_logits": shapes,
            "plain": not (shapes or uses_history or stop_words or logprobs),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def _numbers(self) -> dict[str, Any]:
        """The numbers as plain ints, floats and bools, whatever kind of number they were given as."""
        normal: dict[str, Any] = {}
        for name, low, high in (
            ("max_tokens", 1, _INT32_LIMIT - 1),
            ("top_k", 0, _INT32_LIMIT - 1),
            ("min_tokens", 0, _INT32_LIMIT - 1),
            ("n", 1, MAX_CHOICES),
            ("seed", 0, _SEED_LIMIT - 1),
            ("logprobs", 0, MAX_LOGPROBS),
            ("prompt_logprobs", 0, MAX_LOGPROBS),
        ):
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                normal[name] = whole(name, value, low, high, error=InvalidRequest)
        for name, least, most in (
            ("temperature", 0.0, _MOST_FLOAT32),
            ("top_p", _LEAST_FLOAT32, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", _LEAST_FLOAT32, _MOST_FLOAT32),
            ("frequency_penalty", -_MOST_FLOAT32, _MOST_FLOAT32),
            ("presence_penalty", -_MOST_FLOAT32, _MOST_FLOAT32),
        ):
            limits = f"above 0 and at most {most:g}" if least == _LEAST_FLOAT32 else f"{least:g} to {most:g}"
            normal[name] = real(name, getattr(self, name), limits, least, most, error=InvalidRequest)
        for name in ("ignore_eos", "include_stop"):
            normal[name] = flag(name, getattr(self, name), error=InvalidRequest)
        if normal["min_tokens"] > normal["max_tokens"]:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens}; it must be at most max_tokens, {self.max_tokens}",
                min_tokens=self.min_tokens,
                max_tokens=self.max_tokens,
            )
        return normal


def _several(name: str, value: Any) -> list[Any]:
    items = [value] if isinstance(value, str) else _listed(name, value)
    if len(items) > MAX_WORDS:
        raise InvalidRequest(f"{name} has {_count(value)} entries; the limit is {MAX_WORDS}", limit=MAX_WORDS)
    return items


def _listed(name: str, value: Any) -> list[Any]:
    """The entries of a sequence, and no more than one above the limit: it may never end."""
    try:
        entries = iter(value)
    except TypeError:
        raise InvalidRequest(f"{name} is {shown(value)}; it must be a sequence") from None
    return list(itertools.islice(entries, MAX_WORDS + 1))


def _count(value: Any) -> str:
    return str(len(value)) if isinstance(value, Sized) else f"more than {MAX_WORDS}"


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} holds {shown(value)}; it must hold texts")
    if not 1 <= len(value) <= MAX_WORDS:
        raise InvalidRequest(f"{name} holds a text of {len(value)} characters; it must have 1 to {MAX_WORDS}")
    return value


def _ids(name: str, value: Any, *, empty: bool = False) -> tuple[int, ...]:
    listed = _listed(name, value)
    try:
        ids = tuple(operator.index(token) for token in listed)
    except TypeError as error:
        raise InvalidRequest(f"{name} must hold token ids: {error}") from None
    if not (empty or ids) or len(ids) > MAX_WORDS:
        raise InvalidRequest(f"{name} holds {_count(value)} token ids; it must be {0 if empty else 1} to {MAX_WORDS}")
    wrong = [token for token in ids if not 0 <= token < _INT32_LIMIT]
    if wrong:
        raise InvalidRequest(
            f"{name} holds token id {shown(wrong[0])}; ids are 0 to {_INT32_LIMIT - 1}", token=wrong[0]
        )
    return ids


def _bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"logit_bias is {shown(value)}; it must map token ids to numbers")
    bias: dict[int, float] = {}
    for given, amount in value.items():
        (token,) = _ids("logit_bias", [given])
        name, limits = f"logit_bias of token {token}", "a finite number, or -inf to ban it"
        number = real(name, amount, limits, -math.inf, _MOST_FLOAT32, error=InvalidRequest)
        if -math.inf < number < -_MOST_FLOAT32:
            raise InvalidRequest(f"{name} is {shown(amount)}; it must be {limits}", token=token)
        bias[token] = number
    return bias
