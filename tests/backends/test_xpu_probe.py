"""The probe for Kunlun XPUs on fabricated machines: XRE is told from CUDA although it has CUDA's names."""

from __future__ import annotations

from typing import Any

import pytest

from accel.backend import LogicalId, Probe, ProbeState
from accel.backends.gpu.backend import GpuBackend
from accel.backends.xpu.backend import XpuBackend
from accel.errors import BackendUnavailable


def probe(machine: Any) -> Probe:
    return XpuBackend(machine.system).probe()


def notes(found: Probe) -> str:
    return "\n".join(found.notes)


@pytest.fixture
def ready(machine: Any) -> Any:
    """Two cards, XRE on the loader's path, an XPU build of Paddle. Only accel's own module is missing."""
    machine.xpu_card(0, "0000:37:00.0")
    machine.xpu_card(1, "0000:38:00.0")
    machine.install_xre()
    machine.env["LD_LIBRARY_PATH"] = "/usr/local/xcudart/lib"
    machine.paddle("xpu", "paddlepaddle-xpu")
    return machine


def test_a_bare_machine_is_absent_and_says_what_was_looked_for(machine: Any) -> None:
    found = probe(machine)
    assert found.state is ProbeState.ABSENT
    assert "1d22" in found.reason
    assert "/dev/xpu0" in found.reason
    assert found.hint


def test_cuda_names_of_kunlun_are_claimed_here_and_not_by_the_gpu_backend(ready: Any) -> None:
    assert probe(ready).state is ProbeState.UNUSABLE
    assert probe(ready).reason == "this build of accel has no xpu kernels"
    other = GpuBackend(ready.system).probe()
    assert other.state is ProbeState.ABSENT
    assert "libcuda.so.1 is Kunlun's" in other.reason


def test_the_cuda_layer_alone_is_a_runtime(machine: Any) -> None:
    machine.xpu_card(0)
    machine.file("/usr/lib/libcudart.so.12.9.1.kunlun")
    machine.link("/usr/lib/libcudart.so.12", "libcudart.so.12.9.1.kunlun")
    machine.paddle("xpu")
    found = probe(machine)
    assert "no xpu kernels" in found.reason
    assert found.versions["runtime library"] == "/usr/lib/libcudart.so.12.9.1.kunlun"


def test_nvidias_libraries_are_no_xre(machine: Any) -> None:
    machine.xpu_card(0)
    machine.install_nvidia()
    machine.paddle("cpu")
    found = probe(machine)
    assert "XRE is not installed" in found.reason
    assert "libcuda.so.1 is not Kunlun's" in notes(found)


def test_the_reason_names_the_first_missing_thing_in_order(machine: Any) -> None:
    machine.pci("0000:37:00.0", "1d22", "3688", "120000")
    assert "no /dev/xpu0" in probe(machine).reason
    machine.file("/dev/xpu0")
    assert "no /dev/xpuctrl" in probe(machine).reason
    machine.file("/dev/xpuctrl")
    assert "XRE is not installed" in probe(machine).reason
    machine.install_xre("/usr/local/xpu/so")
    assert "libxpurt.so is in /usr/local/xpu/so" in probe(machine).reason
    assert "LD_LIBRARY_PATH=/usr/local/xpu/so" in probe(machine).hint
    machine.env["LD_LIBRARY_PATH"] = "/usr/local/xpu/so"
    assert "Paddle not installed is not an XPU build" in probe(machine).reason
    machine.paddle("xpu")
    assert "no xpu kernels" in probe(machine).reason
    machine.accel_module("xpu")
    assert probe(machine).state is ProbeState.AVAILABLE


def test_the_runtime_that_paddle_brings_counts(machine: Any) -> None:
    machine.xpu_card(0)
    machine.paddle("xpu")
    (machine.site / "paddle/libs").mkdir()
    (machine.site / "paddle/libs/libxpurt.so").touch()
    assert "no xpu kernels" in probe(machine).reason


def test_a_rebuilt_wheel_under_the_plain_name_is_known_by_its_libraries(machine: Any) -> None:
    machine.xpu_card(0)
    machine.paddle("cpu", "paddlepaddle")
    (machine.site / "paddle/libs").mkdir()
    for name in ("libxpuapi.so", "libxpucuda.so"):
        (machine.site / "paddle/libs" / name).touch()
    found = probe(machine)
    assert "no xpu kernels" in found.reason
    assert found.versions["paddle"] == "3.3.1 (xpu)"


@pytest.mark.parametrize(("vendor", "class_code", "card"), [
    ("1d22", "120000", True), ("2057", "120000", True), ("1d22", "078000", False), ("1d22", "060400", False),
])  # fmt: skip
def test_only_accelerator_functions_of_the_vendors_ids_are_cards(
    machine: Any, vendor: str, class_code: str, card: bool
) -> None:
    machine.pci("0000:37:00.0", vendor, "3684", class_code)
    assert (probe(machine).state is ProbeState.UNUSABLE) is card


def test_models_are_named_by_their_pci_id(ready: Any) -> None:
    assert [info.name for info in probe(ready).devices] == ["Kunlun P800", "Kunlun P800"]


def test_a_container_without_sys_counts_its_nodes(machine: Any) -> None:
    machine.files("/dev/xpu2", "/dev/xpu3", "/dev/xpuctrl")
    found = probe(machine)
    assert found.state is ProbeState.UNUSABLE
    assert [info.details["node"] for info in found.devices] == ["/dev/xpu2", "/dev/xpu3"]


@pytest.mark.parametrize("variable", ["XPULINK_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_each_visible_list_is_honoured_and_an_empty_one_hides_all(ready: Any, variable: str) -> None:
    ready.env[variable] = "1"
    assert [info.physical for info in probe(ready).devices] == ["1"]
    ready.env[variable] = ""
    assert f'{variable}="" hides every device' in probe(ready).reason


def test_lists_that_contradict_each_other_are_a_note(ready: Any) -> None:
    ready.env.update(XPU_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="0")
    found = probe(ready)
    assert [info.physical for info in found.devices] == ["1"]
    assert "CUDA_VISIBLE_DEVICES='0' contradicts XPU_VISIBLE_DEVICES='1'" in notes(found)
    ready.env["CUDA_VISIBLE_DEVICES"] = " 1"
    assert "contradicts" not in notes(probe(ready))


def test_settings_known_to_break_a_machine_are_notes(ready: Any) -> None:
    ready.env.update(XPU_DUMMY_EVENT="1", XPU_EVENT_KL3_ENABLE="1")
    assert "XPU_DUMMY_EVENT is set" in notes(probe(ready))
    assert "XPU_EVENT_KL3_ENABLE=1" in notes(probe(ready))


def test_the_driver_version_is_the_tenth_word_or_the_modules(ready: Any) -> None:
    ready.file("/sys/module/kunlun/version", "5.0.21\n")
    assert probe(ready).versions["driver"] == "5.0.21"
    ready.file("/proc/kunlun/version", "header\na b KUNLUN c d e f g h 5.0.21.47 tail\n")
    assert probe(ready).versions["driver"] == "5.0.21.47"
    ready.file("/proc/kunlun/version", "KUNLUN in other words and with no version at all here\n")
    assert probe(ready).versions["driver"] == "5.0.21"


def test_open_refuses_with_the_reason(ready: Any) -> None:
    with pytest.raises(BackendUnavailable, match="this build of accel has no xpu kernels"):
        XpuBackend(ready.system).open(LogicalId(0))
