"""Lines of ``--file``: what they may say, and that each bad one is named with file, line, field, value and limit."""

from __future__ import annotations

import contextlib
import io
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel.cli.jobs import MOST_PRIORITY, Defaults, Job, Ready, read_jobs
from accel.cli.sampling import parse_biases, parse_ids
from accel.errors import InvalidRequest
from accel.sampling_params import SamplingParams
from accel.scheduler.request import MAX_PRIORITY

DEFAULTS = Defaults(SamplingParams(max_tokens=7, top_k=3), priority=2, deadline=9.0)


def _read(folder: Path, *lines: str | bytes, defaults: Defaults = DEFAULTS) -> list[Job]:
    path = folder / "jobs.jsonl"
    path.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in lines))
    return read_jobs(str(path), defaults)


def test_a_line_says_all_of_a_request(tmp_path: Path) -> None:
    params = {"top_k": 1, "logit_bias": {"5": -1.5, "6": "-inf"}, "bad_words": ["a", [5, 6]], "n": 2, "seed": None}
    line = {"prompt_token_ids": [5, 6], "id": "x", "priority": -3, "deadline": 2, "params": params}
    (job,) = _read(tmp_path, json.dumps(line))
    assert (job.id, job.prompt, job.priority, job.deadline) == ("x", [5, 6], -3, 2)
    assert job.params == SamplingParams(
        max_tokens=7, top_k=1, logit_bias={5: -1.5, 6: -math.inf}, bad_words=("a", (5, 6)), n=2
    )


def test_what_a_line_leaves_open_is_that_of_the_options(tmp_path: Path) -> None:
    first, second = _read(tmp_path, '{"prompt": "a"}', "", "  ", '{"prompt": "b", "params": {"top_k": 0}}')
    assert (first.id, second.id) == ("line-1", "line-4")
    assert (first.params, first.priority, first.deadline) == (DEFAULTS.params, 2, 9.0)
    assert second.params == SamplingParams(max_tokens=7)


def test_chat_applies_to_texts_only(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "c"}]
    lines = [{"prompt": "a"}, {"prompt_token_ids": [5]}, {"messages": messages}]
    jobs = _read(tmp_path, *map(json.dumps, lines), defaults=Defaults(SamplingParams(), chat=True, system="s"))
    asked = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    assert [job.prompt for job in jobs] == [asked, [5], messages]


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault(tmp_path: Path) -> None:
    first, second = _read(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r', b'{"prompt": "b"}\r', b"\r")
    assert (first.prompt, second.prompt) == ("a", "b")


def test_a_dash_reads_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b'{"prompt": "a"}\n{"prompt": 5}')))
    with pytest.raises(InvalidRequest, match="stdin, line 2: prompt is 5"):
        read_jobs("-", DEFAULTS)


