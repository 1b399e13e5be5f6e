"""Statements that take too long, and answers that do not come: told clearly, and over as soon as the cause is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.lifecycle import Bury, Complete
from holdfast.store import Enqueued, Held, Settled
from holdfast.stores.postgres import PostgresStore, branch, connection
from tests.postgres.conftest import Opener
from tests.postgres.database import Database, until
from tests.postgres.jobs import FAILURE, claim, enqueue, new, register, settle, start
from tests.postgres.proxy import Harm, Proxy


async def _slow_down(database: Database, seconds: float) -> None:
    """Every change of a job takes so long."""
    await database.execute(
        f"""
        create or replace function dawdle() returns trigger language plpgsql as $$
            begin perform pg_sleep({seconds}); return null; end
        $$;
        drop trigger if exists dawdle on holdfast.jobs;
        create trigger dawdle after insert or update on holdfast.jobs execute function dawdle();
        """
    )


@pytest.fixture
async def hasty(make_store: Opener, database: Database) -> PostgresStore:
    """A store that gives a statement a tenth of a second."""
    return make_store(f"{database.url}?statement_timeout=100ms")


async def test_a_limit_that_the_server_sets_for_statements_is_not_ours(make_store: Opener, database: Database) -> None:
    name = database.url.rpartition("/")[2]
    await database.execute(f"alter database {name} set statement_timeout = '50ms'")
    store = make_store()
    await store.open()
    await _slow_down(database, 0.1)
    assert len(await enqueue(store, 2)) == 2
    worker = await register(store)
    assert await settle(store, await claim(store, worker, 2), Complete()) == [Settled.APPLIED] * 2


@pytest.mark.parametrize("verb", ["enqueue", "keyed", "claim", "complete", "bury", "cancel", "tick"])
async def test_a_statement_that_takes_too_long_is_told_and_has_changed_nothing(
    hasty: PostgresStore, store: PostgresStore, database: Database, verb: str
) -> None:
    worker = await register(store)
    running = await start(store, worker, 2)
    waiting = await enqueue(store, 2)
    await enqueue(store, 2, delay=timedelta(microseconds=1))
    acts: dict[str, Callable[[], Awaitable[object]]] = {
        "enqueue": lambda: hasty.enqueue([new(), new()]),
        "keyed": lambda: hasty.enqueue([new(idempotency_key="key"), new(unique_key="key")]),
        "claim": lambda: claim(hasty, worker, 2),
        "complete": lambda: settle(hasty, running, Complete()),
        "bury": lambda: settle(hasty, running, Bury(FAILURE)),
        "cancel": lambda: hasty.cancel(waiting, "not wanted"),
        "tick": hasty.tick,
    }
    before = await database.stages()
    await _slow_down(database, 3)
    with pytest.raises(StoreUnavailable, match=r"(?i)took too long.*nothing was written"):
        await acts[verb]()
    assert await database.stages() == before
    assert await database.value("select count(*) from holdfast.keys") == 0
    await database.execute("drop trigger dawdle on holdfast.jobs")
    await acts[verb]()
    assert await database.stages() != before


async def test_others_do_not_suffer_from_a_statement_that_takes_too_long(
    make_store: Opener, database: Database
) -> None:
    store = make_store(f"{database.url}?statement_timeout=1s")
    (held,) = await enqueue(store)
    user = await database.connect()
    async with user.transaction():
        await user.execute("select from holdfast.jobs for update")
        cancelling = asyncio.create_task(store.cancel([held], "not wanted"))
        await database.until_waiting()
        worker = await register(store)
        await settle(store, await start(store, worker), Complete())
        assert (await store.beat(worker, Held({}))).is_alive
        assert not cancelling.done()
        with pytest.raises(StoreUnavailable, match="took too long"):
            await cancelling
    await user.close()
    assert (await store.cancel([held], "not wanted"))[held].is_done


async def test_an_answer_that_never_comes_is_asked_for_again(
    proxy: Proxy, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_SLACK", 0.2)
    monkeypatch.setattr(branch, "PATIENCE", 0.1)  # shorter than the silence: it is asked for again all the same
    store = PostgresStore(f"{proxy.url}?statement_timeout=600ms")
    worker = await register(store)
    job = new()
    plan = proxy.plan(Harm.SILENCE, "holdfast.enqueue(")
    assert await store.enqueue([job]) == [Enqueued(job.id)]
    assert plan.happened.is_set()
    proxy.plan(Harm.SILENCE, "update holdfast.jobs")
    claimed = await claim(store, worker)
    assert [each.id for each in claimed] == [job.id]
    proxy.plan(Harm.SILENCE, "update holdfast.jobs")
    assert await settle(store, claimed, Complete()) == [Settled.ALREADY]
    await store.close()
    await until(lambda: _has_no_backends(database))


async def _has_no_backends(database: Database) -> bool:
    return not await database.backends()


async def test_a_database_that_is_slow_to_answer_is_only_slow(
    far_store: PostgresStore, proxy: Proxy, database: Database
) -> None:
    proxy.delay = 0.02
    worker = await register(far_store)
    answers = await asyncio.gather(*(far_store.enqueue([new()]) for _ in range(100)))
    claimed = await claim(far_store, worker, 100)
    assert {job.id for job in claimed} == {id for ((id),) in ([each.id for each in answer] for answer in answers)}
    beaten = await far_store.beat(worker, Held({job.id: job.token for job in claimed}))
    assert (beaten.is_alive, beaten.taken, beaten.released) == (True, [], [])
    settled = await asyncio.gather(*(settle(far_store, [job], Complete()) for job in claimed))
    assert settled == [[Settled.APPLIED]] * 100
    assert set((await database.stages()).values()) == {4}
