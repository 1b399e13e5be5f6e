"""The server is restarted, or crashes: everything acknowledged is there, and all goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from holdfast.errors import StoreUnavailable
from holdfast.gates import GateKind, LineRule
from holdfast.job import Stage
from holdfast.lifecycle import Complete
from holdfast.store import Enqueued, Held, HintKind, Settled
from holdfast.stores.postgres import PostgresStore, floors
from holdfast.testing.store_contract.lines import limit, order, rate
from tests.crash.rounds import rounds
from tests.postgres.conftest import Opener
from tests.postgres.database import PATIENCE, Database, until
from tests.postgres.jobs import QUEUE, claim, enqueue, new, register, settle
from tests.postgres.load import Load
from tests.servers.postgres import Mode, PostgresServer


@pytest.fixture
async def database(synced_postgres: PostgresServer) -> AsyncIterator[Database]:
    """On a server that a test may stop."""
    database = Database(synced_postgres.create_database())
    yield database
    await database.close()
    synced_postgres.drop_database(database.url)


async def _restart(server: PostgresServer, mode: Mode) -> None:
    await asyncio.to_thread(server.restart, mode)


@pytest.mark.parametrize("mode", ["immediate", "fast"])
async def test_a_restart_under_load_loses_nothing(
    synced_postgres: PostgresServer, make_store: Opener, database: Database, mode: Mode
) -> None:
    stores = [make_store(), make_store()]
    for store in stores:
        await store.open()
    load = Load(stores)
    async with load.running():
        for _ in range(rounds(2)):
            await load.get_on(100)
            await _restart(synced_postgres, mode)
        await load.get_on(100)
    await load.check(database)
    if mode == "fast":
        assert load.stale == 0, "nothing was forgotten"


async def test_a_restart_goes_by_unnoticed(
    synced_postgres: PostgresServer, store: PostgresStore, database: Database
) -> None:
    worker = await register(store)
    there = await enqueue(store, 2)
    running = await claim(store, worker, 1)
    await asyncio.to_thread(synced_postgres.stop, "fast")
    job = new()
    acts = asyncio.gather(
        store.enqueue([job]),
        settle(store, running, Complete()),
        store.get(there),
        store.beat(worker, Held({running[0].id: running[0].token})),
    )
    await asyncio.sleep(1)  # that long the server is away
    assert not acts.done()
    await asyncio.to_thread(synced_postgres.start)
    enqueued, settled, records, beaten = await acts
    assert enqueued == [Enqueued(job.id)]
    assert settled == [Settled.APPLIED]
    assert [record.id for record in records] == there
    assert beaten.is_alive
    assert await database.ids() == sorted([*there, job.id])


@pytest.mark.usefixtures("_impatient")
async def test_a_server_that_stays_away_is_told_and_all_is_well_when_it_is_back(
    synced_postgres: PostgresServer, store: PostgresStore, make_store: Opener, database: Database
) -> None:
    worker, there = await register(store), await enqueue(store, 2)
    await asyncio.to_thread(synced_postgres.stop, "immediate")
    try:
        for act in (enqueue(store), claim(store, worker), store.get(there), store.tick(), register(store)):
            with pytest.raises(StoreUnavailable, match=r"(?i)nothing was written"):
                await act
        with pytest.raises(StoreUnavailable):
            await make_store().open()
    finally:
        await asyncio.to_thread(synced_postgres.start)
    claimed = await claim(store, worker, 10)
    assert [job.id for job in claimed] == there
    assert await settle(store, claimed, Complete()) == [Settled.APPLIED] * 2
    assert (await store.beat(worker, Held({}))).is_alive


async def test_listeners_wake_up_and_workers_get_their_locks_back_after_a_crash(
    synced_postgres: PostgresServer, store: PostgresStore, make_store: Opener
) -> None:
    worker, other = await register(store), make_store()
    async with store.changes([HintKind.WORK]) as hints, asyncio.timeout(PATIENCE):
        await _restart(synced_postgres, "immediate")
        while (await anext(hints)).queues:
            pass
        await enqueue(other, queue="after")
        while "after" not in (await anext(hints)).queues:
            pass

    async def is_locked() -> bool:
        return [sighting.is_locked for sighting in await other.sightings()] == [True]

    await until(is_locked)
    assert (await store.beat(worker, Held({}))).is_alive


async def test_a_crash_that_forgets_claims_fences_nobody_wrongly(
    synced_postgres: PostgresServer, store: PostgresStore, database: Database
) -> None:
    """Claims beside lines do not wait for the disk, so a crash may forget them, and must not do more harm than that."""
    worker = await register(store)
    forgotten = 0
    for _ in range(rounds(2)):
        await enqueue(store, 30)
        claimed = [job for _ in range(3) for job in await claim(store, worker, 10)]
        assert len(claimed) == 30
        await _restart(synced_postgres, "immediate")
        records = {record.id: record for record in await store.get([job.id for job in claimed])}
        remembered = [job for job in claimed if records[job.id].stage is Stage.ACTIVE]
        lost = [job for job in claimed if records[job.id].stage is Stage.READY]
        assert len(remembered) + len(lost) == 30
        assert all(records[job.id].token == job.token for job in remembered)
        assert all(records[job.id].runs == 0 for job in lost)
        forgotten += len(lost)
        # What was forgotten runs again, under another token, whatever the first one says; what was not does not.
        assert set(await settle(store, lost, Complete('"first"'))) <= {Settled.STALE}
        again = await claim(store, worker, 100)
        assert {job.id for job in again} == {job.id for job in lost}
        assert not {job.token for job in again} & {job.token for job in claimed}
        assert set(await settle(store, lost, Complete('"first"'))) <= {Settled.STALE}
        assert set(await settle(store, again, Complete('"second"'))) <= {Settled.APPLIED}
        assert set(await settle(store, remembered, Complete('"first"'))) <= {Settled.APPLIED}
        results = {record.id: record.result_json for record in await store.get([job.id for job in claimed])}
        assert all(results[job.id] == '"second"' for job in lost)
        assert all(results[job.id] == '"first"' for job in remembered)
        assert not await database.stuck()
    assert forgotten, "no claim was forgotten, so nothing was tried"


@pytest.mark.parametrize(
    "rule", [limit(1), rate(1, timedelta(days=1)), order()], ids=lambda rule: rule.gates[0].kind.name.lower()
)
async def test_a_crash_lets_nobody_past_a_limit(
    synced_postgres: PostgresServer, store: PostgresStore, rule: LineRule
) -> None:
    """What was claimed under one runs on while the server comes back, so it must not be forgotten."""
    worker, other = await register(store), await register(store)
    for number in range(rounds(3)):
        queue = f"queue-{number}"
        line = LineRule(tuple(replace(gate, key=queue) for gate in rule.gates))
        first, second = await enqueue(store, 2, queue=queue, line=line)
        running = await claim(store, worker, 5, queue)
        assert [job.id for job in running] == [first]
        await _restart(synced_postgres, "immediate")
        assert await claim(store, other, 5, queue) == []
        assert await settle(store, running, Complete()) == [Settled.APPLIED]
        if rule.of(GateKind.RATE) is None:
            assert [job.id for job in await claim(store, other, 5, queue)] == [second]


async def test_floors_hide_nothing_that_a_crash_has_given_back(
    store: PostgresStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a crash that forgets claims leaves behind, made by hand: jobs below all that was claimed since."""
    monkeypatch.setattr(floors, "_SOONEST_SWEEP", 3600.0)
    monkeypatch.setattr(floors, "_LATEST_SWEEP", 3600.0)
    worker = await register(store)
    first = await enqueue(store, 5)
    await claim(store, worker, 5)
    for _ in range(3):  # each raises the floor
        await enqueue(store, 5)
        assert len(await claim(store, worker, 10)) == 5
    await _undo(database, first)
    assert await claim(store, worker, 10) == [], "the floors are not where this test means them to be"
    assert await database.terminate()
    await until(lambda: _has_noticed(store))
    assert {job.id for job in await claim(store, worker, 10)} == set(first)


async def _undo(database: Database, ids: list[UUID]) -> None:
    await database.ask(
        "update holdfast.jobs set stage = 2, worker = null, token = null, attempt = 0, runs = 0 where id = any ($1)",
        ids,
    )


async def _has_noticed(store: PostgresStore) -> bool:
    office = await store._offices.here()
    return not any(connection.is_usable for connection in office.pool._free)


async def test_nothing_is_left_of_a_claim_that_was_never_answered(
    synced_postgres: PostgresServer, store: PostgresStore, database: Database
) -> None:
    worker = await register(store)
    ids = await enqueue(store, 3)
    token = uuid4()
    await store.claim(worker, token, {QUEUE: 3})
    await _restart(synced_postgres, "immediate")
    # The worker believes that its claim has failed. If the server had written it down before it crashed, the next beat
    # takes it for one that was made meanwhile, and the next but one gives it back.
    for _ in range(2):
        await store.beat(worker, Held({}))
    assert set((await database.stages()).values()) == {Stage.READY}
    assert {job.id for job in await claim(store, worker, 3)} == set(ids)
