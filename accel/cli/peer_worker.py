"""The peer of ``accel bench``: llama-cpp-python on a .gguf file, driven over two pipes.

Run as a script by the interpreter that has llama-cpp-python, which need not have accel: so it imports nothing of ours.
A process of its own keeps the peer's threads and libraries away from what they are compared with.

Protocol: a JSON object a line. First it writes {"version"} or {"error"}. Then each request {"kind": "decode" or
"prefill", "ids": [...], "tokens": n} is answered with {"seconds": s}, the time of n decode steps after the
prompt `ids`, or of the prefill of `ids` with its first token.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main(path: str, threads: int, context: int, plain: bool) -> None:
    """Serve until stdin ends.

    Args:
        context: tokens of the longest sequence.
        plain: without the library's repacked weights, for a processor that its kernels for these break on.
    """
    # The library prints to stdout as it likes: answers go to a private copy of it, and stdout becomes stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        import llama_cpp

        if plain:
            _without_extra_buffers(llama_cpp.llama_cpp)
        model = llama_cpp.Llama(
            model_path=path,
            n_ctx=context,
            n_batch=512,
            n_ubatch=512,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=0,
            verbose=False,
        )
    except Exception as error:  # whatever it is, the other side has to hear of it
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"version": llama_cpp.__version__})
    for line in sys.stdin:
        request = json.loads(line)
        measure = _decode if request["kind"] == "decode" else _prefill
        answer({"seconds": measure(model, request["ids"], request["tokens"])})


def _without_extra_buffers(bindings: Any) -> None:
    defaults = bindings.llama_model_default_params

    def changed() -> Any:
        params = defaults()
        params.use_extra_bufts = False
        return params

    bindings.llama_model_default_params = changed


def _decode(model: Any, ids: list[int], tokens: int) -> float:
    model.reset()
    greedy = model.generate(ids, temp=0.0, repeat_penalty=1.0, reset=False)
    next(greedy)
    start = time.perf_counter()
    for _ in range(tokens):
        next(greedy)
    return time.perf_counter() - start


def _prefill(model: Any, ids: list[int], tokens: int) -> float:
    model.reset()
    start = time.perf_counter()
    next(model.generate(ids, temp=0.0, repeat_penalty=1.0, reset=False))
    return time.perf_counter() - start


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "plain")
