"""A backend of another distribution is found by its entry point alone, and generates what the CPU does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import accel_toy
import numpy as np
import pytest

import accel
from accel import registry
from accel.ops.table import Kind

PACKAGE = Path(accel_toy.__file__).resolve().parent
PARAMS = accel.SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``pip install --target`` leaves: the package, and a dist-info with the entry points of pyproject.toml."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    text = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'\[project\.entry-points\."(.+)"\]\n(\w+) = "(.+)"', text)
    assert found is not None
    info = folder / "accel_toy-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: accel-toy\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[{found[1]}]\n{found[2]} = {found[3]}\n")
    return folder


def _accel(site: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "accel.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_an_installed_package_is_found_by_its_entry_point(site: Path) -> None:
    devices = json.loads(_accel(site, "devices", "--json"))["devices"]
    assert "toy:0" in [entry["device"] for entry in devices]


def test_it_generates_from_the_command_line_what_the_cpu_does(site: Path, model: Path) -> None:
    arguments = ("generate", "--model", str(model), "--prompt-ids", "5,6,7", "--max-tokens", "6", "--json")
    toy = json.loads(_accel(site, *arguments, "--device", "toy"))
    with accel.Engine(str(model), "cpu", num_blocks=4) as engine:
        cpu = engine.generate([5, 6, 7], accel.SamplingParams(max_tokens=6))[0]
    assert toy["token_ids"] == cpu.token_ids


def test_it_conforms(site: Path) -> None:
    report = json.loads(_accel(site, "conformance", "--device", "toy", "--json"))
    assert report["passed"], [case for part in report["sections"] for case in part["cases"] if case["message"]]


def test_its_logits_are_the_cpus_up_to_its_own_op(model: Path) -> None:
    ids = list(range(3, 30))
    with registry.registered(accel_toy.ToyBackend), accel.Engine(str(model), "toy", num_blocks=8) as engine:
        got = engine.logits(ids)
    with accel.Engine(str(model), "cpu", num_blocks=8) as engine:
        want = engine.logits(ids)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_its_own_op_is_in_the_table_and_runs_in_stream_order() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 8), np.float32)
    out = np.empty((3, 4), np.float32)
    with registry.registered(accel_toy.ToyBackend), accel.open("toy") as device:
        assert device.ops.implementation("silu_and_mul").kind is Kind.LIBRARY
        stream = device.current_stream()
        device.ops.silu_and_mul(stream, device.view(out), device.view(x))
        stream.synchronize()
    np.testing.assert_allclose(out, x[:, :4] / (1 + np.exp(-x[:, :4])) * x[:, 4:], rtol=1e-6)


def test_auto_never_chooses_it() -> None:
    with registry.registered(accel_toy.ToyBackend), accel.open("auto") as device:
        assert device.name != "toy:0"


def test_closing_it_closes_what_it_borrowed() -> None:
    with registry.registered(accel_toy.ToyBackend):
        device = accel.open("toy")
        device.close()
        device.close()
    assert device.closed  # type: ignore[attr-defined]
