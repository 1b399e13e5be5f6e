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
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.ids import Ids
from holdfast.lifecycle import Complete
from holdfast.store import HintKind, NewWorker, Settlement
from holdfast.stores.sqlite import SqliteStore

PATIENCE = 60.0
"""Seconds after which a program that should have ended is taken for stuck."""

FORKING_IS_MEANT = "ignore:This process:DeprecationWarning"
"""Newer Pythons warn of every fork of a process with threads; here it is what is tested."""

APP = """
import os, signal, sys, threading
from holdfast import Holdfast, JobCancelled, Queue, QueueFull, ResultTimeout

hf = Holdfast(sys.argv[1], queues=[Queue("narrow", bound=1)])

@hf.task
def echo(n: int) -> int:
    return n

idle = echo.options(queue="idle")  # nobody works there
"""


def url(database: Path) -> str:
    return f"sqlite:///{database}"


def run(database: Path, program: str, *, prologue: str = "") -> str:
    """Run a program that has an app, and return what it printed. It must end well and complain of nothing."""
    script = database.with_name("program.py")
    script.write_text(f"{prologue}\n{APP}\n{textwrap.dedent(program)}")
    done = subprocess.run(
        [sys.executable, f"-W{FORKING_IS_MEANT}", str(script), url(database)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def stored(database: Path) -> list[int]:
    """The arguments of all jobs in the file, sorted. The file must be sound."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        rows = connection.execute("select args from holdfast_jobs").fetchall()
    return sorted(int(msgspec.json.decode(args)["n"]) for (args,) in rows)


@contextlib.contextmanager
def finisher(database: Path) -> Iterator[None]:
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


async def _finish(database: Path, started: threading.Event, stop: threading.Event) -> None:
    store, ids = SqliteStore(database), Ids()
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
