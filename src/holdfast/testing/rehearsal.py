"""What `hf.testing()` gives: the app on another store, with a clock that a test moves and a worker that it runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import TracebackType
from typing import Any, Final, NoReturn, ParamSpec, Self, TypeVar, get_args

from holdfast import native
from holdfast.context import current
from holdfast.engine import Engine
from holdfast.errors import ConfigurationError, InvalidOption, RunningLoop
from holdfast.handle import Job
from holdfast.job import JobRecord, JobState
from holdfast.maintenance.scheduler import Scheduler
from holdfast.maintenance.undertaker import Undertaker
from holdfast.portal import Portal
from holdfast.span import Span
from holdfast.store import LARGEST_PAGE, Filter, Store
from holdfast.task import Task
from holdfast.testing import findings
from holdfast.testing.clock import ManualClock
from holdfast.testing.deckhand import Deckhand
from holdfast.testing.life import CrashPoint, Life, WorkerDied

P = ParamSpec("P")
R = TypeVar("R")
Result = TypeVar("Result")

MOST_RUNS: Final = 10_000
_LOOK_EVERY: Final = 0.01
_PATIENCE: Final = 5.0
"""Seconds for a run that was cut off, by a Ctrl-C for example, to clean up before its store is taken away."""


class EndlessWork(AssertionError):
    """There is always more to run: a task enqueues itself, or two tasks each other, again and again."""


class Rehearsal:
    """The app between entering and leaving: jobs go to a store of the test, and run when it says so.

    The app's own store is not touched, and afterwards the app is as it was. While one of these is entered, the app
    can't be put into another one.
    """

    def __init__(
        self, engine: Engine, make_store: Callable[[], Store], clock: ManualClock, *, inline: bool, is_remote: bool
    ) -> None:
        """`is_remote`: the store is a database, which must be closed, and that on no running event loop."""
        self._engine = engine
        self._clock = clock
        self._is_remote = is_remote
        self._doom: deque[CrashPoint] = deque()
        self._lock = native.make_lock()
        self._is_entered = self._is_left = False
        self._is_running = self._is_wanted = False
        self._published = 0
        self._life: Life | None = None
        self._undertaker = Undertaker(lambda: engine.store)
        self._scheduler = Scheduler(lambda: engine.store, clock, chance=lambda: 1.0)
        # A backoff is always waited in full, so that a test knows when the next attempt is due.
        self._other = engine.understudy(make_store, clock, Portal(Deckhand), chance=lambda: 1.0)
        if inline:
            self._other.after_enqueue = self._run_inline

    def __repr__(self) -> str:
        return f"<hf.testing() at {self.now.isoformat()}>"

    # ── entering and leaving ─────────────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        if self._is_remote and _is_on_a_loop():
            raise RunningLoop(
                "Leaving this block would block the running event loop. Use `async with hf.testing(url)` here."
            )
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        patience = _PATIENCE
        while self._is_running and patience > 0 and not _is_on_a_loop():
            native.sleep(_LOOK_EVERY)
            patience -= _LOOK_EVERY
        self._leave()
        try:
            if self._is_remote:
                self._other.wait(self._other.close(), "hf.aclose")
        finally:
            self._other.close_portal()

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        patience = _PATIENCE
        while self._is_running and patience > 0:
            await asyncio.sleep(_LOOK_EVERY)
            patience -= _LOOK_EVERY
        self._leave()
        try:
            await self._other.close()
        finally:
            self._other.close_portal()

    def _enter(self) -> None:
        if self._is_entered:
            raise ConfigurationError("This block was entered before. Call hf.testing() anew for each of them.")
        self._engine.change_places(self._other)
        self._is_entered = True

    def _leave(self) -> None:
        self._is_left = True
        self._engine.change_places(self._other)

    def _check_entered(self) -> None:
        if not self._is_entered:
            raise ConfigurationError("Nothing is tested yet. Write `with hf.testing() as t:`, and use t inside.")
        if self._is_left:
            raise ConfigurationError("The block of hf.testing() is over, and its jobs are gone. Use t inside of it.")

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> datetime:
        """The time, which stands still. It begins with that of the machine."""
        return self._clock.now()

    def advance(self, span: Span) -> datetime:
        """Let time pass, and return what it is then. Nothing runs by that: `run_all` runs what has become due.

        Schedules fire, at once for all of that time, as if nobody had been there meanwhile: with `catchup="once"`, and
        that is the default, a schedule makes one job. To see each of its ticks, advance from one to the next.
        """
        is_firing = self._is_entered and not self._is_left and bool(self._engine.schedules) and current.get() is None
        if is_firing:
            self._ask(self._declare())
        now = self._clock.advance(span)
        if is_firing:
            self._ask(self._fire())
        return now

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def run_all(self, *, most: int = MOST_RUNS) -> int:
        """Run all that is due, until nothing is due any more, and return how many runs that were.

        One job at a time: one of each queue in turn, by their names, and within a queue in the order of claims. What
        tasks enqueue meanwhile is run too, and so is what fails and is due at once. Time does not pass. `def` tasks
        run in this thread. EndlessWork if there is more after `most` runs.
        """
        return self._engine.wait(self.arun_all(most=most), "t.arun_all")

    async def arun_all(self, *, most: int = MOST_RUNS) -> int:
        """`run_all` for asynchronous code. `async def` tasks run on this event loop, the others in a thread."""
        self._check_entered()
        if current.get() is not None:
            raise ConfigurationError("A task can't run the others: it is one of them. Call run_all() in the test.")
        if not self._take_turn():
            raise ConfigurationError("run_all() is under way already, in another thread or task. Wait for it.")
        return await self._run(most)

    async def _run_inline(self) -> None:
        """Jobs were enqueued. Those of a running task come after it."""
        if current.get() is None and self._take_turn():
            await self._run(MOST_RUNS)

    def _take_turn(self) -> bool:
        with self._lock:
            self._is_wanted = self._is_running
            is_mine, self._is_running = not self._is_running, True
            return is_mine

    def _is_over(self) -> bool:
        """Whether nobody has enqueued anything just when everything was done."""
        with self._lock:
            self._is_running, self._is_wanted = self._is_wanted, False
            return not self._is_running

    async def _run(self, most: int) -> int:
        runs = 0
        try:
            while True:
                runs += await self._live(most - runs)
                if self._is_over():
                    return runs
        except BaseException:
            self._is_running = False
            raise

    async def _live(self, most: int) -> int:
        """Work until nothing is due, with another worker for each one that dies."""
        await self._declare()
        runs = 0
        while True:
            life = Life(self._engine, self._doom)
            await life.begin()
            self._life = life
            try:
                while await self._run_a_round(life, most - runs):
                    pass
            except WorkerDied:
                await life.bury()
                runs += life.runs
            except BaseException:
                await life.end()
                raise
            else:
                await life.end()
                return runs + life.runs
            finally:
                self._life = None

    async def _declare(self) -> None:
        """What a worker does when it starts; and of the schedules, now and then."""
        engine = self._engine
        number = len(engine.tasks) + len(engine.schedules)
        if self._published != number:
            await engine.publish_tasks()
            self._published = number
        elif engine.schedules:
            await engine.store.declare_schedules(engine.plans())

    async def _fire(self) -> None:
        await self._declare()  # or they would be taken for orphans
        while await self._scheduler.act() == 0.0:
            pass

    async def _run_a_round(self, life: Life, most: int) -> bool:
        """Run one job of each queue, and return whether there was any."""
        store = self._engine.store
        while (tick := await store.tick()).ripened or tick.expired:
            pass
        while await self._undertaker.act() == 0.0:
            pass
        while await self._scheduler.act() == 0.0:
            pass
        were_there = [await self._run_next(life, queue.name, most) for queue in await store.queues()]
        return any(were_there)

    async def _run_next(self, life: Life, queue: str, most: int) -> bool:
        was_there = await life.run_next(queue)
        if life.runs > most:
            raise EndlessWork(
                f"More than {most:,} runs, and there is still something to do: does a task enqueue itself again and "
                "again? Give it a delay; or, if so many are meant, say run_all(most=…)."
            )
        return was_there

    # ── crashing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def crash_worker(self, point: CrashPoint) -> None:
        """Let the worker's process die in the next run that starts, at this point; another worker takes over.

        `before_start`: it has claimed the job. Nothing of the task has happened.
        `during`: an `async def` task dies where it first waits; what stands before that has happened. One that never
        waits dies at its end, a `def` task before its first line. See `die` for any other place.
        `before_settle`: the task is over, and all of it has happened; the store does not know.
        `after_settle`: the store knows.
        """
        self._check_entered()
        if point not in get_args(CrashPoint):
            raise InvalidOption(f"crash_worker() takes one of {', '.join(map(repr, get_args(CrashPoint)))}.")
        self._doom.append(point)

    def die(self) -> NoReturn:
        """Let the worker's process die here: call this in a task, or in what a test has put in place of something.

        It leaves the task as an exception, so its `finally` clauses run, which in a real crash they would not.
        """
        if self._life is None:
            raise ConfigurationError("die() ends the worker that runs a task, and none is running. Call it in a task.")
        self._life.die()
        raise WorkerDied

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def enqueued(self) -> list[JobRecord]:
        """All jobs, in whatever state, in the order in which they were enqueued."""
        return self._ask(self._find(Filter()))

    @property
    def dead(self) -> list[JobRecord]:
        """The dead letters, in the order in which they were enqueued."""
        return self._ask(self._find(Filter(states=frozenset({JobState.DEAD}))))

    def jobs(self, task: Task[Any, R], /) -> list[Job[R]]:
        """Handles on all jobs of a task, in the order in which they were enqueued."""
        self._check_task(task)
        return [task.job(record.id) for record in findings.jobs_of(task, self.enqueued)]

    def assert_enqueued(self, task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> JobRecord:
        """Fail unless a job of this task was enqueued with these arguments; return the last one that was."""
        __tracebackhide__ = True
        self._check_task(task)
        payload, records = task.signature.encode(args, kwargs), self.enqueued
        found = findings.same_calls(task, payload, records)
        if not found:
            raise AssertionError(findings.not_enqueued(task, payload, records))
        return found[-1]

    def assert_not_enqueued(self, task: Task[Any, Any], /) -> None:
        """Fail if any job of this task was enqueued."""
        __tracebackhide__ = True
        self._check_task(task)
        records = self.enqueued
        if findings.jobs_of(task, records):
            raise AssertionError(findings.enqueued_after_all(task, records))

    def assert_nothing_enqueued(self) -> None:
        """Fail if any job was enqueued."""
        __tracebackhide__ = True
        records = self.enqueued
        if records:
            raise AssertionError(findings.something_enqueued(records))

    def _check_task(self, task: object) -> None:
        if not isinstance(task, Task):
            raise InvalidOption("This takes a task of the app, such as t.assert_enqueued(send_receipt, 1).")
        if self._engine.tasks.get(task.name) is not task:
            raise InvalidOption(f"{task.name!r} is a task of another app, which this test has nothing to do with.")

    async def _find(self, filter: Filter) -> list[JobRecord]:
        store = await self._engine.ready()
        page = await store.page(filter, None, LARGEST_PAGE)
        found = page.jobs
        while page.next_cursor is not None:
            page = await store.page(filter, page.next_cursor, LARGEST_PAGE)
            found += page.jobs
        return found[::-1]

    def _ask(self, question: Coroutine[Any, Any, Result]) -> Result:
        """Also on a running event loop, which is held up for a moment: an assertion is to be a plain line anywhere."""
        try:
            self._check_entered()
        except ConfigurationError:
            question.close()
            raise
        if not _is_on_a_loop():
            return self._engine.wait(question, "t.arun_all")
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(self._engine.wait, question, "t.arun_all").result()


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
