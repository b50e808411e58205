"""The cases of sampling and of what is done to logits, defined when this is imported; see cases.py."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accel.ops.case import Call, Params, Rng, define, ints, normal, sweep, word_lists
from accel.ops.operand import Operand

# --- sampling ---------------------------------------------------------------------------------------------------------


def _logits(rng: Rng, R: int, V: int, special: str) -> NDArray[np.float32]:
    """Logits of spread 3; `special`: "ties", "nan" scattered with -inf, "nothing" to pick, "inf" once in each row."""
    logits: NDArray[np.float32] = normal(rng, R, V) * np.float32(3)
    if special == "ties":
        logits = (np.round(logits / 3) * 3).astype(np.float32)
    elif special == "nan":
        logits[rng.random((R, V)) < 0.3] = np.nan
        logits[rng.random((R, V)) < 0.3] = -np.inf
        # A NaN before and after the largest value, wherever vectors begin.
        logits[:, 0], logits[:, -1] = np.nan, np.nan
    elif special == "nothing":
        logits[0], logits[1], logits[2, ::2], logits[2, 1::2] = np.nan, -np.inf, np.nan, -np.inf
    elif special == "inf":
        logits[np.arange(R), rng.integers(0, V, R)] = np.inf
    return logits


_VOCABS = (1, 2, 15, 16, 17, 33, 100, 1000)
_LOGIT_SPECIALS = ("ties", "nan", "nothing", "inf")


@define(
    "argmax",
    sweep("V", _VOCABS, R=3),
    sweep("R", (0, 1, 17), V=33),
    [{"R": 4, "V": 50, "special": special} for special in _LOGIT_SPECIALS],
    [{"R": 2, "V": 49152}],
)
def _argmax(rng: Rng, *, R: int, V: int, special: str = "") -> Call:
    operands = {"out": Operand.empty((R,), "int32"), "logits": Operand.of(_logits(rng, R, V, special), "float32")}
    return Call(operands, {})


@define(
    "sample",
    sweep("V", _VOCABS, R=5),
    sweep("R", (0, 1, 17), V=33),
    [{"R": 24, "V": 100, "mode": m} for m in ("greedy", "temperature", "top_k", "top_p", "both", "min_p", "all")],
    [{"R": 6, "V": 50, "special": special} for special in _LOGIT_SPECIALS],
    [
        {"R": 6, "V": 50, "mode": m, "special": s}
        for m in ("temperature", "top_p", "both", "min_p", "all")
        for s in _LOGIT_SPECIALS
    ],
    [{"R": 3, "V": 49152, "mode": m} for m in ("temperature", "top_k", "top_p", "both", "min_p", "all")],
    [
        {"R": 6, "V": 50, "mode": m, "t": t}
        for m in ("temperature", "top_k", "both", "all")
        for t in (1e-38, 1e-5, 1e38)
    ],
    [{"R": 6, "V": 50, "t": 1e-38, "special": special} for special in _LOGIT_SPECIALS],
)
def _sample(rng: Rng, *, R: int, V: int, mode: str = "mixed", special: str = "", t: float = 0.0) -> Call:
    temperature = rng.uniform(0.2, 2.0, R).astype(np.float32)
    if t > 0:
        temperature[:] = t
    top_k = rng.choice([1, 2, 5, 17, V, V + 3], R)
    top_p = rng.choice(np.array([1e-6, 0.1, 0.5, 0.9, 0.999], np.float32), R)
    min_p = rng.choice(np.array([1e-45, 0.001, 0.05, 0.5, 1], np.float32), R)
    if mode == "greedy":
        temperature[:] = 0
    if mode in ("temperature", "top_p", "min_p"):
        top_k[:] = 0
    if mode in ("temperature", "top_k", "min_p"):
        top_p[:] = 1
    if mode in ("temperature", "top_k", "top_p", "both"):
        min_p[:] = 0
    if mode == "mixed":
        temperature[::4], top_k[::2], top_p[::3], min_p[1::2] = 0, 0, 1, 0
    operands = {
        "out": Operand.empty((R,), "int32"),
        "logits": Operand.of(_logits(rng, R, V, special), "float32"),
        "temperature": Operand.of(temperature, "float32"),
        "top_k": ints(top_k),
        "top_p": Operand.of(top_p, "float32"),
        "min_p": Operand.of(min_p, "float32"),
        "seed": ints(rng.integers(0, 2**64, R, np.uint64), "uint64"),
        # Beyond 32 bits as well: the counter has both halves.
        "position": ints(rng.integers(0, 2**40, R), "int64"),
    }
    return Call(operands, {})


# --- logits -----------------------------------------------------------------------------------------------------------

#: Logits whose rows lie apart in memory, and logits of every special kind.
_IN_PLACE: list[Params] = [
    *({"R": 6, "V": 50, "special": special} for special in _LOGIT_SPECIALS),
    {"R": 6, "V": 50, "layout": "strided"},
]


def _histories(rng: Rng, R: int, V: int, L: int = 24) -> dict[str, Operand]:
    """Histories of few ids, so that they repeat; past a row's length lies what nobody may follow.

    Row 0 has a whole prompt and no text of its own, row 1 a text without a prompt; two rows share a slot.
    """
    slots = rng.permutation(R + 2)[:R]
    if R > 3:
        slots[3] = slots[2]
    lengths = rng.integers(1, L + 1, R)
    prompt_lens = (lengths * rng.random(R)).astype(np.int64)
    prompt_lens[:1], prompt_lens[1:2] = lengths[:1], 0
    if R > 3:
        lengths[3] = lengths[2]
    prompt_lens = np.minimum(prompt_lens, lengths)
    history = rng.choice(np.array([-1, np.iinfo(np.int32).max]), (R + 2, L))
    for slot, length in zip(slots.tolist(), lengths.tolist(), strict=True):
        history[slot, :length] = rng.integers(0, min(V, 12), length)
    return {
        "history": ints(history),
        "slots": ints(slots),
        "prompt_lens": ints(prompt_lens),
        "lengths": ints(lengths),
    }


def _held(rng: Rng, R: int, V: int, special: str, layout: str) -> Operand:
    return Operand.of(_logits(rng, R, V, special), "float32", padding=(5, 0) if layout == "strided" else ())


@define("penalties", sweep("V", _VOCABS, R=5), sweep("R", (0, 1, 17), V=33), _IN_PLACE, [{"R": 2, "V": 49152}])
def _penalties(rng: Rng, *, R: int, V: int, special: str = "", layout: str = "") -> Call:
    operands = {
        "logits": _held(rng, R, V, special, layout),
        **_histories(rng, R, V),
        "repetition": Operand.of(rng.uniform(0.5, 2, R).astype(np.float32), "float32"),
        "frequency": Operand.of(rng.choice(np.array([0, -1.5, 0.1, 0.7], np.float32), R), "float32"),
        "presence": Operand.of(rng.choice(np.array([0, -0.3, 0.4, 2], np.float32), R), "float32"),
    }
    if R > 4:  # a row without a penalty, whose history may hold anything
        for name, off in (("repetition", 1), ("frequency", 0), ("presence", 0)):
            operands[name].array[4] = off
        operands["history"].array[int(operands["slots"].array[4])] = -1
    return Call(operands, {})


@define("logit_bias", sweep("V", _VOCABS, R=5), sweep("R", (0, 1, 17), V=33), _IN_PLACE, [{"R": 3, "V": 9, "n": 0}])
def _logit_bias(rng: Rng, *, R: int, V: int, special: str = "", layout: str = "", n: int = 7) -> Call:
    counts = rng.integers(0, n + 1, R)
    counts[:1] = n
    row_start = np.concatenate([[0], np.cumsum(counts)])
    # The same token more than once, so that the order shows.
    tokens = rng.integers(0, V, row_start[-1])
    values = (rng.standard_normal(len(tokens)) * 10.0 ** rng.integers(-3, 3, len(tokens))).astype(np.float32)
    values[::5] = -np.inf
    operands = {
        "logits": _held(rng, R, V, special, layout),
        "row_start": ints(row_start),
        "tokens": ints(tokens),
        "values": Operand.of(values, "float32"),
    }
    return Call(operands, {})


@define("bad_words", sweep("V", (3, 16, 100), R=8), sweep("R", (0, 1, 17), V=33), _IN_PLACE, [{"R": 3, "V": 9, "w": 0}])
def _bad_words(rng: Rng, *, R: int, V: int, special: str = "", layout: str = "", w: int = 4) -> Call:
    operands = {"logits": _held(rng, R, V, special, layout), **_histories(rng, R, 3)}
    row_start, word_start, words = word_lists(rng, R, 3, w)
    words[np.asarray(word_start[1:2]) - 1] = V - 1  # row 0 bans something, in a case that has words at all
    return Call({**operands, "row_start": ints(row_start), "word_start": ints(word_start), "words": ints(words)}, {})


@define(
    "logprobs",
    sweep("V", _VOCABS, R=3, K=1),
    sweep("R", (0, 1, 17), V=33, K=5),
    sweep("K", (0, 1, 2, 49, 50), R=6, V=50),
    [{"R": 6, "V": 50, "K": k, "special": special} for k in (3, 50) for special in _LOGIT_SPECIALS],
    [
        {"R": 6, "V": 50, "K": 3, "layout": "strided"},
        {"R": 3, "V": 49152, "K": 20},
        {"R": 4, "V": 40, "K": 9, "t": 1e30},
    ],
)
def _logprobs(rng: Rng, *, R: int, V: int, K: int, special: str = "", layout: str = "", t: float = 1.0) -> Call:
    logits = _held(rng, R, V, special, layout)
    logits.array[...] *= np.float32(t)
    tokens = rng.integers(0, V, R)
    tokens[2::3] = -1
    operands = {
        "value": Operand.empty((R,), "float32"),
        "rank": Operand.empty((R,), "int32"),
        "top_ids": Operand.empty((R, K), "int32"),
        "top_values": Operand.empty((R, K), "float32"),
        "logits": logits,
        "tokens": ints(tokens),
    }
    return Call(operands, {})
