"""The floors of claims on a real server: nobody is left behind, without any sweep, whoever commits when.

What a claim could not have because it was locked is for the sweeps; they are switched off here, but where they are
what is tested.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import UUID, uuid4

import asyncpg
import pytest

from holdfast.job import ClaimedJob
from holdfast.lifecycle import Complete, GiveBack
from holdfast.store import Settlement
from holdfast.stores.postgres import PostgresStore, floors, migrate, statements
from holdfast.stores.postgres.floors import lane_number
from tests.postgres.conftest import Opener
from tests.postgres.database import Database, until
from tests.postgres.jobs import QUEUE, claim, enqueue, new, register, settle
from tests.servers.packages import NoServer
from tests.servers.postgres import PostgresServer
from tests.servers.provision import give_up

GIVEN_BACK, FRESH = lane_number(5, 0), lane_number(5, 1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A server for these tests alone: floors wait for the transactions of all databases."""
    try:
        server = PostgresServer()
    except NoServer as error:
        give_up(error)
    with server:
        yield server


@pytest.fixture(autouse=True)
def _no_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "_SOONEST_SWEEP", 3600.0)
    monkeypatch.setattr(floors, "_LATEST_SWEEP", 3600.0)


@pytest.fixture
async def worker(store: PostgresStore) -> UUID:
    """A worker that has claimed once, so that the first sweep is over."""
    worker = await register(store)
    assert await claim(store, worker) == []
    return worker


def floor_of(store: PostgresStore, lane: int = FRESH) -> int:
    return store._offices.floors.of(QUEUE).look(0.0).places[lane]


async def drain(store: PostgresStore, worker: UUID) -> list[UUID]:
    """Claim until nothing is left, and a little longer, so that the floor rises as far as it may."""
    taken: list[ClaimedJob] = []
    misses = 0
    while misses < 4:
        claimed = await claim(store, worker, 10)
        taken += claimed
        misses += not claimed
    await settle(store, taken, Complete())
    return [job.id for job in taken]


@asynccontextmanager
async def open_transaction(database: Database) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A transaction of a user's; it ends as the test ends it, or is rolled back."""
    connection = await database.connect()
    await connection.execute("begin")
    try:
        yield connection
    finally:
        await connection.close()


# ── one after the other ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_late_commit_is_found_where_the_claims_have_been_already(
    database: Database, store: PostgresStore, worker: UUID
) -> None:
    async with open_transaction(database) as tx:
        late = [answer.id for answer in await store.enqueue([new(), new()], tx=tx)]
        early = await enqueue(store, 30)
        assert await drain(store, worker) == early
        await tx.execute("commit")
        assert await drain(store, worker) == late


async def test_floors_rise_when_nobody_is_in_the_way(database: Database, store: PostgresStore, worker: UUID) -> None:
    await enqueue(store, 100)
    await drain(store, worker)
    assert floor_of(store) == await database.value("select max(place) from holdfast.jobs")


async def test_a_snapshot_that_is_held_for_long_keeps_no_floor_down(
    database: Database, store: PostgresStore, worker: UUID
) -> None:
    """Such a transaction keeps dead entries in the index for hours: just then the floor must rise over them."""
    async with open_transaction(database) as tx:
        await tx.execute("set transaction isolation level repeatable read")
        await tx.execute("select count(*) from holdfast.jobs")
        await enqueue(store, 100)
        await drain(store, worker)
        assert floor_of(store) == await database.value("select max(place) from holdfast.jobs")


async def test_a_transaction_that_may_still_commit_below_keeps_the_floor_down(
    database: Database, store: PostgresStore, worker: UUID
) -> None:
    async with open_transaction(database) as tx:
        await tx.execute("select pg_current_xact_id()")
        await enqueue(store, 100)
        await drain(store, worker)
        assert floor_of(store) == 0
        await tx.execute("rollback")
        await drain(store, worker)
        assert floor_of(store) == await database.value("select max(place) from holdfast.jobs")


