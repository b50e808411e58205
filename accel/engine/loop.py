"""The engine's loop: one thread that schedules, runs and delivers.

::

    submit, abort (any thread)                              loop thread
        │ condition                    ┌──────────────────────────────────────────────────────────────┐
        └──────────────> scheduler ──> │ schedule ─> Runner.execute ─> in flight (<= depth + 1) ─> collect │
                                       │                                commit ─> Live ─> Channel ────────┼──> streams
                                       └──────────────────────────────────────────────────────────────┘

Invariants: only this thread touches the runner. Whatever a step raises ends the requests that were in it, and the loop
goes on; what ends the loop ends every request. No lock is held while a step runs or is waited for.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from accel.engine.channel import Channel
from accel.engine.live import Live
from accel.engine.outputs import RequestOutput, TokenOutput
from accel.errors import AccelError, DeviceLost, EngineClosed, Overloaded, Timeout
from accel.runner.plan import PendingStep, StepPlan
from accel.runner.runner import Runner
from accel.scheduler.request import EndReason
from accel.scheduler.scheduler import Scheduler, Update

__all__ = ["EngineLoop", "Observer"]

#: Where nothing can be scheduled though requests wait, their blocks are held by others, whose return nobody announces.
_RECHECK_SECONDS = 0.05
#: An idle loop looks at its state this often, should a wake-up have been lost.
_IDLE_SECONDS = 60.0


class Observer(Protocol):
    """What the loop tells whoever measures. Called on the loop thread; must not raise."""

    def step(self, plan: StepPlan) -> None: ...
    def ended(self, output: RequestOutput) -> None: ...


class EngineLoop:
    """Drives `runner` with the plans of `scheduler` until it is closed.

    Args:
        step_timeout: seconds a step may take; one that takes longer is taken for a device that hangs, and ends
            the loop.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler, *, step_timeout: float, observer: Observer) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._step_timeout = step_timeout
        self._observer = observer
        self._changed = threading.Condition()
        self._lives: dict[int, Live] = {}
        self._hungry: weakref.WeakSet[Channel[TokenOutput]] = weakref.WeakSet()
        self._forgotten: deque[Sequence[Live]] = deque()
        self._pending: deque[tuple[StepPlan, PendingStep]] = deque()
        self._closing: AccelError | None = None
        self._process = os.getpid()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="accel-engine", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closing is not None

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a forked process, where its thread does not run and its locks may be held."""
        return os.getpid() != self._process

    @property
    def on_its_thread(self) -> bool:
        """Whether the caller is the loop's own thread, which can wait for nothing here."""
        return threading.current_thread() is self._thread

    def check_process(self) -> None:
        """Raise EngineClosed in a forked process."""
        if self.forked:
            raise EngineClosed(
                f"the engine belongs to process {self._process}, and this is its fork {os.getpid()}",
                hint="make an engine in each process",
            )

    @property
    def live(self) -> int:
        """Requests that have not ended."""
        return len(self._lives)

    def submit(self, live: Live, hungry: Channel[TokenOutput] | None = None) -> None:
        """Queue a request; once only, and not one that has ended.

        Args:
            hungry: is poked when requests may be submitted again, where too many wait.

        Raises:
            EngineClosed: the loop has ended.
            InvalidRequest: the pool can never hold it.
            Overloaded: too many wait.
        """
        self.check_process()
        with self._changed:
            if self._closing is not None:
                raise self._closing.again()
            if live.done or live.submitted:  # aborted before its turn, or its stream was interrupted
                return
            # Before the scheduler has it, because the loop may run it at once.
            self._lives[live.request.number] = live
            try:
                self._scheduler.add(live.request)
            except BaseException as error:
                del self._lives[live.request.number]
                if isinstance(error, Overloaded) and hungry is not None:
                    # Here and not later: room that comes now is announced once this lock is free.
                    self._hungry.add(hungry)
                raise
            live.submitted = True
            self._changed.notify_all()

    def abort(self, live: Live) -> bool:
        """End a request. Its stream gets its output, finish_reason "abort". False when it had ended already."""
        if self.forked:  # its request is the other process's
            return False
        with self._changed:
            if not live.submitted:
                # Nobody else knows it yet.
                if live.done:
                    return False
                live.end(EndReason.ABORT)
                return True
            aborted = self._scheduler.abort(live.request)
            self._changed.notify_all()
            return aborted

    def wait_idle(self, timeout: float) -> None:
        """Block until every request has ended and its last step is back. Raises Timeout, EngineClosed in a fork."""
        self.check_process()
        with self._changed:
            if not self._changed.wait_for(lambda: self._stopped.is_set() or self._idle(), timeout):
                raise Timeout(f"{len(self._lives)} requests had not ended after {timeout:g} s", timeout=timeout)

    def refuse(self, live: Live, error: AccelError) -> None:
        """End a request that could not be submitted, unless it was aborted meanwhile."""
        with self._changed:
            if not live.done and not live.submitted:
                live.end(EndReason.ERROR, error)

    def forget(self, lives: Sequence[Live]) -> None:
        """End the requests of a stream that nobody has any more, at the loop's next turn: as long as one of them lives,
        there is one. Takes no lock, because the collector calls it, on any thread."""
        self._forgotten.append(lives)

    def leave(self) -> None:
        """Take no more requests. Takes no lock, for the same reason; `close` does the rest."""
        if self._closing is None:
            self._closing = _closed()

    def close(self, timeout: float) -> None:
        """End what runs with EngineClosed, and the thread. Idempotent; not from the loop's own thread.

        Raises:
            Timeout: the step that runs did not end in `timeout` seconds. All requests have ended nevertheless.
        """
        self._end_with(_closed())
        if not self._stopped.wait(timeout):
            self._fail_all()
            raise Timeout(
                f"the step that runs did not end in {timeout:g} s; its thread is left behind",
                hint="the device hangs; end the process",
                timeout=timeout,
            )

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._turn()
        except BaseException as error:  # a defect of ours, or a step ends threads: everyone is told, nobody waits
            self._end_with(_typed(error, "the engine's loop failed", hint="make a new engine"))
        finally:
            try:
                self._drain()
            finally:
                self._fail_all()
                self._stopped.set()
                with self._changed:
                    self._changed.notify_all()

    def _wait_for_work(self) -> bool:
        """Block until there is something to do; False when the loop is to end."""
        with self._changed:
            if self._closing is None and self._idle():
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closing is not None or not self._idle(), _IDLE_SECONDS)
            return self._closing is None

    def _idle(self) -> bool:
        return not self._pending and not self._lives and self._scheduler.idle

    def _turn(self) -> None:
        """Plan a step and launch it, if there is one; take the oldest output, if it is time."""
        while self._forgotten:
            for live in self._forgotten.popleft():
                if live.submitted:
                    self._scheduler.abort(live.request)
        plan = self._scheduler.schedule()
        if plan is not None:
            self._launch(plan)
        elif self._pending:
            self._collect()
        self._deliver_ended()
        self._feed()
        if plan is None and not self._pending and not self._scheduler.idle:
            with self._changed:
                self._changed.wait(_RECHECK_SECONDS)

    def _launch(self, plan: StepPlan) -> None:
        try:
            pending = self._runner.execute(plan)
        except Exception as error:  # whatever it is, it ends the step and not the engine
            # Those before it were launched well, and may be for others.
            while self._pending:
                self._collect()
            self._failed([plan], error)
            return
        self._observer.step(plan)
        self._pending.append((plan, pending))
        if len(self._pending) > self._scheduler.config.depth:
            self._collect()

    def _collect(self) -> None:
        plan, pending = self._pending.popleft()
        try:
            output = pending.result(self._step_timeout)
        except Timeout as error:
            # The device may still write: nothing of it can be used again.
            self._end_with(error)
            return
        except Exception as error:
            self._failed([plan], error)
            return
        self._dispatch(self._scheduler.commit(output))

    def _failed(self, plans: list[StepPlan], error: Exception) -> None:
        """End the requests of steps that raised, and of those behind them, which the stream skipped."""
        typed = _typed(error, "a step failed")
        plans += [plan for plan, _ in self._pending]
        self._pending.clear()
        try:
            self._runner.recover()
        except AccelError as lost:
            self._end_with(lost)
        for plan in plans:
            self._dispatch(self._scheduler.fail(plan.step, typed))
        if isinstance(error, DeviceLost):
            self._end_with(error)

    def _dispatch(self, updates: Sequence[Update]) -> None:
        last = {update.request.number: index for index, update in enumerate(updates)}
        for index, update in enumerate(updates):
            request = update.request
            live = self._lives.get(request.number)
            if live is None:  # a stop string ended it at an earlier token
                continue
            stopped = live.take(update)
            if stopped:
                self._scheduler.finish(request, EndReason.STOP)
            if update.token is None:
                continue
            final = stopped or (request.ended and last[request.number] == index)
            output = live.send(final=final)
            if output is not None:
                self._forget(live, output)

    def _deliver_ended(self) -> None:
        for request in self._scheduler.drain_ended():
            live = self._lives.get(request.number)
            output = None if live is None else live.end()
            if live is not None and output is not None:
                self._forget(live, output)

    def _forget(self, live: Live, output: RequestOutput) -> None:
        with self._changed:
            self._lives.pop(live.request.number, None)
        self._observer.ended(output)

    def _feed(self) -> None:
        """Tell streams that hold requests back that there may be room."""
        with self._changed:
            hungry = list(self._hungry)
            self._hungry.clear()
        for channel in hungry:
            channel.poke()

    def _end_with(self, error: AccelError) -> None:
        with self._changed:
            if self._closing is None:
                self._closing = error
            self._changed.notify_all()

    def _drain(self) -> None:
        """Steps in flight end before their memory does; nobody wants their outputs any more."""
        while self._pending:
            _, pending = self._pending.popleft()
            try:
                pending.result(self._step_timeout)
            except BaseException as error:  # one more reason to end, which the loop is about to do
                self._end_with(_typed(error, "a step failed"))
        self._scheduler.drop_steps()

    def _fail_all(self) -> None:
        error = self._closing or _closed()
        with self._changed:
            lives = list(self._lives.values())
            self._lives.clear()
            hungry = list(self._hungry)
        for live in lives:
            self._scheduler.abort(live.request, EndReason.ERROR, error)
            output = live.end()
            if output is not None:
                self._observer.ended(output)
        for channel in hungry:
            channel.poke()


def _closed() -> EngineClosed:
    return EngineClosed("the engine was closed", hint="make a new one")


def _typed(error: BaseException, what: str, hint: str = "the requests in it ended; the engine goes on") -> AccelError:
    """`error` itself where it is one of ours, else one of ours that names it."""
    if isinstance(error, AccelError):
        return error
    typed = AccelError(f"{what}: {type(error).__name__}: {error}", hint=hint)
    typed.__cause__ = error
    return typed
