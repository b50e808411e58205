"""Which build of Paddle is installed, without importing it: an import takes seconds and may fail without a driver.

Facts come from the package's folder, ``paddle/version/__init__.py`` (read as text), the names in ``paddle/libs`` and
the ``*.dist-info`` folders beside it. A distribution's name alone is no proof: vendors ship rebuilt wheels under the
plain name. ROCm is asked before CUDA, because a ROCm build answers for CUDA as well.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from accel.backends._system import System

__all__ = ["PaddleBuild", "paddle_build"]

_FIELD = re.compile(r"^(\w+)\s*=\s*(?:'([^']*)'|\"([^\"]*)\"|([\w.]+))\s*$", re.MULTILINE)
_NOTHING = frozenset({"", "0", "False", "None", "OFF"})
_DIST = re.compile(r"(paddle[\w.]*)-([^-]+)\.(?:dist-info|egg-info)")
_READ_LIMIT = 1 << 16


@dataclass(frozen=True)
class PaddleBuild:
    """An installed Paddle. `kind` is "" (not installed), "cpu", "cuda", "rocm" or "xpu".

    `plugins` are the custom device types that plug-ins beside it register (by the names of their files and wheels);
    `libs` is the folder of its bundled libraries, empty where there is none.
    """

    kind: str = ""
    version: str = ""
    sdk: str = ""
    distributions: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    libs: str = ""
    fields: dict[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """E.g. ``3.3.1 (cuda 12.6)``, for messages."""
        if not self.kind:
            return "not installed"
        return f"{self.version or 'unknown version'} ({' '.join(part for part in (self.kind, self.sdk) if part)})"


def paddle_build(system: System) -> PaddleBuild:
    """Read the facts. Never raises; what cannot be read is empty."""
    distributions, plugins = _distributions(system)
    package = _package_dir(system)
    if package is None:
        return PaddleBuild(distributions=distributions, plugins=plugins)
    libs = os.path.join(package, "libs")
    fields = _version_fields(os.path.join(package, "version", "__init__.py"))
    kind, sdk = _kind(fields, _names(libs))
    return PaddleBuild(
        kind=kind,
        version=fields.get("full_version", ""),
        sdk=sdk,
        distributions=distributions,
        plugins=plugins,
        libs=libs if os.path.isdir(libs) else "",
        fields=fields,
    )


def _package_dir(system: System) -> str | None:
    if system.python_path is None:
        try:
            spec = importlib.util.find_spec("paddle")
        except (ImportError, ValueError, AttributeError):  # a half-initialised or replaced module
            spec = None
        if spec is None or not spec.has_location:  # not there, or an empty folder of that name
            return None
        return next(iter(spec.submodule_search_locations or ()), None)
    for entry in system.package_dirs():
        if os.path.isfile(os.path.join(entry, "paddle", "__init__.py")):
            return os.path.join(entry, "paddle")
    return None


def _version_fields(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(_READ_LIMIT)
    except (OSError, ValueError):
        return {}
    return {match[1]: match[2] or match[3] or match[4] or "" for match in _FIELD.finditer(text)}


def _kind(fields: dict[str, str], libraries: list[str]) -> tuple[str, str]:
    """(kind, its SDK's version)."""
    for kind, key in (("rocm", "hip_version"), ("xpu", "xpu_xre_version"), ("cuda", "cuda_version")):
        value = fields.get(key, "")
        if value not in _NOTHING:
            return kind, value
    if any(name.startswith("libxpuapi.so") for name in libraries):
        return "xpu", ""
    return "cpu", ""


def _distributions(system: System) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """("name version" of installed paddle wheels, custom device types of plug-ins)."""
    found: dict[str, str] = {}
    plugins: list[str] = []
    for directory, name in _package_entries(system):
        match = _DIST.fullmatch(name)
        if match is not None:
            found.setdefault(match[1].lower().replace("_", "-"), match[2])
        elif name == "paddle_custom_device":
            plugins += _plugin_types(_names(os.path.join(directory, name)))
    plugins += _plugin_types(_names(system.host_path(system.env("CUSTOM_DEVICE_ROOT") or "/nonexistent")))
    # The wheel of a plug-in is ``paddle-<type>``, e.g. paddle-iluvatar-gpu; Paddle's own are ``paddlepaddle-…``.
    plugins += [name.removeprefix("paddle-").replace("-", "_") for name in found if name.startswith("paddle-")]
    return tuple(f"{name} {version}" for name, version in sorted(found.items())), tuple(dict.fromkeys(plugins))


def _plugin_types(files: list[str]) -> list[str]:
    """Paddle names a plug-in ``libpaddle-<type>.so`` by convention; its types have underscores."""
    types = []
    for name in files:
        match = re.match(r"lib(?:paddle[-_])?(?:custom[-_])?([\w-]+?)\.so", name)
        if match is not None:
            types.append(match[1].replace("-", "_"))
    return types


def _package_entries(system: System) -> Iterator[tuple[str, str]]:
    for directory in system.package_dirs():
        for name in _names(directory):
            if name.startswith("paddle"):
                yield directory, name


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (OSError, ValueError):
        return []
