"""SQLAlchemy's sessions on `ctx.tx`: what they flush, the completion and the jobs are true together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from holdfast import Context, Holdfast, Job, JobFailed, Retry
from holdfast.contrib.sqlalchemy import aconnection, asession, connection, session
from tests.integration.ledger import Ledger
from tests.servers.pgbouncer import PgBouncer

ONCE = Retry(1)


class Base(DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "ledger"
    entry: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
def sqlite(tmp_path: Path) -> Ledger:
    ledger = Ledger(f"sqlite:///{tmp_path / 'jobs.db'}")
    ledger.run("create table ledger (entry text primary key)")
    return ledger


@pytest.fixture
def postgres_ledger(migrated_database: str) -> Ledger:
    ledger = Ledger(migrated_database)
    ledger.run("create table ledger (entry text primary key)")
    return ledger


@asynccontextmanager
async def working(hf: Holdfast) -> AsyncIterator[None]:
    async with hf, hf.worker(queues={"default": 5}):
        yield


async def finished(job: Job[Any]) -> Any:
    return await job.aresult(timeout="20s")


# ── async, on PostgreSQL ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_async_session_is_a_part_of_the_transaction(postgres_ledger: Ledger) -> None:
    hf = Holdfast(postgres_ledger.url)

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def write(ctx: Context, entry: str, is_to_fail: bool) -> int:
        async with asession(ctx) as orm:
            orm.add(Entry(entry=f"{entry} kept"))
            await orm.commit()
            orm.add(Entry(entry=f"{entry} undone"))
            await orm.flush()
            await orm.rollback()
            orm.add(Entry(entry=f"{entry} last"))
        await ctx.tx.aexecute("insert into ledger values ($1)", f"{entry} by hand")
        async with aconnection(ctx) as core:
            count = (await core.execute(select(func.count()).select_from(Entry))).scalar_one()
        if is_to_fail:
            raise ValueError("all for nothing")
        return count

    async with working(hf):
        with pytest.raises(JobFailed, match="all for nothing"):
            await finished(await write.aenqueue("one", True))
        assert postgres_ledger.entries() == []
        assert await finished(await write.aenqueue("one", False)) == 3
        jobs = [await write.aenqueue(f"{number}", False) for number in range(20)]
        await asyncio.gather(*map(finished, jobs))
    assert postgres_ledger.entries()[-3:] == ["one by hand", "one kept", "one last"]
    assert len(postgres_ledger.entries()) == 63


async def test_an_error_in_an_async_session_leaves_the_transaction_usable(postgres_ledger: Ledger) -> None:
    hf = Holdfast(postgres_ledger.url)

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def write(ctx: Context) -> None:
        await ctx.tx.aexecute("insert into ledger values ('one')")
        with contextlib.suppress(IntegrityError):
            async with asession(ctx) as orm:
                orm.add(Entry(entry="two"))
                await orm.flush()
                orm.add(Entry(entry="one"))
        async with asession(ctx) as orm:
            orm.add(Entry(entry="three"))

    async with working(hf):
        await finished(await write.aenqueue())
    assert postgres_ledger.entries() == ["one", "three"]


async def test_behind_a_pooler_too(postgres_ledger: Ledger, pgbouncer: PgBouncer) -> None:
    hf = Holdfast(pgbouncer.through(postgres_ledger.url))

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def write(ctx: Context, entry: str) -> None:
        async with asession(ctx) as orm:
            orm.add(Entry(entry=entry))
            await orm.flush()
            await orm.execute(text("select 1"))

    async with working(hf):
        jobs = [await write.aenqueue(f"{number}") for number in range(20)]
        await asyncio.gather(*map(finished, jobs))
    assert len(postgres_ledger.entries()) == 20


async def test_sync_sessions_are_refused_on_postgres(postgres_ledger: Ledger) -> None:
    hf = Holdfast(postgres_ledger.url)

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    def write(ctx: Context) -> None:
        with session(ctx):
            pass

    async with working(hf):
        with pytest.raises(JobFailed, match=r"asession\(ctx\)"):
            await finished(await write.aenqueue())


# ── sync, on SQLite ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_session_is_a_part_of_the_transaction(sqlite: Ledger) -> None:
    hf = Holdfast(sqlite.url)

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    def write(ctx: Context, entry: str, is_to_fail: bool) -> int:
        with session(ctx) as orm:
            orm.add(Entry(entry=f"{entry} kept"))
            orm.commit()
            orm.add(Entry(entry=f"{entry} undone"))
            orm.flush()
            orm.rollback()
            orm.add(Entry(entry=f"{entry} last"))
        ctx.tx.execute("insert into ledger values ($1)", f"{entry} by hand")
        with connection(ctx) as core:
            count = core.execute(select(func.count()).select_from(Entry)).scalar_one()
        if is_to_fail:
            raise ValueError("all for nothing")
        return count

    async with working(hf):
        with pytest.raises(JobFailed, match="all for nothing"):
            await finished(await write.aenqueue("one", True))
        assert sqlite.entries() == []
        assert await finished(await write.aenqueue("one", False)) == 3
        jobs = [await write.aenqueue(f"{number}", False) for number in range(20)]
        await asyncio.gather(*map(finished, jobs))
    assert sqlite.entries()[-3:] == ["one by hand", "one kept", "one last"]
    assert len(sqlite.entries()) == 63


async def test_an_error_in_a_session_leaves_the_transaction_usable(sqlite: Ledger) -> None:
    hf = Holdfast(sqlite.url)

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    def write(ctx: Context) -> None:
        ctx.tx.execute("insert into ledger values ('one')")
        with contextlib.suppress(IntegrityError):
            with session(ctx) as orm:
                orm.add(Entry(entry="two"))
                orm.flush()
                orm.add(Entry(entry="one"))
        with session(ctx) as orm:
            orm.add(Entry(entry="three"))

    async with working(hf):
        await finished(await write.aenqueue())
    assert sqlite.entries() == ["one", "three"]


async def test_async_sessions_are_refused_on_sqlite(sqlite: Ledger) -> None:
    hf = Holdfast(sqlite.url)

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def write(ctx: Context) -> None:
        async with asession(ctx):
            pass

    async with working(hf):
        with pytest.raises(JobFailed, match=r"session\(ctx\)"):
            await finished(await write.aenqueue())
