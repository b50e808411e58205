"""Opening, naming and closing a device."""

from __future__ import annotations

from accel.backend import Capabilities, Device, DeviceInfo, Stream, Support
from accel.conformance.context import Context
from accel.conformance.registry import case
from accel.errors import DeviceLost, InvalidArgument


@case("device")
def is_what_the_contract_says(context: Context) -> None:
    """Types of the parts that everything above uses."""
    device = context.device
    for value, kind in ((device, Device), (device.info, DeviceInfo), (device.capabilities, Capabilities)):
        context.check(isinstance(value, kind), f"{value!r} is no {kind.__name__}")
    context.check(isinstance(device.current_stream(), Stream), "current_stream() gives no Stream")


@case("device")
def is_called_backend_and_index(context: Context) -> None:
    """The name is what accel.open takes."""
    want = f"{context.backend.name}:{context.device.info.logical}"
    context.equal(context.device.name, want, "name")


@case("device")
def claims_every_capability(context: Context) -> None:
    """Claims are three-valued, values are of their types, nothing is None."""
    capabilities = context.device.capabilities
    for name in capabilities.__dataclass_fields__:
        value = getattr(capabilities, name)
        context.check(value is not None, f"capability {name} is None")
    for name in ("async_copy", "events", "event_timing", "host_register", "memory_info", "graph_capture"):
        context.check(isinstance(getattr(capabilities, name), Support), f"capability {name} is no Support")
    context.check(capabilities.alignment >= 1, f"alignment is {capabilities.alignment}")
    context.check("float32" in capabilities.dtypes, f"float32 is not among the dtypes {capabilities.dtypes}")
    context.check(bool(capabilities.kv_layouts) and bool(capabilities.kv_dtypes), "no KV layout or dtype is claimed")


@case("device")
def refuses_an_index_that_is_not_there(context: Context) -> None:
    """With the number of devices in the message."""
    with context.raises(InvalidArgument, "1000", "opening device 1000"):
        context.backend.open(1000).close()  # type: ignore[arg-type]


@case("device")
def refuses_an_option_it_does_not_have(context: Context) -> None:
    """By its name."""
    with context.raises(InvalidArgument, "no_such_option", "opening with an unknown option"):
        context.backend.open(no_such_option=1).close()


@case("device")
def closes_twice_and_then_refuses_work(context: Context) -> None:
    """Another device of the same kind, so that this one lives on."""
    other = context.reopen()
    other.close()
    other.close()
    for what, call in (("stream()", other.stream), ("synchronize()", other.synchronize)):
        with context.raises(DeviceLost, "closed", f"{what} of a closed device"):
            call()


@case("device")
def opens_twice_side_by_side(context: Context) -> None:
    """Closing one does nothing to the other."""
    with context.reopen() as other:
        other.synchronize()
    context.device.synchronize()
