"""Find backends, ask them, open their devices.

A backend registers a class under the entry-point group ``accel.backends``; ours and a third party's do it alike::

    [project.entry-points."accel.backends"]
    mychip = "my_package.backend:MyBackend"      # MyBackend.name == "mychip"

Invariants: importing this module scans nothing and imports no backend; a backend is imported when it is asked for. A
broken backend is an error that names its entry point and distribution. It is never skipped where it might have been
chosen ("auto"), and never in the way where it could not ("cpu" while another is broken).

::

    open("auto") ── ACCEL_DEVICE set? ──yes──> open(that)
         └── do all backends load and probe? ──no──> BackendUnavailable, naming the broken one
                 └── by falling priority:   AVAILABLE ──> open it
                                            UNUSABLE ───> one warning, ask the next
                                            ABSENT ─────> ask the next

A backend with a priority below 0 is never chosen by "auto" (a simulated device, say); it has to be named.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from accel.backend import Backend, Device, DeviceInfo, LogicalId, Probe, ProbeState
from accel.errors import AccelError, BackendUnavailable, InvalidArgument

__all__ = [
    "AUTO",
    "DEVICE_VARIABLE",
    "GROUP",
    "Registry",
    "backend",
    "names",
    "open",
    "probe",
    "probe_all",
    "refresh",
    "register",
    "registered",
    "unregister",
]

GROUP = "accel.backends"
#: The spec that lets accel choose.
AUTO = "auto"
#: What "auto" means on this machine; has no effect on a device that was named.
DEVICE_VARIABLE = "ACCEL_DEVICE"

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SPEC = re.compile(r"([^:]*)(?::(.*))?", re.DOTALL)
#: No machine has more devices than this many digits can number, and longer ones are slow to convert.
_MAX_DIGITS = 6
_log = logging.getLogger("accel")


@dataclass(frozen=True)
class _Entry:
    """One registration: how to get the class, and where it came from, in words for messages."""

    name: str
    load: Callable[[], object]
    where: str
    distribution: str


class Registry:
    """The backends of a process. The module's functions use one shared instance; tests make their own.

    `installed` lists what the entry points say; it is called once, at the first question, and again after `refresh`.
    """

    def __init__(self, installed: Callable[[], list[_Entry]] | None = None) -> None:
        self._discover = _installed if installed is None else installed
        self._found: dict[str, list[_Entry]] | None = None
        self._local: dict[str, _Entry] = {}
        self._instances: dict[str, Backend] = {}

    def refresh(self) -> None:
        """Forget what was found, so that the next question looks again. In-process registrations stay."""
        self._found = None
        self._instances.clear()

    def register(self, kind: type[Backend]) -> None:
        """Add a backend of this process. Raises InvalidArgument where its name is taken or it is not a Backend."""
        name = getattr(kind, "name", None)
        if not (isinstance(kind, type) and issubclass(kind, Backend) and isinstance(name, str)):
            raise InvalidArgument(f"{kind!r} is not a Backend class with a name")
        if name == AUTO or _NAME.fullmatch(name) is None:
            raise InvalidArgument(
                f"{name!r} is not a backend name", hint="use lower-case letters, digits and _", name=name
            )
        if name in self._entries():
            raise InvalidArgument(f"a backend named {name!r} is registered already", name=name)
        where = f"{kind.__module__}.{kind.__qualname__}, registered in this process"
        self._local[name] = _Entry(name, lambda: kind, where, "")

    def unregister(self, name: str) -> None:
        """Undo `register`. Raises InvalidArgument where `name` was not added by it."""
        if name not in self._local:
            raise InvalidArgument(f"no backend named {name!r} was registered in this process", name=name)
        del self._local[name]
        self._instances.pop(name, None)

    @contextmanager
    def registered(self, kind: type[Backend]) -> Iterator[None]:
        """`register` for the length of a with statement."""
        self.register(kind)
        try:
            yield
        finally:
            self.unregister(kind.name)

    def names(self) -> tuple[str, ...]:
        """All registered names, sorted. Imports no backend."""
        return tuple(sorted(self._entries()))

    def backend(self, name: str) -> Backend:
        """The backend of that name, imported now.

        Raises:
            BackendUnavailable: no such name (with the known ones and the nearest), or the backend is broken (with its
                entry point and distribution).
        """
        found = self._instances.get(name)
        if found is None:
            found = _construct(self._entry(name))
            self._instances[name] = found
        return found

    def probe(self, name: str) -> Probe:
        """What that backend finds on this machine, asked anew at each call.

        Raises:
            BackendUnavailable: as `backend`, and where the probe raises or answers nonsense, which is a bug in it.
        """
        subject = self.backend(name)
        entry = self._entry(name)
        answer = _ask(entry, "its probe, which must never raise, raised", subject.probe)
        if fault := _probe_fault(answer):
            raise _broken(entry, f"its probe returned {fault}")
        found: Probe = replace(answer, reason=_one_line(answer.reason), hint=_one_line(answer.hint))
        return found

    def probe_all(self) -> dict[str, Probe]:
        """`probe` of every backend, by falling priority. Raises BackendUnavailable for the first broken one."""
        return {name: self.probe(name) for name in self._by_priority()}

    def open(self, spec: str = AUTO, **options: Any) -> Device:
        """Open a device.

        Args:
            spec: "auto", a backend's name, or a name and an index: "cpu", "gpu:0". A name alone means its first
            device. options: the backend's own, see its README.

        Raises:
            InvalidArgument: a malformed spec, or an index that is not there (the message has the count).
            BackendUnavailable: no such backend, one that cannot be used here (with its probe's reason and hint), or a
                broken one. For "auto": any broken one.
        """
        name, index = _parse(spec, "")
        if name != AUTO:
            return self._open_named(name, index, options)
        override = os.environ.get(DEVICE_VARIABLE, "").strip()
        if override:
            name, index = _parse(override, f"{DEVICE_VARIABLE}: ")
            if name != AUTO:
                return self._open_override(name, index, options)
        return self._open_device(self._choose(), index, options)

    def _open_named(self, name: str, index: int, options: Mapping[str, Any]) -> Device:
        found = self.probe(name)
        if not found.available:
            raise BackendUnavailable(found.reason, hint=found.hint or None, backend=name, state=found.state.value)
        if index >= len(found.devices):
            count = len(found.devices)
            raise InvalidArgument(
                f"{name}:{index} is out of range: {name} has {count} device{'' if count == 1 else 's'}",
                hint=f"use {name}:0" if count == 1 else f"use {name}:0 to {name}:{count - 1}",
                index=index,
                limit=count,
            )
        return self._open_device(name, index, options)

    def _open_override(self, name: str, index: int, options: Mapping[str, Any]) -> Device:
        try:
            return self._open_named(name, index, options)
        except (BackendUnavailable, InvalidArgument) as error:
            # The caller wrote "auto": say where the name came from.
            error.message = f"{DEVICE_VARIABLE} asks for {name}:{index}: {error.message}"
            raise

    def _open_device(self, name: str, index: int, options: Mapping[str, Any]) -> Device:
        subject = self.backend(name)
        entry, what = self._entry(name), f"opening {name}:{index} raised"
        device = _ask(entry, what, partial(subject.open, LogicalId(index), **options), passes=AccelError)
        if not isinstance(device, Device):
            raise _broken(self._entry(name), f"opening {name}:{index} gave {type(device).__name__} instead of a Device")
        return device

    def _choose(self) -> str:
        """The backend that "auto" means. Every candidate is asked before one is taken, so that a broken one shows."""
        order = [name for name in self._by_priority() if self.backend(name).priority >= 0]
        probes = {name: self.probe(name) for name in order}
        for name, found in probes.items():
            if found.available:
                return name
            if found.state is ProbeState.UNUSABLE:
                _log.warning("%s", _one_line(f"{name} is not used: {found.reason} ({found.hint})"))
        seen = "; ".join(f"{name}: {found.reason}" for name, found in probes.items())
        raise BackendUnavailable(
            f"no device can be used ({seen})" if seen else "no backend is installed",
            hint="see accel doctor" if seen else f"reinstall accel, so that its entry points {GROUP} are registered",
        )

    def _by_priority(self) -> list[str]:
        return sorted(self.names(), key=lambda name: (-self.backend(name).priority, name))

    def _entry(self, name: str) -> _Entry:
        entries = self._entries().get(name)
        if not entries:
            known = self.names()
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
            raise BackendUnavailable(
                f"unknown backend {name!r}; known: {', '.join(known) or 'none'}",
                hint=f"did you mean {near[0]}?" if near else None,
                name=name,
                known=known,
            )
        if len(entries) > 1:
            raise _broken(entries[0], f"{' and '.join(entry.where for entry in entries)} claim the same name")
        return entries[0]

    def _entries(self) -> dict[str, list[_Entry]]:
        if self._found is None:
            found: dict[str, list[_Entry]] = {}
            for entry in self._discover():
                found.setdefault(entry.name, []).append(entry)
            self._found = found
        return self._found | {name: [entry] for name, entry in self._local.items()}


def _parse(spec: object, origin: str) -> tuple[str, int]:
    """(name, index) of a spec; the index of a name alone is 0."""
    if not isinstance(spec, str):
        raise InvalidArgument(f"a device spec is a string, not {type(spec).__name__}: {spec!r}")
    match = _SPEC.fullmatch(spec)
    name, index = (match[1], match[2]) if match is not None else (spec, None)
    shown = repr(spec if len(spec) <= 60 else spec[:60] + "…")
    if _NAME.fullmatch(name) is None:
        near = name.strip().lower()
        raise InvalidArgument(
            f"{origin}{shown} is not a device spec",
            hint=f"did you mean {near}?" if _NAME.fullmatch(near) else 'use "auto", a name or name:index, e.g. "cpu"',
            spec=spec,
        )
    if index is None:
        return name, 0
    if name == AUTO:
        raise InvalidArgument(f"{origin}{shown}: {AUTO} takes no index", hint="name the backend to choose a device")
    if re.fullmatch(r"-\d+", index, re.ASCII):
        raise InvalidArgument(f"{origin}{shown}: the index is below 0", hint=f"use {name}:0", spec=spec, limit=0)
    if re.fullmatch(r"\d+", index, re.ASCII) is None:
        raise InvalidArgument(f"{origin}{shown}: the index is not a number", hint=f"use {name}:0", spec=spec)
    if len(index) > _MAX_DIGITS:
        limit = 10**_MAX_DIGITS
        raise InvalidArgument(f"{origin}{shown}: the index is not below {limit}", hint=f"use {name}:0", limit=limit)
    return name, int(index)


def _construct(entry: _Entry) -> Backend:
    kind = _ask(entry, "loading it raised", entry.load)
    if not (isinstance(kind, type) and issubclass(kind, Backend)):
        raise _broken(entry, f"it is {kind!r:.80}, not a subclass of accel.backend.Backend")
    name, priority = getattr(kind, "name", None), getattr(kind, "priority", None)
    if name != entry.name:
        raise _broken(entry, f"its class is named {name!r}")
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise _broken(entry, f"its priority is {priority!r}, not an integer")
    if entry.name == AUTO or _NAME.fullmatch(entry.name) is None:
        raise _broken(entry, "its name is reserved, or has other characters than a-z, 0-9 and _")
    made: Backend = _ask(entry, "constructing it without arguments raised", kind)
    return made


def _ask(entry: _Entry, what: str, call: Callable[[], Any], passes: type[Exception] | None = None) -> Any:
    """Run code of a third party. Whatever it raises, even to end the process, is an error of that backend; only an
    interrupt of the user, and what `passes`, go through."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if passes is not None and isinstance(error, passes):
            raise
        raise _broken(entry, f"{what} {_describe(error)}") from error


def _probe_fault(found: object) -> str:
    """What is wrong with what a probe returned; empty when nothing is."""
    if not isinstance(found, Probe):
        return f"{type(found).__name__} instead of a Probe"
    answer: Any = found  # its fields are a third party's: their types are a promise, not a fact
    if not isinstance(answer.state, ProbeState):
        return f"the state {answer.state!r:.40}"
    for name in ("reason", "hint"):
        if not isinstance(getattr(answer, name), str):
            return f"a {name} that is no text"
    if not (isinstance(answer.devices, tuple) and all(isinstance(device, DeviceInfo) for device in answer.devices)):
        return "devices that are no tuple of DeviceInfo"
    if not isinstance(answer.versions, Mapping):
        return "versions that are no mapping"
    if not (isinstance(answer.notes, tuple) and all(isinstance(note, str) for note in answer.notes)):
        return "notes that are no tuple of texts"
    return "a Probe that says AVAILABLE and lists no device" if answer.available and not answer.devices else ""


def _broken(entry: _Entry, what: str) -> BackendUnavailable:
    if entry.distribution:
        cure = f"pip uninstall {entry.distribution}, or report this to its authors; {DEVICE_VARIABLE}=cpu avoids it"
    else:
        cure = f"unregister it; {DEVICE_VARIABLE}=cpu avoids it"
    return BackendUnavailable(
        _one_line(f"backend {entry.name!r} is broken: {what} [{entry.where}]"),
        hint=cure,
        broken=entry.name,
        entry_point=entry.where,
        distribution=entry.distribution,
    )


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as second:
        text = f"its text cannot be had ({type(second).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def _installed() -> list[_Entry]:
    """Registrations of all installed distributions; of two with one name the first on the path counts."""
    from importlib import metadata

    found: list[_Entry] = []
    seen: set[str] = set()
    for distribution in metadata.distributions():
        try:
            text = distribution.read_text("entry_points.txt") or ""
        except (OSError, UnicodeError) as error:
            _log.debug("entry points of %r are not readable: %s", distribution, error)
            continue
        # Most distributions register nothing here; their metadata, which is slow to parse, stays unread.
        if GROUP not in text:
            continue
        name = _name_of(distribution)
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key not in seen:
            seen.add(key)
            found += _entries_of(distribution, name)
    return found


def _name_of(distribution: Any) -> str:
    """The distribution's name; where its metadata cannot be read, the folder that holds it."""
    try:
        name = distribution.metadata["Name"]
    except Exception as error:
        _log.debug("metadata of %r is not readable: %s", distribution, error)
        name = None
    return name or str(getattr(distribution, "_path", "a distribution without a name"))


def _entries_of(distribution: Any, name: str) -> list[_Entry]:
    title = f"distribution {name}"
    try:
        title = f"{title} {distribution.version}"
        points = [point for point in distribution.entry_points if point.group == GROUP]
    except Exception as error:
        message = f"entry_points.txt cannot be parsed: {_describe(error)}"
        return [_Entry(_key(name), partial(_raise, message), f"entry points of {title}", name)]
    return [
        _Entry(point.name, point.load, f"entry point {point.name} = {point.value} of {title}", name) for point in points
    ]


def _key(distribution: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "_", distribution.lower())


def _raise(message: str) -> object:
    raise ValueError(message)


_shared = Registry()
names = _shared.names
backend = _shared.backend
probe = _shared.probe
probe_all = _shared.probe_all
open = _shared.open
refresh = _shared.refresh
register = _shared.register
unregister = _shared.unregister
registered = _shared.registered
