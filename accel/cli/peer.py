"""The peer of ``accel bench``, seen from our side: a child process that measures when it is asked.

Invariant: no fault of the peer ends a benchmark; it becomes a reason, and the reference is null.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from accel.errors import AccelError

__all__ = ["INSTALL", "PYTHON_VARIABLE", "Peer", "PeerError", "start_peer"]

INSTALL: Final = "pip install llama-cpp-python"
#: Another interpreter that has the peer, so that it need not be built again in each environment.
PYTHON_VARIABLE: Final = "ACCEL_PEER_PYTHON"

_WORKER: Final = Path(__file__).with_name("peer_worker.py")
_MODULE: Final = "llama_cpp"
#: Seconds for a load and for one measurement.
_PATIENCE: Final = 300.0


class PeerError(AccelError):
    """The peer is not there, or gave up. The message is the reason to print."""


class PeerKilled(PeerError):
    """A signal ended the peer."""


class Peer:
    """A running peer that has answered once. A context manager that ends it.

    Args:
        plain: without the peer's repacked weights.
    """

    def __init__(self, python: str, path: Path, threads: int, context: int, plain: bool) -> None:
        self._process = subprocess.Popen(
            [python, str(_WORKER), str(path), str(threads), str(context), "plain" if plain else "default"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self.name = f"llama-cpp-python {self._read()['version']}{' without repacking' if plain else ''}"
            self.seconds("prefill", [1, 2, 3, 4], 0)
        except BaseException:
            self.close()
            raise

    def seconds(self, kind: str, ids: Sequence[int], tokens: int) -> float:
        """Seconds of one measurement; see peer_worker.py. Raises PeerError."""
        stdin = self._process.stdin
        if stdin is None:
            raise PeerError("the peer takes no requests")
        try:
            stdin.write(json.dumps({"kind": kind, "ids": list(ids), "tokens": tokens}) + "\n")
            stdin.flush()
        except OSError as error:
            raise PeerError(f"the peer ended: {error}") from error
        return float(self._read()["seconds"])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        stdout = self._process.stdout
        if stdout is None or not select.select([stdout], [], [], _PATIENCE)[0]:
            raise PeerError(f"the peer did not answer within {_PATIENCE:g} s")
        line = stdout.readline()
        if not line:
            code = self._process.wait()
            if code < 0:
                raise PeerKilled(f"the peer was ended by {signal.Signals(-code).name}", signal=-code)
            raise PeerError(f"the peer ended with exit code {code}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"the peer does not run: {answer['error']}")
        return answer


def start_peer(path: Path, threads: int, context: int) -> Peer:
    """The peer with the model at `path` loaded.

    Args:
        context: tokens of the longest sequence it will be asked for.

    Raises:
        PeerError: it is not installed, the model is no .gguf file, or it does not start.
    """
    if path.suffix.lower() != ".gguf":
        raise PeerError("the peer reads .gguf files only")
    python = os.environ.get(PYTHON_VARIABLE)
    if not python and importlib.util.find_spec(_MODULE) is None:
        raise PeerError(
            f"the peer llama-cpp-python is not installed: {INSTALL}, or name an interpreter that has it in"
            f" {PYTHON_VARIABLE}"
        )
    python = python or sys.executable
    try:
        try:
            return Peer(python, path, threads, context, plain=False)
        except PeerKilled:
            # Built for the processor's newest instructions, it dies of SIGILL on a virtual machine that denies them.
            return Peer(python, path, threads, context, plain=True)
    except OSError as error:
        raise PeerError(f"the peer does not start: {error}") from error
