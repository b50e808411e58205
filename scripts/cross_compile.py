"""Compile the C++ that knows no Python with every compiler, for every machine it has to run on; warnings are errors.

The objects go to build/cross and are not run. csrc/bindings is left out: it needs the Python headers of the target.
Exit 1 when a unit does not compile, 2 when a compiler is missing (all that are missing are named, with the command).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "csrc"
OBJECTS = ROOT / "build" / "cross"
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
FLAGS += ["-ffp-contract=off", f"-I{SOURCES / 'include'}"]


@dataclass(frozen=True)
class Toolchain:
    """One compiler for one target. `package` is what apt-get calls it; `x86` says whether ISA flags apply."""

    compiler: str
    package: str
    x86: bool


def toolchains() -> list[Toolchain]:
    native_x86 = os.uname().machine == "x86_64"
    return [
        Toolchain("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu", False),
        Toolchain("clang++", "clang", native_x86),
        Toolchain("g++", "g++", native_x86),
    ]


def isa_flags() -> dict[str, list[str]]:
    """File name → the flags its instruction set needs, as the builds state them."""
    found = {}
    pattern = re.compile(r'set_source_files_properties\(\S*/(\S+\.cc)\s+PROPERTIES\s+COMPILE_OPTIONS\s+"([^"]*)"\)')
    for script in [ROOT / "CMakeLists.txt", *sorted((ROOT / "backends").glob("*/build.cmake"))]:
        for name, options in pattern.findall(script.read_text(encoding="utf-8")):
            found[name] = options.split(";")
    return found


def version() -> str:
    match = re.search(r'^__version__ = "(.*)"', (ROOT / "accel" / "__init__.py").read_text(encoding="utf-8"), re.M)
    if match is None:
        raise SystemExit("accel/__init__.py has no __version__")
    return match[1]


def main() -> int:
    units = sorted(path for path in SOURCES.rglob("*.cc") if "bindings" not in path.relative_to(SOURCES).parts)
    flags = isa_flags()
    define = f'-DACCEL_VERSION="{version()}"'
    missing = [tool for tool in toolchains() if shutil.which(tool.compiler) is None]
    for tool in missing:
        print(f"missing: {tool.compiler}: sudo apt-get install {tool.package}", file=sys.stderr)

    def compile_unit(tool: Toolchain, unit: Path) -> tuple[Toolchain, Path, str]:
        target = OBJECTS / tool.compiler / unit.relative_to(SOURCES).with_suffix(".o")
        target.parent.mkdir(parents=True, exist_ok=True)
        extra = flags.get(unit.name, []) if tool.x86 else []
        command = [tool.compiler, *FLAGS, *extra, define, "-c", str(unit), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return tool, unit, "" if done.returncode == 0 else done.stderr or f"exit status {done.returncode}"

    present = [tool for tool in toolchains() if tool not in missing]
    failed = dict.fromkeys(present, 0)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = [(tool, unit) for tool in present for unit in units]
        for tool, unit, error in pool.map(lambda job: compile_unit(*job), jobs):
            if error:
                failed[tool] += 1
                print(f"{tool.compiler}: {unit.relative_to(ROOT)}\n{error}", file=sys.stderr)
    for tool, count in failed.items():
        print(f"{tool.compiler}: {len(units) - count} of {len(units)} units compile without a warning")
    if any(failed.values()):
        return 1
    return 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
