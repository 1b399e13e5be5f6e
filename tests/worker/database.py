"""The database of a worker under test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.rounds import IS_THOROUGH

if TYPE_CHECKING:
    from tests.servers.databases import Databases

DATABASES = ["sqlite", "postgres"] if IS_THOROUGH else ["sqlite"]
"""For what happens in the worker, whatever the database: the long form tries it on both."""
LIMITED_DATABASES = ["sqlite", "postgres"]
"""Those with limits, rates, orders and fairness."""


@contextmanager
def database(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The URL of a fresh one, of the kind that the parameter of the asking fixture names."""
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'jobs.db'}"
        return
    postgres: Databases = request.getfixturevalue("postgres")
    url = postgres.create_migrated_database()
    yield url
    postgres.drop_database(url)
