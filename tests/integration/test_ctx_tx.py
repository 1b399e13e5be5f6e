"""`ctx.tx` in tasks that a worker runs, on both databases."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast, InvalidOption, InvalidTransaction, Job, JobFailed, Queue, QueueFull, Retry
from holdfast.job import JobState
from holdfast.store import Filter
from tests.integration.ledger import Ledger

ONCE = Retry(1)


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    if request.param == "sqlite":
        ledger = Ledger(f"sqlite:///{tmp_path / 'jobs.db'}")
    else:
        ledger = Ledger(request.getfixturevalue("migrated_database"))
    ledger.make()
    return ledger


@pytest.fixture
def hf(ledger: Ledger) -> Holdfast:
    return Holdfast(ledger.url, queues=[Queue("narrow", bound=1)])


@asynccontextmanager
async def working(hf: Holdfast) -> AsyncIterator[None]:
    """With a worker for the queue `default` alone."""
    async with hf, hf.worker(queues={"default": 10}):
        yield


async def finished(job: Job[Any]) -> Any:
    return await job.aresult(timeout="20s")


async def count(hf: Holdfast, queue: str) -> int:
    return await hf.engine.store.count(Filter(queue=queue))


# ── together or not at all ───────────────────────────────────────────────────────────────────────────────────────────


async def test_async_and_sync_tasks_write_and_are_completed_together(hf: Holdfast, ledger: Ledger) -> None:
    @hf.task(bind=True, delivery="transactional")
    async def on_the_loop(ctx: Context, entry: str) -> int:
        await ctx.tx.aexecute("insert into ledger values ($1)", entry)
        ((count,),) = await ctx.tx.afetch("select count(*) from ledger where entry = $1", entry)
        return int(count)

    @hf.task(bind=True, delivery="transactional")
    def in_a_thread(ctx: Context, entry: str) -> int:
        ctx.tx.execute("insert into ledger values ($1)", entry)
        ((count,),) = ctx.tx.fetch("select count(*) from ledger where entry = $1", entry)
        return int(count)

    async with working(hf):
        jobs = [await task.aenqueue(f"{task.name} {n}") for task in (on_the_loop, in_a_thread) for n in range(10)]
        assert [await finished(job) for job in jobs] == [1] * 20
    assert ledger.entries() == ledger.completed()
    assert len(ledger.entries()) == 20


async def test_a_task_that_raises_leaves_nothing_and_is_tried_again(hf: Holdfast, ledger: Ledger) -> None:
    @hf.task(queue="followers")
    def follower() -> None: ...

    @hf.task(bind=True, delivery="transactional", retry=Retry(3, base="0s"))
    async def flaky(ctx: Context, entry: str) -> None:
        await ctx.tx.aexecute("insert into ledger values ($1)", f"{entry} {ctx.attempt}")
        await follower.aenqueue()
        if ctx.attempt < 3:
            raise ConnectionError("not yet")

    @hf.task(bind=True, delivery="transactional", retry=Retry(3, base="0s"))
    def flaky_thread(ctx: Context, entry: str) -> None:
        ctx.tx.execute("insert into ledger values ($1)", f"{entry} {ctx.attempt}")
        follower.enqueue()
        if ctx.attempt < 3:
            raise ConnectionError("not yet")

    async with working(hf):
        for job in [await flaky.aenqueue("loop"), await flaky_thread.aenqueue("thread")]:
            await finished(job)
        assert await count(hf, "followers") == 2
    assert ledger.entries() == ["loop 3", "thread 3"]


async def test_a_result_that_can_not_be_stored_rolls_back(hf: Holdfast, ledger: Ledger) -> None:
    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def strange(ctx: Context) -> object:
        await ctx.tx.aexecute("insert into ledger values ('never')")
        return object()

    async with working(hf):
        with pytest.raises(JobFailed):
            await finished(await strange.aenqueue())
    assert ledger.entries() == []


async def test_a_job_that_finds_no_connection_in_its_time_is_given_back_uncharged(
    migrated_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL: in a SQLite file, whoever has the write lock loses it after a second."""
    monkeypatch.setattr("holdfast.stores.postgres.work.MOST_OPEN", 1)
    ledger, hf = Ledger(migrated_database), Holdfast(migrated_database)
    ledger.make()
    have_begun: set[str] = set()
    may_end, thread_may_end = asyncio.Event(), threading.Event()

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def greedy(ctx: Context) -> None:
        await ctx.tx.aexecute("insert into ledger values ('greedy')")
        have_begun.add("loop")
        await may_end.wait()

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    def greedy_thread(ctx: Context) -> None:
        ctx.tx.execute("insert into ledger values ('greedy thread')")
        have_begun.add("thread")
        thread_may_end.wait(20)

    @hf.task(bind=True, delivery="transactional", retry=ONCE, soft_timeout="300ms", timeout="20s")
    async def patient(ctx: Context) -> None:
        await ctx.tx.aexecute("insert into ledger values ('patient')")

    @hf.task(bind=True, delivery="transactional", retry=ONCE, soft_timeout="300ms", timeout="20s")
    def patient_thread(ctx: Context) -> None:
        ctx.tx.execute("insert into ledger values ('patient thread')")

    async with asyncio.timeout(30), working(hf):
        first = [await greedy.aenqueue(), await greedy_thread.aenqueue()]
        while len(have_begun) < 2:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        later = [await patient.aenqueue(), await patient_thread.aenqueue()]
        while not all([(await job.arecord()).waits for job in later]):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        may_end.set()
        thread_may_end.set()
        for job in (*first, *later):
            await finished(job)
            assert (await job.arecord()).attempt == 1
    assert ledger.entries() == ["greedy", "greedy thread", "patient", "patient thread"]


