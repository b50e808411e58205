"""Run ``mypy --strict`` over the package as it is imported.

``backends/`` and ``storage/`` lie beside ``accel/`` in the repository and inside it when installed (setup.py). mypy
knows the tree only as it lies, so it is shown one of links in build/typing where everything is in its place.
Arguments are passed on to mypy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREE = ROOT / "build" / "typing"
#: Folder at the top of the repository → its name inside the package; as in setup.py.
MAPPED = {"backends": "backends", "storage": "storage"}


def link_tree() -> None:
    package = TREE / "accel"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for entry in sorted((ROOT / "accel").iterdir()):
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry, target_is_directory=entry.is_dir())
    for folder, name in MAPPED.items():
        if (ROOT / folder / "__init__.py").exists():
            (package / name).symlink_to(ROOT / folder, target_is_directory=True)


def main() -> int:
    link_tree()
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), "-p", "accel"]
    command += ["--cache-dir", str(ROOT / "build" / "mypy-cache"), *sys.argv[1:]]
    return subprocess.run(command, cwd=TREE, env={**os.environ, "MYPYPATH": str(TREE)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
