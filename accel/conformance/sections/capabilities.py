"""Every claim both ways: NATIVE and EMULATED must work, NONE must raise Unsupported with a way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from accel.backend import Support
from accel.conformance.context import SOON, Context
from accel.conformance.registry import Case, add, case
from accel.errors import Unsupported


def _register_host(context: Context) -> None:
    memory = context.bytes(1 << 16)
    registration = context.device.register_host(memory)
    target = np.empty_like(memory)
    stream = context.stream()
    tensor = context.empty(memory.shape, "uint8")
    context.device.copy(tensor, memory, stream)
    context.device.copy(target, tensor, stream)
    stream.synchronize(SOON)
    registration.close()
    registration.close()
    context.equal(target, memory, "registered memory through the device and back")


def _memory_info(context: Context) -> None:
    free, total = context.device.memory()
    context.check(0 < free <= total, f"free {free} of total {total}")


def _timing(context: Context) -> None:
    stream, begin, end = context.stream(), context.device.event(timing=True), context.device.event(timing=True)
    begin.record(stream)
    end.record(stream)
    end.synchronize(SOON)
    begin.elapsed_ms(end)


def _gate(context: Context) -> None:
    stream = context.stream()
    stream.gate().open()
    stream.synchronize(SOON)


def _host_call(context: Context) -> None:
    stream, seen = context.stream(), list[int]()
    stream.host_call(lambda: seen.append(1))
    stream.synchronize(SOON)
    context.equal(seen, [1], "what the call did")


def _capture(context: Context) -> None:
    context.device.capture()


#: Field of Capabilities -> what uses it.
_USES: dict[str, Callable[[Context], Any]] = {
    "host_register": _register_host,
    "memory_info": _memory_info,
    "event_timing": _timing,
    "gate": _gate,
    "host_call": _host_call,
    "graph_capture": _capture,
}


def _truth(name: str) -> Callable[[Context], None]:
    def run(context: Context) -> None:
        if getattr(context.device.capabilities, name) is Support.NONE:
            with context.raises(Unsupported, "", f"using {name}, which is claimed to be none,"):
                _USES[name](context)
        else:
            _USES[name](context)

    return run


for _name in _USES:
    add(Case("capabilities", f"{_name}_is_true", _truth(_name), proves="none raises Unsupported, all else works"))


@case("capabilities", needs=("async_copy", "gate"))
def native_async_copies_do_not_block_the_host(context: Context) -> None:
    """q1 = [gate, copy]: the call comes back while the gate is shut. EMULATED may block, and is not asked."""
    if context.device.capabilities.async_copy is not Support.NATIVE:
        return
    stream, source, target = context.stream(), context.bytes(1 << 20), context.zeros(1 << 20)
    gate = stream.gate()
    context.device.copy(target, source, stream)
    context.equal(int(target.max()), 0, "bytes copied behind a shut gate")
    gate.open()
    stream.synchronize(SOON)
    context.equal(target, source, "the copy")


@case("capabilities")
def every_dtype_that_is_claimed_can_be_allocated(context: Context) -> None:
    """dtypes and KV dtypes"""
    capabilities = context.device.capabilities
    for dtype in dict.fromkeys((*capabilities.dtypes, *capabilities.kv_dtypes)):
        context.empty((4,), dtype)


@case("capabilities")
def every_weight_format_that_is_claimed_can_be_made(context: Context) -> None:
    """An empty weight of 32 x 256, and its shape"""
    for name in context.device.capabilities.weight_formats:
        weight = context.device.weight(name, 32, 256)
        context.equal((tuple(weight.shape), weight.format), ((32, 256), name), "shape and format of a weight")
