"""Step state: what turns a plan of requests into flat token arrays, sampled tokens back into state, and ends a request.

Invariant: integers only, exact on every backend. The source of a token is its id, or LAST_SAMPLED: what its slot
sampled last, which the host need not know yet.

::

    tokens       [ 5  6  7 | -1 | 9  9 ]      query_start [0, 3, 4, 6]
    input_ids    [ 5  6  7 | last_token[slots[1]] | 9  9 ]
    positions    [ c0 c0+1 c0+2 | c1 | c2 c2+1 ]      c = computed
    slot_mapping  block_tables[r, position / S] * S + position % S
    last_rows    [ 2 | 3 | 5 ]      kv_lens = computed + query length

A stop word is matched against a slot's history, which does not hold the token just sampled yet::

    history[slot]  [ p p p g g g | . . . ]  sampled        the word's last token is the sampled one, the others are the
                             lengths                       end of the history, and all of them were generated
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from accel.ops.ragged import LIMITS, ends_with, words_of
from accel.ops.spec import EXACT, Access, Arg, OpSpec, register

__all__ = [
    "LAST_SAMPLED",
    "PACK_STEP",
    "STOP_CHECK",
    "STOP_EOS",
    "STOP_LENGTH",
    "STOP_NONE",
    "STOP_WORD",
    "UPDATE_SLOTS",
    "WRITE_HISTORY",
    "pack_step_reference",
    "stop_check_reference",
    "update_slots_reference",
    "write_history_reference",
]

#: In `tokens`: take the token last sampled in the request's slot.
LAST_SAMPLED: Final = -1
#: Values of stop_check's `reason`.
STOP_NONE: Final = 0
STOP_EOS: Final = 1
STOP_LENGTH: Final = 2
STOP_WORD: Final = 3


def pack_step_reference(
    input_ids: NDArray[Any],
    positions: NDArray[Any],
    slot_mapping: NDArray[Any],
    kv_lens: NDArray[Any],
    last_rows: NDArray[Any],
    tokens: NDArray[Any],
    slots: NDArray[Any],
    query_start: NDArray[Any],
    computed: NDArray[Any],
    block_tables: NDArray[Any],
    last_token: NDArray[Any],
    *,
    block_size: int,
) -> None:
    """Flatten R requests into T tokens; see the module's drawing."""
    for r, slot in enumerate(slots.tolist()):
        first, last = int(query_start[r]), int(query_start[r + 1])
        rows = slice(first, last)
        place = np.arange(last - first) + int(computed[r])
        input_ids[rows] = np.where(tokens[rows] == LAST_SAMPLED, last_token[slot], tokens[rows])
        positions[rows] = place
        slot_mapping[rows] = block_tables[r, place // block_size].astype(np.int64) * block_size + place % block_size
        kv_lens[r] = computed[r] + (last - first)
        last_rows[r] = last - 1


def stop_check_reference(
    reason: NDArray[Any],
    sampled: NDArray[Any],
    generated: NDArray[Any],
    max_tokens: NDArray[Any],
    min_tokens: NDArray[Any],
    ignore_eos: NDArray[Any],
    eos: NDArray[Any],
    history: NDArray[Any],
    slots: NDArray[Any],
    lengths: NDArray[Any],
    row_start: NDArray[Any],
    word_start: NDArray[Any],
    words: NDArray[Any],
) -> None:
    """Why each of R requests ends now: an end token (unless ignored), else a stop word, else its length, else
    STOP_NONE.

    `generated` counts the token just sampled, `lengths` the tokens of the history before it. Below `min_tokens`
    generated tokens only the length ends a request, and so it is after a negative sample. History is read only for
    words of two or more tokens.
    """
    for r, slot in enumerate(slots.tolist()):
        reason[r] = STOP_LENGTH if generated[r] >= max_tokens[r] else STOP_NONE
        if sampled[r] < 0 or generated[r] < min_tokens[r]:
            continue
        text = history[slot, : int(lengths[r])]
        for word in words_of(r, row_start, word_start, words):
            if len(word) <= generated[r] and word[-1] == sampled[r] and ends_with(text, word[:-1]):
                reason[r] = STOP_WORD
        if ignore_eos[r] == 0 and np.isin(sampled[r], eos):
            reason[r] = STOP_EOS


def update_slots_reference(last_token: NDArray[Any], slots: NDArray[Any], sampled: NDArray[Any]) -> None:
    """``last_token[slots[r]] = sampled[r]``; a negative sample (nothing was picked) leaves its slot alone."""
    picked = sampled >= 0
    last_token[slots[picked]] = sampled[picked]


def write_history_reference(
    history: NDArray[Any], slots: NDArray[Any], positions: NDArray[Any], tokens: NDArray[Any]
) -> None:
    """``history[slots[i], positions[i]] = tokens[i]``, in order; a negative token leaves its place alone."""
    for slot, position, token in zip(slots.tolist(), positions.tolist(), tokens.tolist(), strict=True):
        if token >= 0:
            history[slot, position] = token


_I32 = ("int32",)

PACK_STEP = register(
    OpSpec(
        name="pack_step",
        family="step",
        summary="Plan to flat arrays: token ids, positions, KV slots, KV lengths and the row of each last token.",
        args=(
            Arg("input_ids", ("T",), _I32, Access.WRITE),
            Arg("positions", ("T",), _I32, Access.WRITE),
            Arg("slot_mapping", ("T",), ("int64",), Access.WRITE),
            Arg("kv_lens", ("R",), _I32, Access.WRITE),
            Arg("last_rows", ("R",), _I32, Access.WRITE),
            Arg("tokens", ("T",), _I32),
            Arg("slots", ("R",), _I32),
            Arg("query_start", ("R+1",), _I32),
            Arg("computed", ("R",), _I32),
            Arg("block_tables", ("R", "M"), _I32),
            Arg("last_token", ("slots",), _I32),
        ),
        attributes={"block_size": "int >= 1, tokens a page holds"},
        reference=pack_step_reference,
        tolerance={"int32": EXACT, "int64": EXACT},
        nan="bytes",
        source="definition",
        notes={
            "limits": "query_start rises from 0 to T; computed + length <= M * block_size; 0 <= slots < len(last_token)"
        },
    )
)

STOP_CHECK = register(
    OpSpec(
        name="stop_check",
        family="step",
        summary="Why each request ends at this token: end token, stop word, length, or not at all.",
        args=(
            Arg("reason", ("R",), _I32, Access.WRITE),
            Arg("sampled", ("R",), _I32),
            Arg("generated", ("R",), _I32),
            Arg("max_tokens", ("R",), _I32),
            Arg("min_tokens", ("R",), _I32),
            Arg("ignore_eos", ("R",), ("uint8",)),
            Arg("eos", ("E",), _I32),
            Arg("history", ("S", "L"), _I32),
            Arg("slots", ("R",), _I32),
            Arg("lengths", ("R",), _I32),
            Arg("row_start", ("R+1",), _I32),
            Arg("word_start", ("W+1",), _I32),
            Arg("words", ("N",), _I32),
        ),
        attributes={},
        reference=stop_check_reference,
        tolerance={"int32": EXACT},
        nan="bytes",
        source="definition",
        notes={"limits": f"0 <= slots < S; 0 <= lengths <= L; {LIMITS}; words >= 0"},
    )
)

UPDATE_SLOTS = register(
    OpSpec(
        name="update_slots",
        family="step",
        summary="Remember the token each slot sampled; a negative one leaves its slot alone.",
        args=(
            Arg("last_token", ("slots",), _I32, Access.READ_WRITE),
            Arg("slots", ("R",), _I32),
            Arg("sampled", ("R",), _I32),
        ),
        attributes={},
        reference=update_slots_reference,
        tolerance={"int32": EXACT},
        nan="bytes",
        source="definition",
        notes={"limits": "0 <= slots < len(last_token)"},
    )
)

WRITE_HISTORY = register(
    OpSpec(
        name="write_history",
        family="step",
        summary="Put tokens at positions of their slots' histories; a negative one leaves its place alone.",
        args=(
            Arg("history", ("S", "L"), _I32, Access.READ_WRITE),
            Arg("slots", ("n",), _I32),
            Arg("positions", ("n",), _I32),
            Arg("tokens", ("n",), _I32),
        ),
        attributes={},
        reference=write_history_reference,
        tolerance={"int32": EXACT},
        nan="bytes",
        source="definition",
        notes={"limits": "0 <= slots < S; 0 <= positions < L"},
    )
)
