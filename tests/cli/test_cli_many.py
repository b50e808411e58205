"""Several requests in one run of ``accel generate``: order, files, failures, interruption, summary."""

from __future__ import annotations

import json
import math
import os
import signal
import stat
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_builders import CONFIG, write_folder

import accel
from accel.cli.batch import Progress, requests_progress
from accel.cli.records import check_target
from accel.errors import AsyncFailure, InvalidArgument
from accel.runner.plan import StepPlan
from accel.runner.runner import Runner

PROMPTS = ([5, 6, 7], [8], [9, 10, 11, 12])
IDS = tuple(part for ids in PROMPTS for part in ("--prompt-ids", ",".join(map(str, ids))))
SHORT = ("--max-tokens", 5, "--ignore-eos", "--device", "cpu")
SUMMARY = {
    "requests",
    "failed",
    "prompt_tokens",
    "hit_tokens",
    "hit_share",
    "generated_tokens",
    "tokens_per_second",
    "time_to_first_token",
    "time_per_output_token",
    "preemptions",
    "load_time",
    "wall_time",
}


@pytest.fixture(scope="module")
def alone(ids_model: Path) -> list[list[int]]:
    """What each prompt gives when nothing else runs."""
    params = accel.SamplingParams(max_tokens=5, ignore_eos=True)
    with accel.Engine(str(ids_model), "cpu", num_blocks=8) as engine:
        return [engine.generate(list(ids), params)[0].token_ids for ids in PROMPTS]


