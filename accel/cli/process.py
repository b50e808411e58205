"""How a run of the command line ends: its exit code, and what stands on stderr.

Invariant: whatever happens, one line on stderr tells it, and a traceback only comes when it is asked for.

====  ====================================================================
code  meaning
====  ====================================================================
0     done
1     our fault: the line says how to get the traceback
2     the caller's: the line names the value, its limit and the way out
130   interrupted (Ctrl-C)
141   whoever read our output went away (``accel … | head``); silent
====  ====================================================================
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

import typer

from accel.cli.help import plain_flags
from accel.cli.output import one_line
from accel.errors import AccelError

__all__ = ["DEBUG_VARIABLE", "INTERRUPTED", "PIPE_CLOSED", "run"]

#: Set to anything but 0 to get tracebacks.
DEBUG_VARIABLE: Final = "ACCEL_DEBUG"
INTERRUPTED: Final = 128 + 2  # as a shell reports SIGINT
PIPE_CLOSED: Final = 128 + 13  # … and SIGPIPE

# Typer's own exceptions have moved between packages; the base of the one it exports stays the one to catch.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run `app` on `arguments` (None: those of the process) and return the exit code."""
    _tolerate_narrow_encodings()
    try:
        return _finish(_invoke(app, sys.argv[1:] if arguments is None else list(arguments)))
    except KeyboardInterrupt:
        return _tell("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except _UsageError as error:
        return _usage(error)
    except AccelError as error:
        return _tell(f"error: {error}", 2) if error.caller_fault else _ours(error)
    except Exception as error:  # the border of the process: nothing may pass it as a traceback
        return _ours(error)


def _invoke(app: typer.Typer, arguments: list[str]) -> int:
    # Not app(): that prints errors in its own way, several lines each, and ends the process.
    command = typer.main.get_command(app)
    plain_flags(command)
    try:
        with command.make_context("accel", arguments) as context:
            command.invoke(context)
    except typer.Exit as left:
        return left.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    return 0


def _finish(code: int) -> int:
    sys.stdout.flush()  # a closed pipe shows here and not at the interpreter's exit
    return code


def _usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "accel"
    return _tell(f"error: {error.format_message()} (see {path} --help)", int(error.exit_code))


def _ours(error: Exception) -> int:
    what = str(error) if isinstance(error, AccelError) else f"internal error: {type(error).__name__}: {error}"
    return _tell(f"error: {what} [set {DEBUG_VARIABLE}=1 to see where]", 1)


def _tell(text: str, code: int) -> int:
    try:
        if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
            traceback.print_exc()
        print(f"accel: {one_line(text)}", file=sys.stderr, flush=True)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    return code


def _drop_output() -> None:
    # The interpreter flushes stdout once more at its end and would complain about the same pipe.
    with open(os.devnull, "w") as sink:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:
                os.dup2(sink.fileno(), stream.fileno())


def _tolerate_narrow_encodings() -> None:
    # A model may write any character; a terminal that cannot show one gets a "?" and not an error.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
