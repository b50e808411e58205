"""Habits of the devices that the simulator can stand in for, as data. A profile changes what a device claims and how it
behaves, never what an op computes.

Invariant: whatever a profile claims, the simulator does: emulated events do block, memory info that is NONE does raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from accel.backend import Capabilities, Support

__all__ = ["PROFILES", "Profile"]


@dataclass(frozen=True)
class Profile:
    """One kind of device.

    `oom_retry`: whether the allocator itself gives back what it holds and tries again when memory is short; where it
    does not, the backend has to, so the caller sees no difference.
    `alignment` is in bytes, `warp_size` in lanes (0: none).
    """

    name: str
    warp_size: int
    events: Support = Support.NATIVE
    event_timing: Support = Support.NATIVE
    memory_info: Support = Support.NATIVE
    host_register: Support = Support.NATIVE
    alignment: int = 256
    oom_retry: bool = True
    kv_layouts: tuple[str, ...] = ("page_first", "layer_first")

    def capabilities(self) -> Capabilities:
        """What a device of this profile claims."""
        return Capabilities(
            async_copy=Support.NATIVE,
            events=self.events,
            event_timing=self.event_timing,
            host_register=self.host_register,
            host_call=Support.NATIVE,
            gate=Support.NATIVE,
            memory_info=self.memory_info,
            peer_copy=Support.NONE,
            ipc=Support.NONE,
            graph_capture=Support.NONE,
            deterministic=Support.NATIVE,
            warp_size=self.warp_size,
            alignment=self.alignment,
            dtypes=("float32",),
            weight_formats=("float32", "bfloat16", "float16", "q8", "q4"),
            kv_dtypes=("float32", "bfloat16", "float16"),
            kv_layouts=self.kv_layouts,
            host_executed=False,
        )


#: By name. Where the habits come from is said in the README of each backend.
PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            Profile("gpu", warp_size=32),
            Profile("dcu", warp_size=64),
            # Its plug-in records by synchronising, has no event times and no memory statistics, and returns an error
            # code where others return a null pointer.
            Profile(
                "iluvatar",
                warp_size=64,
                events=Support.EMULATED,
                event_timing=Support.NONE,
                memory_info=Support.NONE,
                oom_retry=False,
            ),
            Profile(
                "xpu", warp_size=0, event_timing=Support.NONE, alignment=64, kv_layouts=("layer_first", "page_first")
            ),
        )
    }
)