#: What is wrong with a line → what the error names.
BAD_LINES: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "no JSON": ("{prompt: 1}", ("not JSON", "character 1")),
    "two documents": ('{"prompt": "a"} {}', ("not JSON", "character 16")),
    "no UTF-8": (b'{"prompt": "\xff"}', ("not UTF-8", "0xff at 12")),
    "lone surrogate": ('{"prompt": "\\ud800"}', ("lone surrogate",)),
    "too deep": ("[" * 100_000, ("too deep",)),
    "digits without end": ('{"prompt_token_ids": [' + "9" * 5000 + "]}", ("not JSON",)),
    "no object": ("[5]", ("a list", "JSON object")),
    "null": ("null", ("a null", "JSON object")),
    "unknown field": ('{"prompt": "a", "heat": 1}', ('unknown field "heat"', "params")),
    "a field twice": ('{"prompt": "a", "prompt": "b"}', ('"prompt"', "twice")),
    "no prompt": ("{}", ("none given", "exactly one")),
    "two prompts": ('{"prompt": "a", "messages": []}', ("prompt and messages", "exactly one")),
    "prompt of no text": ('{"prompt": 5}', ("prompt is 5", "a text")),
    "empty prompt": ('{"prompt": ""}', ('prompt is ""', "at least 1")),
    "ids of no list": ('{"prompt_token_ids": "5"}', ('prompt_token_ids is "5"', "a list")),
    "empty ids": ('{"prompt_token_ids": []}', ("prompt_token_ids is []", "at least 1")),
    "id of no number": ('{"prompt_token_ids": [5, "6"]}', ('"6" at 1', "whole numbers")),
    "id that is true": ('{"prompt_token_ids": [true]}', ("true at 0", "whole numbers")),
    "id with a fraction": ('{"prompt_token_ids": [5.0]}', ("5.0 at 0", "whole numbers")),
    "messages of no list": ('{"messages": {}}', ("messages is {}", "a list")),
    "message of no object": ('{"messages": ["hi"]}', ('"hi" at 0', "objects")),
    "message without a role": ('{"messages": [{"content": "a"}]}', ("role of message 0 is null", "a text")),
    "content of no text": ('{"messages": [{"role": "user", "content": 5}]}', ("content of message 0 is 5", "a text")),
    "id of a wrong kind": ('{"prompt": "a", "id": [1]}', ("id is [1]", "a text or a whole number")),
    "id that is taken": ('{"prompt": "a", "id": "taken"}', ("'taken'", "line 1")),
    "priority with a fraction": ('{"prompt": "a", "priority": 0.5}', ("priority is 0.5", "-1000 to 1000")),
    "priority out of range": ('{"prompt": "a", "priority": -1001}', ("priority is -1001", "-1000 to 1000")),
    "deadline of 0": ('{"prompt": "a", "deadline": 0}', ("deadline is 0", "above 0")),
    "deadline of no number": ('{"prompt": "a", "deadline": "soon"}', ('deadline is "soon"', "above 0")),
    "deadline beyond floats": (
        '{"prompt": "a", "deadline": 1' + "0" * 400 + "}",
        ("deadline is 1000", "at most 1e+09"),
    ),
    "params of no object": ('{"prompt": "a", "params": [1]}', ("params is a list",)),
    "derived param": ('{"prompt": "a", "params": {"stop_words": [[3]]}}', ('"stop_words"', "stop_sequences")),
    "unknown param": ('{"prompt": "a", "params": {"heat": 1}}', ('"heat"', "temperature")),
    "param out of range": ('{"prompt": "a", "params": {"top_p": 1.5}}', ("params: top_p is 1.5", "at most 1")),
    "param of a wrong kind": ('{"prompt": "a", "params": {"temperature": "hot"}}', ("temperature is 'hot'", "0 to")),
    "number that is true": ('{"prompt": "a", "params": {"top_k": true}}', ("top_k is true",)),
    "flag that is 1": ('{"prompt": "a", "params": {"ignore_eos": 1}}', ("ignore_eos is 1", "true or false")),
    "NaN": ('{"prompt": "a", "params": {"top_p": NaN}}', ("NaN is no JSON number",)),
    "number beyond floats": ('{"prompt": "a", "params": {"temperature": 1e999}}', ("temperature is inf",)),
    "params that disagree": ('{"prompt": "a", "params": {"min_tokens": 8}}', ("min_tokens is 8", "max_tokens, 7")),
    "bias of no object": ('{"prompt": "a", "params": {"logit_bias": [5]}}', ("logit_bias is [5]",)),
    "bias of no id": ('{"prompt": "a", "params": {"logit_bias": {"x": 1}}}', ('logit_bias names "x"',)),
    "bias that is true": ('{"prompt": "a", "params": {"logit_bias": {"5": true}}}', ("token 5 is true",)),
    "bias of no number": ('{"prompt": "a", "params": {"logit_bias": {"5": "x"}}}', ("token 5 is 'x'",)),
    "null for a number": ('{"prompt": "a", "params": {"max_tokens": null}}', ("max_tokens is None",)),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named_with_file_line_field_and_limit(tmp_path: Path, case: str) -> None:
    line, parts = BAD_LINES[case]
    with pytest.raises(InvalidRequest) as caught:
        _read(tmp_path, '{"prompt": "a", "id": "taken"}', "", line)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'jobs.jsonl'}, line 3: ")
    assert text.count("line 3") == 1
    assert len(text) < 800
    for part in parts:
        assert part in text


def test_a_file_without_a_request_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no request; it must have at least 1"):
        _read(tmp_path, "", "  ")


@pytest.mark.parametrize(("path", "reason"), [("", "No such file"), (".", "directory"), ("a\0b", "null")])
def test_a_file_that_cannot_be_read_says_why(path: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        read_jobs(path, DEFAULTS)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_NAMES = ["prompt", "prompt_token_ids", "messages", "id", "priority", "deadline", "params"]
_FIELDS = st.sampled_from([*_NAMES, *SamplingParams.__dataclass_fields__])


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.dictionaries(_FIELDS, _JSON | st.dictionaries(_FIELDS, _JSON, max_size=3), max_size=4) | _JSON)
def test_whatever_a_line_holds_gives_a_request_or_a_typed_error(tmp_path_factory: Any, value: Any) -> None:
    # Any other exception fails the test.
    with contextlib.suppress(InvalidRequest):
        (job,) = _read(tmp_path_factory.getbasetemp(), json.dumps(value))
        assert isinstance(job.params, SamplingParams)
        assert job.prompt


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 10**17), min_size=1))
def test_ids_are_read_as_they_are_written(ids: list[int]) -> None:
    assert parse_ids(" , ".join(map(str, ids))) == tuple(ids)


@settings(derandomize=True, deadline=None)
@given(st.dictionaries(st.integers(0, 10**9), st.floats(-1e6, 1e6) | st.just(-math.inf)))
def test_biases_are_read_as_they_are_written(biases: dict[int, float]) -> None:
    assert parse_biases([f"{token}={value}" for token, value in biases.items()]) == biases


def test_the_limit_of_a_priority_is_that_of_the_engine() -> None:
    assert MOST_PRIORITY == MAX_PRIORITY


def test_tokens_of_a_request_end_with_the_model() -> None:
    job = Job("a", "", [5, 6], SamplingParams(max_tokens=10), 0, None)
    # The last token's K and V are never computed.
    assert Ready(job, [5, 6]).tokens(100) == 11
    assert Ready(job, [5, 6]).tokens(8) == 7
