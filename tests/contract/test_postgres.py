"""The PostgreSQL store keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from holdfast.stores.postgres import PostgresStore
from holdfast.testing import ManualClock
from holdfast.testing.store_contract import RETENTION, Harness, StoreContract
from tests.servers.databases import Databases
from tests.servers.pgbouncer import PgBouncer


@pytest.fixture(scope="module")
def shared_database(postgres: Databases) -> Iterator[str]:
    url = postgres.create_migrated_database()
    yield url
    postgres.drop_database(url)


class TestPostgres(StoreContract):
    @pytest.fixture
    async def harness(self, migrated_database: str) -> AsyncIterator[Harness]:
        clock = ManualClock()

        def make() -> PostgresStore:
            return PostgresStore(migrated_database, clock=clock, retention=RETENTION)

        harness = Harness(make(), clock, make_another=make, connect=lambda: psycopg.connect(migrated_database))
        yield harness
        await harness.close()


class TestPostgresBehindPgBouncer(StoreContract):
    """In transaction mode, with three connections for everybody, of which nobody keeps one.

    Nobody can listen there, so hints end where they were made; and the tests share a database, since PgBouncer would
    keep connections to each.
    """

    @pytest.fixture
    async def harness(self, shared_database: str, pgbouncer: PgBouncer) -> AsyncIterator[Harness]:
        clock = ManualClock()
        url = pgbouncer.through(shared_database)

        def make() -> PostgresStore:
            return PostgresStore(url, clock=clock, retention=RETENTION)

        def connect() -> psycopg.Connection:
            return psycopg.connect(url, prepare_threshold=None)

        store = make()
        await store.open()
        _empty(shared_database)
        harness = Harness(store, clock, make_another=make, connect=connect, hints_travel=False)
        yield harness
        await harness.close()


def _empty(url: str) -> None:
    """Only what holds something is emptied: for each table and index that is, the server makes a new file."""
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute(
            "select relname from pg_class where relnamespace = 'holdfast'::regnamespace and relkind = 'r'"
        ).fetchall()
        names = [f"holdfast.{name}" for (name,) in tables if name not in ("migrations", "instance")]
        looks = connection.execute("select " + ", ".join(f"exists (select from {name})" for name in names)).fetchone()
        assert looks is not None
        filled = [name for name, is_filled in zip(names, looks, strict=True) if is_filled]
        if filled:
            connection.execute(f"truncate {', '.join(filled)} restart identity")
