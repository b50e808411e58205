"""What the compiler made of the instruction-set units: nothing of them leaks into code that every machine runs.

A unit built with -mavx512f may contain any AVX-512 instruction, one built with -msha any of SSE4.1. Were it to export a
weak symbol (an inline function or a template of a shared header), the linker could pick that copy for baseline code,
which faults on an older machine.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Unit with flags of its own → its folder, and the script that states the flags.
UNITS = {
    "kernels_avx2": (ROOT / "csrc" / "cpu", ROOT / "backends" / "cpu" / "build.cmake"),
    "kernels_avx512": (ROOT / "csrc" / "cpu", ROOT / "backends" / "cpu" / "build.cmake"),
    "sha256_x86": (ROOT / "csrc" / "core", ROOT / "CMakeLists.txt"),
}
#: An instruction beyond the baseline: a ymm, zmm or mask register, an AVX encoding, SHA, or of SSSE3 and SSE4.1.
BEYOND = re.compile(
    r"%[yz]mm\d|%k[1-7]\b|\tv[a-z0-9]+\s.*%xmm|\t(sha256\w+|pshufb|palignr|pblend\w+|p(insr|extr)[bdq])\s"
)
FLAGS = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", f"-I{ROOT / 'csrc' / 'include'}"]

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="instruction sets are chosen at run time on x86-64"
)


@dataclass(frozen=True)
class Tools:
    """Paths of what the tests run."""

    nm: str
    objdump: str


@pytest.fixture(scope="module")
def tools() -> Tools:
    nm, objdump = shutil.which("nm"), shutil.which("objdump")
    if nm is None or objdump is None:
        pytest.skip("nm or objdump is not installed: apt-get install binutils")
    return Tools(nm, objdump)


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def isa_flags(unit: str) -> list[str]:
    """The flags of a unit, as the build states them."""
    script = UNITS[unit][1]
    match = re.search(rf'{unit}\.cc\s+PROPERTIES\s+COMPILE_OPTIONS\s+"([^"]*)"', script.read_text(encoding="utf-8"))
    if match is None:
        raise ValueError(f"{script} has no flags for {unit}")
    return match[1].split(";")


def newest_objects() -> dict[str, Path]:
    """Unit → the newest object that a build of the native modules left in build/."""
    found = [path for path in (ROOT / "build").rglob("*.cc.o") if "csrc" in path.parts]
    return {path.name.removesuffix(".cc.o"): path for path in sorted(found, key=lambda path: path.stat().st_mtime)}


@pytest.fixture(scope="module", params=UNITS)
def isa_object(request: pytest.FixtureRequest) -> Path:
    """The object of an instruction-set unit as it was built."""
    built = newest_objects().get(request.param)
    if built is None:
        pytest.skip("no object of a build in build/: make setup leaves it")
    return built


@pytest.fixture(scope="module", params=UNITS)
def plain_object(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same unit compiled without inlining, so that every function it has stays visible as a symbol."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    unit: str = request.param
    target = tmp_path_factory.mktemp("objects") / f"{unit}.o"
    source = str(UNITS[unit][0] / f"{unit}.cc")
    run(compiler, *FLAGS, "-O1", "-fno-inline", *isa_flags(unit), "-c", source, "-o", str(target))
    return target


def symbols(nm: str, path: Path, *flags: str) -> list[tuple[str, str]]:
    """(kind, demangled name) of defined symbols."""
    lines = run(nm, "--defined-only", "--demangle", *flags, str(path)).splitlines()
    return [(line.split(maxsplit=2)[1], line.split(maxsplit=2)[2]) for line in lines if len(line.split()) > 2]


def mergeable(nm: str, path: Path) -> list[str]:
    """Symbols the linker may replace by another unit's, or the other way round: weak (W, V) and unique (u)."""
    return [name for kind, name in symbols(nm, path) if kind in "WVu"]


def test_an_isa_unit_shares_no_code(tools: Tools, isa_object: Path) -> None:
    assert mergeable(tools.nm, isa_object) == []


def test_an_isa_unit_shares_no_code_even_without_inlining(tools: Tools, plain_object: Path) -> None:
    assert mergeable(tools.nm, plain_object) == []


def test_the_check_would_see_shared_code(tools: Tools, tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = tmp_path / "leak.cc"
    source.write_text("inline float twice(float x) { return x + x; }\nfloat (*leak)(float) = twice;\n")
    run(compiler, *FLAGS, "-mavx2", "-c", str(source), "-o", str(tmp_path / "leak.o"))
    assert mergeable(tools.nm, tmp_path / "leak.o") == ["twice(float)"]


def test_an_isa_unit_exports_one_name_alone(tools: Tools, isa_object: Path) -> None:
    names = [name for _, name in symbols(tools.nm, isa_object, "--extern-only")]
    assert len(names) == 1
    assert re.fullmatch(r"accel::cpu::kAvx\w*Kernels|accel::core::sha256_compress_x86\(.*\)", names[0])


def test_an_isa_unit_runs_nothing_at_load(tools: Tools, isa_object: Path) -> None:
    """The constructor of a global would run on a machine without the instructions."""
    assert not re.search(r"\.(init_array|ctors)", run(tools.objdump, "-h", str(isa_object)))


def wide_functions(objdump: str, path: Path) -> dict[str, str]:
    """Function → its first instruction beyond the baseline."""
    found: dict[str, str] = {}
    name = ""
    for line in run(objdump, "-d", "--demangle", "--no-show-raw-insn", str(path)).splitlines():
        header = re.match(r"[0-9a-f]+ <(.*)>:$", line)
        if header:
            name = header[1]
        elif BEYOND.search(line):
            found.setdefault(name, line.strip())
    return found


def test_the_search_finds_wide_code(tools: Tools, isa_object: Path) -> None:
    assert wide_functions(tools.objdump, isa_object)


def test_baseline_units_use_no_wide_registers(tools: Tools) -> None:
    baseline = {unit: path for unit, path in newest_objects().items() if unit not in UNITS}
    if not baseline:
        pytest.skip("no objects of a build in build/: make setup leaves them")
    wide = {unit: wide_functions(tools.objdump, path) for unit, path in baseline.items()}
    assert {unit: found for unit, found in wide.items() if found} == {}
