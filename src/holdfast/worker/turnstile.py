"""The turnstile: lets runs of tasks with a breaker through, or sends them back, and says what came of those that pass.

A closed breaker costs a look at what this process knows. Only a run that may be a probe waits for the store's answer,
in its slot; when one was refused, the others need not ask. A run that is sent back has not started, and is not charged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from typing import Final
from uuid import UUID

from holdfast import lifecycle
from holdfast.breaker import BreakerReport, Finding, Pass, Wait
from holdfast.engine import Engine
from holdfast.errors import HoldfastError
from holdfast.guard import Breaker
from holdfast.job import ClaimedJob, Failure, FailureKind
from holdfast.lifecycle import Transition
from holdfast.outcome import Outcome
from holdfast.store import HintKind
from holdfast.worker import findings
from holdfast.worker.recorder import Recorder
from holdfast.worker.runs import Run

log = logging.getLogger("holdfast.worker")

_POLL_EVERY: Final = 3.0
_TELL_EVERY: Final = 0.05
"""Seconds between two reports: each is a write to a row that all processes share."""
_ONCE_MORE_AFTER: Final = 1.0

Answered = Callable[[Run, Pass | Wait], None]


class Turnstile:
    """One station's. `answered` is called with runs that have asked, on the loop."""

    def __init__(self, engine: Engine, recorder: Recorder, answered: Answered) -> None:
        self._engine = engine
        self._recorder = recorder
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Run, str]] = []
        self._has_waiting = asyncio.Event()
        self._has_news = asyncio.Event()
        self._has_closed = asyncio.Event()
        self._letting_go = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._probes: dict[UUID, BreakerReport] = {}
        """What is said of runs that try, again and again while they do; by their permits."""

    # ── passing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def look(self, breaker: Breaker) -> Pass | Wait | None:
        """Whether a run may pass; None if that must be asked."""
        return self._engine.panel.look(breaker.name)

    def ask(self, run: Run, breaker: Breaker) -> None:
        self._waiting.append((run, breaker.name))
        self._has_waiting.set()

    async def run(self) -> None:
        """Ask for those who wait, one after the other: what one hears may be the answer for the next."""
        while True:
            await self._has_waiting.wait()
            self._has_waiting.clear()
            waiting, self._waiting = self._waiting, []
            for run, name in waiting:
                await self.flush()  # what was noted before may decide
                panel = self._engine.panel
                answer = panel.look(name) or await panel.enter(self._engine.store, name)
                if isinstance(answer, Pass) and answer.permit is not None:
                    run.permit = answer.permit
                    self._recorder.trying(run.slot, run.job.id, run.permit)
                    self._probes[run.permit.id] = BreakerReport(name, Finding.UNDER_WAY, run.permit)
                self._answered(run, answer)

    def finished(self, run: Run, breaker: Breaker, outcome: Outcome) -> Transition | None:
        """A run that has passed is over. What becomes of its job, if it was a probe that has failed."""
        permit, run.permit = run.permit, None
        self._say(findings.report(breaker, permit, outcome))
        if permit is None:
            return None
        return findings.after_probe(run.job, breaker, permit, outcome, self._engine.chance())

    def _say(self, report: BreakerReport) -> None:
        """Successes matter only if there were failures, or if somebody tries."""
        if report.permit is not None:
            self._probes.pop(report.permit.id, None)
        elif report.finding is Finding.NOTHING:
            return
        panel = self._engine.panel
        if report.permit is not None or report.finding is Finding.FAILED or panel.is_doubtful(report.breaker):
            panel.note(report)

    # ── keeping up to date ───────────────────────────────────────────────────────────────────────────────────────────

    async def attend(self) -> None:
        """Keep the panel up to date, and pass on what is noted there, until cancelled."""
        panel = self._engine.panel
        wake = self._wake
        panel.attend(wake)
        try:
            async with asyncio.TaskGroup() as services:
                for service in (self._listen, self._poll, self._tell, self._keep_letting_go):
                    services.create_task(service())
        finally:
            panel.leave(wake)

    def _wake(self) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its jobs are nobody's any more
            self._loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        self._has_news.set()
        self._has_closed.set()

    async def flush(self) -> bool:
        """Pass on all that was noted so far."""
        async with self._turn:
            return await self._engine.panel.flush(self._engine.store)

    async def _tell(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            if not await self.flush():
                self._has_news.set()
                await asyncio.sleep(random.uniform(0.5, 1.5))
            await asyncio.sleep(_TELL_EVERY)

    async def let_go(self) -> list[str]:
        """Let go on what waits for breakers that are closed since this was done last. Returns their names."""
        async with self._letting_go:
            names = self._engine.panel.take_closed()
            await self._engine.panel.let_go(self._engine.store, names)
            return names

    async def _keep_letting_go(self) -> None:
        """Do so whenever a breaker is closed.

        And once more a moment later, for what was put off here, or elsewhere, before that was known. Should even that
        come too early, nothing is lost: it goes on when its wait is over.
        """
        while True:
            await self._has_closed.wait()
            self._has_closed.clear()
            if names := await self.let_go():
                await asyncio.sleep(_ONCE_MORE_AFTER)
                await self._engine.panel.let_go(self._engine.store, names)

    async def _listen(self) -> None:
        engine = self._engine
        while True:
            if engine.breakers:
                try:
                    async with engine.store.changes([HintKind.BREAKERS]) as hints:
                        await engine.panel.refresh(engine.store)
                        async for _ in hints:
                            await engine.panel.refresh(engine.store)
                except HoldfastError as error:
                    log.warning("can't listen for breakers, polling instead: %s", error)
            await asyncio.sleep(random.uniform(0.5, 1.5))

    async def _poll(self) -> None:
        engine = self._engine
        while True:
            await asyncio.sleep(_POLL_EVERY * random.uniform(0.8, 1.2))
            for report in list(self._probes.values()):
                engine.panel.note(report)
            if engine.breakers:
                with contextlib.suppress(HoldfastError):
                    await engine.panel.refresh(engine.store)


def held_back(job: ClaimedJob, breaker: Breaker, wait: Wait) -> Transition:
    """What becomes of a job that was not let through. It has not started, so that goes for at-most-once jobs too."""
    message = f"It waits for the breaker {breaker.name!r}, which is open."
    return lifecycle.after_wait(
        job, Failure(FailureKind.WAITED, "BreakerOpen", message), wait.delay, breaker.name, is_unstarted=True
    )
