"""The transactions of tasks, when the way to the server is cut, their worker is lost, or they leave a mess behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from holdfast.errors import InvalidTransaction, OutcomeUnknown, StoreUnavailable
from holdfast.job import ClaimedJob, Stage
from holdfast.lifecycle import Complete, GiveBack
from holdfast.store import Settled, Settlement
from holdfast.stores.postgres import PostgresStore, work
from holdfast.stores.postgres.work import PostgresWork
from tests.postgres.conftest import Opener
from tests.postgres.database import Database, until
from tests.postgres.jobs import new, office_of, register, settle, start
from tests.postgres.proxy import CUTS, Harm, Plan, Proxy
from tests.servers.pgbouncer import PgBouncer

_TIMEOUT = timedelta(seconds=60)

each_cut = pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name.lower())


@pytest.fixture(autouse=True)
async def _ledger(database: Database) -> None:
    await database.execute("create table ledger (entry text not null)")


async def entries(database: Database) -> list[str]:
    return [row[0] for row in await database.ask("select entry from ledger order by entry")]


async def opened(store: PostgresStore, job: ClaimedJob, entry: str = "one") -> PostgresWork:
    """A transaction in which something was written."""
    transaction = await store.open_work(job.id, _TIMEOUT)
    await transaction.execute("insert into ledger values ($1)", [entry])
    return transaction


def done(job: ClaimedJob) -> Settlement:
    return Settlement(job.id, job.token, Complete('"done"'))


async def is_pool_full(store: PostgresStore) -> bool:
    """Nobody has a connection for tasks in use."""
    pool = (await office_of(store)).works._pool
    return pool._places._value == work.MOST_OPEN


# ── lost answers ─────────────────────────────────────────────────────────────────────────────────────────────────────


@each_cut
async def test_a_commit_whose_answer_is_lost_is_found_out_by_the_token(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, database: Database, cut: Harm
) -> None:
    (job,) = await start(store, await register(store))
    transaction = await opened(far_store, job)
    follower = new()
    await transaction.enqueue([follower])
    plan = proxy.plan(cut, "COMMIT;")
    try:
        answer = await transaction.complete(done(job))
    except StoreUnavailable:
        assert cut is not Harm.CUT_AFTER
        assert await entries(database) == []
        assert await store.get([follower.id]) == []
        assert await settle(store, [job], GiveBack()) == [Settled.APPLIED]
    else:
        assert cut is not Harm.CUT_BEFORE
        assert answer is Settled.ALREADY
        assert await entries(database) == ["one"]
        assert len(await store.get([follower.id])) == 1
        assert await settle(store, [job], GiveBack()) == [Settled.ALREADY]
    assert plan.done
    await until(lambda: is_pool_full(far_store))


@each_cut
async def test_a_connection_that_is_lost_at_any_moment_commits_all_or_nothing(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, database: Database, cut: Harm
) -> None:
    """Whoever settles the job afterwards with its token does not undo what was committed."""
    worker = await register(store)
    for number in range(9):
        (job,) = await start(store, worker)
        plan = Plan(cut, skip=number)
        proxy.plans.append(plan)
        answer = None
        try:
            transaction = await opened(far_store, job, f"{number}")
            try:
                await transaction.enqueue([new(queue=f"followers-{number}")])
                answer = await transaction.complete(done(job))
            finally:
                await transaction.roll_back()
        except Exception:
            answer = None
        proxy.plans.remove(plan)
        await until(database.is_quiet)
        settled = await settle(store, [job], GiveBack())
        is_committed = settled == [Settled.ALREADY]
        assert answer is None or is_committed
        assert (f"{number}" in await entries(database)) is is_committed
        followers = await database.ask("select from holdfast.jobs where queue = $1", f"followers-{number}")
        assert len(followers) == is_committed
        await until(lambda: is_pool_full(far_store))


@pytest.mark.usefixtures("_impatient")
async def test_if_nobody_can_tell_what_became_of_a_commit_its_settlement_does(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, database: Database
) -> None:
    (job,) = await start(store, await register(store))
    transaction = await opened(far_store, job)
    plan = proxy.plan(Harm.CUT_AFTER, "COMMIT;")
    completing = asyncio.create_task(transaction.complete(done(job)))
    await plan.happened.wait()
    proxy.go_away()
    with pytest.raises(OutcomeUnknown, match="settled as soon as"):
        await completing
    proxy.come_back()
    assert await settle(far_store, [job], GiveBack()) == [Settled.ALREADY]
    assert await entries(database) == ["one"]


async def test_a_connection_that_was_lost_while_nobody_used_it_is_replaced(
    store: PostgresStore, database: Database
) -> None:
    worker = await register(store)
    for entry in ("one", "two"):
        (job,) = await start(store, worker)
        transaction = await opened(store, job, entry)
        assert await transaction.complete(done(job)) is Settled.APPLIED
        await until(lambda: is_pool_full(store))
        await database.terminate()
    assert await entries(database) == ["one", "two"]


@pytest.mark.usefixtures("_impatient")
async def test_a_server_that_is_away_is_named_in_the_error(far_store: PostgresStore, proxy: Proxy) -> None:
    proxy.go_away()
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
        await far_store.open_work(new().id, _TIMEOUT)
    proxy.come_back()
    await (await far_store.open_work(new().id, _TIMEOUT)).roll_back()


async def test_cancelled_statements_leave_the_pool_full(store: PostgresStore, database: Database) -> None:
    worker = await register(store)
    for turns in range(20):
        (job,) = await start(store, worker)

        async def run(job: ClaimedJob = job) -> None:
            transaction = await store.open_work(job.id, _TIMEOUT)
            try:
                await transaction.execute("insert into ledger values ('never')", [])
                await transaction.execute("select pg_sleep(60)", [])
            finally:
                await transaction.roll_back()

        running = asyncio.create_task(run())
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await until(lambda: is_pool_full(store))
    await until(database.is_quiet)
    assert await entries(database) == []


# ── lost workers ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def rescue(store: PostgresStore, job: ClaimedJob) -> Sequence[Any]:
    (record,) = await store.get([job.id])
    assert record.worker is not None
    beats = {sighting.worker: sighting.beat for sighting in await store.sightings()}
    return await store.rescue({record.worker: beats[record.worker]})


async def test_a_job_that_is_rescued_while_its_transaction_is_open_frees_what_it_has_locked(
    store: PostgresStore, make_store: Opener, database: Database
) -> None:
    """The next attempt waits for no zombie, and the zombie commits nothing."""
    await database.execute("insert into ledger values ('shared')")
    zombie = make_store()
    (job,) = await start(zombie, await register(zombie))
    held = await zombie.open_work(job.id, _TIMEOUT)
    await held.execute("update ledger set entry = 'by the zombie'", [])
    assert await rescue(store, job) == [job.id]
    worker = await register(store)
    (again,) = await store.claim(worker, new().id, {job.queue: 1})
    assert again.id == job.id
    transaction = await store.open_work(again.id, _TIMEOUT)
    async with asyncio.timeout(5):
        await transaction.execute("update ledger set entry = 'by the next'", [])
    assert await held.complete(done(job)) is Settled.STALE
    assert await transaction.complete(done(again)) is Settled.APPLIED
    assert await entries(database) == ["by the next"]


async def test_a_worker_that_is_buried_loses_its_transactions(
    store: PostgresStore, make_store: Opener, database: Database
) -> None:
    child = make_store()
    worker = await register(child)
    (job,) = await start(child, worker)
    held = await opened(child, job)
    assert await store.bury_worker(worker, [Settlement(job.id, job.token, GiveBack())]) == []
    assert await held.complete(done(job)) is Settled.STALE
    assert await entries(database) == []
    (record,) = await store.get([job.id])
    assert record.stage is Stage.READY


async def test_transactions_of_the_living_are_left_alone(
    store: PostgresStore, make_store: Opener, database: Database
) -> None:
    (job,) = await start(store, await register(store))
    transaction = await opened(store, job)
    other = make_store()
    (lost,) = await start(other, await register(other))
    assert await rescue(store, lost) == [lost.id]
    assert await transaction.complete(done(job)) is Settled.APPLIED
    assert await entries(database) == ["one"]


async def test_the_server_looks_after_what_a_lost_machine_has_locked(store: PostgresStore) -> None:
    (job,) = await start(store, await register(store))
    transaction = await store.open_work(job.id, timedelta(seconds=60))
    (row,) = await transaction.fetch(
        """
        select
            current_setting('idle_in_transaction_session_timeout') as idle,
            current_setting('tcp_keepalives_idle') as keepalive,
            current_setting('tcp_user_timeout') as unanswered,
            current_setting('application_name') as name
        """,
        [],
    )
    assert tuple(row) == ("90s", "10", "25000", f"holdfast work {job.id}")
    await transaction.roll_back()


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_statements_run_with_the_settings_of_the_user_and_commit_to_the_disk(
    make_store: Opener, database: Database
) -> None:
    name = await database.value("select current_database()")
    await database.execute(f"alter database {name} set synchronous_commit = off")
    await database.execute(f"alter database {name} set search_path = shop, public")
    store = make_store()
    (job,) = await start(store, await register(store))
    for _ in range(2):
        transaction = await store.open_work(job.id, _TIMEOUT)
        (row,) = await transaction.fetch(
            """
            select
                current_setting('synchronous_commit'), current_setting('search_path'),
                current_setting('enable_seqscan'), current_setting('statement_timeout')
            """,
            [],
        )
        assert tuple(row) == ("on", "shop, public", "on", "0")
        await transaction.roll_back()
        await until(lambda: is_pool_full(store))


async def test_what_a_task_leaves_behind_in_its_session_does_not_reach_the_next(store: PostgresStore) -> None:
    (job,) = await start(store, await register(store))
    transaction = await store.open_work(job.id, _TIMEOUT)
    await transaction.execute("set search_path = nowhere", [])
    await transaction.execute("create temp table mine (a integer)", [])
    await transaction.execute("select pg_advisory_lock(17)", [])
    await transaction.connection.execute("commit")  # as no task should
    with pytest.raises(InvalidTransaction, match="itself"):
        await transaction.complete(done(job))
    await until(lambda: is_pool_full(store))
    transaction = await store.open_work(job.id, _TIMEOUT)
    (row,) = await transaction.fetch(
        """
        select
            current_setting('search_path'), to_regclass('mine'),
            (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())
        """,
        [],
    )
    assert tuple(row) == ('"$user", public', None, 0)
    await transaction.roll_back()


async def test_a_task_may_choose_its_isolation(store: PostgresStore, database: Database) -> None:
    (job,) = await start(store, await register(store))
    transaction = await store.open_work(job.id, _TIMEOUT)
    await transaction.execute("set transaction isolation level serializable", [])
    await transaction.execute("insert into ledger values ('one')", [])
    assert await transaction.complete(done(job)) is Settled.APPLIED
    assert await entries(database) == ["one"]


async def test_several_statements_in_one_text_are_refused(store: PostgresStore, database: Database) -> None:
    """One of them could be a commit."""
    (job,) = await start(store, await register(store))
    transaction = await store.open_work(job.id, _TIMEOUT)
    with pytest.raises(asyncpg.PostgresSyntaxError, match="multiple commands"):
        await transaction.execute("insert into ledger values ('one'); commit", [])
    await transaction.roll_back()
    assert await entries(database) == []


async def test_a_task_that_returns_with_a_statement_under_way_is_told(store: PostgresStore, database: Database) -> None:
    (job,) = await start(store, await register(store))
    transaction = await opened(store, job)
    stray = asyncio.create_task(transaction.execute("select pg_sleep(60)", []))
    await asyncio.sleep(0)
    with pytest.raises(InvalidTransaction, match="await all"):
        await transaction.complete(done(job))
    with pytest.raises(asyncpg.PostgresError):
        await stray
    assert await entries(database) == []


async def test_whoever_finds_all_connections_busy_waits_for_as_long_as_it_takes(store: PostgresStore) -> None:
    (job,) = await start(store, await register(store))
    held = [await store.open_work(job.id, _TIMEOUT) for _ in range(work.MOST_OPEN)]
    assert (await office_of(store)).works._pool._patience is None
    late = [asyncio.create_task(opened(store, job)) for _ in range(2)]
    await store.enqueue([new()])  # the store's own connections are others
    assert not any(task.done() for task in late)
    late[0].cancel()  # by its soft timeout, for example: it takes nobody's place
    await held.pop().roll_back()
    held.append(await late[1])
    for transaction in held:
        await transaction.roll_back()
    await until(lambda: is_pool_full(store))


# ── PgBouncer ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_behind_a_pooler_nothing_of_it_stays(
    pgbouncer: PgBouncer, make_store: Opener, store: PostgresStore, database: Database
) -> None:
    far = make_store(pgbouncer.through(database.url))
    worker = await register(far)
    for number in range(10):
        (job,) = await start(far, worker)
        transaction = await opened(far, job, f"{number}")
        follower = new(queue=f"followers-{number}")
        await transaction.enqueue([follower])
        if number % 2:
            await transaction.roll_back()
        else:
            assert await transaction.complete(done(job)) is Settled.APPLIED
        assert len(await store.get([follower.id])) == 1 - number % 2
    assert await entries(database) == ["0", "2", "4", "6", "8"]
    found = await database.ask(
        "select application_name from pg_stat_activity where datname = current_database() and state <> 'active'"
    )
    assert not [row[0] for row in found if row[0].startswith("holdfast work")]


async def test_behind_a_pooler_a_lost_job_frees_what_it_has_locked(
    pgbouncer: PgBouncer, make_store: Opener, store: PostgresStore, database: Database
) -> None:
    await database.execute("insert into ledger values ('shared')")
    zombie = make_store(pgbouncer.through(database.url))
    (job,) = await start(zombie, await register(zombie))
    held = await zombie.open_work(job.id, _TIMEOUT)
    await held.execute("update ledger set entry = 'by the zombie'", [])
    assert await rescue(store, job) == [job.id]
    async with asyncio.timeout(5):
        await database.ask("update ledger set entry = 'by another'")
    assert await held.complete(done(job)) is Settled.STALE
    assert await entries(database) == ["by another"]
