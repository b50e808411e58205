"""PCI functions from sysfs: which cards are plugged in, whether or not a driver knows them.

Source of the layout: Linux ``Documentation/ABI/testing/sysfs-bus-pci`` (vendor, device and class are hexadecimal text)
and the PCI code and ID assignment specification (base classes).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from accel.backends._system import System

__all__ = ["PCI_ROOT", "PciFunction", "accelerators"]

PCI_ROOT = "/sys/bus/pci/devices"
#: Base class 03 is a display controller, 12 a processing accelerator; 0b40 is a co-processor. A vendor's id alone does
#: not make a card: NVIDIA's covers audio functions and switches, Hygon's the host bridges of its CPUs.
_DISPLAY, _ACCELERATOR, _CO_PROCESSOR = 0x03, 0x12, 0x0B40


@dataclass(frozen=True)
class PciFunction:
    """One PCI function; `address` is ``domain:bus:slot.function``, `driver` is empty where none is bound."""

    address: str
    vendor: int
    device: int
    class_code: int
    driver: str = ""

    @property
    def id(self) -> str:
        """``vendor:device`` in hexadecimal, as lspci -n prints it."""
        return f"{self.vendor:04x}:{self.device:04x}"


def accelerators(system: System, vendors: Collection[int]) -> list[PciFunction]:
    """The compute and display functions of `vendors`, by address. Entries with unreadable ids are left out."""
    found = []
    for address in system.list_dir(PCI_ROOT):
        vendor = _hexadecimal(system.read_text(f"{PCI_ROOT}/{address}/vendor"))
        if vendor is None or vendor not in vendors:
            continue
        device = _hexadecimal(system.read_text(f"{PCI_ROOT}/{address}/device"))
        class_code = _hexadecimal(system.read_text(f"{PCI_ROOT}/{address}/class"))
        if device is None or class_code is None or not _is_compute(class_code):
            continue
        driver = system.resolve(f"{PCI_ROOT}/{address}/driver")
        bound = driver.rsplit("/", 1)[-1] if system.exists(driver) else ""
        found.append(PciFunction(address, vendor, device, class_code, bound))
    return found


def _is_compute(class_code: int) -> bool:
    return class_code >> 16 in (_DISPLAY, _ACCELERATOR) or class_code >> 8 == _CO_PROCESSOR


def _hexadecimal(text: str) -> int | None:
    try:
        return int(text, 16) if len(text) <= 12 else None
    except ValueError:
        return None
