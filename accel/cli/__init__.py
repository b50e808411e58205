"""The ``accel`` command: one module a sub-command, over the public API.

May import everything below it; nothing imports this. Importing it loads neither the framework nor NumPy nor an engine:
a command imports what it needs when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns its exit code; see ``accel.cli.process``.

    Args:
        arguments: what stands after ``accel``; None takes those of this process.
    """
    from accel.cli.app import app
    from accel.cli.process import run

    return run(app, arguments)
