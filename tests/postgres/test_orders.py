"""An order is kept whatever rows others have locked: nobody comes before a job that may stay ready."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast.gates import GateKind, GateRule, LineRule
from holdfast.job import ClaimedJob
from holdfast.lifecycle import Complete, GiveBack
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_contract.lines import limit
from tests.postgres.database import Database
from tests.postgres.jobs import QUEUE, claim, enqueue, register, settle

ORDER = LineRule((GateRule(GateKind.ORDER, "task", "key", 10),))


@contextmanager
def locked(database: Database, job: UUID) -> Iterator[None]:
    """Somebody has the job's row in hand, and leaves it as it is."""
    with psycopg.connect(database.url) as connection:
        connection.execute("select from holdfast.jobs where id = %s for update", [job])
        yield
        connection.rollback()


async def claim_train(store: PostgresStore, worker: UUID) -> list[ClaimedJob]:
    return await store.claim(worker, uuid4(), {QUEUE: 5}, None, 9)


@pytest.mark.parametrize("is_known", [False, True])
async def test_nobody_comes_before_a_locked_job_of_an_order(
    store: PostgresStore, database: Database, is_known: bool
) -> None:
    worker = await register(store)
    if is_known:  # the line is there, and is expected to lead to an order
        await enqueue(store, 1, line=ORDER)
        await settle(store, await claim_train(store, worker), Complete())
    ids = await enqueue(store, 3, line=ORDER)
    with locked(database, ids[0]):
        assert await claim_train(store, worker) == []
        assert await claim(store, worker, 5) == []
    assert [job.id for job in await claim_train(store, worker)] == ids


async def test_a_train_ends_before_a_locked_job(store: PostgresStore, database: Database) -> None:
    worker = await register(store)
    ids = await enqueue(store, 4, line=ORDER)
    with locked(database, ids[2]):
        train = await claim_train(store, worker)
        assert [job.id for job in train] == ids[:2]
        assert await claim_train(store, worker) == []
    assert await claim_train(store, worker) == []
    await settle(store, train, Complete())
    assert [job.id for job in await claim_train(store, worker)] == ids[2:]


async def test_a_locked_job_that_has_an_order_is_claimed_when_it_is_free(
    store: PostgresStore, database: Database
) -> None:
    worker = await register(store)
    ids = await enqueue(store, 2, line=ORDER)
    [first] = await claim(store, worker)
    assert first.id == ids[0]
    await settle(store, [first], GiveBack())
    with locked(database, ids[0]):
        assert await claim_train(store, worker) == []
        assert await claim_train(store, worker) == []
    assert [job.id for job in await claim(store, worker, 5)] == ids[:1]


async def test_without_an_order_others_come_before_a_locked_job(store: PostgresStore, database: Database) -> None:
    worker = await register(store)
    ids = await enqueue(store, 3, line=limit(5))
    with locked(database, ids[0]):
        assert [job.id for job in await claim(store, worker, 5)] == ids[1:]
    assert [job.id for job in await claim(store, worker, 5)] == ids[:1]
