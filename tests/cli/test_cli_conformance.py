"""``accel conformance``: what is chosen, what is written where, and what the exit code says."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from accel.conformance import registry
from accel.conformance.registry import Case
from accel.errors import InvalidArgument


def test_the_cpu_passes_and_every_section_ran(run: Any) -> None:
    got = run("conformance", "--device", "cpu", "--json")
    assert got.code == 0, got.out
    assert got.json["passed"] is True
    assert got.json["first_failing_rung"] is None
    assert all(section["ran"] >= section["minimum"] > 0 for section in got.json["sections"])
    assert {section["name"] for section in got.json["sections"]} == {section.name for section in registry.SECTIONS}


def test_some_cases_are_run_and_written_to_private_files(run: Any, tmp_path: Path) -> None:
    junit, page = tmp_path / "report.xml", tmp_path / "report.html"
    got = run("conformance", "--device", "cpu", "events", "copies/of_nothing_succeed", "--junit", junit, "--html", page)
    assert got.code == 0
    assert "10 cases ran" in got.out
    assert "passes" in got.out
    for path in (junit, page):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "never_recorded_is_complete" in path.read_text()


def test_the_list_names_cases_and_runs_none(run: Any) -> None:
    got = run("conformance", "streams", "--list")
    assert "streams/run_in_submission_order" in got.out
    assert run("conformance", "--list", "--json").json["cases"][0]["id"].startswith("probe/")


def test_a_case_that_fails_is_told_with_the_command_that_repeats_it(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(context: Any) -> None:
        raise InvalidArgument("planted")

    case = Case("events", "planted", broken, proves="nothing")
    monkeypatch.setattr("accel.conformance.registry.select", lambda patterns: [case])
    got = run("conformance", "--device", "cpu", "events", "--seed", 5)
    assert got.code == 1
    assert "failed: events/planted" in got.out
    assert "InvalidArgument: planted" in got.out
    assert "accel conformance --device cpu:0 'events/planted' --seed 5" in got.out
    assert "does NOT pass; first rung that does not hold: events" in got.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evnts",), "no case or section is called 'evnts'"),
        (("--seed", "-1"), "--seed is -1"),
        (("--device", "nothing:0"), "nothing"),
        (("probe", "--junit", "/nowhere/report.xml"), "cannot write /nowhere/report.xml"),
    ],
)
def test_bad_options_are_refused(run: Any, arguments: tuple[str, ...], message: str) -> None:
    got = run("conformance", *arguments)
    assert got.code == 2
    assert message in got.err