async def test_a_soft_timeout_rolls_back(hf: Holdfast, ledger: Ledger) -> None:
    @hf.task(bind=True, delivery="transactional", retry=ONCE, soft_timeout="300ms", timeout="10s")
    async def slow(ctx: Context) -> None:
        await ctx.tx.aexecute("insert into ledger values ('never')")
        await asyncio.sleep(60)

    @hf.task(bind=True, delivery="transactional", retry=ONCE, soft_timeout="300ms", timeout="10s")
    def slow_thread(ctx: Context) -> None:
        ctx.tx.execute("insert into ledger values ('never')")
        while True:
            threading.Event().wait(0.01)

    async with working(hf):
        for job in [await slow.aenqueue(), await slow_thread.aenqueue()]:
            with pytest.raises(JobFailed, match="SoftTimeout"):
                await finished(job)
    assert ledger.entries() == []


async def test_a_statement_that_is_under_way_when_the_time_is_over_is_stopped(hf: Holdfast, ledger: Ledger) -> None:
    endless = "with recursive n (i) as (select 1 union all select i + 1 from n) select count(*) from n"
    statement = endless if ledger.is_sqlite else "select pg_sleep(60)"

    @hf.task(bind=True, delivery="transactional", retry=ONCE, soft_timeout="300ms", timeout="10s")
    async def slow(ctx: Context) -> None:
        await ctx.tx.aexecute("insert into ledger values ('never')")
        await ctx.tx.aexecute(statement)

    @hf.task(bind=True, delivery="transactional", retry=ONCE, soft_timeout="300ms", timeout="10s")
    def slow_thread(ctx: Context) -> None:
        ctx.tx.execute("insert into ledger values ('never')")
        ctx.tx.execute(statement)

    async with working(hf):
        for task in (slow, slow_thread):
            job = await task.aenqueue()
            async with asyncio.timeout(8):
                with pytest.raises(JobFailed, match="SoftTimeout"):
                    await finished(job)
        await asyncio.to_thread(ledger.run, "insert into ledger values ('nobody holds it locked')")
    assert ledger.entries() == ["nobody holds it locked"]


