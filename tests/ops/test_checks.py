"""The checks themselves: cases fit their specs and are reproducible, and a wrong implementation is found out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from accel.errors import InvalidArgument
from accel.ops.checks import Call, Operand, ReferenceTarget, bind, case, cases, compare, execute, run_case
from accel.ops.spec import Access, all_specs, op_spec
from accel.ops.step import STOP_EOS, STOP_WORD

OPS = list(all_specs())


@pytest.mark.parametrize("op", OPS)
def test_each_case_fits_its_spec_and_the_reference_passes_its_own_checks(op: str) -> None:
    for each in cases(op_spec(op)):
        bind(each.spec, each.build())
        for report in run_case(ReferenceTarget(), each):
            assert report.ok, report.message


@pytest.mark.parametrize("op", OPS)
def test_a_case_is_found_by_its_unique_name_and_rebuilt_byte_for_byte(op: str) -> None:
    listed = cases(op_spec(op))
    assert len({str(each) for each in listed}) == len(listed)
    for each in (listed[0], listed[-1]):
        first, second = each.build(), case(str(each)).build()
        for name, operand in first.operands.items():
            if isinstance(operand, Operand):
                assert operand.buffer.tobytes() == second.operand(name).buffer.tobytes()


@pytest.mark.parametrize("op", OPS)
def test_each_op_has_cases_of_nothing_and_of_one(op: str) -> None:
    """0 and 1 along the dimension that counts tokens, requests or pages: the output's, where it has one."""
    spec = op_spec(op)
    symbols = [symbol for arg in spec.args for symbol in arg.shape]
    counted = next(symbol for symbol in symbols if symbol in ("T", "R", "n"))
    seen = {bind(spec, each.build())[counted] for each in cases(spec)}
    assert {0, 1} <= seen


def test_an_unknown_case_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="rms_norm\\[T=999\\]"):
        case("rms_norm[T=999]")


def test_another_seed_gives_other_values() -> None:
    spec = op_spec("silu_and_mul")
    first, second = cases(spec, seed=0)[0], cases(spec, seed=1)[0]
    assert str(first) == str(second)
    assert not np.array_equal(first.build().operand("x").array, second.build().operand("x").array)


# --- broken implementations -------------------------------------------------------------------------------------------


class Broken(ReferenceTarget):
    """The references, and then some damage to the tensors of the call."""

    def __init__(self, damage: Callable[..., None]) -> None:
        self.damage = damage

    def call(self, op: str, tensors: Sequence[Any], attributes: Mapping[str, Any]) -> None:
        super().call(op, tensors, attributes)
        self.damage(*tensors)


def _beyond(array: Any, element: int) -> None:
    """Set the element that lies `element` elements after the first one of `array`, wherever that is."""
    size = array.itemsize
    start = array.__array_interface__["data"][0] + element * size - array.base.__array_interface__["data"][0]
    array.base.view(np.uint8)[start] ^= 0x10


def _set(array: Any, index: Any, value: Any) -> None:
    array[index] = value


def _nudge(array: Any, index: Any) -> None:
    array[index] = np.nextafter(array[index], np.float32(99))


