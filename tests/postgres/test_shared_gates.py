"""Gates that lines of several queues lead through, where nobody claims from one of these, or everybody from all."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from holdfast.lifecycle import Complete
from holdfast.store import Settlement
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_contract.lines import limit, order, rate, tenant, together
from tests.postgres.conftest import Opener
from tests.postgres.database import PATIENCE, Database
from tests.postgres.jobs import claim, new, register, settle
from tests.postgres.proxy import Harm, Plan, Proxy

CLAIMERS, JOBS = 4, 160


async def test_a_line_that_nobody_claims_is_woken_once(store: PostgresStore, database: Database) -> None:
    """However often there is room: or the wakes of a queue without workers would grow for as long as it has none."""
    worker = await register(store)
    idle = [new(queue="idle", line=limit(1)) for _ in range(2)]
    await store.enqueue([*idle, *(new(queue="served", line=limit(1)) for _ in range(20))])
    running = await claim(store, worker, 5, "idle")
    assert await claim(store, worker, 5, "served") == []
    for _ in range(20):
        await settle(store, running, Complete())
        running = await claim(store, worker, 5, "served")
        assert len(running) == 1
    # One is from its own queue's last job, when somebody did claim from it.
    assert await database.value("select count(*) from holdfast.wakes where queue = 'idle'") == 2
    await settle(store, running, Complete())
    assert [job.id for job in await claim(store, worker, 5, "idle")] == [idle[1].id]


async def test_a_line_is_not_forgotten_if_its_wake_is_taken_while_the_gate_is_full(
    database: Database, proxy: Proxy, make_store: Opener
) -> None:
    """It is woken once for room that is there, and not again for room that comes while that wake is being taken."""
    one, other = make_store(), make_store(proxy.url)
    await one.open()
    await other.open()
    mine, its = await register(one), await register(other)
    await one.enqueue([new(queue="a", line=limit(1)) for _ in range(2)])
    waiting = [new(queue="b", line=limit(1)) for _ in range(2)]
    await other.enqueue(waiting[:1])
    running = await claim(one, mine, 1, "a")
    assert await claim(other, its, 1, "b") == []
    await other.enqueue(waiting[1:])
    assert await claim(other, its, 1, "b") == [], "it is parked at the limit"
    await settle(one, running, Complete())
    running = await claim(one, mine, 1, "a")
    assert running, "the limit is full again"
    held = Plan(Harm.HOLD, text="set_config('synchronous_commit', 'off', true)")
    proxy.plans.append(held)
    claiming = asyncio.create_task(claim(other, its, 1, "b"))
    await held.happened.wait()
    # It has taken the wake, and that is not yet known here. If it holds the gate, it is waited for.
    settling = asyncio.create_task(settle(one, running, Complete()))
    blocked = asyncio.create_task(database.until_waiting())
    await asyncio.wait([settling, blocked], return_when=asyncio.FIRST_COMPLETED)
    held.release.set()
    await asyncio.gather(settling, claiming)
    blocked.cancel()
    await one.tick()
    assert [job.id for job in await claim(other, its, 1, "b")] == [waiting[0].id]


@pytest.mark.parametrize("is_woken", [True, False], ids=["closed lines", "open lines"])
async def test_who_has_waited_for_a_rate_counts_from_when_he_passes_it(
    store: PostgresStore, database: Database, is_woken: bool
) -> None:
    """He came long before, and is not forgotten the sooner for it."""
    worker = await register(store)
    window = 0.7
    for queue in "ab":
        await store.enqueue([new(queue=queue, line=rate(3, timedelta(seconds=window))) for _ in range(12)])
    started: list[tuple[float, float]] = []
    """Of each job: between which times it has passed."""

    async def start(slots: int, queue: str = "a") -> None:
        before = time.monotonic()
        jobs = await claim(store, worker, slots, queue)
        started.extend([(before, time.monotonic())] * len(jobs))

    await start(5)
    assert len(started) == 3
    if not is_woken:
        await asyncio.sleep(0.8)
        await store.tick()
        await start(2)
        assert len(started) == 5, "their line is open"
    await asyncio.sleep(0.8)
    await store.tick()
    held = await database.connect()
    try:
        async with held.transaction():
            await held.execute("select from holdfast.gates for update")
            claiming = asyncio.create_task(claim(store, worker, 5, "a"))
            await database.until_waiting()
            await asyncio.sleep(1)
            before = time.monotonic()
        started.extend([(before, time.monotonic())] * len(await claiming))
    finally:
        await held.close()
    async with asyncio.timeout(PATIENCE):
        while len(started) < 12:
            await store.tick()
            for queue in "ab":
                await start(5, queue)
    started.sort()
    for (first, _), (_, fourth) in zip(started, started[3:], strict=False):
        assert fourth - first > window


async def test_nobody_is_forgotten_where_claimers_of_several_queues_race_for_room(
    database: Database, make_store: Opener
) -> None:
    stores = [make_store() for _ in range(CLAIMERS)]
    for store in stores:
        await store.open()
    chance = random.Random(3)
    rules = [
        limit(1, "a"),
        limit(2, "b"),
        order("c"),
        together(limit(1, "a"), tenant("t")),
        together(order("c"), limit(2, "b")),
    ]
    jobs = [new(queue=chance.choice("pqr"), line=chance.choice(rules)) for _ in range(JOBS)]
    await stores[0].enqueue(jobs)
    done: set[UUID] = set()

    async def work(store: PostgresStore, queues: str) -> None:
        worker = await register(store)
        while len(done) < JOBS:
            # Some of the time, nobody claims from some of the queues.
            wanted = dict.fromkeys(chance.sample(queues, chance.randint(1, len(queues))), 3)
            claimed = await store.claim(worker, uuid4(), wanted)
            await asyncio.sleep(chance.random() / 100)
            await store.settle([Settlement(job.id, job.token, Complete(), is_lined=job.is_lined) for job in claimed])
            done.update(job.id for job in claimed)

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for store, queues in zip(stores, ("p", "q", "qr", "pqr"), strict=True):
            group.create_task(work(store, queues))
    assert await database.value("select count(*) from holdfast.jobs where stage = 4") == JOBS
    assert await database.value("select count(*) from holdfast.gates where held > 0 or holder is not null") == 0
