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

    Two things outlive a step, both by slot: `last_token` int32 [max_requests], sampled last, and `history` int32
    [max_requests, max_positions + 1], the tokens of requests whose rules look at them. A request's first step in a slot
    overwrites what it will read.
    """

    def __init__(self, device: Device, max_tokens: int, max_requests: int, max_positions: int) -> None:
        def buffer(count: int, dtype: str) -> Any:
            return device.view(device.empty([count], dtype))

        self.max_tokens = max_tokens
        self.max_requests = max_requests
        self._device = device
        self._max_positions = max_positions
        self._history: Any = None
        #: Stands for the history where no request of a step has one.
        self.no_history = to_device(device, device.current_stream(), np.zeros((1, 1), np.int32))
        self._ids = buffer(max_tokens, "int32")
        self._positions = buffer(max_tokens, "int32")
        self._slot_mapping = buffer(max_tokens, "int64")
        self._kv_lens = buffer(max_requests, "int32")
        self._last_rows = buffer(max_requests, "int32")
        self.last_token = buffer(max_requests, "int32")
        device.fill(self.last_token, 0, device.current_stream())

    @property
    def history(self) -> Any:
        """The slots' histories; made when first used, because few requests need them."""
        if self._history is None:
            shape = [self.max_requests, self._max_positions + 1]
            self._history = self._device.view(self._device.empty(shape, "int32"))
            self._device.fill(self._history, 0, self._device.current_stream())
        return self._history

    def write_history(self, stream: Stream, slot: Any, position: Any, token: Any) -> None:
        """``history[slot[i], position[i]] = token[i]``; int32 [N], on the host or the device."""
        arguments = [to_device(self._device, stream, a) if isinstance(a, np.ndarray) else a for a in (slot, position)]
        if isinstance(token, np.ndarray):
            token = to_device(self._device, stream, token)
        self._device.ops.write_history(stream, self.history, *arguments, token)

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
        if plan.history is not None:
            self.write_history(stream, plan.history.slot, plan.history.position, plan.history.token)
        return packed
