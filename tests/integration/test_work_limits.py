"""On SQLite a task's transaction has the write lock of the whole file, and so it has it for a short while only."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import Context, Holdfast, JobFailed, Retry
from holdfast.errors import InvalidOption, InvalidTransaction, StoreUnavailable, TransactionLost
from holdfast.store import Settled
from holdfast.stores.sqlite import SqliteStore, workshop
from holdfast.stores.sqlite.connection import Connection
from holdfast.stores.sqlite.session import CannotBegin, Session
from tests.integration.ledger import Ledger
from tests.integration.test_work_transactions import claim, done, new, open_work, write

_LIMIT = 0.3
_ENDLESS = "with recursive numbers (n) as (select 1 union all select n + 1 from numbers) select count(*) from numbers"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(f"sqlite:///{tmp_path / 'jobs.db'}")
    ledger.make()
    return ledger


@pytest.fixture
async def store(ledger: Ledger) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(ledger.path, work_limit=_LIMIT)
    await store.open()
    yield store
    await store.close()


async def test_a_transaction_that_is_open_for_too_long_is_rolled_back_and_says_what_to_do(
    store: SqliteStore, ledger: Ledger
) -> None:
    job = await claim(store)
    work = await open_work(store, job)
    await write(work, "one")
    await store.enqueue([new()])  # waits for the lock, and gets it when the time is over
    for _ in range(2):
        with pytest.raises(TransactionLost, match=r"more than 0\.3 s.*before the first statement"):
            await write(work, "two")
    with pytest.raises(TransactionLost):
        await work.enqueue([new()])
    with pytest.raises(TransactionLost):
        await work.complete(done(job))
    await work.roll_back()
    assert ledger.entries() == []


async def test_a_blocked_event_loop_has_the_lock_once_and_not_once_for_each_task(
    store: SqliteStore, ledger: Ledger
) -> None:
    jobs = [await claim(store) for _ in range(10)]
    first = await open_work(store, jobs[0])
    others = [asyncio.create_task(open_work(store, job)) for job in jobs[1:]]
    await asyncio.sleep(0)  # they stand in line now
    waits: list[float] = []

    def visit() -> None:
        for _ in range(5):
            began = time.monotonic()
            with contextlib.closing(sqlite3.connect(ledger.path, timeout=30)) as guest, guest:
                guest.execute("insert into ledger values ('guest')")
            waits.append(time.monotonic() - began)

    guest = threading.Thread(target=visit)
    guest.start()
    guest.join()  # which blocks the loop
    assert sum(waits) < 4 * _LIMIT
    # Those that were refused meanwhile say why; for the rest all goes on as usual.
    answers = await asyncio.gather(*others, return_exceptions=True)
    assert all(isinstance(answer, workshop.SqliteWork | TransactionLost) for answer in answers)
    with pytest.raises(TransactionLost):
        await write(first, "one")
    last = await open_work(store, jobs[0])
    await write(last, "one")
    await last.complete(done(jobs[0]))


async def test_the_limit_is_a_second_and_can_be_set(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    job = await claim(store)
    work = await open_work(store, job)
    began = time.monotonic()
    await store.enqueue([new()])
    assert 0.9 < time.monotonic() - began < 3
    with pytest.raises(TransactionLost, match="1 s"):
        await work.fetch("select 1", [])
    await store.close()
    with pytest.raises(InvalidOption):
        SqliteStore(tmp_path / "jobs.db", work_limit="soon")


async def test_an_app_sets_the_limit_for_its_tasks(ledger: Ledger) -> None:
    hf = Holdfast(ledger.url, work_limit="200ms")

    @hf.task(bind=True, delivery="transactional", retry=Retry(1))
    async def dawdle(ctx: Context) -> None:
        await ctx.tx.aexecute("insert into ledger values ('too late')")
        await hf.queues.abound("default", 100)  # waits for the lock, and gets it when the time is over
        await ctx.tx.aexecute("insert into ledger values ('later still')")

    async with hf, hf.worker(concurrency=1):
        job = await dawdle.aenqueue()
        with pytest.raises(JobFailed, match=r"TransactionLost.*more than 0\.2 s"):
            await job.aresult("30s")
    assert ledger.entries() == []


@pytest.mark.parametrize("url", ["sqlite:///jobs.db", "memory://", "postgresql://localhost/jobs"])
def test_a_limit_that_makes_no_sense_is_refused_on_every_database(url: str) -> None:
    """An app may have one database on a laptop and another at work: what is wrong there should be seen here."""
    for limit in ("0s", "9ms", "5001ms", "1h", timedelta(0)):
        with pytest.raises(InvalidOption, match=r"is not from 10ms to 5s.*before its first statement"):
            Holdfast(url, work_limit=limit)
    for sensible in ("10ms", 1, 2.5, "5s"):
        Holdfast(url, work_limit=sensible)


async def test_a_statement_that_takes_too_long_is_stopped(store: SqliteStore, ledger: Ledger) -> None:
    job = await claim(store)
    work = await open_work(store, job)
    await write(work, "one")
    began = time.monotonic()
    with pytest.raises(TransactionLost, match="write lock"):
        await work.fetch(_ENDLESS, [])
    assert time.monotonic() - began < 5
    await store.enqueue([new()])
    await work.roll_back()
    assert ledger.entries() == []


async def test_the_event_loop_goes_on_and_others_wait_for_one_transaction_at_most(
    store: SqliteStore, ledger: Ledger
) -> None:
    """Ten tasks keep the lock for as long as they may; whoever claims and settles beside them gets its turn between."""
    turns = beats = 0
    is_over = threading.Event()

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    def beat() -> None:
        """What an event loop could do on this machine, busy as it is."""
        nonlocal beats
        while not is_over.wait(0.01):
            beats += 1

    async def hog() -> None:
        with contextlib.suppress(StoreUnavailable, TransactionLost):
            work = await open_work(store, job)
            await write(work, "hog")
            await asyncio.sleep(_LIMIT)
            await write(work, "too late")

    job = await claim(store)
    turning = asyncio.create_task(turn())
    beating = threading.Thread(target=beat)
    beating.start()
    hogs = [asyncio.create_task(hog()) for _ in range(10)]
    await asyncio.sleep(0)
    longest = 0.0
    try:
        while not all(each.done() for each in hogs):
            began, turns_before, beats_before = time.monotonic(), turns, beats
            await store.enqueue([new()])
            waited, possible = time.monotonic() - began, beats - beats_before
            longest = max(longest, waited)
            assert possible < 10 or turns - turns_before > possible / 5, "the event loop was blocked"
    finally:
        is_over.set()
        beating.join()
    turning.cancel()
    assert longest < 3 * _LIMIT + 1
    assert ledger.entries() == []


async def test_other_processes_and_programs_wait_no_longer_than_that(store: SqliteStore, ledger: Ledger) -> None:
    job = await claim(store)
    await open_work(store, job)
    other = SqliteStore(ledger.path)
    await asyncio.wait_for(other.enqueue([new()]), 5)
    await other.close()
    await open_work(store, job)
    await asyncio.to_thread(ledger.run, "insert into ledger values ('outside')")
    assert ledger.entries() == ["outside"]


async def test_whoever_waits_in_the_line_for_longer_than_its_job_may_run_is_told(
    store: SqliteStore, ledger: Ledger
) -> None:
    job = await claim(store)
    work = await open_work(store, job)
    with pytest.raises(StoreUnavailable, match=r"0\.1 s.*fewer jobs at once"):
        await store.open_work(job.id, timedelta(seconds=0.1))
    await write(work, "one")
    assert await work.complete(done(job)) is Settled.APPLIED
    assert ledger.entries() == ["one"]


async def test_whoever_waits_for_transactions_of_other_processes_waits_as_long(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the lock in turns, however many there are: that is not as if another program had left it taken."""
    monkeypatch.setattr("holdfast.stores.sqlite.turns.PATIENCE", 0.1)
    monkeypatch.setattr("holdfast.stores.sqlite.connection.BUSY_SECONDS", 0.1)
    has_met_lock = asyncio.Event()
    loop, begin = asyncio.get_running_loop(), Session._begin

    def watched(session: Session, is_durable: bool, waited: float) -> Connection:
        try:
            return begin(session, is_durable, waited)
        except CannotBegin:
            loop.call_soon_threadsafe(has_met_lock.set)
            raise

    monkeypatch.setattr(Session, "_begin", watched)
    ours, theirs = SqliteStore(ledger.path), SqliteStore(ledger.path, work_limit=5)
    job = await claim(ours)
    work = await open_work(theirs, job)
    waiting = asyncio.create_task(open_work(ours, job))
    await has_met_lock.wait()
    await work.roll_back()
    await (await waiting).roll_back()
    for store in (ours, theirs):
        await store.close()


