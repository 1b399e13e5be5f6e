"""A user's transaction holds a key, and stays open: only who needs that key waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import psycopg
import pytest

from holdfast.errors import QueueFull, StoreUnavailable
from holdfast.store import Enqueued, Queue
from holdfast.stores.postgres import PostgresStore, strays
from tests.postgres.conftest import Opener
from tests.postgres.database import Database
from tests.postgres.jobs import QUEUE, new

KEYS = [f"held-{number}" for number in range(5)]


@pytest.fixture
async def user(database: Database, store: PostgresStore) -> AsyncIterator[psycopg.Connection]:
    """A user's transaction in which jobs with all these keys have been enqueued, and which is still open."""
    with psycopg.connect(database.url) as connection:
        store.enqueue_in(connection, [new(idempotency_key=key) for key in KEYS])
        yield connection


async def _enqueue(store: PostgresStore, key: str | None = None) -> Enqueued:
    (answer,) = await store.enqueue([new(idempotency_key=key)])
    return answer


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize("pool_size", [2, 10])
@pytest.mark.parametrize("held", [1, 5])
async def test_only_who_needs_the_key_waits(make_store: Opener, database: Database, pool_size: int, held: int) -> None:
    store = make_store(f"{database.url}?pool_size={pool_size}")
    waiting = [asyncio.create_task(_enqueue(store, key)) for key in KEYS[:held]]
    # These come with the others, in the same batch …
    together = [_enqueue(store, f"free-{number}") for number in range(10)]
    together += [_enqueue(store) for _ in range(10)]
    await asyncio.gather(*together)
    # … and these while the others have begun to wait.
    for number in range(10):
        await asyncio.gather(_enqueue(store, f"later-{number}"), _enqueue(store), store.queues())
    assert not any(task.done() for task in waiting), "they have waited until somebody gave up"
    for task in waiting:
        task.cancel()


@pytest.mark.usefixtures("user")
async def test_a_crowd_that_comes_with_a_held_key_is_let_in(store: PostgresStore, database: Database) -> None:
    waiting = asyncio.create_task(_enqueue(store, KEYS[0]))
    answers = await asyncio.gather(*(_enqueue(store, f"free-{number}") for number in range(500)))
    assert not waiting.done()
    assert sorted(answer.id for answer in answers) == await database.ids()
    waiting.cancel()


@pytest.mark.parametrize("is_committed", [False, True])
async def test_who_waited_is_told_how_the_transaction_ended(
    store: PostgresStore, database: Database, user: psycopg.Connection, is_committed: bool
) -> None:
    mine = {key: new(idempotency_key=key) for key in KEYS}
    tasks = [asyncio.create_task(store.enqueue([job, new()])) for job in mine.values()]
    await _enqueue(store, "free")
    await database.until_waiting()
    if is_committed:
        user.commit()
    else:
        user.rollback()
    answers = [answer for answer, _ in await asyncio.gather(*tasks)]
    found = await database.ask("select key, job from holdfast.keys where key = any ($1)", KEYS)
    holders: dict[str, UUID] = {row["key"]: row["job"] for row in found}
    assert [answer.id for answer in answers] == [holders[key] for key in KEYS]
    assert all(answer.is_existing is is_committed for answer in answers)
    assert all((holders[key] == job.id) is not is_committed for key, job in mine.items())
    assert len(await database.ids()) == 1 + 2 * len(KEYS)


async def test_who_has_waited_for_too_long_is_told_so_and_nothing_was_written(
    store: PostgresStore, database: Database, user: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert strays.PATIENCE == 5
    monkeypatch.setattr(strays, "PATIENCE", 1.0)
    started = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*(_enqueue(store, key) for key in KEYS * 4), return_exceptions=True)
    took = asyncio.get_running_loop().time() - started
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert all("transaction" in str(answer) and "key" in str(answer) for answer in answers)
    assert 0.9 < took < 4, "they wait together, not one after the other"
    user.rollback()
    assert await database.ids() == []
    assert not (await _enqueue(store, KEYS[0])).is_existing


async def test_a_transaction_in_a_nearly_full_queue_holds_nobody_up(
    store: PostgresStore, user: psycopg.Connection
) -> None:
    await store.declare_queues([Queue(QUEUE, bound=len(KEYS) + 2)])
    store.enqueue_in(user, [new()])
    for _ in range(len(KEYS) + 2):
        await _enqueue(store)
    with pytest.raises(QueueFull):
        store.enqueue_in(user, [new()])
    user.commit()  # what was asked for when there was room passes the bound, and is not taken back
    with pytest.raises(QueueFull):
        await _enqueue(store)
