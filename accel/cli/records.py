"""What ``accel generate`` tells of requests: a record for each output, a summary of them all, and where they go.

Invariant: a record has the same keys whatever happened, and is written whole and flushed before the next one.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

from accel.cli.prompt import STDIN
from accel.errors import AccelError, InvalidArgument

if TYPE_CHECKING:
    from accel.cli.jobs import Ready
    from accel.engine import RequestOutput, TokenLogprobs

__all__ = ["Done", "check_target", "create_lines", "record", "summary", "summary_line", "write_line"]


@dataclass(frozen=True)
class Done:
    """A choice that ended: `output`, or `error` where it failed. `index` is of the request among those given."""

    ready: Ready
    index: int
    choice: int
    output: RequestOutput | None
    error: AccelError | None = None


def record(done: Done, load_time: float) -> dict[str, Any]:
    """A choice as JSON; ``docs/cli.md`` documents it."""
    job, output = done.ready.job, done.output
    about: dict[str, Any] = {"id": job.id, "index": done.index, "choice": done.choice}
    if output is not None:
        return {**about, **_ended(output, load_time), "error": None}
    return {
        **about,
        "prompt_token_ids": done.ready.ids,
        "token_ids": [],
        "text": None,
        "finish_reason": "error",
        "stop_reason": None,
        "seed": None,
        "logprobs": None,
        "prompt_logprobs": None,
        "metrics": None,
        "error": {"type": type(done.error).__name__, "message": str(done.error)},
    }


def _ended(output: RequestOutput, load_time: float) -> dict[str, Any]:
    per_token = output.metrics.time_per_output_token
    return {
        "prompt_token_ids": output.prompt_token_ids,
        "token_ids": output.token_ids,
        "text": output.text,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "seed": output.seed,
        "logprobs": output.logprobs and [_logprobs(entry) for entry in output.logprobs],
        "prompt_logprobs": output.prompt_logprobs and [entry and _logprobs(entry) for entry in output.prompt_logprobs],
        "metrics": {
            "load_time": load_time,
            **asdict(output.metrics),
            "tokens_per_second": 1 / per_token if per_token else None,
        },
    }


def _logprobs(entry: TokenLogprobs) -> dict[str, Any]:
    """JSON has no infinity: the log-probability of what cannot come is null."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "token_id": entry.token_id,
        "logprob": finite(entry.logprob),
        "rank": entry.rank,
        "top": [[token, finite(value)] for token, value in entry.top],
    }


def summary(done: Sequence[Done], load_time: float, wall_time: float) -> dict[str, Any]:
    """The run as a whole. A choice counts as a request; times in seconds, from the start of the run."""
    outputs = [item.output for item in done if item.output is not None]
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    hits = sum(output.metrics.hit_tokens for output in outputs)
    generated = sum(len(output.token_ids) for output in outputs)
    return {
        "requests": len(done),
        "failed": len(done) - len(outputs),
        "prompt_tokens": prompt,
        "hit_tokens": hits,
        "hit_share": hits / prompt if prompt else None,
        "generated_tokens": generated,
        "tokens_per_second": generated / wall_time if generated else None,
        "time_to_first_token": _spread([o.metrics.time_to_first_token for o in outputs if o.token_ids]),
        "time_per_output_token": _spread([o.metrics.time_per_output_token for o in outputs if len(o.token_ids) > 1]),
        "preemptions": sum(output.metrics.preemptions for output in outputs),
        "load_time": load_time,
        "wall_time": wall_time,
    }


def summary_line(numbers: dict[str, Any]) -> str:
    """`summary` for a reader."""
    parts = [f"{numbers['requests']} requests"]
    if numbers["failed"]:
        parts.append(f"{numbers['failed']} of them failed")
    share = "" if numbers["hit_share"] is None else f" ({numbers['hit_share']:.0%})"
    parts.append(f"{numbers['prompt_tokens']} prompt tokens, {numbers['hit_tokens']} of them from the cache{share}")
    rate = numbers["tokens_per_second"]
    parts.append(f"{numbers['generated_tokens']} generated" + ("" if rate is None else f" at {rate:.1f} tokens/s"))
    for name, label in (("time_to_first_token", "first token after"), ("time_per_output_token", "then a token in")):
        spread = numbers[name]
        if spread["median"] is not None:
            parts.append(f"{label} {spread['median'] * 1e3:.1f} ms (99%: {spread['p99'] * 1e3:.1f} ms)")
    if numbers["preemptions"]:
        parts.append(f"{numbers['preemptions']} preemptions")
    parts.append(f"loaded in {numbers['load_time']:.2f} s, ran {numbers['wall_time']:.2f} s")
    return f"[{'; '.join(parts)}]"


def check_target(path: str | None, force: bool, source: str | None) -> None:
    """Raise InvalidArgument where `create_lines` would refuse, before anything is loaded. Changes nothing.

    Args:
        source: the file that requests are read from.
    """
    if path is None or path == STDIN:
        if force:
            raise InvalidArgument("--force needs --output FILE, which it lets replace a file", hint="leave it out")
        return
    folder = os.path.dirname(path) or "."
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        if not os.path.isdir(folder):
            raise InvalidArgument(f"cannot write {path}: there is no folder {folder}") from None
        return
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error
    if not force:
        raise InvalidArgument(f"{path} is there already", hint="choose another name, or add --force to replace it")
    if not stat.S_ISREG(found.st_mode):
        raise InvalidArgument(f"{path} is no regular file, so --force does not replace it", hint="choose another name")
    if source is not None and source != STDIN and os.path.samefile(path, source):
        raise InvalidArgument(f"{path} is the file that requests are read from", hint="choose another name")


@contextmanager
def create_lines(path: str, force: bool) -> Iterator[IO[str]]:
    """A new file for `write_line` that only its owner may read; ``-`` is stdout.

    Raises:
        InvalidArgument: it is there already, without `force`, or cannot be made.
    """
    if path == STDIN:
        yield sys.stdout
        return
    try:
        if force and os.path.lexists(path):
            os.unlink(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(path, error) from error
    with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
        yield file


def write_line(value: dict[str, Any], file: IO[str]) -> None:
    """`value` as one line of JSON, which is out of this process when this returns."""
    utf8 = (getattr(file, "encoding", None) or "").lower().replace("-", "") == "utf8"
    file.write(json.dumps(value, ensure_ascii=not utf8, allow_nan=False) + "\n")
    file.flush()


def _unwritable(path: str, error: Exception) -> InvalidArgument:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InvalidArgument(f"cannot write {path}: {reason}", hint="choose another name for --output")


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    """Median and 99th percentile, between neighbours in proportion; null without values."""
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return {"median": at(0.5), "p99": at(0.99)} if ordered else {"median": None, "p99": None}
