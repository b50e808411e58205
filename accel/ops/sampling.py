"""Picking tokens: greedy, and temperature, top-k, top-p and min-p by the Gumbel-max trick over counted random numbers.

Invariant: a pick depends on the row's logits, its parameters, its seed and the absolute position of the token being
sampled, and on nothing else: not on the row's place in the batch, not on earlier picks, not on any generator state.

::

    logits --(l - max) / t--> x --top-k--> --top-p--> --min-p--> kept --x - log(-log u)--> score --largest--> id
                                                                             u = philox(seed, position, id)

x is float32, each of the two operations rounded once, and max is the largest logit but NaN. So the largest x is 0
whatever the temperature, and x that leaves float32 is minus infinity: out. A row that holds plus infinity is greedy.
Because the largest x is 0, min-p (at least that share of the largest probability) keeps x >= log(min_p).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel.ops.spec import EXACT, Access, Arg, OpSpec, register

__all__ = ["ARGMAX", "SAMPLE", "acceptable_picks", "argmax_reference", "philox4x32", "sample_reference", "uniforms"]

#: Two scores closer than this may change places: a backend's float32 logarithm is its own.
SCORE_SLACK = 1e-4
#: The same for the border of top-p, as a share of the whole weight.
WEIGHT_SLACK = 1e-5
#: The same for the border of min-p, as a share of it: some ulp of a float32 logarithm.
BORDER_SLACK = 2.0**-21

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


def argmax_reference(out: NDArray[Any], logits: NDArray[Any]) -> None:
    """Id of the largest logit, the lowest among equals; NaN counts as minus infinity; nothing above that gives -1."""
    ordered = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    best = np.argmax(ordered, axis=1)
    out[...] = np.where(_at(ordered, best) > -np.inf, best, -1)


def sample_reference(
    out: NDArray[Any],
    logits: NDArray[Any],
    temperature: NDArray[Any],
    top_k: NDArray[Any],
    top_p: NDArray[Any],
    min_p: NDArray[Any],
    seed: NDArray[Any],
    position: NDArray[Any],
) -> None:
    """One token a row of `logits` [R, V]; see the module's drawing. Temperature 0 is argmax, and so is plus infinity.

    top_k 0 keeps all; equal values keep the lowest ids. top_p keeps the shortest prefix, in falling order of x, whose
    weight reaches that share of what top-k left (at least one token). min_p keeps x >= float32(log(min_p)); 0 keeps
    all. Gumbel-max over what is kept, lowest id among equals.
    """
    argmax_reference(out, logits)
    rows = np.flatnonzero(_drawn(out, logits, temperature))
    x = _scaled(logits[rows], temperature[rows])
    kept = _kept(x, top_k[rows], top_p[rows].astype(np.float64), _border(min_p[rows]))
    out[rows] = np.argmax(np.where(kept, _scores(x, seed[rows], position[rows]), -np.inf), axis=1)


def acceptable_picks(
    out: NDArray[Any],
    logits: NDArray[Any],
    temperature: NDArray[Any],
    top_k: NDArray[Any],
    top_p: NDArray[Any],
    min_p: NDArray[Any],
    seed: NDArray[Any],
    position: NDArray[Any],
) -> NDArray[np.bool_]:
    """Rows [R] of `out` that are the reference's pick, or lose to it by less than float32 rounding can explain.

    A pick may differ only where two scores lie within SCORE_SLACK, or where a token lies within WEIGHT_SLACK of the
    border of top-p or within BORDER_SLACK of the border of min-p.
    """
    want, greedy = np.empty_like(out), np.empty_like(out)
    sample_reference(want, logits, temperature, top_k, top_p, min_p, seed, position)
    argmax_reference(greedy, logits)
    good: NDArray[np.bool_] = out == want
    rows = np.flatnonzero(~good & _drawn(greedy, logits, temperature) & (out >= 0) & (out < logits.shape[1]))
    x = _scaled(logits[rows], temperature[rows])
    share, border = top_p[rows].astype(np.float64), _border(min_p[rows])
    # At 1 nothing is cut, so there is no border to be near.
    slack = np.where(share < 1, WEIGHT_SLACK, 0.0)
    widest = _kept(x, top_k[rows], share + slack, border * np.float32(1 + BORDER_SLACK))
    narrowest = _kept(x, top_k[rows], share - slack, border * np.float32(1 - BORDER_SLACK))
    score = _scores(x, seed[rows], position[rows])
    best = np.where(narrowest, score, -np.inf).max(axis=1)
    picked = out[rows]
    good[rows] = _at(widest, picked) & (_at(score, picked) >= best - SCORE_SLACK - 2.0**-22 * np.abs(best))
    return good


def _at(values: NDArray[Any], ids: NDArray[Any]) -> NDArray[Any]:
    """The element `ids[r]` of each row r."""
    return np.asarray(values[np.arange(len(ids)), ids])


def _drawn(greedy: NDArray[Any], logits: NDArray[Any], temperature: NDArray[Any]) -> NDArray[np.bool_]:
    """Rows in which chance has a say."""
    return np.asarray((temperature != 0) & (greedy >= 0) & (_at(logits, greedy) != np.inf))


def _scaled(logits: NDArray[Any], temperature: NDArray[Any]) -> NDArray[np.float32]:
    """x of rows whose largest logit is finite."""
    values = np.where(np.isnan(logits), np.float32(-np.inf), logits).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray((values - values.max(axis=1, keepdims=True)) / temperature[:, None], np.float32)


def _border(min_p: NDArray[Any]) -> NDArray[np.float32]:
    """The lowest x that min-p keeps."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(min_p.astype(np.float64)), np.float32)


