"""Epilogs of ``--help``: examples, and the shape of ``--json``, laid out as typer prints them."""

from __future__ import annotations

__all__ = ["examples"]


def examples(*lines: str, json: str = "", after: str = "") -> str:
    """An epilog: the example commands `lines`, the shape `json` and a closing remark, a paragraph each."""
    parts = ["Examples:", *(f"$ {line}" for line in lines)]
    if json:
        parts.append(f"Shape of --json: {json}")
    if after:
        parts.append(after)
    # Typer joins the lines of a paragraph, and reads [x] as markup.
    return "\n\n".join(parts).replace("[", "\\[")
