"""The one parser of visible-device lists, and the map between the three kinds of device index.

::

    physical   what the driver numbers         0    1    2    3
                                               │         │    │      list "3,0,2"
    visible    what the runtime enumerates     1         2    0
                                               │              │      selection "0,1"
    logical    what ``accel.open`` takes       1              0

Invariant: `VisibleDevices.entries` only ever holds physical devices that were passed in (or identifiers that could
not be checked, each with a note), in the order of the list and without repeats. Nothing a list contains is dropped
silently: whatever ends or empties it is in `notes`, with the entry and what it cut off.

Rules of a list, which are those the vendors' runtimes document (the tests cite them):

=====================================  =======================================================
unset                                  every device
empty or blank                         none
a number                               index into the physical devices
anything else                          an identifier, or a prefix that only one identifier has
invalid (hole, negative, out of range,
unknown, ambiguous, garbage)           the list ends before it
repeated                               the whole list is void: none
=====================================  =======================================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from accel.backend import LogicalId, PhysicalId, VisibleId
from accel.errors import InvalidArgument

__all__ = ["PhysicalDevice", "VisibleDevices", "parse_visible"]

#: Longest number taken for an index; anything longer is out of range on any machine, and slow to convert.
_MAX_DIGITS = 9
#: How much of a bad entry a message repeats.
_SHOWN = 48
#: An identifier as drivers print it: a kind, then hexadecimal groups, e.g. "GPU-8932f937-d72c".
_IDENTIFIER = re.compile(r"[A-Za-z]+-[0-9A-Za-z][0-9A-Za-z/-]*")


@dataclass(frozen=True)
class PhysicalDevice:
    """A device as the driver knows it. `uuid` is empty where the driver does not tell."""

    id: PhysicalId
    uuid: str = ""


@dataclass(frozen=True)
class VisibleDevices:
    """What a process may use, after its visible-devices list and its selection.

    `devices` is indexed by VisibleId, `selected` by LogicalId (its values index `devices`); `variable` names where the
    list came from, and is used in errors; `notes` are one-line findings for a person.
    """

    variable: str
    devices: tuple[PhysicalDevice, ...]
    selected: tuple[VisibleId, ...]
    notes: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[PhysicalId, ...]:
        """The driver's names of the visible devices, by VisibleId."""
        return tuple(device.id for device in self.devices)

    def __len__(self) -> int:
        """Number of logical devices."""
        return len(self.selected)

    def visible(self, logical: LogicalId) -> VisibleId:
        """Index in the runtime's enumeration. Raises InvalidArgument unless 0 <= `logical` < len(self)."""
        if not 0 <= logical < len(self.selected):
            raise InvalidArgument(
                f"device index {logical} is out of range: {_count(len(self.selected))} visible",
                hint=f"use an index below {len(self.selected)}" if self.selected else f"see {self.variable}",
                index=int(logical),
                limit=len(self.selected),
            )
        return self.selected[logical]

    def physical(self, logical: LogicalId) -> PhysicalId:
        """The driver's name of the device. Raises InvalidArgument like `visible`."""
        return self.devices[self.visible(logical)].id

    def logical(self, visible: VisibleId) -> LogicalId:
        """The inverse of `visible`. Raises InvalidArgument where that device is not selected."""
        if visible not in self.selected:
            chosen = ", ".join(str(index) for index in self.selected) or "none"
            raise InvalidArgument(
                f"visible device {visible} is not selected (selected: {chosen})",
                hint=f"see {self.variable}",
                index=int(visible),
                limit=len(self.devices),
            )
        return LogicalId(self.selected.index(visible))

    def restrict(self, value: str | None, *, variable: str) -> VisibleDevices:
        """Apply a second list, which indexes into what this one left. For runtimes that read two, one after the other.

        A selection made before is dropped: it would refer to another enumeration.
        """
        inner = parse_visible(value, self.devices, variable=variable)
        name = self.variable if value is None else variable
        return VisibleDevices(name, inner.devices, inner.selected, self.notes + inner.notes)

    def select(self, value: str | None, *, variable: str) -> VisibleDevices:
        """Apply a framework's selection: indices into the *visible* devices. Unset or blank selects all of them."""
        if value is None or not value.strip():
            return self
        # Numbers only: a framework's selection knows no identifiers.
        inner = parse_visible(value, len(self.devices), variable=variable)
        known = {str(index): VisibleId(index) for index in range(len(self.devices))}
        chosen = tuple(known[entry] for entry in inner.entries if entry in known)
        return VisibleDevices(variable, self.devices, chosen, self.notes + inner.notes)


