"""What everything else takes: the store, the clock, the ids, the registry of tasks. It knows no concrete driver."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar
from uuid import UUID

from holdfast import forks, native
from holdfast.breaker import BreakerPolicy
from holdfast.clock import Clock
from holdfast.context import current
from holdfast.errors import (
    ConfigurationError,
    DuplicateTask,
    InvalidOption,
    QueueFull,
    ResultTimeout,
    UnknownTask,
    WaitingInTask,
    WrongDatabase,
)
from holdfast.guard import Breaker
from holdfast.hooks import Hooks
from holdfast.ids import Ids
from holdfast.job import FINAL, JobRecord, NewJob, Stage
from holdfast.panel import Panel
from holdfast.portal import Portal, refuse_on_a_loop
from holdfast.schedule import Plan
from holdfast.span import format_span
from holdfast.store import Enqueued, HintKind, PublishedTask, Queue, Store, TaskDefinition
from holdfast.transaction import TaskTransaction
from holdfast.waiting import Endings, look

Result = TypeVar("Result")

_LOOK_FOR_ROOM_EVERY = 0.25
_DEFINITIONS_FRESH_FOR = 10.0


class RegisteredTask(Protocol):
    """What the registry keeps."""

    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def place(self) -> str: ...
    def definition(self) -> TaskDefinition: ...


class RegisteredSchedule(Protocol):
    """A schedule that the code declares."""

    @property
    def name(self) -> str: ...
    @property
    def place(self) -> str: ...
    def plan(self) -> Plan: ...


class Engine:
    """One app's machinery in one process. Nothing is opened before it is used, and a fork starts anew."""

    def __init__(
        self,
        make_store: Callable[[], Store],
        clock: Clock,
        ids: Ids | None = None,
        queues: Sequence[Queue] = (),
        portal: Portal | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.clock = clock
        self.ids = ids or Ids(clock)
        self.chance = chance
        """Random numbers from 0 to 1."""
        self.code_since = clock.monotonic()
        """When this process, or the one it was forked from, has imported the app."""
        self.tasks: dict[str, RegisteredTask] = {}
        self.schedules: dict[str, RegisteredSchedule] = {}
        self.breakers: dict[str, Breaker] = {}
        self.panel = Panel(self.breakers, clock, chance, self.code_since)
        self.hooks = Hooks()
        self._make_store = make_store
        self.queues = tuple(queues)
        """Those that the code declares."""
        self._portal = portal or Portal()
        self._endings = Endings()
        self._lock = native.make_lock()
        self._store: Store | None = None
        self._is_declared = False
        self._definitions: dict[str, tuple[float, PublishedTask]] = {}
        self.is_unattended = False
        """A test decides when jobs run: to wait for a worker would be in vain."""
        self.after_enqueue: Callable[[], Awaitable[None]] | None = None
        """Called when jobs have been enqueued, before their producer goes on. Not for those in a transaction."""
        self.workers_here = 0
        """Embedded workers that are at work."""
        forks.watch(self)

    # ── for tests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def understudy(
        self, make_store: Callable[[], Store], clock: Clock, portal: Portal, chance: Callable[[], float]
    ) -> Engine:
        """An engine with the same tasks, hooks and queues that nobody works for by himself."""
        other = Engine(make_store, clock, queues=self.queues, portal=portal, chance=chance)
        other.tasks, other.schedules, other.hooks = self.tasks, self.schedules, self.hooks
        other.breakers = self.breakers
        other.panel = Panel(self.breakers, clock, chance, other.code_since)
        other.is_unattended = True
        return other

    def change_places(self, other: Engine) -> None:
        """Become the other one, which becomes this one: whoever has this one now uses the other's store and clock.

        All that they have is exchanged, so doing it again leaves nothing behind. ConfigurationError if this one is
        at work, or is an understudy already.
        """
        with self._lock:
            if other.is_unattended and self.is_unattended:
                raise ConfigurationError(
                    "hf.testing() is in use for this app already, here or in another thread. Leave that block first: "
                    "they can't be nested, nor entered at the same time."
                )
            if other.is_unattended and self.workers_here:
                raise ConfigurationError(
                    "hf.worker() is at work for this app, and would take the jobs of hf.testing(). Leave it first."
                )
            self.__dict__, other.__dict__ = other.__dict__, self.__dict__

    # ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def store(self) -> Store:
        """This process's store."""
        store = self._store
        if store is None:
            with self._lock:
                store = self._store = self._store or self._make_store()
        return store

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """In a forked child, let go of what the parent still uses, untouched, and start anew."""
        if in_child:
            if self._store is not None:
                self._store.abandon()
            self._endings = Endings()
            self.panel = Panel(self.breakers, self.clock, self.chance, self.code_since)
            self._is_declared = False
        self._lock.release()

    async def ready(self) -> Store:
        """The store, open."""
        store = self.store
        await store.open()
        return store

    async def declared(self) -> Store:
        """The store, open, with the queues declared that the code names."""
        store = self.store
        if not self._is_declared:
            await store.open()
            if self.queues:
                await store.declare_queues(self.queues)
            self._is_declared = True
        return store

    async def close(self) -> None:
        # The store stays: whoever still waits has it in hand, and it opens again on use.
        if self._store is not None:
            await self._store.close()

    def wait(self, coroutine: Coroutine[Any, Any, Result], instead: str) -> Result:
        """Run a coroutine for a synchronous caller."""
        return self._portal.run(coroutine, instead)

    def close_portal(self) -> None:
        self._portal.close()

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def register(self, task: RegisteredTask) -> None:
        """Make a task known under its name and its aliases."""
        for name in (task.name, *task.aliases):
            other = self.tasks.get(name)
            if other is not None:
                raise DuplicateTask(
                    f"Two tasks are named {name!r}: one at {other.place}, one at {task.place}. Give one of them name=…."
                )
        for name in (task.name, *task.aliases):
            self.tasks[name] = task

    def register_schedule(self, schedule: RegisteredSchedule) -> None:
        """Make a schedule known under its name."""
        other = self.schedules.get(schedule.name)
        if other is not None:
            raise InvalidOption(
                f"Two schedules are named {schedule.name!r}: of the task at {other.place}, and of the one at "
                f"{schedule.place}. Give one of them name=…."
            )
        self.schedules[schedule.name] = schedule

    def register_breaker(self, breaker: Breaker) -> None:
        """Make a breaker known under its name."""
        if breaker.name in self.breakers:
            raise InvalidOption(
                f"There are two breakers {breaker.name!r}. Make it once, and import it where it is used; or give one "
                "of them another name."
            )
        self.breakers[breaker.name] = breaker

    def policies(self) -> dict[str, BreakerPolicy]:
        """What the code says of its breakers, by name."""
        return {name: self.breakers[name].policy for name in sorted(self.breakers)}

    def plans(self) -> dict[str, Plan]:
        """What the code says of its schedules, by name."""
        return {name: self.schedules[name].plan() for name in sorted(self.schedules)}

    def definitions(self) -> list[TaskDefinition]:
        """What others must know of the tasks, each once, in the order of their names."""
        unique = {task.name: task for task in self.tasks.values()}
        return [unique[name].definition() for name in sorted(unique)]

    async def publish_tasks(self, code_since: float | None = None) -> None:
        """Store the definitions of all tasks, for services that enqueue by name; declare schedules and breakers.

        Those of younger code stay, if it is told when this code was started, by the monotonic clock.
        """
        store = await self.ready()
        age = None if code_since is None else timedelta(seconds=max(self.clock.monotonic() - code_since, 0.0))
        plans = self.plans()
        await store.publish_tasks(self.definitions(), age)
        if plans:
            await store.declare_schedules(plans, age)
        if self.breakers:
            await self.panel.declare(store, age)

    async def published(self, name: str) -> PublishedTask:
        """The stored definition of a task; UnknownTask if there is none."""
        now = self.clock.monotonic()
        cached = self._definitions.get(name)
        if cached is not None and now - cached[0] < _DEFINITIONS_FRESH_FOR:
            return cached[1]
        store = await self.ready()
        found = await store.tasks([name])
        if not found:
            raise UnknownTask(await self._unknown(store, name))
        if len(self._definitions) >= 1000:
            self._definitions.clear()
        self._definitions[name] = (now, found[0])
        return found[0]

    async def _unknown(self, store: Store, name: str) -> str:
        names = {*self.tasks, *(task.definition.name for task in await store.tasks())}
        near = difflib.get_close_matches(name, sorted(names), 1)
        hint = f"Did you mean {near[0]!r}?" if near else "Check the name;"
        return (
            f"No task named {name!r} has been published. {hint} A worker or server of the service that has its code "
            "must have run once against this database."
        ).replace("; A", "; a")

    # ── enqueuing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, jobs: Sequence[NewJob], wait: timedelta, tx: object | None = None) -> list[Enqueued]:
        """Enqueue all or none, waiting for room in a full queue; QueueFull if there is none in time.

        In a task whose own transaction is open the jobs join that: they exist if and only if it commits.
        """
        if isinstance(tx, TaskTransaction):
            return await self._own(tx).enqueue(jobs)
        if tx is not None:
            return await self.store.enqueue(jobs, tx)  # not made ready: the caller's transaction may hold the lock
        context = current.get()
        if context is not None and (joined := context.open_transaction) is not None and joined.is_of(self):
            return await joined.enqueue(jobs)
        store = await self.declared()
        answers: list[Enqueued] | None = None
        try:
            answers = await store.enqueue(jobs)
        except QueueFull as full:
            if not wait or full.never_fits or self.is_unattended:
                raise
        if answers is None:
            answers = await self._enqueue_when_there_is_room(store, jobs, wait)
        if self.after_enqueue is not None:
            await self.after_enqueue()
        return answers

    async def _enqueue_when_there_is_room(
        self, store: Store, jobs: Sequence[NewJob], wait: timedelta
    ) -> list[Enqueued]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait.total_seconds()
        async with store.changes([HintKind.ROOM]) as hints:
            while True:
                try:
                    return await store.enqueue(jobs)
                except QueueFull:
                    left = deadline - loop.time()
                    if left <= 0:
                        raise
                # Jittered, so that a crowd of producers does not come back as one.
                nap = min(left, _LOOK_FOR_ROOM_EVERY * random.uniform(0.5, 1.5))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(nap):
                        await anext(hints)

    def enqueue_in(self, tx: object, jobs: Sequence[NewJob], instead: str) -> list[Enqueued]:
        """Enqueue on a synchronous connection of the caller's, in the caller's thread."""
        if isinstance(tx, TaskTransaction):
            return self.wait(self._own(tx).enqueue(jobs), instead)
        refuse_on_a_loop(instead)
        return self.store.enqueue_in(tx, jobs)

    def _own(self, tx: TaskTransaction) -> TaskTransaction:
        if not tx.is_of(self):
            raise WrongDatabase(
                "tx= is the transaction of another app's task. Leave it out, or use a task of that app."
            )
        return tx

    # ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ended(self, id: UUID, timeout: timedelta | None) -> JobRecord:
        """The record of a job once it is in a final state; ResultTimeout if that takes too long."""
        if current.get() is not None:
            raise WaitingInTask
        seconds = None if timeout is None else timeout.total_seconds()
        record: JobRecord | None = None
        try:
            # Looking once is always worth a moment: a timeout of 0 means "if it has ended".
            async with asyncio.timeout(None if seconds is None else max(seconds, 1.0)):
                store = await self.ready()
                record = await look(store, id)
            if record.stage in FINAL:
                return record
            if not self.is_unattended:
                async with asyncio.timeout(seconds):
                    return await self._endings.wait(store, id)
        except TimeoutError:
            shown = f"was {record.state} and " if record is not None else ""
            raise ResultTimeout(
                f"Job {id} {shown}has not finished in the time given. It goes on; ask again later."
            ) from None
        raise ResultTimeout(_not_run(record, self.clock.now()))


def _not_run(record: JobRecord, now: datetime) -> str:
    """Why a test has no result yet, and what to do."""
    later = record.stage is Stage.SCHEDULED and record.due_at > now
    wait = f"t.advance({format_span(record.due_at - now)!r}) and " if later else ""
    return (
        f"Job {record.id} ({record.task}) is {record.state}: in hf.testing() nothing runs by itself. "
        f"Call {wait}t.run_all() first; in async code, await t.arun_all()."
    )
