"""Large arguments: a batch never grows beyond what the server takes in one piece."""

from __future__ import annotations

import asyncio
import string
from random import Random

import psycopg
import pytest
from msgspec.structs import replace

from holdfast.errors import InvalidOption, PayloadTooLarge
from holdfast.ids import Ids
from holdfast.job import NewJob
from holdfast.store import Filter
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.enqueuing import weigh

LARGE = '{"text":"' + "x" * (256 * 1024 - 12) + '"}'


def new_jobs(number: int, args: str = "{}") -> list[NewJob]:
    return [NewJob(id, "task", "default", args) for id in Ids().make_many(number)]


def test_a_job_weighs_what_its_arguments_do() -> None:
    assert weigh(new_jobs(10)) == 10
    assert weigh(new_jobs(10, LARGE)) == 10 * 256


async def test_a_call_that_is_too_large_for_one_transaction_is_refused(migrated_database: str) -> None:
    store = PostgresStore(migrated_database)
    try:
        with pytest.raises(PayloadTooLarge, match="Send at most 128 MiB a call"):
            await store.enqueue(new_jobs(600, LARGE))
        assert await store.count(Filter()) == 0
    finally:
        await store.close()


@pytest.mark.parametrize("field", ["idempotency_key", "unique_key"])
async def test_a_key_that_no_index_could_hold_is_refused_before_it_ends_a_transaction(
    migrated_database: str, field: str
) -> None:
    store = PostgresStore(migrated_database)
    (job,) = new_jobs(1)
    too_long = replace(job, **{field: "é" * 1_300})
    try:
        with pytest.raises(InvalidOption, match=r"at most 2,600 bytes .* or a hash of the key"):
            await store.enqueue([too_long])
        with psycopg.connect(migrated_database) as connection:
            with pytest.raises(InvalidOption):
                store.enqueue_in(connection, [too_long])
            store.enqueue_in(connection, [replace(job, **{field: incompressible(2_596)})])
        assert await store.count(Filter()) == 1
    finally:
        await store.close()


def incompressible(size: int) -> str:
    """An index compresses what it holds, so that a text must have no pattern to be as large as it is long."""
    random = Random(1)
    return "".join(random.choice(string.ascii_letters + string.digits + string.punctuation) for _ in range(size))


async def test_many_large_jobs_at_once_go_in_several_batches(migrated_database: str) -> None:
    store = PostgresStore(migrated_database)
    try:
        jobs = new_jobs(150, LARGE)
        answers = await asyncio.gather(*(store.enqueue([job]) for job in jobs))
        assert [answer.id for (answer,) in answers] == [job.id for job in jobs]
        [record] = await store.get([jobs[-1].id])
        assert record.args_json == LARGE
    finally:
        await store.close()
