"""Wakes of lines that are not there: none is carried about for ever, and none is lost that a job waits for."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Final
from uuid import UUID

from holdfast.lifecycle import Complete, GiveBack
from holdfast.store import Settlement
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_contract.lines import limit, order, tenant, together
from tests.postgres.conftest import Opener
from tests.postgres.database import PATIENCE, Database
from tests.postgres.jobs import QUEUE, claim, enqueue, register, settle
from tests.postgres.proxy import Harm, Proxy

DELAY: Final = timedelta(hours=1)
JOBS: Final = 150


async def _forget_jobs(database: Database) -> None:
    """As if they had been pruned."""
    await database.ask("delete from holdfast.jobs")


async def test_a_wake_of_a_line_that_was_forgotten_is_let_go(store: PostgresStore, database: Database) -> None:
    worker = await register(store)
    [id] = await enqueue(store, line=limit(1))
    await settle(store, await claim(store, worker), Complete())
    assert await claim(store, worker) == [], "its line is closed"
    [id] = await enqueue(store, line=limit(1), delay=DELAY)
    assert await claim(store, worker) == [], "its line is told that it has come"
    await store.pause(QUEUE)
    await database.ask("update holdfast.jobs set due_at = 0 where id = $1", id)
    await store.tick()
    await store.cancel([id], "")
    await _forget_jobs(database)
    await store.prune()
    assert await database.value("select count(*) from holdfast.lines") == 0
    assert await database.value("select count(*) from holdfast.wakes") == 1
    await store.resume(QUEUE)
    assert await claim(store, worker) == []
    assert await store.busy_queues() == []


async def _leave_a_closed_line(database: Database, store: PostgresStore, worker: UUID) -> None:
    """Of whose jobs nothing is known any more."""
    await enqueue(store, line=limit(1))
    await settle(store, await claim(store, worker), Complete())
    assert await claim(store, worker) == [], "its line is closed"
    await _forget_jobs(database)


async def test_what_a_wake_tells_is_kept_while_its_line_is_being_forgotten(
    database: Database, store: PostgresStore, proxy: Proxy, make_store: Opener
) -> None:
    """Whoever takes the wake sees the line, and can't have it: soon nobody else could make it anew."""
    worker = await register(store)
    await _leave_a_closed_line(database, store, worker)
    pruner = make_store(proxy.url)
    await pruner.open()
    held = proxy.plan(Harm.HOLD, text="lines = 0")
    pruning = asyncio.create_task(pruner.prune())
    await held.happened.wait()
    ids = await enqueue(store, line=limit(1))
    assert await claim(store, worker) == [], "its line is in the pruner's hands"
    held.release.set()
    await pruning
    assert await database.value("select count(*) from holdfast.lines") == 0
    assert [job.id for job in await claim(store, worker)] == ids


async def test_a_line_that_gets_a_job_while_others_are_forgotten_is_made_anew(
    database: Database, store: PostgresStore, proxy: Proxy, make_store: Opener
) -> None:
    """Between the pruner's looks at lines and at their jobs."""
    worker = await register(store)
    await _leave_a_closed_line(database, store, worker)
    pruner = make_store(proxy.url)
    await pruner.open()
    held = proxy.plan(Harm.HOLD, text="delete from holdfast.lines")
    pruning = asyncio.create_task(pruner.prune())
    await held.happened.wait()
    ids = await enqueue(store, line=limit(1))
    running = await claim(store, worker)
    held.release.set()
    await pruning
    running += await claim(store, worker)
    assert [job.id for job in running] == ids
    assert await database.value("select held from holdfast.gates") == 1
    assert await database.value("select count(*) from holdfast.lines") == 1


async def test_a_wake_is_not_missed_that_is_let_go_while_its_line_is_being_made(
    database: Database, store: PostgresStore, proxy: Proxy, make_store: Opener
) -> None:
    """Whoever makes the line opens it, though he has not heard of that one."""
    worker = await register(store)
    far = make_store(proxy.url)
    await far.open()
    ids = await enqueue(store, line=limit(5))
    held = proxy.plan(Harm.HOLD, text="insert into holdfast.gates")
    making = asyncio.create_task(claim(far, await register(far), 5))
    await held.happened.wait()
    ids += await enqueue(store, line=limit(5), delay=DELAY)
    # His is the only one that tells how to make it.
    await database.ask("delete from holdfast.wakes where seq = (select max(seq) from holdfast.wakes)")
    await database.ask("update holdfast.jobs set due_at = 0 where id = $1", ids[1])
    await store.tick()
    assert await claim(store, worker, 5) == []
    assert await database.value("select count(*) from holdfast.wakes") == 1, "his own, which he has in hand"
    held.release.set()
    claimed = [*await making, *await claim(store, worker, 5)]
    assert [job.id for job in claimed] == ids


async def test_nobody_is_forgotten_where_lines_come_and_go_all_the_time(database: Database, make_store: Opener) -> None:
    """Each key has a job now and then: its line is forgotten, or being forgotten, when the next one comes."""
    stores = [make_store() for _ in range(4)]
    for store in stores:
        await store.open()
    chance = random.Random(5)
    rules = [limit(1, "a"), limit(2, "b"), order("c"), together(order("d"), limit(1, "e")), tenant("t")]
    enqueued: set[UUID] = set()
    done: set[UUID] = set()

    async def produce() -> None:
        while len(enqueued) < JOBS:
            delay = chance.choice([None, None, timedelta(milliseconds=5)])
            enqueued.update(await enqueue(stores[0], line=chance.choice(rules), delay=delay))
            await asyncio.sleep(chance.random() / 50)

    async def work(store: PostgresStore) -> None:
        worker = await register(store)
        while len(done) < JOBS:
            for job in await claim(store, worker, 3):
                is_over = chance.random() < 0.7
                end = Complete() if is_over else GiveBack(timedelta(milliseconds=chance.choice([0, 5])))
                await store.settle([Settlement(job.id, job.token, end, is_lined=True)])
                done.update([job.id] if is_over else [])
            await asyncio.sleep(chance.random() / 100)

    async def look_after() -> None:
        while len(done) < JOBS:
            await stores[3].tick()
            await database.ask("delete from holdfast.jobs where stage = 4")
            await stores[3].prune()

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for act in (produce(), look_after(), *map(work, stores[:3])):
            group.create_task(act)
    assert done == enqueued
    worker = await register(stores[0])
    async with asyncio.timeout(PATIENCE):
        while await stores[0].busy_queues():
            assert await claim(stores[0], worker) == []
