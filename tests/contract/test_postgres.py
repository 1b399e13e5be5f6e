"""The PostgreSQL store keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from holdfast.stores.postgres import PostgresStore
from holdfast.testing import ManualClock
from holdfast.testing.store_contract import RETENTION, Harness, StoreContract


class TestPostgres(StoreContract):
    @pytest.fixture
    async def harness(self, postgres_database: str) -> AsyncIterator[Harness]:
        clock = ManualClock()

        def make() -> PostgresStore:
            return PostgresStore(postgres_database, clock=clock, retention=RETENTION)

        harness = Harness(make(), clock, make_another=make, connect=lambda: psycopg.connect(postgres_database))
        yield harness
        await harness.close()
