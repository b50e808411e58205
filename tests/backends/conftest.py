"""Machines made of files: a test says what is plugged in and installed, and a probe reads it as if it were real.

All vendors' trees are fabricated from the sources named in the backends' modules; none was copied from hardware.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from accel.backends._system import System

_PADDLE_FIELDS = {
    "cpu": {},
    "cuda": {"cuda_version": "'12.6'"},
    # A ROCm build fills the CUDA field as well, or may.
    "rocm": {"cuda_version": "'12.0'", "hip_version": "'6.3.26093'"},
    "xpu": {"xpu_xre_version": "'5.0.21.21'"},
}


class Machine:
    """A file tree with an environment; `system` is what a backend is given."""

    def __init__(self, base: Path) -> None:
        self.root = base / "root"
        self.root.mkdir()
        self.site = base / "site"
        self.site.mkdir()
        self.package = base / "backends"
        self.package.mkdir()
        self.env: dict[str, str] = {}

    @property
    def system(self) -> System:
        return System(self.root, self.env, [str(self.site)], self.package)

    def file(self, path: str, content: str | bytes = "") -> Path:
        target = Path(f"{self.root}{path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        return target

    def files(self, *paths: str) -> None:
        for path in paths:
            self.file(path)

    def link(self, path: str, target: str) -> None:
        """A symbolic link; an absolute target means one within this machine."""
        place = Path(f"{self.root}{path}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def pci(self, address: str, vendor: str, device: str, class_code: str, driver: str = "") -> None:
        folder = f"/sys/bus/pci/devices/{address}"
        for name, value in (("vendor", vendor), ("device", device), ("class", class_code)):
            self.file(f"{folder}/{name}", f"0x{value}\n")
        if driver:
            self.files(f"/sys/bus/pci/drivers/{driver}/bind")
            self.link(f"{folder}/driver", f"/sys/bus/pci/drivers/{driver}")

    def paddle(self, kind: str, distribution: str = "paddlepaddle", version: str = "3.3.1") -> None:
        fields = {"full_version": f"'{version}'", "cuda_version": "'False'", "hip_version": "None"}
        fields |= {"xpu_xre_version": "'False'", **_PADDLE_FIELDS[kind]}
        text = "import inspect\n" + "".join(f"{key:<16} = {value}\n" for key, value in fields.items())
        for name, content in (
            ("paddle/__init__.py", "raise SystemExit('imported')"),
            ("paddle/version/__init__.py", text),
        ):
            target = self.site / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)
        self.distribution(distribution, version)

    def distribution(self, name: str, version: str = "3.3.1") -> None:
        (self.site / f"{name.replace('-', '_')}-{version}.dist-info").mkdir()

    def accel_module(self, name: str) -> None:
        """What a build of accel with this backend's device would have beside its probe."""
        from importlib.machinery import EXTENSION_SUFFIXES

        folder = self.package / name
        folder.mkdir()
        (folder / "device.py").touch()
        (folder / f"_native{EXTENSION_SUFFIXES[0]}").touch()

    # The shims: CUDA's names, other makers.

    def install_xre(self, folder: str = "/usr/local/xcudart/lib") -> None:
        self.file(f"{folder}/libcudart.so.12.9.1.kunlun")
        self.link(f"{folder}/libcudart.so.12", "libcudart.so.12.9.1.kunlun")
        self.file(f"{folder}/libxpucuda.so.515.58.kunlun")
        self.link(f"{folder}/libcuda.so.1", "libxpucuda.so.515.58.kunlun")
        self.link(f"{folder}/libxpucuda.so", "libxpucuda.so.515.58.kunlun")
        self.file(f"{folder}/libxpurt.so")

    def install_corex(self, folder: str = "/usr/local/corex-4.3.0") -> None:
        self.files(f"{folder}/lib/libcudart.so.10.2", f"{folder}/lib/libcuda.so.1", f"{folder}/lib/libixml.so")
        self.link(f"{folder}/lib/libcudart.so", "libcudart.so.10.2")
        self.link(f"{folder}/lib64", "lib")
        self.link("/usr/local/corex", folder)

    def install_dtk(self, folder: str = "/opt/dtk-26.04") -> None:
        self.files(f"{folder}/hip/lib/libgalaxyhip.so.5", f"{folder}/cuda/lib64/libcudart.so.12")
        self.files(f"{folder}/cuda/lib64/libcuda.so.1")
        self.link(f"{folder}/hip/lib/libamdhip64.so", "libgalaxyhip.so.5")
        self.file(f"{folder}/.info/version", "26.04\n")
        self.link("/opt/dtk", folder)

    def install_nvidia(self, folder: str = "/usr/lib/x86_64-linux-gnu") -> None:
        self.file(f"{folder}/libcuda.so.550.54.14")
        self.link(f"{folder}/libcuda.so.1", "libcuda.so.550.54.14")
        self.file(f"{folder}/libcudart.so.12.4.127")
        self.link(f"{folder}/libcudart.so.12", "libcudart.so.12.4.127")

    def nvidia_card(self, minor: int, address: str, uuid: str, model: str = "NVIDIA H100") -> None:
        self.pci(address, "10de", "2330", "030200", "nvidia")
        self.files(f"/dev/nvidia{minor}", "/dev/nvidiactl")
        information = f"Model: \t\t {model}\nIRQ:   \t\t 31\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        self.file(f"/proc/driver/nvidia/gpus/{address}/information", information)
        self.file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 2024\nGCC version: 12.3\n",
        )

    def xpu_card(self, number: int, address: str = "0000:37:00.0") -> None:
        self.pci(address, "1d22", "3688", "120000", "kunlun")
        self.files(f"/dev/xpu{number}", "/dev/xpuctrl")

    def iluvatar_card(self, number: int, address: str = "0000:4b:00.0") -> None:
        self.pci(address, "1e3e", "0002", "120000", "iluvatar")
        self.files(f"/dev/iluvatar{number}")

    def dcu_card(self, number: int, address: str = "0000:07:00.0", unique_id: int = 0) -> None:
        self.pci(address, "1d94", "6210", "0b4000", "hycu")
        minor = 128 + number
        self.files("/dev/kfd", "/dev/mkfd", f"/dev/dri/renderD{minor}")
        self.file(
            f"/sys/class/kfd/kfd/topology/nodes/{number + 1}/properties",
            f"simd_count 480\nvendor_id {0x1D94}\ndevice_id {0x6210}\ndrm_render_minor {minor}\n"
            f"unique_id {unique_id}\ngfx_target_version 90208\n",
        )
        self.file("/sys/module/hycu/version", "6.3.8-V1.9.2\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
