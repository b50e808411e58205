"""The probe for NVIDIA GPUs on fabricated machines: each state, its reason, and whose libcuda it is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from accel.backend import LogicalId, Probe, ProbeState
from accel.backends.dcu.backend import DcuBackend
from accel.backends.gpu.backend import GpuBackend
from accel.backends.iluvatar.backend import IluvatarBackend
from accel.backends.xpu.backend import XpuBackend
from accel.errors import BackendUnavailable

UUIDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-17ff0000-0000-0000-0000-000000000002")
ALL = (GpuBackend, DcuBackend, IluvatarBackend, XpuBackend)


def probe(machine: Any) -> Probe:
    return GpuBackend(machine.system).probe()


def notes(found: Probe) -> str:
    return "\n".join(found.notes)


@pytest.fixture
def ready(machine: Any) -> Any:
    """Two cards, driver, runtime and a CUDA build of Paddle. Only accel's own module is missing."""
    machine.nvidia_card(0, "0000:81:00.0", UUIDS[0])
    machine.nvidia_card(1, "0000:41:00.0", UUIDS[1])
    machine.install_nvidia()
    machine.paddle("cuda", "paddlepaddle-gpu")
    return machine


def test_a_bare_machine_is_absent_and_says_what_was_looked_for(machine: Any) -> None:
    found = probe(machine)
    assert found.state is ProbeState.ABSENT
    assert "10de" in found.reason
    assert "/dev/nvidia0" in found.reason
    assert found.hint
    assert found.devices == ()


def test_functions_of_the_vendor_that_are_no_gpu_are_no_card(machine: Any) -> None:
    machine.pci("0000:01:00.1", "10de", "22ba", "040300")  # audio
    machine.pci("0000:05:00.0", "10de", "22a3", "068000")  # NVSwitch
    assert probe(machine).state is ProbeState.ABSENT


def test_a_card_without_a_driver_is_unusable_and_names_the_node(machine: Any) -> None:
    machine.pci("0000:81:00.0", "10de", "2330", "030200")
    found = probe(machine)
    assert found.state is ProbeState.UNUSABLE
    assert "no /dev/nvidia0" in found.reason
    assert "driver" in found.hint
    assert found.devices[0].details["kernel driver"] == "none"


