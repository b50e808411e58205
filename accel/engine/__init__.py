"""The engine: a model on a device, one loop thread, and any number of threads and tasks that use it.

May import everything but the command line, conformance and the backends.
"""

from __future__ import annotations

from accel.engine.engine import Engine
from accel.engine.outputs import RequestMetrics, RequestOutput, TokenLogprobs, TokenOutput
from accel.engine.prompts import Prompt, check_prompt
from accel.engine.stream import Stream

__all__ = [
    "Engine",
    "Prompt",
    "RequestMetrics",
    "RequestOutput",
    "Stream",
    "TokenLogprobs",
    "TokenOutput",
    "check_prompt",
]
