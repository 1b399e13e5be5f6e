"""Who waits for whom, and who does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import IdempotencyConflict, QueueFull, StoreUnavailable, WorkerDeclaredDead
from holdfast.job import Stage
from holdfast.store import Enqueued, Queue
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.request import Options, Request
from holdfast.stores.postgres.statements import statement
from tests.postgres.database import Database, until
from tests.postgres.jobs import QUEUE, claim, enqueue, new, register

_WAITING = """
    select count(*) > 0 from pg_stat_activity
    where datname = current_database() and application_name = $1 and wait_event_type = 'Lock'
"""


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


@pytest.mark.parametrize("is_same", [True, False], ids=["the same job", "another job"])
async def test_who_enqueues_an_id_that_somebody_is_enqueuing_is_told_the_truth(
    store: PostgresStore, database: Database, is_same: bool
) -> None:
    first = new(is_repeat=True)
    second = first if is_same else replace(first, args_json='{"other":1}')
    user = await database.connect()
    try:
        async with user.transaction():
            await store.enqueue([first], tx=user)
            enqueuing = asyncio.create_task(store.enqueue([new(), second]))
            await database.until_waiting()
        if is_same:
            assert (await enqueuing)[1] == Enqueued(first.id, is_existing=True)
        else:
            with pytest.raises(IdempotencyConflict):
                await enqueuing
            assert await database.ids() == [first.id], "all of them or none"
    finally:
        await user.close()


async def test_a_transaction_that_was_overtaken_with_its_id_is_to_be_tried_again(
    store: PostgresStore, database: Database
) -> None:
    job = new(is_repeat=True)
    user, slower = await database.connect(), await database.connect()
    try:
        await slower.execute("begin")
        async with user.transaction():
            await store.enqueue([job], tx=user)
            enqueuing = asyncio.create_task(store.enqueue([job], tx=slower))
            await _until_done_or_waiting(enqueuing, database, "user")
        with pytest.raises(StoreUnavailable, match="try it again"):
            await enqueuing
        await slower.execute("rollback")
        async with slower.transaction():
            assert await store.enqueue([job], tx=slower) == [Enqueued(job.id, is_existing=True)]
    finally:
        await user.close()
        await slower.close()


async def _until_done_or_waiting(task: asyncio.Task[Any], database: Database, application: str = "holdfast") -> None:
    async def holds() -> bool:
        return task.done() or bool(await database.value(_WAITING, application))

    await until(holds)
