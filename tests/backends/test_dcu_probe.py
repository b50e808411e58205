"""The probe for Hygon DCUs on fabricated machines: told from AMD by its ids, and from CUDA before CUDA is asked."""

from __future__ import annotations

from typing import Any

import pytest

from accel.backend import LogicalId, Probe, ProbeState
from accel.backends.dcu.backend import DcuBackend
from accel.backends.gpu.backend import GpuBackend
from accel.errors import BackendUnavailable


def probe(machine: Any) -> Probe:
    return DcuBackend(machine.system).probe()


def notes(found: Probe) -> str:
    return "\n".join(found.notes)


@pytest.fixture
def ready(machine: Any) -> Any:
    """Two cards, DTK on the loader's path, a ROCm build of Paddle. Only accel's own module is missing."""
    machine.dcu_card(0, "0000:07:00.0", unique_id=0xAB)
    machine.dcu_card(1, "0000:0a:00.0", unique_id=0xCD)
    machine.install_dtk()
    machine.env["LD_LIBRARY_PATH"] = "/opt/dtk/hip/lib:/opt/dtk/cuda/lib64"
    machine.paddle("rocm", "paddlepaddle-dcu", "3.1.0")
    return machine


def test_a_bare_machine_is_absent_and_says_what_was_looked_for(machine: Any) -> None:
    found = probe(machine)
    assert found.state is ProbeState.ABSENT
    assert "1d94" in found.reason
    assert "/dev/kfd" in found.reason
    assert found.hint


def test_cuda_names_of_dtk_and_a_rocm_paddle_are_claimed_here_and_not_by_the_gpu_backend(ready: Any) -> None:
    assert probe(ready).reason == "this build of accel has no dcu kernels"
    other = GpuBackend(ready.system).probe()
    assert other.state is ProbeState.ABSENT
    assert "libcuda.so.1 is Hygon's" in other.reason


def test_the_bridges_of_the_vendors_cpus_are_no_cards(machine: Any) -> None:
    machine.pci("0000:00:00.0", "1d94", "1450", "060000")
    machine.pci("0000:02:00.2", "1d94", "1456", "108000")
    assert probe(machine).state is ProbeState.ABSENT


@pytest.mark.parametrize("class_code", ["038000", "0b4000", "120000"])
def test_a_card_has_any_of_the_classes_seen_in_the_field(machine: Any, class_code: str) -> None:
    machine.pci("0000:07:00.0", "1d94", "62b7", class_code)
    found = probe(machine)
    assert found.state is ProbeState.UNUSABLE
    assert "no /dev/kfd" in found.reason
    assert found.devices[0].name == "Hygon K100"


def test_an_amd_card_is_not_ours(machine: Any) -> None:
    machine.pci("0000:03:00.0", "1002", "74a1", "120000", "amdgpu")
    machine.files("/dev/kfd", "/dev/dri/renderD128")
    machine.file("/sys/class/kfd/kfd/topology/nodes/1/properties", "vendor_id 4098\ndrm_render_minor 128\n")
    assert probe(machine).state is ProbeState.ABSENT


def test_the_reason_names_the_first_missing_thing_in_order(machine: Any) -> None:
    machine.pci("0000:07:00.0", "1d94", "6210", "0b4000")
    assert "no /dev/kfd" in probe(machine).reason
    machine.file("/dev/kfd")
    assert "no /dev/dri/renderD" in probe(machine).reason
    machine.file("/dev/dri/renderD128")
    assert "DTK is not installed" in probe(machine).reason
    machine.install_dtk()
    assert "DTK is not on the loader's path: libgalaxyhip.so.5 is in /opt/dtk/hip/lib" in probe(machine).reason
    assert "source /opt/dtk/env.sh" in probe(machine).hint
    machine.env["LD_LIBRARY_PATH"] = "/opt/dtk/hip/lib"
    assert "Paddle not installed is not a ROCm build" in probe(machine).reason
    machine.paddle("rocm")
    assert "no dcu kernels" in probe(machine).reason
    machine.accel_module("dcu")
    assert probe(machine).state is ProbeState.AVAILABLE


def test_a_cuda_build_of_paddle_is_no_rocm_build(ready: Any) -> None:
    ready.paddle("cuda")
    assert "Paddle 3.3.1 (cuda 12.6) is not a ROCm build" in probe(ready).reason


def test_amds_runtime_is_not_dtks(machine: Any) -> None:
    machine.dcu_card(0)
    machine.file("/opt/rocm-6.2.0/lib/libamdhip64.so.6")
    machine.env["LD_LIBRARY_PATH"] = "/opt/rocm-6.2.0/lib"
    assert "libamdhip64.so.6 is AMD's, not DTK's" in probe(machine).reason


def test_cards_come_from_the_topology_with_their_identifiers(ready: Any) -> None:
    devices = probe(ready).devices
    assert [info.name for info in devices] == ["Hygon K100_AI"] * 2
    assert [info.details["uuid"] for info in devices] == ["GPU-00000000000000ab", "GPU-00000000000000cd"]
    assert devices[0].details["node"] == "/dev/dri/renderD128"
    assert devices[0].details["gfx"] == "90208"


def test_a_container_lists_only_the_cards_whose_nodes_it_has(ready: Any) -> None:
    (ready.root / "dev/dri/renderD128").unlink()
    assert [info.details["node"] for info in probe(ready).devices] == ["/dev/dri/renderD129"]


def test_a_container_without_sys_needs_a_sign_that_the_node_is_hygons(machine: Any) -> None:
    machine.files("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129")
    assert probe(machine).state is ProbeState.ABSENT
    machine.file("/dev/mkfd")
    found = probe(machine)
    assert found.state is ProbeState.UNUSABLE
    assert len(found.devices) == 2


def test_the_two_runtimes_lists_compose(ready: Any) -> None:
    ready.env["ROCR_VISIBLE_DEVICES"] = "GPU-00000000000000cd,0"
    assert [info.physical for info in probe(ready).devices] == ["1", "0"]
    ready.env.update(HIP_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="1")
    assert [info.physical for info in probe(ready).devices] == ["0"]


def test_the_frameworks_list_alone_is_honoured(ready: Any) -> None:
    ready.env["CUDA_VISIBLE_DEVICES"] = "1"
    assert [info.physical for info in probe(ready).devices] == ["1"]


def test_lists_that_contradict_each_other_are_notes(ready: Any) -> None:
    ready.env.update(HIP_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="0")
    assert "CUDA_VISIBLE_DEVICES='0' contradicts HIP_VISIBLE_DEVICES='1'" in notes(probe(ready))
    del ready.env["CUDA_VISIBLE_DEVICES"]
    assert "launcher reads only CUDA_VISIBLE_DEVICES" in notes(probe(ready))


@pytest.mark.parametrize("variable", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_a_list_that_hides_all_cards_is_named(ready: Any, variable: str) -> None:
    ready.env[variable] = ""
    found = probe(ready)
    assert found.state is ProbeState.UNUSABLE
    assert f'{variable}="" hides every device' in found.reason


def test_versions_are_read(ready: Any) -> None:
    ready.file("/opt/hyhal/.info/version", "1.2\n")
    found = probe(ready)
    assert found.versions["driver"] == "6.3.8-V1.9.2"
    assert found.versions["sdk"] == "26.04"
    assert found.versions["hyhal"] == "1.2"
    assert found.versions["paddle"] == "3.1.0 (rocm 6.3.26093)"


def test_open_refuses_with_the_reason(ready: Any) -> None:
    with pytest.raises(BackendUnavailable, match="this build of accel has no dcu kernels"):
        DcuBackend(ready.system).open(LogicalId(0))
