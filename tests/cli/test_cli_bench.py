"""``accel bench`` and the measuring code: shapes, references, and that an instrument leaves no trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import accel
from accel.cli.measure import Result, interleave, machine
from accel.cli.speed import OpTimer, bench_ids, decode_seconds, shares
from accel.errors import InvalidArgument
from accel.sampling_params import SamplingParams

RESULT_KEYS = {"name", "value", "unit", "reference", "ratio"}
MACHINE_KEYS = {"processor", "architecture", "cpus", "load", "memory_bytes", "system", "python", "accel"}
QUICK = ("--rounds", 1, "--device", "cpu", "--threads", 1)

#: Stands in for the peer: it generates, and tells what it was given.
FAKE_PEER = """
__version__ = "9.9"
print("chatter on stdout must not be taken for an answer")
class Llama:
    def __init__(self, *, n_threads, n_ctx, **options):
        assert n_threads == 1 and n_ctx >= 20
    def reset(self):
        pass
    def generate(self, ids, **options):
        while True:
            yield 1
"""


def _peer(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (folder / "llama_cpp.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("ACCEL_PEER_PYTHON", sys.executable)


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_json_has_the_documented_shape_and_null_references_without_a_peer(run: Any, ids_model: Path, kind: str) -> None:
    got = run("bench", kind, "--model", ids_model, "--tokens", 4, *QUICK, "--json")
    assert got.code == 0, got.err
    assert got.json.keys() == {"machine", "results"}
    assert got.json["machine"].keys() >= MACHINE_KEYS | {"device", "threads", "model", "peer", "rounds"}
    assert all(entry.keys() == RESULT_KEYS for entry in got.json["results"])
    speed, outside = got.json["results"]
    assert (speed["name"], speed["unit"]) == (kind, "tokens/s")
    assert speed["value"] > 0
    assert (speed["reference"], speed["ratio"], got.json["machine"]["peer"]) == (None, None, None)
    assert (outside["name"], outside["unit"]) == (f"{kind}.outside_ops", "share")
    assert 0 < outside["value"] < 1
    assert got.err.startswith("no reference: ")


def test_profile_shares_of_a_step_add_up_to_one(run: Any, ids_model: Path) -> None:
    got = run("bench", "decode", "--model", ids_model, "--tokens", 8, *QUICK, "--profile", "--json").json
    parts = {entry["name"]: entry["value"] for entry in got["results"] if entry["unit"] == "share"}
    assert sum(parts.values()) == pytest.approx(1)
    assert "decode.op.linear" in parts


def test_a_batch_counts_the_tokens_of_all_its_requests(run: Any, ids_model: Path) -> None:
    got = run("bench", "decode", "--model", ids_model, "--tokens", 4, "--batch", 3, *QUICK, "--json")
    assert got.json["machine"]["batch"] == 3
    assert "one request" in got.err


def test_the_peer_is_measured_in_the_same_run(
    run: Any, text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _peer(tmp_path, monkeypatch, FAKE_PEER)
    arguments = ("--model", text_model, "--tokens", 8, "--prompt-tokens", 4, *QUICK, "--json")
    got = run("bench", "decode", *arguments)
    assert got.err == ""
    assert got.json["machine"]["peer"] == "llama-cpp-python 9.9"
    speed = got.json["results"][0]
    assert speed["ratio"] == pytest.approx(speed["value"] / speed["reference"])


def test_a_peer_that_its_own_kernels_kill_runs_without_them(
    run: Any, text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The bindings' default parameters say whether the repacked weights are on, and the model dies of them.
    source = """
