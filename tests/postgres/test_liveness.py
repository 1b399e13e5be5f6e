"""Who is alive, seen by the locks that the server lets go of: a lost connection kills nobody, a killed process does."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from uuid import UUID, uuid4

import pytest

from holdfast.liveness import FREE_FOR, Observer
from holdfast.store import Held, NewWorker
from holdfast.stores.postgres import PostgresStore, reserved
from tests.crash.rounds import rounds
from tests.postgres.conftest import Opener
from tests.postgres.database import Database, until
from tests.postgres.jobs import enqueue, office_of, register, start
from tests.postgres.process import Process
from tests.postgres.proxy import Harm, Plan, Proxy

_LOCKS = """
    from pg_locks where locktype = 'advisory' and objsubid = 1
    and database = (select oid from pg_database where datname = current_database())
"""
_HOLDS_LOCK = f"pid in (select pid {_LOCKS})"


async def _is_locked(store: PostgresStore, worker: UUID) -> bool | None:
    (sighting,) = [sighting for sighting in await store.sightings() if sighting.worker == worker]
    return sighting.is_locked


async def _until_locked(store: PostgresStore, worker: UUID, expected: bool | None) -> None:
    async def holds() -> bool:
        return await _is_locked(store, worker) is expected

    await until(holds)


async def test_a_worker_whose_reserved_connection_is_lost_is_never_taken_for_dead(
    store: PostgresStore, make_store: Opener, database: Database
) -> None:
    observing = make_store()
    worker = await register(store)
    await _until_locked(observing, worker, True)
    observer, now = Observer(), 0.0
    observer.observe(await observing.sightings(), now)
    for _ in range(5):
        before = await database.value("select beat from holdfast.workers")
        assert await database.terminate(_HOLDS_LOCK) == 1
        # Nobody beats meanwhile; that the lock was lost and regained moves the number all the same.
        await until(partial(_has_moved, database, before + 2))
        await _until_locked(observing, worker, True)
        now += FREE_FOR.total_seconds() * 2
        assert observer.observe(await observing.sightings(), now) == {}
    assert (await store.beat(worker, Held({}))).is_alive


async def _has_moved(database: Database, beat: int) -> bool:
    return bool(await database.value("select beat from holdfast.workers") >= beat)


async def test_beats_go_on_over_the_pool_while_the_reserved_connection_is_away(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, database: Database
) -> None:
    worker = await register(far_store)
    await _until_locked(store, worker, True)
    holding = proxy.plan(Harm.HOLD, "pg_try_advisory_lock", times=1000)
    assert await database.terminate(_HOLDS_LOCK) == 1
    await holding.happened.wait()
    await _until_locked(store, worker, None)
    for _ in range(3):
        before = await database.value("select beat from holdfast.workers")
        assert (await far_store.beat(worker, Held({}))).is_alive
        assert await database.value("select beat from holdfast.workers") > before
        assert await _is_locked(store, worker) is None, "a lock that is not held must not be looked for"
    holding.release.set()
    await _until_locked(store, worker, True)


async def test_a_connection_that_is_used_at_the_moment_of_its_end_is_replaced(
    store: PostgresStore, make_store: Opener, database: Database
) -> None:
    observing = make_store()
    workers = [await register(store)]

    async def are_locked() -> bool:
        beaten = await asyncio.gather(*(store.beat(worker, Held({})) for worker in workers))
        assert all(answer.is_alive for answer in beaten)
        return {sighting.is_locked for sighting in await observing.sightings()} == {True}

    for _ in range(rounds(20)):
        await until(are_locked)
        assert await database.terminate(_HOLDS_LOCK) == 1
        workers.append(await register(store))
    await until(are_locked)


async def test_a_worker_that_could_not_take_its_lock_takes_it_later(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy
) -> None:
    cut = proxy.plan(Harm.CUT_BEFORE, "pg_try_advisory_lock")
    worker = await register(far_store)
    assert cut.happened.is_set()
    await _until_locked(store, worker, True)


async def test_that_a_lock_is_lost_is_told_until_somebody_hears_it(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, database: Database
) -> None:
    worker = await register(far_store)
    await _until_locked(store, worker, True)
    keeper = (await office_of(far_store)).reserved
    tell, told = keeper._tell, list[bool]()

    async def tell_in_vain_at_first(workers: list[UUID], is_held: bool) -> None:
        told.append(is_held)
        if len(told) <= 2:
            raise ConnectionError("The server has not come back yet.")
        await tell(workers, is_held)

    keeper._tell = tell_in_vain_at_first
    holding = proxy.plan(Harm.CUT_BEFORE, "pg_try_advisory_lock", times=1000)
    assert await database.terminate(_HOLDS_LOCK) == 1
    await _until_locked(store, worker, None)
    assert told == [False] * 3
    holding.times = holding.done
    await _until_locked(store, worker, True)


async def test_who_has_lost_its_own_locks_does_not_judge_others_by_theirs(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, database: Database
) -> None:
    await register(far_store)
    cut = proxy.plan(Harm.CUT_BEFORE, "pg_try_advisory_lock", times=1000)
    assert await database.terminate(_HOLDS_LOCK) == 1
    await cut.happened.wait()
    async with _working(database, store) as (process, worker):
        assert await _is_locked(store, worker) is True
        process.send(signal.SIGKILL)
        await _until_locked(store, worker, False)
        assert await _is_locked(far_store, worker) is None
        cut.times = cut.done
        await _until_locked(far_store, worker, False)


async def test_connections_that_were_given_up_are_closed(
    far_store: PostgresStore, proxy: Proxy, database: Database
) -> None:
    cut = proxy.plan(Harm.CUT_AFTER, "pg_try_advisory_lock", times=3)
    worker = await register(far_store)
    await until(lambda: _has_been_cut(cut))
    await _until_locked(far_store, worker, True)
    await until(lambda: _are_locked(database, 1))
    await far_store.close()
    await until(lambda: _are_gone(database))


async def _has_been_cut(cut: Plan) -> bool:
    return cut.done == cut.times


async def _are_gone(database: Database) -> bool:
    return not await database.backends()


async def _are_locked(database: Database, count: int) -> bool:
    return bool(await database.value(f"select count(*) {_LOCKS}") == count)


async def test_who_departs_or_is_buried_holds_no_lock_any_more(store: PostgresStore, database: Database) -> None:
    one, other = await register(store), await register(store)
    assert await _are_locked(database, 2)
    await store.depart(one)
    assert await _are_locked(database, 1)
    await store.bury_worker(other)
    await until(lambda: _are_locked(database, 0))
    assert (await office_of(store)).reserved._connection is None


async def test_a_reserved_connection_that_falls_silent_makes_no_beat_late(
    far_store: PostgresStore, proxy: Proxy, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserved, "_PATIENCE", 0.2)
    worker = await register(far_store)
    before = await database.value("select beat from holdfast.workers")
    proxy.plan(Harm.SILENCE, "set beat = beat + 1")
    async with asyncio.timeout(5):
        assert (await far_store.beat(worker, Held({}))).is_alive
    assert await database.value("select beat from holdfast.workers") > before
    await until(lambda: _are_locked(database, 1))


@pytest.mark.parametrize("harm", [Harm.CUT_AFTER, Harm.CUT_BEFORE], ids=["its answer is lost", "it is lost"])
async def test_a_beat_that_is_sent_again_gives_back_nothing_that_was_claimed_before_it(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, harm: Harm
) -> None:
    """It is older than what it finds in the worker's row: its own first try, or that a lock was lost."""
    worker = await register(far_store)
    (job,) = await start(store, worker)
    cut = proxy.plan(harm, "set beat = beat + 1")
    beaten = await far_store.beat(worker, Held({}))
    assert cut.happened.is_set()
    assert (beaten.is_alive, beaten.released) == (True, [])
    assert (await far_store.beat(worker, Held({}))).released == [job.id]


