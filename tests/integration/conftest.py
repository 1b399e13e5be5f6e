"""The databases that apps and the façade are tested on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.integration.facade import Database, PostgresDatabase, SqliteDatabase
from tests.servers.databases import Databases


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return SqliteDatabase(tmp_path)
    return PostgresDatabase(tmp_path, request.getfixturevalue("migrated_database"))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, tmp_path: Path, postgres: Databases) -> AsyncIterator[Holdfast]:
    """An app on each store, empty."""
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}.get(request.param)
    app = Holdfast(url or postgres.create_migrated_database())
    yield app
    await app.aclose()
    if url is None:
        postgres.drop_database(app.url)