import os, types
llama_cpp = types.SimpleNamespace(llama_model_default_params=lambda: types.SimpleNamespace(use_extra_bufts=True))
"""
    dying = FAKE_PEER.replace(
        "pass", "if llama_cpp.llama_model_default_params().use_extra_bufts: os.kill(os.getpid(), 4)"
    )
    _peer(tmp_path, monkeypatch, source + dying)
    got = run("bench", "decode", "--model", text_model, "--tokens", 2, *QUICK, "--json")
    assert got.err == ""
    assert got.json["machine"]["peer"] == "llama-cpp-python 9.9 without repacking"
    assert got.json["results"][0]["ratio"] > 0


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('no such CPU')", "RuntimeError: no such CPU"),
        ("import os; os._exit(7)", "exit code 7"),
        ("import os; os.kill(os.getpid(), 4)", "SIGILL"),
        (FAKE_PEER.replace("yield 1", "yield 1 // (len(ids) == 4)"), "exit code 1"),
    ],
)
def test_a_peer_that_fails_becomes_a_note(
    run: Any, text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    _peer(tmp_path, monkeypatch, source)
    got = run("bench", "decode", "--model", text_model, "--tokens", 2, *QUICK, "--json")
    assert got.code == 0
    assert got.json["results"][0]["reference"] is None
    assert reason in got.err


def test_a_run_longer_than_the_model_is_refused_with_both_lengths(run: Any, ids_model: Path) -> None:
    got = run("bench", "prefill", "--model", ids_model, "--tokens", 128, *QUICK)
    assert got.code == 2
    assert "129" in got.err
    assert "128" in got.err


def test_prompts_that_do_not_fit_one_step_are_refused(run: Any, ids_model: Path) -> None:
    got = run("bench", "decode", "--model", ids_model, "--batch", 2, "--max-batch-tokens", 16, *QUICK)
    assert got.code == 2
    assert "--max-batch-tokens" in got.err


def test_the_op_timer_counts_while_it_is_attached_and_then_leaves_no_trace(ids_model: Path) -> None:
    with accel.Engine(str(ids_model), "cpu", num_blocks=8, max_requests=2) as engine:
        before = vars(engine.device.ops).copy()
        want = engine.generate([5, 6], SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids
        timer = OpTimer(engine.device.ops)
        with timer.attached():
            got = engine.generate([5, 6], SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids
        assert got == want
        assert timer.seconds["linear"] > 0
        assert timer.seconds["pages_copy"] == 0
        assert vars(engine.device.ops) == before


def test_an_op_that_raises_inside_the_timer_raises(ids_model: Path) -> None:
    with accel.open("cpu") as device, OpTimer(device.ops).attached(), pytest.raises(InvalidArgument):
        device.ops.argmax(device.current_stream(), None, None)


def test_shares_of_an_engine_are_of_the_timed_part(ids_model: Path) -> None:
    with accel.Engine(str(ids_model), "cpu", num_blocks=16, max_requests=2) as engine:
        parts = shares(engine, lambda timer: decode_seconds(engine, [5, 6], 2, 4, timer))
    assert "pack_step" in parts
    assert "pages_zero" not in parts
    assert sum(parts.values()) == pytest.approx(1)


def test_bench_ids_are_in_the_vocabulary_and_repeatable() -> None:
    ids = bench_ids(1000, 40)
    assert len(ids) == 1000
    assert set(ids) <= set(range(40))
    assert ids == bench_ids(1000, 40)


def test_interleave_takes_turns_and_gives_medians() -> None:
    calls: list[str] = []
    values = {"a": iter([1.0, 9.0, 2.0]), "b": iter([5.0, 5.0, 6.0])}

    def side(name: str) -> float:
        calls.append(name)
        return next(values[name])

    steps: list[None] = []
    got = interleave({"a": lambda: side("a"), "b": lambda: side("b")}, 3, lambda: steps.append(None))
    assert got == {"a": 2.0, "b": 5.0}
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert len(steps) == 6


def test_a_result_without_a_reference_has_no_ratio() -> None:
    assert Result("x", 3.0, "s").to_json() == dict(zip(sorted(RESULT_KEYS), ["x", None, None, "s", 3.0], strict=True))
    assert Result("x", 3.0, "s", 2.0).ratio == 1.5


def test_machine_tells_what_numbers_depend_on() -> None:
    assert machine(rounds=3).keys() == MACHINE_KEYS | {"rounds"}
