"""Event loops that come to their end at the wrong moment: no connection stays open, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast
from holdfast.store import Filter, HintKind, NewWorker
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.connection import Connection
from tests.crash.rounds import IS_THOROUGH
from tests.postgres.conftest import Opener
from tests.postgres.database import PATIENCE, Database, until
from tests.postgres.jobs import new, office_of, register


async def test_a_loop_that_ends_while_its_connections_are_closed_from_elsewhere_closes_them_first(
    make_store: Opener, database: Database
) -> None:
    store = make_store()
    held: list[Connection] = []
    lingering: list[asyncio.Task[None]] = []
    is_ending, is_being_closed = threading.Event(), threading.Event()

    async def use() -> None:
        await asyncio.gather(*(store.count(Filter()) for _ in range(5)))
        await register(store)
        office = await office_of(store)
        held.extend(office.pool._all)  # not collected, so that nobody else closes them
        lingering.append(asyncio.create_task(linger()))
        await asyncio.sleep(0)

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_ending.set()  # what begins from here on is not cancelled any more
            is_being_closed.wait(PATIENCE)

    thread = _run(use)
    await asyncio.to_thread(is_ending.wait, PATIENCE)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    is_being_closed.set()
    await closing
    await asyncio.to_thread(thread.join, PATIENCE)
    assert not thread.is_alive()
    await until(lambda: _are_gone(database))
    assert len(held) > 1


@pytest.mark.parametrize("is_known", [False, True], ids=["unopened", "open"])
async def test_a_loop_may_end_at_any_moment(make_store: Opener, database: Database, is_known: bool) -> None:
    """It ends after one turn of what was begun on it, after two, and so on, until that is through before."""
    store = make_store()
    is_through = False

    async def use(turns: int) -> None:
        nonlocal is_through
        if is_known:
            await store.count(Filter())
        verbs = [
            store.enqueue([new()]),
            store.enqueue([new(idempotency_key=str(uuid4()))]),
            store.register(NewWorker(uuid4(), "worker")),
            store.cancel([uuid4()], "not wanted"),
            _hear(store),
        ]
        begun = [asyncio.create_task(verb) for verb in verbs]
        for _ in range(turns):
            await asyncio.sleep(0)
        is_through = all(task.done() for task in begun)

    turns = 0
    while not is_through:
        thread = _run(partial(use, turns))
        await asyncio.to_thread(thread.join, PATIENCE)
        assert not thread.is_alive(), f"it does not come to its end after {turns} turns"
        await until(lambda: _are_gone(database))
        # A loop that waits for a server turns thousands of times, and its first turns are those that matter.
        turns += 1 + turns // (100 if IS_THOROUGH else 4)
        if not is_known:
            await store.close()


async def test_whoever_leaves_an_embedded_worker_leaves_no_connections_of_its_thread(database: Database) -> None:
    async with Holdfast(database.url) as hf:
        async with hf.worker():
            pass
        store = hf._engine.store
        assert isinstance(store, PostgresStore)
        assert list(store._offices._of_loops) == [asyncio.get_running_loop()]
    await until(lambda: _are_gone(database))


async def _hear(store: PostgresStore) -> None:
    async with store.changes([HintKind.WORK]):
        pass


def _run(work: Callable[[], Coroutine[Any, Any, None]]) -> threading.Thread:
    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    return thread


async def _are_gone(database: Database) -> bool:
    return not await database.backends()
