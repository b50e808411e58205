"""The one exception hierarchy of accel.

Invariant: every error that leaves the library is an :class:`AccelError` that names the value at fault, the limit it
broke and what to do next, and it is raised before any work is queued wherever that can be known.

::

    AccelError
    ├─ BackendUnavailable   a backend exists but cannot be used here (the probe's reason and hint)
    ├─ AbiMismatch          a native module or runtime table of another version
    ├─ Unsupported          a feature this backend does not have, and the nearest one it has
    ├─ InvalidArgument      a call with wrong values; nothing was queued
    ├─ OutOfMemory          an allocation that did not fit (requested, free, total)
    ├─ Timeout              a blocking call reached its deadline
    ├─ AsyncFailure         queued work failed on the device; raised once, at the next synchronise or query
    ├─ DeviceLost           the device is gone for good
    ├─ InvalidRequest       a generation request that can never be served
    ├─ Overloaded           as many requests as the engine takes are waiting already
    ├─ EngineClosed         the engine was closed before the request ended
    ├─ ModelError           a model file that is missing, damaged, contradictory or of an unknown kind
    └─ StorageConfigError   a storage tier that is configured wrongly
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "AbiMismatch",
    "AccelError",
    "AsyncFailure",
    "BackendUnavailable",
    "DeviceLost",
    "EngineClosed",
    "InvalidArgument",
    "InvalidRequest",
    "ModelError",
    "OutOfMemory",
    "Overloaded",
    "StorageConfigError",
    "Timeout",
    "Unsupported",
]


class AccelError(Exception):
    """Base of all errors of this library.

    Args:
        message: what happened, with the offending value and the limit in it.
        hint: what to do next; printed after the message.
        backend, device, op: where it happened, when that is known.
        values: the numbers behind the message, for programs (``error.values["limit"]``).
    """

    #: True where the cause is what the caller passed in; the CLI then exits with 2, else with 1.
    caller_fault: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        backend: str | None = None,
        device: str | None = None,
        op: str | None = None,
        **values: object,
    ) -> None:
        self.message = message
        self.hint = hint
        self.backend = backend
        self.device = device
        self.op = op
        self.values = values
        super().__init__(message)

    def again(self) -> Self:
        """A new error that says the same. What several callers are told, each is told with an error of its own: one
        that is raised in many threads would carry the traceback and the outputs of them all."""
        copied = copy.copy(self)
        copied.__cause__ = self.__cause__
        return copied

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.device or self.backend, self.op) if part)
        text = f"{where}: {self.message}" if where else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only fields would be lost by the default, which replays only ``args``.
        state = {
            "hint": self.hint,
            "backend": self.backend,
            "device": self.device,
            "op": self.op,
            **self.values,
        }
        return (_rebuild, (type(self), self.message, state))


def _rebuild(kind: type[AccelError], message: str, state: dict[str, object]) -> AccelError:
    return kind(message, **state)  # type: ignore[arg-type]


class BackendUnavailable(AccelError):
    """A named backend exists but its probe refused, or no backend has that name."""

    caller_fault = True


class AbiMismatch(AccelError):
    """A native module or runtime table was built for another version; both versions are in ``values``."""


class Unsupported(AccelError):
    """A feature the backend does not have. Raised when the configuration is checked, before any load."""

    caller_fault = True


class InvalidArgument(AccelError):
    """A call with wrong values. Nothing was queued and nothing changed."""

    caller_fault = True


class OutOfMemory(AccelError):
    """An allocation did not fit. ``values`` holds ``requested`` and, where known, ``free`` and ``total`` in bytes."""

    caller_fault = True


class Timeout(AccelError):
    """A blocking call reached its deadline; the work goes on and may be waited for again."""


class AsyncFailure(AccelError):
    """Queued work failed on the device. Raised exactly once; names the first failing op."""


class DeviceLost(AccelError):
    """The device does not answer any more; every later call on it raises this as well."""


class InvalidRequest(AccelError):
    """A generation request that can never be served as it is."""

    caller_fault = True


class Overloaded(AccelError):
    """The engine holds as many requests as it takes; ``values`` has ``waiting`` and ``limit``. Try again later."""


class EngineClosed(AccelError):
    """The engine was closed before the request ended; what it had generated is lost."""


class ModelError(AccelError):
    """A model that cannot be loaded: the file, tensor or field and what was expected are in the message."""

    caller_fault = True


class StorageConfigError(AccelError):
    """A storage tier that is configured wrongly."""

    caller_fault = True
