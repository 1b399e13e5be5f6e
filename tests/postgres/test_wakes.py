"""Wakes of lines that are not there: none is carried about for ever, and none is lost that a job waits for."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from holdfast.lifecycle import Complete
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_contract.lines import limit
from tests.postgres.conftest import Opener
from tests.postgres.database import Database
from tests.postgres.jobs import QUEUE, claim, enqueue, register, settle
from tests.postgres.proxy import Harm, Proxy

DELAY: Final = timedelta(hours=1)


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


async def test_what_a_wake_tells_is_kept_while_its_line_is_being_forgotten(
    database: Database, store: PostgresStore, proxy: Proxy, make_store: Opener
) -> None:
    """Whoever takes the wake sees the line, and can't have it: soon nobody else could make it anew."""
    worker = await register(store)
    await enqueue(store, line=limit(1))
    await settle(store, await claim(store, worker), Complete())
    assert await claim(store, worker) == [], "its line is closed"
    await _forget_jobs(database)
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
    await enqueue(store, line=limit(1))
    await settle(store, await claim(store, worker), Complete())
    assert await claim(store, worker) == [], "its line is closed"
    await _forget_jobs(database)
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
