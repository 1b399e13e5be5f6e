"""The databases that the façade is tested on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.facade import Database, PostgresDatabase, SqliteDatabase


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return SqliteDatabase(tmp_path)
    return PostgresDatabase(tmp_path, request.getfixturevalue("postgres_database"))
