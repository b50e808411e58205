"""One request of a caller while it lives: from token ids to text, stop strings, log-probabilities and times.

Invariant: used by the loop thread only, once it is submitted; where that one hangs in a step, whoever closes the engine
ends it. It ends exactly once, with one `TokenOutput` that carries the `RequestOutput`.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from accel.engine.channel import Channel
from accel.engine.outputs import RequestMetrics, RequestOutput, TokenLogprobs, TokenOutput
from accel.errors import AccelError
from accel.models.stop_text import StopText
from accel.models.tokenizer import TokenStream
from accel.scheduler.request import EndReason, Request
from accel.scheduler.scheduler import Update

__all__ = ["FINISH_NAMES", "Live"]

#: What `finish_reason` says for each way to end.
FINISH_NAMES = {
    EndReason.EOS: "stop",
    EndReason.STOP: "stop",
    EndReason.LENGTH: "length",
    EndReason.ABORT: "abort",
    EndReason.DEADLINE: "deadline",
    EndReason.ERROR: "error",
}


class Live:
    """Follows `request` and puts what comes of it into `channel`.

    Args:
        detokenizer: of this request; None for a model without a tokenizer.
    """

    def __init__(
        self,
        request: Request,
        channel: Channel[TokenOutput],
        detokenizer: TokenStream | None,
        *,
        request_id: str,
        index: int = 0,
        choice: int = 0,
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.submitted = False
        self.done = False
        self._ending = threading.Lock()  # taken by who ends it, and never given back
        self.logits: list[npt.NDArray[np.float32]] = []
        self._channel = channel
        self._detokenizer = detokenizer
        self._index = index
        self._choice = choice
        params = request.params
        self._stops = StopText(params.stop, params.include_stop) if params.stop else None
        self._stop_found: str | None = None
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        if params.prompt_logprobs is not None:
            self._prompt_logprobs = [None] * request.prompt_len
        self._started = time.perf_counter()
        self._first: float | None = None
        self._last = self._started

    def take(self, update: Update) -> bool:
        """Take what a step brought. True when its token completed a stop string: the request is to end.

        The token goes out with `send`, once it is known whether it is the last.
        """
        if self._prompt_logprobs is not None:
            self._take_prompt_logprobs(update, self._prompt_logprobs)
        if self.request.all_logits and update.output.logits is not None:
            self.logits.append(update.output.logits[update.tokens])
        if update.token is None:
            return False
        self._last = time.perf_counter()
        if self._first is None:
            self._first = self._last
        self._tokens.append(update.token)
        text = "" if self._detokenizer is None else self._detokenizer.push(update.token)
        if self._stops is not None and self._stops_count:
            text, self._stop_found = self._stops.push(text)
        self._texts.append(text)
        if self._logprobs is not None:
            self._logprobs.append(_sampled(update))
        return self._stop_found is not None

    def send(self, *, final: bool) -> RequestOutput | None:
        """Put the token just taken; the last one with the whole output, which is returned. None when it had ended."""
        if final and not self._ending.acquire(blocking=False):
            return None
        logprobs = self._logprobs[-1] if self._logprobs else None
        output = None
        if final:
            self._texts[-1] += self._flush()
            output = self._output()
        self._channel.put(TokenOutput(self._index, self._tokens[-1], self._texts[-1], output, self._choice, logprobs))
        return output

    def end(self, reason: EndReason | None = None, error: AccelError | None = None) -> RequestOutput | None:
        """The request ended without another token: put its output. `reason` for one that was never submitted. None when
        it had ended."""
        if not self._ending.acquire(blocking=False):
            return None
        tail = self._flush()
        self._texts.append(tail)
        output = self._output(reason, error)
        self._channel.put(TokenOutput(self._index, None, tail, output, self._choice))
        return output

    def _output(self, reason: EndReason | None = None, error: AccelError | None = None) -> RequestOutput:
        self.done = True
        request = self.request
        reason, error = reason or request.reason or EndReason.ERROR, error or request.error
        if self._stop_found is not None:
            reason, error = EndReason.STOP, None
        return RequestOutput(
            prompt_token_ids=request.tokens[: request.prompt_len].tolist(),
            token_ids=list(self._tokens),
            text=None if self._detokenizer is None else "".join(self._texts),
            finish_reason=FINISH_NAMES[reason],
            seed=request.seed,
            metrics=self._metrics(),
            request_id=self.request_id,
            index=self._index,
            choice=self._choice,
            stop_reason=self._stop_reason(reason),
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            error=None if error is None else error.again(),
        )

    def _flush(self) -> str:
        """The text that was held back: half characters, and what could have begun a stop string."""
        if self._detokenizer is None or self._stop_found is not None:
            return ""
        tail = self._detokenizer.finish()
        if self._stops is not None and self._stops_count:
            tail, self._stop_found = self._stops.push(tail)
            if self._stop_found is None:
                tail += self._stops.finish()
        return tail

    @property
    def _stops_count(self) -> bool:
        """Whether stop strings may end the request already."""
        return len(self._tokens) >= self.request.params.min_tokens

    def _stop_reason(self, reason: EndReason) -> str | int | tuple[int, ...] | None:
        if self._stop_found is not None:
            return self._stop_found
        if reason is EndReason.STOP:
            for word in self.request.params.stop_words:
                if tuple(self._tokens[-len(word) :]) == word:
                    return word[0] if len(word) == 1 else word
        return None

    def _metrics(self) -> RequestMetrics:
        request, count = self.request, len(self._tokens)
        first = 0.0 if self._first is None else self._first - self._started
        total = (self._last if self._first is not None else time.perf_counter()) - self._started
        return RequestMetrics(
            time_to_first_token=first,
            time_per_output_token=(total - first) / (count - 1) if count > 1 else 0.0,
            total_time=total,
            queue_time=0.0 if request.admitted is None else request.admitted - request.arrival,
            hit_tokens=request.hit_tokens,
            preemptions=request.preemptions,
        )

    def _take_prompt_logprobs(self, update: Update, into: list[TokenLogprobs | None]) -> None:
        for part in update.output.prompt_logprobs:
            if part.row == update.row:
                for offset in range(len(part.token)):
                    position = part.first + offset
                    into[position] = TokenLogprobs(
                        int(self.request.tokens[position]),
                        float(part.token[offset]),
                        int(part.rank[offset]),
                        _pairs(part.top_ids[offset], part.top[offset]),
                    )


def _sampled(update: Update) -> TokenLogprobs:
    """The log-probabilities of an update's token, cut to as many alternatives as its request asked for."""
    values, token = update.output.logprobs, update.token
    if values is None or token is None:
        raise AccelError("the step brought no log-probabilities for a request that asked for them")
    at = int(np.searchsorted(values.rows, update.row))
    most = update.request.params.logprobs or 0
    return TokenLogprobs(
        token, float(values.token[at]), int(values.rank[at]), _pairs(values.top_ids[at, :most], values.top[at, :most])
    )


def _pairs(ids: Any, values: Any) -> tuple[tuple[int, float], ...]:
    return tuple(zip(ids.tolist(), values.tolist(), strict=True))
