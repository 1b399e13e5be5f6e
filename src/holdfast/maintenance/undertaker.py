"""The undertaker: for each dead letter, enqueues the jobs of those who want to be told.

A dead letter stays marked until its announcements are on disk, and they have ids that follow from it: whatever dies
in between, each handler is told once. One that nobody can be told of is logged, and does not keep the others waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from holdfast.dead import announcement
from holdfast.errors import HoldfastError, StoreError
from holdfast.job import JobRecord, NewJob
from holdfast.maintenance.service import Service
from holdfast.store import Store, TaskDefinition

log = logging.getLogger("holdfast.maintenance")

_EVERY: Final = 5.0
_BATCH: Final = 100


class Undertaker(Service):
    def __init__(self, store: Callable[[], Store]) -> None:
        super().__init__()
        self._store = store

    async def act(self) -> float:
        store = self._store()
        dead = await store.unannounced(_BATCH)
        if not dead:
            return _EVERY
        definitions = await self._definitions(store, {job.task for job in dead})
        told = [
            new
            for job in dead
            for handler in (definitions[job.task].on_dead if job.task in definitions else ())
            if handler in definitions and (new := _announcement(job, definitions[handler])) is not None
        ]
        if told:
            await _enqueue(store, told)
        await store.announced([(job.id, job.generation) for job in dead])
        return 0.0 if len(dead) == _BATCH else _EVERY

    async def _definitions(self, store: Store, tasks: set[str]) -> dict[str, TaskDefinition]:
        """Of these tasks, under their aliases too, and of their handlers."""
        found: dict[str, TaskDefinition] = {}
        for published in await store.tasks(sorted(tasks)):
            for name in (published.definition.name, *published.definition.aliases):
                found[name] = published.definition
        handlers = {handler for definition in found.values() for handler in definition.on_dead}
        for published in await store.tasks(sorted(handlers)) if handlers else []:
            found[published.definition.name] = published.definition
        return found


def _announcement(job: JobRecord, handler: TaskDefinition) -> NewJob | None:
    """None if there can't be one: it would fail each time, and all that come after it would wait for it."""
    try:
        return announcement(job, handler)
    except Exception:
        log.exception("%s can't be told that %s %s is dead, and will not be", handler.name, job.task, job.id)
        return None


async def _enqueue(store: Store, told: list[NewJob]) -> None:
    """All at once; or one by one, without those that are refused."""
    try:
        await store.enqueue(told)
    except StoreError:
        raise  # it is the database that failed, and all of them are tried again
    except HoldfastError:
        for new in told:
            try:
                await store.enqueue([new])
            except StoreError:
                raise
            except HoldfastError:
                log.exception("%s can't be told of a dead letter, and will not be", new.task)
