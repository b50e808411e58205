"""What a wheel and an sdist would hold, without building one: no network, no compiler.

docs/development.md has the commands that build both for real.
"""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from setuptools import Distribution, Extension, find_packages
from setuptools.command.egg_info import FileList
from setuptools.command.sdist import sdist

import accel

ROOT = Path(__file__).resolve().parents[1]
#: As the design has it: top-level folder → package.
MAPPED = {"backends": "accel.backends", "storage": "accel.storage"}


@pytest.fixture
def setup_arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py hands to setuptools."""
    import setuptools

    captured: dict[str, Any] = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: captured.update(arguments))
    source = (ROOT / "setup.py").read_text(encoding="utf-8")
    exec(compile(source, str(ROOT / "setup.py"), "exec"), {"__name__": "setup", "__file__": str(ROOT / "setup.py")})
    return captured


def test_every_package_is_shipped_under_accel(setup_arguments: dict[str, Any]) -> None:
    packages = set(setup_arguments["packages"])
    assert all(name == "accel" or name.startswith("accel.") for name in packages), "nothing else in site-packages"
    expected = {"accel", *(f"accel.{name}" for name in find_packages(str(ROOT / "accel")))}
    for folder, package in MAPPED.items():
        expected |= {package, *(f"{package}.{name}" for name in find_packages(str(ROOT / folder)))}
    assert packages == expected
    assert {"accel.backends.cpu", "accel.storage", "accel.ops", "accel.models"} <= packages


def test_every_folder_with_modules_is_a_package() -> None:
    """A forgotten ``__init__.py`` would leave its folder out of the wheel, silently."""
    for top in ("accel", "backends", "storage"):
        folders = {path.parent for path in (ROOT / top).rglob("*.py") if "__pycache__" not in path.parts}
        missing = [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()]
        assert missing == []


def test_native_modules_are_named_where_they_are_imported(setup_arguments: dict[str, Any]) -> None:
    extensions: list[Extension] = setup_arguments["ext_modules"]
    names = ["accel._core", "accel.backends.cpu._native", "accel.backends.sim._native"]
    assert [extension.name for extension in extensions] == names


def _sdist_files(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]) -> set[str]:
    monkeypatch.chdir(ROOT)
    arguments = {key: value for key, value in arguments.items() if key in ("packages", "package_dir")}
    distribution = Distribution({"name": "accel", "version": "0", **arguments})
    distribution.include_package_data = False
    command = sdist(distribution)
    command.ensure_finalized()
    command.filelist = FileList()
    command.filelist.findall()
    command.template = "MANIFEST.in"
    command.read_template()
    return {Path(name).as_posix() for name in command.filelist.files}


def test_an_sdist_can_be_built_from(setup_arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    files = _sdist_files(monkeypatch, setup_arguments)
    needed = {"CMakeLists.txt", "LICENSE", "README.md", "Makefile"}
    for folder, suffixes in {
        "accel": (".py", ".pyi"),
        "backends": (".py", ".cmake", ".md"),
        "storage": (".py",),
        "csrc": (".cc", ".h", ".inl"),
        "tests": (".py",),
        "scripts": (".py", ".sh"),
        "docs": (".md",),
    }.items():
        needed |= {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.suffix in suffixes and "__pycache__" not in path.parts
        }
    assert needed - files == set()
    unwanted = {name for name in files if re.search(r"\.so$|\.pyc$|^build/|\.venv|__pycache__|/build/", name)}
    assert unwanted == set()


def test_csrc_has_no_kind_of_file_the_sdist_forgets() -> None:
    suffixes = {path.suffix for path in (ROOT / "csrc").rglob("*") if path.is_file()}
    assert suffixes <= {".cc", ".h", ".inl"}, "add the new kind to MANIFEST.in and to the test above"


def _entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=group) if point.value.startswith("accel.")}


def test_the_backends_are_registered_and_can_be_imported() -> None:
    points = _entry_points("accel.backends")
    folders = {path.parent.name for path in (ROOT / "backends").glob("*/backend.py")}
    assert set(points) == folders
    for name, point in points.items():
        assert issubclass(point.load(), accel.Backend)
        assert point.load().name == name


def test_the_command_is_registered() -> None:
    assert callable(_entry_points("console_scripts")["accel"].load())


def test_versions_agree() -> None:
    from accel import _core
    from accel.backends.cpu import _native

    assert re.fullmatch(r"\d+\.\d+\.\d+", accel.__version__)
    assert metadata.version("accel") == accel.__version__
    for tag in (_core.host_runtime().build_tag, _native.build_tag()):
        assert tag.startswith(
            f"accel {accel.__version__}, runtime ABI {'.'.join(map(str, _core.host_runtime().abi))}, "
        )


def test_the_version_can_be_read_without_importing() -> None:
    """setuptools and CMake read the literal."""
    tree = ast.parse((ROOT / "accel" / "__init__.py").read_text(encoding="utf-8"))
    values = [
        node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and ast.unparse(node.targets[0]) == "__version__"
    ]
    assert values == [accel.__version__]


def test_the_package_is_typed() -> None:
    assert (ROOT / "accel" / "py.typed").exists()
