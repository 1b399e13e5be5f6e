"""Services in other languages enqueue with a function in the database, and what they pass is looked at there."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest

from holdfast import DeadJob, Holdfast, JobState
from holdfast.ids import Ids

ids = Ids()
NO_OBJECTS = ["not json", "[1]", "", "null", "7", '"text"', '{"order":', "[" * 100_000]


def new_job(args: str) -> dict[str, Any]:
    return {"id": str(ids.make()), "task": "work", "queue": "default", "args": args}


def enqueue(connection: psycopg.Connection[Any], *args: str, options: str = "{}") -> None:
    jobs = json.dumps([new_job(each) for each in args])
    connection.execute("select holdfast.enqueue(%s, %s)", [jobs, options])


@pytest.mark.parametrize("args", NO_OBJECTS, ids=range(len(NO_OBJECTS)))
def test_arguments_that_are_no_object_are_an_error_that_says_which_and_what_to_do(
    migrated_database: str, args: str
) -> None:
    with psycopg.connect(migrated_database) as connection:
        bad = new_job(args)
        jobs = json.dumps([new_job("{}"), bad, new_job("{}")])
        with pytest.raises(psycopg.errors.InvalidParameterValue) as caught, connection.transaction():
            connection.execute("select holdfast.enqueue(%s)", [jobs])
        said = f"the args of job {bad['id']}, task work, are not an object in JSON"
        assert said in str(caught.value)
        assert "Pass the arguments by name" in (caught.value.diag.message_hint or "")
        assert "not json" not in str(caught.value), "it may be secret"
        assert connection.execute("select count(*) from holdfast.jobs").fetchone() == (0,)


@pytest.mark.parametrize("args", ["{}", ' {"order" : 7}\n', '{"order":"\\u0000"}', '{"order":{"lines":[1,2.5e3]}}'])
def test_any_object_is_taken(migrated_database: str, args: str) -> None:
    with psycopg.connect(migrated_database) as connection:
        enqueue(connection, args, args)
        assert connection.execute("select count(*) from holdfast.jobs where args = %s", [args]).fetchone() == (2,)


async def test_one_that_came_in_unchecked_hides_no_other_job_and_no_other_dead_letter(migrated_database: str) -> None:
    hf, told = Holdfast(migrated_database), asyncio.Queue[DeadJob]()

    @hf.task
    async def work(order: int) -> None: ...

    @hf.on_dead
    async def page_someone(job: DeadJob) -> None:
        told.put_nowait(job)

    def enqueue_unchecked() -> None:
        with psycopg.connect(migrated_database) as connection:
            # As an older schema took them.
            enqueue(connection, "not json", '{"order":"late"}', "[1]", options='{"is_checked": true}')

    async with hf:
        await hf.jobs.acount()
        await asyncio.to_thread(enqueue_unchecked)
        await work.options(delay="1h").aenqueue(order=7)
        async with hf.worker(), asyncio.timeout(30):
            heard = [await told.get() for _ in range(3)]
        assert {(job.args.get("order"), job.unreadable_args) for job in heard} == {
            (None, "not json"),
            (None, "[1]"),
            ("late", None),
        }
        page = await hf.jobs.apage(args={"order": 7})
        assert [job.state for job in page.jobs] == [JobState.PENDING]
        assert await hf.jobs.acount(args={"order": "late"}, state=[JobState.DEAD]) == 1
