"""``import accel`` is light: no framework, no NumPy, no native module, no scan of entry points."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import pytest

import accel

#: Milliseconds an import may take beyond an empty interpreter.
LIMIT_MS = 100.0
#: The machine may be busy: the best of so many medians counts.
TRIES = 5

HEAVY = ("paddle", "numpy", "gguf", "safetensors", "tokenizers", "jinja2", "typer", "rich", "importlib.metadata")


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded(statement: str) -> set[str]:
    """Modules that `statement` loads beyond those an interpreter starts with."""
    report = "print(json.dumps(sorted(set(sys.modules) - before)))"
    return set(json.loads(run(f"import sys, json\nbefore = set(sys.modules)\n{statement}\n{report}")))


def test_import_loads_nothing_heavy() -> None:
    modules = loaded("import accel")
    assert not modules & set(HEAVY)
    assert {name for name in modules if name.split(".")[0] == "accel"} == {"accel"}


@pytest.mark.parametrize("name", ["Backend", "Capabilities", "Device", "Probe", "Support", "SamplingParams", "open"])
def test_the_contract_needs_neither_framework_nor_numpy(name: str) -> None:
    assert not loaded(f"import accel; accel.{name}") & set(HEAVY)


def test_probing_needs_no_framework() -> None:
    modules = loaded("import accel.registry; accel.registry.probe_all()")
    assert "paddle" not in modules


@pytest.mark.parametrize("name", accel.__all__)
def test_every_public_name_works(name: str) -> None:
    value = getattr(accel, name)
    assert getattr(accel, name) is value
    assert name in dir(accel)


def test_an_unknown_attribute_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'accel' has no attribute 'opne'"):
        accel.opne  # type: ignore[attr-defined] # noqa: B018
    assert not hasattr(accel, "__wrapped__")


def _milliseconds(statement: str) -> float:
    begin = time.perf_counter()
    run(statement)
    return (time.perf_counter() - begin) * 1e3


def test_import_time() -> None:
    measured = []
    for _ in range(TRIES):
        # Alternating, so that a slow moment meets both sides.
        pairs = [(_milliseconds("import accel"), _milliseconds("pass")) for _ in range(5)]
        net = statistics.median(with_it for with_it, _ in pairs) - statistics.median(empty for _, empty in pairs)
        measured.append(net)
        print(f"import accel: {net:.1f} ms net of an empty interpreter")
        if net < LIMIT_MS:
            return
    pytest.fail(f"import accel takes {min(measured):.0f} ms at best; the limit is {LIMIT_MS:.0f} ms")
