"""Serialization failures and deadlocks: the store tries again, and its callers never hear of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from holdfast.errors import StoreUnavailable
from holdfast.job import ClaimedJob, Stage
from holdfast.lifecycle import Bury, Complete, GiveBack
from holdfast.store import Enqueued, Queue, Ruling, Settled
from holdfast.stores.postgres import PostgresStore, branch
from tests.crash.rounds import IS_THOROUGH, rounds
from tests.postgres.conftest import Opener
from tests.postgres.database import Database
from tests.postgres.jobs import FAILURE, QUEUE, bury, claim, enqueue, new, register, settle, start

_CODES = {"serialization failure": "40001", "deadlock": "40P01"}

_AGAIN = GiveBack(is_charged=True, failure=FAILURE)

each_code = pytest.mark.parametrize("code", _CODES.values(), ids=_CODES)


async def _fail(database: Database, code: str, times: int, *, at_commit: bool = False) -> None:
    """The next so many changes of jobs fail with this code. A sequence counts, since it is not rolled back."""
    kind, when = ("constraint trigger", "deferrable initially deferred for each row") if at_commit else ("trigger", "")
    await database.execute(
        f"""
        create sequence failures_left;
        create function fail() returns trigger language plpgsql as $$
            begin
                if nextval('public.failures_left') <= {times} then
                    raise exception using errcode = '{code}', message = 'not now';
                end if;
                return null;
            end
        $$;
        create {kind} fail after insert or update or delete on holdfast.jobs {when} execute function fail();
        """
    )


async def _failures(database: Database) -> int:
    number: int = await database.value("select last_value from failures_left")
    return number


@pytest.mark.parametrize(
    ("code", "at_commit"),
    [(code, at_commit) for code in _CODES.values() for at_commit in (False, True)]
    if IS_THOROUGH
    else [("40001", True), ("40P01", False)],
)
@pytest.mark.parametrize(
    "verb", ["enqueue", "keyed", "guarded", "claim", "complete", "bury", "cancel", "retry", "discard", "tick", "rescue"]
)
async def test_what_fails_a_few_times_is_tried_again(
    store: PostgresStore, database: Database, code: str, verb: str, at_commit: bool
) -> None:
    worker = await register(store)
    running = await start(store, worker, 2)
    waiting = await enqueue(store, 2)
    dead = await bury(store, worker, 2)
    await enqueue(store, 2, delay=timedelta(microseconds=1))
    await store.declare_queues([Queue("narrow", bound=2)])
    fresh, keyed = [new(), new()], [new(idempotency_key="key"), new(unique_key="key")]
    narrow = [new(queue="narrow"), new(queue="narrow")]
    acts: dict[str, tuple[Callable[[], Awaitable[object]], object]] = {
        "enqueue": (lambda: store.enqueue(fresh), [Enqueued(job.id) for job in fresh]),
        "keyed": (lambda: store.enqueue(keyed), [Enqueued(job.id) for job in keyed]),
        "guarded": (lambda: store.enqueue(narrow), [Enqueued(job.id) for job in narrow]),
        "claim": (lambda: _ids_of(claim(store, worker, 2)), waiting),
        "complete": (lambda: settle(store, running, Complete()), [Settled.APPLIED] * 2),
        "bury": (lambda: settle(store, running, Bury(FAILURE)), [Settled.APPLIED] * 2),
        "cancel": (lambda: _done(store.cancel(waiting, "not wanted")), {True}),
        "retry": (lambda: _done(store.retry(dead)), {True}),
        "discard": (lambda: _done(store.discard(dead)), {True}),
        "tick": (lambda: _ripened(store), 2),
        "rescue": (lambda: store.rescue({worker: 1}), sorted(job.id for job in running)),
    }
    await _fail(database, code, 3, at_commit=at_commit)
    act, expected = acts[verb]
    assert await act() == expected
    assert await _failures(database) > 3


async def _ids_of(claiming: Awaitable[list[ClaimedJob]]) -> list[UUID]:
    return [job.id for job in await claiming]


async def _done(steering: Awaitable[dict[UUID, Ruling]]) -> set[bool]:
    return {ruling.is_done for ruling in (await steering).values()}


async def _ripened(store: PostgresStore) -> int:
    return (await store.tick()).ripened


@each_code
async def test_what_fails_for_ever_is_given_up_and_nothing_was_written(
    store: PostgresStore, database: Database, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branch, "_LONGEST_PAUSE", 0.01)
    await _fail(database, code, 1_000_000)
    with pytest.raises(StoreUnavailable, match=r"(?i)not now.*nothing was written"):
        await store.enqueue([new()])
    assert await database.ids() == []
    await database.execute("drop trigger fail on holdfast.jobs")
    await enqueue(store)


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
async def test_a_database_that_isolates_more_than_we_need_makes_no_difference(
    make_store: Opener, database: Database, level: str
) -> None:
    name = database.url.rpartition("/")[2]
    await database.execute(f"alter database {name} set default_transaction_isolation = '{level}'")
    stores = [make_store(), make_store()]
    workers = [await register(store) for store in stores]
    jobs = [new(idempotency_key=str(number % 20)) for number in range(60)]
    answers = await asyncio.gather(*(stores[number % 2].enqueue([job]) for number, job in enumerate(jobs)))
    assert sum(not answer.is_existing for (answer,) in answers) == 20
    done = 0
    while done < 20:
        claims = await asyncio.gather(
            *(claim(store, worker, 3) for store, worker in zip(stores, workers, strict=True) for _ in range(3))
        )
        for number, claimed in enumerate(claims):
            assert set(await settle(stores[number % 2], claimed, Complete())) <= {Settled.APPLIED}
            done += len(claimed)
    assert set((await database.stages()).values()) == {Stage.COMPLETED}


async def test_a_serializable_transaction_of_the_users_may_enqueue(store: PostgresStore, database: Database) -> None:
    with psycopg.connect(database.url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        (answer,) = store.enqueue_in(connection, [new(idempotency_key="key")])
    assert await database.ids() == [answer.id]


async def test_verbs_that_get_in_each_others_way_all_come_through(make_store: Opener, database: Database) -> None:
    """The same jobs in every order, by many at once, with deadlocks found quickly."""
    name = database.url.rpartition("/")[2]
    await database.execute(f"alter database {name} set deadlock_timeout = '10ms'")
    stores = [make_store(), make_store()]
    worker = await register(stores[0])
    chance = random.Random(7)
    for _ in range(rounds(3)):
        ids = await enqueue(stores[0], 30, queue=QUEUE)
        orders = [chance.sample(ids, len(ids)) for _ in range(12)]
        steering = [
            stores[number % 2].cancel(order, "not wanted") if number % 3 else stores[number % 2].run_now(order)
            for number, order in enumerate(orders)
        ]
        claiming = [claim(stores[number % 2], worker, 5) for number in range(6)]
        await asyncio.gather(*steering, stores[0].tick(), stores[1].rescue({}))
        running = [job for claimed in await asyncio.gather(*claiming) for job in claimed]
        settling = [
            settle(stores[number % 2], chance.sample(running, len(running)), Complete() if number % 2 else _AGAIN)
            for number in range(8)
        ]
        await asyncio.gather(*settling, *(stores[1].cancel(order, "not wanted") for order in orders[:4]))
        stages = await database.stages()
        assert {stages[id] for id in ids} <= {Stage.CANCELLED, Stage.READY, Stage.COMPLETED}


async def test_keys_that_are_taken_in_opposite_orders_are_each_taken_once(
    make_store: Opener, database: Database
) -> None:
    name = database.url.rpartition("/")[2]
    await database.execute(f"alter database {name} set deadlock_timeout = '10ms'")
    stores = [make_store(), make_store(), make_store()]
    chance = random.Random(7)
    for round in range(rounds(3)):
        keys = [f"{round}-{number}" for number in range(10)]
        calls = [[new(idempotency_key=key) for key in chance.sample(keys, len(keys))] for _ in range(30)]
        answers = await asyncio.gather(*(stores[number % 3].enqueue(call) for number, call in enumerate(calls)))
        assert sum(not answer.is_existing for call in answers for answer in call) == len(keys)
        assert len({answer.id for call in answers for answer in call}) == len(keys)
    assert len(await database.ids()) == 10 * rounds(3)


async def test_a_deadlock_with_a_user_costs_only_a_new_try(store: PostgresStore, database: Database) -> None:
    first, second = sorted(await enqueue(store, 2))
    user = await database.connect()
    await user.execute("set deadlock_timeout = '30s'")  # so that it is the store's backend that notices
    transaction = user.transaction()
    await transaction.start()
    await user.execute("select from holdfast.jobs where id = $1 for update", second)
    cancelling = asyncio.create_task(store.cancel([first, second], "not wanted"))
    await database.until_waiting()
    # The store has the first and waits for the second; the user has the second and now waits for the first.
    await user.execute("select from holdfast.jobs where id = $1 for update", first)
    assert not cancelling.done()
    await transaction.commit()
    assert all(ruling.is_done for ruling in (await cancelling).values())
    await user.close()
