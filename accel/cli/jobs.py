"""Requests of ``accel generate`` before they run: from options or from a file with one JSON object a line.

::

    {"prompt": text | "prompt_token_ids": [5, 6] | "messages": [{"role", "content"}, …],
     "id": name, "priority": 0, "deadline": seconds, "params": {a field of SamplingParams: value, …}}

Invariant: `read_jobs` looks at every line before anything else happens, and `encode_jobs` at every request before
anything runs; whatever is wrong names the file, the line, the field and the limit.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from accel.cli.prompt import STDIN, in_chat
from accel.errors import InvalidRequest
from accel.sampling_params import SamplingParams

if TYPE_CHECKING:
    from accel.engine import Prompt
    from accel.models.files import ModelFiles

__all__ = ["MOST_PRIORITY", "Defaults", "Job", "Ready", "at", "encode_jobs", "jobs_of", "read_jobs"]

_PROMPTS: Final = ("prompt", "prompt_token_ids", "messages")
_FIELDS: Final = (*_PROMPTS, "id", "priority", "deadline", "params")
#: That of the engine, which would refuse more only once others run.
MOST_PRIORITY: Final = 1000
_MOST_SECONDS: Final = 1e9
_PARAMS: Final = {field.name: field.default for field in fields(SamplingParams) if field.init}


@dataclass(frozen=True)
class Defaults:
    """What the options say, for whatever a line leaves open. `chat` and `system` are for text prompts.

    Raises:
        InvalidRequest: a priority or deadline out of range.
    """

    params: SamplingParams
    priority: int = 0
    deadline: float | None = None
    chat: bool = False
    system: str | None = None

    def __post_init__(self) -> None:
        _check_priority(self.priority)
        _check_deadline(self.deadline)


@dataclass(frozen=True)
class Job:
    """A request before the model is known.

    Args:
        where: what errors are led in by; "" where there is only one request.
    """

    id: str | int
    where: str
    prompt: Prompt
    params: SamplingParams
    priority: int
    deadline: float | None


@dataclass(frozen=True)
class Ready:
    """A job whose prompt is token ids within the model's limits."""

    job: Job
    ids: list[int]

    def tokens(self, longest: int) -> int:
        """Tokens that the K and V of one choice can reach; `longest` is the model's longest sequence."""
        return min(len(self.ids) + self.job.params.max_tokens, longest) - 1


def jobs_of(prompts: Sequence[Prompt], defaults: Defaults) -> list[Job]:
    """A job for each prompt of the options."""
    many = len(prompts) > 1
    return [
        Job(
            f"prompt-{number}",
            f"prompt {number} of {len(prompts)}" if many else "",
            prompt,
            defaults.params,
            defaults.priority,
            defaults.deadline,
        )
        for number, prompt in enumerate(prompts, 1)
    ]


def read_jobs(path: str, defaults: Defaults) -> list[Job]:
    """A job for each line of a file (``-``: stdin) that is not blank.

    Raises:
        InvalidRequest: a file that cannot be read or has no request, or a line that is no request.
    """
    name = "stdin" if path == STDIN else path
    jobs: list[Job] = []
    lines: dict[str | int, int] = {}
    for number, data in _lines(path):
        with at(f"{name}, line {number}"):
            job = _job(_value(data), number, f"{name}, line {number}", defaults)
            if job.id in lines:
                raise InvalidRequest(f"id {job.id!r} is that of line {lines[job.id]}", hint="give each line its own")
            lines[job.id] = number
            jobs.append(job)
    if not jobs:
        raise InvalidRequest(f"{name} has no request; it must have at least 1", hint='e.g. {"prompt": "Hello"}')
    return jobs


def encode_jobs(jobs: Sequence[Job], files: ModelFiles) -> list[Ready]:
    """Token ids of all prompts, checked against the model together with what params name of its vocabulary.

    Raises:
        InvalidRequest: the first that the model cannot serve.
    """
    from accel.engine.prompts import encode, resolve

    ready = []
    for job in jobs:
        with at(job.where):
            # Building a tokenizer takes a while, which token ids alone can do without.
            texts = isinstance(job.prompt, str) or not isinstance(job.prompt[0], int)
            words = job.params.stop or any(isinstance(word, str) for word in job.params.bad_words)
            tokenizer = files.tokenizer if texts or words else None
            ids = encode(job.prompt, tokenizer, files.config.max_position, files.config.vocab_size)
            resolve(job.params, tokenizer, files.config.vocab_size)
            ready.append(Ready(job, ids))
    return ready


@contextmanager
def at(where: str) -> Iterator[None]:
    """Lead an InvalidRequest from inside in by `where`."""
    try:
        yield
    except InvalidRequest as error:
        if not where:
            raise
        raise _led_by(where, error) from error


