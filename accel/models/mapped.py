"""A file seen through a read-only memory map.

Invariant: reading never copies the file, and after ``release`` the bytes of a span no longer count towards this
process's resident memory, so a loader's peak is what it packs plus one tensor, however large the file is.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from accel.errors import InvalidArgument, ModelError

__all__ = ["MappedFile"]


class MappedFile:
    """A whole file, mapped read-only.

    The map lives until it was closed and the last view of it is gone. A file that is cut short while it is mapped ends
    the process at the next read, as with every memory map: replace model files by rename, never in place.

    Raises:
        ModelError: the file cannot be opened, or is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # fstat of the open file, so that the size is the one of what gets mapped.
                self.size = file.seek(0, 2)
                if self.size == 0:
                    raise ModelError(f"{path} is empty", path=str(path), hint="fetch the file again")
                self._map: mmap.mmap | None = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: a device or pipe, which cannot be mapped
            reason = getattr(error, "strerror", None) or error
            raise ModelError(f"cannot open {path}: {reason}", path=str(path)) from error

    @property
    def buffer(self) -> mmap.mmap:
        """The map itself.

        Raises:
            InvalidArgument: after ``close``.
        """
        if self._map is None:
            raise InvalidArgument(f"{self.path} was closed", path=str(self.path))
        return self._map

    def view(self, offset: int, length: int) -> npt.NDArray[np.uint8]:
        """Bytes [offset, offset + length) as a read-only uint8 array over the map."""
        return np.frombuffer(self.buffer, np.uint8, length, offset)

    def release(self, offset: int, length: int) -> None:
        """Drop the pages of [offset, offset + length) from resident memory; a later read maps them again.

        The pages at both borders go as well: on a read-only file map dropping a page loses nothing, and keeping them
        would let two pages a tensor pile up.
        """
        start = offset - offset % mmap.PAGESIZE
        end = offset + length
        if length and hasattr(mmap, "MADV_DONTNEED"):
            self.buffer.madvise(mmap.MADV_DONTNEED, start, end - start)

    def close(self) -> None:
        """Forget the map. Idempotent; views handed out stay valid and keep the map alive until they are gone."""
        # Not mmap.close(): that raises while any view exists, and the last reference unmaps anyway.
        self._map = None