async def test_a_cancelled_job_rolls_back(hf: Holdfast, ledger: Ledger) -> None:
    has_begun = asyncio.Event()

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def endless(ctx: Context) -> None:
        await ctx.tx.aexecute("insert into ledger values ('never')")
        has_begun.set()
        await asyncio.sleep(60)

    async with working(hf):
        job = await endless.aenqueue()
        await has_begun.wait()
        await job.acancel()
        with pytest.raises(JobFailed):
            await finished(job)
        assert (await job.arecord()).state is JobState.CANCELLED
    assert ledger.entries() == []


async def test_a_worker_that_stops_rolls_back_and_gives_the_job_back_uncharged(hf: Holdfast, ledger: Ledger) -> None:
    has_begun = asyncio.Event()

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def endless(ctx: Context) -> None:
        await ctx.tx.aexecute("insert into ledger values ('never')")
        has_begun.set()
        await asyncio.sleep(60)

    async with hf:
        async with hf.worker(queues={"default": 10}, grace="0.1s"):
            job = await endless.aenqueue()
            await has_begun.wait()
        record = await job.arecord()
        assert (record.state, record.attempt) == (JobState.PENDING, 0)
    assert ledger.entries() == []


async def test_a_run_that_is_written_off_commits_nothing_even_if_it_comes_to_its_end(
    hf: Holdfast, ledger: Ledger
) -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    @hf.task(bind=True, delivery="transactional", retry=ONCE, soft_timeout="500ms", timeout="600ms")
    def stuck(ctx: Context) -> None:
        while not has_ended.is_set():
            with contextlib.suppress(BaseException):
                ctx.tx.execute("insert into ledger values ('never')")
                while not may_end.is_set():
                    may_end.wait(0.01)
                has_ended.set()

    async with working(hf):
        job = await stuck.aenqueue()
        with pytest.raises(JobFailed, match="HardTimeout"):
            await finished(job)
        await asyncio.to_thread(ledger.run, "insert into ledger values ('nobody holds it locked')")
        may_end.set()
        await asyncio.to_thread(has_ended.wait, 20)
        assert (await job.arecord()).state is JobState.DEAD
    assert ledger.entries() == ["nobody holds it locked"]


async def test_a_transactional_task_that_writes_nothing_is_settled_as_any_other(hf: Holdfast) -> None:
    @hf.task(bind=True, delivery="transactional")
    async def idle(ctx: Context) -> str:
        assert not ctx.tx.is_open
        return "done"

    @hf.task(delivery="transactional")
    def unbound() -> str:
        return "done"

    async with working(hf):
        assert await finished(await idle.aenqueue()) == "done"
        assert await finished(await unbound.aenqueue()) == "done"


async def test_a_job_that_is_taken_away_while_it_runs_commits_nothing(hf: Holdfast, ledger: Ledger) -> None:
    """The fence is the last statement, so it does not matter when."""
    may_write, is_over = asyncio.Event(), asyncio.Event()
    other = ledger.make_store()

    @hf.task(bind=True, delivery="transactional", queue="once")
    async def zombie(ctx: Context) -> None:
        assert ctx.job_id is not None
        (record,) = await other.get([ctx.job_id])
        assert record.worker is not None
        beats = {sighting.worker: sighting.beat for sighting in await other.sightings()}
        assert await other.rescue({record.worker: beats[record.worker]})
        may_write.set()
        await ctx.tx.aexecute("insert into ledger values ('zombie')")
        is_over.set()

    async with hf:
        job = await zombie.aenqueue()
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(hf.worker(queues={"once": 1}))
            await asyncio.wait_for(is_over.wait(), 20)
            await hf.queues.apause("once")
        record = await job.arecord()
        assert record.state is not JobState.COMPLETED
    await other.close()
    assert may_write.is_set()
    assert ledger.entries() == []


# ── jobs that are enqueued inside ────────────────────────────────────────────────────────────────────────────────────


