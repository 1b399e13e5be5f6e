"""A listener that is lost comes back, and says that something may have been missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from holdfast.store import Hint, HintKind
from holdfast.stores.postgres import PostgresStore, notices
from tests.postgres.conftest import Opener
from tests.postgres.database import PATIENCE, Database, until
from tests.postgres.jobs import enqueue
from tests.postgres.proxy import Harm, Proxy

_LISTENS = "query ilike 'listen%'"


async def _next(hints: AsyncIterator[Hint]) -> Hint:
    async with asyncio.timeout(PATIENCE):
        return await anext(hints)


async def _until_named(hints: AsyncIterator[Hint], queue: str) -> None:
    async with asyncio.timeout(PATIENCE):
        async for hint in hints:
            if queue in hint.queues:
                return


async def _is_listening(database: Database) -> bool:
    return bool(await database.ask(f"select from pg_stat_activity where datname = current_database() and {_LISTENS}"))


async def test_a_waiter_is_told_of_anything_that_may_have_been_missed(
    store: PostgresStore, make_store: Opener, database: Database
) -> None:
    other = make_store()
    async with store.changes([HintKind.WORK, HintKind.FINISHED]) as hints:
        await enqueue(other, queue="before")
        await _until_named(hints, "before")
        for round in range(3):
            await until(lambda: _is_listening(database))
            assert await database.terminate(_LISTENS) == 1
            wild = {(await _next(hints)).kind, (await _next(hints)).kind}
            assert wild == {HintKind.WORK, HintKind.FINISHED}
            await enqueue(other, queue=f"after-{round}")
            await _until_named(hints, f"after-{round}")


async def test_a_waiter_that_came_when_the_server_was_away_is_told_too(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, database: Database
) -> None:
    listening = proxy.plan(Harm.CUT_BEFORE, "LISTEN", times=2)
    async with far_store.changes([HintKind.WORK]) as hints:
        assert listening.done == 2
        assert await _next(hints) == Hint(HintKind.WORK)
        await enqueue(store, queue="after")
        await _until_named(hints, "after")


async def test_a_listener_that_falls_silent_is_replaced(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_LOOK_EVERY", 0.1)
    async with far_store.changes([HintKind.WORK]) as hints:
        proxy.plan(Harm.CUT_AFTER, "select 1")
        assert await _next(hints) == Hint(HintKind.WORK)
        await enqueue(store, queue="after")
        await _until_named(hints, "after")


async def test_hints_are_heard_again_after_everything_was_cut(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy
) -> None:
    async with far_store.changes(list(HintKind)) as hints:
        proxy.go_away()
        await enqueue(store, queue=str(uuid4()))
        proxy.come_back()
        missed = [await _next(hints) for _ in HintKind]
        assert all(not hint.queues for hint in missed)
        assert {hint.kind for hint in missed} == set(HintKind)
        await enqueue(store, queue="after")
        await _until_named(hints, "after")


async def test_who_stops_listening_leaves_no_connection(
    store: PostgresStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.postgres.notices._LINGER", 0.2)
    async with store.changes([HintKind.WORK]), store.changes([HintKind.ROOM]):
        assert await _is_listening(database)

    async def is_over() -> bool:
        return not await _is_listening(database)

    await until(is_over)
    async with store.changes([HintKind.WORK]) as hints:  # and may begin again
        await enqueue(store, queue="again")
        await _until_named(hints, "again")


async def test_who_waits_again_soon_needs_no_new_connection(store: PostgresStore, database: Database) -> None:
    async def listening() -> list[int]:
        return [
            row["pid"]
            for row in await database.ask(
                f"select pid from pg_stat_activity where datname = current_database() and {_LISTENS}"
            )
        ]

    before = []
    for number in range(3):
        async with store.changes([HintKind.WORK]) as hints:
            await enqueue(store, queue=str(number))
            await _until_named(hints, str(number))
            before.append(await listening())
    assert len(before[0]) == 1
    assert before[1:] == before[:-1]


async def test_a_job_that_comes_alone_is_announced_in_its_own_transaction_and_otherwise_after_it(
    store: PostgresStore, make_store: Opener, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever announces in his transaction keeps others from theirs, so another one who comes meanwhile does not."""
    afterwards: list[Hint] = []
    send = notices.Messenger.send

    def record(messenger: notices.Messenger, hints: list[Hint]) -> None:
        afterwards.extend(hints)
        send(messenger, hints)

    monkeypatch.setattr(notices.Messenger, "send", record)
    other = make_store()
    await enqueue(other, queue="known")  # how full it is has been looked at by now
    await enqueue(other, queue="known")
    user = await database.connect()
    try:
        async with store.changes([HintKind.WORK]) as hints:
            afterwards.clear()
            await enqueue(other, queue="known")
            await _until_named(hints, "known")
            assert afterwards == []
            async with user.transaction():
                await user.execute("select pg_advisory_xact_lock(1215261796, 0)")
                await enqueue(other, queue="known")
                await _until_named(hints, "known")
                assert afterwards == [Hint(HintKind.WORK, frozenset({"known"}))]
    finally:
        await user.close()
