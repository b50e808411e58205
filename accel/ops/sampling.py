"""Picking tokens: greedy, and temperature / top-k / top-p by the Gumbel-max trick over counter-based random numbers.

Invariant: a pick depends on the row's logits, its parameters, its seed and the absolute position of the token being
sampled, and on nothing else: not on the row's place in the batch, not on earlier picks, not on any generator state.

::

    logits --(l - max) / t--> x --top-k--> kept --top-p--> kept --x - log(-log u)--> score --largest--> id
                                                                    u = philox(seed, position, id)

x is float32, each of the two operations rounded once, and max is the largest logit but NaN. So the largest x is 0
whatever the temperature, and x that leaves float32 is minus infinity: out. A row that holds plus infinity is greedy.
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

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


def argmax_reference(out: NDArray[Any], logits: NDArray[Any]) -> None:
    """Id of the largest logit, the lowest among equals; NaN counts as minus infinity; nothing above that gives -1."""
    for row, values in enumerate(logits):
        out[row] = _greedy(values)


def sample_reference(
    out: NDArray[Any],
    logits: NDArray[Any],
    temperature: NDArray[Any],
    top_k: NDArray[Any],
    top_p: NDArray[Any],
    seed: NDArray[Any],
    position: NDArray[Any],
) -> None:
    """One token a row of `logits` [R, V]; see the module's drawing. Temperature 0 is argmax, and so is plus infinity.

    top_k 0 keeps all; equal values keep the lowest ids. top_p keeps the shortest prefix, in falling order of x, whose
    weight reaches that share of the whole (at least one token). Gumbel-max over what is kept, lowest id among equals.
    """
    for row, values in enumerate(logits):
        greedy = _greedy(values)
        if temperature[row] == 0 or greedy < 0 or values[greedy] == np.inf:
            out[row] = greedy
            continue
        x = _scaled(values, temperature[row])
        kept = np.sort(_kept(x, int(top_k[row]), float(top_p[row])))
        score = _scores(x, int(seed[row]), int(position[row]))[kept]
        out[row] = kept[np.argmax(score)]


def acceptable_picks(
    out: NDArray[Any],
    logits: NDArray[Any],
    temperature: NDArray[Any],
    top_k: NDArray[Any],
    top_p: NDArray[Any],
    seed: NDArray[Any],
    position: NDArray[Any],
) -> NDArray[np.bool_]:
    """Rows [R] of `out` that are the reference's pick, or lose to it by less than float32 rounding can explain.

    A pick may differ only where two scores lie within SCORE_SLACK, or where a token lies within WEIGHT_SLACK of the
    border of top-p.
    """
    want = np.empty_like(out)
    sample_reference(want, logits, temperature, top_k, top_p, seed, position)
    good: NDArray[np.bool_] = out == want
    drawn = (want >= 0) & (temperature != 0) & ~np.isposinf(logits).any(axis=1)
    for row in np.flatnonzero(~good & drawn & (out >= 0) & (out < logits.shape[1])):
        x = _scaled(logits[row], temperature[row])
        share = float(top_p[row])
        # At 1 nothing is cut, so there is no border to be near.
        slack = WEIGHT_SLACK if share < 1 else 0.0
        widest = _kept(x, int(top_k[row]), share + slack)
        narrowest = _kept(x, int(top_k[row]), share - slack)
        score = _scores(x, int(seed[row]), int(position[row]))
        best = score[narrowest].max()
        good[row] = out[row] in widest and score[out[row]] >= best - SCORE_SLACK - 2.0**-22 * abs(best)
    return good


def _greedy(values: NDArray[Any]) -> int:
    ordered = np.where(np.isnan(values), -np.inf, values)
    best = int(np.argmax(ordered))
    return best if ordered[best] > -np.inf else -1


def _scaled(values: NDArray[Any], temperature: Any) -> NDArray[np.float32]:
    """x of a row whose largest logit is finite."""
    logits = np.where(np.isnan(values), np.float32(-np.inf), np.asarray(values, np.float32))
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray((logits - logits.max()) / np.float32(temperature), np.float32)


def _kept(x: NDArray[np.float32], top_k: int, top_p: float) -> NDArray[np.intp]:
    """Ids that top-k, then top-p, leave, in falling order of x."""
    order = np.argsort(-x, kind="stable")
    if top_k > 0:
        order = order[:top_k]
    if top_p >= 1:
        return order
    with np.errstate(under="ignore"):
        weights = np.exp(x[order]).astype(np.float64)
    running = np.cumsum(weights)
    kept: NDArray[np.intp] = order[: int(np.count_nonzero(running < top_p * running[-1])) + 1]
    return kept


def _scores(x: NDArray[np.float32], seed: int, position: int) -> NDArray[np.float64]:
    gumbel = -np.log(-np.log(uniforms(seed, position, len(x)).astype(np.float64)))
    return x.astype(np.float64) + gumbel


def uniforms(seed: int, position: int, vocab: int) -> NDArray[np.float32]:
    """The number in (0, 1) of every id of a row [vocab]: ``((philox >> 9) + 0.5) * 2^-23``, exact in float32.

    Key (seed low, high), counter (position low, high, id // 4, 0), output word id % 4.
    """
    groups = np.arange((vocab + 3) // 4, dtype=np.uint64)
    counter = np.zeros((len(groups), 4), np.uint64)
    counter[:, 0], counter[:, 1], counter[:, 2] = position & 0xFFFFFFFF, (position >> 32) & 0xFFFFFFFF, groups
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32)).reshape(-1)[:vocab]
    return np.asarray(((words >> np.uint32(9)).astype(np.float64) + 0.5) * 2.0**-23, np.float32)


def philox4x32(counter: NDArray[Any], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Philox4x32-10 of `counter` [n, 4] (32-bit words held as uint64) under `key`: [n, 4] uint32.

    Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011; the constants are Random123's.
    """
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    for i in range(10):
        k0, k1 = (np.uint64((word + i * weyl) & 0xFFFFFFFF) for word, weyl in zip(key, _WEYL, strict=True))
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
        summary="Pick of each row by temperature, top-k and top-p; the same seed and position always pick the same.",
        args=(
            Arg("out", ("R",), ("int32",), Access.WRITE),
            Arg("logits", ("R", "V"), ("float32",)),
            Arg("temperature", ("R",), ("float32",)),
            Arg("top_k", ("R",), ("int32",)),
            Arg("top_p", ("R",), ("float32",)),
            Arg("seed", ("R",), ("uint64",)),
            Arg("position", ("R",), ("int64",)),
        ),
        attributes={},
        reference=sample_reference,
        tolerance={"int32": EXACT},
        nan="ignore",
        source="Gumbel-max: Maddison et al., A* Sampling, arXiv:1411.0030; Philox: Salmon et al., SC 2011; "
        "nucleus: Holtzman et al., arXiv:1904.09751",
        notes={
            "acceptable": acceptable_picks,
            "limits": "temperature finite and >= 0; top_k >= 0; 0 < top_p <= 1",
        },
    )
)
