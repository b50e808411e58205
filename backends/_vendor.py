"""What the probes of all cards have in common: the order of the checks, and how findings become a `Probe`.

::

    no card ───────────────────────────────────────────> ABSENT
    card ─ hidden by a list? ─ driver ─ SDK library ─ Paddle build ─ accel module ─ all there ──> AVAILABLE
               └──────────────────┴──────────┴────────────┴──────────────┴─ first one missing ──> UNUSABLE

Invariant: the reason names the first missing thing in this order, so that fixing it moves the reason on to the next.
No vendor's name is in here: each backend fills a `Survey` and yields its `Missing` parts.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import chain
from typing import Any, ClassVar

from accel.backend import Backend, Device, DeviceInfo, LogicalId, PhysicalId, Probe, ProbeState
from accel.backends._paddle import PaddleBuild
from accel.backends._pci import PCI_ROOT
from accel.backends._system import Library, System
from accel.errors import BackendUnavailable, InvalidArgument
from accel.visible import PhysicalDevice, VisibleDevices

__all__ = ["Card", "Missing", "Survey", "VendorBackend", "first_set", "locate", "mapped"]

_FIRST = LogicalId(0)


@dataclass(frozen=True)
class Card:
    """A card in the driver's order. `details` is what is known of it (pci, node, uuid, architecture)."""

    name: str
    uuid: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    """The first thing that keeps a card from being used: what, and the command or setting that changes it."""

    reason: str
    hint: str


@dataclass(frozen=True)
class Survey:
    """What a machine has of one vendor. `absent` is the reason to give where there are no cards."""

    absent: Missing
    cards: tuple[Card, ...]
    visible: VisibleDevices
    paddle: PaddleBuild
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()


class VendorBackend(Backend):
    """Base of the backends for cards: `survey` says what is here, `missing` what is not, in the order of the module."""

    #: The vendor's name, for people.
    vendor: ClassVar[str]

    def __init__(self, system: System | None = None) -> None:
        self.system = system if system is not None else System()

    @abstractmethod
    def survey(self) -> Survey:
        """Read the machine. Never raises."""

    @abstractmethod
    def missing(self, survey: Survey) -> Iterator[Missing]:
        """Driver, SDK library and Paddle build, each only if it is missing. Never raises."""

    def probe(self) -> Probe:
        survey = self.survey()
        versions = _versions(survey, self._module_path())
        notes = (*survey.visible.notes, *survey.notes)
        if not survey.cards:
            reason = survey.absent.reason + _not_searched(self.system)
            return Probe(ProbeState.ABSENT, reason, survey.absent.hint, versions=versions, notes=notes)
        devices = self._devices(survey)
        problem = next(chain(_hidden(survey), self.missing(survey), self._missing_module()), None)
        if problem is not None:
            return Probe(ProbeState.UNUSABLE, problem.reason, problem.hint, devices, versions, notes)
        ready = f"{_count(len(devices))} ready"
        return Probe(ProbeState.AVAILABLE, ready, devices=devices, versions=versions, notes=notes)

    def open(self, index: LogicalId = _FIRST, **options: Any) -> Device:
        probe = self.probe()
        if not probe.available:
            raise BackendUnavailable(probe.reason, hint=probe.hint, backend=self.name)
        if not 0 <= index < len(probe.devices):
            raise InvalidArgument(
                f"device index {index} is out of range: {_count(len(probe.devices))} visible",
                backend=self.name,
                index=int(index),
                limit=len(probe.devices),
            )
        module = importlib.import_module(f"accel.backends.{self.name}.device")
        device: Device = module.open_device(probe.devices[index], **options)
        return device

    def _devices(self, survey: Survey) -> tuple[DeviceInfo, ...]:
        by_id = {PhysicalId(str(number)): card for number, card in enumerate(survey.cards)}
        found = []
        for number in range(len(survey.visible)):
            logical = LogicalId(number)
            physical = survey.visible.physical(logical)
            card = by_id.get(physical, Card(f"{self.vendor} device {physical}"))
            found.append(DeviceInfo(card.name, self.vendor, logical, physical, details=dict(card.details)))
        return tuple(found)

    def _module_path(self) -> str:
        """The compiled module and the device that uses it, both of which a build of accel may lack."""
        folder = self.system.package_dir / self.name
        if not (folder / "device.py").is_file():
            return ""
        names = (f"_native{suffix}" for suffix in EXTENSION_SUFFIXES)
        return next((str(folder / name) for name in names if (folder / name).is_file()), "")

    def _missing_module(self) -> Iterator[Missing]:
        if not self._module_path():
            yield Missing(
                f"this build of accel has no {self.name} kernels",
                f"use another device; backends/{self.name}/README.md says what is there yet",
            )


def mapped(cards: Sequence[Card]) -> list[PhysicalDevice]:
    """Cards as `parse_visible` takes them: numbered in the driver's order."""
    return [PhysicalDevice(PhysicalId(str(number)), card.uuid) for number, card in enumerate(cards)]


def first_set(system: System, *variables: str) -> tuple[str, str | None, tuple[str, ...]]:
    """(variable, value, notes) of the first of `variables` that is set; a note where a later one says otherwise."""
    values = [(name, value) for name in variables if (value := system.env(name)) is not None]
    if not values:
        return variables[0], None, ()
    (name, value), others = values[0], values[1:]
    notes = tuple(
        f"{other}={text!r} contradicts {name}={value!r}; the latter is taken, set both alike"
        for other, text in others
        if text.replace(" ", "") != value.replace(" ", "")
    )
    return name, value, notes


def locate(system: System, names: Sequence[str], elsewhere: Sequence[str]) -> tuple[Library | None, bool]:
    """(library, True where the loader finds it by name). `elsewhere` are folders it does not search by itself."""
    library = system.find_library(*names)
    if library is not None:
        return library, True
    return system.find_library(*names, also=elsewhere), False


def _not_searched(system: System) -> str:
    """What an ABSENT could not look into: absence is only as good as the search."""
    closed = [place for place in (PCI_ROOT, "/dev") if system.refused(place)]
    if closed:
        return f"; {' and '.join(closed)} may not be read by this user"
    return "" if system.exists(PCI_ROOT) else f"; there is no {PCI_ROOT} here, so the bus was not searched"


def _hidden(survey: Survey) -> Iterator[Missing]:
    if not len(survey.visible):
        why = survey.visible.notes[-1] if survey.visible.notes else f"{survey.visible.variable} leaves none"
        yield Missing(
            f"{_count(len(survey.cards))} present, but none is visible to this process: {why}",
            f"unset {survey.visible.variable}, or list devices 0 to {len(survey.cards) - 1} in it",
        )


def _versions(survey: Survey, module: str) -> dict[str, str]:
    versions = {key: value for key, value in survey.versions.items() if value}
    versions["paddle"] = survey.paddle.describe()
    if survey.paddle.distributions:
        versions["paddle distributions"] = ", ".join(survey.paddle.distributions)
    versions["accel module"] = module.rsplit("/", 1)[-1] or "none"
    return versions


def _count(number: int) -> str:
    return f"{number} device" if number == 1 else f"{number} devices"
