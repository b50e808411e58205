"""``accel bench scheduler``: its shape, that the parts add up, and that its clocks leave no trace."""

from __future__ import annotations

from typing import Any

import pytest

import accel
from accel.cli.overhead import COUNTED, KINDS, LIMIT_MS, PARTS, Overhead
from accel.errors import AsyncFailure, InvalidArgument
from accel.scheduler.scheduler import Scheduler

QUICK = ("bench", "scheduler", "--requests", 3, "--steps", 6, "--rounds", 1)


def test_json_has_the_shape_of_the_other_benchmarks_and_the_limit_as_reference(run: Any) -> None:
    got = run(*QUICK, "--json")
    assert got.json.keys() == {"machine", "results"}
    assert got.json["machine"].items() >= {"requests": 3, "decode_steps": 6, "prompt_tokens": 64, "depth": 0}.items()
    results = {entry["name"]: entry for entry in got.json["results"]}
    assert set(results) == {f"scheduler.{kind}{part}" for kind in KINDS for part in ("", *(f".{p}" for p in PARTS))}
    assert {entry["unit"] for entry in results.values()} == {"ms"}
    for kind in KINDS:
        whole = results[f"scheduler.{kind}"]
        assert whole["reference"] == (LIMIT_MS if kind == "greedy" else None)
        assert whole["value"] == pytest.approx(sum(results[f"scheduler.{kind}.{part}"]["value"] for part in COUNTED))
        assert all(results[f"scheduler.{kind}.{part}"]["value"] > 0 for part in PARTS)
        assert all(results[f"scheduler.{kind}.{part}"]["reference"] is None for part in PARTS)
    over = results["scheduler.greedy"]["ratio"] > 1
    assert (got.code, "over the limit" in got.err) == (int(over), over)


@pytest.mark.parametrize("limit", [1e-9, 1e9])
def test_the_exit_code_says_whether_the_limit_holds(run: Any, monkeypatch: pytest.MonkeyPatch, limit: float) -> None:
    monkeypatch.setattr("accel.cli.bench.LIMIT_MS", limit)
    assert run(*QUICK).code == int(limit < 1)


def test_steps_planned_ahead_are_measured_as_well(run: Any) -> None:
    got = run(*QUICK, "--depth", 2, "--json")
    assert got.err == "" or "over the limit" in got.err
    assert got.json["machine"]["depth"] == 2


@pytest.mark.parametrize("name", ["--requests", "--steps", "--rounds"])
def test_counts_below_1_are_refused(run: Any, name: str) -> None:
    got = run("bench", "scheduler", name, 0)
    assert (got.code, got.out) == (2, "")
    assert f"{name} is 0; it must be 1 or more" in got.err


def test_a_depth_out_of_range_is_refused(run: Any) -> None:
    got = run(*QUICK, "--depth", 4)
    assert got.code == 2
    assert "0 to 3" in got.err


def test_the_clocks_are_gone_after_a_measurement() -> None:
    with accel.open("cpu", threads=1) as device, Overhead(device, requests=2, steps=3, depth=None) as overhead:
        engine = overhead.engine
        ops = vars(device.ops).copy()
        overhead.measure("sampled")
        assert vars(device.ops) == ops
        assert not {"schedule", "commit"} & set(vars(engine.scheduler))
        assert not {"pack", "execute"} & set(vars(engine.runner))
        assert not {"forward", "head"} & set(vars(engine.decoder))
        # The model itself answers again.
        assert len(engine.generate([5], accel.SamplingParams(max_tokens=3, ignore_eos=True))[0].token_ids) == 3


def test_a_step_that_raises_ends_the_measurement_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Scheduler, output: Any) -> Any:
        raise AsyncFailure("the copy failed")

    with accel.open("cpu", threads=1) as device, Overhead(device, requests=2, steps=3, depth=0) as overhead:
        monkeypatch.setattr(Scheduler, "commit", fail)
        with pytest.raises(AsyncFailure, match="the copy failed"):
            overhead.measure("greedy")


def test_a_device_whose_ops_are_only_queued_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    with accel.open("cpu", threads=1) as device:
        queued = replace(device.capabilities, host_executed=False)
        monkeypatch.setattr(type(device), "capabilities", property(lambda self: queued), raising=False)
        with pytest.raises(InvalidArgument, match="ops run on the host"):
            Overhead(device, requests=1, steps=1, depth=0)
