"""What a case works with: the device, seeded randomness, and ways to say that a promise is broken."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from accel.backend import Backend, Device, Event, Stream
from accel.errors import AccelError

__all__ = ["SOON", "Broken", "Context"]

Buffer = TypeVar("Buffer")

#: Seconds after which something that must happen has not. Long, because the machine may be busy.
SOON: Final = 10.0


class Broken(AccelError):
    """The device does not keep a promise; the message says which, what was expected and what came."""


class Context:
    """One run of one case.

    Args:
        backend: the device's; `options` open another device of it like the one under test.
        seed: with the case's id it decides every random value.
    """

    def __init__(self, backend: Backend, device: Device, reopen: Callable[[], Device], case_id: str, seed: int) -> None:
        self.backend = backend
        self.device = device
        self.reopen = reopen
        self.rng = np.random.default_rng([seed, zlib.crc32(case_id.encode())])
        #: All buffers that a stream may still use when the case ends early; let go once the device has passed them.
        self._kept: list[Any] = []

    def check(self, good: bool, message: str) -> None:
        """Raise Broken with `message` unless `good`."""
        if not good:
            raise Broken(message)

    def equal(self, got: Any, want: Any, what: str) -> None:
        """Raise Broken unless `got` is `want`; arrays are compared whole."""
        same = np.array_equal(got, want) if isinstance(got, np.ndarray) else got == want
        if not same:
            raise Broken(f"{what}: got {_short(got)}, want {_short(want)}")

    @contextmanager
    def raises(self, kind: type[AccelError], pattern: str = "", what: str = "the call") -> Iterator[None]:
        """Raise Broken unless the block raises `kind` with a message that `pattern` finds."""
        try:
            yield
        except kind as error:
            if re.search(pattern, str(error)) is None:
                raise Broken(
                    f"{what} raised {kind.__name__}, but its message says nothing of {pattern!r}: {error}"
                ) from error
        except Broken:
            raise
        except Exception as error:
            raise Broken(f"{what} raised {type(error).__name__}, want {kind.__name__}: {error}") from error
        else:
            raise Broken(f"{what} raised nothing, want {kind.__name__}")

    def stream(self) -> Stream:
        """A new stream."""
        return self.device.stream()

    def event(self) -> Event:
        """A new event."""
        return self.device.event()

    def upload(self, host: npt.NDArray[Any]) -> Any:
        """A tensor on the device that holds `host`."""
        tensor = self.empty(host.shape, str(host.dtype))
        stream = self.device.current_stream()
        self.device.copy(tensor, self.keep(host), stream)
        stream.synchronize(SOON)
        return tensor

    def download(self, tensor: Any, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The bytes of `tensor`, as an array of the shape and dtype of `like`."""
        host = self.keep(np.empty_like(like))
        stream = self.device.current_stream()
        self.device.copy(host, tensor, stream)
        stream.synchronize(SOON)
        return host

    def bytes(self, count: int) -> npt.NDArray[np.uint8]:
        """Random bytes on the host."""
        return self.keep(self.rng.integers(0, 256, count, np.uint8))

    def zeros(self, count: int) -> npt.NDArray[np.uint8]:
        """So many zero bytes on the host."""
        return self.keep(np.zeros(count, np.uint8))

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor of the device."""
        return self.keep(self.device.empty(shape, dtype))

    def keep(self, buffer: Buffer) -> Buffer:
        """Keep `buffer` until the device has passed the case, however that ends."""
        self._kept.append(buffer)
        return buffer


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"
