"""Processes that open the file, or hold its locks."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from holdfast.errors import HoldfastError
from holdfast.lifecycle import Complete
from holdfast.store import NewWorker, Settlement
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.migrate import Migration, shipped_migrations
from holdfast.stores.sqlite.turns import Turn
from tests.crash.audit import QUEUE, new_job
from tests.crash.line import Line

NOBODY = 65534


def store_with(path: str | Path, extra: dict[str, Any] | None) -> SqliteStore:
    """A store of this version, or of one that comes after it."""
    return SqliteStore(path, migrations=[*shipped_migrations(), *([Migration(**extra)] if extra else [])])


async def open_together(line: Line, path: str, extra: dict[str, Any] | None = None) -> None:
    """Open the file when told, enqueue one job, and say which."""
    store, job = store_with(path, extra), new_job()
    line.say("ready")
    line.hear("go")
    await store.open()
    await store.enqueue([job])
    line.say("opened", key=job.id.hex)
    await store.close()


async def try_to_use(line: Line, path: str, extra: dict[str, Any] | None = None) -> None:
    """As a user without any rights: open the file, enqueue one job, and say what came of it."""
    await _lose_all_rights()
    store = store_with(path, extra)
    try:
        await store.open()
        await store.enqueue([new_job()])
    except HoldfastError as error:
        line.say("done", error=type(error).__name__, message=str(error))
    else:
        line.say("done", error=None, message="")
    await store.close()


async def work_without_rights(line: Line, path: str, worker: str) -> None:
    """As a user without any rights: register, and depart when told."""
    await _lose_all_rights()
    store = SqliteStore(path)
    await store.register(NewWorker(UUID(worker), "without rights"))
    line.say("ready")
    line.hear("depart")
    await store.depart(UUID(worker))
    line.say("departed")
    await store.close()


async def _lose_all_rights() -> None:
    with tempfile.TemporaryDirectory() as folder:
        await _use_everything(folder)  # what is imported late can't be read any more by a user without rights
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


async def _use_everything(folder: str) -> None:
    store, worker, token = SqliteStore(Path(folder) / "warm.db"), uuid4(), uuid4()
    await store.register(NewWorker(worker, "warm"))
    await store.enqueue([new_job()])
    for job in await store.claim(worker, token, {QUEUE: 1}):
        await store.settle([Settlement(job.id, token, Complete())])
    await store.queues()
    await store.close()


def hold_turn(line: Line, path: str) -> None:
    """Stand in the middle of a write, with every lock that a writer has."""
    raw = sqlite3.connect(path, isolation_level=None)
    with Turn(Path(path)):
        raw.execute("begin immediate")
        raw.execute("update holdfast_queues set waiting = waiting + 1000")
        line.say("held")
        line.hear("nothing more")
