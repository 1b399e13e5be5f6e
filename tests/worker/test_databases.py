"""The database goes away under load, or is held by somebody else: the worker goes on by itself, and loses nothing."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Job
from tests.crash.checker import check
from tests.crash.rounds import rounds
from tests.crash.tally import keep
from tests.servers.postgres import PostgresServer
from tests.worker.history import History
from tests.worker.program import Client, Program, client_of, until


def _load(client: Client) -> list[Job[Any]]:
    """Plenty of jobs; return when some of them have ended, and most have not."""
    before = len(client.history.read("end"))
    jobs = client.enqueue_many("quick", 400)
    jobs += [client.enqueue(task, seconds=0.2) for task in ("sleep", "thread_sleep", "alone_sleep")]
    until(lambda: len(client.history.read("end")) >= before + 50, "some work")
    return jobs


def _check(client: Client, jobs: list[Job[Any]]) -> None:
    """All of them come to their one end, and none was charged for what the database did."""
    findings = check([job.id for job in jobs], client.ends_of(jobs), client.history.read())
    keep(client.url, findings)
    assert findings.broken == {}


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_connections_that_are_cut_under_load_cost_nothing(postgres_database: str, history: History) -> None:
    with (
        client_of(postgres_database, history) as client,
        Program(postgres_database, history, "-p", "1") as program,
        psycopg.connect(postgres_database, autocommit=True) as outside,
    ):
        (worker,) = client.working()
        jobs: list[Job[Any]] = []
        for _ in range(rounds(4)):
            jobs += _load(client)
            outside.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and application_name = 'holdfast'"
            )
        _check(client, jobs)
        assert [each.pid for each in client.workers()] == [worker.pid], program.output


@pytest.fixture
def stoppable(synced_postgres: PostgresServer) -> Iterator[str]:
    """A database on a server that a test may stop."""
    url = synced_postgres.create_database()
    yield url
    synced_postgres.drop_database(url)


def test_a_crash_of_the_server_under_load_costs_nothing(
    stoppable: str, synced_postgres: PostgresServer, history: History
) -> None:
    with client_of(stoppable, history) as client, Program(stoppable, history, "-p", "1") as program:
        (worker,) = client.working()
        jobs: list[Job[Any]] = []
        for away in [0.0, 1.5] * rounds(1):
            jobs += _load(client)
            synced_postgres.stop("immediate")
            time.sleep(away)
            synced_postgres.start()
            jobs.append(client.enqueue("quick"))
            jobs[-1].result("60s")
        _check(client, jobs)
        assert [each.pid for each in client.workers()] == [worker.pid], program.output


# ── SQLite ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_somebody_else_keeps_locked_is_waited_for(client: Client, tmp_path: Path) -> None:
    with Program(client.url, client.history, "-p", "1") as program:
        (worker,) = client.working()
        jobs = _load(client)
        with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, timeout=30)) as other:
            other.execute("begin immediate")
            time.sleep(4)
            other.execute("commit")
        jobs += _load(client)
        _check(client, jobs)
        assert [each.pid for each in client.workers()] == [worker.pid]
        assert "Traceback" not in program.output
