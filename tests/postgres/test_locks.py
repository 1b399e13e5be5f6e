"""Who waits for whom, and who does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import QueueFull, WorkerDeclaredDead
from holdfast.job import Stage
from holdfast.store import Queue
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.request import Options, Request
from holdfast.stores.postgres.statements import statement
from tests.postgres.database import Database, until
from tests.postgres.jobs import QUEUE, claim, enqueue, new, register

_WAITING = "select count(*) > 0 from pg_stat_activity where application_name = 'holdfast' and wait_event_type = 'Lock'"


async def test_a_claim_passes_over_what_somebody_else_has_locked(store: PostgresStore, database: Database) -> None:
    worker = await register(store)
    locked, free = await enqueue(store, 2)
    user = await database.connect()
    try:
        async with user.transaction():
            await user.execute("select from holdfast.jobs where id = $1 for update", locked)
            claiming = asyncio.create_task(claim(store, worker, 2))
            await _until_done_or_waiting(claiming, database)
            assert claiming.done(), "it waits"
            assert [job.id for job in await claiming] == [free]
    finally:
        await user.close()


async def test_a_claim_waits_for_whoever_is_ending_its_worker(store: PostgresStore, database: Database) -> None:
    worker = await register(store)
    (id,) = await enqueue(store)
    user = await database.connect()
    try:
        async with user.transaction():
            await user.execute("select from holdfast.workers where id = $1 for update", worker)
            await user.execute("update holdfast.workers set dead_at = 1 where id = $1", worker)
            claiming = asyncio.create_task(claim(store, worker))
            await _until_done_or_waiting(claiming, database)
            assert not claiming.done(), "it took a job for a worker whose jobs were being taken over"
        with pytest.raises(WorkerDeclaredDead):
            await claiming
    finally:
        await user.close()
    (record,) = await store.get([id])
    assert record.stage is Stage.READY


async def test_producers_of_a_small_queue_take_turns(store: PostgresStore, database: Database) -> None:
    await store.declare_queues([Queue(QUEUE, bound=1)])
    other = await database.connect()
    try:
        async with other.transaction():
            request = Request([[new()]])
            await other.fetchval(statement("enqueue"), request.jobs(), request.options(Options(is_locking=True)))
            enqueuing = asyncio.create_task(store.enqueue([new()]))
            await _until_done_or_waiting(enqueuing, database)
            assert not enqueuing.done(), "it did not wait for a job that may have taken the last place"
        with pytest.raises(QueueFull):
            await enqueuing
    finally:
        await other.close()


async def _until_done_or_waiting(task: asyncio.Task[Any], database: Database) -> None:
    async def holds() -> bool:
        return task.done() or bool(await database.value(_WAITING))

    await until(holds)
