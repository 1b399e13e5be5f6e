"""What must be true of a database after any crash."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec

from holdfast.ids import Ids
from holdfast.job import NewJob
from holdfast.lifecycle import Complete
from holdfast.store import NewWorker, Settled, Settlement
from holdfast.stores.sqlite import SqliteStore
from tests.crash.journal import Entries
from tests.crash.line import PATIENCE

TASK = "crash"
QUEUE = "crash"
_PROBE = "probe"

ids = Ids()


def new_job(id: UUID | None = None, **options: Any) -> NewJob:
    """A job whose key, in its arguments, is its id."""
    id = id or ids.make()
    return NewJob(id, TASK, options.pop("queue", QUEUE), f'{{"key":"{id.hex}"}}', **options)


def key_of(job: NewJob) -> str:
    return job.id.hex


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[SqliteStore]:
    """A store as the next process would open it."""
    store = SqliteStore(path, **options)
    try:
        async with asyncio.timeout(PATIENCE):
            await store.open()
            yield store
    finally:
        await store.close()


def look(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Ask the file itself, without Holdfast."""
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute(sql).fetchall()


def keys_in(path: Path) -> list[str]:
    return [
        str(msgspec.json.decode(args)["key"])
        for (args,) in look(path, f"select args from holdfast_jobs where task = '{TASK}'")
    ]


async def audit(path: Path, journal: Path) -> None:
    """Everything acknowledged is there once, nothing else is but what was meant, and the store works at once."""
    async with opened(path) as store:
        check_keys(keys_in(path), Entries(journal))
        await check_counters(store)
        assert look(path, "pragma integrity_check") == [("ok",)]
        await check_usable(store)


def check_keys(found: list[str], entries: Entries) -> None:
    there = Counter(found)
    lost = set(entries.acked) - set(there)
    assert not lost, f"{len(lost)} acknowledged jobs are lost, of {len(entries.acked)}"
    doubled = [key for key, count in there.items() if count > 1]
    assert not doubled, f"jobs that are there more than once: {doubled[:5]}"
    unexpected = set(there) - entries.intended
    assert not unexpected, f"jobs that nobody enqueued: {list(unexpected)[:5]}"
    for batch in entries.batches:
        present = sum(key in there for key in batch)
        assert present in (0, len(batch)), f"{present} of a batch of {len(batch)} are there"


async def check_counters(store: SqliteStore) -> None:
    counted = """
        select queue, sum(stage = 2 or (stage = 1 and attempt > 0)), sum(stage = 1 and attempt = 0)
        from holdfast_jobs group by queue
    """
    real = {queue: (waiting, scheduled) for queue, waiting, scheduled in look(store.path, counted)}
    kept = {queue.name: (queue.waiting, queue.scheduled) for queue in await store.queues()}
    assert {name: kept.get(name, (0, 0)) for name in {*real, *kept}} == {
        name: real.get(name, (0, 0)) for name in {*real, *kept}
    }


async def check_usable(store: SqliteStore) -> None:
    """A job goes all the way through."""
    probe = NewJob(ids.make(), _PROBE, _PROBE, "{}")
    worker, token = uuid4(), uuid4()
    await store.enqueue([probe])
    await store.register(NewWorker(worker, _PROBE))
    (claimed,) = await store.claim(worker, token, {_PROBE: 1})
    assert claimed.id == probe.id
    assert await store.settle([Settlement(probe.id, token, Complete())]) == [Settled.APPLIED]
    await store.depart(worker)