@asynccontextmanager
async def _working(database: Database, store: PostgresStore) -> AsyncIterator[tuple[Process, UUID]]:
    """Another process that works."""
    worker = uuid4()
    await enqueue(store, 2)
    async with Process(database.url, "work", worker) as process:
        assert len((await process.hear())["claimed"]) == 2
        yield process, worker


async def test_a_killed_process_is_seen_at_once(store: PostgresStore, database: Database) -> None:
    async with _working(database, store) as (process, worker):
        assert await _is_locked(store, worker) is True
        process.send(signal.SIGKILL)
        await _until_locked(store, worker, False)
        observer = Observer()
        assert observer.observe(await store.sightings(), 100.0) == {}
        gone = observer.observe(await store.sightings(), 100.0 + FREE_FOR.total_seconds())
        assert len(await store.rescue(gone)) == 2
        assert not await database.stuck()


async def test_a_stopped_process_keeps_its_lock(store: PostgresStore, database: Database) -> None:
    async with _working(database, store) as (process, worker):
        process.send(signal.SIGSTOP)
        await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert await _is_locked(store, worker) is True
        observer = Observer()
        observer.observe(await store.sightings(), 100.0)
        assert observer.observe(await store.sightings(), 104.0) == {}


async def test_a_worker_that_registers_again_counts_on_and_keeps_its_lock(
    store: PostgresStore, make_store: Opener
) -> None:
    observing = make_store()
    worker = NewWorker(uuid4(), "worker")
    for life in range(1, 4):
        await store.register(worker)
        (sighting,) = await observing.sightings()
        assert (sighting.beat, sighting.is_locked) == (life, True)


async def test_a_store_that_is_closed_while_it_takes_its_lock_leaves_no_connection(
    far_store: PostgresStore, proxy: Proxy, database: Database
) -> None:
    await register(far_store)
    holding = proxy.plan(Harm.HOLD, "pg_try_advisory_lock", times=1000)
    assert await database.terminate(_HOLDS_LOCK) == 1
    await holding.happened.wait()
    keeper = (await office_of(far_store)).reserved
    await far_store.close()
    holding.release.set()
    assert keeper._task is None
    await until(lambda: _are_gone(database))
