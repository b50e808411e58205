"""Hygon DCUs: find the cards, the driver, DTK and a ROCm build of Paddle, without loading any of them.

DTK is a fork of ROCm: the node is AMD's ``/dev/kfd``, Paddle's build is the ROCm one and its places are CUDA places.
So a card is known by the vendor id (PCI or KFD topology), never by the node, and this backend is asked before the one
for CUDA.

Sources: public ``lspci`` listings of DCUs (vendor 1d94, class 0380 or 0b40; 54b7 Z100, 55b7 Z100L, 62b7 K100, 6210
K100_AI), Linux ``/sys/class/kfd/kfd/topology`` (vendor_id, drm_render_minor, unique_id), public DTK notes (/dev/mkfd,
/opt/hyhal, modules hydcu and hycu, ``libgalaxyhip.so.5``, env.sh), ROCm's "GPU isolation" page (the visible lists and
that they compose).
"""

from __future__ import annotations

from collections.abc import Iterator

from accel.backends._makers import AMD, maker
from accel.backends._paddle import paddle_build
from accel.backends._pci import accelerators
from accel.backends._system import System
from accel.backends._vendor import Card, Missing, Survey, VendorBackend, first_set, locate, mapped
from accel.visible import VisibleDevices, parse_visible

__all__ = ["DcuBackend"]

