"""Kunlun XPUs: find the cards, the driver, XRE and an XPU build of Paddle, without loading any of them.

XRE 5 is CUDA-shaped: it installs ``libcudart.so.12`` and ``libcuda.so.1`` under NVIDIA's sonames. So XRE is
recognised by its own names (``libxpurt``, ``libxpucuda``) or by `maker`, never by a CUDA name alone.

Sources: Paddle's installation guide (``lspci -d 1d22:`` and ``2057:``, device 3684 = R200 generation, 3686-3689 =
P800), a public XRE manual (the card's function has class 1200, a second one has 0780), public P800 reports (/dev/xpu0,
/dev/xpuctrl, /proc/kunlun/version, /usr/local/xcudart), Paddle's launcher (order of the visible lists).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from accel.backends._makers import XPU, maker
from accel.backends._paddle import paddle_build
from accel.backends._pci import accelerators
from accel.backends._system import Library, System
from accel.backends._vendor import Card, Missing, Survey, VendorBackend, first_set, locate, mapped
from accel.visible import parse_visible

__all__ = ["XpuBackend"]

_PCI_VENDORS = frozenset({0x1D22, 0x2057})
_P800_DEVICES = range(0x3686, 0x368A)
_R200_DEVICE = 0x3684
_RUNTIME_NAMES = ("libxpurt.so", "libxpucuda.so", "libxpucuda.so.1")
#: Names that other vendors use as well; they count only when `maker` says they are Kunlun's.
_SHARED_NAMES = ("libcudart.so.12", "libcuda.so.1")
_SDK_DIRS = ("/usr/local/xpu/so", "/usr/local/xpu/lib", "/usr/local/xpu/lib64", "/usr/local/xcudart/lib")
_INSTALL_DRIVER = (
    "install XRE (its driver is the kernel module kunlun: modprobe kunlun) and check with xpu-smi; "
    "for a container: docker run --device=/dev/xpu0 --device=/dev/xpuctrl"
)
_INSTALL_PADDLE = (
    "python -m pip install paddlepaddle-xpu -i https://www.paddlepaddle.org.cn/packages/stable/xpu-p800/ "
    "(after uninstalling paddlepaddle)"
)


class XpuBackend(VendorBackend):
    """Kunlun XPUs."""

    name = "xpu"
    priority = 200
    vendor = "Kunlun"

    def survey(self) -> Survey:
        system = self.system
        cards = _cards(system)
        variable, value, notes = first_set(
            system, "XPULINK_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
        )
        visible = parse_visible(value, mapped(cards), variable=variable)
        visible = visible.select(system.env("FLAGS_selected_xpus"), variable="FLAGS_selected_xpus")
        library, _ = _runtime(system)
        return Survey(
            absent=Missing(
                "no Kunlun card: no accelerator of PCI vendor 1d22 or 2057 and no /dev/xpu0",
                "plug in a card; in a container pass it on: docker run --device=/dev/xpu0 --device=/dev/xpuctrl",
            ),
            cards=cards,
            visible=visible,
            paddle=paddle_build(system),
            versions={
                "driver": _driver_version(system),
                "sdk": system.first_line("/usr/local/xpu/version.txt", "/usr/local/xpu/version"),
                "runtime library": library.real if library is not None else "",
            },
            notes=notes + _traps(system, bool(cards)),
        )

    def missing(self, survey: Survey) -> Iterator[Missing]:
        yield from _missing_driver(self.system)
        yield from _missing_runtime(self.system, survey.paddle.libs)
        if survey.paddle.kind != "xpu":
            yield Missing(f"Paddle {survey.paddle.describe()} is not an XPU build", _INSTALL_PADDLE)


def _cards(system: System) -> tuple[Card, ...]:
    """Cards by node number; by PCI address where there are no nodes. Which node is which function is not told."""
    functions = accelerators(system, _PCI_VENDORS)
    nodes = system.device_nodes(r"xpu(\d+)")
    if not nodes:
        return tuple(
            Card(_model(item.device), details={"pci": item.address, "pci id": item.id, "kernel driver": item.driver})
            for item in functions
        )
    models = {_model(item.device) for item in functions}
    name = models.pop() if len(models) == 1 else "Kunlun XPU"
    return tuple(Card(name, details={"node": node}) for _, node in nodes)


def _model(device: int) -> str:
    if device in _P800_DEVICES:
        return "Kunlun P800"
    return "Kunlun R200 generation" if device == _R200_DEVICE else f"Kunlun XPU {device:04x}"


def _runtime(system: System) -> tuple[Library | None, bool]:
    """(XRE's runtime, True where the loader finds it)."""
    home = system.env("XRE_PATH") or ""
    dirs = (*((f"{home}/so",) if home.startswith("/") else ()), *_SDK_DIRS)
    library, on_path = locate(system, _RUNTIME_NAMES, dirs)
    if library is not None:
        return library, on_path
    for name in _SHARED_NAMES:
        shared = system.find_library(name)
        if shared is not None and maker(system, shared) == XPU:
            return shared, True
    return None, False


def _missing_driver(system: System) -> Iterator[Missing]:
    if not system.device_nodes(r"xpu(\d+)"):
        yield Missing("the Kunlun driver is not loaded or not passed on: no /dev/xpu0", _INSTALL_DRIVER)
    elif not system.exists("/dev/xpuctrl"):
        yield Missing("the Kunlun driver is incomplete here: no /dev/xpuctrl", _INSTALL_DRIVER)


def _missing_runtime(system: System, paddle_libs: str) -> Iterator[Missing]:
    """XRE on the loader's path, or the copy that an XPU build of Paddle brings in ``paddle/libs``."""
    library, on_path = _runtime(system)
    bundled = System(python_path=()).list_dir(paddle_libs) if paddle_libs else []
    if on_path or any(name.startswith(("libxpurt.so", "libxpucuda.so")) for name in bundled):
        return
    if library is None:
        yield Missing(
            "XRE is not installed: libxpurt.so is not on the loader's path",
            "install XRE 5, or an XPU build of Paddle, which brings it: " + _INSTALL_PADDLE,
        )
    else:
        folder = library.path.rpartition("/")[0]
        yield Missing(
            f"XRE is not on the loader's path: {library.name} is in {folder}",
            f"export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH",
        )


def _traps(system: System, present: bool) -> tuple[str, ...]:
    """Settings known to break a working machine."""
    notes = []
    if present and system.env("XPU_DUMMY_EVENT") is not None:
        notes.append("XPU_DUMMY_EVENT is set: events then order nothing; unset it")
    if present and system.env("XPU_EVENT_KL3_ENABLE") == "1":
        notes.append("XPU_EVENT_KL3_ENABLE=1 is reported to hang with collectives; unset it")
    driver = system.find_library("libcuda.so.1")
    if present and driver is not None and maker(system, driver) != XPU:
        notes.append(f"libcuda.so.1 is not Kunlun's but {driver.real}: put XRE's folder first in LD_LIBRARY_PATH")
    return tuple(notes)


def _driver_version(system: System) -> str:
    """From ``/proc/kunlun/version``: the tenth word of the line with KUNLUN in it."""
    for line in system.read_text("/proc/kunlun/version").splitlines():
        words = line.split()
        if "KUNLUN" in line and len(words) >= 10 and re.fullmatch(r"v?\d+(\.\w+)+\W*", words[9]):
            return words[9]
    return system.first_line("/sys/module/kunlun/version")
