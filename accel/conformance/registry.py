"""The cases of the suite, and the sections they belong to.

A case is a function that takes a :class:`~accel.conformance.context.Context` and returns when the device keeps a
promise;
its name says which, its docstring draws the queues. It raises ``Broken`` (``context.check``, ``context.raises``) or
anything else when the device does not::

    @case("streams", needs=("gate",))
    def runs_in_submission_order(context: Context) -> None:
        '''q1 = [gate, 0, 1, ...]'''
        ...

What a device cannot do is no way round a case. ``needs`` names capabilities: where one of them is NONE the case does
not
apply, and the section ``capabilities`` demands that the call raises Unsupported. A backend may exclude a case with a
written reason, or expect it to fail; an expected failure that passes fails the run, so that the list stays true.

Invariants: ids are unique and stable ("section/name"). A section that ran fewer cases than its minimum fails: a backend
that can nothing does not pass.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from accel.errors import InvalidArgument

if TYPE_CHECKING:
    from accel.conformance.context import Context

__all__ = ["SECTIONS", "Case", "Expectations", "Section", "all_cases", "case", "select"]


@dataclass(frozen=True)
class Section:
    """A group of cases. `minimum`: how many of them must have run. `rung`: whether it is a rung of the bring-up
    ladder."""

    name: str
    title: str
    minimum: int
    rung: bool = True


#: In the order in which a backend is brought up: each section uses only what the ones before it proved.
SECTIONS: Final[tuple[Section, ...]] = (
    Section("probe", "what the probe says", 4),
    Section("device", "opening, naming, closing", 5),
    Section("memory", "tensors, views and memory information", 4),
    Section("copies", "copies and fills", 6),
    Section("streams", "streams and gates", 5),
    Section("events", "events", 7),
    Section("ordering", "what is and is not ordered", 2),
    Section("faults", "errors of arguments and of queued work", 6),
    Section("capabilities", "each claim, both ways", 8, rung=False),
    Section("ops", "every op against its reference", 400),
    Section("layout", "KV pages in both orders", 2),
    Section("swap", "KV pages between device and host", 4),
    Section("end", "threads, closing, leaks", 3, rung=False),
    Section("support", "the table of implementations", 2, rung=False),
)


@dataclass(frozen=True)
class Case:
    """One promise. `needs` are fields of Capabilities; `seed` makes its random values."""

    section: str
    name: str
    run: Callable[[Context], None]
    needs: tuple[str, ...] = ()
    proves: str = ""

    @property
    def id(self) -> str:
        return f"{self.section}/{self.name}"


@dataclass(frozen=True)
class Expectations:
    """What a backend's authors know of it: case id -> the written reason.

    Args:
        exclusions: not run at all.
        failures: run, and expected to fail; one that passes fails the run.
    """

    exclusions: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)

    def check(self, known: set[str]) -> None:
        """Raise InvalidArgument for an entry without a reason, or for no case."""
        for name, entries in (("exclusions", self.exclusions), ("failures", self.failures)):
            for id_, reason in entries.items():
                if id_ not in known:
                    raise InvalidArgument(f"{name} of the backend name {id_!r}, which is no case", hint="see --list")
                if not reason.strip():
                    raise InvalidArgument(f"{name} of the backend give no reason for {id_!r}")


_CASES: dict[str, Case] = {}
_BY_NAME: Final = {section.name: section for section in SECTIONS}


def add(new: Case) -> None:
    """Register a case; a second one of the same id, or an unknown section, is a programming error."""
    if new.section not in _BY_NAME:
        raise ValueError(f"there is no section {new.section!r}")
    if new.id in _CASES:
        raise ValueError(f"case {new.id!r} is defined twice")
    _CASES[new.id] = new


def case(
    section: str, *, needs: tuple[str, ...] = ()
) -> Callable[[Callable[[Context], None]], Callable[[Context], None]]:
    """Register the decorated function."""

    def register(run: Callable[[Context], None]) -> Callable[[Context], None]:
        add(Case(section, run.__name__, run, needs, (run.__doc__ or "").strip()))
        return run

    return register


def all_cases() -> list[Case]:
    """Every case, by section. Imports the sections on first use."""
    for section in SECTIONS:
        importlib.import_module(f"accel.conformance.sections.{section.name}")
    order = [section.name for section in SECTIONS]
    return sorted(_CASES.values(), key=lambda item: order.index(item.section))


def select(patterns: list[str]) -> list[Case]:
    """The cases whose section or id one of `patterns` names; an id may end in ``*``. All of them without patterns.

    Raises:
        InvalidArgument: a pattern that fits nothing.
    """
    found: dict[str, Case] = {}
    every = all_cases()
    for pattern in patterns:
        fits = [
            item
            for item in every
            if pattern in (item.section, item.id) or (pattern.endswith("*") and item.id.startswith(pattern[:-1]))
        ]
        if not fits:
            raise InvalidArgument(
                f"no case or section is called {pattern!r}",
                hint=f"sections: {', '.join(_BY_NAME)}; cases: accel conformance --list",
            )
        found.update((item.id, item) for item in fits)
    return [item for item in every if item.id in found] if patterns else every
