"""The SQLite store keeps the contract."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import ManualClock
from holdfast.testing.store_contract import RETENTION, Harness, StoreContract


class TestSqlite(StoreContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[Harness]:
        clock = ManualClock()
        path = tmp_path / "holdfast.db"

        def make() -> SqliteStore:
            return SqliteStore(path, clock=clock, retention=RETENTION)

        harness = Harness(make(), clock, make_another=make, connect=lambda: sqlite3.connect(path))
        yield harness
        await harness.close()
