"""Who really made a library that has a CUDA or HIP name.

Kunlun's XRE and Iluvatar's CoreX install ``libcudart`` and ``libcuda.so.1`` under NVIDIA's sonames, and Hygon's DTK
has a layer with those names too: that such a name can be loaded says nothing about the vendor. It is decided here,
from the file behind the links, without loading it: loading a driver library has side effects (it may create the one
context the vendor allows, or bring a second copy into the process).

Signs, strongest first: the file's own name, the SDK folder it lies in, names of the vendor's other libraries among its
first bytes (a copy made without links keeps its DT_NEEDED and soname), the vendor's other libraries beside it.

Sources: public P800 field reports (``libcudart.so.12.9.1.kunlun``, ``libxpucuda.so.515.58.kunlun``,
/usr/local/xcudart), FastDeploy and FlagCX build files (/usr/local/corex, /opt/dtk), public DTK notes
(``libgalaxyhip.so.5``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from accel.backends._system import Library, System

__all__ = ["AMD", "DCU", "ILUVATAR", "XPU", "maker"]

XPU, ILUVATAR, DCU, AMD = "Kunlun", "Iluvatar", "Hygon", "AMD"

#: How far into a file to look for names. The dynamic string table lies near the front of a shared library.
_SCAN_BYTES = 1 << 20
_SYSTEM_DIR = re.compile(r"(?:/usr(?:/local)?)?/lib(?:64|/[\w-]+-linux-gnu)?")


@dataclass(frozen=True)
class _Signs:
    file: re.Pattern[str]
    folder: re.Pattern[str]
    content: tuple[bytes, ...]
    beside: tuple[str, ...]
    home: tuple[str, ...]


# A folder counts only as the SDK's own lib folder: a user or a project may be called "xpu" or "dtk" as well.
_MAKERS: dict[str, _Signs] = {
    XPU: _Signs(
        file=re.compile(r"kunlun|xpucuda|libxpu"),
        folder=re.compile(r"/(?:xpu|xcudart|xre)(?:[-_][^/]*)?/(?:so|lib|lib64)$"),
        content=(b"libxpucuda", b"libxpurt", b".kunlun"),
        beside=("libxpurt.so", "libxpuml.so", "libxpucuda.so"),
        home=("XRE_PATH",),
    ),
    ILUVATAR: _Signs(
        file=re.compile(r"corex|iluvatar"),
        folder=re.compile(r"/(?:corex|iluvatar)(?:-[^/]*)?/(?:lib|lib64)$"),
        content=(b"iluvatar", b"/corex/"),
        beside=("libixml.so", "libcuinfer.so"),
        home=("COREX_HOME",),
    ),
    DCU: _Signs(
        file=re.compile(r"galaxyhip"),
        folder=re.compile(r"/(?:dtk(?:-[^/]*)?|hyhal)/(?:[^/]+/){0,2}(?:lib|lib64)$"),
        content=(b"libgalaxyhip",),
        beside=("libgalaxyhip.so", "libgalaxyhip.so.5"),
        home=("DTK_ROOT", "DTK_HOME"),
    ),
    AMD: _Signs(
        file=re.compile(r"(?!)"),
        folder=re.compile(r"/rocm(?:-[^/]*)?/(?:[^/]+/){0,2}(?:lib|lib64)$"),
        content=(),
        beside=(),
        home=(),
    ),
}


def maker(system: System, library: Library) -> str:
    """`XPU`, `ILUVATAR`, `DCU` or `AMD`; empty where nothing speaks against the vendor whose name the library has."""
    folder, _, file = library.real.rpartition("/")
    for name, signs in _MAKERS.items():
        if signs.file.search(file) or _in_sdk(system, signs, folder):
            return name
    head = system.read_bytes(library.real, _SCAN_BYTES)
    for name, signs in _MAKERS.items():
        if any(mark in head for mark in signs.content):
            return name
    # In a system folder everybody's libraries lie side by side, and neighbours say nothing.
    if _SYSTEM_DIR.fullmatch(folder) is None:
        for name, signs in _MAKERS.items():
            if any(system.exists(f"{folder}/{neighbour}") for neighbour in signs.beside):
                return name
    return ""


def _in_sdk(system: System, signs: _Signs, folder: str) -> bool:
    homes = (system.env(variable) or "" for variable in signs.home)
    return signs.folder.search(folder) is not None or any(
        home.startswith("/") and f"{folder}/".startswith(system.resolve(home).rstrip("/") + "/") for home in homes
    )
