"""Bounds among threads and processes that know little of each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import pytest

from holdfast.errors import QueueFull
from holdfast.job import JobState
from holdfast.lifecycle import Complete
from holdfast.store import Filter, Queue
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.admission import FRESH_FOR, LARGE
from holdfast.stores.postgres.request import Options, Request
from holdfast.stores.postgres.statements import statement
from tests.postgres.conftest import Opener
from tests.postgres.database import PATIENCE, Database, until
from tests.postgres.jobs import QUEUE, claim, enqueue, new, register, settle

DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"


async def test_a_small_bound_is_exact_among_threads_that_share_a_store_or_have_their_own(
    database: Database, store: PostgresStore
) -> None:
    await store.declare_queues([Queue(QUEUE, bound=200)])

    async def produce(mine: PostgresStore, is_shared: bool) -> int:
        outcomes = await asyncio.gather(*(mine.enqueue([new()]) for _ in range(60)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {list, QueueFull}, outcomes
        if not is_shared:
            await mine.close()
        return sum(isinstance(outcome, list) for outcome in outcomes)

    stores = [(store, True)] * 3 + [(PostgresStore(database.url), False) for _ in range(3)]
    taken = await in_threads([produce(*each) for each in stores])
    assert sum(taken) == 200
    assert await store.count(Filter(queue=QUEUE)) == 200


async def in_threads(work: list[Coroutine[Any, Any, int]]) -> list[int]:
    """Run each in a thread and an event loop of its own."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(work)) as threads:
        return await asyncio.gather(*(loop.run_in_executor(threads, asyncio.run, each) for each in work))


async def test_threads_that_share_a_store_claim_each_job_once(store: PostgresStore) -> None:
    """What a store has learnt about where to look is learnt by all its threads at the same time."""
    await enqueue(store, 600)

    async def work() -> int:
        worker, taken = await register(store), 0
        while jobs := await claim(store, worker, 7):
            taken += len(jobs)
            await settle(store, jobs, Complete())
        return taken

    assert sum(await in_threads([work() for _ in range(4)])) == 600
    assert await store.count(Filter(states=frozenset({JobState.COMPLETED}))) == 600


async def test_a_count_that_is_out_of_date_lets_nobody_pass_by_himself(
    database: Database, store: PostgresStore
) -> None:
    await store.declare_queues([Queue(QUEUE, bound=2 * LARGE)])
    await database.ask("update holdfast.queues set waiting = 0, measured_at = holdfast.now() + 3600000000")
    for _ in range(20):
        await enqueue(store, LARGE // 10)
    with pytest.raises(QueueFull):
        await store.enqueue([new()])


async def test_while_one_counts_the_others_go_by_what_is_known(database: Database, make_store: Opener) -> None:
    name = await database.value("select current_database()")
    await database.execute(f"alter database {name} set track_functions = 'all'")
    stores = [make_store() for _ in range(6)]
    for store in stores:
        await store.open()
    await stores[0].declare_queues([Queue(QUEUE, bound=1_000_000)])
    # Counting took a second the last time, so it is not to be done again for twenty; but these are over.
    await database.ask("update holdfast.queues set measured_in = 1000000, measured_at = holdfast.now() - 21000000")
    user = await database.connect()
    began = time.monotonic()
    try:
        async with user.transaction():
            await produce_on(user)
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(store.enqueue([new()]) for store in stores))
    finally:
        await user.close()
    for store in stores:
        await store.close()
    # A count is good for a moment; on a machine where all of this takes longer than that, another is due.
    moments = (time.monotonic() - began) // FRESH_FOR
    assert 1 <= await counted(database) <= 1 + moments


async def counted(database: Database) -> int:
    """How often a queue was counted. What a connection has done is told when it has ended."""

    async def have_ended() -> bool:
        return not await database.backends()

    await until(have_ended)
    calls: int = await database.value("select calls from pg_stat_user_functions where funcname = 'measure'")
    return calls


async def test_whoever_tells_the_depth_waits_for_nobody(database: Database, store: PostgresStore) -> None:
    """One who waits for his turn may have the row of the queue already: whoever has the turn must not wait for it."""
    await store.declare_queues([Queue(QUEUE, bound=100)])
    await database.ask("update holdfast.queues set measured_at = holdfast.now() + 1000000")
    first, second, third = [await database.connect() for _ in range(3)]
    try:
        for connection in (first, second, third):
            await connection.execute("begin")
        await produce_on(first)
        waiting = [asyncio.create_task(produce_on(second))]
        await until_waiting(database, 1)
        await database.ask("select pg_sleep(1.3)")  # what is known grows old, so the next one would tell it anew
        waiting.append(asyncio.create_task(produce_on(third)))
        await until_waiting(database, 2)
        for connection, task in zip((first, second, third), (None, *waiting), strict=True):
            if task is not None:
                await task
            await connection.execute("commit")
    finally:
        for connection in (first, second, third):
            connection.terminate()  # one of them may be waiting
    assert await store.count(Filter(queue=QUEUE)) == 3
    assert await database.value(DEADLOCKS) == 0


async def produce_on(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    request = Request([[new()]])
    await connection.fetchval(statement("enqueue"), request.jobs(), request.options(Options(is_locking=True)))


async def until_waiting(database: Database, number: int) -> None:
    async def holds() -> bool:
        waiting: int = await database.value("""
            select count(*) from pg_stat_activity
            where datname = current_database() and application_name = 'user' and wait_event_type = 'Lock'
        """)
        return waiting == number

    await until(holds)
