"""A layout is a value with a fingerprint, and both orders of memory are one pool to whoever looks at it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from accel import Device
from accel.cache.pages import KVLayout, KVPool
from accel.errors import InvalidArgument, Unsupported

LAYOUT = KVLayout(layers=3, kv_heads=2, head_dim=4, block_size=5)


def test_page_bytes_and_shapes_follow_from_the_sizes() -> None:
    assert LAYOUT.page_bytes == 3 * 2 * 2 * 5 * 4 * 4
    assert replace(LAYOUT, dtype="bfloat16").page_bytes * 2 == LAYOUT.page_bytes
    assert LAYOUT.memory_shape(7) == (7, 3, 2, 2, 5, 4)
    assert replace(LAYOUT, order="layer_first").memory_shape(7) == (3, 2, 7, 2, 5, 4)
    assert [LAYOUT.blocks_for(n) for n in (0, 1, 5, 6, 10)] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize("order", ["page_first", "layer_first"])
def test_the_logical_view_of_either_order_is_the_same_pool(order: str, cpu: Device) -> None:
    layout = replace(LAYOUT, order=order)
    pool = KVPool(cpu, layout, 7)
    assert pool.view.shape == layout.logical_shape(7)
    logical = pool.view.numpy()
    logical[...] = np.arange(logical.size, dtype=np.float32).reshape(logical.shape)
    for layer, view in enumerate(pool.layer_views):
        assert np.array_equal(view.numpy(), logical[:, layer])
    assert pool.nbytes == logical.size * 4


def test_a_page_first_page_is_one_run_of_bytes(cpu: Device) -> None:
    pool = KVPool(cpu, LAYOUT, 7)
    assert pool.view.select(0, 3).contiguous
    assert not KVPool(cpu, replace(LAYOUT, order="layer_first"), 7).view.select(0, 3).contiguous


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 4},
        {"kv_heads": 1},
        {"head_dim": 8},
        {"block_size": 6},
        {"dtype": "bfloat16"},
        {"order": "layer_first"},
        {"dtype": "int8"},
        {"dtype": "int8", "scales": (1.0,) * 12},
        {"dtype": "int8", "scales": (1.0,) * 11 + (1.0 + 2**-52,)},
    ],
)
def test_every_field_changes_the_fingerprint(change: dict[str, object]) -> None:
    assert replace(LAYOUT, **change).fingerprint() != LAYOUT.fingerprint()  # type: ignore[arg-type]
    assert replace(LAYOUT).fingerprint() == LAYOUT.fingerprint()


def test_the_fingerprint_does_not_drift() -> None:
    """A golden value: pages written by one version are found by the next. A change of meaning raises the version."""
    assert LAYOUT.fingerprint() == "aafd0d65c6454dac38cfb4186b42cf4af5e7b78245e6b4dd6d0403669634c6ee"


def test_scales_are_part_of_the_fingerprint_to_the_last_bit() -> None:
    def layout(*scales: float) -> KVLayout:
        return KVLayout(layers=1, kv_heads=1, head_dim=4, dtype="int8", scales=scales or None)

    prints = {layout(*scales).fingerprint() for scales in ((), (0.5, 1.0), (1.0, 0.5), (0.5, 1.0 + 2**-52))}
    assert len(prints) == 4
    assert KVLayout(1, 1, 4, dtype="int8", scales=[0.5, np.float64(1)]) == layout(0.5, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scales": (1.0,) * 12}, "layout of float32 has scales"),
        ({"dtype": "int8", "scales": (1.0,) * 11}, "11 scales; .* = 12 are needed"),
        ({"dtype": "int8", "scales": ()}, "0 scales"),
        ({"dtype": "int8", "scales": (1.0,) * 11 + (float("nan"),)}, r"scales\[11\] of a KV layout is nan"),
        ({"dtype": "int8", "scales": (float("inf"),) + (1.0,) * 11}, r"scales\[0\] .* is inf"),
        ({"dtype": "int8", "scales": (1.0, 0.0) + (1.0,) * 10}, r"scales\[1\] .* is 0.0"),
    ],
)
def test_scales_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        replace(LAYOUT, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim", "block_size"])
def test_sizes_below_one_are_refused_by_name(field: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{field} of a KV layout is 0"):
        replace(LAYOUT, **{field: 0})  # type: ignore[arg-type]


def test_what_a_device_does_not_hold_is_unsupported_and_names_what_it_does(cpu: Device) -> None:
    with pytest.raises(Unsupported, match="float32, bfloat16, float16"):
        KVPool(cpu, replace(LAYOUT, dtype="int8"), 1)
    with pytest.raises(InvalidArgument, match="num_blocks is 0"):
        KVPool(cpu, LAYOUT, 0)


def test_the_record_of_a_page_does_not_depend_on_the_order_of_its_pool() -> None:
    other = replace(LAYOUT, order="layer_first")
    assert LAYOUT.canonical() is LAYOUT
    assert other.canonical() == LAYOUT
    assert other.canonical().fingerprint() == LAYOUT.fingerprint() != other.fingerprint()
    assert replace(other, dtype="bfloat16").canonical() != LAYOUT
