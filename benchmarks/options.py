"""(not a benchmark) The options they share."""

from __future__ import annotations

import argparse

__all__ = ["parser"]


def parser(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """A parser with ``--json`` and ``--rounds``; its help is the module's docstring."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="print the JSON document described in benchmarks/README.md")
    made.add_argument(
        "--rounds", type=int, default=rounds, help="measurements of each; the median counts (%(default)s)"
    )
    return made
