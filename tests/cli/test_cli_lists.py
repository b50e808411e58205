"""``accel devices``, ``doctor`` and ``ops``: their shapes, and that the first two load nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from accel.backend import Backend, Device, DeviceInfo, LogicalId, PhysicalId, Probe, ProbeState
from accel.ops.names import OP_NAMES
from accel.registry import registered

DEVICE_KEYS = {"device", "backend", "name", "vendor", "logical", "physical", "total_bytes", "details"}
BACKEND_KEYS = {"name", "state", "reason", "hint", "devices", "versions", "build", "notes"}


class Sick(Backend):
    """A backend whose card is there and whose stack is not."""

    name = "sick"
    priority = -1

    def probe(self) -> Probe:
        return Probe(ProbeState.UNUSABLE, "the driver is 1.0", "apt install driver-2.0", versions={"driver": "1.0"})

    def open(self, index: LogicalId = LogicalId(0), **options: Any) -> Device:
        raise NotImplementedError


class Twins(Backend):
    """Two devices, the second with spaces in its name."""

    name = "twins"
    priority = -1

    def probe(self) -> Probe:
        infos = tuple(
            DeviceInfo(f"Twin {n}", "Twins & Co", LogicalId(n), PhysicalId(f"T-{n}"), n << 30) for n in range(2)
        )
        return Probe(ProbeState.AVAILABLE, "two of them", devices=infos)

    def open(self, index: LogicalId = LogicalId(0), **options: Any) -> Device:
        raise NotImplementedError


def test_devices_json_has_the_documented_shape(run: Any) -> None:
    with registered(Twins):
        got = run("devices", "--json").json
    assert got.keys() == {"devices"}
    assert all(entry.keys() == DEVICE_KEYS for entry in got["devices"])
    names = [entry["device"] for entry in got["devices"]]
    assert "cpu:0" in names
    assert names[-2:] == ["twins:0", "twins:1"]
    assert got["devices"][-1]["total_bytes"] == 1 << 30


def test_devices_are_one_line_each_and_unusable_ones_are_pointed_out(run: Any) -> None:
    with registered(Twins), registered(Sick):
        got = run("devices")
    lines = got.out.splitlines()
    assert lines[0].split() == ["device", "name", "memory", "details"]
    assert [line.split()[0] for line in lines[-2:]] == ["twins:0", "twins:1"]
    assert "1.0 GiB" in lines[-1]
    assert "sick" in got.err
    assert "accel doctor" in got.err


def test_doctor_json_has_the_documented_shape(run: Any) -> None:
    got = run("doctor", "--json").json
    assert got.keys() == {"accel", "python", "backends"}
    assert all(entry.keys() == BACKEND_KEYS for entry in got["backends"])
    assert {"cpu", "gpu", "dcu", "iluvatar", "xpu"} <= {entry["name"] for entry in got["backends"]}


def test_doctor_explains_each_backend_in_one_line_with_what_fixes_it(run: Any) -> None:
    with registered(Sick):
        got = run("doctor")
        states = {entry["name"]: entry for entry in run("doctor", "--json").json["backends"]}
    lines = {line.split()[0]: line for line in got.out.splitlines()}
    assert lines.keys() == states.keys()
    for name, line in lines.items():
        assert line.split()[1] == states[name]["state"]
        assert " ".join(states[name]["reason"].split()) in line
        assert " ".join(states[name]["hint"].split()) in line
    assert lines["sick"].endswith("unusable   the driver is 1.0 [driver 1.0] -> apt install driver-2.0")
    assert "ABI" in lines["cpu"]


def test_ops_json_accounts_for_every_op(run: Any) -> None:
    got = run("ops", "--device", "cpu", "--json").json
    assert got.keys() == {"device", "ops"}
    assert got["device"] == "cpu:0"
    assert {entry["name"] for entry in got["ops"]} == OP_NAMES
    assert all(entry.keys() == {"name", "family", "kind", "note", "summary"} for entry in got["ops"])
    assert all(entry["kind"] in ("native", "library", "composed", "absent") for entry in got["ops"])
    assert all(entry["note"] for entry in got["ops"])


def test_ops_prints_a_line_an_op(run: Any) -> None:
    lines = run("ops", "--device", "cpu").out.splitlines()
    assert {line.split()[1] for line in lines[1:]} == OP_NAMES


@pytest.mark.parametrize("command", ["devices", "doctor", "--help", "--version"])
def test_no_framework_and_no_numpy_is_loaded(command: str) -> None:
    script = (
        "import sys; from accel.cli import main; code = main(sys.argv[1:])\n"
        "heavy = [name for name in ('paddle', 'numpy', 'accel.engine') if name in sys.modules]\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script, command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
