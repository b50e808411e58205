"""accel: one backend contract for LLM inference on any accelerator.

``accel.open("auto")`` gives a device, ``accel.Engine(model)`` generates on it. Importing this package loads neither the
framework nor NumPy nor a native module, and scans no entry points: the names below load their module when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel.backend import Backend as Backend
    from accel.backend import Capabilities as Capabilities
    from accel.backend import Device as Device
    from accel.backend import Probe as Probe
    from accel.backend import Support as Support
    from accel.engine import Engine as Engine
    from accel.engine import RequestOutput as RequestOutput
    from accel.engine import TokenOutput as TokenOutput
    from accel.errors import AbiMismatch as AbiMismatch
    from accel.errors import AccelError as AccelError
    from accel.errors import AsyncFailure as AsyncFailure
    from accel.errors import BackendUnavailable as BackendUnavailable
    from accel.errors import DeviceLost as DeviceLost
    from accel.errors import EngineClosed as EngineClosed
    from accel.errors import InvalidArgument as InvalidArgument
    from accel.errors import InvalidRequest as InvalidRequest
    from accel.errors import ModelError as ModelError
    from accel.errors import OutOfMemory as OutOfMemory
    from accel.errors import Overloaded as Overloaded
    from accel.errors import StorageConfigError as StorageConfigError
    from accel.errors import Timeout as Timeout
    from accel.errors import Unsupported as Unsupported
    from accel.registry import open as open
    from accel.sampling_params import SamplingParams as SamplingParams

#: Public name → the module that defines it. The one list of what `accel` exports.
_EXPORTS = {
    "Backend": "accel.backend",
    "Capabilities": "accel.backend",
    "Device": "accel.backend",
    "Probe": "accel.backend",
    "Support": "accel.backend",
    "Engine": "accel.engine",
    "RequestOutput": "accel.engine",
    "TokenOutput": "accel.engine",
    "SamplingParams": "accel.sampling_params",
    "AbiMismatch": "accel.errors",
    "AccelError": "accel.errors",
    "AsyncFailure": "accel.errors",
    "BackendUnavailable": "accel.errors",
    "DeviceLost": "accel.errors",
    "EngineClosed": "accel.errors",
    "InvalidArgument": "accel.errors",
    "InvalidRequest": "accel.errors",
    "ModelError": "accel.errors",
    "OutOfMemory": "accel.errors",
    "Overloaded": "accel.errors",
    "StorageConfigError": "accel.errors",
    "Timeout": "accel.errors",
    "Unsupported": "accel.errors",
    "open": "accel.registry",
}

__version__ = "0.1.0"
__all__ = sorted([*_EXPORTS, "__version__"])


def __getattr__(name: str) -> Any:
    try:
        module = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module 'accel' has no attribute {name!r}") from None
    import importlib

    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
