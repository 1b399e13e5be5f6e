"""What everything else takes: the store, the clock, the ids, the registry of tasks. It knows no concrete driver."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import random
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar
from uuid import UUID

from holdfast import forks, native
from holdfast.clock import Clock
from holdfast.context import current
from holdfast.errors import DuplicateTask, QueueFull, ResultTimeout, UnknownTask, WaitingInTask, WrongDatabase
from holdfast.hooks import Hooks
from holdfast.ids import Ids
from holdfast.job import FINAL, JobRecord, NewJob
from holdfast.portal import Portal, refuse_on_a_loop
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


class Engine:
    """One app's machinery in one process. Nothing is opened before it is used, and a fork starts anew."""

    def __init__(
        self, make_store: Callable[[], Store], clock: Clock, ids: Ids | None = None, queues: Sequence[Queue] = ()
    ) -> None:
        self.clock = clock
        self.ids = ids or Ids(clock)
        self.tasks: dict[str, RegisteredTask] = {}
        self.hooks = Hooks()
        self._make_store = make_store
        self._queues = tuple(queues)
        self._portal = Portal()
        self._endings = Endings()
        self._lock = native.make_lock()
        self._store: Store | None = None
        self._is_declared = False
        self._definitions: dict[str, tuple[float, PublishedTask]] = {}
        forks.watch(self)

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
            if self._queues:
                await store.declare_queues(self._queues)
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

    async def publish_tasks(self) -> None:
        """Store the definitions of all tasks, for services that enqueue by name."""
        store = await self.ready()
        unique = {task.name: task for task in self.tasks.values()}
        await store.publish_tasks([task.definition() for task in unique.values()])

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
        try:
            return await store.enqueue(jobs)
        except QueueFull as full:
            if not wait or full.never_fits:
                raise
        return await self._enqueue_when_there_is_room(store, jobs, wait)

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
            async with asyncio.timeout(seconds):
                return await self._endings.wait(store, id)
        except TimeoutError:
            shown = f"was {record.state} and " if record is not None else ""
            raise ResultTimeout(
                f"Job {id} {shown}has not finished in the time given. It goes on; ask again later."
            ) from None
