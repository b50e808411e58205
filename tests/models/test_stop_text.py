"""Stop strings end a text at the same character however it is cut, and nothing of one comes out early."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel.models.stop_text import StopText


def run(pieces: list[str], stops: list[str], include: bool = False) -> tuple[str, str | None]:
    watch, out = StopText(stops, include), ""
    for piece in pieces:
        text, found = watch.push(piece)
        out += text
        if found is not None:
            return out, found
    return out + watch.finish(), None


def by_characters(text: str, stops: list[str], include: bool = False) -> tuple[str, str | None]:
    """The definition: the first end of a prefix that is a stop string ends the text."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(
    text=st.text("abé", max_size=30),
    stops=st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    include=st.booleans(),
)
@settings(deadline=None, max_examples=600, derandomize=True)
def test_any_cut_gives_what_character_by_character_gives(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    borders = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(borders)]
    assert run(pieces, stops, include) == by_characters(text, stops, include)


@given(text=st.text("ab", max_size=20), stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
@settings(deadline=None, max_examples=300, derandomize=True)
def test_what_came_out_is_never_taken_back(text: str, stops: list[str]) -> None:
    watch, out = StopText(stops), ""
    final, _ = by_characters(text, stops)
    for char in text:
        piece, found = watch.push(char)
        out += piece
        assert final.startswith(out)
        if found:
            break


@pytest.mark.parametrize(
    ("pieces", "stops", "wanted"),
    [
        (["on S", "TO", "P it"], ["STOP"], ("on ", "STOP")),
        (["ab", "ab", "c"], ["abc"], ("ab", "abc")),
        (["aab"], ["b", "ab"], ("a", "ab")),
        (["xab"], ["abc", "b"], ("xa", "b")),
        (["no", "thing"], ["STOP"], ("nothing", None)),
        (["end ST"], ["STOP"], ("end ST", None)),
    ],
)
def test_borders(pieces: list[str], stops: list[str], wanted: tuple[str, str | None]) -> None:
    assert run(pieces, stops) == wanted
