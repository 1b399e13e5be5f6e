"""A tick is one look when there is nothing to do, and finds all that there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.job import JobState
from holdfast.store import Tick
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.connection import Connection
from holdfast.stores.postgres.statements import statement
from tests.postgres.jobs import enqueue

_HOUR = timedelta(hours=1)
_AT_ONCE = timedelta(microseconds=1)
_PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the server is asked, from now on: each is a round trip. Hints are sent behind everybody's back."""
    asked: list[str] = []
    fetch, transaction = Connection.fetch, Connection.transaction

    async def watched_fetch(self: Connection, sql: str, *values: Any) -> Any:
        if sql != statement("notify"):
            asked.append(sql)
        return await fetch(self, sql, *values)

    @asynccontextmanager
    async def watched_transaction(self: Connection) -> AsyncIterator[None]:
        asked.append("begin")
        async with transaction(self):
            yield

    monkeypatch.setattr(Connection, "fetch", watched_fetch)
    monkeypatch.setattr(Connection, "transaction", watched_transaction)
    return asked


async def test_a_tick_without_anything_to_do_is_one_round_trip(store: PostgresStore, requests: list[str]) -> None:
    assert await store.tick() == Tick(0, 0, None)
    assert requests == [statement("next_due")]
    await enqueue(store)
    await enqueue(store, expires_in=_HOUR)
    await enqueue(store, delay=_HOUR)
    requests.clear()
    tick = await store.tick()
    assert requests == [statement("next_due")]
    assert (tick.ripened, tick.expired) == (0, 0)
    assert tick.next_in is not None
    assert _HOUR - timedelta(minutes=1) < tick.next_in < _HOUR


async def test_a_tick_finds_what_is_due_and_what_has_expired_by_the_server_s_clock(store: PostgresStore) -> None:
    [due] = await enqueue(store, delay=_AT_ONCE)
    tick = await store.tick()
    assert (tick.ripened, tick.expired, tick.next_in) == (1, 0, None)
    ready, scheduled = [
        *await enqueue(store, expires_in=_AT_ONCE),
        *await enqueue(store, delay=_HOUR, expires_at=_PAST),
    ]
    tick = await store.tick()
    assert (tick.ripened, tick.expired, tick.next_in) == (0, 2, None)
    assert [job.state for job in await store.get([due, ready, scheduled])] == [
        JobState.PENDING,
        JobState.DEAD,
        JobState.DEAD,
    ]
