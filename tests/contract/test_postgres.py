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


@pytest.fixture(scope="module")
def caretaker(shared_database: str) -> Iterator[psycopg.Connection]:
    """Whoever empties the database between the tests."""
    with psycopg.connect(shared_database, autocommit=True) as connection:
        yield connection


class TestPostgres(StoreContract):
    @pytest.fixture
    async def harness(self, shared_database: str, caretaker: psycopg.Connection) -> AsyncIterator[Harness]:
        clock = ManualClock()

        def make() -> PostgresStore:
            return PostgresStore(shared_database, clock=clock, retention=RETENTION)

        _empty(caretaker)
        harness = Harness(make(), clock, make_another=make, connect=lambda: psycopg.connect(shared_database))
        yield harness
        await harness.close()


class TestPostgresBehindPgBouncer(StoreContract):
    """In transaction mode, with three connections for everybody, of which nobody keeps one.

    Nobody can listen there, so hints end where they were made; and the tests share a database, since PgBouncer would
    keep connections to each.
    """

    @pytest.fixture
    async def harness(
        self, shared_database: str, caretaker: psycopg.Connection, pgbouncer: PgBouncer
    ) -> AsyncIterator[Harness]:
        clock = ManualClock()
        url = pgbouncer.through(shared_database)

        def make() -> PostgresStore:
            return PostgresStore(url, clock=clock, retention=RETENTION)

        def connect() -> psycopg.Connection:
            return psycopg.connect(url, prepare_threshold=None)

        store = make()
        await store.open()
        _empty(caretaker)
        harness = Harness(store, clock, make_another=make, connect=connect, hints_travel=False)
        yield harness
        await harness.close()


def _empty(caretaker: psycopg.Connection) -> None:
    """To truncate a table, the server makes new files for it and all its indexes, so it is done to large ones only."""
    tables = caretaker.execute("""
        select relname, pg_relation_size(oid) from pg_class
        where relnamespace = 'holdfast'::regnamespace and relkind = 'r' and relname not in ('migrations', 'instance')
    """).fetchall()
    orders = [
        f"truncate holdfast.{name}" if size > _LARGE else f"delete from holdfast.{name}"
        for name, size in tables
        if size
    ]
    caretaker.execute(";".join(orders).encode())


_LARGE = 100_000
