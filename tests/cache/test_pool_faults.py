"""FAULT INJECTION: each test plants one fault in a copy of the pool's C++ and proves that the machine finds it.

The pybind part is compiled once a session and only the changed unit for each fault, all without optimisation. The
faulty module is driven in a process of its own, for a broken pool may crash or never come back.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pybind11
import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "csrc" / "core"
MODULE = """
#include "errors.h"
#include "pool_class.cc"
PYBIND11_MODULE(faulty_pool, module) {
  accel::py_bindings::register_errors();
  accel::py_bindings::bind_pool(module);
}
"""


@dataclass(frozen=True)
class Fault:
    """`line` of `unit` becomes `instead`, and a message like `found` is what comes of it."""

    unit: str
    line: str
    instead: str
    found: str


FAULTS = {
    "match returns blocks that are still being written": Fault(
        "block_store",
        "  block.life = Life::kCommitted;",
        "  block.life = Life::kPending;",
        "(is in the index and not committed|children of block)",
    ),
    "blocks are committed before they were computed": Fault(
        "block_pool",
        "  const int64_t full = computed / block_size_;",
        "  const int64_t full = std::min<int64_t>(table.tokens.size() / block_size_, table.blocks.size());",
        r"native \d+, model \d+",
    ),
    "close frees a block that still has a lease": Fault(
        "block_store",
        "  const bool last = block.leases == 0;",
        "  const bool last = hold == Hold::kOther;",
        "is free and leased",
    ),
    "eviction takes an ancestor before its leaf": Fault(
        "eviction",
        "int32_t LruPolicy::victim() const { return oldest_; }",
        "int32_t LruPolicy::victim() const { return newest_; }",
        r"is to be evicted before its \d+ children",
    ),
    "an exchanged block keeps its lease": Fault(
        "block_pool", "      store_.release(entry, Hold::kOther);", "      (void)0;", "the number of leases on block"
    ),
    "a leased descendant does not keep its ancestors": Fault(
        "block_store",
        "    ++parent.active_children;",
        "    if (was_active) ++parent.active_children;",
        "the number of active children of block",
    ),
}


@dataclass(frozen=True)
class Build:
    """Objects of everything, from which each fault replaces one."""

    compiler: str
    folder: Path
    objects: dict[str, Path]

    def compile(self, source: Path, target: Path) -> Path:
        includes = [sysconfig.get_paths()["include"], pybind11.get_include(), ROOT / "csrc" / "include", CORE]
        flags = ["-std=c++17", "-O0", "-fPIC", "-fvisibility=hidden", *(f"-I{folder}" for folder in includes)]
        isa = ["-msha", "-msse4.1"] if source.stem.endswith("_x86") else []
        run(self.compiler, *flags, *isa, f"-I{ROOT / 'csrc' / 'bindings'}", "-c", str(source), "-o", str(target))
        return target

    def link(self, objects: dict[str, Path], folder: Path) -> None:
        target = folder / f"faulty_pool{sysconfig.get_config_var('EXT_SUFFIX')}"
        run(self.compiler, "-shared", *map(str, objects.values()), "-o", str(target))


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("faulty_pool")
    module = folder / "module.cc"
    module.write_text(MODULE, encoding="utf-8")
    sources = [module, *sorted(CORE.glob("*.cc"))]
    built = Build(compiler, folder, {source.stem: folder / f"{source.stem}.o" for source in sources})
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda source: built.compile(source, built.objects[source.stem]), sources))
    return built


def drive(folder: Path) -> subprocess.CompletedProcess[str]:
    """The machine over the module in `folder`."""
    machine = ROOT / "tests" / "builders" / "pool_machine.py"
    command = [sys.executable, str(machine), str(folder), "faulty_pool"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.parametrize("name", FAULTS)
def test_the_machine_finds(name: str, build: Build, tmp_path: Path) -> None:
    fault = FAULTS[name]
    text = (CORE / f"{fault.unit}.cc").read_text(encoding="utf-8")
    assert text.count(fault.line + "\n") == 1, "the fault no longer fits the code: plant it anew"
    changed = tmp_path / f"{fault.unit}.cc"
    changed.write_text(text.replace(fault.line + "\n", fault.instead + "\n"), encoding="utf-8")
    broken = build.compile(changed, tmp_path / f"{fault.unit}.o")
    build.link({**build.objects, fault.unit: broken}, tmp_path)
    done = drive(tmp_path)
    assert done.returncode == 3, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert re.match(f"found: .*{fault.found}", done.stdout), done.stdout


def test_the_machine_finds_nothing_without_a_fault(build: Build, tmp_path: Path) -> None:
    build.link(build.objects, tmp_path)
    done = drive(tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
