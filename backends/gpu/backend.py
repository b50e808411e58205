"""NVIDIA GPUs: find the cards, the driver, the CUDA runtime and a CUDA build of Paddle, without loading any of them.

Sources: NVIDIA driver README (``/proc/driver/nvidia``), CUDA programming guide (environment variables), Paddle's
installation guide. PCI vendor 10de. A library named ``libcuda.so.1`` is only taken for NVIDIA's after `maker` has
ruled out the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from accel.backends._makers import maker
from accel.backends._paddle import paddle_build
from accel.backends._pci import PciFunction, accelerators
from accel.backends._system import System
from accel.backends._vendor import Card, Missing, Survey, VendorBackend, first_set, mapped
from accel.visible import parse_visible

__all__ = ["GpuBackend"]

_PCI_VENDOR = 0x10DE
_PROC = "/proc/driver/nvidia"
_DRIVER_NAMES = ("libcuda.so.1",)
_RUNTIME_NAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
_INSTALL_DRIVER = "install the NVIDIA driver and check with nvidia-smi; for a container: docker run --gpus all"
_INSTALL_RUNTIME = "python -m pip install nvidia-cuda-runtime-cu12, or add the CUDA toolkit's lib64 to LD_LIBRARY_PATH"
_INSTALL_PADDLE = (
    "python -m pip install paddlepaddle-gpu -i https://www.paddlepaddle.org.cn/packages/stable/cu126/ "
    "(after uninstalling paddlepaddle)"
)


class GpuBackend(VendorBackend):
    """NVIDIA GPUs."""

    name = "gpu"
    priority = 100
    vendor = "NVIDIA"

    def survey(self) -> Survey:
        system = self.system
        cards, order_known = _cards(system)
        variable, value, notes = first_set(system, "CUDA_VISIBLE_DEVICES")
        visible = parse_visible(value, mapped(cards), variable=variable, opaque=("MIG-",))
        visible = visible.select(system.env("FLAGS_selected_gpus"), variable="FLAGS_selected_gpus")
        if not order_known:
            notes += ("cards differ and CUDA_DEVICE_ORDER is not PCI_BUS_ID: CUDA may number them in another order",)
        return Survey(
            absent=_absent(system),
            cards=tuple(cards),
            visible=visible,
            paddle=paddle_build(system),
            versions={"driver": _driver_version(system), "sdk": _toolkit_version(system)},
            notes=notes,
        )

    def missing(self, survey: Survey) -> Iterator[Missing]:
        yield from _missing_driver(self.system)
        yield from _missing_runtime(self.system)
        if survey.paddle.kind != "cuda":
            yield Missing(f"Paddle {survey.paddle.describe()} is not a CUDA build", _INSTALL_PADDLE)


def _cards(system: System) -> tuple[list[Card], bool]:
    """Cards in the order of their PCI addresses, and whether CUDA must number them so.

    The nodes decide: a container sees every PCI function of the host, but only the nodes it was given.
    """
    functions = {function.address: function for function in accelerators(system, {_PCI_VENDOR})}
    nodes = system.device_nodes(r"nvidia(\d+)")
    if not nodes:
        return [_from_pci(function) for function in functions.values()], True
    by_minor = _driver_cards(system, functions)
    known = [by_minor[minor] for minor, _ in nodes if minor in by_minor]
    if len(known) != len(nodes):
        return [Card("NVIDIA GPU", details={"node": node}) for _, node in nodes], True
    known.sort(key=lambda card: card.details["pci"])
    same = len({card.name for card in known}) == 1
    return known, same or system.env("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def _from_pci(function: PciFunction) -> Card:
    details = {"pci": function.address, "pci id": function.id, "kernel driver": function.driver or "none"}
    return Card(f"NVIDIA GPU {function.id}", details=details)


def _driver_cards(system: System, functions: dict[str, PciFunction]) -> dict[int, Card]:
    """Cards by node number, from ``/proc/driver/nvidia/gpus/<address>/information`` ("Key: value" lines)."""
    found = {}
    for address in system.list_dir(f"{_PROC}/gpus"):
        lines = system.read_text(f"{_PROC}/gpus/{address}/information").splitlines()
        facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        minor = facts.get("Device Minor", "")
        if not (minor.isascii() and minor.isdigit() and len(minor) < 6):
            continue
        uuid = facts.get("GPU UUID", "")
        uuid = uuid if uuid.startswith("GPU-") and "?" not in uuid else ""
        details = {"pci": address, "node": f"/dev/nvidia{int(minor)}", "uuid": uuid}
        if address in functions:
            details["pci id"] = functions[address].id
        found[int(minor)] = Card(facts.get("Model") or "NVIDIA GPU", uuid, details)
    return found


def _absent(system: System) -> Missing:
    reason = "no NVIDIA card: no display function of PCI vendor 10de and no /dev/nvidia0"
    library = system.find_library(*_DRIVER_NAMES)
    other = maker(system, library) if library is not None else ""
    if library is not None and other:
        reason += f" ({library.path} is {other}'s)"
    return Missing(reason, "plug in a card; in a container pass it on: docker run --gpus all")


def _missing_driver(system: System) -> Iterator[Missing]:
    if not system.device_nodes(r"nvidia(\d+)"):
        yield Missing("the NVIDIA driver is not loaded or not passed on: no /dev/nvidia0", _INSTALL_DRIVER)
    elif not system.exists("/dev/nvidiactl"):
        yield Missing("the NVIDIA driver is incomplete here: no /dev/nvidiactl", _INSTALL_DRIVER)
    library = system.find_library(*_DRIVER_NAMES)
    if library is None:
        yield Missing("the driver library libcuda.so.1 is not on the loader's path", _INSTALL_DRIVER)
    elif other := maker(system, library):
        yield Missing(
            f"libcuda.so.1 is {other}'s, not NVIDIA's: {library.path} -> {library.real}",
            "put the folder of NVIDIA's libcuda.so.1 first in LD_LIBRARY_PATH, and drop the other from LD_PRELOAD",
        )


def _missing_runtime(system: System) -> Iterator[Missing]:
    """The runtime of the toolkit, or that of the pip packages Paddle's wheel depends on."""
    library = system.find_library(*_RUNTIME_NAMES, also=("/usr/local/cuda/lib64",))
    if library is not None and not maker(system, library):
        return
    if any(_pip_runtime(system)):
        return
    if library is None:
        yield Missing(f"no CUDA runtime: {_RUNTIME_NAMES[1]} is not on the loader's path", _INSTALL_RUNTIME)
    else:
        other = maker(system, library)
        yield Missing(f"{library.name} is {other}'s, not NVIDIA's: {library.path} -> {library.real}", _INSTALL_RUNTIME)


def _pip_runtime(system: System) -> Iterator[str]:
    """Runtimes in site-packages: ``nvidia/cuda_runtime/lib`` for CUDA 12 and before, ``nvidia/cu13/lib`` for 13."""
    for directory in system.package_dirs():
        for folder in ("cuda_runtime", "cu13"):
            for name in _RUNTIME_NAMES:
                file = os.path.join(directory, "nvidia", folder, "lib", name)
                if os.path.isfile(file):
                    yield file


def _driver_version(system: System) -> str:
    match = re.search(r"\s(\d{3,4}\.\d+(?:\.\d+)?)\b", system.read_text(f"{_PROC}/version"))
    return match[1] if match is not None else system.first_line("/sys/module/nvidia/version")


def _toolkit_version(system: System) -> str:
    match = re.search(
        r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([\d.]+)"', system.read_text("/usr/local/cuda/version.json")
    )
    return match[1] if match is not None else system.first_line("/usr/local/cuda/version.txt")
