"""Builds the native modules with CMake and maps `backends/` and `storage/` into the `accel` namespace.

Metadata lives in pyproject.toml. Settings of the build (environment):

ACCEL_TARGETS   backends to build native modules for, separated by ';' (default "cpu;sim")
CXX             the C++ compiler (g++ 9 or newer, or clang++)
CMAKE_ARGS      further arguments for CMake
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
#: Folder at the top of the repository → the package it is imported as.
MAPPED = {"backends": "accel.backends", "storage": "accel.storage"}
TARGETS = os.environ.get("ACCEL_TARGETS", "cpu;sim")


def generator() -> list[str]:
    """Ninja where its wheel is installed (an isolated build brings it): faster than make, and without needing it."""
    try:
        import ninja
    except ImportError:
        return []
    return ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR) / 'ninja'}"]


class NativeModule(Extension):
    """A module that CMake builds; `target` is its CMake target."""

    def __init__(self, name: str, target: str) -> None:
        super().__init__(name, sources=[])
        self.target = target


class CMakeBuild(build_ext):
    """One CMake project for all modules; each lands where setuptools expects it."""

    def run(self) -> None:
        # Not build_temp, which is a new folder for each editable install: here a second build compiles what changed.
        # A folder cannot change its generator or its compiler, so those are part of its name.
        traits = [
            sys.implementation.cache_tag,
            *(["ninja"] if generator() else []),
            Path(os.environ.get("CXX", "")).name,
        ]
        self.build_root = ROOT / "build" / "-".join(["cmake", *filter(None, traits)])
        self.output = self.build_root / "out"
        self._configure()
        super().run()

    def _configure(self) -> None:
        arguments = [
            f"-DPython3_EXECUTABLE={sys.executable}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DACCEL_TARGETS={TARGETS}",
            f"-DACCEL_OUTPUT={self.output}",
            *generator(),
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        self.build_root.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cmake", "-S", str(ROOT), "-B", str(self.build_root), *arguments], check=True)

    def build_extension(self, ext: Extension) -> None:
        if not isinstance(ext, NativeModule):
            super().build_extension(ext)
            return
        command = ["cmake", "--build", str(self.build_root), "--target", ext.target, "--parallel"]
        subprocess.run([*command, str(len(os.sched_getaffinity(0)))], check=True)
        destination = Path(self.get_ext_fullpath(ext.name)).resolve()
        destination.parent.mkdir(parents=True, exist_ok=True)
        relative = Path(*ext.name.split(".")[:-1])
        for folder, package in MAPPED.items():
            if ext.name.startswith(package + "."):
                relative = Path(folder, *ext.name.removeprefix(package + ".").split(".")[:-1])
        built = self.output / relative / destination.name
        if built != destination:
            self.copy_file(str(built), str(destination))


def packages() -> tuple[list[str], dict[str, str]]:
    """All packages, and where those live that are mapped."""
    names = ["accel", *(f"accel.{name}" for name in find_packages("accel"))]
    folders = {}
    for folder, package in MAPPED.items():
        folders[package] = folder
        names += [package, *(f"{package}.{name}" for name in find_packages(folder))]
    return names, folders


names, folders = packages()
setup(
    packages=names,
    package_dir=folders,
    ext_modules=[
        NativeModule("accel._core", "_core"),
        *(NativeModule(f"accel.backends.{name}._native", f"_{name}_native") for name in TARGETS.split(";") if name),
    ],
    cmdclass={"build_ext": CMakeBuild},
)
