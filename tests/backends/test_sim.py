"""The sim backend says the truth about itself, and each profile behaves as it claims."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import accel
from accel import Support
from accel.backend import ProbeState
from accel.backends.sim.backend import SimBackend
from accel.backends.sim.profiles import PROFILES
from accel.errors import InvalidArgument, OutOfMemory, Unsupported

SOON = 30.0

every_profile = pytest.mark.parametrize("profile", PROFILES)


def test_the_probe_is_available_and_tells_the_build() -> None:
    probe = SimBackend().probe()
    assert probe.state is ProbeState.AVAILABLE
    assert probe.versions["accel module"].startswith(f"accel {accel.__version__}")


def test_auto_never_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEL_DEVICE", raising=False)
    assert SimBackend.priority < 0
    with accel.open("auto") as device:
        assert not device.name.startswith("sim")


def test_it_needs_no_framework() -> None:
    program = (
        "import sys, accel\n"
        "with accel.open('sim', memory=1 << 20) as device:\n"
        "    buffer = device.empty([4], 'float32')\n"
        "    device.fill(buffer, 0, device.current_stream())\n"
        "    device.view(buffer)\n"
        "    device.synchronize(30)\n"
        "assert 'paddle' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@every_profile
def test_no_capability_is_undefined_and_the_habits_are_the_profiles(profile: str) -> None:
    with accel.open("sim", profile=profile, memory=1 << 20) as device:
        for item in fields(device.capabilities):
            assert getattr(device.capabilities, item.name) is not None
        assert device.capabilities == PROFILES[profile].capabilities()
        assert device.info.details["profile"] == profile
        assert not device.capabilities.host_executed
        assert device.empty([3], "uint8").ptr % device.capabilities.alignment == 0


def test_warps_differ() -> None:
    assert {name: profile.warp_size for name, profile in PROFILES.items()} == {
        "gpu": 32,
        "dcu": 64,
        "iluvatar": 64,
        "xpu": 0,
    }


@every_profile
def test_memory_info_is_there_or_unsupported(profile: str) -> None:
    with accel.open("sim", profile=profile, memory=1 << 20) as device:
        if device.capabilities.memory_info is Support.NONE:
            with pytest.raises(Unsupported, match="memory_info"):
                device.memory()
        else:
            assert device.memory() == (1 << 20, 1 << 20)


@every_profile
def test_event_times_are_there_or_unsupported(profile: str) -> None:
    with accel.open("sim", profile=profile, memory=1 << 20) as device:
        if device.capabilities.event_timing is Support.NONE:
            with pytest.raises(Unsupported, match="event_timing"):
                device.event(timing=True)
        else:
            device.event(timing=True)


@every_profile
@pytest.mark.parametrize("seed", [None, 0])
def test_a_record_blocks_where_events_are_emulated_and_nowhere_else(profile: str, seed: int | None) -> None:
    # q = [gate, e!], and the gate is opened by another thread once the host has got so far
    with accel.open("sim", profile=profile, memory=1 << 20, seed=seed) as device:
        stream, event = device.stream(), device.event()
        gate, recorded = stream.gate(), threading.Event()

        def record() -> None:
            event.record(stream)
            recorded.set()

        thread = threading.Thread(target=record)
        thread.start()
        if device.capabilities.events is Support.NATIVE:
            assert recorded.wait(SOON)
            assert not event.query()
            gate.open()
        else:
            assert not recorded.wait(0.05)
            gate.open()
            assert recorded.wait(SOON)
            assert event.query()
        thread.join(SOON)
        device.synchronize(SOON)


@every_profile
def test_every_profile_gives_the_same_bytes(profile: str) -> None:
    with accel.open("sim", profile=profile, memory=1 << 20) as device:
        buffer, host, event = device.empty([64], "uint8"), np.zeros(64, np.uint8), device.event()
        compute, copies = device.current_stream(), device.stream()
        device.copy(buffer, np.arange(64, dtype=np.uint8), compute)
        event.record(compute)
        copies.wait(event)
        device.copy(host, buffer, copies)
        copies.synchronize(SOON)
        assert host.tolist() == list(range(64))
        assert device.sim.races() == []  # type: ignore[attr-defined]


@every_profile
def test_short_memory_is_one_typed_error(profile: str) -> None:
    with accel.open("sim", profile=profile, memory=1 << 16) as device:
        held = device.empty([1 << 16], "uint8")
        with pytest.raises(OutOfMemory) as raised:
            device.empty([1], "uint8")
        assert raised.value.values["total"] == 1 << 16
        del held
        device.empty([1 << 16], "uint8")


@every_profile
def test_an_allocation_waits_for_what_was_dropped(profile: str) -> None:
    # compute = [gate, free of all memory], and another thread opens the gate
    with accel.open("sim", profile=profile, memory=1 << 16) as device:
        held, freed = device.empty([1 << 16], "uint8"), device.sim.counters  # type: ignore[attr-defined]
        gate = device.current_stream().gate()
        del held
        assert freed()["frees"] == 0
        opener = threading.Thread(target=gate.open)
        opener.start()
        again = device.empty([1 << 16], "uint8")
        opener.join(SOON)
        assert again.nbytes == 1 << 16
        assert freed()["frees"] == 1


@pytest.mark.parametrize("feature", ["peer_copy", "ipc", "graph_capture"])
def test_what_is_none_is_declared(feature: str) -> None:
    assert all(getattr(profile.capabilities(), feature) is Support.NONE for profile in PROFILES.values())


def test_what_is_not_there_is_unsupported() -> None:
    with accel.open("sim", memory=1 << 20) as device:
        with pytest.raises(Unsupported, match="eagerly"):
            device.capture()
        with pytest.raises(Unsupported, match="no place"):
            _ = device.place
        device.empty_cache()


def test_host_memory_is_registered_once() -> None:
    with accel.open("sim", memory=1 << 20) as device:
        host = np.zeros(4096, np.uint8)
        registration = device.register_host(host)
        with pytest.raises(InvalidArgument, match="overlaps"):
            device.register_host(host[:1])
        registration.close()
        device.register_host(host[:1]).close()
        with pytest.raises(InvalidArgument, match="is device memory"):
            device.register_host(device.empty([8], "uint8"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": "abacus"}, "profile is 'abacus'; known: gpu, dcu, iluvatar, xpu"),
        ({"memory": 0}, "memory is 0"),
        ({"memory": 1.5}, "memory is 1.5"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"threads": 0}, "threads is 0"),
        ({"check": 1}, "check is 1"),
        ({"colour": 1}, "unknown option 'colour'"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        accel.open("sim", **options)


def test_there_is_one() -> None:
    with pytest.raises(InvalidArgument, match="sim:1 is out of range"):
        accel.open("sim:1")
