"""Tensors of the framework on the device, and views of them."""

from __future__ import annotations

import numpy as np

from accel.conformance.context import Context
from accel.conformance.registry import case
from accel.errors import AccelError, InvalidArgument, OutOfMemory


@case("memory")
def gives_tensors_of_every_dtype_and_shape(context: Context) -> None:
    """Empty ones as well; aligned as claimed."""
    device = context.device
    for dtype in ("float32", "int32", "int64", "uint8"):
        for shape in ((0,), (1,), (3, 5), (2, 0, 4), (1, 1, 1, 7)):
            view = device.view(device.empty(shape, dtype))
            context.equal(tuple(view.shape), shape, f"shape of a {dtype} tensor")
            context.equal(view.dtype, dtype, "dtype")
            if view.nbytes:
                context.equal(view.ptr % device.capabilities.alignment, 0, "address modulo the claimed alignment")


@case("memory")
def views_share_the_memory_they_view(context: Context) -> None:
    """narrow, select and reshape point into the tensor."""
    host = context.rng.integers(0, 1000, (4, 6), np.int32)
    tensor = context.upload(host)
    view = context.device.view(tensor)
    row = view.select(0, 2)
    context.equal(row.ptr - view.ptr, 2 * 6 * 4, "offset of row 2 in bytes")
    context.equal(context.download(row, host[2]), host[2], "row 2")
    part = view.narrow(0, 1, 2).reshape([12])
    context.equal(context.download(part, host[1:3].reshape(-1)), host[1:3].reshape(-1), "rows 1 and 2, flat")


@case("memory")
def refuses_views_beyond_the_tensor(context: Context) -> None:
    """Nothing reaches memory that is not the tensor's."""
    view = context.device.view(context.empty((4, 6), "float32"))
    with context.raises(InvalidArgument, "", "narrow past the end"):
        view.narrow(0, 3, 2)
    with context.raises(InvalidArgument, "", "select past the end"):
        view.select(0, 4)
    with context.raises(InvalidArgument, "", "reshape to another size"):
        view.reshape([5, 5])


@case("memory")
def an_allocation_that_cannot_fit_is_out_of_memory_and_the_device_goes_on(context: Context) -> None:
    """2**60 bytes: requested is in the error, and the next allocation works."""
    try:
        context.empty((1 << 58,), "float32")
    except OutOfMemory as error:
        context.check("requested" in error.values, f"the error does not say what was requested: {error.values}")
    except AccelError as error:
        context.check(False, f"raised {type(error).__name__}, want OutOfMemory: {error}")
    else:
        context.check(False, "2**60 bytes were given")
    context.empty((16,), "float32")


@case("memory", needs=("memory_info",))
def memory_information_is_plausible(context: Context) -> None:
    """0 < free <= total; 0 of 0 would be a number made up."""
    free, total = context.device.memory()
    context.check(0 < free <= total, f"free {free} of total {total}")