_VENDOR_ID = 0x1D94
_MODELS = {0x54B7: "Hygon Z100", 0x55B7: "Hygon Z100L", 0x62B7: "Hygon K100", 0x6210: "Hygon K100_AI"}
_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"
#: Signs that a /dev/kfd is Hygon's and not AMD's, for containers without /sys.
_HYGON_SIGNS = ("/dev/mkfd", "/sys/module/hycu", "/sys/module/hydcu", "/opt/hyhal")
_HIP_NAMES = ("libgalaxyhip.so.5", "libgalaxyhip.so", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so")
_SOURCE_ENV = "source /opt/dtk/env.sh && export LD_LIBRARY_PATH=/opt/dtk/hip/lib:$LD_LIBRARY_PATH"
_INSTALL_DRIVER = (
    "install the Hygon driver (modprobe hycu, or hydcu) and check with hy-smi; for a container: docker run "
    "--device=/dev/kfd --device=/dev/mkfd --device=/dev/dri --group-add video -v /opt/hyhal:/opt/hyhal"
)
_INSTALL_PADDLE = (
    "python -m pip install paddlepaddle-dcu -i https://www.paddlepaddle.org.cn/packages/stable/dcu/ "
    "(after uninstalling paddlepaddle)"
)


class DcuBackend(VendorBackend):
    """Hygon DCUs."""

    name = "dcu"
    priority = 400
    vendor = "Hygon"

    def survey(self) -> Survey:
        system = self.system
        cards = _cards(system)
        visible, notes = _visible(system, cards)
        return Survey(
            absent=Missing(
                "no Hygon DCU: no accelerator of PCI vendor 1d94, and no /dev/kfd of Hygon's driver",
                "plug in a card; in a container pass it on: "
                "docker run --device=/dev/kfd --device=/dev/mkfd --device=/dev/dri",
            ),
            cards=cards,
            visible=visible,
            paddle=paddle_build(system),
            versions={
                "driver": system.first_line("/sys/module/hycu/version", "/sys/module/hydcu/version"),
                "hyhal": system.first_line("/opt/hyhal/.info/version"),
                "sdk": system.first_line(*(f"/opt/dtk/.info/version{end}" for end in ("", "-libs", "-dev"))),
            },
            notes=notes,
        )

    def missing(self, survey: Survey) -> Iterator[Missing]:
        yield from _missing_driver(self.system)
        yield from _missing_hip(self.system)
        if survey.paddle.kind != "rocm":
            yield Missing(f"Paddle {survey.paddle.describe()} is not a ROCm build", _INSTALL_PADDLE)


def _cards(system: System) -> tuple[Card, ...]:
    """Cards in the order of the KFD topology, which is HIP's; else by PCI address, else by render node."""
    nodes = _topology_cards(system)
    if nodes:
        return nodes
    functions = accelerators(system, {_VENDOR_ID})
    if functions:
        return tuple(
            Card(
                _MODELS.get(item.device, f"Hygon DCU {item.device:04x}"),
                details={"pci": item.address, "pci id": item.id, "kernel driver": item.driver},
            )
            for item in functions
        )
    if system.exists("/dev/kfd") and any(system.exists(path) for path in _HYGON_SIGNS):
        return tuple(Card("Hygon DCU", details={"node": node}) for node in _render_nodes(system))
    return ()


def _topology_cards(system: System) -> tuple[Card, ...]:
    """Hygon's nodes of the KFD topology whose render node this process has ("key value" lines, decimal)."""
    found = []
    rendered = {node.removeprefix("/dev/dri/renderD") for node in _render_nodes(system)}
    for node in sorted(
        (name for name in system.list_dir(_TOPOLOGY) if name.isdigit()), key=lambda name: (len(name), name)
    ):
        pairs = (line.split() for line in system.read_text(f"{_TOPOLOGY}/{node}/properties").splitlines())
        facts = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
        minor = facts.get("drm_render_minor", "")
        if facts.get("vendor_id") != str(_VENDOR_ID) or minor not in rendered:
            continue
        uuid = _uuid(facts.get("unique_id", ""))
        details = {"node": f"/dev/dri/renderD{minor}", "uuid": uuid, "gfx": facts.get("gfx_target_version", "")}
        device = int(facts["device_id"]) if facts.get("device_id", "").isdigit() else 0
        found.append(Card(_MODELS.get(device, f"Hygon DCU {device:04x}"), uuid, details))
    return tuple(found)


def _uuid(unique_id: str) -> str:
    """ROCr's identifier of a card: "GPU-" and the unique id as 16 hexadecimal digits; empty where the card has none."""
    if not (unique_id.isascii() and unique_id.isdigit()) or len(unique_id) > 20 or int(unique_id) == 0:
        return ""
    return f"GPU-{int(unique_id):016x}"


def _render_nodes(system: System) -> list[str]:
    return [f"/dev/dri/{name}" for name in system.list_dir("/dev/dri") if name.startswith("renderD")]


def _visible(system: System, cards: tuple[Card, ...]) -> tuple[VisibleDevices, tuple[str, ...]]:
    """ROCr applies its list first; HIP then indexes into what that left, by its own list or else by CUDA's."""
    visible = parse_visible(system.env("ROCR_VISIBLE_DEVICES"), mapped(cards), variable="ROCR_VISIBLE_DEVICES")
    variable, value, notes = first_set(system, "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    visible = visible.restrict(value, variable=variable)
    visible = visible.select(system.env("FLAGS_selected_gpus"), variable="FLAGS_selected_gpus")
    if system.env("HIP_VISIBLE_DEVICES") is not None and system.env("CUDA_VISIBLE_DEVICES") is None:
        notes += ("Paddle's launcher reads only CUDA_VISIBLE_DEVICES: set it like HIP_VISIBLE_DEVICES",)
    return visible, notes


def _missing_driver(system: System) -> Iterator[Missing]:
    if not system.exists("/dev/kfd"):
        yield Missing("the Hygon driver is not loaded or not passed on: no /dev/kfd", _INSTALL_DRIVER)
    elif not _render_nodes(system):
        yield Missing("the Hygon driver is incomplete here: no /dev/dri/renderD*", _INSTALL_DRIVER)


def _missing_hip(system: System) -> Iterator[Missing]:
    library, on_path = locate(system, _HIP_NAMES, ("/opt/dtk/hip/lib", "/opt/dtk/lib", "/opt/dtk/lib64"))
    if library is None:
        yield Missing("DTK is not installed: no libgalaxyhip.so.5 in /opt/dtk", f"install DTK, then {_SOURCE_ENV}")
    elif maker(system, library) == AMD:
        yield Missing(f"{library.name} is AMD's, not DTK's: {library.path} -> {library.real}", _SOURCE_ENV)
    elif not on_path:
        folder = library.path.rpartition("/")[0]
        yield Missing(f"DTK is not on the loader's path: {library.name} is in {folder}", _SOURCE_ENV)