async def test_a_job_that_gets_no_turn_in_its_time_is_given_back_uncharged(ledger: Ledger) -> None:
    hf = Holdfast(ledger.url, work_limit="5s")
    waiting: set[str] = set()
    are_waiting, has_lock, is_over = asyncio.Event(), asyncio.Event(), threading.Event()
    thread_may_go_on = threading.Event()

    @hf.task(bind=True, delivery="transactional")
    async def greedy(ctx: Context) -> None:
        await are_waiting.wait()
        await ctx.tx.aexecute("insert into ledger values ('greedy')")
        has_lock.set()
        thread_may_go_on.set()
        await asyncio.to_thread(is_over.wait, 20)

    def give_up(name: str) -> None:
        waiting.discard(name)
        if not waiting:
            is_over.set()

    def wait(name: str) -> None:
        waiting.add(name)
        if len(waiting) == 2:
            hf_loop.call_soon_threadsafe(are_waiting.set)

    @hf.task(bind=True, delivery="transactional", retry=Retry(1), soft_timeout="2s", timeout="20s")
    async def patient(ctx: Context) -> None:
        wait("patient")
        await has_lock.wait()
        try:
            await ctx.tx.aexecute("insert into ledger values ('patient')")
        finally:
            give_up("patient")

    @hf.task(bind=True, delivery="transactional", retry=Retry(1), soft_timeout="2s", timeout="20s")
    def patient_thread(ctx: Context) -> None:
        wait("patient thread")
        thread_may_go_on.wait(20)
        try:
            ctx.tx.execute("insert into ledger values ('patient thread')")
        finally:
            give_up("patient thread")

    hf_loop = asyncio.get_running_loop()
    async with asyncio.timeout(60), hf, hf.worker(concurrency=3):
        first = await greedy.aenqueue()
        later = [await patient.aenqueue(), await patient_thread.aenqueue()]
        for job in (first, *later):
            await job.aresult("60s")
        for job in later:
            record = await job.arecord()
            assert (record.attempt, record.waits, record.runs) == (1, 1, 2)
            assert [attempt.failure for attempt in await job.aattempts()] == [None]
    assert sorted(ledger.entries()) == ["greedy", "patient", "patient thread"]


