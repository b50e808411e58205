"""Each bad input gives exit 2 and exactly one line on stderr, with the value and the limit in it."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_builders import CONFIG, make_weights, write_folder, write_gguf


def _refused(got: Any, *parts: str) -> None:
    assert got.code == 2, got.err
    assert got.out == ""
    assert got.err.startswith("accel: error: ")
    assert got.err.count("\n") == 1, got.err
    assert "Traceback" not in got.err
    for part in parts:
        assert part in got.err, got.err


_PROMPT = ("--prompt-ids", "5,6,7")

#: Options of ``accel generate`` on the model without a tokenizer → what the line names.
BAD_OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "no prompt": ((), ("--prompt", "--prompt-ids", "neither")),
    "prompts beside a file": ((*_PROMPT, "--file", "x.jsonl"), ("--file", "--prompt")),
    "a second prompt that is empty": (("--prompt", "a", "--prompt", ""), ("empty",)),
    "stdin twice": (("--prompt", "-", "--prompt", "-"), ("2 times",)),
    "a file that is not there": (("--file", "absent.jsonl"), ("absent.jsonl", "No such file")),
    "second of two prompts": ((*_PROMPT, "--prompt-ids", "5,40"), ("prompt 2 of 2", "40", "39")),
    "min_p above 1": ((*_PROMPT, "--min-p", "1.5"), ("min_p", "1.5", "0 to 1")),
    "min_tokens above max_tokens": (
        (*_PROMPT, "--min-tokens", "5", "--max-tokens", "4"),
        ("min_tokens", "5", "at most max_tokens, 4"),
    ),
    "repetition_penalty of 0": ((*_PROMPT, "--repetition-penalty", "0"), ("repetition_penalty", "0.0", "above 0")),
    "infinite frequency_penalty": ((*_PROMPT, "--frequency-penalty", "inf"), ("frequency_penalty", "inf")),
    "NaN presence_penalty": ((*_PROMPT, "--presence-penalty", "nan"), ("presence_penalty", "nan")),
    "bias without a value": ((*_PROMPT, "--logit-bias", "5"), ("'5'", "ID=VALUE")),
    "bias of no number": ((*_PROMPT, "--logit-bias", "5=much"), ("'5=much'", "ID=VALUE")),
    "bias given twice": ((*_PROMPT, "--logit-bias", "5=1", "--logit-bias", "5=2"), ("token 5 twice",)),
    "bias outside the vocabulary": ((*_PROMPT, "--logit-bias", "40=1"), ("logit_bias", "40")),
    "positive infinite bias": ((*_PROMPT, "--logit-bias", "5=inf"), ("logit_bias", "5", "inf")),
    "bad word without a tokenizer": ((*_PROMPT, "--bad-word", "a"), ("bad word", "tokenizer")),
    "stop without a tokenizer": ((*_PROMPT, "--stop", "a"), ("stop string", "tokenizer")),
    "stop id outside the vocabulary": ((*_PROMPT, "--stop-token-id", "40"), ("stop_token_ids", "40")),
    "stop ids that are no numbers": ((*_PROMPT, "--stop-ids", "5,six"), ("'six'", "--stop-ids")),
    "stop ids that are empty": ((*_PROMPT, "--stop-ids", ""), ("--stop-ids", "empty")),
    "no choice": ((*_PROMPT, "-n", "0"), ("n is 0", "1 to 128")),
    "too many log-probabilities": ((*_PROMPT, "--json", "--logprobs", "101"), ("logprobs", "101", "0 to 100")),
    "log-probabilities as text": ((*_PROMPT, "--logprobs", "1"), ("JSON", "--json")),
    "priority out of range": ((*_PROMPT, "--priority", "1001"), ("priority", "1001", "-1000 to 1000")),
    "deadline of 0": ((*_PROMPT, "--deadline", "0"), ("deadline", "0", "above 0")),
    "NaN deadline": ((*_PROMPT, "--deadline", "nan"), ("deadline", "NaN")),
    "max_requests of 0": ((*_PROMPT, "--max-requests", "0"), ("max_requests", "0", "1 or more")),
    "depth of 4": ((*_PROMPT, "--depth", "4"), ("depth", "4", "0 to 3")),
    "metrics_port out of range": ((*_PROMPT, "--metrics-port", "65536"), ("metrics_port", "65536", "0 to 65535")),
    "output and json": ((*_PROMPT, "--output", "x.jsonl", "--json"), ("--output", "--json")),
    "force without output": ((*_PROMPT, "--force"), ("--force", "--output")),
    "output in no folder": ((*_PROMPT, "--output", "absent/x.jsonl"), ("no folder absent",)),
    "empty prompt": (("--prompt", ""), ("empty", "at least 1")),
    "empty ids": (("--prompt-ids", ""), ("empty", "at least 1")),
    "text without a tokenizer": (("--prompt", "hello"), ("tokenizer", "token ids")),
    "ids that are no numbers": (("--prompt-ids", "5,six"), ("'six'", "position 1", "5,6,7")),
    "id outside the vocabulary": (("--prompt-ids", "5,40"), ("40", "position 1", "39")),
    "negative id": (("--prompt-ids=-1",), ("-1", "39")),
    "huge id": (("--prompt-ids", "9" * 18), ("9" * 18, "39")),
    "prompt longer than the model": (("--prompt-ids", ",".join(["5"] * 128)), ("128 tokens", "127")),
    "negative temperature": ((*_PROMPT, "--temperature", "-0.5"), ("temperature", "-0.5", "0 to 3e+38")),
    "NaN temperature": ((*_PROMPT, "--temperature", "nan"), ("temperature", "nan", "0 to 3e+38")),
    "infinite temperature": ((*_PROMPT, "--temperature", "inf"), ("temperature", "inf", "0 to 3e+38")),
    "no number for a temperature": ((*_PROMPT, "--temperature", "warm"), ("--temperature", "'warm'")),
    "top_p of 0": ((*_PROMPT, "--top-p", "0"), ("top_p", "0.0", "above 0 and at most 1")),
    "top_p above 1": ((*_PROMPT, "--top-p", "1.5"), ("top_p", "1.5", "at most 1")),
    "NaN top_p": ((*_PROMPT, "--top-p", "nan"), ("top_p", "nan")),
    "negative top_k": ((*_PROMPT, "--top-k", "-2"), ("top_k", "-2")),
    "max_tokens of 0": ((*_PROMPT, "--max-tokens", "0"), ("max_tokens", "0", "1 to 2147483647")),
    "no number for max_tokens": ((*_PROMPT, "--max-tokens", "many"), ("--max-tokens", "'many'", "whole number")),
    "negative seed": ((*_PROMPT, "--seed", "-1"), ("seed", "-1")),
    "unknown device": ((*_PROMPT, "--device", "cpuu"), ("'cpuu'", "cpu")),
    "device index out of range": ((*_PROMPT, "--device", "cpu:7"), ("cpu:7", "cpu:0")),
    "device that is no spec": ((*_PROMPT, "--device", ":0"), ("':0'",)),
    "num_blocks too small": (
        (*_PROMPT, "--max-tokens", "60", "--num-blocks", "2"),
        ("need 4 blocks", "num_blocks is 2"),
    ),
    "num_blocks of 0": ((*_PROMPT, "--num-blocks", "0"), ("num_blocks", "0", "1 or more")),
    "block_size of 0": ((*_PROMPT, "--block-size", "0"), ("block_size", "0", "1 or more")),
    "max_batch_tokens of 0": ((*_PROMPT, "--max-batch-tokens", "0"), ("max_batch_tokens", "0", "1 or more")),
    "threads of 0": ((*_PROMPT, "--threads", "0"), ("threads", "0", "1 or more")),
    "unknown dtype": ((*_PROMPT, "--dtype", "float8"), ("'float8'", "float32")),
    "unknown KV dtype": ((*_PROMPT, "--kv-dtype", "float8"), ("float8", "float32")),
    "unknown KV order": ((*_PROMPT, "--kv-order", "sideways"), ("'sideways'", "page_first")),
    "system without chat": (("--prompt", "a", "--system", "b"), ("--system", "--chat")),
    "chat with ids": ((*_PROMPT, "--chat"), ("--chat", "--prompt")),
    "unknown option": ((*_PROMPT, "--heat", "1"), ("--heat",)),
    "option without its value": (("--prompt-ids",), ("--prompt-ids",)),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_option_exits_2_with_one_line(run: Any, ids_model: Path, case: str) -> None:
    options, parts = BAD_OPTIONS[case]
    _refused(run("generate", "--model", ids_model, *options), *parts)


def test_a_device_that_is_not_here_says_why(run: Any, ids_model: Path) -> None:
    from accel.doctor import diagnose

    away = [report for report in diagnose() if report.state != "available"]
    if not away:
        pytest.skip("every backend is available here")
    _refused(
        run("generate", "--model", ids_model, *_PROMPT, "--device", away[0].name), away[0].name, away[0].reason[:20]
    )


def _missing(folder: Path) -> Path:
    return folder / "absent.gguf"


def _other_file(folder: Path) -> Path:
    path = folder / "model.bin"
    path.write_bytes(b"weights")
    return path


def _truncated_gguf(folder: Path) -> Path:
    path = write_gguf(folder / "short.gguf")
    path.write_bytes(path.read_bytes()[:-64])
    return path


def _truncated_safetensors(folder: Path) -> Path:
    model = write_folder(folder / "short")
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-64])
    return model


def _unknown_architecture(folder: Path) -> Path:
    return write_folder(folder / "alien", {**CONFIG, "model_type": "alien", "architectures": ["AlienForCausalLM"]})


def _unknown_quantisation(folder: Path) -> Path:
    return write_folder(folder / "exotic", {**CONFIG, "quantization_config": {"quant_method": "exotic", "bits": 3}})


def _unknown_gguf_type(folder: Path) -> Path:
    path = write_gguf(folder / "typed.gguf")
    data = bytearray(path.read_bytes())
    # A tensor's entry: its name, the number of dimensions (uint32), two dimensions (uint64), its type (uint32), …
    name = b"blk.0.attn_q.weight"
    position = data.index(name) + len(name) + 4 + 2 * 8
    data[position : position + 4] = struct.pack("<I", 250)
    path.write_bytes(data)
    return path


def _contradiction(folder: Path) -> Path:
    return write_folder(folder / "wrong", {**CONFIG, "intermediate_size": 96}, make_weights())


def _empty_folder(folder: Path) -> Path:
    return folder


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (_missing, ("absent.gguf", "demo")),
        (_other_file, ("model.bin", ".gguf")),
        (_truncated_gguf, ("short.gguf",)),
        (_truncated_safetensors, ("short",)),
        (_unknown_architecture, ("alien", "llama")),
        (_unknown_quantisation, ("exotic",)),
        (_unknown_gguf_type, ("blk.0.attn_q.weight", "250")),
        (_contradiction, ("64", "96")),
        (_empty_folder, ("config.json", ".gguf")),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_bad_model_exits_2_with_one_line(
    run: Any, tmp_path: Path, build: Callable[[Path], Path], parts: tuple[str, ...]
) -> None:
    _refused(run("generate", "--model", build(tmp_path), *_PROMPT), *parts)


@pytest.mark.parametrize(
    "arguments", [("generat",), ("--heat",), ("bench", "decoed"), ("bench", "decode", "--tokens", "0")]
)
def test_usage_errors_exit_2_with_one_line(run: Any, arguments: tuple[str, ...]) -> None:
    _refused(run(*arguments))


def test_values_are_refused_before_a_device_is_opened(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_arguments: object) -> None:
        raise AssertionError("the device was opened")

    monkeypatch.setattr("accel.cli.generate.open_device", never)
    _refused(run("generate", "--prompt", "a", "--temperature", "-1"), "-1")
    _refused(run("generate", "--prompt-ids", "x"), "'x'")


def test_the_process_itself_ends_with_2_and_prints_one_line(ids_model: Path) -> None:
    command = [sys.executable, "-m", "accel.cli", "generate", "--model", str(ids_model), "--prompt-ids", "5,40"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "40" in done.stderr


def test_an_error_under_json_leaves_stdout_empty_too(run: Any, ids_model: Path) -> None:
    _refused(run("generate", "--model", ids_model, "--prompt-ids", "99", "--json"), "99")
    assert json.loads(run("generate", "--model", ids_model, *_PROMPT, "--max-tokens", 1, "--json").out)
