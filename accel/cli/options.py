"""Options that several commands share: one spelling, one help text, one meaning."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "ENGINE_PANEL",
    "BatchTokens",
    "BlockSize",
    "DeviceSpec",
    "Dtype",
    "Json",
    "KvDtype",
    "KvOrder",
    "Model",
    "Threads",
    "number",
    "whole_number",
]

#: The heading that options of the engine stand under in --help.
ENGINE_PANEL = "Model and engine"


def whole_number(value: str | int) -> int:
    """Parser of integer options. Its message names the value, which typer's own does not in every version."""
    try:
        return int(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r:.60} is not a whole number") from None


def number(value: str | float) -> float:
    """Parser of real options; takes nan and inf, which their owners refuse with the limit."""
    try:
        return float(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r:.60} is not a number") from None


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead (its shape: below).")]
DeviceSpec = Annotated[str, typer.Option("--device", metavar="NAME[:N]", help="auto, cpu, gpu:0, … (accel devices).")]
Model = Annotated[
    str,
    typer.Option("--model", metavar="PATH", help="A Hugging Face folder, a .gguf file, or demo (SmolLM2-135M)."),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        parser=whole_number,
        help="Size of the CPU's thread pool. Default: one a CPU of this process.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="NAME",
        help="How weights are held: auto (as in the file), float32, bfloat16, …",
        rich_help_panel=ENGINE_PANEL,
    ),
]
BlockSize = Annotated[
    int,
    typer.Option(
        "--block-size", metavar="N", parser=whole_number, help="Tokens in a KV block.", rich_help_panel=ENGINE_PANEL
    ),
]
BatchTokens = Annotated[
    int,
    typer.Option(
        "--max-batch-tokens",
        metavar="N",
        parser=whole_number,
        help="Tokens of a step; longer prompts go in chunks.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
KvDtype = Annotated[
    str,
    typer.Option("--kv-dtype", metavar="NAME", help="float32, bfloat16 or float16.", rich_help_panel=ENGINE_PANEL),
]
KvOrder = Annotated[
    str,
    typer.Option("--kv-order", metavar="NAME", help="page_first or layer_first.", rich_help_panel=ENGINE_PANEL),
]
