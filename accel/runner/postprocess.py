"""From logits to tokens: shaping, sampling, log-probabilities, stop rules, and what slots remember. All of it ops on
the device.

::

    logits ─┬──────────────── rows that want log-probabilities ──────────────────────────┐
            └ penalties ─ bad words ─ bias, min tokens ─> argmax or sample ─> token ─┬───┴─> logprobs
                   ^                                                                 ├─> stop_check ─> reason
                   └── history [slots, positions] <── write_history ─────────────────┴─> last_token

Invariant: what a request gets depends on its own row of the plan, its logits and its own tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from accel.backend import Device, Stream
from accel.runner.plan import StepPlan
from accel.runner.preprocess import StepBuffers, to_device

__all__ = ["Postprocessor"]

Int32 = npt.NDArray[np.int32]
#: Words of several rows: (row_start [R + 1], word_start [W + 1], words [N]), int32.
Ragged = tuple[Int32, Int32, Int32]


class Postprocessor:
    """Samples for at most `max_requests` rows.

    Args:
        eos_token_ids: any of these ends a request that does not ignore them.
    """

    def __init__(self, device: Device, buffers: StepBuffers, eos_token_ids: tuple[int, ...]) -> None:
        self._device = device
        self._buffers = buffers
        self._token = device.view(device.empty([buffers.max_requests], "int32"))
        self._reason = device.view(device.empty([buffers.max_requests], "int32"))
        self._eos_ids = eos_token_ids
        self._no_words: dict[int, tuple[Any, ...]] = {}
        self._eos = to_device(device, device.current_stream(), np.array(eos_token_ids, np.int32))

    def shape(self, stream: Stream, plan: StepPlan, rows: Int32, logits: Any) -> None:
        """Penalties, bad words, logit bias and min tokens, in place, for those of `rows` that have them."""
        if plan.plain:
            return
        params = [plan.params[row] for row in rows]
        if not any(p.shapes_logits for p in params):
            return
        lengths = plan.lengths[rows]
        if any(p.penalises for p in params):
            penalised = np.array([p.penalises for p in params], np.bool_)
            self._run(
                "penalties",
                stream,
                logits,
                self._buffers.history,
                plan.slot[rows],
                # A row without penalties reads no history, which may not be its own.
                np.where(penalised, plan.prompt_len[rows], 0).astype(np.int32),
                np.where(penalised, lengths, 0).astype(np.int32),
                np.array([p.repetition_penalty for p in params], np.float32),
                np.array([p.frequency_penalty for p in params], np.float32),
                np.array([p.presence_penalty for p in params], np.float32),
            )
        if any(p.bad_words for p in params):
            words = [p.bad_words for p in params]
            self._run("bad_words", stream, logits, *self._history_of(plan, rows, words, lengths), *_ragged(words))
        self._bias(stream, plan, rows, logits)

    def sample(self, stream: Stream, plan: StepPlan, rows: Int32, logits: Any) -> Any:
        """One token for each of the plan's requests `rows`, whose shaped logits are the rows of `logits` [n, vocab].

        Returns:
            int32 [n] on the device; -1 where a row held no number.
        """
        token = self._token.narrow(0, 0, len(rows))
        if not np.any(plan.temperature[rows]):
            self._device.ops.argmax(stream, token, logits)
            return token
        # The counter of a request's random numbers is the position of the token that is drawn.
        self._run(
            "sample",
            stream,
            token,
            logits,
            *_of(rows, plan.temperature, plan.top_k, plan.top_p, plan.min_p, plan.seed, plan.lengths.astype(np.int64)),
        )
        return token

    def logprobs(self, stream: Stream, logits: Any, tokens: Any, top: int) -> tuple[Any, Any, Any, Any]:
        """Log-probabilities of `tokens` int32 [n] in the rows of `logits` [n, vocab], and the `top` best of each.

        Returns:
            value float32 [n], rank int32 [n], top_ids int32 [n, top], top_values float32 [n, top], on the device.
        """
        device, count = self._device, tokens.shape[0]

        def buffer(shape: list[int], dtype: str) -> Any:
            return device.view(device.empty(shape, dtype))

        outputs = (
            buffer([count], "float32"),
            buffer([count], "int32"),
            buffer([count, top], "int32"),
            buffer([count, top], "float32"),
        )
        device.ops.logprobs(stream, *outputs, logits, tokens)
        return outputs

    def stop(self, stream: Stream, plan: StepPlan, rows: Int32, token: Any) -> Any:
        """FinishReason of each of the requests `rows` after `token`; int32 [n] on the device."""
        reason = self._reason.narrow(0, 0, len(rows))
        self._run(
            "stop_check",
            stream,
            reason,
            token,
            *_of(rows, plan.generated + np.int32(1), plan.max_tokens, plan.min_tokens, plan.ignore_eos),
            self._eos,
            *self._stop_words(plan, rows),
        )
        return reason

    def update(self, stream: Stream, plan: StepPlan, rows: Int32, token: Any) -> None:
        """Remember `token` as the last one of the slots of `rows`, and in the histories of those that have one."""
        (slots,) = _of(rows, plan.slot)
        self._run("update_slots", stream, self._buffers.last_token, slots, token)
        if not plan.plain and any(plan.params[row].uses_history for row in rows):
            # All rows: a history that nobody reads may hold anything.
            self._buffers.write_history(stream, slots, plan.lengths[rows], token)

    def _stop_words(self, plan: StepPlan, rows: Int32) -> tuple[Any, ...]:
        """(history, slots, lengths, row_start, word_start, words) of stop_check."""
        if plan.plain:
            # Most steps: the same empty lists for so many rows.
            found = self._no_words.get(len(rows))
            if found is None:
                zeros, starts = np.zeros(len(rows), np.int32), np.zeros(len(rows) + 1, np.int32)
                host = (zeros, zeros, starts, starts[:1], starts[:0])
                stream = self._device.current_stream()
                found = (self._buffers.no_history, *(to_device(self._device, stream, array) for array in host))
                self._no_words[len(rows)] = found
            return found
        words = [plan.params[row].stop_words for row in rows]
        history, slots, _, lengths = self._history_of(plan, rows, words, plan.lengths[rows])
        return (history, slots, lengths, *_ragged(words))

    def _bias(self, stream: Stream, plan: StepPlan, rows: Int32, logits: Any) -> None:
        entries: list[list[tuple[int, float]]] = []
        for row in rows.tolist():
            params = plan.params[row]
            entry = list(params.logit_bias.items())
            if plan.generated[row] < params.min_tokens:
                ends = [word[0] for word in params.stop_words if len(word) == 1]
                entry += [(token, -np.inf) for token in (*ends, *(() if params.ignore_eos else self._eos_ids))]
            entries.append(entry)
        if any(entries):
            flat = [pair for entry in entries for pair in entry]
            self._run(
                "logit_bias",
                stream,
                logits,
                _starts(len(entry) for entry in entries),
                np.array([token for token, _ in flat], np.int32),
                np.array([value for _, value in flat], np.float32),
            )

    def _history_of(
        self, plan: StepPlan, rows: Int32, words: Sequence[Sequence[Sequence[int]]], lengths: Int32
    ) -> tuple[Any, Int32, Int32, Int32]:
        """(history, slots, prompt_lens, lengths) for matching `words`; a stand-in where all are single tokens."""
        long = np.array([any(len(word) > 1 for word in row) for row in words], np.bool_)
        if not long.any():
            zeros = np.zeros(len(rows), np.int32)
            return self._buffers.no_history, zeros, zeros, zeros
        masked = [np.where(long, array, 0).astype(np.int32) for array in (plan.prompt_len[rows], lengths)]
        return self._buffers.history, plan.slot[rows], masked[0], masked[1]

    def _run(self, op: str, stream: Stream, *arguments: Any) -> None:
        """Launch `op`; NumPy arrays are brought to the device first."""
        device = self._device
        getattr(device.ops, op)(
            stream, *(to_device(device, stream, a) if isinstance(a, np.ndarray) else a for a in arguments)
        )


def _of(rows: Int32, *arrays: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """The `rows` of each array; themselves where those are all, as in a step of decodes."""
    return arrays if len(rows) == len(arrays[0]) else tuple(array[rows] for array in arrays)


def _starts(lengths: Iterable[int]) -> Int32:
    return np.cumsum([0, *lengths]).astype(np.int32)


def _ragged(rows: Sequence[Sequence[Sequence[int]]]) -> Ragged:
    words = [word for row in rows for word in row]
    return (
        _starts(len(row) for row in rows),
        _starts(len(word) for word in words),
        np.array([token for word in words for token in word], np.int32),
    )
