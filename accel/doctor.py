"""Why each backend is or is not usable here, as data: `diagnose` asks, the command line prints.

Invariant: one report for every registered backend, whatever its state; a broken one is reported, never raised. Imports
no framework: the probes read files, and so take well under half a second together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from accel.backend import DeviceInfo, Probe
from accel.errors import BackendUnavailable
from accel.registry import Registry, _shared

__all__ = ["BROKEN", "BackendReport", "diagnose"]

#: The state of a backend that cannot be asked: it does not load, or its probe fails.
BROKEN = "broken"
#: Keys of `Probe.versions` that tell how something was built, and those that are remarks.
_BUILD_KEYS = ("paddle", "paddle distributions", "accel module")


@dataclass(frozen=True)
class BackendReport:
    """What is known of one backend. `state` is that of the probe ("absent", "unusable", "available") or `BROKEN`."""

    name: str
    state: str
    reason: str
    hint: str = ""
    devices: tuple[DeviceInfo, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    build: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """One line for a person: name, state, reason and what changes it."""
        text = f"{self.name}: {self.state}: {self.reason}"
        return f"{text} -> {self.hint}" if self.hint else text

    def to_json(self) -> dict[str, object]:
        """Plain types only, with every key always there."""
        return {
            "name": self.name,
            "state": self.state,
            "reason": self.reason,
            "hint": self.hint,
            "devices": [_device(info) for info in self.devices],
            "versions": dict(self.versions),
            "build": dict(self.build),
            "notes": list(self.notes),
        }


def diagnose(registry: Registry = _shared) -> list[BackendReport]:
    """A report for each backend, usable ones first, then by name."""
    reports = [_report(registry, name) for name in registry.names()]
    order = {"available": 0, "unusable": 1, BROKEN: 2, "absent": 3}
    return sorted(reports, key=lambda report: (order.get(report.state, len(order)), report.name))


def _report(registry: Registry, name: str) -> BackendReport:
    try:
        return _from_probe(name, registry.probe(name))
    except BackendUnavailable as error:
        return BackendReport(name, BROKEN, error.message, error.hint or "")


def _from_probe(name: str, probe: Probe) -> BackendReport:
    build = {key: probe.versions[key] for key in _BUILD_KEYS if key in probe.versions}
    versions = {key: text for key, text in probe.versions.items() if key not in build}
    return BackendReport(name, probe.state.value, probe.reason, probe.hint, probe.devices, versions, build, probe.notes)


def _device(info: DeviceInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "vendor": info.vendor,
        "logical": int(info.logical),
        "physical": str(info.physical),
        "total_bytes": info.total_bytes,
        "details": dict(info.details),
    }
