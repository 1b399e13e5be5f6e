"""A task's own transaction, on both databases: what it writes, its completion and its jobs are true together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast.codec import fingerprint
from holdfast.errors import IdempotencyConflict, InvalidTransaction, QueueFull, TransactionLost
from holdfast.ids import Ids
from holdfast.job import ClaimedJob, NewJob, Stage
from holdfast.lifecycle import Complete, GiveBack
from holdfast.store import HintKind, NewWorker, Queue, Settled, Settlement, Store, WorkTransaction
from holdfast.stores.memory import MemoryStore
from tests.integration.ledger import Ledger

_TIMEOUT = timedelta(seconds=30)
_ids = Ids()


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    if request.param == "sqlite":
        ledger = Ledger(f"sqlite:///{tmp_path / 'jobs.db'}")
    else:
        ledger = Ledger(request.getfixturevalue("migrated_database"))
    ledger.make()
    return ledger


@pytest.fixture
async def store(ledger: Ledger) -> AsyncIterator[Store]:
    store = ledger.make_store()
    await store.open()
    yield store
    await store.close()


def new(**options: Any) -> NewJob:
    settings: dict[str, Any] = {"id": _ids.make(), "task": "task", "queue": "queue", "args_json": '{"a":1}'}
    if "idempotency_key" in options:
        settings["fingerprint"] = fingerprint(settings["args_json"])
    return NewJob(**(settings | options))


async def claim(store: Store, **options: Any) -> ClaimedJob:
    """A job that runs, of a worker of its own."""
    worker, queue = uuid4(), f"queue-{uuid4()}"
    await store.register(NewWorker(worker, "worker"))
    await store.enqueue([new(queue=queue, **options)])
    (job,) = await store.claim(worker, uuid4(), {queue: 1})
    return job


async def open_work(store: Store, job: ClaimedJob) -> WorkTransaction:
    return await store.open_work(job.id, _TIMEOUT)


async def write(work: WorkTransaction, entry: str) -> None:
    await work.execute("insert into ledger values ($1)", [entry])


def done(job: ClaimedJob, result: str | None = '"done"') -> Settlement:
    return Settlement(job.id, job.token, Complete(result), job.is_keyed)


async def stage_of(store: Store, id: UUID) -> Stage | None:
    found = await store.get([id])
    return found[0].stage if found else None


async def rescue(store: Store, job: ClaimedJob) -> None:
    """Take a job from its worker."""
    (record,) = await store.get([job.id])
    assert record.worker is not None
    beats = {sighting.worker: sighting.beat for sighting in await store.sightings()}
    assert job.id in await store.rescue({record.worker: beats[record.worker]})


# ── together or not at all ───────────────────────────────────────────────────────────────────────────────────────────


async def test_writes_completion_and_jobs_are_committed_together(store: Store, ledger: Ledger) -> None:
    job = await claim(store)
    work = await open_work(store, job)
    await write(work, "one")
    follower = new()
    await work.enqueue([follower])
    assert ledger.entries() == []
    assert await stage_of(store, follower.id) is None
    assert await work.complete(done(job)) is Settled.APPLIED
    assert ledger.entries() == ["one"]
    assert await stage_of(store, follower.id) is Stage.READY
    (record,) = await store.get([job.id])
    assert (record.stage, record.result_json) == (Stage.COMPLETED, '"done"')


async def test_a_rolled_back_transaction_leaves_nothing_but_its_running_job(store: Store, ledger: Ledger) -> None:
    job = await claim(store)
    work = await open_work(store, job)
    await write(work, "one")
    follower = new()
    await work.enqueue([follower])
    await work.roll_back()
    await work.roll_back()
    assert ledger.entries() == []
    assert await stage_of(store, follower.id) is None
    assert await store.settle([Settlement(job.id, job.token, GiveBack())]) == [Settled.APPLIED]


async def test_a_stale_claim_commits_nothing(store: Store, ledger: Ledger) -> None:
    job = await claim(store)
    work = await open_work(store, job)
    await write(work, "zombie")
    follower = new()
    await work.enqueue([follower])
    assert await work.complete(Settlement(job.id, uuid4(), Complete())) is Settled.STALE
    assert ledger.entries() == []
    assert await stage_of(store, follower.id) is None
    assert await stage_of(store, job.id) is Stage.ACTIVE


async def test_a_job_that_was_rescued_before_its_transaction_opened_commits_nothing(
    store: Store, ledger: Ledger
) -> None:
    job = await claim(store)
    await rescue(store, job)
    work = await open_work(store, job)
    await write(work, "zombie")
    assert await work.complete(done(job)) is Settled.STALE
    assert ledger.entries() == []
    assert await stage_of(store, job.id) is Stage.READY


async def test_a_transaction_that_is_over_takes_no_more_statements(store: Store, ledger: Ledger) -> None:
    for end in ("complete", "roll_back"):
        job = await claim(store)
        work = await open_work(store, job)
        await write(work, end)
        await (work.complete(done(job)) if end == "complete" else work.roll_back())
        with pytest.raises(Exception, match=r"over|closed|released|transaction"):
            await work.enqueue([new()])
    assert ledger.entries() == ["complete"]


async def test_keys_of_a_job_that_completes_in_its_transaction_are_closed(store: Store) -> None:
    job = await claim(store, unique_key="one")
    work = await open_work(store, job)
    await write(work, "one")
    await work.complete(done(job))
    (answer,) = await store.enqueue([new(unique_key="one")])
    assert not answer.is_existing


# ── jobs that are enqueued in it ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_bound_that_refuses_leaves_the_transaction_usable(store: Store, ledger: Ledger) -> None:
    await store.declare_queues([Queue("narrow", bound=1)])
    job = await claim(store)
    work = await open_work(store, job)
    await write(work, "before")
    with pytest.raises(QueueFull):
        await work.enqueue([new(queue="narrow"), new(queue="narrow")])
    fits = new(queue="narrow")
    await work.enqueue([fits])
    await write(work, "after")
    assert await work.complete(done(job)) is Settled.APPLIED
    assert ledger.entries() == ["after", "before"]
    assert await stage_of(store, fits.id) is Stage.READY


async def test_bounds_of_the_code_hold_before_they_are_declared(ledger: Ledger) -> None:
    store = ledger.make_store(queues=[Queue("narrow", bound=1)])
    job = await claim(store)
    work = await open_work(store, job)
    with pytest.raises(QueueFull):
        await work.enqueue([new(queue="narrow"), new(queue="narrow")])
    await work.roll_back()
    await store.close()


async def test_a_key_with_other_arguments_leaves_the_transaction_usable(store: Store, ledger: Ledger) -> None:
    (first,) = await store.enqueue([new(idempotency_key="key")])
    job = await claim(store)
    work = await open_work(store, job)
    with pytest.raises(IdempotencyConflict):
        await work.enqueue([new(idempotency_key="key", fingerprint=fingerprint('{"a":2}'))])
    (found,) = await work.enqueue([new(idempotency_key="key")])
    assert (found.id, found.is_existing) == (first.id, True)
    await write(work, "one")
    assert await work.complete(done(job)) is Settled.APPLIED
    assert ledger.entries() == ["one"]


async def test_waiting_workers_are_told_of_jobs_and_of_the_end_when_it_is_committed(store: Store) -> None:
    job = await claim(store)
    async with store.changes([HintKind.WORK, HintKind.FINISHED]) as hints:
        work = await open_work(store, job)
        await work.enqueue([new(queue="followers")])
        await work.complete(done(job))
        is_told: set[HintKind] = set()
        async with asyncio.timeout(10):
            async for hint in hints:
                if job.id in hint.ids or "followers" in hint.queues:
                    is_told.add(hint.kind)
                if len(is_told) == 2:
                    break


# ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_values_are_numbered_and_rows_are_read_by_place_and_by_name(store: Store) -> None:
    job = await claim(store)
    work = await open_work(store, job)
    cast = "cast($2 as integer)"
    (row,) = await work.fetch(f"select {cast} as two, $1 as \"$1\", '$1' as three, $1 -- $3\n as four", ["a", 2])
    assert tuple(row) == (2, "a", "$1", "a")
    assert (row[0], row["two"], row["$1"], row["three"], row["four"]) == (2, 2, "a", "$1", "a")
    assert list(row.keys()) == ["two", "$1", "three", "four"]
    await work.roll_back()


async def test_an_error_of_a_statement_is_that_of_the_driver(store: Store, ledger: Ledger) -> None:
    job = await claim(store)
    work = await open_work(store, job)
    with pytest.raises(Exception, match="no_such_table") as raised:
        await work.execute("insert into no_such_table values ($1)", [1])
    assert type(raised.value).__module__.startswith("sqlite3" if ledger.is_sqlite else "asyncpg")
    await work.roll_back()


async def test_a_constraint_that_is_checked_at_the_commit_undoes_all_of_it(store: Store, ledger: Ledger) -> None:
    ledger.run("create table parents (id integer primary key)")
    ledger.run("create table children (parent integer references parents (id) deferrable initially deferred)")
    job = await claim(store)
    work = await open_work(store, job)
    await write(work, "one")
    await work.execute("insert into children values ($1)", [17])
    with pytest.raises(Exception, match=r"(?i)foreign key") as raised:
        await work.complete(done(job))
    assert type(raised.value).__module__.startswith("sqlite3" if ledger.is_sqlite else "asyncpg")
    assert ledger.entries() == []
    assert await store.settle([Settlement(job.id, job.token, GiveBack())]) == [Settled.APPLIED]


async def test_what_a_task_does_with_the_connection_itself_belongs_to_the_transaction(
    store: Store, ledger: Ledger
) -> None:
    for end in ("complete", "roll_back"):
        job = await claim(store)
        work = await open_work(store, job)
        if ledger.is_sqlite:
            work.connection.execute("insert into ledger values (?)", [end])
        else:
            async with work.connection.transaction():
                await work.connection.execute("insert into ledger values ($1)", end)
        await (work.complete(done(job)) if end == "complete" else work.roll_back())
    assert ledger.entries() == ["complete"]


async def test_a_lent_connection_may_be_given_as_tx(store: Store, ledger: Ledger) -> None:
    job = await claim(store)
    work = await open_work(store, job)
    await write(work, "one")
    follower = new()
    await store.enqueue([follower], work.connection)
    await work.complete(done(job))
    assert await stage_of(store, follower.id) is Stage.READY


# ── others ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_whoever_is_cancelled_while_it_opens_holds_nobody_up(store: Store, ledger: Ledger) -> None:
    for turns in range(12):
        job = await claim(store)
        opening = asyncio.create_task(open_work(store, job))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        (opened,) = await asyncio.gather(opening, return_exceptions=True)
        if not isinstance(opened, BaseException):
            await opened.roll_back()
        work = await asyncio.wait_for(open_work(store, job), 5)
        await write(work, str(turns))
        assert await work.complete(done(job)) is Settled.APPLIED
    assert len(ledger.entries()) == 12


async def test_many_at_once_take_turns(store: Store, ledger: Ledger) -> None:
    async def run(number: int) -> None:
        job = await claim(store)
        work = await open_work(store, job)
        await write(work, f"{number:02}")
        await store.get([job.id])  # others may read meanwhile
        assert await work.complete(done(job)) is Settled.APPLIED

    await asyncio.gather(*(run(number) for number in range(30)))
    assert ledger.entries() == [f"{number:02}" for number in range(30)]


async def test_a_closed_store_opens_transactions_again_on_use(store: Store, ledger: Ledger) -> None:
    for entry in ("one", "two"):
        job = await claim(store)
        work = await open_work(store, job)
        await write(work, entry)
        await work.complete(done(job))
        await store.close()
    assert ledger.entries() == ["one", "two"]


async def test_memory_refuses_and_names_what_does_not() -> None:
    with pytest.raises(InvalidTransaction, match="sqlite:///"):
        await MemoryStore().open_work(uuid4(), _TIMEOUT)


async def test_after_a_failed_statement_postgres_commits_nothing(migrated_database: str) -> None:
    ledger = Ledger(migrated_database)
    ledger.make()
    store = ledger.make_store()
    job = await claim(store)
    work = await open_work(store, job)
    await write(work, "one")
    with pytest.raises(Exception, match="no_such_table"):
        await work.execute("select * from no_such_table", [])
    with pytest.raises(TransactionLost, match="has failed"):
        await work.complete(done(job))
    assert ledger.entries() == []
    await store.close()
