"""Processes that write to one SQLite file: through Holdfast, back to back, or with a connection of their own."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

from holdfast.ids import Ids
from holdfast.job import NewJob
from holdfast.stores.sqlite import SqliteStore

CALLERS = 4
JOBS = 200
"""In one call, so that a transaction takes a while, and the lock is hardly ever free."""

ids = Ids()


def new_job(queue: str) -> NewJob:
    return NewJob(ids.make(), "task", queue, "{}")


async def write(path: Path, name: str, calls: int) -> None:
    """Enqueue, several callers at once, each again as soon as it can. Say when it begins, and how it ended."""
    store = SqliteStore(path)
    await store.open()
    left = iter(range(calls))

    async def call() -> None:
        for number in left:
            await store.enqueue([new_job(f"{name}-{number // 400}") for _ in range(JOBS)])

    say("writing")
    await asyncio.gather(*(call() for _ in range(CALLERS)))
    await store.close()
    say("done")


def visit(path: Path, transactions: int) -> None:
    """Write small transactions on a connection of its own, each with a job. Say how long each took."""
    store = SqliteStore(path)
    seconds: list[float] = []
    for _ in range(transactions):
        began = time.monotonic()
        with closing(sqlite3.connect(path, timeout=60)) as db, db:
            db.execute("begin immediate")
            store.enqueue_in(db, [new_job("guest")])
        seconds.append(time.monotonic() - began)
        time.sleep(0.005)  # a user's own pace
    say(json.dumps(seconds))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    verb, path, *rest = sys.argv[1:]
    if verb == "write":
        asyncio.run(write(Path(path), rest[0], int(rest[1])))
    else:
        visit(Path(path), int(rest[0]))
