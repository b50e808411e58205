"""Iluvatar cards: find the cards, the driver, CoreX and the Paddle plug-in, without loading any of them.

CoreX installs ``libcudart`` and ``libcuda.so.1`` under NVIDIA's sonames, so those names count only when `maker` says
whose they are. Paddle itself is the CPU build; the device comes from a plug-in with the type ``iluvatar_gpu``.

Sources: public CoreX set-up scripts (``lspci -n | grep 1e3e``, /dev/iluvatar0 and the older /dev/aip_bi0, no control
node, /usr/local/corex/version.txt), FastDeploy's guide (LD_LIBRARY_PATH, LD_PRELOAD, wheels), a public GDS guide
(modprobe iluvatar), Paddle's launcher (``<TYPE>_VISIBLE_DEVICES``).
"""

from __future__ import annotations

from collections.abc import Iterator

from accel.backends._makers import ILUVATAR, maker
from accel.backends._paddle import PaddleBuild, paddle_build
from accel.backends._pci import accelerators
from accel.backends._system import System
from accel.backends._vendor import Card, Missing, Survey, VendorBackend, first_set, mapped
from accel.visible import parse_visible

__all__ = ["IluvatarBackend"]

_PCI_VENDOR = 0x1E3E
_NODE_PATTERN = r"(?:iluvatar|aip_bi)(\d+)"
_DRIVER_NAME = "libcuda.so.1"
_RUNTIME_NAMES = ("libcudart.so", "libcudart.so.10.2", "libcudart.so.12")
_PLUGIN = "iluvatar_gpu"
_INSTALL_DRIVER = (
    "install the CoreX driver (kernel module: modprobe iluvatar) and check with ixsmi; "
    "for a container: docker run --device=/dev/iluvatar0"
)
_INDEX = "https://www.paddlepaddle.org.cn/packages/stable"
_INSTALL_PADDLE = f"python -m pip install paddlepaddle -i {_INDEX}/cpu/"
_INSTALL_PLUGIN = f"python -m pip install paddle-iluvatar-gpu -i {_INDEX}/ixuca/"


class IluvatarBackend(VendorBackend):
    """Iluvatar cards."""

    name = "iluvatar"
    priority = 300
    vendor = "Iluvatar"

    def survey(self) -> Survey:
        system = self.system
        cards = _cards(system)
        # The runtime reads the first, Paddle's launcher only the second.
        variable, value, notes = first_set(system, "CUDA_VISIBLE_DEVICES", "ILUVATAR_GPU_VISIBLE_DEVICES")
        visible = parse_visible(value, mapped(cards), variable=variable)
        visible = visible.select(system.env("FLAGS_selected_iluvatar_gpus"), variable="FLAGS_selected_iluvatar_gpus")
        return Survey(
            absent=Missing(
                "no Iluvatar card: no accelerator of PCI vendor 1e3e and no /dev/iluvatar0",
                "plug in a card; in a container pass it on: docker run --device=/dev/iluvatar0",
            ),
            cards=cards,
            visible=visible,
            paddle=paddle_build(system),
            versions={
                "driver": system.first_line("/sys/module/iluvatar/version"),
                "sdk": system.first_line(f"{_home(system)}/version.txt", f"{_home(system)}/version"),
            },
            notes=notes,
        )

    def missing(self, survey: Survey) -> Iterator[Missing]:
        system = self.system
        if not system.device_nodes(_NODE_PATTERN):
            yield Missing("the CoreX driver is not loaded or not passed on: no /dev/iluvatar0", _INSTALL_DRIVER)
        yield from _missing_library(system, (_DRIVER_NAME,), preload=True)
        yield from _missing_library(system, _RUNTIME_NAMES, preload=False)
        yield from _missing_paddle(survey.paddle)


def _cards(system: System) -> tuple[Card, ...]:
    """Cards by node number, which is the host's: a container may have only 2 and 3, which its runtime counts from 0."""
    functions = accelerators(system, {_PCI_VENDOR})
    nodes = system.device_nodes(_NODE_PATTERN)
    if nodes:
        return tuple(Card("Iluvatar card", details={"node": node}) for _, node in nodes)
    return tuple(
        Card(f"Iluvatar card {item.id}", details={"pci": item.address, "pci id": item.id, "kernel driver": item.driver})
        for item in functions
    )


def _home(system: System) -> str:
    home = system.env("COREX_HOME") or ""
    return home.rstrip("/") if home.startswith("/") else "/usr/local/corex"


def _missing_library(system: System, names: tuple[str, ...], *, preload: bool) -> Iterator[Missing]:
    """A library of CoreX, found by the loader as CoreX's own. The driver library must come first, hence LD_PRELOAD."""
    home = _home(system)
    export = f"export LD_LIBRARY_PATH={home}/lib64:{home}/lib:$LD_LIBRARY_PATH"
    if preload:
        export += f" LD_PRELOAD={home}/lib64/{names[0]}"
    found = [library for name in names if (library := system.find_library(name)) is not None]
    if any(maker(system, library) == ILUVATAR for library in found):
        return
    paths = [f"{home}/{folder}/{name}" for folder in ("lib64", "lib") for name in names]
    installed = next((path for path in paths if system.exists(path)), "")
    if found:
        yield Missing(f"{names[0]} is not CoreX's: the loader finds {found[0].path} -> {found[0].real}", export)
    elif installed:
        yield Missing(f"CoreX is not on the loader's path: it does not find {installed} by name", export)
    else:
        yield Missing(f"CoreX is not installed: no {names[0]} in {home}", f"install the CoreX SDK, then {export}")


def _missing_paddle(paddle: PaddleBuild) -> Iterator[Missing]:
    if not paddle.kind:
        yield Missing("Paddle is not installed", f"{_INSTALL_PADDLE} && {_INSTALL_PLUGIN}")
    elif paddle.kind != "cpu":
        yield Missing(
            f"Paddle {paddle.describe()} is not the CPU build that the plug-in {_PLUGIN} needs",
            f"{_INSTALL_PADDLE} (after uninstalling the other) && {_INSTALL_PLUGIN}",
        )
    elif _PLUGIN not in paddle.plugins:
        yield Missing(f"Paddle {paddle.describe()} has no plug-in {_PLUGIN}", _INSTALL_PLUGIN)
