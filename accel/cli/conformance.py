"""``accel conformance``: does a device keep every promise of the contract?

Invariant: the exit code is 0 exactly when every section is good; what ran, and what did not and why, is in the report.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel.cli.help import examples
from accel.cli.options import DeviceSpec, Json, whole_number
from accel.cli.output import note, print_table, stderr_is_terminal, write_json

if TYPE_CHECKING:
    from accel.conformance.registry import Case
    from accel.conformance.suite import Result, SectionResult

__all__ = ["EPILOG", "conformance"]

EPILOG = examples(
    "accel conformance --device cpu",
    "accel conformance --device cpu events streams",
    "accel conformance --device cpu 'ops/rms_norm*' --seed 7",
    "accel conformance --device cpu --junit report.xml --html report.html",
    "accel conformance --list",
    json='{"device", "accel", "python", "machine", "seed", "seconds", "passed", "first_failing_rung", "sections": '
    '[{"name", "title", "good", "ran", "minimum", "cases": [{"id", "outcome", "seconds", "message"}]}]}',
    after='"outcome" is passed, failed, xfailed (expected by the backend, with its reason), xpassed (and that is a '
    "failure), excluded or not_applicable. A section is good when nothing failed and at least its minimum ran. Exit "
    "code 1: the device does not pass.",
)


def conformance(
    cases: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SECTION|CASE]...", help="Only these; a case may end in *. Default: the whole suite."),
    ] = None,
    device: DeviceSpec = "cpu",
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", parser=whole_number, help="Of all random values; repeats a run.")
    ] = 0,
    listing: Annotated[bool, typer.Option("--list", help="List the cases and what they prove; run none.")] = False,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML there.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one self-contained page there.")
    ] = None,
    json: Json = False,
) -> None:
    """Run the suite that any backend must pass against one device."""
    from accel import registry
    from accel.conformance.registry import Expectations, select
    from accel.conformance.report import as_html, as_json, as_junit, good
    from accel.conformance.suite import run, sections
    from accel.errors import InvalidArgument

    if not 0 <= seed < 2**63:
        raise InvalidArgument(f"--seed is {seed}; it must be 0 to 2**63 - 1")
    chosen = select(cases or [])
    if listing:
        _list(chosen, json)
        return
    with registry.open(device) as opened:
        name = opened.name
    backend = registry.backend(name.partition(":")[0])
    started = time.perf_counter()
    with _progress(len(chosen)) as done:
        results = run(
            backend,
            lambda: registry.open(name),
            chosen,
            seed=seed,
            expectations=Expectations(backend.conformance_exclusions, backend.conformance_failures),
            done=done,
        )
    seconds = time.perf_counter() - started
    found = sections(results, whole=not cases)
    about = _about(name, seed, seconds)
    for path, text in ((junit, as_junit), (html, as_html)):
        if path is not None:
            _write(path, text(found, about))
    if json:
        write_json(as_json(found, about))
    else:
        _print(found, about)
    if not good(found):
        raise typer.Exit(1)


def _about(device: str, seed: int, seconds: float) -> dict[str, Any]:
    import accel

    return {
        "device": device,
        "accel": accel.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "seed": seed,
        "seconds": round(seconds, 2),
    }


def _print(found: list[SectionResult], about: dict[str, Any]) -> None:
    from accel.conformance.report import good, ladder, reds
    from accel.conformance.suite import Outcome

    rows = []
    for section in found:
        counts = [sum(result.outcome is kind for result in section.results) for kind in Outcome]
        cells = ["" if count == 0 else str(count) for count in counts]
        rows.append([section.name, section.title, *cells, "good" if section.good else "NOT GOOD"])
    columns = ("section", "what", *(kind.value for kind in Outcome), "")
    print_table(columns, rows, right=tuple(kind.value for kind in Outcome))
    for result in reds(found):
        print(f"\n{result.outcome.value}: {result.case.id}\n  {result.message}")
        print(f"  again: accel conformance --device {about['device']} '{result.case.id}' --seed {about['seed']}")
    for section in found:
        if section.too_few:
            print(f"\n{section.name}: {section.ran} cases ran; {section.minimum} must")
    ran = sum(section.ran for section in found)
    print(f"\n{about['device']}: {ran} cases ran in {about['seconds']:.1f} s (seed {about['seed']})", end="; ")
    if good(found):
        print("passes")
    else:
        rung = ladder(found)
        print("does NOT pass" + (f"; first rung that does not hold: {rung}" if rung else ""))


def _list(chosen: list[Case], json: bool) -> None:
    if json:
        write_json({"cases": [{"id": item.id, "needs": list(item.needs), "proves": item.proves} for item in chosen]})
        return
    rows = [[item.id, ", ".join(item.needs), item.proves.split("\n")[0]] for item in chosen]
    print_table(("case", "needs", "proves, or its queues"), rows)


def _write(path: Path, text: str) -> None:
    from accel.errors import InvalidArgument

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror}", hint="choose another file") from error
    note(f"wrote {path}")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Result], None]]:
    """A bar on stderr; nothing where nobody would see it."""
    if not stderr_is_terminal():
        yield lambda result: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("conformance", total=total)
        yield lambda result: progress.update(task, advance=1, description=result.case.section)
