"""The undertaker: for each dead letter, enqueues the jobs of those who want to be told.

A dead letter stays marked until its announcements are on disk, and they have ids that follow from it: whatever dies
in between, each handler is told once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from holdfast.dead import announcement
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
            announcement(job, definitions[handler])
            for job in dead
            for handler in (definitions[job.task].on_dead if job.task in definitions else ())
            if handler in definitions
        ]
        if told:
            await store.enqueue(told)
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