def test_the_reason_names_the_first_missing_thing_in_order(ready: Any) -> None:
    """Take everything away, give it back from the front, and watch the reason move on."""
    import shutil

    control, libraries = ready.root / "dev/nvidiactl", ready.root / "usr/lib/x86_64-linux-gnu"
    control.unlink()
    shutil.rmtree(libraries)
    shutil.rmtree(ready.site)
    ready.site.mkdir()

    assert "no /dev/nvidiactl" in probe(ready).reason
    control.touch()
    assert "libcuda.so.1 is not on the loader's path" in probe(ready).reason
    ready.file("/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    assert "no CUDA runtime" in probe(ready).reason
    ready.file("/usr/lib/x86_64-linux-gnu/libcudart.so.12")
    assert "Paddle not installed is not a CUDA build" in probe(ready).reason
    ready.paddle("cuda", "paddlepaddle-gpu")
    assert probe(ready).reason == "this build of accel has no gpu kernels"
    ready.accel_module("gpu")
    assert probe(ready).state is ProbeState.AVAILABLE
    assert probe(ready).reason == "2 devices ready"
    assert probe(ready).hint == ""


@pytest.mark.parametrize("kind", ["cpu", "rocm", "xpu"])
def test_another_build_of_paddle_is_named_and_a_rocm_one_is_no_cuda_build(ready: Any, kind: str) -> None:
    ready.paddle(kind)
    found = probe(ready)
    assert found.state is ProbeState.UNUSABLE
    assert f"({kind}" in found.reason
    assert "paddlepaddle-gpu" in found.hint


def test_the_runtime_of_the_pip_packages_counts(ready: Any) -> None:
    (ready.root / "usr/lib/x86_64-linux-gnu/libcudart.so.12").unlink()
    folder = ready.site / "nvidia/cuda_runtime/lib"
    folder.mkdir(parents=True)
    (folder / "libcudart.so.12").touch()
    assert "no gpu kernels" in probe(ready).reason


def test_versions_and_devices_are_read_from_the_driver(ready: Any) -> None:
    ready.file("/usr/local/cuda/version.json", '{"cuda" : {"name" : "CUDA SDK", "version" : "12.4.1"}}')
    found = probe(ready)
    assert found.versions["driver"] == "550.54.14"
    assert found.versions["sdk"] == "12.4.1"
    assert found.versions["paddle"] == "3.3.1 (cuda 12.6)"
    assert found.versions["paddle distributions"] == "paddlepaddle-gpu 3.3.1"
    # By PCI address, whatever the numbers of the nodes.
    assert [info.details["node"] for info in found.devices] == ["/dev/nvidia1", "/dev/nvidia0"]
    assert [info.details["uuid"] for info in found.devices] == [UUIDS[1], UUIDS[0]]
    assert found.devices[0].name == "NVIDIA H100"


def test_the_open_kernel_module_has_a_version_as_well(ready: Any) -> None:
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
    ready.file("/proc/driver/nvidia/version", line)
    assert probe(ready).versions["driver"] == "570.86.15"


def test_a_container_without_sys_and_proc_counts_its_nodes(machine: Any) -> None:
    machine.files("/dev/nvidia3", "/dev/nvidia5", "/dev/nvidiactl", "/dev/nvidia-uvm")
    found = probe(machine)
    assert found.state is ProbeState.UNUSABLE
    assert [info.details["node"] for info in found.devices] == ["/dev/nvidia3", "/dev/nvidia5"]
    assert [info.physical for info in found.devices] == ["0", "1"]


def test_a_container_with_some_of_the_hosts_cards_lists_only_those(ready: Any) -> None:
    (ready.root / "dev/nvidia0").unlink()
    assert [info.details["uuid"] for info in probe(ready).devices] == [UUIDS[1]]


def test_the_visible_list_maps_logical_to_physical(ready: Any) -> None:
    ready.env["CUDA_VISIBLE_DEVICES"] = "GPU-8932,0"
    found = probe(ready)
    assert [(info.logical, info.physical) for info in found.devices] == [(0, "1"), (1, "0")]
    ready.env["FLAGS_selected_gpus"] = "1"
    assert [info.physical for info in probe(ready).devices] == ["0"]


@pytest.mark.parametrize("value", ["", "-1", "7", "0,0", "none"])
def test_a_list_that_hides_all_cards_is_named(ready: Any, value: str) -> None:
    ready.env["CUDA_VISIBLE_DEVICES"] = value
    found = probe(ready)
    assert found.state is ProbeState.UNUSABLE
    assert "2 devices present, but none is visible" in found.reason
    assert "CUDA_VISIBLE_DEVICES" in found.reason
    assert found.hint.startswith("unset CUDA_VISIBLE_DEVICES")
    assert found.devices == ()


def test_a_bad_entry_is_a_note(ready: Any) -> None:
    ready.env["CUDA_VISIBLE_DEVICES"] = "1,9,0"
    found = probe(ready)
    assert len(found.devices) == 1
    assert "'9' is out of range" in notes(found)


def test_cards_that_differ_may_be_numbered_otherwise(ready: Any) -> None:
    ready.nvidia_card(2, "0000:91:00.0", "GPU-2", model="NVIDIA L4")
    assert "another order" in notes(probe(ready))
    ready.env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert "another order" not in notes(probe(ready))


@pytest.mark.parametrize(
    ("install", "folder", "maker"),
    [
        ("install_xre", "/usr/local/xcudart/lib", "Kunlun"),
        ("install_corex", "/usr/local/corex/lib64", "Iluvatar"),
        ("install_dtk", "/opt/dtk/cuda/lib64", "Hygon"),
    ],
)
def test_a_shim_alone_is_no_card_and_beside_a_card_it_is_named(
    machine: Any, install: str, folder: str, maker: str
) -> None:
    getattr(machine, install)()
    machine.env["LD_LIBRARY_PATH"] = folder
    found = probe(machine)
    assert found.state is ProbeState.ABSENT
    assert f"{folder}/libcuda.so.1 is {maker}'s" in found.reason

    machine.nvidia_card(0, "0000:81:00.0", UUIDS[0])
    machine.paddle("cuda")
    found = probe(machine)
    assert found.state is ProbeState.UNUSABLE
    assert f"libcuda.so.1 is {maker}'s, not NVIDIA's" in found.reason
    assert "LD_LIBRARY_PATH" in found.hint


@pytest.mark.parametrize(
    ("content", "maker"),
    [
        (b"\x7fELF\0libxpucuda.so.1\0", "Kunlun"),
        (b"\x7fELF\0iluvatar\0", "Iluvatar"),
        (b"\0libgalaxyhip.so.5\0", "Hygon"),
    ],
)
def test_a_shim_copied_without_its_links_is_known_by_its_content(machine: Any, content: bytes, maker: str) -> None:
    machine.nvidia_card(0, "0000:81:00.0", UUIDS[0])
    machine.file("/usr/lib/x86_64-linux-gnu/libcuda.so.1", content)
    assert f"libcuda.so.1 is {maker}'s" in probe(machine).reason


def test_a_shim_is_known_by_its_neighbours_but_not_in_a_system_folder(machine: Any) -> None:
    machine.nvidia_card(0, "0000:81:00.0", UUIDS[0])
    machine.files("/srv/libs/libcuda.so.1", "/srv/libs/libxpurt.so")
    machine.env["LD_LIBRARY_PATH"] = "/srv/libs"
    assert "libcuda.so.1 is Kunlun's" in probe(machine).reason
    machine.env["LD_LIBRARY_PATH"] = ""
    machine.install_nvidia()
    machine.file("/usr/lib/x86_64-linux-gnu/libxpurt.so")
    assert "Paddle not installed" in probe(machine).reason


@pytest.mark.parametrize(
    "home", ["/home/xpu/lib", "/home/corex", "/home/dtk/venv/lib/python3.10/site-packages/nvidia/lib"]
)
def test_a_user_called_like_an_sdk_makes_no_shim(machine: Any, home: str) -> None:
    machine.nvidia_card(0, "0000:81:00.0", UUIDS[0])
    folder = f"{home}/cuda/lib64"
    machine.install_nvidia(folder)
    machine.env["LD_LIBRARY_PATH"] = folder
    assert "Paddle not installed" in probe(machine).reason


def test_the_loaders_order_decides_whose_library_it_is(machine: Any) -> None:
    machine.nvidia_card(0, "0000:81:00.0", UUIDS[0])
    machine.paddle("cuda")
    machine.install_nvidia("/opt/nv/lib")
    machine.install_xre()
    machine.file("/etc/ld.so.conf", "# local\ninclude ld.so.conf.d/*.conf\n")
    machine.file("/etc/ld.so.conf.d/00-nv.conf", "/opt/nv/lib\n")
    machine.file("/etc/ld.so.conf.d/10-xre.conf", "/usr/local/xcudart/lib\n")
    assert "no gpu kernels" in probe(machine).reason
    machine.env["LD_PRELOAD"] = "/usr/local/xcudart/lib/libcuda.so.1"
    assert "libcuda.so.1 is Kunlun's" in probe(machine).reason


def test_two_vendors_cards_in_one_machine_are_each_claimed_once(machine: Any) -> None:
    machine.nvidia_card(0, "0000:81:00.0", UUIDS[0])
    machine.install_nvidia()
    machine.xpu_card(0)
    machine.install_xre()
    machine.env["LD_LIBRARY_PATH"] = "/usr/lib/x86_64-linux-gnu:/usr/local/xcudart/lib"
    machine.paddle("cuda")
    states = {kind.name: kind(machine.system).probe() for kind in ALL}
    assert states["gpu"].reason == "this build of accel has no gpu kernels"
    assert states["xpu"].reason == "Paddle 3.3.1 (cuda 12.6) is not an XPU build"
    assert states["dcu"].state is states["iluvatar"].state is ProbeState.ABSENT
    assert len(states["gpu"].devices) == len(states["xpu"].devices) == 1


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: str(kind.name))
def test_unreadable_folders_and_files_give_a_probe_that_says_so(
    machine: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by a stand-in and not by mode bits, which do not stop root."""
    machine.nvidia_card(0, "0000:81:00.0", UUIDS[0])
    machine.xpu_card(0)

    def refuse(path: Any, *_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        for name in ("os.listdir", "os.readlink", "builtins.open"):
            patch.setattr(name, refuse)
        found = kind(machine.system).probe()
    assert found.state is ProbeState.ABSENT
    assert "/sys/bus/pci/devices and /dev may not be read" in found.reason
    assert found.hint


def test_absence_without_sys_says_that_the_bus_was_not_searched(machine: Any) -> None:
    assert "there is no /sys/bus/pci/devices here, so the bus was not searched" in probe(machine).reason
    machine.pci("0000:00:00.0", "8086", "1237", "060000")
    assert "not searched" not in probe(machine).reason


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: str(kind.name))
@pytest.mark.parametrize("round_number", range(12))
def test_garbage_in_every_file_and_variable_gives_a_probe(machine: Any, kind: Any, round_number: int) -> None:
    noise = random.Random(round_number)
    machine.nvidia_card(0, "0000:81:00.0", UUIDS[0])
    machine.xpu_card(0)
    machine.iluvatar_card(0)
    machine.dcu_card(0)
    for install in (machine.install_nvidia, machine.install_xre, machine.install_corex, machine.install_dtk):
        install()
    machine.paddle("cuda")
    machine.file("/etc/ld.so.conf", "include /etc/ld.so.conf\ninclude\n/usr/local/xcudart/lib")
    machine.link("/dev/loop", "loop")
    for folder in (machine.root, machine.site):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and noise.random() < 0.5:
                path.write_bytes(
                    noise.choice([b"", b"\0", b"-1\n", b"9" * 5000, noise.randbytes(64), b"a b c\n: \n=\n"])
                )
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "COREX_HOME"):
        machine.env[name] = noise.choice(["", ",", "0,\0", "/\0", "../..", "é٣", "/usr/local/corex", ":" * 50])
    found = kind(machine.system).probe()
    assert isinstance(found, Probe)
    assert found.reason
    assert "\n" not in found.reason


def test_open_refuses_with_the_probes_reason_and_hint(machine: Any) -> None:
    backend = GpuBackend(machine.system)
    with pytest.raises(BackendUnavailable, match="no NVIDIA card") as caught:
        backend.open(LogicalId(0))
    assert caught.value.hint == backend.probe().hint
    assert caught.value.backend == "gpu"


def test_open_says_plainly_that_there_are_no_kernels(ready: Any) -> None:
    with pytest.raises(BackendUnavailable, match="this build of accel has no gpu kernels"):
        GpuBackend(ready.system).open()
