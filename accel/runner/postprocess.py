"""From logits to tokens: sampling, stop rules, and the slots' last tokens. All of it ops on the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from accel.backend import Device, Stream
from accel.runner.plan import StepPlan
from accel.runner.preprocess import StepBuffers, to_device

__all__ = ["Postprocessor"]


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
        self._eos = to_device(device, device.current_stream(), np.array(eos_token_ids, np.int32))

    def sample(self, stream: Stream, plan: StepPlan, rows: np.ndarray[Any, Any], logits: Any) -> Any:
        """One token for each of the plan's requests `rows`, whose logits are the rows of `logits` [n, vocab].

        Returns:
            int32 [n] on the device; -1 where a row held no number.
        """
        token = self._token.narrow(0, 0, len(rows))
        if not np.any(plan.temperature[rows]):
            self._device.ops.argmax(stream, token, logits)
            return token
        # The counter of a request's random numbers is the position of the token that is drawn.
        lengths = np.diff(plan.query_start)[rows]
        position = plan.computed[rows].astype(np.int64) + lengths

        def upload(array: np.ndarray[Any, Any]) -> Any:
            return to_device(self._device, stream, array)

        self._device.ops.sample(
            stream,
            token,
            logits,
            upload(plan.temperature[rows]),
            upload(plan.top_k[rows]),
            upload(plan.top_p[rows]),
            upload(np.zeros(len(rows), np.float32)),  # min_p: off
            upload(plan.seed[rows]),
            upload(position),
        )
        return token

    def stop(self, stream: Stream, plan: StepPlan, rows: np.ndarray[Any, Any], token: Any) -> Any:
        """FinishReason of each of the requests `rows` after `token`; int32 [n] on the device."""
        reason = self._reason.narrow(0, 0, len(rows))

        def upload(array: np.ndarray[Any, Any]) -> Any:
            return to_device(self._device, stream, array)

        self._device.ops.stop_check(
            stream,
            reason,
            token,
            upload(plan.generated[rows] + np.int32(1)),
            upload(plan.max_tokens[rows]),
            upload(np.zeros(len(rows), np.int32)),  # min_tokens: off
            upload(plan.ignore_eos[rows]),
            self._eos,
            upload(np.zeros((1, 1), np.int32)),  # history, slots and lengths: without stop words nobody reads them
            upload(np.zeros(len(rows), np.int32)),
            upload(np.zeros(len(rows), np.int32)),
            upload(np.zeros(len(rows) + 1, np.int32)),  # row_start, word_start, words: none
            upload(np.zeros(1, np.int32)),
            upload(np.zeros(0, np.int32)),
        )
        return reason

    def update(self, stream: Stream, plan: StepPlan, rows: np.ndarray[Any, Any], token: Any) -> None:
        """Remember `token` as the last one of the slots of `rows`."""
        slots = to_device(self._device, stream, plan.slot[rows])
        self._device.ops.update_slots(stream, self._buffers.last_token, slots, token)
