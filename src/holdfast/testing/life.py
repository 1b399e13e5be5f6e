"""One life of a worker in a test: from its start to its end, in good order or by a crash.

It is the station and the executor of a real worker, run by hand: one job at a time, in the order of claims. What is
different: tasks that would have a process of their own run in this one; and the worker dies where a test wants it to,
which is read from its flight recorder, and judged by the rules for real crashes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, Final, Literal

from holdfast.engine import Engine
from holdfast.hooks import State
from holdfast.job import Failure, FailureKind
from holdfast.outcome import Crashed, Interrupted, Outcome
from holdfast.store import NewWorker
from holdfast.testing.deckhand import CrewOfOne, waiting_deckhand
from holdfast.worker import findings, guilt
from holdfast.worker.executor import Executor
from holdfast.worker.recorder import Place, Recorder, size_for
from holdfast.worker.reporting import Reporting
from holdfast.worker.runs import Run
from holdfast.worker.slots import Pool, Slots
from holdfast.worker.station import Station, finish

CrashPoint = Literal["before_start", "during", "before_settle", "after_settle"]
"""Claimed, and not started; in the task; the task is over, and the store was not told; it was."""

_SLOTS: Final = 8


class WorkerDied(BaseException):
    """The process of the worker dies here: only a test does that, and only by saying so."""


class Life:
    """Works from `begin` to `end` or `bury`. `doom`: where the runs to come crash; each takes one point from it."""

    def __init__(self, engine: Engine, doom: deque[CrashPoint]) -> None:
        self._engine = engine
        self._doom = doom
        self._state = State()
        self._worker = engine.ids.make()
        self._recorder = BlackBox(self._before_start)
        self._reporting = Reporting(engine)
        self._performer = Performer(engine, self._recorder, self._state, self._reporting)
        self._station = Station(engine, self._worker, Slots((Pool(1),)), self._recorder, self._performer)
        self._reporting.attach(self._station)
        self._pass_on = self._performer.on_finish
        self._performer.on_finish = self._finish
        self._death: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def runs(self) -> int:
        """How many have been started."""
        return self._performer.runs

    def die(self) -> None:
        """The running task is the last one: whatever comes of it, the worker does not live to hear of it."""
        self._performer.doom("during")

    async def begin(self) -> None:
        store = await self._engine.declared()
        await self._engine.hooks.start(self._state)
        tasks = tuple(sorted(self._engine.tasks))
        await store.register(NewWorker(self._worker, "hf.testing()", socket.gethostname(), os.getpid(), tasks=tasks))
        work = (self._station.run(by_hand=True), self._reporting.run())
        self._tasks = [asyncio.create_task(each) for each in work]

    async def run_next(self, queue: str) -> bool:
        """Run the next job of a queue, and return whether there was one. WorkerDied if the worker did."""
        self._performer.point = None
        step = asyncio.create_task(self._station.run_next({queue: 1}))
        try:
            either: list[asyncio.Future[Any]] = [step, self._death, *self._tasks]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._death.done():
                raise WorkerDied
            for task in self._tasks:
                if task.done():
                    task.result()  # it never ends by itself, so this says why
            was_there = step.result() > 0
        finally:
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
        if self._performer.point == "after_settle":
            raise WorkerDied
        return was_there

    async def end(self) -> None:
        """In good order. If a job still runs, because the test has no time for it, it is stopped and given back."""
        try:
            await finish(self._station, grace=0.0)
        finally:
            await self._stop()
            await self._engine.store.depart(self._worker)
            await self._engine.hooks.stop(self._state)

    async def bury(self) -> None:
        """It has died: what it held is given back, as its supervisor would."""
        flight = self._recorder.flight()
        await self._stop()
        outcomes = guilt.outcomes_of_crash(flight, "was killed by the test")
        fuses = findings.fuses(self._engine.breakers.values())
        settlements = guilt.settlements(flight.entries, outcomes, self._engine.chance, fuses)
        await self._engine.store.report_breakers(guilt.reports(flight.entries, outcomes, fuses))
        await self._engine.store.bury_worker(self._worker, settlements)

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._performer.crew.close()

    # ── dying ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _before_start(self) -> None:
        self._performer.point = self._doom.popleft() if self._doom else None
        if self._performer.point == "before_start":
            raise WorkerDied

    def _finish(self, run: Run, outcome: Outcome) -> None:
        """The executor has done with a run. See whether the station lives to hear of it."""
        match self._performer.point:
            case "during" if self._performer.is_alone:
                self._pass_on(run, _crash_of_its_process())
            case "during":
                self._die()
            case "before_settle":
                self._recorder.finished(run.slot)
                self._die()
            case _:
                self._pass_on(run, outcome)

    def _die(self) -> None:
        if not self._death.done():
            self._death.set_result(None)


class BlackBox(Recorder):
    """A flight recorder that calls before it writes down a start: what that raises is the end of the worker."""

    def __init__(self, before_start: Callable[[], None]) -> None:
        super().__init__(bytearray(size_for(_SLOTS)), _SLOTS)
        self._before_start = before_start

    def started(self, slot: int, started_at: float, overdue_at: float, pid: int = 0) -> None:
        self._before_start()
        super().started(slot, started_at, overdue_at, pid)

    def moved(self, slot: int, place: Place) -> None:
        """Here every task runs where it would not, so what stands there is what its plan says."""


class Performer(Executor):
    """Runs all tasks in this process, the `def` ones in the thread that waits for it, if there is one."""

    def __init__(self, engine: Engine, recorder: Recorder, state: State, reporting: Reporting) -> None:
        super().__init__(engine, recorder, engine.hooks, state, NoProcess(), reporting)
        self._recorder = recorder
        hand = waiting_deckhand()
        if hand is not None:
            self.crew = CrewOfOne(asyncio.get_running_loop(), hand)
        self.runs = 0
        self.point: CrashPoint | None = None
        """Where the worker dies in the run that was started last."""
        self.is_alone = False
        """That run would have a process of its own."""
        self._run: Run | None = None

    def doom(self, point: CrashPoint) -> None:
        """Let the worker die in this run, before it is settled."""
        self.point = point
        if self._run is not None and not self.is_alone:
            self._run.is_taken = True  # so that no transaction of the task completes its job

    def start(self, run: Run) -> None:
        self._run, self.is_alone = run, run.place is Place.PROCESS
        if self.is_alone:  # its process would say so
            run.begin_at(now := time.monotonic())
            self._recorder.started(run.slot, now, now + run.plan.hard)
        self.runs += 1
        run.place = Place.LOOP if iscoroutinefunction(run.plan.function) else Place.THREAD
        if self.point in ("during", "before_settle"):
            self.doom(self.point)
        if self.point == "during" and run.place is Place.THREAD:
            self.on_finish(run, Interrupted())
            return
        super().start(run)
        if self.point == "during":
            # Its first step comes before this. If that was not all, it waits now.
            asyncio.get_running_loop().call_soon(run.throw, WorkerDied())


class NoProcess:
    """Where isolated tasks don't run."""

    async def run(self, run: Run) -> Outcome:
        raise AssertionError(f"{run.job.task} runs in the process of the test")


def _crash_of_its_process() -> Crashed:
    """The process that the job had for itself has died, and the worker has not."""
    message = "Its process was killed by the test, and nothing else ran in it."
    return Crashed(Failure(FailureKind.CRASH, "ProcessCrashed", message), is_guilty=True)
