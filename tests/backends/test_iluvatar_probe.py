"""The probe for Iluvatar cards on fabricated machines: CoreX is told from CUDA although it has CUDA's names."""

from __future__ import annotations

from typing import Any

import pytest

from accel.backend import LogicalId, Probe, ProbeState
from accel.backends.gpu.backend import GpuBackend
from accel.backends.iluvatar.backend import IluvatarBackend
from accel.errors import BackendUnavailable


def probe(machine: Any) -> Probe:
    return IluvatarBackend(machine.system).probe()


def notes(found: Probe) -> str:
    return "\n".join(found.notes)


@pytest.fixture
def ready(machine: Any) -> Any:
    """Nodes 2 and 3 of a host, CoreX on the loader's path, Paddle with the plug-in. Only accel's module is missing."""
    machine.iluvatar_card(2, "0000:4b:00.0")
    machine.iluvatar_card(3, "0000:4c:00.0")
    machine.install_corex()
    machine.env["LD_LIBRARY_PATH"] = "/usr/local/corex/lib64"
    machine.paddle("cpu")
    machine.distribution("paddle-iluvatar-gpu")
    return machine


def test_a_bare_machine_is_absent_and_says_what_was_looked_for(machine: Any) -> None:
    found = probe(machine)
    assert found.state is ProbeState.ABSENT
    assert "1e3e" in found.reason
    assert "/dev/iluvatar0" in found.reason
    assert found.hint


def test_cuda_names_of_corex_are_claimed_here_and_not_by_the_gpu_backend(ready: Any) -> None:
    assert probe(ready).reason == "this build of accel has no iluvatar kernels"
    other = GpuBackend(ready.system).probe()
    assert other.state is ProbeState.ABSENT
    assert "libcuda.so.1 is Iluvatar's" in other.reason


def test_the_reason_names_the_first_missing_thing_in_order(machine: Any) -> None:
    machine.pci("0000:4b:00.0", "1e3e", "0002", "120000")
    assert "no /dev/iluvatar0" in probe(machine).reason
    machine.file("/dev/iluvatar0")
    assert "CoreX is not installed: no libcuda.so.1" in probe(machine).reason
    machine.install_corex()
    assert "CoreX is not on the loader's path" in probe(machine).reason
    assert "LD_LIBRARY_PATH=/usr/local/corex/lib64" in probe(machine).hint
    assert "LD_PRELOAD=/usr/local/corex/lib64/libcuda.so.1" in probe(machine).hint
    machine.env["LD_PRELOAD"] = "/usr/local/corex/lib64/libcuda.so.1"
    assert "libcudart.so is not" in probe(machine).reason or "libcudart.so by name" in probe(machine).reason
    machine.env["LD_LIBRARY_PATH"] = "/usr/local/corex/lib"
    assert probe(machine).reason == "Paddle is not installed"
    machine.paddle("cpu")
    assert "has no plug-in iluvatar_gpu" in probe(machine).reason
    machine.distribution("paddle-iluvatar-gpu")
    assert "no iluvatar kernels" in probe(machine).reason
    machine.accel_module("iluvatar")
    assert probe(machine).state is ProbeState.AVAILABLE


def test_nvidias_driver_first_on_the_path_is_named(ready: Any) -> None:
    ready.install_nvidia("/opt/nv/lib")
    ready.env["LD_LIBRARY_PATH"] = "/opt/nv/lib:/usr/local/corex/lib64"
    found = probe(ready)
    assert "libcuda.so.1 is not CoreX's: the loader finds /opt/nv/lib/libcuda.so.1" in found.reason
    assert "LD_PRELOAD" in found.hint
    ready.env["LD_PRELOAD"] = "/usr/local/corex/lib64/libcuda.so.1"
    assert "no iluvatar kernels" in probe(ready).reason


def test_corex_in_another_place_is_known_by_its_variable(machine: Any) -> None:
    machine.iluvatar_card(0)
    machine.files("/srv/sdk/lib64/libcuda.so.1", "/srv/sdk/lib64/libcudart.so")
    machine.env.update(COREX_HOME="/srv/sdk", LD_LIBRARY_PATH="/srv/sdk/lib64")
    assert probe(machine).reason == "Paddle is not installed"


@pytest.mark.parametrize("kind", ["cuda", "rocm", "xpu"])
def test_another_build_of_paddle_cannot_take_the_plug_in(ready: Any, kind: str) -> None:
    ready.paddle(kind, version="3.3.0")
    assert f"({kind}" in probe(ready).reason
    assert "is not the CPU build" in probe(ready).reason


def test_the_plug_ins_file_counts_as_its_wheel_does(machine: Any) -> None:
    machine.iluvatar_card(0)
    machine.install_corex()
    machine.env["LD_LIBRARY_PATH"] = "/usr/local/corex/lib64"
    machine.paddle("cpu")
    folder = machine.site / "paddle_custom_device"
    folder.mkdir()
    (folder / "libpaddle-iluvatar-gpu.so").touch()
    assert "no iluvatar kernels" in probe(machine).reason


def test_devices_count_from_zero_whatever_the_numbers_of_the_nodes(ready: Any) -> None:
    devices = probe(ready).devices
    assert [(info.logical, info.physical, info.details["node"]) for info in devices] == [
        (0, "0", "/dev/iluvatar2"),
        (1, "1", "/dev/iluvatar3"),
    ]


def test_a_container_without_sys_and_the_older_nodes_are_cards(machine: Any) -> None:
    machine.files("/dev/aip_bi0", "/dev/aip_bi1")
    found = probe(machine)
    assert found.state is ProbeState.UNUSABLE
    assert len(found.devices) == 2


def test_visible_lists_hide_cards_and_contradictions_are_notes(ready: Any) -> None:
    ready.env.update(CUDA_VISIBLE_DEVICES="1", ILUVATAR_GPU_VISIBLE_DEVICES="0")
    found = probe(ready)
    assert [info.physical for info in found.devices] == ["1"]
    assert "ILUVATAR_GPU_VISIBLE_DEVICES='0' contradicts CUDA_VISIBLE_DEVICES='1'" in notes(found)
    ready.env["CUDA_VISIBLE_DEVICES"] = ""
    assert "none is visible" in probe(ready).reason


def test_versions_are_read(ready: Any) -> None:
    ready.file("/usr/local/corex-4.3.0/version.txt", "4.3.0\n")
    ready.file("/sys/module/iluvatar/version", "4.3.0-driver\n")
    found = probe(ready)
    assert found.versions["sdk"] == "4.3.0"
    assert found.versions["driver"] == "4.3.0-driver"
    assert found.versions["paddle distributions"] == "paddle-iluvatar-gpu 3.3.1, paddlepaddle 3.3.1"


def test_open_refuses_with_the_reason(ready: Any) -> None:
    with pytest.raises(BackendUnavailable, match="this build of accel has no iluvatar kernels"):
        IluvatarBackend(ready.system).open(LogicalId(0))
