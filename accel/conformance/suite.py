"""Runs cases against one device and says what came of each.

::

    case ── excluded by the backend? ── needs a capability that is NONE? ── run, within a limit ──> outcome
                 EXCLUDED                      NOT_APPLICABLE                 PASSED | FAILED
                                                                              XFAILED | XPASSED where failure is
                                                                              expected

Invariants: a case runs on a device that works: one that is left broken is opened anew before the next. A case that does
not end is a failure, and ends the run, because its thread may still use the device.
"""

from __future__ import annotations

import enum
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from accel.backend import Backend, Device, Support
from accel.conformance.context import SOON, Broken, Context
from accel.conformance.registry import SECTIONS, Case, Expectations, all_cases
from accel.errors import AccelError

__all__ = ["CASE_SECONDS", "Outcome", "Result", "SectionResult", "run", "sections"]

#: A case that runs longer hangs.
CASE_SECONDS: Final = 120.0


class Outcome(enum.Enum):
    """What came of a case. FAILED and XPASSED are red."""

    PASSED = "passed"
    FAILED = "failed"
    XFAILED = "expected failure"
    XPASSED = "unexpected pass"
    EXCLUDED = "excluded"
    NOT_APPLICABLE = "not applicable"

    @property
    def red(self) -> bool:
        return self in (Outcome.FAILED, Outcome.XPASSED)

    @property
    def ran(self) -> bool:
        return self not in (Outcome.EXCLUDED, Outcome.NOT_APPLICABLE)


@dataclass(frozen=True)
class Result:
    """One case. `message` says why, for anything but PASSED."""

    case: Case
    outcome: Outcome
    seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class SectionResult:
    """A section's results. It is good when nothing in it is red and enough of it ran."""

    name: str
    title: str
    results: tuple[Result, ...]
    minimum: int
    rung: bool

    @property
    def ran(self) -> int:
        return sum(result.outcome.ran for result in self.results)

    @property
    def too_few(self) -> bool:
        """Whether fewer ran than must. Expected failures count: somebody looks at them."""
        return self.ran < self.minimum

    @property
    def good(self) -> bool:
        return not self.too_few and not any(result.outcome.red for result in self.results)


def run(
    backend: Backend,
    open_device: Callable[[], Device],
    cases: Sequence[Case],
    *,
    seed: int = 0,
    expectations: Expectations | None = None,
    done: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run `cases` in order.

    Args:
        open_device: opens the device under test; called again after a case that broke it.
        done: called with each result, for progress.

    Raises:
        InvalidArgument: expectations that name no case or give no reason.
        AccelError: the device cannot be opened.
    """
    expectations = expectations or Expectations()
    expectations.check({item.id for item in all_cases()})
    results: list[Result] = []
    device = open_device()
    try:
        for item in cases:
            context = Context(backend, device, open_device, item.id, seed)
            result = _outcome(item, context, expectations)
            results.append(result)
            done(result)
            if result.message.startswith(_HANGS):
                _HELD.append(context)
                break
            # The context holds the case's buffers until the device has passed them.
            if result.outcome.ran and not _works(device):
                device.close()
                device = open_device()
    finally:
        device.close()
    return results


def sections(results: Iterable[Result], *, whole: bool = True) -> list[SectionResult]:
    """`results` by section, in the order of the ladder.

    Args:
        whole: whether every case was to run; else minimums do not apply and sections without a result are left out.
    """
    listed = list(results)
    found = []
    for section in SECTIONS:
        own = tuple(result for result in listed if result.case.section == section.name)
        if own or whole:
            found.append(SectionResult(section.name, section.title, own, section.minimum if whole else 0, section.rung))
    return found


_HANGS: Final = "did not end in"
#: Contexts of cases that hang: their threads may use their buffers for as long as the process lives.
_HELD: list[Context] = []


def _outcome(item: Case, context: Context, expectations: Expectations) -> Result:
    if item.id in expectations.exclusions:
        return Result(item, Outcome.EXCLUDED, message=expectations.exclusions[item.id])
    missing = [name for name in item.needs if getattr(context.device.capabilities, name) is Support.NONE]
    if missing:
        return Result(item, Outcome.NOT_APPLICABLE, message=f"{', '.join(missing)} is none here")
    started = time.perf_counter()
    message = _run(item, context)
    seconds = time.perf_counter() - started
    expected = expectations.failures.get(item.id)
    if expected is not None:
        if message is None:
            return Result(item, Outcome.XPASSED, seconds, f"passes, though its failure is expected: {expected}")
        return Result(item, Outcome.XFAILED, seconds, f"{expected} ({message})")
    return Result(item, Outcome.PASSED if message is None else Outcome.FAILED, seconds, message or "")


def _run(item: Case, context: Context) -> str | None:
    """What went wrong, or None. On a thread of its own, so that a case that hangs does not take us along."""
    failures: list[str] = []

    def body() -> None:
        try:
            item.run(context)
        except Broken as error:
            failures.append(str(error))
        except AccelError as error:
            failures.append(f"{type(error).__name__}: {error}")
        except Exception as error:  # whatever a backend raises is its failure, not ours
            where = traceback.extract_tb(error.__traceback__)[-1]
            failures.append(f"{type(error).__name__}: {error} (line {where.lineno} of {where.name})")

    thread = threading.Thread(target=body, name=item.id, daemon=True)
    thread.start()
    thread.join(CASE_SECONDS)
    if thread.is_alive():
        return f"{_HANGS} {CASE_SECONDS:g} s; the run ends here, for the case may still use the device"
    return failures[0] if failures else None


def _works(device: Device) -> bool:
    try:
        device.current_stream().reset()
        device.synchronize(SOON)
    except AccelError:
        return False
    return True
