"""Visible-device lists: every rule, each bad entry with its note, and properties over arbitrary text.

Sources of the rules: CUDA programming guide, "CUDA environment variables" (the list ends before an invalid index; short
forms of a UUID are allowed while unique), and PyTorch's emulation of the driver, ``torch.cuda._parse_visible_devices``
(a repeated entry makes the set empty; an unknown or ambiguous identifier ends the list).
"""

from __future__ import annotations

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from accel.backend import LogicalId, PhysicalId, VisibleId
from accel.errors import AccelError, InvalidArgument
from accel.visible import PhysicalDevice, VisibleDevices, parse_visible

UUIDS = ("GPU-8932f937-d72c-4106", "GPU-8932aaaa-0000-0001", "GPU-17ff0000-0000-0002")
CARDS = [PhysicalDevice(PhysicalId(str(index)), uuid) for index, uuid in enumerate(UUIDS)]


def parse(value: str | None, physical: list[PhysicalDevice] | int = 4) -> VisibleDevices:
    return parse_visible(value, physical, variable="V", opaque=("MIG-",))


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        (None, ["0", "1", "2", "3"]),
        ("", []),
        ("  ", []),
        ("2", ["2"]),
        ("2,0", ["2", "0"]),
        (" 1 ,\t3 ", ["1", "3"]),
        ("007", []),
        ("003", ["3"]),
    ],
)
def test_a_list_is_read_in_its_own_order(value: str | None, entries: list[str]) -> None:
    assert list(parse(value).entries) == entries


@pytest.mark.parametrize(
    ("value", "entries", "words"),
    [
        ("0,,2", ["0"], ["''", "is empty", "'2'"]),
        (",1", [], ["is empty", "'1'"]),
        ("0,1,", ["0", "1"], ["is empty"]),
        ("0,2,-1,1", ["0", "2"], ["'-1'", "is negative", "'1'"]),
        ("-1", [], ["'-1'", "is negative"]),
        ("0,4,1", ["0"], ["'4'", "out of range (4 devices present)", "'1'"]),
        ("1,99999999999999999999999", ["1"], ["out of range"]),
        ("0,two,1", ["0"], ["'two'", "neither an index nor a device identifier"]),
        ("0;1", [], ["'0;1'", "neither"]),
        ("1.0", [], ["neither"]),
        ("٣", [], ["neither"]),
        ("none", [], ["'none'", "neither"]),
    ],
)
def test_an_invalid_entry_ends_the_list_and_the_note_names_it(value: str, entries: list[str], words: list[str]) -> None:
    found = parse(value)
    assert list(found.entries) == entries
    (note,) = found.notes
    assert note.startswith("V: entry ")
    for word in words:
        assert word in note


@pytest.mark.parametrize("value", ["1,1", "0,1,0", "0,00", f"0,{UUIDS[0]}", "MIG-a/1/0,MIG-a/1/0"])
def test_a_repeated_device_voids_the_whole_list(value: str) -> None:
    found = parse(value, CARDS)
    assert found.entries == ()
    assert "repeats device" in found.notes[0]
    assert "voids the whole list" in found.notes[0]


def test_an_empty_value_says_that_it_hides_the_devices() -> None:
    assert parse("").notes == ('V="" hides every device',)
    assert parse("", 0).notes == ()


def test_identifiers_match_whole_or_by_a_unique_prefix() -> None:
    assert parse(f"{UUIDS[2]},{UUIDS[0]}", CARDS).entries == ("2", "0")
    assert parse("GPU-17,GPU-8932f", CARDS).entries == ("2", "0")
    assert parse("GPU-17,0", CARDS).notes == ()


def test_an_ambiguous_prefix_ends_the_list_with_a_note() -> None:
    found = parse("2,GPU-8932,0", CARDS)
    assert found.entries == ("2",)
    assert "'GPU-8932' is ambiguous: 2 devices" in found.notes[0]


def test_an_unknown_identifier_ends_the_list_with_a_note() -> None:
    found = parse("GPU-dead,0", CARDS)
    assert found.entries == ()
    assert "is the identifier of no device here" in found.notes[0]


def test_parts_of_a_device_are_kept_without_a_check() -> None:
    found = parse("MIG-1b2c/1/0,1", CARDS)
    assert found.entries == ("MIG-1b2c/1/0", "1")
    assert found.notes == ()
    assert parse("MIG-", CARDS).entries == ()


