"""Large arguments: a batch never grows beyond what the server takes in one piece."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import PayloadTooLarge
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


async def test_a_call_that_is_too_large_for_one_transaction_is_refused(postgres_database: str) -> None:
    store = PostgresStore(postgres_database)
    try:
        with pytest.raises(PayloadTooLarge, match="Send at most 128 MiB a call"):
            await store.enqueue(new_jobs(600, LARGE))
        assert await store.count(Filter()) == 0
    finally:
        await store.close()


async def test_many_large_jobs_at_once_go_in_several_batches(postgres_database: str) -> None:
    store = PostgresStore(postgres_database)
    try:
        jobs = new_jobs(150, LARGE)
        answers = await asyncio.gather(*(store.enqueue([job]) for job in jobs))
        assert [answer.id for (answer,) in answers] == [job.id for job in jobs]
        [record] = await store.get([jobs[-1].id])
        assert record.args_json == LARGE
    finally:
        await store.close()
