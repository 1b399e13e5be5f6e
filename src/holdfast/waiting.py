"""Waiting for jobs to end: woken by the store's hints, and looking now and then in case one was lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterable
from uuid import UUID

from holdfast.errors import JobNotFound
from holdfast.job import FINAL, JobRecord
from holdfast.store import LARGEST_BATCH, Hint, HintKind, Store

LOOK_EVERY = 1.0


class Endings:
    """Lets any number of callers, on any number of event loops, wait for jobs to end."""

    def __init__(self) -> None:
        self._watches: dict[asyncio.AbstractEventLoop, Watch] = {}

    async def wait(self, store: Store, id: UUID) -> JobRecord:
        """Return a job, which was there at the last look, once it is in a final state."""
        loop = asyncio.get_running_loop()
        watch = self._watches.get(loop) or self._new_watch(loop)
        return await watch.wait(store, id)

    def _new_watch(self, loop: asyncio.AbstractEventLoop) -> Watch:
        for other in list(self._watches):
            if other.is_closed():
                self._watches.pop(other, None)
        return self._watches.setdefault(loop, Watch())


class Watch:
    """One event loop's waiters, and the task that wakes them, which lives as long as there are any."""

    def __init__(self) -> None:
        self._waiters: dict[UUID, set[asyncio.Future[JobRecord]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._listening: asyncio.Event | None = None

    async def wait(self, store: Store, id: UUID) -> JobRecord:
        future: asyncio.Future[JobRecord] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(id, set()).add(future)
        try:
            if self._task is None or self._task.done() or self._listening is None:
                self._listening = asyncio.Event()
                self._task = asyncio.create_task(self._watch(store, self._listening))
            await self._listening.wait()
            # It may have ended between the caller's look and the first hint that could tell.
            self._wake(await store.finished([id]))
            return await future
        finally:
            self._forget(id, future)

    def _forget(self, id: UUID, future: asyncio.Future[JobRecord]) -> None:
        waiters = self._waiters.get(id, set())
        waiters.discard(future)
        if not waiters:
            self._waiters.pop(id, None)
        if not self._waiters and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch(self, store: Store, listening: asyncio.Event) -> None:
        try:
            async with store.changes([HintKind.FINISHED]) as hints:
                listening.set()
                while self._waiters:
                    await self._look(store, await _next(hints))
        except Exception as error:
            self._fail(self._waiters, error)
        finally:
            listening.set()

    async def _look(self, store: Store, hint: Hint | None) -> None:
        """Wake those whose jobs have ended; without a hint, also tell those whose jobs are gone."""
        wanted = list(self._waiters)
        if hint is not None and hint.ids:
            wanted = [id for id in wanted if id in hint.ids]
        for start in range(0, len(wanted), LARGEST_BATCH):
            ids = wanted[start : start + LARGEST_BATCH]
            if hint is not None:
                self._wake(await store.finished(ids))
                continue
            records = await store.get(ids)
            self._wake(record for record in records if record.stage in FINAL)
            self._fail(set(ids) - {record.id for record in records}, JobNotFound())

    def _wake(self, records: Iterable[JobRecord]) -> None:
        for record in records:
            for future in self._waiters.get(record.id, ()):
                if not future.done():
                    future.set_result(record)

    def _fail(self, ids: Iterable[UUID], error: Exception) -> None:
        for id in list(ids):
            for future in self._waiters.get(id, ()):
                if not future.done():
                    future.set_exception(error)


async def _next(hints: AsyncIterator[Hint]) -> Hint | None:
    """The next hint, or None when it is time to look without one."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_EVERY * random.uniform(0.75, 1.25)):
            return await anext(hints)
    return None


async def look(store: Store, id: UUID) -> JobRecord:
    """The record of a job; JobNotFound if there is none."""
    records = await store.get([id])
    if not records:
        raise JobNotFound(f"There is no job {id}. It may have been pruned after its retention, or discarded.")
    return records[0]
