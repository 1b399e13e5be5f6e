"""The limit program is measured beside every release, so it has to keep up with the schema and its statements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.app import TASK
from benchmarks.limit import Limit
from benchmarks.program import open_limit
from holdfast import Holdfast

JOBS = 10


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue("migrated_database"))


@pytest.fixture
async def limit(url: str) -> AsyncIterator[Limit]:
    limit = await open_limit(url)
    yield limit
    await limit.close()


async def test_the_limit_program_enqueues_claims_and_completes_jobs(url: str, limit: Limit) -> None:
    await limit.enqueue(range(JOBS))
    claim = await limit.claim(JOBS + 1)
    await limit.settle(claim)
    async with Holdfast(url) as hf:
        done = (await hf.jobs.apage(state="completed")).jobs
        assert [job.task for job in done] == [TASK] * JOBS
        assert {job.args["number"] for job in done} == set(range(JOBS))


async def test_the_limit_program_takes_what_holdfast_has_enqueued(url: str, limit: Limit) -> None:
    async with Holdfast(url) as hf:

        @hf.task(name=TASK)
        async def noop(number: int) -> None: ...

        job = await noop.aenqueue(7)
        await limit.settle(await limit.claim(JOBS))
        assert await job.astate() == "completed"
