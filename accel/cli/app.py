"""The command tree. Each command is in its own module; this one only puts them together."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

import accel
from accel.cli import bench, conformance, devices, doctor, generate, ops
from accel.cli.help import examples

__all__ = ["app"]

app = typer.Typer(
    name="accel",
    help="One backend contract for LLM inference on any accelerator.",
    epilog=examples(
        "accel doctor",
        "accel generate --prompt 'The capital of France is'",
        "accel bench decode --model demo",
        "accel conformance --device cpu",
        after="Exit codes: 0 done, 2 something to correct in what was asked, 1 a fault of ours, 130 interrupted. Every "
        "command takes --json and --help.",
    ),
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """One backend contract for LLM inference on any accelerator."""
    if version:
        typer.echo(f"accel {accel.__version__} (Python {platform.python_version()})")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("devices", epilog=devices.EPILOG)(devices.devices)
app.command("doctor", epilog=doctor.EPILOG)(doctor.doctor)
app.command("ops", epilog=ops.EPILOG)(ops.ops)
app.command("generate", epilog=generate.EPILOG)(generate.generate)
app.command("conformance", epilog=conformance.EPILOG)(conformance.conformance)
app.add_typer(bench.app, name="bench")
