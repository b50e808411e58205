"""Ragged lists, and the end of a text: what rules of any number a request look like in flat arrays.

Invariant: offsets rise from 0 to the length of what they cut, so every entry belongs to one row.

::

    row_start  [0, 2, 2, 3]              row 0 has words 0 and 1, row 1 none, row 2 word 2
    word_start [0, 1, 4, 6]
    words      [ 7 | 3 3 9 | 5 6 ]       a word is its tokens, one or more
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["LIMITS", "ends_with", "words_of"]

#: For the notes of an op that takes words.
LIMITS: Final = "row_start rises from 0 to W, word_start from 0 to N; a word has 1 token or more"


def words_of(
    row: int, row_start: NDArray[Any], word_start: NDArray[Any], words: NDArray[Any]
) -> list[NDArray[np.int32]]:
    """The words of `row`."""
    return [
        words[int(word_start[w]) : int(word_start[w + 1])] for w in range(int(row_start[row]), int(row_start[row + 1]))
    ]


def ends_with(text: NDArray[Any], end: NDArray[Any]) -> bool:
    """Whether the tokens `end` are the last ones of `text`; nothing is the end of anything."""
    return len(end) <= len(text) and np.array_equal(text[len(text) - len(end) :], end)
