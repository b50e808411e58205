"""What a run makes of its cases: reasons, expectations, minimums, hangs; and reports that all tell the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

import accel
from accel.backends.cpu.backend import CpuBackend
from accel.conformance import registry, suite
from accel.conformance.context import Context
from accel.conformance.registry import SECTIONS, Case, Expectations, all_cases, select
from accel.conformance.report import as_html, as_json, as_junit, good, ladder, reds
from accel.conformance.suite import Outcome, Result, run, sections
from accel.errors import InvalidArgument


def nothing(context: Context) -> None:
    """Passes."""


def broken(context: Context) -> None:
    context.check(False, "two is <three> & \x01")


def foreign(context: Context) -> None:
    raise ZeroDivisionError("planted")


def outcome_of(body: Callable[[Context], None], **options: object) -> Result:
    case = Case("streams", "planted", body, **options)  # type: ignore[arg-type]
    return run(CpuBackend(), lambda: accel.open("cpu", threads=1), [case])[0]


def with_expectations(body: Callable[[Context], None], monkeypatch: pytest.MonkeyPatch, **named: str) -> Result:
    case = Case("streams", "planted", body)
    monkeypatch.setattr(suite, "all_cases", lambda: [case])
    expectations = Expectations(**{kind: {case.id: reason} for kind, reason in named.items()})
    return run(CpuBackend(), lambda: accel.open("cpu", threads=1), [case], expectations=expectations)[0]


def test_ids_are_unique_and_every_section_has_at_least_its_minimum() -> None:
    ids = [case.id for case in all_cases()]
    assert len(set(ids)) == len(ids)
    for section in SECTIONS:
        assert sum(case.section == section.name for case in all_cases()) >= section.minimum > 0


def test_every_case_says_what_it_proves() -> None:
    assert [case.id for case in all_cases() if not case.proves] == []


def test_a_second_case_of_one_name_and_an_unknown_section_are_refused() -> None:
    with pytest.raises(ValueError, match="defined twice"):
        registry.add(all_cases()[0])
    with pytest.raises(ValueError, match="no section"):
        registry.add(Case("nowhere", "case", nothing))


def test_patterns_choose_sections_cases_and_prefixes_and_a_typo_is_told() -> None:
    assert {case.section for case in select(["events", "streams"])} == {"events", "streams"}
    assert [case.id for case in select(["copies/of_nothing_succeed"])] == ["copies/of_nothing_succeed"]
    assert all(case.id.startswith("ops/rms_norm") for case in select(["ops/rms_norm*"]))
    assert len(select([])) == len(all_cases())
    with pytest.raises(InvalidArgument, match="'evnts'"):
        select(["evnts"])


@pytest.mark.parametrize(
    ("body", "outcome", "message"),
    [
        (nothing, Outcome.PASSED, ""),
        (broken, Outcome.FAILED, "two is <three>"),
        (foreign, Outcome.FAILED, "ZeroDivisionError: planted (line "),
    ],
)
def test_a_case_passes_or_says_what_is_wrong(body: Callable[[Context], None], outcome: Outcome, message: str) -> None:
    result = outcome_of(body)
    assert result.outcome is outcome
    assert message in result.message


def test_a_capability_that_is_none_makes_a_case_not_applicable() -> None:
    result = outcome_of(broken, needs=("graph_capture",))
    assert (result.outcome, result.message) == (Outcome.NOT_APPLICABLE, "graph_capture is none here")
    assert not result.outcome.ran


def test_exclusions_and_expected_failures_need_a_reason_and_stay_true(monkeypatch: pytest.MonkeyPatch) -> None:
    excluded = with_expectations(broken, monkeypatch, exclusions="the driver of 2023 hangs")
    assert (excluded.outcome, excluded.message) == (Outcome.EXCLUDED, "the driver of 2023 hangs")
    expected = with_expectations(broken, monkeypatch, failures="rounding of v1")
    assert expected.outcome is Outcome.XFAILED
    assert not expected.outcome.red
    stale = with_expectations(nothing, monkeypatch, failures="rounding of v1")
    assert stale.outcome is Outcome.XPASSED
    assert stale.outcome.red
    with pytest.raises(InvalidArgument, match="no reason"):
        with_expectations(nothing, monkeypatch, exclusions=" ")
    with pytest.raises(InvalidArgument, match="which is no case"):
        run(CpuBackend(), lambda: accel.open("cpu"), [], expectations=Expectations({"streams/none": "why"}))


def test_a_case_that_hangs_fails_and_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(suite, "CASE_SECONDS", 0.2)
    cases = [Case("streams", "hangs", lambda _: release.wait(60) and None), Case("streams", "after", nothing)]
    results = run(CpuBackend(), lambda: accel.open("cpu", threads=1), cases)
    release.set()
    assert [(result.case.name, result.outcome) for result in results] == [("hangs", Outcome.FAILED)]
    assert "did not end in 0.2 s" in results[0].message


def test_a_device_that_a_case_closes_is_opened_anew_for_the_next() -> None:
    cases = [Case("streams", "closes", lambda context: context.device.close()), Case("streams", "after", uses)]
    results = run(CpuBackend(), lambda: accel.open("cpu", threads=1), cases)
    assert [result.outcome for result in results] == [Outcome.PASSED, Outcome.PASSED]


def uses(context: Context) -> None:
    context.stream().synchronize(5)


def test_a_device_that_ran_too_little_does_not_pass() -> None:
    few = [Result(case, Outcome.PASSED) for case in all_cases()[:3]]
    found = sections(few)
    assert not good(found)
    assert ladder(found) == "probe"
    assert all(section.too_few for section in found)
    assert good(sections(few, whole=False))


def test_all_reports_tell_the_same() -> None:
    results = [Result(case, Outcome.PASSED, 0.5) for case in all_cases()]
    bad = next(index for index, result in enumerate(results) if result.case.section == "events")
    results[bad] = Result(results[bad].case, Outcome.FAILED, 0.1, "two is <three> & \x01")
    found, about = sections(results), {"device": "cpu:0", "seed": 3}
    document = json.loads(json.dumps(as_json(found, about)))
    assert (document["passed"], document["first_failing_rung"], document["device"]) == (False, "events", "cpu:0")
    assert [result.case.id for result in reds(found)] == [results[bad].case.id]
    tree = ElementTree.fromstring(as_junit(found, about))
    assert len(tree.findall(".//testcase")) == len(results)
    assert [node.get("message") for node in tree.findall(".//failure")] == ["two is <three> & \ufffd"]
    page = as_html(found, about)
    assert "does not pass" in page
    assert "two is &lt;three&gt;" in page
    assert "http" not in page
    assert "passes" in as_html(sections([Result(case, Outcome.PASSED) for case in all_cases()]), about)