async def test_all_ways_to_enqueue_join_the_transaction(hf: Holdfast, ledger: Ledger) -> None:
    @hf.task(queue="followers")
    def follower() -> None: ...

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def leader(ctx: Context, is_to_fail: bool) -> None:
        await follower.aenqueue()
        await ctx.tx.aexecute("insert into ledger values ('one')")
        await follower.aenqueue()
        await follower.options(delay="1h").aenqueue()
        await hf.aenqueue_many([follower.call(), follower.call()])
        await hf.asend("follower")
        await follower.options(tx=ctx.tx).aenqueue()
        if is_to_fail:
            raise ValueError("all for nothing")

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    def leader_thread(ctx: Context, is_to_fail: bool) -> None:
        follower.enqueue()
        ctx.tx.execute("insert into ledger values ('one')")
        follower.enqueue()
        follower.options(delay="1h").enqueue()
        hf.enqueue_many([follower.call(), follower.call()])
        hf.send("follower")
        follower.options(tx=ctx.tx).enqueue()
        if is_to_fail:
            raise ValueError("all for nothing")

    async with working(hf):
        for number, task in enumerate((leader, leader_thread), 1):
            with pytest.raises(JobFailed):
                await finished(await task.aenqueue(True))
            # The one that came before the first statement is there: the transaction was not open yet.
            assert await count(hf, "followers") == 1 + 8 * (number - 1)
            await finished(await task.aenqueue(False))
            assert await count(hf, "followers") == 8 * number
    assert ledger.entries() == ["one", "one"]


async def test_the_transaction_itself_may_be_named_before_it_is_open(hf: Holdfast) -> None:
    @hf.task(queue="followers")
    def follower() -> None: ...

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def leader(ctx: Context) -> None:
        await follower.options(tx=ctx.tx).aenqueue()
        assert ctx.tx.is_open
        raise ValueError("all for nothing")

    async with working(hf):
        with pytest.raises(JobFailed):
            await finished(await leader.aenqueue())
        assert await count(hf, "followers") == 0


async def test_a_full_queue_is_not_waited_for_and_leaves_the_transaction_usable(hf: Holdfast, ledger: Ledger) -> None:
    @hf.task(queue="narrow")
    def follower() -> None: ...

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def leader(ctx: Context) -> str:
        await ctx.tx.aexecute("insert into ledger values ('before')")
        try:
            await hf.aenqueue_many([follower.call(), follower.call()])
        except QueueFull:
            await ctx.tx.aexecute("insert into ledger values ('after')")
        await follower.aenqueue()
        return "done"

    async with working(hf):
        assert await finished(await leader.aenqueue()) == "done"
        assert await count(hf, "narrow") == 1
    assert ledger.entries() == ["after", "before"]


async def test_jobs_of_another_app_stay_out_of_it(hf: Holdfast, tmp_path: Path, ledger: Ledger) -> None:
    other = Holdfast(f"sqlite:///{tmp_path / 'other.db'}")

    @other.task
    def stranger() -> None: ...

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def leader(ctx: Context) -> None:
        await ctx.tx.aexecute("insert into ledger values ('one')")
        await stranger.aenqueue()
        raise ValueError("all for nothing")

    async with other, working(hf):
        with pytest.raises(JobFailed):
            await finished(await leader.aenqueue())
        assert await count(other, "default") == 1
    assert ledger.entries() == []


# ── how it can't be used ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_only_transactional_tasks_have_one(hf: Holdfast) -> None:
    @hf.task(bind=True, retry=ONCE)
    async def plain(ctx: Context) -> None:
        await ctx.tx.aexecute("select 1")

    async with working(hf):
        with pytest.raises(JobFailed, match='delivery="transactional"'):
            await finished(await plain.aenqueue())
    with pytest.raises(InvalidTransaction, match=r"called directly.*Enqueue"):
        await plain()


def test_it_does_not_go_with_a_process_of_its_own(hf: Holdfast) -> None:
    with pytest.raises(InvalidOption, match="can't go together"):

        @hf.task(bind=True, delivery="transactional", isolation="process")
        def both(ctx: Context) -> None: ...


