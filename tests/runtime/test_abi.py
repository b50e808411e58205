"""The runtime table's ABI: a third party's capsule is taken when it fits, and refused with both versions when not."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

from accel import _core
from accel.errors import AbiMismatch, InvalidArgument

HEADER = Path(__file__).resolve().parents[2] / "csrc" / "include" / "accel" / "runtime.h"
CAPSULE = b"accel.runtime"

_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def slots() -> list[str]:
    """Members of AccelRuntime in order, read from the header, so that this file needs no second copy."""
    text = HEADER.read_text(encoding="utf-8")
    body = re.search(r"typedef struct AccelRuntime \{(.*?)\} AccelRuntime;", text, re.DOTALL)
    assert body is not None
    code = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    names = []
    for declaration in filter(None, (part.strip() for part in code.split(";"))):
        pointer = re.search(r"\(\*(\w+)\)\(", declaration)
        names.append(pointer[1] if pointer else declaration.split()[-1].lstrip("*"))
    return names


def optional_slots() -> set[str]:
    return set(re.findall(r"\(\*(\w+)\)\([^;]*;\s*/\* \(optional\)", HEADER.read_text(encoding="utf-8")))


_INTEGERS = {
    "struct_size": ctypes.c_size_t,
    "abi_major": ctypes.c_uint32,
    "abi_minor": ctypes.c_uint32,
    "tracks_accesses": ctypes.c_int32,
}
_STATUS = ctypes.CFUNCTYPE(ctypes.c_int)


def _fields() -> list[tuple[str, Any]]:
    return [(name, _INTEGERS.get(name, ctypes.c_void_p)) for name in slots()]


class Table(ctypes.Structure):
    """AccelRuntime as the header has it."""

    _fields_ = _fields()


def table(**changes: Any) -> Table:
    """A table whose slots are all filled (none of them is called)."""
    filler = ctypes.cast(_STATUS(lambda: 0), ctypes.c_void_p).value
    made = Table()
    for name, kind in Table._fields_:
        setattr(made, name, filler if kind is ctypes.c_void_p else 0)
    made.struct_size = ctypes.sizeof(Table)
    made.abi_major, made.abi_minor = _core.host_runtime().abi
    made.name = ctypes.cast(ctypes.c_char_p(b"fake"), ctypes.c_void_p).value
    made.build_tag = ctypes.cast(ctypes.c_char_p(b"fake build"), ctypes.c_void_p).value
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def capsule(made: Table, name: bytes = CAPSULE) -> Any:
    return _new(ctypes.addressof(made), name, None)


def test_the_headers_layout_is_understood() -> None:
    assert slots()[:5] == ["struct_size", "abi_major", "abi_minor", "name", "build_tag"]
    assert slots()[-4:] == ["stream_is_inline", "work_address", "device_stop", "device_ended"]
    assert {"memory_info", "stream_gate", "event_elapsed"} <= optional_slots()


def test_the_host_table() -> None:
    runtime = _core.host_runtime()
    assert runtime.name == "host"
    assert runtime.abi == (1, 1)
    assert f"runtime ABI {runtime.abi[0]}.{runtime.abi[1]}" in runtime.build_tag
    assert runtime.device_count() == 1
    with pytest.raises(InvalidArgument, match="host device 1 does not exist"):
        runtime.open(1, "host:1")


def test_a_table_that_fits_is_taken() -> None:
    made = table()
    runtime = _core.runtime_from_capsule(capsule(made), "test")
    assert (runtime.name, runtime.build_tag) == ("fake", "fake build")


def test_a_later_minor_version_is_taken() -> None:
    made = table(abi_minor=7, struct_size=ctypes.sizeof(Table) + 64)
    assert _core.runtime_from_capsule(capsule(made), "test").abi == (1, 7)


def test_a_table_of_the_first_version_is_taken() -> None:
    short = Table.work_address.offset
    made = table(abi_minor=0, struct_size=short, work_address=1, device_stop=1)  # what lies behind it is not read
    assert _core.runtime_from_capsule(capsule(made), "test").abi == (1, 0)
    made = table(abi_minor=0, struct_size=short - 1)
    with pytest.raises(AbiMismatch, match=f"{short - 1} bytes"):
        _core.runtime_from_capsule(capsule(made), "test")


@pytest.mark.parametrize("major", [0, 2, 2**32 - 1])
def test_another_major_version_is_refused(major: int) -> None:
    made = table(abi_major=major)
    with pytest.raises(AbiMismatch, match=rf"mychip has ABI {major}\.1 .* takes ABI 1\.1") as raised:
        _core.runtime_from_capsule(capsule(made), "mychip")
    assert "rebuild mychip" in str(raised.value)


@pytest.mark.parametrize("size", [0, 8, 16, 24, ctypes.sizeof(Table) - 1])
def test_a_short_table_is_refused(size: int) -> None:
    made = table(struct_size=size)
    with pytest.raises(AbiMismatch, match=f"{size} bytes"):
        _core.runtime_from_capsule(capsule(made), "test")


#: Needed only where another, optional slot is filled.
COMPANIONS = {"gate_open", "gate_destroy"}


@pytest.mark.parametrize("slot", sorted(set(slots()) - optional_slots() - set(_INTEGERS) - COMPANIONS))
def test_an_empty_slot_is_refused_by_name(slot: str) -> None:
    made = table(**{slot: None})
    with pytest.raises(AbiMismatch, match=f"slot {slot} empty"):
        _core.runtime_from_capsule(capsule(made), "test")


def test_an_optional_slot_may_be_empty() -> None:
    made = table(
        memory_info=None,
        host_register=None,
        host_unregister=None,
        stream_gate=None,
        gate_open=None,
        gate_destroy=None,
        event_elapsed=None,
        work_address=None,
        device_stop=None,
        device_ended=None,
    )
    assert _core.runtime_from_capsule(capsule(made), "test").name == "fake"


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        ("host_register", "host_unregister"),
        ("device_stop", "device_ended"),
        ("device_ended", "device_stop"),
        ("stream_gate", "gate_open"),
        ("stream_gate", "gate_destroy"),
    ],
)
def test_slots_that_belong_together_come_together(present: str, wanted: str) -> None:
    made = table(**{wanted: None})
    assert getattr(made, present)
    with pytest.raises(AbiMismatch, match=f"slot {wanted} empty"):
        _core.runtime_from_capsule(capsule(made), "test")


def test_a_capsule_of_another_name_is_refused() -> None:
    made = table()
    with pytest.raises(InvalidArgument, match=r"not named accel\.runtime"):
        _core.runtime_from_capsule(capsule(made, b"something.else"), "test")
