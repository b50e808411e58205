"""An op refuses arguments that share memory where it would read what it has just written, and changes nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import accel
from accel import Device
from accel.errors import InvalidArgument

Run = Callable[[Any, Any, np.ndarray[Any, Any]], None]
X = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
IDS = np.arange(8, dtype=np.int32)

OVERLAPS: dict[str, Run] = {
    "rms_norm out one row behind x": lambda o, s, x: o.rms_norm(s, x[1:], x[:-1], np.ones(64, np.float32), eps=1.0),
    "rms_norm weight a row of out": lambda o, s, x: o.rms_norm(s, x[:4], X[:4].copy(), x[2], eps=1.0),
    "add_rms_norm out the residual": lambda o, s, x: o.add_rms_norm(
        s, x, x, X.copy(), np.ones(64, np.float32), eps=1.0
    ),
    "silu_and_mul out inside x": lambda o, s, x: o.silu_and_mul(s, x[:, 8:40], x),
    "gather_rows out is x": lambda o, s, x: o.gather_rows(s, x[:8], x, IDS),
    "argmax out in logits": lambda o, s, x: o.argmax(s, x.view(np.int32)[0], x),
    "penalties history in logits": lambda o, s, x: o.penalties(
        s, x[:2], x.view(np.int32)[1:3], IDS[:2], IDS[:2] * 0, IDS[:2] * 0, *(np.ones(2, np.float32) for _ in range(3))
    ),
    "penalties repetition a column of logits": lambda o, s, x: o.penalties(
        s, x[1:3], IDS.reshape(2, 4), IDS[:2], IDS[:2] * 0, IDS[:2] * 0, x[1, 1:3], X[0, :2], X[0, :2]
    ),
    "logit_bias values in logits": lambda o, s, x: o.logit_bias(s, x[:1], IDS[[0, 2]], IDS[:2], x[0, :2]),
    "bad_words words in logits": lambda o, s, x: o.bad_words(
        s, x[:1], IDS.reshape(2, 4), IDS[:1], IDS[:1], IDS[:1], IDS[:2], IDS[:2], x.view(np.int32)[0, :1]
    ),
    "logprobs top_values in logits": lambda o, s, x: o.logprobs(
        s, np.empty(1, np.float32), np.empty(1, np.int32), np.empty((1, 4), np.int32), x[:1, 4:8], x[:1], IDS[:1]
    ),
    "logprobs value in top_values": lambda o, s, x: o.logprobs(
        s, x[0, :1], np.empty(1, np.int32), np.empty((1, 4), np.int32), x[:1, :4], X[1:2], IDS[:1]
    ),
    "write_history tokens in history": lambda o, s, x: o.write_history(
        s, x.view(np.int32), IDS, IDS, x.view(np.int32)[0, :8]
    ),
    "rotary table is x": lambda o, s, x: o.rotary(s, x[:8, None], IDS, x),
    "pages_gather out in the pool": lambda o, s, x: o.pages_gather(
        s, x.view(np.uint8).reshape(-1)[:512].reshape(1, 512), x.reshape(32, 1, 2, 1, 4, 16), IDS[:1]
    ),
    "out with a stride of 0": lambda o, s, x: o.rms_norm(
        s, np.lib.stride_tricks.as_strided(x, (4, 64), (0, 4)), X[:4].copy(), np.ones(64, np.float32), eps=1.0
    ),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_overlapping_arguments_are_refused_and_untouched(name: str, cpu: Device) -> None:
    x = X.copy()
    with pytest.raises(InvalidArgument, match=r"overlap|share memory"):
        OVERLAPS[name](cpu.ops, cpu.current_stream(), x)
    assert np.array_equal(x, X)


def test_linear_refuses_to_write_its_own_input(cpu: Device) -> None:
    weight, x = cpu.weight("float32", 64, 64), X.copy()
    with pytest.raises(InvalidArgument, match="overlap"):
        cpu.ops.linear(cpu.current_stream(), x, x, weight)
    assert np.array_equal(x, X)


def test_a_norm_may_be_in_place(cpu: Device) -> None:
    x, out, weight = X.copy(), np.empty_like(X), np.ones(64, np.float32)
    cpu.ops.rms_norm(cpu.current_stream(), out, x, weight, eps=1.0)
    cpu.ops.rms_norm(cpu.current_stream(), x, x, weight, eps=1.0)
    assert np.array_equal(x, out)


def test_two_tokens_in_one_slot_are_refused(cpu: Device) -> None:
    kv, k = np.zeros((2, 2, 1, 4, 8), np.float32), np.ones((3, 1, 8), np.float32)
    for slots, bad in (([3, 1, 3], True), ([5, 5, 6], True), ([-1, 2, -1], False), ([6, 2, 1], False)):
        arguments = (cpu.current_stream(), kv, k, k.copy(), np.array(slots, np.int64))
        if bad:
            with pytest.raises(InvalidArgument, match="twice"):
                cpu.ops.write_kv(*arguments)
            assert not kv.any()
        else:
            cpu.ops.write_kv(*arguments)
            kv[...] = 0


@pytest.mark.parametrize("shape", [(4, 2, 0, 4, 16), (4, 2, 1, 0, 16), (4, 2, 1, 4, 0)])
def test_a_pool_with_an_empty_dimension_is_refused(shape: tuple[int, ...], cpu: Device) -> None:
    q, one = np.zeros((1, 1, shape[4]), np.float32), np.ones(1, np.int32)
    with pytest.raises(InvalidArgument, match="must be 1 or more"):
        cpu.ops.attention(
            cpu.current_stream(),
            q.copy(),
            q,
            np.zeros(shape, np.float32),
            one[None],
            np.array([0, 1], np.int32),
            one,
            scale=1.0,
        )


def test_queued_page_ops_outlive_their_device_object() -> None:
    def submit() -> tuple[Any, np.ndarray[Any, Any]]:
        device = accel.open("cpu", threads=2)
        stream, pool = device.stream(), np.ones((64, 4, 2, 1, 16, 64), np.float32)
        gate = stream.gate()
        for _ in range(20):
            device.ops.pages_zero(stream, pool, np.arange(64, dtype=np.int32))
        gate.open()
        return stream, pool

    for _ in range(5):
        stream, pool = submit()
        gc.collect()
        try:
            stream.synchronize(30)
        except accel.errors.DeviceLost:  # type: ignore[attr-defined]
            continue  # the device was closed with the object: its work was abandoned or is done
        assert not pool.any()