async def test_memory_has_none() -> None:
    hf = Holdfast("memory://")

    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def task(ctx: Context) -> None:
        await ctx.tx.aexecute("select 1")

    async with working(hf):
        with pytest.raises(JobFailed, match="sqlite:///"):
            await finished(await task.aenqueue())


async def test_the_wrong_call_names_the_right_one(hf: Holdfast, ledger: Ledger) -> None:
    @hf.task(bind=True, delivery="transactional", retry=ONCE)
    async def on_the_loop(ctx: Context, what: str) -> None:
        calls: dict[str, Callable[[], Any]] = {
            "execute": lambda: ctx.tx.execute("select 1"),
            "fetch": lambda: ctx.tx.fetch("select 1"),
            "open": ctx.tx.open,
            "connection": lambda: ctx.tx.connection,
        }
        if what == "commit":
            await ctx.tx.aexecute("insert into ledger values ('never')")
            await ctx.tx.aexecute("commit")
        calls[what]()

    told = {
        "execute": r"await ctx\.tx\.aexecute",
        "fetch": r"await ctx\.tx\.afetch",
        "open": r"await ctx\.tx\.aopen",
        "connection": r"before its first statement",
        "commit": r"committed when the task returns",
    }
    async with working(hf):
        for what, advice in told.items():
            with pytest.raises(JobFailed, match=advice):
                await finished(await on_the_loop.aenqueue(what))
    assert ledger.entries() == []


async def test_nothing_joins_a_transaction_when_its_task_is_over(hf: Holdfast, ledger: Ledger) -> None:
    strays: list[asyncio.Task[None]] = []
    is_over = asyncio.Event()

    @hf.task(queue="followers")
    def follower() -> None: ...

    @hf.task(bind=True, delivery="transactional")
    async def forgetful(ctx: Context, is_opened: bool) -> None:
        async def stray() -> None:
            await is_over.wait()
            await follower.aenqueue()  # a job of its own
            await ctx.tx.aexecute("insert into ledger values ('stray')")

        if is_opened:
            await ctx.tx.aexecute("insert into ledger values ('one')")
        strays.append(asyncio.create_task(stray()))

    async with working(hf):
        for is_opened in (True, False):
            await finished(await forgetful.aenqueue(is_opened))
        is_over.set()
        errors = await asyncio.gather(*strays, return_exceptions=True)
        assert await count(hf, "followers") == 2
    assert [type(error) for error in errors] == [InvalidTransaction] * 2
    assert ledger.entries() == ["one"]


# ── several at once ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_statements_that_are_begun_together_wait_for_each_other(hf: Holdfast, ledger: Ledger) -> None:
    @hf.task(bind=True, delivery="transactional")
    async def hasty(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(ctx.tx.aexecute("insert into ledger values ($1)", f"loop {number}"))
                group.create_task(asyncio.to_thread(ctx.tx.execute, "insert into ledger values ('thread')"))

    async with working(hf):
        await finished(await hasty.aenqueue())
    assert len(ledger.entries()) == 10


async def test_middleware_shares_the_transaction_of_its_task(hf: Holdfast, ledger: Ledger) -> None:
    @hf.middleware
    @asynccontextmanager
    async def audited(ctx: Context) -> AsyncIterator[None]:
        await ctx.tx.aexecute("insert into ledger values ($1)", f"before {ctx.attempt}")
        yield
        await ctx.tx.aexecute("insert into ledger values ($1)", f"after {ctx.attempt}")

    @hf.task(bind=True, delivery="transactional", retry=Retry(2, base="0s"))
    async def on_the_loop(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("once")

    @hf.task(bind=True, delivery="transactional", retry=Retry(2, base="0s"))
    def in_a_thread(ctx: Context) -> None:
        ctx.tx.execute("insert into ledger values ('in the thread')")
        if ctx.attempt == 1:
            raise ValueError("once")

    async with working(hf):
        await finished(await on_the_loop.aenqueue())
        assert ledger.entries() == ["after 2", "before 2"]
        await finished(await in_a_thread.aenqueue())
    assert ledger.entries() == ["after 2", "after 2", "before 2", "before 2", "in the thread"]
