"""``python -m benchmarks``: the list of them."""

from __future__ import annotations

from pathlib import Path

for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    first = path.read_text(encoding="utf-8").splitlines()[0].strip('"')
    print(f"python -m benchmarks.{path.stem:<12} {first}")
print("accel bench decode | prefill           Tokens a second beside a peer.")
print("accel bench scheduler                  Milliseconds of a step beside the model.")