async def test_a_place_is_drawn_by_a_transaction_that_has_its_number(
    database: Database, store: PostgresStore, worker: UUID
) -> None:
    """Between drawing and inserting, a transaction without a number would be unknown to every snapshot."""
    await database.execute(STALL)
    await enqueue(store)  # every 32nd draw is written down, which gives a transaction its number; the next one is not
    await drain(store, worker)
    async with open_transaction(database) as tx, open_transaction(database) as gate:
        await gate.execute("select pg_advisory_xact_lock(1)")
        stalled = new(task="stalled")
        enqueuing = asyncio.create_task(store.enqueue([stalled], tx=tx))
        await until_it_waits(database, "user")
        early = await enqueue(store, 30)
        assert await drain(store, worker) == early
        await gate.execute("rollback")
        await enqueuing
        await tx.execute("commit")
    assert await drain(store, worker) == [stalled.id]


STALL = """
    create function stall() returns trigger language plpgsql as $$
    begin
        if new.task = 'stalled' then
            perform pg_advisory_xact_lock_shared(1);
        end if;
        return new;
    end
    $$;
    create trigger stall before insert on holdfast.jobs for each row execute function stall();
"""


async def until_it_waits(database: Database, application: str) -> None:
    async def waits() -> bool:
        sql = """
            select count(*) > 0 from pg_stat_activity
            where datname = current_database() and application_name = $1 and wait_event_type = 'Lock'
        """
        return cast(bool, await database.value(sql, application))

    await until(waits)


async def test_a_paused_queue_is_not_taken_for_an_empty_one(
    database: Database, store: PostgresStore, worker: UUID
) -> None:
    async with open_transaction(database) as tx:
        late = [answer.id for answer in await store.enqueue([new()], tx=tx)]
        await enqueue(store, 10)
        await drain(store, worker)
        await store.pause(QUEUE)
        await tx.execute("commit")
        assert await drain(store, worker) == []
        await store.resume(QUEUE)
        assert await drain(store, worker) == late


async def test_what_others_gave_back_meanwhile_does_not_hide_what_stands_before_it(
    database: Database, store: PostgresStore, worker: UUID, make_store: Opener
) -> None:
    """A claim that waits takes a job where it stands by then; that says nothing about the places up to there."""
    other = make_store()
    colleague = await register(other)
    await enqueue(store, 3)
    early, late, last = await claim(other, colleague, 3)
    async with open_transaction(database) as tx:
        for job in (early, late):
            await tx.execute(GIVE_BACK, job.id)
        await settle(other, [last], GiveBack())
        for _ in range(2):
            await drain_lightly(store, worker)
        await tx.execute("commit")
    async with open_transaction(database) as tx:
        await tx.execute("select from holdfast.workers where id = $1 for update", worker)
        waiting = asyncio.create_task(claim(store, worker, 1))
        await database.until_waiting()
        (again,) = await claim(other, colleague, 1)
        assert again.id == early.id
        await settle(other, [again], GiveBack())
        await tx.execute("rollback")
        assert [job.id for job in await waiting] == [early.id]
    assert [job.id for job in await claim(store, worker, 5)] == [late.id]


GIVE_BACK = "update holdfast.jobs set stage = 2, lane = 0, place = nextval('holdfast.places') where id = $1"


async def drain_lightly(store: PostgresStore, worker: UUID) -> None:
    await settle(store, await claim(store, worker, 5), Complete())


