"""What ``--help`` shows beyond the options' texts: examples, the shape of ``--json``, and flags without a type."""

from __future__ import annotations

from typing import Any

__all__ = ["examples", "plain_flags"]


def examples(*lines: str, json: str = "", after: str = "") -> str:
    """An epilog: the example commands `lines`, the shape `json` and a closing remark, a paragraph each."""
    parts = ["Examples:", *(f"$ {line}" for line in lines)]
    if json:
        parts.append(f"Shape of --json: {json}")
    if after:
        parts.append(after)
    # Typer joins the lines of a paragraph, and reads [x] as markup.
    return "\n\n".join(parts).replace("[", "\\[")


def plain_flags(command: Any) -> None:
    """Show the flags of `command` and its sub-commands without "<bool>", which looks as if they took a value."""
    # The context only tells the names of the help option, which is made when it is first asked for, and kept.
    context = command.context_class(command, help_option_names=["-h", "--help"])
    for parameter in command.get_params(context):
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    for child in getattr(command, "commands", {}).values():
        plain_flags(child)
