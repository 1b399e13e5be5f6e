"""The PostgreSQL server that tests share."""

from __future__ import annotations

import fcntl
import getpass
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest

from tests.servers.databases import Databases
from tests.servers.packages import NoServer
from tests.servers.postgres import PostgresServer

CHOSEN = "HOLDFAST_TEST_POSTGRES_URL"
LOCAL_ALLOWED = "HOLDFAST_TEST_POSTGRES_LOCAL"

_kept: list[PostgresServer] = []  # Python complains about running processes that nobody holds any more


@contextmanager
def provide(run: Path | None = None) -> Iterator[Databases]:
    """A server to create databases in: the one that the environment names, else a private one.

    The processes of one test run that name the same folder share one private server, which ends with their parent.
    Without any server, tests that ask for one are skipped; in CI they fail.
    """
    try:
        found = _chosen() or _local() or (_shared(run) if run is not None else None)
        with closing(found) if found is not None else PostgresServer() as databases:
            yield databases
    except NoServer as error:
        give_up(error)


def give_up(error: NoServer) -> NoReturn:
    """End the test that needs this server."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"NOT TESTED, and CI must: {error}", pytrace=False)
    pytest.skip(f"NOT TESTED: {error}")


def _chosen() -> Databases | None:
    url = os.environ.get(CHOSEN)
    return Databases(url) if url else None


def _local() -> Databases | None:
    """The server at the usual port: only with leave, because it may hold what matters to someone."""
    if os.environ.get(LOCAL_ALLOWED) != "true":
        return None
    for user in dict.fromkeys((getpass.getuser(), "postgres")):
        databases = Databases(f"postgresql://{user}@127.0.0.1:5432")
        try:
            databases.server_version  # noqa: B018  # asks the server
        except psycopg.OperationalError:
            continue
        return databases
    return None


def _shared(run: Path) -> Databases:
    """The server of this run: the first process to ask starts it, the guardian ends it with their common parent."""
    name = f"postgres-{os.environ.get('PYTEST_XDIST_TESTRUNUID', '')}"
    address = run / f"{name}-url"
    with (run / f"{name}-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            server = PostgresServer(watched=os.getppid()).start()
            _kept.append(server)
            address.write_text(server.url())
    return Databases(address.read_text())