DAMAGE: dict[str, tuple[str, str, Callable[..., None]]] = {
    "one element past the end": ("rms_norm[H=33,T=3]", "guard of out", lambda out, *_: _beyond(out, out.size)),
    "one element before the start": ("rms_norm[H=33,T=3]", "guard of out", lambda out, *_: _beyond(out, -1)),
    "the gap between rows": (
        "rms_norm[T=4,H=33,layout=strided]",
        "guard of out",
        lambda out, *_: _beyond(out, out.shape[1]),
    ),
    "another layer of the pool": (
        "write_kv[T=11,KV=3,D=16,S=4,kv=bfloat16,order=layer_first,special=skip]",
        "guard of kv",
        lambda kv, *_: _beyond(kv, -1),
    ),
    "an input": ("linear[T=1,N=1,K=1,format=float32]", "input of x", lambda out, x, *_: _set(x, (0, 0), 7)),
    "a NaN lost": (
        "rms_norm[T=3,H=33,special=nan]",
        "NaN in 33 wrong places",
        lambda out, *_: np.nan_to_num(out, copy=False),
    ),
    "a NaN spread": ("rms_norm[T=3,H=33,special=nan]", "NaN in", lambda out, *_: _set(out, (1, 0), np.nan)),
    "an infinity of the wrong sign": (
        "silu_and_mul[T=3,I=33,special=inf]",
        "inf in",
        lambda out, *_: np.negative(out, out=out),
    ),
    "one element slightly off": (
        "rms_norm[H=64,T=3]",
        "worst at [2, 5]",
        lambda out, *_: _set(out, (2, 5), out[2, 5] + 1e-3),
    ),
    "all elements off by less than the tolerance": (
        "rms_norm[H=64,T=3]",
        "mean error",
        lambda out, *_: np.multiply(out, 1 + 9e-6, out=out),
    ),
    "one byte of a page": (
        "pages_zero[n=3,dtype=bfloat16,order=layer_first]",
        "differ; first at",
        lambda pool, blocks: _set(pool, (blocks[0], 0, 0, 0, 0, 0), 1),
    ),
    "the residual in another rounding": (
        "add_rms_norm[H=33,T=3]",
        "residual",
        lambda out, residual, *_: _set(residual, (0, 0), np.nextafter(residual[0, 0], np.float32(9))),
    ),
    "a tie taken from the wrong end": (
        "argmax[R=4,V=50,special=ties]",
        "differ",
        lambda out, logits: _set(out, slice(None), 49 - np.argmax(logits[:, ::-1], axis=1)),
    ),
    "an unlikely token": (
        "sample[R=24,V=100,mode=temperature]",
        "differ",
        lambda out, logits, *_: _set(out, 3, np.argmin(logits[3])),
    ),
    "a penalty in another rounding": (
        "penalties[V=33,R=5]",
        "differ; first at [2, ",
        lambda logits, history, slots, *_: _nudge(logits, (2, history[slots[2], 0])),
    ),
    "a bias added twice": (
        "logit_bias[V=33,R=5]",
        "differ",
        lambda logits, start, tokens, values: _set(logits, (0, tokens[2]), logits[0, tokens[2]] + values[2]),
    ),
    "a ban lifted": (
        "bad_words[V=16,R=8]",
        "differ; first at [0, 15]",
        lambda logits, *_: _set(logits, (0, 15), 0),
    ),
    "a rank counted from 0": (
        "logprobs[K=2,R=6,V=50]",
        "rank",
        lambda value, rank, *_: np.subtract(rank, 1, out=rank),
    ),
    "a log probability slightly off": (
        "logprobs[K=2,R=6,V=50]",
        "top_values: worst at [3, 1]",
        lambda value, rank, ids, values, *_: _set(values, (3, 1), values[3, 1] + 1e-4),
    ),
    "two best tokens exchanged": (
        "logprobs[K=2,R=6,V=50]",
        "top_ids",
        lambda value, rank, ids, *_: _set(ids, 1, ids[1, ::-1].copy()),
    ),
    "a stop word taken for an end token": (
        "stop_check[words=4,R=40,E=1]",
        "reason",
        lambda reason, *_: _set(reason, reason == STOP_WORD, STOP_EOS),
    ),
    "a token in the next place": (
        "write_history[n=5,L=20]",
        "history",
        lambda history, slots, places, tokens: _set(history, (slots[0], places[0]), history[slots[0], places[0]] + 1),
    ),
    "one slot too many": (
        "pack_step[S=3,requests=7/20+1/33+4/4]",
        "slot_mapping",
        lambda ids, positions, slots, *_: _set(slots, 5, slots[5] + 1),
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_described(damage: str) -> None:
    name, expected, inflict = DAMAGE[damage]
    failed = [report.message for report in run_case(Broken(inflict), case(name)) if not report.ok]
    assert failed, f"{damage} went unnoticed"
    assert name in failed[0]
    assert any(expected in message for message in failed), failed


def test_an_output_left_unwritten_is_found() -> None:
    class Idle(ReferenceTarget):
        def call(self, op: str, tensors: Sequence[Any], attributes: Mapping[str, Any]) -> None:
            pass

    for op in OPS:
        idle = [run_case(Idle(), each) for each in cases(op_spec(op)) if any(_size(each.build(), op))]
        # Work of which nothing shows (all slots negative, a window of what is there already) is not among the cases.
        assert all(any(not report.ok for report in reports) for reports in idle), op


def _size(call: Call, op: str) -> list[int]:
    """Elements the call has to write, or rows that tell it what to write."""
    outputs = [call.operand(arg.name).array.size for arg in op_spec(op).args if arg.access is Access.WRITE]
    return outputs or [min(operand.array.size for operand in call.operands.values() if isinstance(operand, Operand))]


def test_reading_outside_the_visible_range_shows_as_nan() -> None:
    """A window off by one reads a token that the case left as NaN."""

    class Wide(ReferenceTarget):
        def call(self, op: str, tensors: Sequence[Any], attributes: Mapping[str, Any]) -> None:
            super().call(op, tensors, {**attributes, "window": attributes["window"] + 1})

    reports = run_case(Wide(), case("attention[window=15,requests=20/40+1/50+1/3]"))
    assert "NaN in" in reports[0].message


def test_a_view_passed_twice_is_one_tensor_to_the_device() -> None:
    seen: list[Any] = []

    class Spy(ReferenceTarget):
        def call(self, op: str, tensors: Sequence[Any], attributes: Mapping[str, Any]) -> None:
            seen.extend(tensors)

    execute(Spy(), "rms_norm", case("rms_norm[T=4,H=33,layout=in_place]").build())
    assert seen[0] is seen[1]


def test_compare_refuses_another_shape_or_dtype() -> None:
    spec = op_spec("silu_and_mul")
    want = np.zeros((2, 3), np.float32)
    assert not compare(spec, "float32", want.T, want)
    assert not compare(spec, "float32", want.astype(np.float64), want)
    assert compare(spec, "float32", want.copy(), want)


def test_bits_of_a_moved_nan_count_and_of_a_rounded_one_do_not() -> None:
    one, other = (np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00001, 0x7FC00002))
    assert not compare(op_spec("gather_rows"), "float32", one, other)
    assert compare(op_spec("write_kv"), "bfloat16", np.array([0x7FC1], np.uint16), np.array([0x7FC2], np.uint16))
    assert not compare(op_spec("write_kv"), "bfloat16", np.array([0x8000], np.uint16), np.array([0], np.uint16))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"x": Operand.empty((3, 5), "float16")}, "x is float16"),
        ({"x": Operand.empty((3, 6), "float32")}, "x has size 6"),
        ({"x": Operand.empty((15,), "float32")}, "x has shape"),
        ({"out": None}, "out is missing"),
        ({"weight": Operand.empty((4,), "float32")}, "weight has size 4"),
        ({"x": Operand.empty((3, 5), "float32", padding=(0, 1))}, "x has strides"),
    ],
)
def test_bind_names_the_op_and_argument_at_fault(change: dict[str, Any], expected: str) -> None:
    call = Call(
        {
            "out": Operand.empty((3, 5), "float32"),
            "x": Operand.empty((3, 5), "float32"),
            "weight": Operand.empty((5,), "float32"),
            **change,
        },
        {},
    )
    with pytest.raises(InvalidArgument, match=expected) as caught:
        bind(op_spec("rms_norm"), call)
    assert caught.value.op == "rms_norm"
