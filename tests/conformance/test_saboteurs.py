"""The suite is proved by what it rejects: each saboteur in its section, for its reason; the honest device passes."""

from __future__ import annotations

import pytest
from saboteurs import EXPECTED, Honest, backend_of

from accel.backends.cpu.backend import CpuDevice
from accel.conformance.registry import Case, all_cases
from accel.conformance.suite import Result, run, sections


def cases_of(*names: str) -> list[Case]:
    """The cases of some sections; of ops a few, for each of its families has many alike."""
    chosen = [case for case in all_cases() if case.section in names]
    ops = ("rms_norm", "silu_and_mul", "argmax")
    return [case for case in chosen if case.section != "ops" or case.name.startswith(ops)]


def results_of(device: type[CpuDevice], *names: str) -> list[Result]:
    backend = backend_of(device)
    return run(backend, lambda: backend.open(threads=1), cases_of(*names))


def reds(results: list[Result]) -> set[str]:
    return {result.case.section for result in results if result.outcome.red}


@pytest.mark.parametrize("saboteur", EXPECTED, ids=lambda kind: kind.__name__)
def test_the_section_of_its_defect_rejects_a_saboteur(saboteur: type[CpuDevice]) -> None:
    assert EXPECTED[saboteur] in reds(results_of(saboteur, EXPECTED[saboteur]))


def test_the_honest_device_under_the_same_disguise_passes() -> None:
    results = results_of(Honest, *{*EXPECTED.values(), "layout"})
    assert [(result.case.id, result.message) for result in results if result.outcome.red] == []
    assert all(section.good for section in sections(results, whole=False))