def test_an_identifier_is_kept_with_a_note_where_no_identifier_is_known() -> None:
    found = parse("GPU-8932f937,1", 2)
    assert found.entries == ("GPU-8932f937", "1")
    assert "could not be checked" in found.notes[0]


def test_logical_visible_and_physical_are_mapped_both_ways() -> None:
    found = parse("3,0,2").select("2,0", variable="S")
    assert len(found) == 2
    assert found.visible(LogicalId(0)) == 2
    assert found.physical(LogicalId(0)) == "2"
    assert found.physical(LogicalId(1)) == "3"
    assert found.logical(VisibleId(2)) == 0
    with pytest.raises(InvalidArgument, match=r"visible device 1 is not selected \(selected: 2, 0\) \(see S\)"):
        found.logical(VisibleId(1))


@pytest.mark.parametrize("index", [-1, 2, 10**30])
def test_a_logical_index_out_of_range_names_the_value_and_the_limit(index: int) -> None:
    found = parse("1,0")
    with pytest.raises(InvalidArgument, match=f"device index {index} is out of range: 2 devices visible") as caught:
        found.physical(LogicalId(index))
    assert caught.value.values == {"index": index, "limit": 2}


@pytest.mark.parametrize(
    ("selection", "chosen", "noted"),
    [(None, (0, 1), False), ("", (0, 1), False), ("1", (1,), False), ("1,7", (1,), True)],
)
def test_a_selection_indexes_into_the_visible_devices(
    selection: str | None, chosen: tuple[int, ...], noted: bool
) -> None:
    found = parse("3,1").select(selection, variable="S")
    assert found.selected == chosen
    assert bool(found.notes) is noted


def test_a_selection_takes_no_identifiers() -> None:
    found = parse(None, CARDS).select(UUIDS[1], variable="S")
    assert len(found) == 0
    assert "S: entry" in found.notes[0]


def test_a_second_list_indexes_into_what_the_first_left() -> None:
    first = parse(f"2,{UUIDS[0]}", CARDS)
    both = first.restrict("1", variable="W")
    assert both.entries == ("0",)
    assert first.restrict(UUIDS[0], variable="W").entries == ("0",)
    assert first.restrict(UUIDS[1], variable="W").entries == ()
    assert first.restrict(None, variable="W") == first


def test_a_negative_count_and_two_devices_of_one_name_are_typed_errors() -> None:
    with pytest.raises(InvalidArgument, match="is -1, below 0"):
        parse(None, -1)
    with pytest.raises(InvalidArgument, match="two physical devices are named '0'"):
        parse(None, [CARDS[0], CARDS[0]])


_entry = st.one_of(
    st.integers(-3, 6).map(str),
    st.sampled_from([*UUIDS, "GPU-", "GPU-8932", "GPU-17", "MIG-1/2/3", "", " ", "x", "0x1", "1_0"]),
    st.text(max_size=8),
)
_value = st.one_of(st.none(), st.text(max_size=30), st.lists(_entry, max_size=6).map(",".join))


@seed(20240601)
@settings(max_examples=400, deadline=None)
@given(value=_value, second=_value, selection=_value, count=st.integers(0, 3), known=st.booleans())
def test_any_text_gives_ordered_known_devices_or_a_note(
    value: str | None, second: str | None, selection: str | None, count: int, known: bool
) -> None:
    physical: list[PhysicalDevice] | int = CARDS[:count] if known else count
    first = parse(value, physical)
    names = {str(index) for index in range(count)}
    for entry in first.entries:
        assert entry in names or entry.startswith("MIG-") or any(entry in note for note in first.notes)
    assert len(set(first.entries)) == len(first.entries)
    if value is not None and value.strip():
        # What is not in the result is explained.
        assert len(first.entries) == len(value.split(",")) or first.notes
        numbers = [str(int(part)) for part in value.split(",") if part.strip().isascii() and part.strip().isdigit()]
        kept = [entry for entry in first.entries if entry in numbers]
        assert kept == [number for number in numbers if number in kept]
    found = first.restrict(second, variable="W").select(selection, variable="S")
    assert set(found.entries) <= set(first.entries) | {str(entry) for entry in found.entries if found.notes}
    for index in range(-1, len(found) + 1):
        try:
            name = found.physical(LogicalId(index))
        except AccelError:
            assert index in (-1, len(found))
        else:
            assert found.logical(found.visible(LogicalId(index))) == index
            assert name in found.entries