# ── the connection itself ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_lent_connection_writes_nothing_when_the_time_is_over(store: SqliteStore, ledger: Ledger) -> None:
    """Not even with a statement that was prepared before, and in a thread that does not stop to write."""
    job = await claim(store)
    work = await open_work(store, job)
    connection: sqlite3.Connection = work.connection
    errors: list[Exception] = []
    written = 0
    is_over, has_failed = threading.Event(), threading.Event()

    def keep_writing() -> None:
        nonlocal written
        while not is_over.is_set():
            try:
                connection.execute("insert into ledger values ('one')")
                written += 1
            except sqlite3.Error as error:
                errors.append(error)
                has_failed.set()
                time.sleep(0.001)

    thread = threading.Thread(target=keep_writing)
    thread.start()
    await store.enqueue([new()])
    await asyncio.to_thread(ledger.run, "insert into ledger values ('outside')")
    assert await asyncio.to_thread(has_failed.wait, 30), "it may not have had its turn since, but it gets one"
    is_over.set()
    thread.join()
    assert written
    assert "readonly" in str(errors[-1])
    assert ledger.entries() == ["outside"]
    with pytest.raises(TransactionLost):
        _ = work.connection
    sqlite3.Connection.close(connection)


async def test_a_lent_connection_can_not_end_the_transaction(store: SqliteStore, ledger: Ledger) -> None:
    job = await claim(store)
    work = await open_work(store, job)
    connection: sqlite3.Connection = work.connection
    connection.execute("insert into ledger values (?)", ["one"])
    attempts = [
        connection.commit,
        connection.rollback,
        connection.close,
        lambda: connection.execute("commit"),
        lambda: connection.cursor().execute(" /* now */ ROLLBACK"),
        lambda: connection.executemany("end", [()]),
        lambda: connection.executescript("select 1"),
        lambda: connection.cursor().executescript("select 1"),
        connection.__enter__,
    ]
    for attempt in attempts:
        with pytest.raises(InvalidTransaction):
            attempt()
    connection.execute("savepoint part")
    connection.execute("insert into ledger values ('two')")
    connection.execute("rollback to part")
    assert await work.complete(done(job)) is Settled.APPLIED
    assert ledger.entries() == ["one"]


async def test_what_a_task_has_set_on_its_connection_does_not_reach_the_next(store: SqliteStore) -> None:
    job = await claim(store)
    work = await open_work(store, job)
    work.connection.row_factory = sqlite3.Row
    work.connection.execute("create temp table mine (a)")
    await work.roll_back()
    work = await open_work(store, job)
    assert work.connection.row_factory is None
    with pytest.raises(sqlite3.OperationalError, match="mine"):
        await work.fetch("select * from mine", [])
    await work.roll_back()


async def test_a_conflict_that_rolls_back_ends_it(store: SqliteStore, ledger: Ledger) -> None:
    """What came after it would be committed by itself."""
    ledger.run("create table once (a integer primary key)")
    job = await claim(store)
    work = await open_work(store, job)
    await write(work, "one")
    await work.execute("insert into once values (1)", [])
    with pytest.raises(TransactionLost, match="SQLite has rolled back"):
        await work.execute("insert or rollback into once values (1)", [])
    with pytest.raises(TransactionLost):
        await write(work, "two")
    await work.roll_back()
    assert ledger.entries() == []


async def test_foreign_keys_are_enforced(store: SqliteStore, ledger: Ledger) -> None:
    ledger.run("create table parents (id integer primary key)")
    ledger.run("create table children (parent integer references parents (id))")
    job = await claim(store)
    work = await open_work(store, job)
    with pytest.raises(sqlite3.IntegrityError):
        await work.execute("insert into children values ($1)", [17])
    await write(work, "one")
    assert await work.complete(done(job)) is Settled.APPLIED
    assert ledger.entries() == ["one"]