def parse_visible(
    value: str | None,
    physical: Sequence[PhysicalDevice] | int,
    *,
    variable: str,
    opaque: Sequence[str] = (),
) -> VisibleDevices:
    """Parse one visible-devices list.

    Args:
        value: the variable's value, None where it is unset.
        physical: the driver's devices in its own order, or only how many there are (then named "0", "1", …).
        variable: the variable's name, for notes and errors.
        opaque: prefixes of identifiers that name parts of a device and are kept without a check (e.g. "MIG-").

    Returns:
        The visible devices, all of them selected. Never fails on a bad `value`: see `notes`.

    Raises:
        InvalidArgument: a negative number of physical devices, or two with one name.
    """
    known = _devices(physical)
    if value is None:
        return _all_selected(variable, known, ())
    if not value.strip():
        return _all_selected(variable, (), (f'{variable}="" hides every device',) if known else ())

    parts = [part.strip() for part in value.split(",")]
    found: list[PhysicalDevice] = []
    notes: list[str] = []
    for position, part in enumerate(parts):
        device, problem = _match(part, known, opaque)
        if device is None:
            notes.append(_ended(variable, part, problem, parts[position + 1 :]))
            break
        if device in found:
            lost = _show(",".join(parts))
            notes.append(
                f"{variable}: entry {_show(part)} repeats device {device.id}, which voids the whole list {lost}"
            )
            found.clear()
            break
        if problem:
            notes.append(f"{variable}: entry {_show(part)} {problem}")
        found.append(device)
    return _all_selected(variable, tuple(found), tuple(notes))


def _devices(physical: Sequence[PhysicalDevice] | int) -> tuple[PhysicalDevice, ...]:
    if isinstance(physical, int):
        if physical < 0:
            raise InvalidArgument(f"the number of physical devices is {physical}, below 0", count=physical, limit=0)
        return tuple(PhysicalDevice(PhysicalId(str(index))) for index in range(physical))
    names: set[PhysicalId] = set()
    for device in physical:
        if device.id in names:
            raise InvalidArgument(f"two physical devices are named {device.id!r}", name=device.id, limit=1)
        names.add(device.id)
    return tuple(physical)


def _all_selected(variable: str, devices: tuple[PhysicalDevice, ...], notes: tuple[str, ...]) -> VisibleDevices:
    return VisibleDevices(variable, devices, tuple(VisibleId(index) for index in range(len(devices))), notes)


def _match(part: str, devices: Sequence[PhysicalDevice], opaque: Sequence[str]) -> tuple[PhysicalDevice | None, str]:
    """The device an entry names, and what to say about it. None: the entry is invalid, for the reason given."""
    if not part:
        return None, "is empty"
    if part.isascii() and part.isdigit():
        if len(part) > _MAX_DIGITS or int(part) >= len(devices):
            return None, f"is out of range ({_count(len(devices))} present)"
        return devices[int(part)], ""
    if re.fullmatch(r"-\d+", part, re.ASCII):
        return None, "is negative"
    if any(part.startswith(prefix) and len(part) > len(prefix) for prefix in opaque):
        return PhysicalDevice(PhysicalId(part), uuid=part), ""
    return _match_identifier(part, devices)


def _match_identifier(part: str, devices: Sequence[PhysicalDevice]) -> tuple[PhysicalDevice | None, str]:
    for device in devices:
        if part in (device.uuid, device.id):
            return device, ""
    known = [device for device in devices if device.uuid]
    matches = [device for device in known if device.uuid.startswith(part)]
    if len(matches) == 1:
        return matches[0], ""
    if matches:
        return None, f"is ambiguous: {len(matches)} devices have identifiers that begin with it"
    if _IDENTIFIER.fullmatch(part) is None:
        return None, "is neither an index nor a device identifier"
    if devices and not known:
        why = "could not be checked: the identifiers of the devices are not readable here"
        return PhysicalDevice(PhysicalId(part), uuid=part), why
    return None, "is the identifier of no device here"


def _ended(variable: str, part: str, problem: str, rest: Sequence[str]) -> str:
    cut = f", and cuts off {_show(','.join(rest))}" if rest else ""
    return f"{variable}: entry {_show(part)} {problem}; the list ends before it{cut}"


def _show(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _count(number: int) -> str:
    return f"{number} device" if number == 1 else f"{number} devices"
