"""What an engine gives back: tokens as they come, and whole requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from accel.errors import AccelError

__all__ = ["RequestMetrics", "RequestOutput", "TokenLogprobs", "TokenOutput"]


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities at one position, natural logarithm, by the model's own logits.

    Args:
        logprob: of `token_id`; rank: 1 for the most likely.
        top: the most likely ids and theirs, best first; as many as were asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class RequestMetrics:
    """Times of one request in seconds, and what the scheduler did with it.

    `time_per_output_token` counts from the second token on; 0 with only one. Times that never came are 0.
    `queue_time` is the wait for admission, `hit_tokens` the part of the prompt found in the cache.
    """

    time_to_first_token: float
    time_per_output_token: float
    total_time: float
    queue_time: float = 0.0
    hit_tokens: int = 0
    preemptions: int = 0


@dataclass(frozen=True)
class RequestOutput:
    """A request that ended: one choice for one prompt.

    Args:
        text: None for a model without a tokenizer. Special tokens are not in it.
        finish_reason: "stop" (end of sequence, or a stop rule), "length", "abort", "deadline" or "error".
        seed: repeats the request exactly.
        stop_reason: the stop string, stop id or stop sequence that ended it; None for an end-of-sequence token.
        index, choice: of the prompt among those given, and among its n.
        logprobs: one a token, when asked for; prompt_logprobs: one a prompt token, None for the first.
        error: why, for "error".
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str | None
    finish_reason: str
    seed: int
    metrics: RequestMetrics
    request_id: str = ""
    index: int = 0
    choice: int = 0
    stop_reason: str | int | tuple[int, ...] | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: AccelError | None = field(default=None, compare=False)


@dataclass(frozen=True)
class TokenOutput:
    """One token of a stream.

    `text` is what it adds: whole characters only, possibly nothing. `output` comes with the last; where a request ends
    without a new token (abort, deadline, error) that last one has no `token_id`.
    """

    index: int
    token_id: int | None
    text: str
    output: RequestOutput | None = None
    choice: int = 0
    logprobs: TokenLogprobs | None = None
