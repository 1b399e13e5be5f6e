"""What the façade's tests share: programs in processes of their own, and somebody who does the jobs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import psycopg

from holdfast.ids import Ids
from holdfast.lifecycle import Complete
from holdfast.store import HintKind, NewWorker, Settlement, Store
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore

PATIENCE = 60.0
"""Seconds after which a program that should have ended is taken for stuck."""

FORKING_IS_MEANT = "ignore:This process:DeprecationWarning"
"""Newer Pythons warn of every fork of a process with threads; here it is what is tested."""

APP = """
import os, signal, sys, threading
from urllib.parse import urlsplit
from holdfast import Holdfast, JobCancelled, Queue, QueueFull, ResultTimeout

hf = Holdfast(sys.argv[1], queues=[Queue("narrow", bound=1)])

@hf.task
def echo(n: int) -> int:
    return n

idle = echo.options(queue="idle")  # nobody works there

def held():
    "What this process has open of the database: files or sockets. The folder of bells is not one: it has no lock."
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass  # the one that lists them
    if sys.argv[1].startswith("sqlite"):
        return [link for link in links if "jobs.db" in link and not link.endswith("-bells")]
    port = f":{urlsplit(sys.argv[1]).port:04X}"
    with open("/proc/self/net/tcp") as table:
        ours = {f"socket:[{row[9]}]" for row in map(str.split, table) if row[2].endswith(port)}
    return [link for link in links if link in ours]

def ears():
    "Those who wait to be told of changes."
    if sys.argv[1].startswith("sqlite"):
        bells = f"{sys.argv[1].removeprefix('sqlite:///')}-bells"
        return os.listdir(bells) if os.path.isdir(bells) else []
    import psycopg
    with psycopg.connect(sys.argv[1]) as connection:
        listening = "datname = current_database() and query ilike 'listen %'"
        return connection.execute(f"select pid from pg_stat_activity where {listening}").fetchall()
"""


class Database(Protocol):
    """Where the jobs of a test are."""

    @property
    def url(self) -> str: ...
    @property
    def folder(self) -> Path:
        """For the files of the test."""
        ...

    def stored(self) -> list[int]:
        """The arguments of all jobs, sorted. The database must be sound."""
        ...

    def make_store(self) -> Store: ...


@dataclass(frozen=True)
class SqliteDatabase:
    """A file `jobs.db`, which need not exist yet."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "jobs.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def stored(self) -> list[int]:
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
            rows = connection.execute("select args from holdfast_jobs").fetchall()
        return _numbers(rows)

    def make_store(self) -> Store:
        return SqliteStore(self.path)


@dataclass(frozen=True)
class PostgresDatabase:
    """A database that may be empty yet."""

    folder: Path
    url: str

    def stored(self) -> list[int]:
        with psycopg.connect(self.url) as connection:
            return _numbers(connection.execute("select args from holdfast.jobs").fetchall())

    def make_store(self) -> Store:
        return PostgresStore(self.url)


def _numbers(rows: list[tuple[str]]) -> list[int]:
    return sorted(int(msgspec.json.decode(args)["n"]) for (args,) in rows)


def write(database: Database, program: str, prologue: str = "") -> Path:
    """A program that has an app on the database that it is given the URL of."""
    script = database.folder / "program.py"
    script.write_text(f"{prologue}\n{APP}\n{textwrap.dedent(program)}")
    return script


def run(database: Database, program: str, *, prologue: str = "", flags: Sequence[str] = ()) -> str:
    """Run a program that has an app, and return what it printed. It must end well and complain of nothing."""
    script = write(database, program, prologue)
    done = subprocess.run(
        [sys.executable, f"-W{FORKING_IS_MEANT}", *flags, str(script), database.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def finisher(database: Database) -> Iterator[None]:
    """Somebody in this process who does the jobs of the default queue: the result is the argument."""
    started, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_finish(database, started, stop)))
    thread.start()
    try:
        assert started.wait(PATIENCE)
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


async def _finish(database: Database, started: threading.Event, stop: threading.Event) -> None:
    store, ids = database.make_store(), Ids()
    worker = ids.make()
    await store.register(NewWorker(worker, "finisher"))
    async with store.changes([HintKind.WORK]) as hints:
        started.set()
        while not stop.is_set():
            token = ids.make()
            jobs = await store.claim(worker, token, {"default": 100})
            await store.settle([Settlement(job.id, token, Complete(_result(job.args_json))) for job in jobs])
            if not jobs:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await anext(hints)
    await store.close()


def _result(args_json: str) -> str:
    return msgspec.json.encode(msgspec.json.decode(args_json)["n"]).decode()
