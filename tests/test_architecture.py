"""The architecture as rules that a machine checks (docs/architecture.md says why they are as they are).

Each rule is a function from a source tree to complaints. It is run on this repository, where it must find nothing, and
on trees with one planted violation, which it must find: a rule that cannot fail proves nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Folder at the top of the repository → the package it is imported as (setup.py).
PACKAGES = {"accel": "accel", "backends": "accel.backends", "storage": "accel.storage"}

#: Part of the package → the parts it may import. A part is a module or sub-package of accel; "" is accel itself.
CONTRACT = {"errors", "arguments", "dtypes", "backend", "_core"}
ARROWS: dict[str, set[str]] = {
    "": set(),
    "errors": set(),
    "arguments": {"errors"},
    "dtypes": {"errors"},
    "backend": {"errors", "dtypes"},
    "sampling_params": {"errors", "arguments"},
    "visible": CONTRACT,
    "runtime_device": CONTRACT,
    "registry": CONTRACT,
    "doctor": CONTRACT | {"registry"},
    "ops": CONTRACT,
    "cache": CONTRACT,
    "models": CONTRACT,
    "runner": CONTRACT | {"sampling_params", "cache", "ops", "models"},
    "scheduler": CONTRACT | {"sampling_params", "cache", "runner"},
    "engine": CONTRACT | {"registry", "sampling_params", "cache", "ops", "models", "runner", "scheduler"},
    "conformance": CONTRACT | {"", "registry", "cache", "ops", "runner"},
    "cli": CONTRACT | {"", "registry", "doctor", "sampling_params", "ops", "models", "conformance", "engine"},
    "backends": CONTRACT | {"ops", "runtime_device", "visible"},
    "storage": CONTRACT | {"cache.pages"},
}
#: Modules that may import more than their part.
EXTRA = {"accel.models.decoder": {"cache.pages", "ops"}, "accel.models.loader": {"cache.pages", "ops"}}

#: Words of vendors, as parts of identifiers and strings. Outside backends/ no code knows them.
VENDOR = re.compile(
    r"nvidia|cuda\w*|cudart|nvcc|rocm|hip|hipcc|hygon|dcu|dtk|kunlun\w*|xpu|xre|iluvatar|corex|ascend|npu|amdgpu|musa|metax|cambricon|mlu"
)
#: The one file a backend asks the framework in.
BINDING = "paddle_binding"
MAX_LINES = 600
#: Headers of vector intrinsics → the files that may include them, each compiled only where its instructions exist.
INTRINSICS = {
    r"immintrin\.h|[xengtps]mmintrin\.h": r"csrc/cpu/simd_avx\w*\.h|csrc/core/sha256_x86\.cc",
    r"arm_neon\.h|arm_sve\.h": r"csrc/cpu/simd_neon\.h",
}


@dataclass(frozen=True)
class Module:
    """One parsed file."""

    path: str
    name: str
    tree: ast.Module

    @property
    def part(self) -> str:
        return [*self.name.split("."), ""][1]

    @property
    def in_backends(self) -> bool:
        return self.part == "backends"


def modules(root: Path) -> Iterator[Module]:
    for folder, package in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            inner = path.relative_to(root / folder).with_suffix("").parts
            name = ".".join((package, *(part for part in inner if part != "__init__")))
            yield Module(str(path.relative_to(root)), name, ast.parse(path.read_text(encoding="utf-8"), str(path)))


def code_of(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but docstrings (any string that is a statement) and what only a type checker reads."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from (node for statement in child.orelse for node in (statement, *code_of(statement)))
        elif not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            yield child
            yield from code_of(child)


def imports_of(module: Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import; ``from a import b`` gives a.b."""
    for node in code_of(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.name if module.path.endswith("__init__.py") else module.name.rpartition(".")[0]
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def arrows(root: Path) -> Iterator[str]:
    """Dependencies point one way."""
    for module in modules(root):
        allowed = ARROWS.get(module.part)
        if allowed is None:
            yield f"{module.path}: the part {module.part!r} has no line in ARROWS"
            continue
        allowed = allowed | {module.part} | EXTRA.get(module.name, set())
        for line, target in imports_of(module):
            if target.split(".")[0] != "accel":
                continue
            inner = target.split(".")[1:]
            # `import accel` and names that accel itself defines are the package.
            part = inner[0] if inner and inner[0] in ARROWS.keys() | CONTRACT else ""
            if module.part == "" and part == "":
                continue
            if part not in allowed and not any(".".join(inner).startswith(other) for other in allowed if "." in other):
                yield f"{module.path}:{line}: {module.part or 'accel'} must not import {target}"


def one_backend_knows_no_other(root: Path) -> Iterator[str]:
    """A backend's folder imports itself and what all backends share (``accel.backends._*``)."""
    for module in modules(root):
        inner = module.name.split(".")[2:]
        if not module.in_backends or not inner:
            continue
        for line, target in imports_of(module):
            parts = target.split(".")
            if (
                parts[:2] == ["accel", "backends"]
                and len(parts) > 2
                and not parts[2].startswith("_")
                and parts[2] != inner[0]
            ):
                yield f"{module.path}:{line}: backend {inner[0]} must not import {target}"


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", text).lower()) if word]


def no_vendor_outside_backends(root: Path) -> Iterator[str]:
    """No vendor's name in code outside backends/: not in identifiers, not in strings."""
    for module in modules(root):
        if module.in_backends:
            continue
        for node in code_of(module.tree):
            texts = [
                getattr(node, field)
                for field in ("id", "attr", "name", "arg", "value", "module")
                if isinstance(getattr(node, field, None), str)
            ]
            for text in texts:
                found = [word for word in _words(text) if VENDOR.fullmatch(word)]
                if found:
                    yield f"{module.path}:{getattr(node, 'lineno', 0)}: names a vendor: {found[0]}"


def no_build_questions_outside_backends(root: Path) -> Iterator[str]:
    """Which device the framework was built for is a backend's business."""
    for module in modules(root):
        if module.in_backends:
            continue
        for node in code_of(module.tree):
            if isinstance(node, ast.Attribute):
                dotted = ast.unparse(node)
                if node.attr.startswith(("is_compiled_with_", "is_cuda", "is_xpu")) or dotted.startswith(
                    "paddle.device"
                ):
                    yield f"{module.path}:{node.lineno}: asks the framework about devices: {dotted}"
        for line, target in imports_of(module):
            if target.startswith("paddle.device"):
                yield f"{module.path}:{line}: asks the framework about devices: {target}"


def framework_only_in_bindings(root: Path) -> Iterator[str]:
    """Only a backend's paddle_binding.py imports the framework."""
    for module in modules(root):
        if module.in_backends and module.name.endswith(f".{BINDING}"):
            continue
        for line, target in imports_of(module):
            if target.split(".")[0] == "paddle":
                yield f"{module.path}:{line}: imports {target}"


def no_asserts(root: Path) -> Iterator[str]:
    """A check that -O removes is no check."""
    for module in modules(root):
        for node in code_of(module.tree):
            if isinstance(node, ast.Assert):
                yield f"{module.path}:{node.lineno}: assert"


_BROAD = {"Exception", "BaseException"}


def _suppresses_all(call: ast.Call) -> bool:
    return ast.unparse(call.func).endswith("suppress") and bool(_BROAD & {ast.unparse(kind) for kind in call.args})


def no_swallowed_errors(root: Path) -> Iterator[str]:
    """A handler for anything must raise, or use what it caught."""
    for module in modules(root):
        for node in code_of(module.tree):
            if isinstance(node, ast.ExceptHandler):
                kinds = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else _BROAD
                inside = [inner for statement in node.body for inner in ast.walk(statement)]
                raises = any(isinstance(inner, ast.Raise) for inner in inside)
                uses = any(isinstance(inner, ast.Name) and inner.id == node.name for inner in inside)
                if node.type is None or (kinds & _BROAD and not raises and not uses):
                    yield f"{module.path}:{node.lineno}: swallows errors"
            elif isinstance(node, ast.Call) and _suppresses_all(node):
                yield f"{module.path}:{node.lineno}: swallows errors"


def no_pickle(root: Path) -> Iterator[str]:
    """Nothing that is read can run code."""
    for module in modules(root):
        for line, target in imports_of(module):
            if target.split(".")[0] in ("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"):
                yield f"{module.path}:{line}: imports {target}"


def no_sleep(root: Path) -> Iterator[str]:
    """Whoever waits, waits for something."""
    for module in modules(root):
        for node in code_of(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep", "asyncio.sleep"):
                yield f"{module.path}:{node.lineno}: sleeps"


def short_files(root: Path) -> Iterator[str]:
    """A file has one subject."""
    for folder in (*PACKAGES, "csrc"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".pyi", ".cc", ".h", ".inl"):
                count = len(path.read_text(encoding="utf-8").splitlines())
                if count > MAX_LINES:
                    yield f"{path.relative_to(root)}: {count} lines; the limit is {MAX_LINES}"


def guarded_intrinsics(root: Path) -> Iterator[str]:
    """Vector intrinsics only in the files of their instruction set."""
    for path in sorted((root / "csrc").rglob("*")):
        if path.suffix not in (".cc", ".h", ".inl"):
            continue
        name = path.relative_to(root).as_posix()
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for header, files in INTRINSICS.items():
                if re.match(rf"\s*#\s*include\s*[<\"]({header})[>\"]", text) and not re.fullmatch(files, name):
                    yield f"{name}:{number}: includes {text.split()[-1]}"


def native_code_knows_no_framework(root: Path) -> Iterator[str]:
    """csrc needs no header of a framework; core and runtime none of Python either."""
    for path in sorted((root / "csrc").rglob("*")):
        if path.suffix not in (".cc", ".h", ".inl"):
            continue
        name = path.relative_to(root).as_posix()
        banned = r"paddle/|torch/|ATen/" + ("" if name.startswith("csrc/bindings/") else r"|pybind11/|Python\.h|numpy/")
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.match(rf"\s*#\s*include\s*[<\"]({banned})", text):
                yield f"{name}:{number}: includes {text.split()[-1]}"


def folders_introduce_themselves(root: Path) -> Iterator[str]:
    """A folder's ``__init__.py`` says what lives there."""
    for module in modules(root):
        if module.path.endswith("__init__.py") and ast.get_docstring(module.tree) is None:
            yield f"{module.path}: has no docstring"


Rule = Callable[[Path], Iterator[str]]

#: Rule → trees it must complain about: path → text.
VIOLATIONS: dict[Rule, list[dict[str, str]]] = {
    arrows: [
        {"accel/cache/pages.py": "from accel.engine import Engine"},
        {"accel/cache/pages.py": "from accel import engine"},
        {"accel/cache/pages.py": "from ..engine import Engine"},
        {"accel/cache/pages.py": "def f():\n    import accel.scheduler.policy"},
        {"accel/models/config.py": "from accel.cache.pages import KVLayout"},
        {"accel/engine.py": "from accel.backends.cpu.backend import CpuBackend"},
        {"accel/runner/runner.py": "import accel"},
        {"accel/backend.py": "from accel.ops.table import OpTable"},
        {"accel/__init__.py": "from accel.backend import Device"},
        {"backends/cpu/backend.py": "from accel.engine import Engine"},
        {"storage/file.py": "from accel.cache.pool import Pool"},
        {"storage/file.py": "from accel.runner.plan import StepPlan"},
        {"accel/surprise.py": "x = 1"},
    ],
    one_backend_knows_no_other: [{"backends/gpu/backend.py": "from accel.backends.cpu import ops"}],
    no_vendor_outside_backends: [
        {"accel/engine.py": "if name == 'cuda:0': pass"},
        {"accel/engine.py": "def is_xpu(): ..."},
        {"accel/engine.py": "x = device.HygonDCU"},
        {"storage/file.py": "ROCM_PATH = 1"},
        {"accel/engine.py": "f(nvidia=1)"},
    ],
    no_build_questions_outside_backends: [
        {"accel/engine.py": "framework.is_compiled_with_custom_device('x')"},
        {"accel/engine.py": "paddle.device.get_device()"},
        {"accel/engine.py": "from paddle.device import synchronize"},
    ],
    framework_only_in_bindings: [
        {"accel/engine.py": "import paddle"},
        {"accel/engine.py": "def f():\n    from paddle import Tensor"},
        {"backends/cpu/backend.py": "import paddle"},
        {"accel/paddle_binding.py": "import paddle"},
    ],
    no_asserts: [{"accel/engine.py": "assert x"}, {"backends/cpu/ops.py": "def f():\n    assert x, 'y'"}],
    no_swallowed_errors: [
        {"accel/engine.py": "try:\n    f()\nexcept:\n    raise"},
        {"accel/engine.py": "try:\n    f()\nexcept Exception:\n    pass"},
        {"storage/file.py": "try:\n    f()\nexcept (OSError, BaseException) as error:\n    x = None"},
        {"storage/file.py": "with contextlib.suppress(Exception):\n    f()"},
    ],
    no_pickle: [{"storage/file.py": "import pickle"}, {"accel/engine.py": "from pickle import loads"}],
    no_sleep: [{"accel/engine.py": "time.sleep(1)"}, {"storage/file.py": "from time import sleep\nsleep(1)"}],
    short_files: [{"accel/engine.py": "\n" * (MAX_LINES + 1)}, {"csrc/core/pool.cc": "\n" * (MAX_LINES + 1)}],
    guarded_intrinsics: [
        {"csrc/cpu/linear.inl": "#include <immintrin.h>"},
        {"csrc/core/hash.cc": "#include <emmintrin.h>"},
        {"csrc/cpu/simd_avx2.h": "#include <arm_neon.h>"},
    ],
    native_code_knows_no_framework: [
        {"csrc/bindings/view.cc": '#include "paddle/extension.h"'},
        {"csrc/runtime/host.cc": "#include <pybind11/pybind11.h>"},
    ],
    folders_introduce_themselves: [{"accel/cache/__init__.py": "x = 1"}],
}

#: What the rules must let pass, all in one tree.
HARMLESS = {
    "accel/engine.py": '"""On cuda and rocm alike."""\n'
    "from accel import registry\nfrom accel.cache.pages import KVLayout\n"
    "if TYPE_CHECKING:\n    import paddle\n    from accel.backends.cpu.backend import CpuDevice\n"
    "try:\n    f()\nexcept OSError:\n    pass\ntry:\n    f()\nexcept Exception as error:\n    log(error)\n",
    "accel/models/decoder.py": "from accel.cache.pages import KVPool\nfrom accel.ops.table import OpTable",
    "accel/cli/app.py": "import accel\nfrom accel.engine import Engine\nchip = relationship = 1",
    "backends/cpu/paddle_binding.py": "import paddle\npaddle.device.get_device()",
    "backends/gpu/backend.py": "from accel.backends._system import System\nCUDA = 'cuda'",
    "storage/file.py": "from accel.cache.pages import KVLayout\nfrom accel.errors import Timeout",
    "csrc/cpu/simd_avx2.h": "#include <immintrin.h>",
    "csrc/bindings/view.cc": "#include <pybind11/pybind11.h>",
}


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize("rule", VIOLATIONS, ids=lambda rule: rule.__name__)
def test_the_repository_keeps_the_rule(rule: Rule) -> None:
    complaints = list(rule(ROOT))
    assert not complaints, f"{rule.__doc__}\n" + "\n".join(complaints)


@pytest.mark.parametrize(
    ("rule", "files"),
    [(rule, files) for rule, trees in VIOLATIONS.items() for files in trees],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_rule_finds_a_planted_violation(rule: Rule, files: dict[str, str], tmp_path: Path) -> None:
    complaints = list(rule(plant(tmp_path, files)))
    assert len(complaints) >= 1
    assert complaints[0].startswith(next(iter(files)))


@pytest.mark.parametrize("rule", VIOLATIONS, ids=lambda rule: rule.__name__)
def test_the_rule_lets_what_is_right_pass(rule: Rule, tmp_path: Path) -> None:
    assert list(rule(plant(tmp_path, HARMLESS))) == []


def test_every_part_has_a_line_of_arrows() -> None:
    parts = {module.part for module in modules(ROOT)}
    assert parts <= ARROWS.keys()
    assert len(parts) > 10, "the walk found the packages"
