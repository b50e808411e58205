"""What is done to logits before a token is picked, and what is said about it afterwards.

Invariant: a row's result depends on that row, its rules and its own history only. Penalties, biases and bans change
logits in place; the order they are called in is the caller's.

A slot's history is its tokens in order, the prompt first::

    history[slot]  [ p p p p | g g g | . . . ]
                     prompt_lens    lengths     past lengths nothing is read
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel.ops.ragged import LIMITS, ends_with, words_of
from accel.ops.spec import EXACT, Access, Arg, OpSpec, Tolerance, register

__all__ = [
    "BAD_WORDS",
    "LOGIT_BIAS",
    "LOGPROBS",
    "PENALTIES",
    "bad_words_reference",
    "logit_bias_reference",
    "logprobs_reference",
    "penalties_reference",
]


def penalties_reference(
    logits: NDArray[Any],
    history: NDArray[Any],
    slots: NDArray[Any],
    prompt_lens: NDArray[Any],
    lengths: NDArray[Any],
    repetition: NDArray[Any],
    frequency: NDArray[Any],
    presence: NDArray[Any],
) -> None:
    """Make tokens of the row's history less likely (or more, where a penalty says so). Each operation rounds once.

    Every token of the history, once: ``l / repetition`` where l > 0, else ``l * repetition``; then, with c its count
    in the generated part, ``l - frequency * c``; then ``l - presence`` where c > 0. A row whose penalties are all off
    (1, 0, 0) is left alone, and so is its history.
    """
    for r, slot in enumerate(slots.tolist()):
        if (repetition[r], frequency[r], presence[r]) == (1, 0, 0):
            continue
        text = history[slot, : int(lengths[r])]
        seen = np.unique(text)
        generated = text[int(prompt_lens[r]) :]
        count = np.bincount(generated, minlength=logits.shape[1])[seen].astype(np.float32)
        with np.errstate(all="ignore"):
            values = logits[r, seen]
            values = np.where(values > 0, values / repetition[r], values * repetition[r])
            values = values - frequency[r] * count
            logits[r, seen] = np.where(count > 0, values - presence[r], values)


def logit_bias_reference(
    logits: NDArray[Any], row_start: NDArray[Any], tokens: NDArray[Any], values: NDArray[Any]
) -> None:
    """``logits[r, tokens[i]] += values[i]`` for the entries i of row r, in order; minus infinity bans, whatever was
    there.
    """
    for r in range(len(logits)):
        for i in range(int(row_start[r]), int(row_start[r + 1])):
            with np.errstate(over="ignore"):
                biased = logits[r, tokens[i]] + values[i] if values[i] > -np.inf else values[i]
            logits[r, tokens[i]] = biased


def bad_words_reference(
    logits: NDArray[Any],
    history: NDArray[Any],
    slots: NDArray[Any],
    prompt_lens: NDArray[Any],
    lengths: NDArray[Any],
    row_start: NDArray[Any],
    word_start: NDArray[Any],
    words: NDArray[Any],
) -> None:
    """Minus infinity for the last token of each word whose other tokens are the end of the generated part.

    A word of one token is banned always. History is read only for words of two or more.
    """
    for r, slot in enumerate(slots.tolist()):
        generated = history[slot, int(prompt_lens[r]) : int(lengths[r])]
        for word in words_of(r, row_start, word_start, words):
            if ends_with(generated, word[:-1]):
                logits[r, word[-1]] = -np.inf


def logprobs_reference(
    value: NDArray[Any],
    rank: NDArray[Any],
    top_ids: NDArray[Any],
    top_values: NDArray[Any],
    logits: NDArray[Any],
    tokens: NDArray[Any],
) -> None:
    """Log softmax and rank of ``tokens[r]``, and the K best of each row, by logit falling, then id rising.

    Log softmax is ``(l - max) - log(sum exp(l - max))``, the sum in float64; NaN counts as minus infinity, and beside
    plus infinity everything finite does. Rank is 1 + the number of logits strictly greater. Token -1 gives NaN and rank
    0. A row without a number gives NaN, rank 0 and ids -1.
    """
    count = top_ids.shape[1]
    for r, token in enumerate(tokens.tolist()):
        row = np.where(np.isnan(logits[r]), np.float32(-np.inf), logits[r])
        value[r], rank[r], top_ids[r], top_values[r] = np.nan, 0, -1, np.nan
        most = row.max()
        if most == -np.inf:
            continue
        with np.errstate(all="ignore"):
            x = np.where(row == most, np.float32(0), row - most)
            logs = (x - np.log(np.exp(x.astype(np.float64)).sum())).astype(np.float32)
        if token >= 0:
            value[r], rank[r] = logs[token], 1 + np.count_nonzero(row > row[token])
        top_ids[r] = np.argsort(-row, kind="stable")[:count]
        top_values[r] = logs[top_ids[r]]


_F32, _I32 = ("float32",), ("int32",)
_LOGITS = Arg("logits", ("R", "V"), _F32, Access.READ_WRITE, contiguous=False)
_HISTORY = (
    Arg("history", ("S", "L"), _I32),
    Arg("slots", ("R",), _I32),
    Arg("prompt_lens", ("R",), _I32),
    Arg("lengths", ("R",), _I32),
)
_HISTORY_LIMITS = "0 <= slots < S; 0 <= prompt_lens <= lengths <= L"

PENALTIES = register(
    OpSpec(
        name="penalties",
        family="logits",
        summary="Repetition, frequency and presence penalties over the tokens of each row's history, in place.",
        args=(
            _LOGITS,
            *_HISTORY,
            Arg("repetition", ("R",), _F32),
            Arg("frequency", ("R",), _F32),
            Arg("presence", ("R",), _F32),
        ),
        attributes={},
        reference=penalties_reference,
        tolerance={"float32": EXACT},
        nan="propagate",
        source="repetition: Keskar et al., CTRL, arXiv:1909.05858; frequency and presence: definition",
        notes={
            "limits": _HISTORY_LIMITS + "; repetition finite and > 0; frequency and presence finite; the history of a "
            "row with a penalty holds ids of the vocabulary. 1, 0 and 0 are off"
        },
    )
)

LOGIT_BIAS = register(
    OpSpec(
        name="logit_bias",
        family="logits",
        summary="Add to named logits of each row, in place; minus infinity bans a token.",
        args=(_LOGITS, Arg("row_start", ("R+1",), _I32), Arg("tokens", ("N",), _I32), Arg("values", ("N",), _F32)),
        attributes={},
        reference=logit_bias_reference,
        tolerance={"float32": EXACT},
        nan="propagate",
        source="definition",
        notes={"limits": "row_start rises from 0 to N; 0 <= tokens < V; values neither NaN nor plus infinity"},
    )
)

BAD_WORDS = register(
    OpSpec(
        name="bad_words",
        family="logits",
        summary="Ban the token that would complete a word, in place.",
        args=(
            _LOGITS,
            *_HISTORY,
            Arg("row_start", ("R+1",), _I32),
            Arg("word_start", ("W+1",), _I32),
            Arg("words", ("N",), _I32),
        ),
        attributes={},
        reference=bad_words_reference,
        tolerance={"float32": EXACT},
        nan="bytes",
        source="definition",
        notes={"limits": f"{_HISTORY_LIMITS}; {LIMITS}; 0 <= words < V"},
    )
)

LOGPROBS = register(
    OpSpec(
        name="logprobs",
        family="logits",
        summary="Log softmax and rank of a token of each row, and the best tokens with theirs.",
        args=(
            Arg("value", ("R",), _F32, Access.WRITE),
            Arg("rank", ("R",), _I32, Access.WRITE),
            Arg("top_ids", ("R", "K"), _I32, Access.WRITE),
            Arg("top_values", ("R", "K"), _F32, Access.WRITE),
            Arg("logits", ("R", "V"), _F32, contiguous=False),
            Arg("tokens", ("R",), _I32),
        ),
        attributes={},
        reference=logprobs_reference,
        # A float32 exp, its sum's logarithm (12 at most, to an ulp) and two subtractions.
        tolerance={"float32": Tolerance(3e-7, 2e-6, 1e-6)},
        nan="ignore",
        source="definition",
        notes={"limits": "-1 <= tokens < V; K <= V"},
    )
)
