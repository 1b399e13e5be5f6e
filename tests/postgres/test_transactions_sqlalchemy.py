"""Enqueuing with SQLAlchemy's sessions and connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.ext.asyncio import create_async_engine as create_async
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from holdfast import InvalidOption, WrongDatabase
from tests.postgres.callers import sqlalchemy_url
from tests.postgres.shop import Shop, fresh_name, opened_shop
from tests.servers.databases import Databases


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "notes"
    text: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture(scope="module")
def shop(postgres: Databases) -> Iterator[Shop]:
    with opened_shop(postgres) as shop:
        yield shop


@pytest.fixture
def engine(shop: Shop) -> Iterator[Engine]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(shop.url, "psycopg"))
    yield engine
    engine.dispose()


@pytest.fixture(params=["asyncpg", "psycopg"])
async def async_engine(shop: Shop, request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    engine = create_async(sqlalchemy_url(shop.url, request.param))
    yield engine
    await engine.dispose()


@pytest.fixture
def queue() -> str:
    return fresh_name()


def test_objects_and_jobs_are_committed_together(shop: Shop, engine: Engine, queue: str) -> None:
    with sessionmaker(engine).begin() as session:
        session.add(Note(text=queue))
        job = shop.echo.options(tx=session, queue=queue).enqueue("a")
    assert queue in shop.notes()
    assert shop.claim(queue) == [job.id]


def test_a_failed_flush_takes_the_job_along(shop: Shop, engine: Engine, queue: str) -> None:
    with Session(engine) as session:
        session.add(Note(text=queue))
        session.commit()
        session.expunge_all()
        session.add(Note(text=queue))
        there = shop.echo.options(tx=session, queue=queue)
        there.enqueue("a")
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.commit()
        with pytest.raises(InvalidOption, match="failed already"):
            there.enqueue("b")
        session.rollback()
        job = there.enqueue("c")
        session.commit()
    assert shop.jobs(queue) == [job.id]


def test_a_nested_transaction_that_is_rolled_back_takes_its_jobs_along(shop: Shop, engine: Engine, queue: str) -> None:
    with Session(engine) as session, session.begin():
        there = shop.echo.options(tx=session, queue=queue)
        first = there.enqueue("a")
        nested = session.begin_nested()
        there.enqueue("b")
        nested.rollback()
        with session.begin_nested():
            third = there.enqueue("c")
    with engine.begin() as connection:
        there = shop.echo.options(tx=connection, queue=queue)
        inner = connection.begin_nested()
        there.enqueue("d")
        inner.rollback()
        fifth = there.enqueue("e")
    assert shop.claim(queue) == [first.id, third.id, fifth.id]


async def test_a_nested_transaction_of_an_asynchronous_session(
    shop: Shop, async_engine: AsyncEngine, queue: str
) -> None:
    async with AsyncSession(async_engine) as session, session.begin():
        there = shop.echo.options(tx=session, queue=queue)
        first = await there.aenqueue("a")
        nested = await session.begin_nested()
        await there.aenqueue("b")
        await nested.rollback()
        session.add(Note(text=queue))
    await shop.hf.aclose()
    assert shop.jobs(queue) == [first.id]
    assert queue in shop.notes()


async def test_an_asynchronous_scoped_session(shop: Shop, async_engine: AsyncEngine, queue: str) -> None:
    registry = async_scoped_session(async_sessionmaker(async_engine), scopefunc=lambda: 1)
    job = await shop.echo.options(tx=registry, queue=queue).aenqueue("a")
    assert shop.jobs(queue) == []
    await registry.commit()
    await registry.remove()
    await shop.hf.aclose()
    assert shop.jobs(queue) == [job.id]


async def test_the_inner_session_of_an_asynchronous_one_is_refused(
    shop: Shop, async_engine: AsyncEngine, queue: str
) -> None:
    async with AsyncSession(async_engine) as session:
        with pytest.raises(InvalidOption, match="AsyncSession"):
            await shop.echo.options(tx=session.sync_session, queue=queue).aenqueue("a")
        await session.execute(text("select 1"))
    await shop.hf.aclose()


def test_a_session_without_an_engine_is_refused(shop: Shop, engine: Engine, queue: str) -> None:
    """With an engine for each class, nobody can know which one is meant; its connection says it."""
    with Session(binds={Note: engine}) as session:
        with pytest.raises(InvalidOption, match="bind"):
            shop.echo.options(tx=session, queue=queue).enqueue("a")
        session.add(Note(text=queue))
        connection = session.connection(bind_arguments={"mapper": Note})
        job = shop.echo.options(tx=connection, queue=queue).enqueue("a")
        session.commit()
    assert queue in shop.notes()
    assert shop.jobs(queue) == [job.id]


def test_a_session_that_goes_now_here_now_there(shop: Shop, engine: Engine, postgres: Databases, queue: str) -> None:
    bare = postgres.create_database()
    elsewhere = sqlalchemy.create_engine(sqlalchemy_url(bare, "psycopg"))
    target = engine

    class Routed(Session):
        def get_bind(self, *_: Any, **__: Any) -> Engine:
            return target

    with Routed() as session:
        there = shop.echo.options(tx=session, queue=queue)
        job = there.enqueue("a")
        session.commit()
        target = elsewhere
        with pytest.raises(WrongDatabase):
            there.enqueue("b")
        session.execute(text("select 1"))
    elsewhere.dispose()
    postgres.drop_database(bare)
    assert shop.jobs(queue) == [job.id]


def test_another_kind_of_database_is_refused_and_stays_usable(shop: Shop) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with Session(engine) as session:
        session.execute(text("create table notes (text)"))
        with pytest.raises(WrongDatabase, match="connected to sqlite"):
            shop.echo.options(tx=session).enqueue("a")
        session.add(Note(text="a"))
        session.commit()
    engine.dispose()


def test_what_is_closed_or_not_begun_is_refused(shop: Shop, engine: Engine, queue: str) -> None:
    with engine.connect() as connection:
        pass
    with pytest.raises(InvalidOption, match="closed"):
        shop.echo.options(tx=connection).enqueue("a")
    with Session(engine, autobegin=False) as session:
        there = shop.echo.options(tx=session, queue=queue)
        with pytest.raises(InvalidOption, match=r"session\.begin"):
            there.enqueue("a")
        with session.begin():
            job = there.enqueue("a")
    assert shop.jobs(queue) == [job.id]