def _kept(
    x: NDArray[np.float32], top_k: NDArray[Any], top_p: NDArray[np.float64], border: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """Which tokens [R, V] top-k, then top-p, then min-p leave."""
    order = np.argsort(-x, axis=1, kind="stable")
    falling = np.take_along_axis(x, order, axis=1)
    place = np.arange(x.shape[1])
    count = np.where(top_k > 0, top_k, x.shape[1])
    with np.errstate(under="ignore"):
        weights = np.exp(falling).astype(np.float64)
    running = np.cumsum(np.where(place < count[:, None], weights, 0), axis=1)
    prefix = np.count_nonzero(running < top_p[:, None] * running[:, -1:], axis=1) + 1
    count = np.where(top_p < 1, np.minimum(count, prefix), count)
    kept = np.empty(x.shape, np.bool_)
    np.put_along_axis(kept, order, (place < count[:, None]) & (falling >= border[:, None]), axis=1)
    return kept


def _scores(x: NDArray[np.float32], seed: NDArray[Any], position: NDArray[Any]) -> NDArray[np.float64]:
    gumbel = -np.log(-np.log(_uniform_rows(seed, position, x.shape[1]).astype(np.float64)))
    return x.astype(np.float64) + gumbel


def uniforms(seed: int, position: int, vocab: int) -> NDArray[np.float32]:
    """The number in (0, 1) of every id of a row [vocab]: ``((philox >> 9) + 0.5) * 2^-23``, exact in float32.

    Key (seed low, high), counter (position low, high, id // 4, 0), output word id % 4.
    """
    row: NDArray[np.float32] = _uniform_rows(np.array([seed], np.uint64), np.array([position], np.int64), vocab)[0]
    return row


def _uniform_rows(seed: NDArray[Any], position: NDArray[Any], vocab: int) -> NDArray[np.float32]:
    """``uniforms`` of each pair of `seed` and `position` [R]: [R, vocab]."""
    rows, groups = len(seed), (vocab + 3) // 4
    key, place = (np.repeat(values.astype(np.uint64), groups) for values in (seed, position))
    counter = np.zeros((rows * groups, 4), np.uint64)
    counter[:, 0], counter[:, 1] = place & _LOW, place >> _WORD
    counter[:, 2] = np.tile(np.arange(groups, dtype=np.uint64), rows)
    words = philox4x32(counter, (key & _LOW, key >> _WORD)).reshape(rows, groups * 4)[:, :vocab]
    return np.asarray(((words >> np.uint32(9)).astype(np.float64) + 0.5) * 2.0**-23, np.float32)


def philox4x32(counter: NDArray[Any], key: tuple[Any, Any]) -> NDArray[np.uint32]:
    """Philox4x32-10 of `counter` [n, 4] (32-bit words held as uint64) under `key` (two words, or [n] of each): [n, 4]
    uint32.

    Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011; the constants are Random123's.
    """
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    words = [np.asarray(word, np.uint64) for word in key]
    for i in range(10):
        k0, k1 = ((word + np.uint64(i * weyl)) & _LOW for word, weyl in zip(words, _WEYL, strict=True))
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (product1 >> _WORD) ^ c1 ^ k0, product1 & _LOW, (product0 >> _WORD) ^ c3 ^ k1, product0 & _LOW
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


ARGMAX = register(
    OpSpec(
        name="argmax",
        family="sampling",
        summary="Greedy pick of each row; -1 for a row of nothing but NaN and minus infinity.",
        args=(
            Arg("out", ("R",), ("int32",), Access.WRITE),
            Arg("logits", ("R", "V"), ("float32",)),
        ),
        attributes={},
        reference=argmax_reference,
        tolerance={"int32": EXACT},
        nan="ignore",
        source="definition",
    )
)

SAMPLE = register(
    OpSpec(
        name="sample",
        family="sampling",
        summary="Pick of each row by temperature, top-k, top-p and min-p; the same seed and position pick the same.",
        args=(
            Arg("out", ("R",), ("int32",), Access.WRITE),
            Arg("logits", ("R", "V"), ("float32",)),
            Arg("temperature", ("R",), ("float32",)),
            Arg("top_k", ("R",), ("int32",)),
            Arg("top_p", ("R",), ("float32",)),
            Arg("min_p", ("R",), ("float32",)),
            Arg("seed", ("R",), ("uint64",)),
            Arg("position", ("R",), ("int64",)),
        ),
        attributes={},
        reference=sample_reference,
        tolerance={"int32": EXACT},
        nan="ignore",
        source="Gumbel-max: Maddison et al., A* Sampling, arXiv:1411.0030; Philox: Salmon et al., SC 2011; "
        "nucleus: Holtzman et al., arXiv:1904.09751; min-p: Nguyen et al., arXiv:2407.01082",
        notes={
            "acceptable": acceptable_picks,
            "limits": "temperature finite and >= 0; top_k >= 0; 0 < top_p <= 1; 0 <= min_p <= 1",
        },
    )
)
