"""How a run ends: exit codes 0, 1, 2, 130 and 141, one line on stderr, tracebacks on request only."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from model_builders import CONFIG, write_folder

from accel.errors import AsyncFailure, InvalidArgument


def _failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("accel.doctor.diagnose", fail)


def test_no_command_prints_the_help(run: Any) -> None:
    assert run("bench").out == run("bench", "--help").out
    got = run()
    assert (got.code, got.err) == (0, "")
    for command in ("devices", "doctor", "ops", "generate", "bench"):
        assert command in got.out


def test_version(run: Any) -> None:
    import accel

    assert run("--version").out.startswith(f"accel {accel.__version__} ")


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("devices",),
        ("doctor",),
        ("ops",),
        ("generate",),
        ("bench",),
        ("bench", "decode"),
        ("bench", "prefill"),
        ("bench", "scheduler"),
    ],
    ids=" ".join,
)
def test_every_help_has_examples(run: Any, command: tuple[str, ...]) -> None:
    got = run(*command, "--help")
    assert got.code == 0
    assert "Examples:" in got.out
    assert f"$ accel {' '.join(command)}".rstrip() in " ".join(got.out.split())


def test_a_fault_of_ours_exits_1_and_tells_how_to_see_more(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(monkeypatch, KeyError("page"))
    got = run("devices")
    assert (got.code, got.out) == (1, "")
    assert got.err == "accel: error: internal error: KeyError: 'page' [set ACCEL_DEBUG=1 to see where]\n"


def test_an_error_of_the_library_that_no_caller_caused_exits_1(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(monkeypatch, AsyncFailure("the copy failed", device="cpu:0"))
    got = run("doctor")
    assert got.code == 1
    assert got.err.startswith("accel: error: cpu:0: the copy failed [")


def test_an_error_of_several_lines_is_one_line(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(monkeypatch, InvalidArgument("a\n  b\nc"))
    got = run("devices")
    assert (got.code, got.err) == (2, "accel: error: a b c\n")


def test_debug_adds_the_traceback(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(monkeypatch, KeyError("page"))
    monkeypatch.setenv("ACCEL_DEBUG", "1")
    assert "Traceback (most recent call last)" in run("devices").err
    monkeypatch.setenv("ACCEL_DEBUG", "0")
    assert "Traceback" not in run("devices").err


def test_an_interrupt_exits_130_without_a_traceback(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(monkeypatch, KeyboardInterrupt())
    got = run("devices")
    assert (got.code, got.err) == (130, "accel: interrupted\n")


def test_ctrl_c_between_two_tokens_ends_the_process_with_130_and_one_line(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "long", {**CONFIG, "max_position_embeddings": 1 << 16})
    command = [sys.executable, "-m", "accel.cli", "generate", "--model", str(model), "--prompt-ids", "5"]
    command += ["--ignore-eos", "--max-tokens", "60000", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)  # it streams: tens of thousands of tokens are still to come
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == b"accel: interrupted\n"
        assert process.wait() == 130


def test_a_reader_that_goes_away_is_no_error(ids_model: Path) -> None:
    command = [sys.executable, "-m", "accel.cli", "generate", "--model", str(ids_model), "--prompt-ids", "5"]
    command += ["--ignore-eos", "--quiet", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before a token is there: the first write finds the pipe closed
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_a_narrow_stdout_shows_what_it_can(text_model: Path) -> None:
    command = [sys.executable, "-m", "accel.cli", "generate", "--model", str(text_model), "--prompt", "hello"]
    command += ["--max-tokens", "40", "--ignore-eos", "--quiet"]
    # Random weights answer with bytes that are no UTF-8, which show as U+FFFD: nothing that ASCII has.
    done = subprocess.run(command, capture_output=True, check=False, env=_environment(PYTHONIOENCODING="ascii"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()


def _environment(**more: str) -> dict[str, str]:
    import os

    return {**os.environ, **more}
