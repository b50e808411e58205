"""A read-only view of a machine: files, environment, library search. Everything a probe reads goes through `System`.

Invariant: no method raises for what it finds (a missing, unreadable or garbled file is an empty answer), none starts
a process, loads a library or imports a framework. A test gives another `root` and environment and thereby another
machine.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

__all__ = ["Library", "System"]

#: Bytes read of any one file; the version files and headers that are read here are far smaller.
_READ_LIMIT = 1 << 16
#: As in the kernel: links followed before a path is taken for a loop.
_LINK_LIMIT = 40
#: Depth of ``include`` lines in ld.so.conf.
_INCLUDE_LIMIT = 4
_DEFAULT_LIBRARY_DIRS = (
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib",
    "/usr/lib",
)


@dataclass(frozen=True)
class Library:
    """A shared library as the loader would find it: the name asked for, where it is, and the file behind its links."""

    name: str
    path: str
    real: str


@dataclass(frozen=True)
class System:
    """One machine as a process sees it.

    `root` replaces "/" in every absolute path, link targets included. `python_path` is where packages are looked for
    (None: this interpreter's ``sys.path``). `package_dir` is the folder that holds the backends' own folders.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    python_path: Sequence[str] | None = None
    package_dir: Path = Path(__file__).parent

    def env(self, name: str) -> str | None:
        return self.environ.get(name)

    def host_path(self, path: str) -> str:
        """Where `path` of the machine lies on ours."""
        return path if self.root == Path("/") else str(self.root) + path

    def exists(self, path: str) -> bool:
        try:
            return os.path.exists(self.host_path(self.resolve(path)))
        except ValueError:  # a NUL in the name
            return False

    def read_text(self, path: str) -> str:
        """The first 64 KiB as text, stripped; empty where the file cannot be read."""
        return self.read_bytes(path, _READ_LIMIT).decode("utf-8", errors="replace").strip()

    def read_bytes(self, path: str, limit: int) -> bytes:
        try:
            with open(self.host_path(self.resolve(path)), "rb") as file:
                return file.read(limit)
        except (OSError, ValueError):
            return b""

    def list_dir(self, path: str) -> list[str]:
        """Names in a folder, sorted; empty where it cannot be read."""
        try:
            return sorted(os.listdir(self.host_path(self.resolve(path))))
        except (OSError, ValueError):
            return []

    def refused(self, path: str) -> bool:
        """True where a folder is there but may not be listed."""
        try:
            os.listdir(self.host_path(self.resolve(path)))
        except PermissionError:
            return True
        except (OSError, ValueError):
            return False
        return False

    def resolve(self, path: str) -> str:
        """`path` with all links followed, within `root`; as far as it goes where a part is missing."""
        done = "/"
        todo = [part for part in path.split("/") if part]
        links = 0
        while todo:
            part = todo.pop(0)
            if part in (".", ".."):
                done = str(PurePosixPath(done).parent) if part == ".." else done
                continue
            candidate = f"{done.rstrip('/')}/{part}"
            target = self._link_target(candidate)
            if target is None or links >= _LINK_LIMIT:
                done = candidate
                continue
            links += 1
            todo = [piece for piece in target.split("/") if piece] + todo
            if target.startswith("/"):
                done = "/"
        return done

    def _link_target(self, path: str) -> str | None:
        try:
            return os.readlink(self.host_path(path))
        except (OSError, ValueError):  # not a link, not there, or not ours to read
            return None

    def device_nodes(self, pattern: str) -> list[tuple[int, str]]:
        """(number, path) of ``/dev`` nodes whose whole name matches `pattern`, whose one group is the number."""
        found = []
        for name in self.list_dir("/dev"):
            match = re.fullmatch(pattern, name)
            if match is not None and len(match.group(1)) < 6:
                found.append((int(match.group(1)), f"/dev/{name}"))
        return sorted(found)

    def first_line(self, *paths: str) -> str:
        """First line of the first of `paths` that has text; empty where none has."""
        for path in paths:
            text = self.read_text(path)
            if text:
                return text.splitlines()[0].strip()
        return ""

    def find_library(self, *names: str, also: Sequence[str] = ()) -> Library | None:
        """The first of `names` in the loader's order: LD_PRELOAD, LD_LIBRARY_PATH, ld.so.conf, system folders, `also`.

        The loader's binary cache is not read: what it holds comes from the same folders. A program's own RPATH is
        unknown here; folders it may bring are given in `also`.
        """
        for name in names:
            for directory, file in self._candidates(name, also):
                path = f"{directory.rstrip('/')}/{file}"
                if self.exists(path):
                    return Library(name, path, self.resolve(path))
        return None

    def _candidates(self, name: str, also: Sequence[str]) -> Iterator[tuple[str, str]]:
        for preload in re.split(r"[\s:]+", self.env("LD_PRELOAD") or ""):
            directory, _, file = preload.rpartition("/")
            if file == name and directory.startswith("/"):
                yield directory, file
        for directory in (self.env("LD_LIBRARY_PATH") or "").replace(";", ":").split(":"):
            if directory.startswith("/"):
                yield directory, name
        for directory in (*self._loader_dirs("/etc/ld.so.conf", 0), *_DEFAULT_LIBRARY_DIRS, *also):
            yield directory, name

    def _loader_dirs(self, conf: str, depth: int) -> Iterator[str]:
        """Folders named in ld.so.conf, with its ``include dir/*.conf`` lines followed (man 8 ldconfig)."""
        for line in self.read_text(conf).splitlines():
            entry = line.split("#", 1)[0].strip()
            if entry.startswith("include") and depth < _INCLUDE_LIMIT:
                for pattern in entry.split()[1:]:
                    yield from self._included(pattern, depth)
            elif entry.startswith("/"):
                yield entry

    def _included(self, pattern: str, depth: int) -> Iterator[str]:
        directory, _, glob = pattern.rpartition("/")
        directory = directory if directory.startswith("/") else f"/etc/{directory}"
        for name in self.list_dir(directory):
            if PurePosixPath(name).match(glob or "*"):
                yield from self._loader_dirs(f"{directory.rstrip('/')}/{name}", depth + 1)

    def package_dirs(self) -> list[str]:
        """Folders in which Python packages are looked for. These are paths of ours, not of `root`."""
        return [entry for entry in (sys.path if self.python_path is None else self.python_path) if entry]