async def test_a_claim_that_was_rolled_back_is_made_good_by_a_sweep(
    database: Database, store: PostgresStore, worker: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_transaction(database) as tx:
        await tx.execute("select pg_current_xact_id()")
        late = [answer.id for answer in await store.enqueue([new()], tx=tx)]
        await enqueue(store, 5)
        await drain(store, worker)
        await tx.execute("commit")
    async with open_transaction(database) as rival:
        await rival.execute("update holdfast.jobs set stage = 3 where id = any ($1::uuid[])", late)
        assert await drain(store, worker) == []
        await rival.execute("rollback")
    assert await drain(store, worker) == [], "if it is seen now, nothing is tested here"
    store._offices.floors.of(QUEUE).swept(-7200.0, -7200.0)
    assert await drain(store, worker) == late


# ── all at once ──────────────────────────────────────────────────────────────────────────────────────────────────────

PRODUCERS, CALLS = 12, 25


async def test_nobody_is_left_behind_among_late_committers_and_many_claimers(
    database: Database, make_store: Opener
) -> None:
    stores = [make_store(), make_store()]
    workers = [(store, await register(store)) for store in stores for _ in range(3)]
    for store, worker in workers:
        assert await claim(store, worker) == []
    enqueued: set[UUID] = set()
    claimed: list[UUID] = []
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        claimers = [group.create_task(keep_claiming(*each, claimed, is_over)) for each in workers]
        async with asyncio.TaskGroup() as producers:
            for number in range(PRODUCERS):
                producers.create_task(commit_late(database, stores[number % 2], random.Random(number), enqueued))
        is_over.set()
    assert len(claimers) == len(workers)
    for store, worker in workers:
        claimed += await drain(store, worker)
    assert sorted(claimed) == sorted(enqueued)
    assert floor_of(stores[0]) > 0


async def commit_late(database: Database, store: PostgresStore, chance: random.Random, enqueued: set[UUID]) -> None:
    """Transactions of users, which enqueue now and commit later, some of them side by side, or not at all."""
    connections = [await database.connect() for _ in range(3)]
    try:
        for _ in range(CALLS // 3):
            pending: list[tuple[Any, list[UUID]]] = []
            for connection in connections:
                await connection.execute("begin")
                if chance.random() < 0.3:
                    await connection.execute("select pg_sleep(0.002)")
                answers = await store.enqueue([new() for _ in range(chance.randint(1, 4))], tx=connection)
                pending.append((connection, [answer.id for answer in answers]))
            chance.shuffle(pending)
            for connection, ids in pending:
                is_committed = chance.random() < 0.8
                await connection.execute("commit" if is_committed else "rollback")
                if is_committed:
                    enqueued.update(ids)
    finally:
        for connection in connections:
            await connection.close()


async def keep_claiming(store: PostgresStore, worker: UUID, claimed: list[UUID], is_over: asyncio.Event) -> None:
    while not is_over.is_set():
        jobs = await store.claim(worker, uuid4(), {QUEUE: 3})
        # Some of them are given back, and so draw a place anew.
        chances = [GiveBack() if random.random() < 0.1 else Complete() for _ in jobs]
        await store.settle([Settlement(job.id, job.token, end) for job, end in zip(jobs, chances, strict=True)])
        claimed += [job.id for job, end in zip(jobs, chances, strict=True) if isinstance(end, Complete)]


# ── the tester is tested ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_enqueue_that_draws_before_it_has_a_number_is_noticed(bare: Database, make_store: Opener) -> None:
    shipped = migrate.shipped_migrations()
    careless = [
        migrate.Migration(each.number, each.name, each.sql.replace("perform pg_current_xact_id();", ""))
        for each in shipped
    ]
    assert careless != shipped
    store = make_store(bare.url, migrations=careless)
    worker = await register(store)
    await claim(store, worker)
    with pytest.raises(AssertionError):
        await test_a_place_is_drawn_by_a_transaction_that_has_its_number(bare, store, worker)


async def test_a_claim_that_tells_where_others_put_a_job_is_noticed(
    database: Database, store: PostgresStore, worker: UUID, make_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = statements.statement("claim")
    careless = shipped.replace("when runs > 1 or generation > 0", "when false")
    assert careless != shipped
    monkeypatch.setitem(statements._TEXTS, "claim", careless)
    with pytest.raises(AssertionError):
        await test_what_others_gave_back_meanwhile_does_not_hide_what_stands_before_it(
            database, store, worker, make_store
        )
