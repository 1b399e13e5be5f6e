"""The code of the guide to PostgreSQL runs as it stands, and so do its grants."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import secrets
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import django.db  # type: ignore[import-untyped]
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from holdfast import Holdfast, HoldfastError, Queue, ResultTimeout, Unique
from holdfast.ids import Ids
from holdfast.job import Failure, FailureKind, NewJob
from holdfast.lifecycle import Bury, Complete
from holdfast.store import Held, NewWorker, Settled, Settlement, TaskDefinition
from holdfast.stores.postgres import PostgresStore
from holdfast.task import Task
from tests.postgres.callers import configure_django, django_database, sqlalchemy_url
from tests.servers.databases import Databases

GUIDE = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class DjangoOrder:
    id = 5

    def save(self) -> None:
        with django.db.connection.cursor() as cursor:
            cursor.execute("insert into orders values (5)")


def test_the_transactions_of_the_guide_run(postgres_database: str) -> None:
    url = postgres_database
    with psycopg.connect(url) as connection:
        connection.execute("create table orders (id integer primary key)")
    hf = Holdfast(url)

    @hf.task
    def send_receipt(order_id: int) -> None: ...

    hf.publish_tasks()
    configure_django(default=django_database(url))
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"))
    async_engine = create_async_engine(sqlalchemy_url(url, "asyncpg"))
    names: dict[str, Any] = {
        "hf": hf, "send_receipt": send_receipt, "url": url, "psycopg": psycopg, "Session": Session, "engine": engine,
        "AsyncSession": AsyncSession, "async_engine": async_engine, "Order": Order, "order": DjangoOrder(),
        "django": types.SimpleNamespace(db=django.db), "transaction": django.db.transaction,
    }  # fmt: skip
    with asyncio.Runner() as runner:
        names["pool"] = runner.run(_make_pool(url))
        (block,) = (block for block in blocks("python") if "tx=" in block)
        execute(block, names, runner)
        runner.run(names["pool"].close())
        runner.run(async_engine.dispose())
    engine.dispose()
    django.db.connection.close()
    with psycopg.connect(url) as connection:
        orders = connection.execute("select id from orders order by 1").fetchall()
        jobs = connection.execute("select (args::json ->> 'order_id')::int from holdfast.jobs order by 1").fetchall()
    hf.close()
    assert orders == [(n,) for n in range(1, 6)]
    assert jobs == [(n,) for n in range(1, 9)]


async def _make_pool(url: str) -> asyncpg.Pool[asyncpg.Record]:
    return await asyncpg.create_pool(url, min_size=1, max_size=1)


def execute(block: str, names: dict[str, Any], runner: asyncio.Runner) -> None:
    """Statement by statement; those with an await on the loop of the runner."""
    for statement in ast.parse(block).body:
        code = compile(ast.Module([statement], []), "postgres.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.iscoroutine(result):
            runner.run(result)


# ── rights ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def grants(role: str) -> list[str]:
    """The statements of the guide for one of its roles."""
    (block,) = (block for block in blocks("sql") if f" to {role};" in block)
    return [line for line in block.splitlines() if line]


class Role:
    """A role that has nothing but the rights of some grants, and how it enqueues."""

    def __init__(self, url: str, owner: psycopg.Connection[Any], example: str) -> None:
        self.name = f"holdfast_role_{secrets.token_hex(6)}"
        self.owner_url = url
        self.url = url.replace("//postgres@", f"//{self.name}@")
        self.example = example
        self._owner = owner
        owner.execute(f"create role {self.name} login")

    def allow(self, statements: list[str]) -> None:
        self._owner.execute(f"drop owned by {self.name}")
        for statement in statements:
            self._owner.execute(statement.replace(f" to {self.example};", f" to {self.name};"))


@pytest.fixture(scope="module")
def database(postgres: Databases) -> Iterator[str]:
    url = postgres.create_database()
    with Holdfast(url) as hf:
        hf.task(name="echo")(_echo)
        hf.publish_tasks()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def make_role(database: str) -> Iterator[Callable[[str], Role]]:
    made: list[Role] = []
    with psycopg.connect(database, autocommit=True) as owner:

        def make(example: str) -> Role:
            made.append(Role(database, owner, example))
            return made[-1]

        yield make
        for role in made:
            owner.execute(f"drop owned by {role.name}")
            owner.execute(f"drop role {role.name}")


def _echo(n: int) -> int:
    return n


def lend(role: Role) -> None:
    """Lend transactions to somebody who may do everything."""
    with Holdfast(role.owner_url) as hf, psycopg.connect(role.url) as connection:
        echo = hf.task(name="echo")(_echo)
        echo.options(tx=connection).enqueue(1)
        use_a_key_again(role, echo, connection)
        race_for_a_key(role, hf, connection)


def use_a_key_again(role: Role, echo: Task[[int], int], connection: psycopg.Connection[Any]) -> None:
    key = secrets.token_hex(6)
    first, second = (echo.options(tx=connection, idempotency_key=key).enqueue(1) for _ in range(2))
    assert second.id == first.id
    connection.commit()
    with psycopg.connect(role.owner_url) as owner:
        owner.execute("update holdfast.keys set expires_at = 1 where key = %s", [key])
    assert echo.options(tx=connection, idempotency_key=key).enqueue(1).id != first.id
    connection.commit()


def race_for_a_key(role: Role, hf: Holdfast, connection: psycopg.Connection[Any]) -> None:
    """Somebody takes one of two keys while this transaction has the other already: that one must be given back."""
    unique = hf.task(name=f"unique_{secrets.token_hex(6)}", unique=Unique("{n}"))(_echo)
    is_over = threading.Event()

    def commit_when_waited_for() -> None:
        with psycopg.connect(role.owner_url, autocommit=True) as watcher:
            blocking = "select cardinality(pg_blocking_pids(%s))"
            while watcher.execute(blocking, [connection.info.backend_pid]).fetchone() == (0,) and not is_over.is_set():
                pass
        rival.commit()

    with psycopg.connect(role.owner_url) as rival:
        unique.options(tx=rival).enqueue(1)
        waiting = threading.Thread(target=commit_when_waited_for)
        waiting.start()
        try:
            job = unique.options(tx=connection, idempotency_key=secrets.token_hex(6)).enqueue(1)
        finally:
            is_over.set()
            waiting.join()
        assert job.existing
        connection.commit()


def produce(role: Role) -> None:
    """Enqueue in every way, and look at what came of it."""
    with Holdfast(role.url, queues=[Queue("small", bound=1000)]) as hf, psycopg.connect(role.url) as connection:
        job = hf.send("echo", {"n": 1}, queue=f"queue-{secrets.token_hex(6)}")
        echo = hf.task(name="echo")(_echo)
        echo.options(queue="small", delay="1h").enqueue(2)
        echo.options(idempotency_key=secrets.token_hex(6)).enqueue(3)
        assert (job.state(), job.attempts()) == ("pending", [])
        assert hf.jobs.page(task="echo").jobs
        assert hf.queues.list()
        with pytest.raises(ResultTimeout):
            job.result("1ms")
        use_a_key_again(role, echo, connection)
        race_for_a_key(role, hf, connection)


def work(role: Role) -> None:
    """What a worker does."""

    async def main() -> None:
        store, worker, token = PostgresStore(role.url), uuid4(), uuid4()
        await store.register(NewWorker(worker, "worker"))
        await store.publish_tasks([TaskDefinition(name="other")])
        await store.enqueue([NewJob(Ids().make(), "echo", "work", "{}") for _ in range(2)])
        first, second = await store.claim(worker, token, {"work": 2})
        failure = Failure(FailureKind.ERROR, "ValueError", "wrong")
        settled = [Settlement(first.id, token, Complete("1")), Settlement(second.id, token, Bury(failure))]
        assert await store.settle(settled) == [Settled.APPLIED] * 2
        await store.beat(worker, Held({}))
        await store.tick()
        await store.pause("work")
        await store.resume("work")
        await store.discard([second.id])
        await store.prune()
        await store.depart(worker)
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("example", "use"), [("app", work), ("web", produce), ("shop", lend)], ids=["app", "web", "shop"]
)
def test_the_grants_of_the_guide_are_enough_and_each_is_needed(
    make_role: Callable[[str], Role], example: str, use: Callable[[Role], None]
) -> None:
    role = make_role(example)
    rights = single_rights(example)
    role.allow(rights)
    use(role)
    for right in rights:
        role.allow([each for each in rights if each != right])
        assert is_refused(lambda: use(role)), f"nobody needs this: {right}"


def is_refused(action: Callable[[], None]) -> bool:
    """Whether the role lacks a right, and is told so."""
    try:
        action()
    except HoldfastError as error:
        return re.search(r"\bright|\bmay not\b|permission denied", str(error)) is not None
    return False


def single_rights(example: str) -> list[str]:
    """Each right of each grant by itself."""
    found: list[str] = []
    for line in grants(example):
        match = re.fullmatch(r"grant (.+) on (schema |sequence |all \w+ in schema )?(.+) to (\w+);", line)
        assert match is not None
        rights, kind, things, role = match.groups()
        found += [
            f"grant {right} on {kind or ''}{thing} to {role};"
            for right in rights.split(", ")
            for thing in things.split(", ")
        ]
    return found
