"""The CPU device against the references, against itself, and against bad arguments.

Three kinds of proof: each case is as close to the reference as its spec demands, with guards around every buffer; each
result is bit for bit the same alone or in a batch, whole or in chunks, for either pool order, thread count and
instruction set; each bad argument is refused by name, value and limit before anything was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from threading import Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import accel
from accel.errors import InvalidArgument, Unsupported
from accel.ops.cases import ORDERS, parse_requests, random_weight
from accel.ops.checks import (
    Call,
    Case,
    HostTarget,
    Operand,
    WeightOperand,
    bind,
    case,
    cases,
    compare_guards,
    execute,
    run_case,
)
from accel.ops.spec import Arg, OpSpec, all_specs, op_spec

OPS = list(all_specs())
CASES = [each for op in OPS for each in cases(op_spec(op))]

#: Settings whose results must be those of one thread on the best instruction set.
VARIANTS = [("auto", 2), ("generic", 1), ("generic", 2), ("avx2", 2), ("avx512", 2)]

#: Ops whose rows know nothing of each other, so that any rows may be computed by themselves.
ROW_OPS = [
    "rms_norm",
    "add_rms_norm",
    "rotary",
    "silu_and_mul",
    "linear",
    "embedding",
    "gather_rows",
    "penalties",
    "logit_bias",
    "bad_words",
    "argmax",
    "sample",
    "logprobs",
    "stop_check",
]


@cache
def target(isa: str = "auto", threads: int = 2) -> HostTarget:
    """One device for each setting, kept for the whole run."""
    try:
        return HostTarget(accel.open("cpu", threads=threads, isa=isa))
    except Unsupported as missing:
        pytest.skip(f"this machine lacks {isa}: {missing}")


def after(where: HostTarget, op: str, call: Call) -> Call:
    """A copy of `call` on which `op` has run."""
    done = call.copy()
    execute(where, op, done)
    return done


def assert_same_bits(got: NDArray[Any], want: NDArray[Any], what: str) -> None:
    """Equal bit for bit, except that one NaN is as good as another: the hardware chooses its payload."""
    assert got.shape == want.shape, what
    unsigned = np.dtype(f"u{got.itemsize}")
    differ = np.ascontiguousarray(got).view(unsigned) != np.ascontiguousarray(want).view(unsigned)
    if got.dtype.kind == "f":
        differ &= ~(np.isnan(got) & np.isnan(want))
    assert not differ.any(), f"{what}: {int(differ.sum())} of {differ.size} differ, first at {np.argwhere(differ)[0]}"


def outputs(spec: OpSpec) -> list[str]:
    return [arg.name for arg in spec.args if arg.access.value != "in"]


def test_a_device_has_the_setting_it_was_asked_for() -> None:
    """Else the comparisons between settings below would compare a device with itself."""
    assert (target("generic", 1).device.isa, target("generic", 1).device.threads) == ("generic", 1)
    assert (target("generic", 2).device.isa, target("generic", 2).device.threads) == ("generic", 2)
    for isa in ("avx2", "avx512"):
        try:
            assert target(isa, 2).device.isa == isa
        except pytest.skip.Exception:
            continue


# --- against the references -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", CASES, ids=str)
def test_the_device_agrees_with_the_reference(each: Case) -> None:
    for report in run_case(target(), each):
        assert report.ok, report.message


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_framework_tensors_and_numpy_arrays_give_the_same_bits(dtype: str) -> None:
    """A KV cache held by the framework, bfloat16 included, written and read without a copy."""
    device = target().device
    stream = device.current_stream()
    written = case(f"write_kv[T=11,KV=3,D=16,S=4,kv={dtype},order=page_first,special=skip]").build()
    k, v, slots = (written.operand(name).array for name in ("k", "v", "slot_mapping"))
    shape = written.operand("kv").shape
    views, tensors = device.view(Operand.empty(shape, dtype).array, dtype=dtype), device.empty(shape, dtype)
    q = np.random.default_rng(1).standard_normal((2, 6, 16), np.float32)
    tables, starts, lens = (
        np.array([[0, 1], [2, 3]], np.int32),
        np.array([0, 1, 2], np.int32),
        np.array([3, 6], np.int32),
    )
    results = []
    for kv in (views, tensors):
        device.fill(kv, 0, stream)
        device.ops.write_kv(stream, kv, k, v, slots)
        out = np.full_like(q, np.nan)
        device.ops.attention(stream, out, q, kv, tables, starts, lens, scale=0.25)
        results.append(out)
    stream.synchronize()
    assert np.isfinite(results[0]).all()
    assert_same_bits(results[1], results[0], dtype)


def test_what_rotary_does_not_rotate_keeps_its_bits() -> None:
    before = case("rotary[T=4,A=2,D=64,E=32,interleaved=True,layout=strided]").build()
    done = after(target(), "rotary", before)
    assert_same_bits(done.operand("x").array[..., 32:], before.operand("x").array[..., 32:], "tail")


# --- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("isa", "threads"), VARIANTS)
def test_threads_and_instruction_set_make_no_difference(isa: str, threads: int, op: str) -> None:
    variant, plain, spec = target(isa, threads), target("auto", 1), op_spec(op)
    for each in cases(spec):
        call = each.build()
        got, want = after(variant, op, call), after(plain, op, call)
        for name in outputs(spec):
            assert_same_bits(got.operand(name).array, want.operand(name).array, f"{each} {name}")


def rows_of(call: Call, spec: OpSpec, rows: slice) -> Call:
    """The call cut down to `rows` of the dimension its first argument begins with."""
    counted = spec.args[0].shape[0]
    operands = dict(call.operands)
    for arg in spec.args:
        if arg.shape[0] == counted and not arg.packed and operands[arg.name] is not None:
            operands[arg.name] = call.operand(arg.name).part(rows)
    if "row_start" in operands:
        operands.update(_lists_of(call, rows))
    return Call(operands, call.attributes)


def _lists_of(call: Call, rows: slice) -> dict[str, Operand]:
    """The ragged lists of `rows`: words, or the tokens and values of a bias."""
    start = call.operand("row_start").array[rows.start : rows.stop + 1]
    cut = {"row_start": start - start[0]}
    if "word_start" in call.operands:
        words = call.operand("word_start").array[start[0] : start[-1] + 1]
        cut["word_start"] = words - words[0]
        cut["words"] = call.operand("words").array[words[0] : words[-1]]
    else:
        cut.update({name: call.operand(name).array[start[0] : start[-1]] for name in ("tokens", "values")})
    return {name: Operand.of(values, call.operand(name).dtype) for name, values in cut.items()}


@pytest.mark.parametrize("op", ROW_OPS)
def test_a_row_alone_or_in_a_chunk_gives_the_bits_it_gives_in_the_batch(op: str) -> None:
    spec, where = op_spec(op), target()
    for each in cases(spec):
        call = each.build()
        count = call.operand(spec.args[0].name).shape[0]
        whole = after(where, op, call)
        pieces = [slice(i, i + 1) for i in range(min(count, 20))] + [slice(i, i + 5) for i in range(0, count, 5)]
        for rows in pieces if count > 1 else []:
            part = after(where, op, rows_of(call, spec, rows))
            for name in outputs(spec):
                want = whole.operand(name).array[rows]
                assert_same_bits(part.operand(name).array, want, f"{each} {name} rows {rows.start}:{rows.stop}")


ATTENTION_CASES = [each for each in cases(op_spec("attention")) if "none" not in str(each)]


def attention_chunk(call: Call, request: int, first: int, last: int) -> Call:
    """Queries first..last of one request, as a step of its own: later tokens are in the pool but not in kv_lens."""
    starts, lens = call.operand("query_start").array, call.operand("kv_lens").array
    begin, end = int(starts[request]), int(starts[request + 1])
    rows = slice(begin + first, begin + last)
    operands = dict(call.operands)
    operands["out"], operands["q"] = call.operand("out").part(rows), call.operand("q").part(rows)
    operands["block_tables"] = call.operand("block_tables").part(slice(request, request + 1))
    operands["query_start"] = Operand.of(np.array([0, last - first], np.int32), "int32")
    operands["kv_lens"] = Operand.of(np.array([lens[request] - (end - begin) + last], np.int32), "int32")
    return Call(operands, call.attributes)


@pytest.mark.parametrize("chunk", [1, 8, 4096])
def test_attention_of_a_chunk_alone_gives_the_bits_of_the_whole_batch(chunk: int) -> None:
    where = target()
    for each in ATTENTION_CASES:
        call = each.build()
        whole = after(where, "attention", call).operand("out").array
        starts = call.operand("query_start").array
        for request in range(len(starts) - 1):
            begin, length = int(starts[request]), int(starts[request + 1] - starts[request])
            for first in range(0, length, chunk):
                last = min(first + chunk, length)
                part = after(where, "attention", attention_chunk(call, request, first, last))
                want = whole[begin + first : begin + last]
                assert_same_bits(part.operand("out").array, want, f"{each} request {request} from {first}")


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("window", [0, 19])
def test_a_prompt_written_and_attended_in_chunks_gives_the_bits_of_the_whole_prompt(
    order: str, dtype: str, window: int
) -> None:
    """As the model runner does it: each chunk's K and V go to the pages, then its queries look at what is there."""
    rng = np.random.default_rng(12)
    length, heads, kv_heads, dim, block = 75, 4, 2, 32, 16
    q = rng.standard_normal((length, heads, dim), np.float32)
    k, v = (rng.standard_normal((length, kv_heads, dim), np.float32) for _ in range(2))
    table = rng.permutation(7)[:5].astype(np.int32)
    positions = np.arange(length)
    slots = table[positions // block].astype(np.int64) * block + positions % block

    def prefill(chunk: int) -> NDArray[Any]:
        pool = Operand.empty((7, 2, 2, kv_heads, block, dim), dtype, order=ORDERS[order]).part(slice(None), 1)
        device = target().device
        stream, view = device.current_stream(), target().tensor(pool)
        out = np.full_like(q, np.nan)
        for first in range(0, length, chunk):
            rows = slice(first, min(first + chunk, length))
            device.ops.write_kv(stream, view, k[rows], v[rows], slots[rows])
            starts, lens = np.array([0, rows.stop - first], np.int32), np.array([rows.stop], np.int32)
            arguments = (out[rows], q[rows], view, table[None], starts, lens)
            device.ops.attention(stream, *arguments, scale=dim**-0.5, window=window)
        stream.synchronize()
        return out

    whole = prefill(4096)
    assert np.isfinite(whole).all()
    for chunk in (1, 8, 17):
        assert_same_bits(prefill(chunk), whole, f"chunks of {chunk}")


def in_order(operand: Operand, order: str) -> Operand:
    """The same values in a pool of the other memory order; a layer (5-D) becomes layer 1 of 2."""
    shape = operand.shape if len(operand.shape) == 6 else (operand.shape[0], 2, *operand.shape[1:])
    pool = Operand.empty(shape, operand.dtype, order=ORDERS[order])
    pool = pool if len(operand.shape) == 6 else pool.part(slice(None), 1)
    pool.array[...] = operand.array
    return pool


@pytest.mark.parametrize("op", [op for op in OPS if {"kv", "pool"} & {arg.name for arg in op_spec(op).args}])
def test_the_order_of_the_pool_makes_no_difference(op: str) -> None:
    spec, where = op_spec(op), target()
    name = "kv" if "kv" in [arg.name for arg in spec.args] else "pool"
    for each in cases(spec):
        call = each.build()
        results = [
            after(where, op, Call({**call.operands, name: in_order(call.operand(name), order)}, call.attributes))
            for order in ORDERS
        ]
        for output in outputs(spec):
            got, want = (result.operand(output).array for result in results)
            assert_same_bits(got, want, f"{each} {output}")


# --- bad arguments ----------------------------------------------------------------------------------------------------

#: A plain case of each op, with every dimension above one, to be spoiled.
GOOD = {
    "rms_norm": "rms_norm[T=5,A=3,H=16,layout=plain]",
    "add_rms_norm": "add_rms_norm[H=33,T=3]",
    "rotary": "rotary[T=3,A=3,D=64,E=32,interleaved=False]",
    "write_kv": "write_kv[T=11,KV=3,D=16,S=4,kv=bfloat16,order=page_first,special=skip]",
    "attention": "attention[requests=7/20+1/33+4/4,D=16,layout=strided]",
    "silu_and_mul": "silu_and_mul[I=33,T=3]",
    "linear": "linear[T=3,N=33,K=64,format=q4,encoding=Q4_0,bias=True]",
    "embedding": "embedding[T=5,V=70,H=96,format=q8,encoding=Q8_0]",
    "gather_rows": "gather_rows[R=5,T=9,H=33]",
    "penalties": "penalties[V=33,R=5]",
    "logit_bias": "logit_bias[V=33,R=5]",
    "bad_words": "bad_words[V=16,R=8]",
    "argmax": "argmax[V=33,R=3]",
    "sample": "sample[V=33,R=5]",
    "logprobs": "logprobs[K=2,R=6,V=50]",
    "pack_step": "pack_step[S=3,requests=7/20+1/33+4/4]",
    "stop_check": "stop_check[R=40,E=2]",
    "update_slots": "update_slots[R=5,slots=20]",
    "write_history": "write_history[n=5,L=20]",
    "pages_gather": "pages_gather[n=3,dtype=bfloat16,order=layer_first]",
    "pages_scatter": "pages_scatter[n=3,dtype=bfloat16,order=layer_first]",
    "pages_copy": "pages_copy[n=3,dtype=bfloat16,order=layer_first]",
    "pages_zero": "pages_zero[n=3,dtype=bfloat16,order=layer_first]",
    "pages_checksum": "pages_checksum[n=3,dtype=bfloat16,order=layer_first]",
}

ARGUMENTS = [(op, arg.name) for op in OPS for arg in op_spec(op).args]


def good(op: str) -> Call:
    return case(GOOD[op]).build()


def replaced(call: Call, **operands: Operand | WeightOperand | None) -> Call:
    return Call({**call.operands, **operands}, call.attributes)


def assert_refused(op: str, call: Call, *fragments: str) -> str:
    """InvalidArgument naming the op and all `fragments`, with every byte of every buffer as it was. Its message."""
    before = call.copy()
    with pytest.raises(InvalidArgument) as caught:
        execute(target(), op, call)
    message = str(caught.value)
    assert caught.value.op == op
    for fragment in (op, *fragments):
        assert fragment in message, message
    for name, operand in call.operands.items():
        if isinstance(operand, Operand):
            assert operand.buffer.tobytes() == before.operand(name).buffer.tobytes(), f"{name} was touched"
    return caught.value.message


def _other_dtype(arg: Arg) -> str:
    return next(name for name in ("int64", "float64", "int32") if name not in arg.dtypes)


def fits(spec: OpSpec, call: Call) -> bool:
    try:
        bind(spec, call)
    except InvalidArgument:
        return False
    return True


@pytest.mark.parametrize(("op", "name"), ARGUMENTS)
def test_another_dtype_is_refused(op: str, name: str) -> None:
    call, arg = good(op), next(arg for arg in op_spec(op).args if arg.name == name)
    operand = call.operands[name]
    if operand is not None:
        assert_refused(op, replaced(call, **{name: Operand.empty(operand.shape, _other_dtype(arg))}), name)


@pytest.mark.parametrize(("op", "name"), ARGUMENTS)
def test_a_size_that_contradicts_another_argument_is_refused(op: str, name: str) -> None:
    call, spec = good(op), op_spec(op)
    for shape in _other_shapes(call.operands[name]):
        spoiled = replaced(call, **{name: Operand.empty(shape, call.operand(name).dtype)})
        if not fits(spec, spoiled):
            message = assert_refused(op, spoiled)
            # Either side of the contradiction may be the one that is named.
            assert any(arg.name in message for arg in spec.args), message


def _other_shapes(operand: Operand | WeightOperand | None) -> Iterable[tuple[int, ...]]:
    """Every dimension one larger and one smaller, and one dimension more and fewer."""
    if not isinstance(operand, Operand):
        return
    shape = operand.shape
    for dim, size in enumerate(shape):
        for other in (size - 1, size + 1):
            yield (*shape[:dim], other, *shape[dim + 1 :])
    yield (*shape, 1)
    if len(shape) > 1:
        yield (shape[0] * shape[1], *shape[2:])


@pytest.mark.parametrize(("op", "name"), ARGUMENTS)
def test_elements_apart_in_the_last_dimension_are_refused(op: str, name: str) -> None:
    call = good(op)
    if isinstance(call.operands[name], Operand):
        operand = call.operand(name)
        apart = Operand.empty(operand.shape, operand.dtype, padding=(0,) * (len(operand.shape) - 1) + (1,))
        apart.array[...] = operand.array
        assert_refused(op, replaced(call, **{name: apart}), name)


@pytest.mark.parametrize(
    ("op", "name"),
    [(op, a.name) for op in OPS for a in op_spec(op).args if a.contiguous and len(a.shape) > 1 and not a.packed],
)
def test_rows_apart_where_the_spec_wants_them_together_are_refused_or_right(op: str, name: str) -> None:
    call, spec = good(op), op_spec(op)
    operand = call.operand(name)
    apart = Operand.empty(operand.shape, operand.dtype, padding=(3,) + (0,) * (len(operand.shape) - 1))
    apart.array[...] = operand.array
    spoiled = replaced(call, **{name: apart})
    want = after(target(), op, call)
    try:
        got = after(target(), op, spoiled)
    except InvalidArgument:
        assert_refused(op, spoiled, name)
        return
    assert compare_guards(spec, spoiled, got)
    for output in outputs(spec):
        assert_same_bits(got.operand(output).array, want.operand(output).array, output)


def device_tensors(call: Call) -> dict[str, Any]:
    """What the device gets for each argument."""
    where = target()
    return {
        name: None if o is None else where.weight(o) if isinstance(o, WeightOperand) else where.tensor(o)
        for name, o in call.operands.items()
    }


@pytest.mark.parametrize(("op", "name"), [(op, name) for op in OPS for name in outputs(op_spec(op))])
def test_a_read_only_output_is_refused(op: str, name: str) -> None:
    device, call = target().device, good(op)
    frozen = np.zeros(call.operand(name).shape, np.float32)
    if call.operand(name).dtype != "bfloat16":
        frozen = call.operand(name).array.copy()
    frozen.flags.writeable = False
    tensors = {**device_tensors(call), name: frozen}
    with pytest.raises(InvalidArgument, match=name):
        getattr(device.ops, op)(device.current_stream(), *tensors.values(), **call.attributes)


@pytest.mark.parametrize(("op", "name"), ARGUMENTS)
def test_what_is_no_tensor_is_refused(op: str, name: str) -> None:
    device, call = target().device, good(op)
    optional = next(arg.optional for arg in op_spec(op).args if arg.name == name)
    for junk in ("text", object(), *([] if optional else [None])):
        tensors = {**device_tensors(call), name: junk}
        with pytest.raises(InvalidArgument, match=name):
            getattr(device.ops, op)(device.current_stream(), *tensors.values(), **call.attributes)


def test_numpy_uint16_is_no_bfloat16_unless_a_view_says_so() -> None:
    call = good("write_kv")
    device = target().device
    arrays = [operand.array for operand in call.operands.values() if isinstance(operand, Operand)]
    with pytest.raises(InvalidArgument, match="kv"):
        device.ops.write_kv(device.current_stream(), *arrays)


Spoil = Callable[[Call], None]


def put(name: str, index: Any, value: Any) -> Spoil:
    def spoil(call: Call) -> None:
        call.operand(name).array[index] = value

    return spoil


def attribute(name: str, value: Any) -> Spoil:
    def spoil(call: Call) -> None:
        call.attributes = {**call.attributes, name: value}

    return spoil


def width(name: str, columns: int) -> Spoil:
    """Another last dimension for argument `name`."""

    def spoil(call: Call) -> None:
        old = call.operand(name)
        call.operands = {**call.operands, name: Operand.empty((*old.shape[:-1], columns), old.dtype)}

    return spoil


def columns(count: int, *names: str) -> Spoil:
    """The same last dimension for several arguments."""

    def spoil(call: Call) -> None:
        for name in names:
            width(name, count)(call)

    return spoil


#: (op, what is wrong, fragments the message must hold: the argument, the value, the limit). GOOD gives the limits.
BAD_VALUES: list[tuple[str, Spoil, Sequence[str]]] = [
    ("rms_norm", attribute("eps", -1.0), ("eps", "-1")),
    ("rms_norm", attribute("eps", float("nan")), ("eps", "nan")),
    ("add_rms_norm", attribute("eps", -1.0), ("eps", "-1")),
    ("rotary", put("positions", 1, -1), ("positions", "-1", "50")),
    ("rotary", put("positions", 2, 50), ("positions", "50")),
    ("rotary", width("table", 31), ("table", "31")),
    ("rotary", width("table", 66), ("table", "66", "64")),
    ("write_kv", put("slot_mapping", 10, 20), ("slot_mapping", "20")),
    ("attention", put("block_tables", (1, 2), 9), ("block_tables", "9")),
    ("attention", put("block_tables", (0, 0), -1), ("block_tables", "-1")),
    ("attention", put("kv_lens", 0, 6), ("kv_lens", "6", "7")),
    ("attention", put("kv_lens", 1, 81), ("kv_lens", "81", "5")),
    ("attention", put("query_start", 0, 1), ("query_start", "1", "0")),
    ("attention", put("query_start", 1, 9), ("query_start",)),
    ("attention", put("query_start", 3, 11), ("query_start", "11", "12")),
    ("attention", attribute("window", -1), ("window", "-1")),
    ("embedding", put("ids", 0, -1), ("ids", "-1", "70")),
    ("embedding", put("ids", 4, 70), ("ids", "70")),
    ("gather_rows", put("index", 0, -1), ("index", "-1", "9")),
    ("gather_rows", put("index", 4, 9), ("index", "9")),
    ("sample", put("temperature", 3, -0.5), ("temperature", "-0.5", "0")),
    ("sample", put("temperature", 3, np.nan), ("temperature", "nan")),
    ("sample", put("temperature", 3, np.inf), ("temperature", "inf")),
    ("sample", put("top_k", 1, -2), ("top_k", "-2", "0")),
    ("sample", put("top_p", 1, 0.0), ("top_p", "0", "1")),
    ("sample", put("top_p", 1, 1.5), ("top_p", "1.5", "1")),
    ("sample", put("top_p", 1, np.nan), ("top_p", "nan")),
    ("sample", put("min_p", 1, -0.5), ("min_p", "-0.5", "0")),
    ("sample", put("min_p", 1, 1.5), ("min_p", "1.5", "1")),
    ("sample", put("min_p", 4, np.nan), ("min_p", "nan")),
    *(
        (op, spoil, fragments)
        for op in ("penalties", "bad_words")
        for spoil, fragments in (
            (put("slots", 2, -1), ("slots[2]", "-1", "10" if op == "bad_words" else "7")),
            (put("slots", 2, 10), ("slots[2]", "10")),
            (put("lengths", 1, 25), ("lengths[1]", "25")),
            (put("lengths", 1, -1), ("lengths[1]", "-1", "25")),
            (put("prompt_lens", 1, -1), ("prompt_lens[1]", "-1", "lengths[1]")),
            (put("prompt_lens", 0, 25), ("prompt_lens[0]", "25", "lengths[0]")),
        )
    ),
    *(
        ("penalties", put("repetition", 1, bad), ("repetition[1]", str(bad), "0"))
        for bad in (0.0, -1.0, np.inf, np.nan)
    ),
    *(
        ("penalties", put(name, 4, bad), (f"{name}[4]", str(bad), "finite"))
        for name in ("frequency", "presence")
        for bad in (np.inf, -np.inf, np.nan)
    ),
    ("logit_bias", put("row_start", 0, 1), ("row_start", "1", "0")),
    ("logit_bias", put("row_start", 5, 1), ("row_start",)),
    ("logit_bias", put("tokens", 6, 33), ("tokens[6]", "33")),
    ("logit_bias", put("tokens", 0, -1), ("tokens[0]", "-1", "33")),
    ("logit_bias", put("values", 6, np.nan), ("values[6]", "nan")),
    ("logit_bias", put("values", 6, np.inf), ("values[6]", "inf", "finite")),
    *(
        (op, spoil, fragments)
        for op in ("bad_words", "stop_check")
        for spoil, fragments in (
            (put("row_start", 0, 1), ("row_start", "1", "0")),
            (put("row_start", -1, 999), ("row_start", "999")),
            (put("row_start", 1, -1), ("row_start[1]", "-1", "0")),
            (put("word_start", 0, 1), ("word_start",)),
            (put("word_start", 2, 1), ("word_start[2]", "1 or more")),
            (put("word_start", -1, 999), ("word_start", "999")),
            (put("words", 3, -7), ("words[3]", "-7", "0")),
        )
    ),
    ("bad_words", put("words", 3, 16), ("words[3]", "16")),
    ("logprobs", put("tokens", 1, -2), ("tokens[1]", "-2", "-1")),
    ("logprobs", put("tokens", 1, 50), ("tokens[1]", "50")),
    ("logprobs", columns(51, "top_ids", "top_values"), ("top_ids", "51", "50")),
    ("stop_check", put("slots", 7, 9), ("slots[7]", "9")),
    ("stop_check", put("slots", 7, -1), ("slots[7]", "-1", "9")),
    ("stop_check", put("lengths", 7, 13), ("lengths[7]", "13")),
    ("stop_check", put("lengths", 7, -1), ("lengths[7]", "-1", "13")),
    ("write_history", put("slots", 3, 4), ("slots[3]", "4")),
    ("write_history", put("slots", 3, -1), ("slots[3]", "-1", "4")),
    ("write_history", put("positions", 4, 20), ("positions[4]", "20")),
    ("write_history", put("positions", 4, -1), ("positions[4]", "-1", "20")),
    ("pack_step", put("slots", 0, 5), ("slots", "5")),
    ("pack_step", put("slots", 0, -1), ("slots", "-1", "5")),
    ("pack_step", put("computed", 1, -4), ("computed", "-4", "0")),
    ("pack_step", put("computed", 0, 40), ("block_tables", "47")),
    ("pack_step", put("block_tables", (1, 10), -1), ("block_tables",)),
    ("pack_step", put("query_start", 3, 11), ("query_start", "12")),
    ("pack_step", put("query_start", 2, 5), ("query_start",)),
    ("pack_step", attribute("block_size", 0), ("block_size", "0")),
    ("update_slots", put("slots", 2, 20), ("slots", "20")),
    ("update_slots", put("slots", 2, -1), ("slots", "-1", "20")),
    *(
        (op, put("blocks", 1, bad), ("blocks", str(bad), "9"))
        for op in OPS
        if "pages" in op and op != "pages_copy"
        for bad in (-1, 9)
    ),
    *(("pages_copy", put(name, 1, bad), (name, str(bad), "9")) for name in ("src", "dst") for bad in (-1, 9)),
    ("pages_gather", width("out", 511), ("out", "511", "512")),
    ("pages_scatter", width("data", 511), ("data", "511", "512")),
]


@pytest.mark.parametrize(
    ("op", "spoil", "fragments"), BAD_VALUES, ids=[f"{op}-{'-'.join(words)}" for op, _, words in BAD_VALUES]
)
def test_a_bad_value_is_refused_with_its_limit(op: str, spoil: Spoil, fragments: Sequence[str]) -> None:
    call = good(op)
    spoil(call)
    assert_refused(op, call, *fragments)


@pytest.mark.parametrize(
    ("op", "target_name", "source_name"),
    [
        ("pages_scatter", "blocks", "blocks"),
        ("pages_zero", "blocks", "blocks"),
        ("pages_copy", "dst", "dst"),
        ("pages_copy", "dst", "src"),
    ],
)
def test_a_page_written_twice_or_both_read_and_written_is_refused(op: str, target_name: str, source_name: str) -> None:
    call = good(op)
    block = call.operand(source_name).array[0]
    call.operand(target_name).array[2] = block
    assert_refused(op, call, target_name, str(block))


def test_heads_that_kv_heads_do_not_divide_are_refused() -> None:
    call = good("attention")
    q = Operand.of(np.zeros((12, 5, 16), np.float32), "float32")
    assert_refused("attention", replaced(call, q=q, out=Operand.empty((12, 5, 16), "float32")), "q", "5", "2")


@pytest.mark.parametrize(("format", "encoding"), [("float16", "bfloat16"), ("q8", "Q8_0"), ("q4", "Q4_1")])
def test_a_weight_packed_in_pieces_and_out_of_order_is_the_same_weight(format: str, encoding: str) -> None:
    rng = np.random.default_rng(13)
    operand = random_weight(rng, 70, 64, format, encoding)
    device = target().device
    pieces, shuffled = device.weight(format, 70, 64), device.weight(format, 70, 64)
    for first in (64, 0, 33):
        pieces.pack_rows(encoding, operand.rows[first : first + 33], first=first)
    order = rng.permutation(70)
    shuffled.pack_rows(encoding, operand.rows[order], order)
    ids = np.arange(70, dtype=np.int32)
    for weight in (pieces, shuffled):
        out = np.full((70, 64), np.nan, np.float32)
        device.ops.embedding(device.current_stream(), out, ids, weight)
        np.testing.assert_array_equal(out, operand.matrix)


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
def test_a_temperature_near_0_picks_what_argmax_picks(isa: str) -> None:
    where = target(isa)
    stream, rows = where.device.current_stream(), 64
    logits = np.random.default_rng(14).normal(-5, 3, (rows, 1000)).astype(np.float32)
    logits[0, :4] = [5, 30, 20, 29]
    greedy, picked = np.empty(rows, np.int32), np.empty(rows, np.int32)
    where.device.ops.argmax(stream, greedy, logits)
    top_k = np.tile(np.array([0, 5], np.int32), rows // 2)
    top_p = np.repeat(np.array([1.0, 0.9], np.float32), rows // 2)
    min_p = np.repeat(np.array([0, 0.1, 1, 0], np.float32), rows // 4)
    seed, position = np.arange(rows, dtype=np.uint64), np.arange(rows, dtype=np.int64)
    for temperature in (1e-45, 1e-38, 1e-20):
        temperatures = np.full(rows, temperature, np.float32)
        where.device.ops.sample(stream, picked, logits, temperatures, top_k, top_p, min_p, seed, position)
        np.testing.assert_array_equal(picked, greedy)


@pytest.mark.parametrize("k", [4096, 8192])
@pytest.mark.parametrize(
    ("format", "encoding"), [("float32", "float32"), ("bfloat16", "float32"), ("q8", "Q8_0"), ("q4", "Q4_1")]
)
def test_linear_keeps_its_tolerance_over_the_widest_rows(format: str, encoding: str, k: int) -> None:
    rng = np.random.default_rng(15)
    operand, x = random_weight(rng, 65, k, format, encoding), rng.normal(size=(3, k)).astype(np.float32)
    device, spec = target().device, op_spec("linear")
    weight = device.weight(format, 65, k)
    weight.pack_rows(encoding, operand.rows)
    got, want = np.empty((3, 65), np.float32), np.empty((3, 65), np.float32)
    device.ops.linear(device.current_stream(), got, x, weight, None)
    spec.reference(want, x, operand.matrix, None)
    limit, error = spec.tolerance["float32"], np.abs(got.astype(np.float64) - want)
    assert (error <= limit.atol + limit.rtol * np.abs(want)).all()
    assert error.mean() <= limit.mean * max(1.0, float(np.abs(want).mean()))


def test_two_threads_may_pack_rows_of_one_weight() -> None:
    """Columns j and j + 16 of a panel share every byte of their quants."""
    operand = random_weight(np.random.default_rng(16), 32, 2048, "q4", "Q4_1")
    device = target().device
    ids, out = np.arange(32, dtype=np.int32), np.empty((32, 2048), np.float32)
    for _ in range(20):
        weight = device.weight("q4", 32, 2048)
        halves = [
            Thread(target=weight.pack_rows, args=("Q4_1", operand.rows[at : at + 16]), kwargs={"first": at})
            for at in (0, 16)
        ]
        for half in halves:
            half.start()
        for half in halves:
            half.join()
        device.ops.embedding(device.current_stream(), out, ids, weight)
        np.testing.assert_array_equal(out, operand.matrix)


def test_rows_with_a_scale_that_does_not_fit_leave_the_weight_as_it_was() -> None:
    operand = random_weight(np.random.default_rng(17), 4, 64, "q4", "Q4_0")
    device = target().device
    weight = device.weight("q4", 4, 64)
    weight.pack_rows("Q4_0", operand.rows)
    rows = np.zeros_like(operand.rows)
    rows[3, 18:20] = np.array([9000], "<f2").view(np.uint8)
    with pytest.raises(InvalidArgument, match="scale"):
        weight.pack_rows("Q4_0", rows)
    out = np.empty((4, 64), np.float32)
    device.ops.embedding(device.current_stream(), out, np.arange(4, dtype=np.int32), weight)
    np.testing.assert_array_equal(out, operand.matrix)


@pytest.mark.parametrize(
    ("shape", "fragments"),
    [
        (("int3", 4, 32), ("int3", "q4")),
        (("q4", 4, 33), ("33", "32")),
        (("float32", 0, 32), ("0", "1")),
        (("float32", 2**62, 1), (str(2**62), str(2**45))),
        (("q4", 2**63 - 1, 32), (str(2**63 - 1), str(2**45))),
        (("q8", 1, 2**62), (str(2**62), str(2**45))),
    ],
)
def test_a_weight_that_cannot_be_held_is_refused(shape: tuple[str, int, int], fragments: Sequence[str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        target().device.weight(*shape)
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("format", "encoding", "row_bytes", "place", "fragments"),
    [
        ("q4", "Q6_K", 18, {}, ("Q6_K",)),
        ("q4", "Q4_0", 17, {}, ("rows", "17", "18")),
        ("q8", "Q4_0", 18, {}, ("Q4_0", "q8")),
        ("q4", "float32", 128, {}, ("float32", "q4")),
        ("bfloat16", "float32", 128, {"first": 3}, ("3", "2", "4")),
        ("bfloat16", "float32", 128, {"first": -1}, ("-1",)),
        ("bfloat16", "float32", 128, {"first": 2**63 - 1}, (str(2**63 - 1), "4")),
        ("bfloat16", "float32", 128, {"targets": np.array([0, 4])}, ("targets", "4")),
        ("bfloat16", "float32", 128, {"targets": np.array([0, -1])}, ("targets", "-1", "4")),
        ("bfloat16", "float32", 128, {"targets": np.array([0])}, ("targets", "2")),
    ],
)
def test_rows_that_cannot_be_packed_are_refused(
    format: str, encoding: str, row_bytes: int, place: dict[str, Any], fragments: Sequence[str]
) -> None:
    """Two rows into a weight of four."""
    weight = target().device.weight(format, 4, 32)
    with pytest.raises(InvalidArgument) as caught:
        weight.pack_rows(encoding, np.zeros((2, row_bytes), np.uint8), **place)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_the_cases_hold_the_batch_of_16_the_design_promises() -> None:
    """Guards the metamorphic tests above against cases that shrink: some batch must be 16 rows or more."""
    assert any(dict(each.params).get("T", 0) >= 16 for each in cases(op_spec("linear")))
    assert any(len(parse_requests(dict(each.params)["requests"])) >= 16 for each in ATTENTION_CASES)
