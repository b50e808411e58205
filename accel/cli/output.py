"""What commands write, and where: results on stdout, everything about the run on stderr.

Invariant: stdout holds the result and nothing else, so that it can be piped; colour and bars appear on terminals only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["human_bytes", "note", "one_line", "print_table", "stderr_is_terminal", "stdout_is_terminal", "write_json"]


def one_line(text: str) -> str:
    """`text` with every run of white space, line ends included, as one blank."""
    return " ".join(text.split())


def note(text: str) -> None:
    """One line about the run, on stderr."""
    print(one_line(text), file=sys.stderr, flush=True)


def stderr_is_terminal() -> bool:
    """Whether a person watches stderr, so that a progress bar makes sense."""
    return sys.stderr.isatty()


def stdout_is_terminal() -> bool:
    """Whether results appear on a terminal, which may be the one that shows a bar."""
    return sys.stdout.isatty()


def write_json(value: Any) -> None:
    """`value` on stdout as one indented JSON document, with its non-ASCII text readable where stdout can show it."""
    utf8 = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    print(json.dumps(value, indent=2, ensure_ascii=not utf8, allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """A plain table on stdout; nothing is cut, whatever the width. Columns in `right` are aligned right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        justify: Any = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # A pipe has no width: there every row is one line.
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    with console.capture() as rendered:
        console.print(table)
    print("\n".join(line.rstrip() for line in rendered.get().splitlines()))


def human_bytes(count: float) -> str:
    """`count` bytes in the binary unit that leaves one to four digits: "23.5 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
