"""Which implementation each op has on a backend, and the object through which ops are called.

Invariant: a backend accounts for every op. One it lacks is ABSENT with a reason, and calling it raises Unsupported.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from accel.errors import InvalidArgument, Unsupported
from accel.ops.names import OP_NAMES

__all__ = ["Implementation", "Kind", "OpTable"]


class Kind(enum.Enum):
    """Where an implementation comes from."""

    NATIVE = "native"  # our kernel
    LIBRARY = "library"  # an op of the vendor or of the framework
    COMPOSED = "composed"  # several ops of the framework
    ABSENT = "absent"  # not there, for the reason given


@dataclass(frozen=True)
class Implementation:
    """One entry of a backend's op table. `call` is ``fn(stream, *tensors, **attributes)``; None when ABSENT."""

    kind: Kind
    call: Callable[..., None] | None
    note: str


class OpTable:
    """The ops of one device, as attributes: ``device.ops.rms_norm(stream, out, x, weight, eps=1e-6)``.

    Args:
        device: name for messages.
        implementations: one entry for each op of ``accel.ops.names``; a missing or unknown name is InvalidArgument.
    """

    def __init__(self, device: str, implementations: Mapping[str, Implementation]) -> None:
        missing, unknown = OP_NAMES - implementations.keys(), implementations.keys() - OP_NAMES
        if missing or unknown:
            raise InvalidArgument(
                f"the op table does not match the op set: missing {sorted(missing)}, unknown {sorted(unknown)}",
                device=device,
                hint="give each op an Implementation; one that is not there is Kind.ABSENT with a reason",
            )
        self._implementations = dict(implementations)
        for name, implementation in implementations.items():
            setattr(self, name, implementation.call or _absent(device, name, implementation.note))

    def __getattr__(self, name: str) -> Callable[..., None]:
        # Reached only for names that are no op: calls through instance attributes cost nothing extra.
        raise AttributeError(f"no op is called {name!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._implementations)

    def implementation(self, name: str) -> Implementation:
        """The entry of op `name`. Raises KeyError."""
        return self._implementations[name]


def _absent(device: str, name: str, reason: str) -> Callable[..., None]:
    def call(*_args: Any, **_attributes: Any) -> None:
        raise Unsupported(f"this device has no such op: {reason}", device=device, op=name)

    return call
