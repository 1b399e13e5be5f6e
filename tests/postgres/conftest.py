"""Fixtures of the tests in which PostgreSQL, the way to it, or its user misbehaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast.stores.postgres import PostgresStore, branch, office
from tests.postgres.database import Database
from tests.postgres.proxy import Proxy

Opener = Callable[..., PostgresStore]


@pytest.fixture
async def database(migrated_database: str) -> AsyncIterator[Database]:
    database = Database(migrated_database)
    yield database
    await database.close()


@pytest.fixture
async def bare(postgres_database: str) -> AsyncIterator[Database]:
    """One without Holdfast's tables, for those who make them."""
    database = Database(postgres_database)
    yield database
    await database.close()


@pytest.fixture
async def proxy(database: Database) -> AsyncIterator[Proxy]:
    async with Proxy(database.url) as proxy:
        yield proxy


@pytest.fixture
async def make_store(database: Database) -> AsyncIterator[Opener]:
    """Makes stores that are closed with the test; by default, on the test's database."""
    made: list[PostgresStore] = []

    def make(url: str | None = None, **options: Any) -> PostgresStore:
        store = PostgresStore(url or database.url, **options)
        made.append(store)
        return store

    yield make
    for store in made:
        await store.close()


@pytest.fixture
async def store(make_store: Opener) -> PostgresStore:
    """A store that goes straight to its database."""
    store = make_store()
    await store.open()
    return store


@pytest.fixture
async def far_store(proxy: Proxy) -> AsyncIterator[PostgresStore]:
    """A store that goes through the proxy."""
    store = PostgresStore(proxy.url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is away is given up soon."""
    monkeypatch.setattr(branch, "PATIENCE", 0.3)
    monkeypatch.setattr(office, "PATIENCE", 0.3)
