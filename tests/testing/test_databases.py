"""hf.testing(url): the same on a real database."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from holdfast import Context, Holdfast, Retry, RunningLoop
from holdfast.testing import CrashPoint


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'test.db'}"
    else:
        yield request.getfixturevalue("migrated_database")


def test_jobs_run_on_a_database(hf: Holdfast, url: str) -> None:
    @hf.task(bind=True, retry=Retry(2, base="1h", cap="1h"))
    def flaky(ctx: Context, number: int) -> int:
        if ctx.attempt == 1:
            raise ConnectionError("not yet")
        return number

    with hf.testing(url) as t:
        job = flaky.options(delay="1d").enqueue(1)
        t.assert_enqueued(flaky, 1)
        assert t.run_all() == 0
        t.advance("1d")
        assert t.run_all() == 1
        t.advance("1h")
        assert t.run_all() == 1
        assert job.result() == 1


async def test_jobs_run_on_a_database_in_async_code(hf: Holdfast, url: str) -> None:
    @hf.task
    async def double(number: int) -> int:
        return 2 * number

    async with hf.testing(url, inline=True) as t:
        job = await double.aenqueue(1)
        assert await job.aresult() == 2
        t.assert_enqueued(double, 1)
        assert t.dead == []


@pytest.mark.parametrize("point", ["before_start", "during", "before_settle", "after_settle"])
def test_a_crash_loses_nothing_on_a_database(hf: Holdfast, url: str, point: CrashPoint) -> None:
    @hf.task
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    with hf.testing(url) as t:
        job = work.enqueue()
        t.crash_worker(point)
        t.run_all()
        assert job.result() == "done"
        assert all(worker.dead_at for worker in hf.workers.list())


def test_the_database_stays(hf: Holdfast, url: str) -> None:
    @hf.task
    def work() -> None: ...

    with hf.testing(url):
        work.enqueue()
    with hf.testing(url) as t:
        assert t.run_all() == 1


def test_a_transaction_that_is_rolled_back_has_enqueued_nothing(hf: Holdfast, tmp_path: Path) -> None:
    @hf.task
    def work(number: int) -> None: ...

    path = tmp_path / "test.db"
    with hf.testing(f"sqlite:///{path}", inline=True) as t:
        t.assert_nothing_enqueued()
        connection = sqlite3.connect(path)
        work.options(tx=connection).enqueue(1)
        connection.rollback()
        t.assert_nothing_enqueued()
        job = work.options(tx=connection).enqueue(2)
        connection.commit()
        connection.close()
        t.assert_enqueued(work, 2)
        assert job.state() == "pending", "it could not run before the commit"
        t.run_all()
        assert job.state() == "completed"


async def test_a_plain_block_with_a_database_is_refused_on_a_loop(hf: Holdfast, tmp_path: Path) -> None:
    with pytest.raises(RunningLoop, match=r"async with hf\.testing\(url\)"):
        hf.testing(f"sqlite:///{tmp_path / 'test.db'}").__enter__()
    with hf.testing():
        pass


# ── ctx.tx ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", ["none", "before_start", "during", "before_settle", "after_settle"])
@pytest.mark.parametrize("kind", ["async", "def"])
def test_what_a_task_writes_with_its_job_is_written_once(hf: Holdfast, url: str, point: str, kind: str) -> None:
    if kind == "async":

        @hf.task(bind=True, delivery="transactional")
        async def write(ctx: Context, number: int) -> int:
            await ctx.tx.aexecute("insert into ledger values ($1)", number)
            await child.aenqueue(number)
            return number
    else:

        @hf.task(name="write", bind=True, delivery="transactional")
        def write_in_a_thread(ctx: Context, number: int) -> int:
            ctx.tx.execute("insert into ledger values ($1)", number)
            child.enqueue(number)
            return number

    @hf.task
    def child(number: int) -> None: ...

    @hf.task(bind=True, delivery="transactional")
    async def prepare(ctx: Context) -> None:
        await ctx.tx.aexecute("create table ledger (number integer)")

    @hf.task(bind=True, delivery="transactional")
    async def count(ctx: Context) -> int:
        return len(await ctx.tx.afetch("select number from ledger"))

    with hf.testing(url) as t:
        prepare.enqueue()
        t.run_all()
        job = hf.send("write", {"number": 7})
        if point != "none":
            t.crash_worker(cast("CrashPoint", point))
        t.run_all()
        assert job.result() == 7
        assert len(t.jobs(child)) == 1
        counted = count.enqueue()
        t.run_all()
        assert counted.result() == 1


def test_what_a_task_has_written_when_it_dies_is_rolled_back(hf: Holdfast, url: str) -> None:
    @hf.task(bind=True, delivery="transactional")
    async def write(ctx: Context) -> int:
        await ctx.tx.aexecute("create table if not exists ledger (number integer)")
        await ctx.tx.aexecute("insert into ledger values (1)")
        rows = await ctx.tx.afetch("select number from ledger")
        if not has_died:
            has_died.append(True)
            t.die()
        return len(rows)

    has_died: list[bool] = []
    with hf.testing(url) as t:
        job = write.enqueue()
        assert t.run_all() == 2
        assert (job.result(), job.record().crashes) == (1, 1)


def test_a_dead_task_that_goes_on_commits_nothing(hf: Holdfast, url: str) -> None:
    @hf.task(bind=True, delivery="transactional")
    async def write(ctx: Context) -> str:
        await ctx.tx.aexecute("select 1")
        if not has_died:
            has_died.append(True)
            with contextlib.suppress(BaseException):
                t.die()
            return "from beyond"
        return "alive"

    has_died: list[bool] = []
    with hf.testing(url) as t:
        job = write.enqueue()
        t.run_all()
        assert job.result() == "alive"
