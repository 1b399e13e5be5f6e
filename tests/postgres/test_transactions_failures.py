"""What can go wrong with a connection that a caller lends, and how that is said."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest
import sqlalchemy

from holdfast import InvalidOption, StoreError, StoreUnavailable, WrongDatabase
from tests.postgres.callers import CALLERS, Asyncpg, AsyncpgPool, Caller, Psycopg
from tests.postgres.shop import Shop, fresh_name, opened_shop
from tests.servers.databases import Databases


@pytest.fixture(scope="module")
def shop(postgres: Databases) -> Iterator[Shop]:
    with opened_shop(postgres) as shop:
        yield shop


@pytest.fixture
def queue() -> str:
    return fresh_name()


def test_a_key_that_another_transaction_uses_is_waited_for_as_long_as_the_user_wants(shop: Shop, queue: str) -> None:
    with psycopg.connect(shop.url) as first, psycopg.connect(shop.url) as second:
        keyed = shop.echo.options(tx=second, queue=queue, idempotency_key=queue)
        shop.echo.options(tx=first, queue=queue, idempotency_key=queue).enqueue("a")
        second.execute("set lock_timeout = '50ms'")
        with pytest.raises(StoreUnavailable, match="Roll the transaction back, and try it again"):
            keyed.enqueue("a")
        with pytest.raises(InvalidOption, match="failed already"):
            keyed.enqueue("a")
        second.rollback()
        first.rollback()
        job = keyed.enqueue("a")
        second.commit()
    assert shop.jobs(queue) == [job.id]


def test_under_strict_isolation_a_key_that_was_taken_meanwhile_asks_for_another_try(shop: Shop, queue: str) -> None:
    with psycopg.connect(shop.url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select 1")
        known = shop.echo.options(queue=queue, idempotency_key=queue).enqueue("a")
        with pytest.raises(StoreUnavailable, match="try it again"):
            shop.echo.options(tx=connection, queue=queue, idempotency_key=queue).enqueue("a")
        connection.rollback()
        again = shop.echo.options(tx=connection, queue=queue, idempotency_key=queue).enqueue("a")
        connection.commit()
    assert (again.id, again.existing) == (known.id, True)


@pytest.mark.parametrize("kind", CALLERS, ids=lambda kind: kind.__name__)
def test_a_connection_that_the_server_ended_says_so(shop: Shop, queue: str, kind: type[Caller]) -> None:
    caller = kind(shop.url)
    caller.begin()
    caller.execute(f"set application_name = '{queue[:36]}'")
    with psycopg.connect(shop.url, autocommit=True) as other:
        end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s"
        while other.execute(end, [queue[:36]]).fetchall():
            pass
    with pytest.raises((StoreUnavailable, InvalidOption), match=r"try it again|is closed"):
        caller.enqueue(shop.echo, "a", queue=queue)
    with suppress(Exception):
        caller.rollback()
    caller.close()
    assert shop.jobs(queue) == []


def test_a_connection_that_its_user_has_closed_is_refused(shop: Shop, queue: str) -> None:
    caller = Psycopg(shop.url)
    caller.close()
    with pytest.raises(InvalidOption, match="closed"):
        caller.enqueue(shop.echo, "a", queue=queue)
    second = Asyncpg(shop.url)
    second.run(second.tx.close())
    with pytest.raises(InvalidOption, match="closed"):
        second.enqueue(shop.echo, "a", queue=queue)
    second.close()
    pooled = AsyncpgPool(shop.url)
    given_back = pooled.tx
    pooled.close()
    with pytest.raises(InvalidOption, match="closed"):
        shop.hf._engine.wait(shop.echo.options(tx=given_back, queue=queue).aenqueue("a"), "aenqueue")


@pytest.mark.parametrize("kind", CALLERS, ids=lambda kind: kind.__name__)
def test_what_failed_does_not_show_the_arguments(shop: Shop, queue: str, kind: type[Caller]) -> None:
    caller = kind(shop.url)
    caller.begin()
    with psycopg.connect(shop.url) as connection:
        connection.execute("lock table holdfast.jobs")
        caller.execute("set local lock_timeout = '20ms'")
        with pytest.raises(StoreUnavailable, match=r"lock timeout.*try it again") as refused:
            caller.enqueue(shop.echo, "my secret", queue=queue)
    assert "secret" not in str(refused.value)
    caller.rollback()
    caller.close()


# ── what is no connection ────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_no_connection_of_postgresql_is_refused(shop: Shop) -> None:
    engine = sqlalchemy.create_engine(shop.url.replace("postgresql:", "postgresql+psycopg:"))
    lite = sqlalchemy.create_engine("sqlite://")
    with (
        sqlite3.connect(":memory:") as file,
        lite.connect() as wrapped,
        psycopg.connect(shop.url) as connection,
        connection.cursor() as cursor,
    ):
        for tx in (file, wrapped, engine, cursor, "postgresql://", object(), shop.hf):
            with pytest.raises(WrongDatabase, match="PostgreSQL"):
                shop.echo.options(tx=tx).enqueue("a")
        wrapped.execute(sqlalchemy.text("create table still (usable)"))
    file.close()
    engine.dispose()
    lite.dispose()
    with pytest.raises(WrongDatabase, match=r"sqlite3\.Connection"):
        shop.echo.options(tx=file).enqueue("a")


def test_a_role_that_may_not_use_the_schema_is_told_so(shop: Shop, postgres: Databases, queue: str) -> None:
    role = f"role_{queue.replace('-', '')}"
    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute(f"create role {role}")
        connection.execute(f"grant insert on notes to {role}")
    caller = Psycopg(shop.url)
    caller.execute(f"set role {role}")
    with pytest.raises(StoreError, match="may not use the schema holdfast"):
        caller.enqueue(shop.echo, "a", queue=queue)
    caller.note(queue)
    caller.commit()
    caller.close()
    assert queue in shop.notes()
    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute(f"drop owned by {role}")
        connection.execute(f"drop role {role}")
