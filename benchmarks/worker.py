"""A worker that runs nothing: it claims, and settles what it claimed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

from benchmarks.app import QUEUE, TASK
from benchmarks.site import Site
from holdfast import Retention
from holdfast.ids import Ids
from holdfast.job import ClaimedJob, NewJob
from holdfast.lifecycle import Complete
from holdfast.store import NewWorker, Settled, Settlement, Store


class IdleWorker:
    def __init__(self, store: Store, id: UUID) -> None:
        self.store = store
        self.id = id
        self._ids = Ids()

    async def enqueue(self, count: int) -> None:
        """It makes its jobs itself, too."""
        await self.store.enqueue([NewJob(id, TASK, QUEUE, '{"number":1}') for id in self._ids.make_many(count)])

    async def claim(self, slots: int, most_behind: int = 0) -> list[ClaimedJob]:
        """`most_behind`: so many of them may be behind others of their order."""
        return await self.store.claim(self.id, uuid4(), {QUEUE: slots - most_behind}, None, most_behind)

    async def settle(self, jobs: Sequence[ClaimedJob]) -> list[Settled]:
        return await self.store.settle(
            [Settlement(job.id, job.token, Complete("null"), job.is_keyed, job.is_lined) for job in jobs]
        )


@asynccontextmanager
async def registered_worker(site: Site, retention: Retention | None = None) -> AsyncIterator[IdleWorker]:
    store = site.make_store(retention)
    await store.open()
    worker = IdleWorker(store, uuid4())
    await store.register(NewWorker(worker.id, "bench"))
    try:
        yield worker
    finally:
        await store.close()