def _led_by(lead: str, error: InvalidRequest) -> InvalidRequest:
    values: dict[str, Any] = error.values
    return InvalidRequest(f"{lead}: {error.message}", hint=error.hint, **values)


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each line that is not blank."""
    with ExitStack() as stack:
        try:
            file = sys.stdin.buffer if path == STDIN else stack.enter_context(open(path, "rb"))
            for number, line in enumerate(file, 1):
                if stripped := line.removeprefix(b"\xef\xbb\xbf").strip():
                    yield number, stripped
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise InvalidRequest(f"cannot read {path}: {reason}", hint="--file takes a .jsonl file, or -") from error


def _value(data: bytes) -> Any:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"not UTF-8: byte 0x{data[error.start]:02x} at {error.start}") from error
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"not JSON: {error.msg} at character {error.pos}", hint="one JSON object a line"
        ) from error
    except UnicodeEncodeError as error:
        raise InvalidRequest("a text has a lone surrogate", hint="pass UTF-8 text") from error
    except RecursionError as error:
        raise InvalidRequest("its JSON is nested too deep", hint="one flat JSON object a line") from error
    except ValueError as error:  # a number with thousands of digits
        raise InvalidRequest(f"not JSON: {error}", hint="one JSON object a line") from error
    return value


def _job(value: Any, number: int, where: str, defaults: Defaults) -> Job:
    if not isinstance(value, dict):
        raise InvalidRequest(f"a {_kind(value)}; it must be a JSON object", hint='e.g. {"prompt": "Hello"}')
    for key in value:
        if key not in _FIELDS:
            raise InvalidRequest(f"unknown field {_short(key)}", hint=f"it must be one of {', '.join(_FIELDS)}")
    given = [name for name in _PROMPTS if name in value]
    if len(given) != 1:
        shown = " and ".join(given) or "none"
        raise InvalidRequest(f"{shown} given; it must be exactly one of {', '.join(_PROMPTS)}")
    prompt = _READERS[given[0]](value[given[0]])
    if defaults.chat and isinstance(prompt, str):
        prompt = in_chat(prompt, defaults.system)
    name = value.get("id", f"line-{number}")
    if not _is_whole(name) and not isinstance(name, str):
        raise InvalidRequest(f"id is {_short(name)}; it must be a text or a whole number")
    priority, deadline = value.get("priority", defaults.priority), value.get("deadline", defaults.deadline)
    _check_priority(priority)
    _check_deadline(deadline)
    return Job(name, where, prompt, _params(value.get("params", {}), defaults.params), priority, deadline)


def _text(value: Any) -> Prompt:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"prompt is {_short(value)}; it must be a text of at least 1 character")
    return value


def _token_ids(value: Any) -> Prompt:
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"prompt_token_ids is {_short(value)}; it must be a list of at least 1 token id")
    for position, token in enumerate(value):
        if not _is_whole(token):
            raise InvalidRequest(f"prompt_token_ids has {_short(token)} at {position}; it must hold whole numbers only")
    return value


def _messages(value: Any) -> Prompt:
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"messages is {_short(value)}; it must be a list of at least 1 message")
    for position, message in enumerate(value):
        if not isinstance(message, dict):
            raise InvalidRequest(f"messages has {_short(message)} at {position}; it must hold objects")
        for name in ("role", "content"):
            if not isinstance(message.get(name), str):
                raise InvalidRequest(f"{name} of message {position} is {_short(message.get(name))}; it must be a text")
    return value


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "prompt": _text,
    "prompt_token_ids": _token_ids,
    "messages": _messages,
}


def _params(value: Any, defaults: SamplingParams) -> SamplingParams:
    if not isinstance(value, dict):
        raise InvalidRequest(f"params is a {_kind(value)}; it must be an object of sampling parameters")
    changes: dict[str, Any] = {}
    for name, item in value.items():
        if name not in _PARAMS:
            raise InvalidRequest(
                f"params: unknown field {_short(name)}", hint=f"it must be one of {', '.join(_PARAMS)}"
            )
        # In Python a bool is a number as well, and anything has a truth.
        if isinstance(item, bool) is not isinstance(_PARAMS[name], bool):
            wanted = "true or false" if isinstance(_PARAMS[name], bool) else "no truth value"
            raise InvalidRequest(f"params: {name} is {_short(item)}; it must be {wanted}")
        changes[name] = _biases(item) if name == "logit_bias" else item
    try:
        return replace(defaults, **changes)
    except InvalidRequest as error:
        raise _led_by("params", error) from error


def _biases(value: Any) -> Any:
    """JSON's keys are texts, and it has no infinity."""
    if not isinstance(value, dict):
        return value
    biases: dict[int, Any] = {}
    for key, amount in value.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise InvalidRequest(f"params: logit_bias names {_short(key)}; it must name token ids")
        if isinstance(amount, bool):
            raise InvalidRequest(f"params: logit_bias of token {key} is {_short(amount)}; it must be a number")
        biases[int(key)] = -math.inf if amount == "-inf" else amount
    return biases


def _check_priority(value: Any) -> None:
    if not _is_whole(value) or not -MOST_PRIORITY <= value <= MOST_PRIORITY:
        raise InvalidRequest(
            f"priority is {_short(value)}; it must be a whole number, {-MOST_PRIORITY} to {MOST_PRIORITY}",
            priority=value,
        )


def _check_deadline(value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST_SECONDS:
        raise InvalidRequest(
            f"deadline is {_short(value)}; it must be above 0 and at most {_MOST_SECONDS:g} seconds", deadline=value
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"field {_short(twice)} is given twice", hint="give it once")
    return value


def _no_number(name: str) -> NoReturn:
    raise InvalidRequest(f"{name} is no JSON number", hint='a bias of "-inf" bans a token')


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    kinds = {type(None): "null", bool: "truth value", str: "text", list: "list", dict: "object"}
    return kinds.get(type(value), "number")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 40 else text[:40] + "…"
