"""A client is killed in the middle of a claim, and its backend goes on by itself: nobody is left with the jobs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from holdfast.errors import OutcomeUnknown, StoreUnavailable, WorkerDeclaredDead
from holdfast.job import Stage
from holdfast.lifecycle import Complete
from holdfast.store import NewWorker, Settled
from holdfast.stores.postgres import PostgresStore, connection
from tests.postgres.conftest import Opener
from tests.postgres.database import Database, until
from tests.postgres.jobs import QUEUE, claim, enqueue, new, register, settle
from tests.postgres.process import Process
from tests.postgres.proxy import Harm, Proxy

_SLOW_CLAIMS = """
    create function wait_in_claim() returns trigger language plpgsql as $$
        begin
            if new.stage = 3 then perform pg_advisory_xact_lock(42); end if;
            return new;
        end
    $$;
    create trigger wait_in_claim before update on holdfast.jobs for each row execute function wait_in_claim();
"""


@asynccontextmanager
async def _slow_claims(database: Database) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Claims do not get on until this is called."""
    await database.execute(_SLOW_CLAIMS)
    user = await database.connect()
    transaction = user.transaction()
    await transaction.start()
    await user.execute("select pg_advisory_xact_lock(42)")
    yield transaction.rollback
    await database.execute("drop trigger wait_in_claim on holdfast.jobs")
    await user.close()


async def _lose_in_mid_claim(far_store: PostgresStore, proxy: Proxy, database: Database, worker: UUID) -> None:
    """Let a worker claim, and cut it off for ever. Its backend does not notice before it wants to answer."""
    claiming = asyncio.create_task(claim(far_store, worker, 10))
    await database.until_waiting()
    proxy.go_away()
    with pytest.raises(OutcomeUnknown):
        await claiming


def _verbs(store: PostgresStore, worker: UUID) -> dict[str, Callable[[], Awaitable[list[UUID] | None]]]:
    return {
        "rescue": lambda: store.rescue({worker: 1}),
        "bury_worker": lambda: store.bury_worker(worker),
        "depart": lambda: store.depart(worker),
        "register": lambda: store.register(NewWorker(worker, "worker")),
    }


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("verb", ["rescue", "bury_worker", "depart", "register"])
async def test_who_takes_over_waits_for_the_claim_to_end(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, database: Database, verb: str
) -> None:
    worker = await register(store)
    ids = await enqueue(store, 3)
    async with _slow_claims(database) as let_go:
        await _lose_in_mid_claim(far_store, proxy, database, worker)
        taking_over = asyncio.ensure_future(_verbs(store, worker)[verb]())
        await database.until_waiting(2)
        await let_go()
        taken = await taking_over
        assert taken is None or sorted(taken) == ids
        await until(database.is_quiet)
        assert await database.stuck() == []
        assert [record.stage for record in await store.get(ids)] == [Stage.READY] * 3
    again = await claim(store, await register(store), 3)
    assert {job.id for job in again} == set(ids)
    assert {job.runs for job in again} == {2}, "the claim nobody saw has come through"


@pytest.mark.usefixtures("_impatient")
async def test_a_rescue_that_did_not_wait_for_so_long_is_resumed(
    far_store: PostgresStore, make_store: Opener, proxy: Proxy, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection._SETTINGS, "lock_timeout", "200ms")
    hasty = make_store()
    worker, other = await register(hasty), await register(hasty)
    ids = await enqueue(hasty, 3)
    monkeypatch.setitem(connection._SETTINGS, "lock_timeout", "10s")
    async with _slow_claims(database) as let_go:
        await _lose_in_mid_claim(far_store, proxy, database, worker)
        with pytest.raises(StoreUnavailable, match="another transaction holds"):
            await hasty.rescue({worker: 1, other: 1})
        await let_go()
        await until(database.is_quiet)
        assert sorted(await hasty.rescue({worker: 1, other: 1})) == ids
    assert await database.stuck() == []


@pytest.mark.parametrize("verb", ["rescue", "bury_worker", "depart"])
async def test_a_claim_that_reaches_the_server_after_its_worker_is_gone_takes_nothing(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, database: Database, verb: str
) -> None:
    worker = await register(store)
    ids = await enqueue(store, 3)
    plan = proxy.plan(Harm.HOLD, "update holdfast.jobs")
    claiming = asyncio.create_task(claim(far_store, worker, 10))
    await plan.happened.wait()
    assert await _verbs(store, worker)[verb]() == []
    plan.release.set()
    with pytest.raises(WorkerDeclaredDead):
        await claiming
    assert [(record.stage, record.runs) for record in await store.get(ids)] == [(Stage.READY, 0)] * 3


async def test_a_process_that_is_killed_in_mid_claim_leaves_no_job_behind(
    store: PostgresStore, database: Database
) -> None:
    worker = await register(store)
    ids = await enqueue(store, 3)
    async with _slow_claims(database) as let_go:
        async with Process(database.url, "claim", worker) as process:
            await process.hear()
            await database.until_waiting()
            process.send(signal.SIGKILL)
        burying = asyncio.create_task(store.bury_worker(worker))
        await database.until_waiting(2)
        await let_go()
        assert sorted(await burying) == ids
        assert await database.stuck() == []


async def test_a_claim_that_has_come_through_is_answered_whatever_comes_after_it(
    make_store: Opener, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection._SETTINGS, "lock_timeout", "200ms")
    store = make_store()
    worker = await register(store)
    user = await database.connect()
    async with user.transaction():
        (enqueued,) = await store.enqueue([new()], tx=user)
    # A queue that nobody has heard of yet; and somebody is about to say something about it.
    async with user.transaction():
        await user.execute("insert into holdfast.queues (name) values ($1)", QUEUE)
        (claimed,) = await claim(store, worker)
        assert claimed.id == enqueued.id
    await user.close()
    assert await settle(store, [claimed], Complete()) == [Settled.APPLIED]
