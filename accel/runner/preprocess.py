"""From a plan to what the decoder takes: host arrays to the device, tokens packed, positions and slots worked out
there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from accel.backend import Device, Stream
from accel.errors import InvalidArgument
from accel.models.decoder import DecoderInput
from accel.runner.plan import StepPlan

__all__ = ["Packed", "StepBuffers", "to_device"]


def to_device(device: Device, stream: Stream, array: np.ndarray[Any, Any]) -> Any:
    """`array` as the ops of `device` take it: itself on a host-executed device, else a copy in stream order.

    The copy is complete when this returns where the source is pageable, so `array` need not outlive the step.
    """
    array = np.ascontiguousarray(array)
    if device.capabilities.host_executed:
        return device.view(array)
    tensor = device.empty(array.shape, str(array.dtype))
    device.copy(tensor, array, stream)
    stream.synchronize()
    return device.view(tensor)


@dataclass(frozen=True)
class Packed:
    """A step ready to run: the plan, the decoder's input, the rows whose logits are wanted (int32 on the device)."""

    plan: StepPlan
    input: DecoderInput
    slots: Any
    last_rows: Any


class StepBuffers:
    """The integer side of a step of at most `max_tokens` tokens and `max_requests` requests, allocated once.

    `last_token` int32 [max_requests] is the only state that outlives a step: the token last sampled in each slot.
    """

    def __init__(self, device: Device, max_tokens: int, max_requests: int) -> None:
        def buffer(count: int, dtype: str) -> Any:
            return device.view(device.empty([count], dtype))

        self.max_tokens = max_tokens
        self.max_requests = max_requests
        self._device = device
        self._ids = buffer(max_tokens, "int32")
        self._positions = buffer(max_tokens, "int32")
        self._slot_mapping = buffer(max_tokens, "int64")
        self._kv_lens = buffer(max_requests, "int32")
        self._last_rows = buffer(max_requests, "int32")
        self.last_token = buffer(max_requests, "int32")
        device.fill(self.last_token, 0, device.current_stream())

    def pack(self, stream: Stream, plan: StepPlan, block_size: int) -> Packed:
        """Launch ``pack_step``. Raises InvalidArgument when the plan is too large, or names what is not there."""
        tokens, requests = plan.num_tokens, plan.num_requests
        if tokens > self.max_tokens:
            raise InvalidArgument(
                f"the plan computes {tokens} tokens; the limit is {self.max_tokens} (max_batch_tokens)"
            )
        if requests > self.max_requests:
            raise InvalidArgument(f"the plan has {requests} requests; the limit is {self.max_requests} (max_requests)")

        def upload(array: np.ndarray[Any, Any]) -> Any:
            return to_device(self._device, stream, array)

        slots, tables, starts = upload(plan.slot), upload(plan.block_tables), upload(plan.query_start)
        packed = Packed(
            plan,
            DecoderInput(
                tokens,
                self._ids.narrow(0, 0, tokens),
                self._positions.narrow(0, 0, tokens),
                self._slot_mapping.narrow(0, 0, tokens),
                tables,
                starts,
                self._kv_lens.narrow(0, 0, requests),
            ),
            slots,
            self._last_rows.narrow(0, 0, requests),
        )
        self._device.ops.pack_step(
            stream,
            packed.input.ids,
            packed.input.positions,
            packed.input.slot_mapping,
            packed.input.kv_lens,
            packed.last_rows,
            upload(plan.tokens),
            slots,
            starts,
            upload(plan.computed),
            tables,
            self.last_token,
            block_size=block_size,
        )
        return packed
