"""Callers that are cancelled at any moment: the pool stays whole, nothing stays open, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import count
from uuid import UUID, uuid4

import pytest

from holdfast.job import ClaimedJob, NewJob
from holdfast.lifecycle import Complete, GiveBack
from holdfast.store import Enqueued, Filter, Held, HintKind, NewWorker, Queue, TaskDefinition
from holdfast.stores.postgres import PostgresStore
from tests.crash.rounds import IS_THOROUGH
from tests.postgres.database import PATIENCE, Database, until
from tests.postgres.jobs import FAILURE, QUEUE, bury, claim, enqueue, new, office_of, register, settle, start

_POOL = 3

Act = Callable[[], Awaitable[object]]


class Acts:
    """What is cancelled. Each prepares what it needs, and returns the act."""

    def __init__(self, store: PostgresStore, other: PostgresStore) -> None:
        self.store = store
        self.other = other
        self.pairs: list[Sequence[UUID]] = []
        """Jobs to which the same must have happened."""

    async def open(self) -> Act:
        await self.store.close()
        return self.store.open

    async def enqueue(self) -> Act:
        return self._enqueue(new(), new())

    async def enqueue_with_keys(self) -> Act:
        key = str(uuid4())
        return self._enqueue(new(idempotency_key=key), new(unique_key=key))

    async def enqueue_in_a_narrow_queue(self) -> Act:
        queue = str(uuid4())
        await self.other.declare_queues([Queue(queue, bound=2)])
        return self._enqueue(new(queue=queue), new(queue=queue))

    def _enqueue(self, *jobs: NewJob) -> Act:
        self.pairs.append([job.id for job in jobs])
        return lambda: self.store.enqueue(jobs)

    async def claim(self) -> Act:
        worker, queue = await register(self.other), str(uuid4())
        self.pairs.append(await enqueue(self.other, 2, queue=queue))
        return lambda: claim(self.store, worker, 2, queue)

    async def complete(self) -> Act:
        jobs = await self._start(await register(self.other))
        return lambda: settle(self.store, jobs, Complete())

    async def settle(self) -> Act:
        jobs = await self._start(await register(self.other))
        return lambda: settle(self.store, jobs, GiveBack(is_charged=True, failure=FAILURE))

    async def _start(self, worker: UUID) -> list[ClaimedJob]:
        jobs = await start(self.other, worker, 2)
        self.pairs.append([job.id for job in jobs])
        return jobs

    async def tick(self) -> Act:
        self.pairs.append(await enqueue(self.other, 2, delay=timedelta(microseconds=1)))
        return self.store.tick

    async def cancel(self) -> Act:
        ids = await enqueue(self.other, 2)
        self.pairs.append(ids)
        return lambda: self.store.cancel(ids, "not wanted")

    async def retry(self) -> Act:
        ids = await self._bury()
        return lambda: self.store.retry(ids)

    async def discard(self) -> Act:
        ids = await self._bury()
        return lambda: self.store.discard(ids)

    async def _bury(self) -> list[UUID]:
        ids = await bury(self.other, await register(self.other), 2)
        self.pairs.append(ids)
        return ids

    async def prune(self) -> Act:
        return self.store.prune

    async def register(self) -> Act:
        return lambda: self.store.register(NewWorker(uuid4(), "worker"))

    async def beat(self) -> Act:
        worker = await register(self.store)
        await self._start(worker)
        return lambda: self.store.beat(worker, Held({}))

    async def depart(self) -> Act:
        worker = await register(self.store)
        await self._start(worker)
        return lambda: self.store.depart(worker)

    async def bury_worker(self) -> Act:
        worker = await register(self.store)
        await self._start(worker)
        return lambda: self.store.bury_worker(worker)

    async def rescue(self) -> Act:
        worker = await register(self.other)
        await self._start(worker)
        return lambda: self.store.rescue({worker: 1})

    async def read(self) -> Act:
        return lambda: self.store.page(Filter(queue=QUEUE))

    async def publish(self) -> Act:
        return lambda: self.store.publish_tasks([TaskDefinition(name=str(uuid4()))])

    async def pause(self) -> Act:
        return lambda: self.store.pause("paused")

    async def wait_for_changes(self) -> Act:
        return self._wait_for_changes

    async def _wait_for_changes(self) -> None:
        async with self.store.changes([HintKind.WORK]) as hints:
            await self.other.enqueue([new()])
            await anext(hints)


_VERBS = [name for name in vars(Acts) if not name.startswith("_")]


@pytest.fixture
async def acts(database: Database) -> AsyncIterator[Acts]:
    store, other = PostgresStore(f"{database.url}?pool_size={_POOL}"), PostgresStore(database.url)
    yield Acts(store, other)
    await other.close()
    await store.close()


@pytest.mark.parametrize("verb", _VERBS)
async def test_a_caller_that_is_cancelled_at_any_moment_disturbs_nobody(
    acts: Acts, database: Database, verb: str
) -> None:
    """The caller is cancelled after one turn of the loop, after two, and so on, until it is through before that."""
    store = acts.store
    await acts.other.open()
    async with asyncio.timeout(2 * PATIENCE):
        for turns in count(0, 1 if IS_THOROUGH else 3):
            act = await getattr(acts, verb)()
            neighbour, mine = new(), new(idempotency_key=str(uuid4()))
            caller = asyncio.ensure_future(act())
            others = asyncio.gather(store.enqueue([neighbour]), store.enqueue([mine]), store.get([neighbour.id]))
            for _ in range(turns):
                await asyncio.sleep(0)
            is_through = caller.done()
            caller.cancel()
            await asyncio.wait([caller])
            assert caller.cancelled() or caller.exception() is None
            enqueued, keyed, _ = await others
            assert (enqueued, keyed) == ([Enqueued(neighbour.id)], [Enqueued(mine.id)])
            if is_through:
                break
        await _check_whole(store, database)
        stages = await database.stages()
        for one, other in acts.pairs:
            assert stages.get(one) == stages.get(other), "half of it has happened"
        await acts.other.close()
        await store.close()
        await until(lambda: _are_gone(database))


async def _check_whole(store: PostgresStore, database: Database) -> None:
    """No transaction is open, and all connections of the pool can be used at once."""
    await until(database.is_quiet)
    office = await office_of(store)
    barrier = asyncio.Barrier(_POOL)

    async def use() -> None:
        async with office.pool.connection() as connection:
            await barrier.wait()
            assert await connection.fetch_value("select 1") == 1

    await asyncio.gather(*(use() for _ in range(_POOL)))
    assert len(office.pool._all) == len(office.pool._free) == _POOL


async def _are_gone(database: Database) -> bool:
    return not await database.backends()
