"""Producers and workers that go on whatever happens to the server, and what they were told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID, uuid4

from msgspec.structs import replace

from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.job import ClaimedJob, NewJob
from holdfast.lifecycle import Complete
from holdfast.store import Held, NewWorker, Settled, Settlement
from holdfast.stores.postgres import PostgresStore
from tests.postgres.database import PATIENCE, Database
from tests.postgres.jobs import QUEUE, new

Result = TypeVar("Result")

_PRODUCERS = 3
_WORKERS = 2
_SLOTS = 20


class Load:
    """Of each store, several producers and workers. Any error but the two that a caller must bear ends it."""

    def __init__(self, stores: Sequence[PostgresStore]) -> None:
        self._stores = stores
        self.acked: set[UUID] = set()
        self.doubtful: dict[UUID, NewJob] = {}
        self.refused: set[UUID] = set()
        """Of these, nothing was written."""
        self.settled: dict[UUID, UUID] = {}
        """Jobs, and the token under which their completion was acknowledged."""
        self.stale = 0
        self.errors: Counter[type[Exception]] = Counter()
        self._is_producing = True
        self._is_over = False
        self._progress = asyncio.Condition()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Within it there is load. At its end, everything has been drained."""
        async with asyncio.TaskGroup() as group:
            producers = [group.create_task(self._produce(store)) for store in self._stores for _ in range(_PRODUCERS)]
            workers = [group.create_task(self._work(store)) for store in self._stores for _ in range(_WORKERS)]
            try:
                yield
            finally:
                self._is_producing = False
            async with asyncio.timeout(2 * PATIENCE):
                await asyncio.gather(*producers)
                await self._resolve_doubts()
                self._is_over = True
                await asyncio.gather(*workers)

    async def get_on(self, more: int = 200) -> None:
        """Wait until so many more jobs were acknowledged, and so many more completed."""
        acked, settled = len(self.acked) + more, len(self.settled) + more
        async with asyncio.timeout(PATIENCE), self._progress:
            await self._progress.wait_for(lambda: len(self.acked) >= acked and len(self.settled) >= settled)

    async def _tell(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    # ── producing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _produce(self, store: PostgresStore) -> None:
        number = 0
        while self._is_producing:
            number += 1
            jobs = [new(priority=number % 10) for _ in range(1 + number % 4)]
            if number % 3 == 0:
                jobs = [replace(job, unique_key=job.id.hex) for job in jobs]
            await self._enqueue(store, jobs)
            await self._tell()

    async def _enqueue(self, store: PostgresStore, jobs: list[NewJob]) -> None:
        ids = [job.id for job in jobs]
        try:
            answers = await store.enqueue(jobs)
        except OutcomeUnknown as error:
            self.errors[OutcomeUnknown] += 1
            of_ids = {job.id: job for job in jobs}
            self.doubtful |= {id: of_ids[id] for id in error.ids}
        except StoreUnavailable:
            self.errors[StoreUnavailable] += 1
            self.refused.update(ids)
        else:
            assert [answer.id for answer in answers] == ids
            assert not any(answer.is_existing for answer in answers)
            self.acked.update(ids)

    async def _resolve_doubts(self) -> None:
        while self.doubtful:
            id, job = self.doubtful.popitem()
            try:
                (answer,) = await self._stores[0].enqueue([replace(job, is_repeat=True)])
            except (OutcomeUnknown, StoreUnavailable):
                self.doubtful[id] = job
            else:
                assert answer.id == id
                self.acked.add(id)

    # ── working ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _work(self, store: PostgresStore) -> None:
        worker = NewWorker(uuid4(), "load", queues=(QUEUE,))
        await self._insist(lambda: store.register(worker))
        while True:
            claimed: list[ClaimedJob] = []
            was_over = self._is_over
            try:
                claimed = await store.claim(worker.id, uuid4(), {QUEUE: _SLOTS})
            except (OutcomeUnknown, StoreUnavailable) as error:
                self.errors[type(error)] += 1
            if claimed:
                await self._settle(store, claimed)
            else:
                # Whatever an earlier claim took without an answer, the beat gives back.
                beaten = await self._insist(lambda: store.beat(worker.id, Held({})))
                assert beaten.is_alive
                if was_over and not beaten.released and len(self.settled) >= len(self.acked):
                    return
                await asyncio.sleep(0.01)
            await self._tell()

    async def _settle(self, store: PostgresStore, claimed: list[ClaimedJob]) -> None:
        settlements = [Settlement(job.id, job.token, Complete(f'"{job.token}"')) for job in claimed]
        answers = await self._insist(lambda: store.settle(settlements))
        for job, answer in zip(claimed, answers, strict=True):
            if answer is Settled.STALE:
                self.stale += 1
            else:
                assert self.settled.setdefault(job.id, job.token) == job.token, "two claims have completed one job"

    async def _insist(self, act: Callable[[], Awaitable[Result]]) -> Result:
        while True:
            try:
                return await act()
            except (OutcomeUnknown, StoreUnavailable) as error:
                self.errors[type(error)] += 1
                await asyncio.sleep(0.01)

    # ── checking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def check(self, database: Database) -> None:
        """Everything acknowledged is there, once, completed by whom we were told, and nothing else is."""
        rows = await database.ask("select id, stage, token, result from holdfast.jobs")
        there = {row["id"] for row in rows}
        assert not self.acked - there, "acknowledged jobs are lost"
        assert not self.refused & there, "jobs are there of which it was said that nothing was written"
        assert there == self.acked
        assert {row["stage"] for row in rows} == {4}
        assert {row["id"]: row["result"] for row in rows} == {id: f'"{token}"' for id, token in self.settled.items()}
        assert not await database.stuck()
