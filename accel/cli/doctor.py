"""``accel doctor``: why each backend can or cannot be used here, and the command that changes it."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING

from accel.cli.help import examples
from accel.cli.options import Json
from accel.cli.output import one_line, write_json

if TYPE_CHECKING:
    from accel.doctor import BackendReport

__all__ = ["EPILOG", "doctor"]

EPILOG = examples(
    "accel doctor",
    "accel doctor --json",
    json='{"accel", "python", "backends": [{"name", "state", "reason", "hint", "devices", "versions", "build", '
    '"notes"}]}',
    after='"state" is available, unusable (present, but its stack is not), absent or broken; "hint" changes it.',
)

_STYLES = {"available": "green", "unusable": "yellow", "broken": "red", "absent": "dim"}


def doctor(json: Json = False) -> None:
    """Explain each backend in one line: state, reason, versions, build, and the command that fixes it."""
    import accel
    from accel.doctor import diagnose

    reports = diagnose()
    if json:
        write_json(
            {
                "accel": accel.__version__,
                "python": platform.python_version(),
                "backends": [report.to_json() for report in reports],
            }
        )
        return
    _print(reports)


def describe(report: BackendReport) -> str:
    """Everything known of one backend but its name and state, on one line."""
    facts = [*report.versions.items(), *report.build.items()]
    text = report.reason
    if facts:
        text += f" [{', '.join(f'{key} {value}' for key, value in facts)}]"
    if report.notes:
        text += f" (note: {'; '.join(report.notes)})"
    return one_line(f"{text} -> {report.hint}" if report.hint else text)


def _print(reports: list[BackendReport]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 10_000)
    name_width = max((len(report.name) for report in reports), default=0)
    for report in reports:
        line = Text(f"{report.name:<{name_width}}  ")
        line.append(f"{report.state:<9}", style=_STYLES.get(report.state, ""))
        line.append(f"  {describe(report)}")
        console.print(line)
