"""Settings and servers that all tests share."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    # Imported by the fixtures themselves: most tests need no server, and start sooner without.
    from tests.servers.databases import Databases
    from tests.servers.pgbouncer import PgBouncer
    from tests.servers.postgres import PostgresServer

_TESTS = Path(__file__).parent

# Machines differ and are busy: how long an example takes says nothing about its being right.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("default"), max_examples=1000)
settings.load_profile("thorough" if os.environ.get("HOLDFAST_THOROUGH") else "default")


# A shell starts what runs in its background with these ignored, and whatever is started from there inherits it.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


_SLOWEST_FIRST = ("worker", "crash", "docs", "integration", "postgres", "testing", "cli")
"""Folders whose tests mostly wait for processes: while some do, others may compute, and none is left for the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        folder = item.path.relative_to(_TESTS).parts[0] if item.path.is_relative_to(_TESTS) else ""
        return _SLOWEST_FIRST.index(folder) if folder in _SLOWEST_FIRST else len(_SLOWEST_FIRST)

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end of the run: to look each time whether they are garbage takes half a second."""
    gc.collect()
    gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whoever wants the serial tests only need not import all others to find them."""
    if config.option.markexpr != "serial" or collection_path.suffix != ".py":
        return None
    return "pytest.mark.serial" not in collection_path.read_text("utf-8") or None


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    """The server that all tests of this run share: create databases there, and leave the rest alone."""
    from tests.servers.provision import provide

    is_one_of_many = "PYTEST_XDIST_WORKER" in os.environ
    with provide(tmp_path_factory.getbasetemp().parent if is_one_of_many else None) as databases:
        yield databases


@pytest.fixture
def postgres_database(postgres: Databases) -> Iterator[str]:
    """The URL of a fresh database, with nothing in it."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def migrated_database(postgres: Databases) -> Iterator[str]:
    """The URL of a fresh database that has Holdfast's tables."""
    url = postgres.create_migrated_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(scope="session")
def synced_postgres() -> Iterator[PostgresServer]:
    """A server whose commits are durable, and which a test may stop, if it starts it again."""
    from tests.servers.packages import NoServer
    from tests.servers.postgres import PostgresServer
    from tests.servers.provision import give_up

    try:
        server = PostgresServer(is_synced=True)
    except NoServer as error:
        give_up(error)
    with server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres: Databases) -> Iterator[PgBouncer]:
    """PgBouncer in transaction mode, in front of the server that all tests share."""
    from tests.servers.packages import NoServer
    from tests.servers.pgbouncer import PgBouncer
    from tests.servers.provision import give_up

    try:
        bouncer = PgBouncer(postgres)
    except NoServer as error:
        give_up(error)
    with bouncer:
        yield bouncer
