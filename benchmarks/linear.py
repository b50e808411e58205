"""GFLOP/s of the op ``linear`` by weight format and shape, beside NumPy's sgemm in the same run on as many threads.

2 T N K operations a call. NumPy always multiplies float32, so for the small formats at few tokens, where reading the
weights is the work, a ratio above 1 is what they are for. NumPy's BLAS sums in an order that changes with the shape;
ours does not, and the ratio is the price of that.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from accel.cli.measure import Result, interleave, machine, print_report, rounds_progress
from benchmarks.options import parser

if TYPE_CHECKING:
    from accel.backend import Device, Weight

#: (tokens, out features, in features)
SHAPES = ((1, 576, 576), (1, 4096, 4096), (16, 4096, 4096), (512, 576, 1536), (256, 4096, 4096))
#: Format of the weight → the encoding it is packed from.
ENCODINGS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "q8": "Q8_0", "q4": "Q4_1"}
_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_LEAST_SECONDS = 0.05


def _weight(device: Device, values: Any, form: str) -> Weight:
    import gguf
    import numpy as np

    kind = ENCODINGS[form]
    rows = np.ascontiguousarray(gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])).view(np.uint8)
    weight = device.weight(form, *values.shape)
    weight.pack_rows(_NAMES.get(kind, kind), rows.reshape(len(values), -1))
    return weight


def _rate(call: Callable[[], object], flops: float) -> float:
    """GFLOP/s over as many calls as take a while."""
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < _LEAST_SECONDS or not count:
        call()
        count += 1
    return count * flops / spent / 1e9


def _one_shape(device: Device, shape: tuple[int, int, int], formats: list[str]) -> dict[str, Callable[[], float]]:
    """What measures the rate of each format, and of NumPy under the name "numpy"."""
    import numpy as np

    tokens, out_features, in_features = shape
    rng = np.random.default_rng(0)
    values = rng.standard_normal((out_features, in_features), np.float32)
    x = rng.standard_normal((tokens, in_features), np.float32)
    out = np.empty((tokens, out_features), np.float32)
    flops = 2.0 * tokens * out_features * in_features
    linear = partial(device.ops.linear, device.current_stream(), device.view(out), device.view(x))
    sides = {form: partial(_rate, partial(linear, _weight(device, values, form), None), flops) for form in formats}
    return {"numpy": partial(_rate, lambda: np.matmul(x, values.T, out=out), flops), **sides}


def measure(device: Device, formats: list[str], rounds: int) -> list[Result]:
    """One result a shape and format."""
    results = []
    with rounds_progress("linear", len(SHAPES) * (rounds + 1) * (len(formats) + 1)) as step:
        for shape in SHAPES:
            sides = _one_shape(device, shape, formats)
            interleave(sides, 1, step)
            rates = interleave(sides, rounds, step)
            tokens, out_features, in_features = shape
            name = f"{tokens}x{in_features}x{out_features}"
            results += [Result(f"linear.{form}.{name}", rates[form], "GFLOP/s", rates["numpy"]) for form in formats]
    return results


def main() -> int:
    options = parser(__doc__, rounds=5)
    options.add_argument("--device", default="cpu")
    options.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--formats", default=",".join(ENCODINGS), help="%(default)s")
    arguments = options.parse_args()
    # OpenBLAS reads its number of threads when NumPy is first imported.
    os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)
    import accel

    with accel.open(arguments.device, threads=arguments.threads) as device:
        formats = [form for form in arguments.formats.split(",") if form in device.capabilities.weight_formats]
        results = measure(device, formats, arguments.rounds)
        about = machine(
            device=device.name,
            threads=arguments.threads,
            isa=getattr(device, "isa", None),
            openblas_coretype=os.environ.get("OPENBLAS_CORETYPE"),
        )
    print_report(results, about, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