def _write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _lines(text: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Records, and the summary."""
    *records, last = map(json.loads, text.splitlines())
    assert last.keys() == {"summary"}
    return records, last["summary"]


def test_several_prompts_stand_under_headers_in_order(run: Any, ids_model: Path, alone: list[list[int]]) -> None:
    got = run("generate", "--model", ids_model, *IDS, *SHORT)
    blocks = [f"==> prompt-{n} <==\n{' '.join(map(str, ids))}\n" for n, ids in enumerate(alone, 1)]
    assert got.out == "\n".join(blocks)
    assert got.err.count("\n") == 1
    assert "3 requests" in got.err
    assert "8 prompt tokens" in got.err
    assert "15 generated" in got.err


def test_texts_come_before_ids(run: Any, text_model: Path) -> None:
    got = run("generate", "--model", text_model, "--prompt-ids", "5", "--prompt", "hello", *SHORT, "--json").json
    assert [entry["prompt_token_ids"] for entry in got[:-1]] == [[262], [5]]


def test_json_of_several_is_a_list_in_order_with_the_summary_last(
    run: Any, ids_model: Path, alone: list[list[int]]
) -> None:
    got = run("generate", "--model", ids_model, *IDS, *SHORT, "--max-requests", 1, "--json").json
    assert [entry["token_ids"] for entry in got[:-1]] == alone
    assert [entry["index"] for entry in got[:-1]] == [0, 1, 2]
    numbers = got[-1]["summary"]
    assert numbers.keys() == SUMMARY
    assert (numbers["requests"], numbers["failed"], numbers["prompt_tokens"]) == (3, 0, 8)
    assert numbers["generated_tokens"] == 15
    firsts = [entry["metrics"]["time_to_first_token"] for entry in got[:-1]]
    assert numbers["time_to_first_token"]["median"] == statistics.median(firsts)
    assert numbers["time_to_first_token"]["median"] <= numbers["time_to_first_token"]["p99"] <= max(firsts)
    assert numbers["tokens_per_second"] == pytest.approx(15 / numbers["wall_time"])


def test_choices_are_those_of_seeds_in_a_row(run: Any, ids_model: Path) -> None:
    arguments = ("generate", "--model", ids_model, "--prompt-ids", "5,6", "--temperature", 1.5, *SHORT, "--json")
    got = run(*arguments, "-n", 3, "--seed", 40).json[:-1]
    assert [(entry["choice"], entry["seed"]) for entry in got] == [(0, 40), (1, 41), (2, 42)]
    for entry in got:
        assert run(*arguments, "--seed", entry["seed"]).json["token_ids"] == entry["token_ids"]
    text = run(*arguments[:-1], "-n", 2, "--seed", 40).out
    assert text.startswith("==> prompt-1, choice 0 <==\n")
    assert "==> prompt-1, choice 1 <==\n" in text


def test_a_file_gives_a_line_an_output(run: Any, ids_model: Path, tmp_path: Path, alone: list[list[int]]) -> None:
    jobs = [{"prompt_token_ids": ids, "id": f"job {n}"} for n, ids in enumerate(PROMPTS)]
    got = run("generate", "--model", ids_model, "--file", _write(tmp_path / "in.jsonl", *jobs), *SHORT, "-q")
    assert (got.code, got.err) == (0, "")
    records, numbers = _lines(got.out)
    assert {entry["id"]: entry["token_ids"] for entry in records} == {f"job {n}": ids for n, ids in enumerate(alone)}
    assert numbers["requests"] == 3


def test_one_line_in_a_file_is_written_as_lines_too(run: Any, ids_model: Path, tmp_path: Path) -> None:
    file = _write(tmp_path / "in.jsonl", {"prompt_token_ids": [5]})
    assert len(run("generate", "--model", ids_model, "--file", file, *SHORT).out.splitlines()) == 2
    assert len(run("generate", "--model", ids_model, "--file", file, *SHORT, "--json").json) == 2


def test_params_of_lines_hold_for_their_own_request(run: Any, ids_model: Path, tmp_path: Path) -> None:
    jobs = [{"prompt_token_ids": [5], "params": {"max_tokens": n}} for n in (1, 4, 2)]
    got = run("generate", "--model", ids_model, "--file", _write(tmp_path / "in.jsonl", *jobs), *SHORT, "--json").json
    assert [len(entry["token_ids"]) for entry in got[:-1]] == [1, 4, 2]


def test_a_higher_priority_goes_first(run: Any, ids_model: Path, tmp_path: Path) -> None:
    jobs = [{"prompt_token_ids": [5], "id": n, "priority": n} for n in range(4)]
    file = _write(tmp_path / "in.jsonl", {"prompt_token_ids": [6] * 20, "id": "first", "priority": 1000}, *jobs)
    got = run("generate", "--model", ids_model, "--file", file, *SHORT, "--max-requests", 1)
    assert [entry["id"] for entry in _lines(got.out)[0]][-1] == 0


def test_prompts_that_begin_alike_hit_the_cache_unless_it_is_off(run: Any, ids_model: Path) -> None:
    ids = ",".join(["5"] * 40)
    arguments = ("generate", "--model", ids_model, "--prompt-ids", ids, "--prompt-ids", f"{ids},6", *SHORT, "--json")
    *entries, last = run(*arguments, "--max-requests", 1, "--num-blocks", 16).json
    assert [entry["metrics"]["hit_tokens"] for entry in entries] == [0, 32]
    assert last["summary"]["hit_tokens"] == 32
    assert last["summary"]["hit_share"] == pytest.approx(32 / 81)
    off = run(*arguments, "--max-requests", 1, "--num-blocks", 16, "--no-prefix-cache").json
    assert off[-1]["summary"]["hit_tokens"] == 0
    assert [entry["token_ids"] for entry in off[:-1]] == [entry["token_ids"] for entry in entries]


def test_an_output_is_a_new_file_of_its_owner(run: Any, ids_model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    arguments = ("generate", "--model", ids_model, *IDS, *SHORT, "--output", target)
    before = os.umask(0)
    try:
        got = run(*arguments)
    finally:
        os.umask(before)
    assert (got.code, got.out) == (0, "")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    written = target.read_text()
    assert len(_lines(written)[0]) == 3
    again = run(*arguments)
    assert again.code == 2
    assert "--force" in again.err
    assert target.read_text() == written
    target.chmod(0o644)
    assert run(*arguments, "--force").code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert target.read_text() != written  # other times


def test_force_replaces_files_only_and_not_the_one_that_is_read(tmp_path: Path) -> None:
    source = _write(tmp_path / "in.jsonl", {"prompt": "a"})
    (tmp_path / "link").symlink_to(source)
    for target, reason in ((source, "requests are read from"), (tmp_path / "link", "regular"), (tmp_path, "regular")):
        with pytest.raises(InvalidArgument, match=reason):
            check_target(str(target), True, str(source))
    assert source.exists()


def test_an_output_that_cannot_be_is_refused_before_a_model_is_opened(run: Any, tmp_path: Path) -> None:
    got = run("generate", "--model", "absent", "--prompt-ids", "5", "--output", tmp_path)
    assert got.code == 2
    assert "is there already" in got.err
    assert "absent" not in got.err


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ({"prompt_token_ids": [5, 40]}, ("40 at position 1", "39")),
        ({"prompt_token_ids": [5] * 128}, ("128 tokens", "127")),
        ({"prompt": "hello"}, ("tokenizer",)),
        ({"prompt_token_ids": [5], "params": {"stop_token_ids": [40]}}, ("stop_token_ids", "40")),
        ({"prompt_token_ids": [5], "params": {"bad_words": ["a"]}}, ("bad word", "tokenizer")),
        ({"prompt_token_ids": [5] * 100, "params": {"max_tokens": 20}}, ("8 blocks", "num_blocks is 7")),
    ],
    ids=["vocabulary", "length", "tokenizer", "stop id", "bad word", "pool"],
)
def test_a_line_that_the_model_cannot_serve_is_named_before_any_runs(
    run: Any,
    ids_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: dict[str, Any],
    parts: tuple[str, ...],
) -> None:
    def never(*_arguments: object) -> None:
        raise AssertionError("a request ran")

    monkeypatch.setattr("accel.cli.generate.run_all", never)
    file = _write(tmp_path / "in.jsonl", {"prompt_token_ids": [5]}, line)
    target = tmp_path / "out.jsonl"
    got = run("generate", "--model", ids_model, "--file", file, "--output", target, *SHORT, "--num-blocks", 7)
    assert (got.code, got.out) == (2, "")
    assert got.err.startswith(f"accel: error: {file}, line 2: ")
    assert got.err.count("\n") == 1
    assert not target.exists()
    for part in parts:
        assert part in got.err


def test_lines_are_checked_before_a_device_is_opened(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_arguments: object) -> None:
        raise AssertionError("the device was opened")

    monkeypatch.setattr("accel.cli.generate.open_device", never)
    file = _write(tmp_path / "in.jsonl", {"prompt": "a"}, {"prompt": "b", "params": {"top_k": -2}})
    got = run("generate", "--model", "absent", "--file", file)
    assert (got.code, got.out) == (2, "")
    assert "line 2: params: top_k is -2" in got.err


def _fail_when(monkeypatch: pytest.MonkeyPatch, wanted: Callable[[StepPlan], bool]) -> None:
    execute = Runner.execute

    def failing(self: Runner, plan: StepPlan) -> Any:
        if wanted(plan):
            raise AsyncFailure("the copy failed", device="cpu:0")
        return execute(self, plan)

    monkeypatch.setattr(Runner, "execute", failing)


def test_a_request_that_fails_leaves_the_others_and_ends_with_1(
    run: Any, ids_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: list[list[int]]
) -> None:
    _fail_when(
        monkeypatch, lambda plan: 8 in plan.tokens.tolist() and plan.num_requests == 1 and plan.generated[0] == 0
    )
    jobs = [{"prompt_token_ids": ids, "id": n} for n, ids in enumerate(PROMPTS)]
    jobs[1]["params"] = {"n": 2}
    file = _write(tmp_path / "in.jsonl", *jobs)
    got = run("generate", "--model", ids_model, "--file", file, *SHORT, "--max-requests", 1)
    assert got.code == 1
    assert "accel: error: 2 of 4 requests failed; 1: cpu:0: the copy failed\n" in got.err
    records, numbers = _lines(got.out)
    assert len({frozenset(entry) for entry in records}) == 1  # the same keys in all
    failed = [entry for entry in records if entry["error"]]
    assert sorted((entry["id"], entry["choice"]) for entry in failed) == [(1, 0), (1, 1)]
    assert failed[0]["error"] == {"type": "AsyncFailure", "message": "cpu:0: the copy failed"}
    assert (failed[0]["finish_reason"], failed[0]["prompt_token_ids"]) == ("error", [8])
    assert {entry["id"]: entry["token_ids"] for entry in records if not entry["error"]} == {0: alone[0], 2: alone[2]}
    assert (numbers["requests"], numbers["failed"]) == (4, 2)


def test_failures_among_texts_are_told_on_stderr(run: Any, ids_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_when(monkeypatch, lambda plan: True)
    got = run("generate", "--model", ids_model, *IDS, *SHORT, "--quiet")
    assert got.code == 1
    assert got.out.count("==>") == 3
    assert got.err.count("the copy failed") == 4  # each, and the end
    assert got.err.endswith("3 of 3 requests failed; prompt-1: cpu:0: the copy failed\n")


def test_a_deadline_ends_a_request_with_what_it_has(run: Any, tmp_path: Path) -> None:
    model = write_folder(tmp_path / "long", {**CONFIG, "max_position_embeddings": 1 << 16})
    arguments = ("generate", "--model", model, "--prompt-ids", "5", "--ignore-eos", "--max-tokens", 60000)
    got = run(*arguments, "--deadline", 0.3, "--device", "cpu", "--json").json
    assert got["finish_reason"] == "deadline"
    assert 0 < len(got["token_ids"]) < 60000


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "long", {**CONFIG, "max_position_embeddings": 1 << 16})
    jobs = [{"prompt_token_ids": [5], "params": {"max_tokens": n}} for n in (3, 60000, 2)]
    command = [sys.executable, "-m", "accel.cli", "generate", "--model", str(model), "--ignore-eos", "--device", "cpu"]
    command += ["--file", str(_write(tmp_path / "in.jsonl", *jobs))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        done = [json.loads(process.stdout.readline()) for _ in range(2)]  # flushed while the long one runs
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b""
        assert process.stderr.read() == b"accel: interrupted\n"
        assert process.wait() == 130
    assert sorted(len(entry["token_ids"]) for entry in done) == [2, 3]


def test_a_reader_of_lines_that_goes_away_is_no_error(ids_model: Path, tmp_path: Path) -> None:
    file = _write(tmp_path / "in.jsonl", *({"prompt_token_ids": [5]} for _ in range(4)))
    command = [sys.executable, "-m", "accel.cli", "generate", "--model", str(ids_model), "--file", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_more_requests_than_may_wait_or_run_all_end(run: Any, ids_model: Path, tmp_path: Path) -> None:
    jobs = [{"prompt_token_ids": [5, 6], "params": {"max_tokens": 2}} for _ in range(1100)]
    got = run("generate", "--model", ids_model, "--file", _write(tmp_path / "in.jsonl", *jobs), "--device", "cpu", "-q")
    records, _ = _lines(got.out)
    assert sorted(entry["index"] for entry in records) == list(range(1100))
    assert len({tuple(entry["token_ids"]) for entry in records}) == 1


def test_the_default_pool_holds_what_runs_at_once_and_is_measured_where_that_may_not_fit(
    run: Any, ids_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    engine = accel.Engine

    def watch(*arguments: Any, **options: Any) -> accel.Engine:
        seen.append((options["num_blocks"], options["max_requests"]))
        return engine(*arguments, **options)

    monkeypatch.setattr("accel.engine.Engine", watch)
    arguments = ("generate", "--model", ids_model, *IDS, "--max-tokens", 40, "--ignore-eos", "--device", "cpu")
    run(*arguments)
    run(*arguments, "--max-requests", 2)
    run(*arguments, "--max-tokens", 10_000)  # clipped at the model's 128
    assert seen == [(9, 3), (6, 2), (24, 3)]
    monkeypatch.setattr("accel.cli.prepare._SMALL_SHARE", 0.0)
    assert run(*arguments, "--max-batch-tokens", 64).code == 0
    assert seen[-1] == (None, 3)


def test_progress_counts_and_draws_on_terminals_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with requests_progress(2) as plain:
        assert type(plain) is Progress
    monkeypatch.setattr("accel.cli.batch.stderr_is_terminal", lambda: True)
    with requests_progress(2, quiet=True) as plain:
        assert type(plain) is Progress
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then draws although stderr is none
    monkeypatch.setenv("NO_COLOR", "1")
    for shared in (False, True):
        monkeypatch.setattr("accel.cli.batch.stdout_is_terminal", lambda shared=shared: shared)
        with requests_progress(2) as bar:
            for _ in range(3):
                bar.token()
            bar.request(lambda: print("result"))
            assert (bar.requests, bar.tokens) == (1, 3)
            assert bar.rate > 0
        captured = capsys.readouterr()
        assert captured.out == "result\n"
        assert "1/2" in captured.err
        assert "tokens/s" in captured.err


def test_log_probabilities_without_a_number_are_null(ids_model: Path) -> None:
    from accel.cli.records import _logprobs
    from accel.engine import TokenLogprobs

    got = _logprobs(TokenLogprobs(5, -math.inf, 3, ((6, -0.5), (7, -math.inf))))
    assert got == {"token_id": 5, "logprob": None, "rank": 3, "top": [[6, -0.5], [7, None]]}
