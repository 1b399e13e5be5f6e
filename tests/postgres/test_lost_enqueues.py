"""The connection is lost while jobs are enqueued: each is there once, and nobody is told otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest
from msgspec.structs import replace

from holdfast.errors import IdempotencyConflict, OutcomeUnknown, QueueFull, StoreUnavailable
from holdfast.job import NewJob
from holdfast.store import Enqueued, Queue
from holdfast.stores.postgres import PostgresStore, connection
from tests.postgres.database import Database
from tests.postgres.jobs import QUEUE, new
from tests.postgres.moments import moments
from tests.postgres.proxy import CUTS, Harm, Proxy

_ENQUEUE = "holdfast.enqueue("

each_cut = pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name.lower())


def _plain(queue: str) -> list[NewJob]:
    return [new(queue=queue)]


def _many(queue: str) -> list[NewJob]:
    return [new(queue=queue, priority=priority) for priority in range(10)]


def _keyed(queue: str) -> list[NewJob]:
    return [new(queue=queue, idempotency_key=queue), new(queue=queue, unique_key=queue)]


def _mixed(queue: str) -> list[NewJob]:
    """The last finds the first by its key."""
    first = new(queue=queue, idempotency_key=queue)
    return [first, new(queue=queue), new(queue=queue, unique_key=queue), replace(first, id=new().id)]


@each_cut
@pytest.mark.parametrize("make", [_plain, _many, _keyed, _mixed])
@pytest.mark.parametrize("is_guarded", [False, True], ids=["free", "guarded"])
async def test_a_lost_answer_doubles_nothing_and_hides_nothing(
    far_store: PostgresStore,
    store: PostgresStore,
    proxy: Proxy,
    database: Database,
    cut: Harm,
    make: Callable[[str], list[NewJob]],
    is_guarded: bool,
) -> None:
    known: list[UUID] = []
    round = 0
    async for moment in moments(proxy, far_store, cut):
        round += 1
        queue = f"queue-{round}"
        jobs = make(queue)
        twins = jobs[3:] if make is _mixed else []
        if is_guarded:
            # What came through the first time has taken all the room there is.
            await store.declare_queues([Queue(queue, bound=len(jobs) - len(twins))])
        with moment:
            answers = await far_store.enqueue(jobs)
        fresh = jobs[: len(jobs) - len(twins)]
        assert answers == [Enqueued(job.id) for job in fresh] + [Enqueued(jobs[0].id, is_existing=True)] * len(twins)
        known += [job.id for job in fresh]
        assert await database.ids() == sorted(known)


@each_cut
async def test_callers_that_share_a_flush_each_get_their_own_answer(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, database: Database, cut: Harm
) -> None:
    there = new(idempotency_key="there")
    await store.enqueue([there])
    known = {there.id}
    round = 0
    async for moment in moments(proxy, far_store, cut):
        round += 1
        full, narrow = f"full-{round}", f"narrow-{round}"
        await store.declare_queues([Queue(full, bound=1), Queue(narrow, bound=3)])
        known.update(answer.id for answer in await store.enqueue([new(queue=full)]))
        calls = {
            "plain": [new(), new()],
            "keyed": [new(idempotency_key=f"key-{round}")],
            "found": [replace(there, id=new().id)],
            "conflict": [replace(there, id=new().id, fingerprint=b"other")],
            "full": [new(unique_key=f"unique-{round}"), new(queue=full)],
            "narrow": [new(queue=narrow, idempotency_key=f"narrow-{round}"), new(queue=narrow), new(queue=narrow)],
            "again": [replace(there, is_repeat=True)],
        }
        with moment:
            answers = await asyncio.gather(*map(far_store.enqueue, calls.values()), return_exceptions=True)
        got = dict(zip(calls, answers, strict=True))
        for name in ("plain", "keyed", "narrow"):
            assert got[name] == [Enqueued(job.id) for job in calls[name]]
            known.update(job.id for job in calls[name])
        assert got["found"] == got["again"] == [Enqueued(there.id, is_existing=True)]
        assert isinstance(got["conflict"], IdempotencyConflict)
        assert isinstance(got["full"], QueueFull)
        assert await database.ids() == sorted(known)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("make", [_plain, _many, _keyed, _mixed])
@pytest.mark.parametrize("has_come_through", [False, True])
async def test_who_is_left_in_doubt_gets_exactly_the_own_ids_and_may_repeat_them(
    far_store: PostgresStore,
    proxy: Proxy,
    database: Database,
    make: Callable[[str], list[NewJob]],
    has_come_through: bool,
) -> None:
    await far_store.enqueue([new(queue="before")])
    before = await database.ids()
    calls = [make(f"queue-{number}") for number in range(5)]
    plan = proxy.plan(Harm.CUT_AFTER if has_come_through else Harm.CUT_BEFORE, _ENQUEUE)
    gathered = asyncio.gather(*map(far_store.enqueue, calls), return_exceptions=True)
    await plan.happened.wait()
    proxy.go_away()
    for call, answer in zip(calls, await gathered, strict=True):
        assert isinstance(answer, OutcomeUnknown)
        assert answer.ids == [job.id for job in call]
    assert len(await database.ids()) > len(before) or not has_come_through
    proxy.come_back()
    repeated = [[replace(job, is_repeat=True) for job in call] for call in calls]
    answers = await asyncio.gather(*map(far_store.enqueue, repeated))
    there = await database.ids()
    for call, answer in zip(calls, answers, strict=True):
        twins = call[3:] if make is _mixed else []
        assert [each.id for each in answer] == [job.id for job in call if job not in twins] + [call[0].id] * len(twins)
        assert all(each.is_existing is has_come_through for each in answer[: len(call) - len(twins)])
        assert {each.id for each in answer} <= set(there)
    assert len(there) == len(before) + sum(len({each.id for each in answer}) for answer in answers)


@pytest.mark.usefixtures("_impatient")
async def test_what_was_never_sent_was_certainly_not_written(
    far_store: PostgresStore, proxy: Proxy, database: Database
) -> None:
    proxy.go_away()
    answers = await asyncio.gather(*(far_store.enqueue([new()]) for _ in range(5)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert all("nothing was written" in str(answer).lower() for answer in answers)
    proxy.come_back()
    assert await database.ids() == []
    job = new()
    assert await far_store.enqueue([job]) == [Enqueued(job.id)]


async def test_a_replay_that_meets_a_lock_never_says_that_nothing_was_written(
    far_store: PostgresStore, proxy: Proxy, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection._SETTINGS, "lock_timeout", "200ms")
    await far_store.declare_queues([Queue(QUEUE, bound=10)])
    first, second = proxy.plan(Harm.CUT_AFTER, _ENQUEUE), proxy.plan(Harm.HOLD, _ENQUEUE)
    job = new(idempotency_key="key")
    enqueuing = asyncio.create_task(far_store.enqueue([job]))
    await first.happened.wait()
    await second.happened.wait()
    user = await database.connect()
    try:
        async with user.transaction():
            await user.execute("select pg_advisory_xact_lock(1215261793, hashtext($1))", QUEUE)
            second.release.set()
            with pytest.raises(OutcomeUnknown) as unknown:
                await enqueuing
    finally:
        await user.close()
    assert unknown.value.ids == [job.id]
    assert await database.ids() == [job.id]
    assert await far_store.enqueue([replace(job, is_repeat=True)]) == [Enqueued(job.id, is_existing=True)]
