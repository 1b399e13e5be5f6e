"""A worker that runs nothing: it claims, and settles what it claimed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

from benchmarks.limit import QUEUE
from holdfast.job import ClaimedJob
from holdfast.lifecycle import Complete
from holdfast.store import NewWorker, Settlement
from holdfast.stores.sqlite import SqliteStore


class IdleWorker:
    def __init__(self, store: SqliteStore, id: UUID) -> None:
        self.store = store
        self._id = id

    async def claim(self, slots: int) -> list[ClaimedJob]:
        return await self.store.claim(self._id, uuid4(), {QUEUE: slots})

    async def settle(self, jobs: Sequence[ClaimedJob]) -> None:
        await self.store.settle([Settlement(job.id, job.token, Complete("null"), job.is_keyed) for job in jobs])


@asynccontextmanager
async def registered_worker(path: Path) -> AsyncIterator[IdleWorker]:
    store = SqliteStore(path)
    await store.open()
    worker = IdleWorker(store, uuid4())
    await store.register(NewWorker(worker._id, "bench"))
    try:
        yield worker
    finally:
        await store.close()
