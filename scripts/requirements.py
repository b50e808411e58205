"""Print requirements out of pyproject.toml, one a line, for ``pip install -r``.

Usage: requirements.py GROUP…     GROUP is "build" (of the build itself), "dependencies", or the name of an extra.

An extra that refers to another one of this project ("accel[test]") is followed, so that nothing has to be built to
install what a build needs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10 has no TOML reader of its own, but its pip does
    from pip._vendor import tomli as tomllib

PROJECT_FILE = Path(__file__).resolve().parents[1] / "pyproject.toml"


def requirements(data: dict[str, Any], group: str) -> list[str]:
    """What `group` asks for, references to this project's extras replaced by what they stand for."""
    project = data["project"]
    if group == "build":
        return list(data["build-system"]["requires"])
    if group == "dependencies":
        return list(project["dependencies"])
    found: list[str] = []
    for requirement in project["optional-dependencies"][group]:
        own = re.fullmatch(rf"{re.escape(project['name'])}\[(.+)\]", requirement.replace(" ", ""))
        if own is None:
            found.append(requirement)
        else:
            for name in own[1].split(","):
                found += requirements(data, name)
    return found


def main() -> None:
    data = tomllib.loads(PROJECT_FILE.read_text(encoding="utf-8"))
    for group in sys.argv[1:]:
        print("\n".join(requirements(data, group)))


if __name__ == "__main__":
    main()
