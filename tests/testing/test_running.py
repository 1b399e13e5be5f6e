"""What t.run_all() runs: all that is due, by the rules of a real worker, and nothing else."""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from holdfast import (
    Cancel,
    ConfigurationError,
    Context,
    DeadJob,
    GiveUp,
    Holdfast,
    JobFailed,
    JobState,
    Queue,
    QueueFull,
    ResultTimeout,
    Retry,
    RunningLoop,
    Snooze,
    State,
)
from holdfast.testing import EndlessWork


def test_a_job_runs_when_the_test_says_so(hf: Holdfast) -> None:
    @hf.task
    async def double(number: int) -> int:
        return 2 * number

    with hf.testing() as t:
        job = double.enqueue(21)
        assert job.state() == "pending"
        assert t.run_all() == 1
        assert job.result() == 42
        assert t.run_all() == 0


async def test_everything_has_an_async_form(hf: Holdfast) -> None:
    loops: list[object] = []

    @hf.task
    async def double(number: int) -> int:
        loops.append(asyncio.get_running_loop())
        return 2 * number

    @hf.task
    def triple(number: int) -> int:
        return 3 * number

    async with hf.testing() as t:
        jobs = [await double.aenqueue(21), await triple.aenqueue(14)]
        assert await t.arun_all() == 2
        assert [await job.aresult() for job in jobs] == [42, 42]
        t.assert_enqueued(double, 21)
        with pytest.raises(RunningLoop, match=r"t\.arun_all"):
            t.run_all()
    assert loops == [asyncio.get_running_loop()]


async def test_a_plain_block_does_for_async_code_too(hf: Holdfast) -> None:
    @hf.task
    async def double(number: int) -> int:
        return 2 * number

    with hf.testing() as t:
        job = await double.aenqueue(21)
        await t.arun_all()
        assert await job.aresult() == 42


# ── where tasks run ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_def_tasks_run_in_the_thread_of_the_test(hf: Holdfast) -> None:
    seen: list[object] = []

    @hf.task
    def look() -> None:
        seen.append(threading.current_thread())

    @hf.middleware
    @asynccontextmanager
    async def around(ctx: Context) -> AsyncIterator[None]:
        yield

    with hf.testing() as t:
        look.enqueue()
        t.run_all()
    assert seen == [threading.current_thread()]


def test_def_tasks_may_use_the_synchronous_calls(hf: Holdfast) -> None:
    @hf.task
    def first(number: int) -> int:
        jobs = hf.enqueue_many([second.call(number), third.call(number)])
        return hf.jobs.count(state="pending") + len(jobs)

    @hf.task
    def second(number: int) -> int:
        return third.enqueue(number).state() == "pending"

    @hf.task
    async def third(number: int) -> int:
        return number

    with hf.testing() as t:
        job = first.enqueue(1)
        assert t.run_all() == 4
        assert job.result() == 4
        assert [job.result() for job in t.jobs(third)] == [1, 1]


async def test_def_tasks_of_an_async_test_run_in_a_thread(hf: Holdfast) -> None:
    @hf.task
    def first(number: int) -> str:
        second.enqueue(number)
        return threading.current_thread().name

    @hf.task
    def second(number: int) -> int:
        return number

    async with hf.testing() as t:
        job = await first.aenqueue(1)
        assert await t.arun_all() == 2
        assert await job.aresult() != threading.current_thread().name


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_isolated_tasks_run_in_the_process_of_the_test(hf: Holdfast, delivery: str) -> None:
    seen: list[int] = []

    @hf.task(isolation="process", delivery="at_most_once" if delivery == "at_most_once" else "at_least_once")
    def remember(number: int) -> None:
        seen.append(number)

    @hf.task(isolation="process")
    async def remember_too(number: int) -> None:
        seen.append(number)

    with hf.testing() as t:
        remember.enqueue(1)
        remember_too.enqueue(2)
        t.run_all()
    assert seen == [1, 2]


def test_a_traceback_begins_with_the_task(hf: Holdfast) -> None:
    @hf.task(retry=Retry(1))
    def fail() -> None:
        raise ValueError("no")

    @hf.task(retry=Retry(1))
    async def fail_too() -> None:
        raise ValueError("no")

    with hf.testing() as t:
        for job in (fail.enqueue(), fail_too.enqueue()):
            t.run_all()
            with pytest.raises(JobFailed) as caught:
                job.result()
            trace = (caught.value.traceback or "").splitlines()
            assert "test_running.py" in trace[1]


# ── order ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_jobs_run_one_at_a_time_in_the_order_of_claims(hf: Holdfast) -> None:
    seen: list[str] = []

    @hf.task
    async def note(name: str) -> None:
        seen.append(f"{name}:")
        await asyncio.sleep(0)
        seen.append(name)

    with hf.testing() as t:
        note.enqueue("a")
        note.options(priority="high").enqueue("b")
        note.options(priority="low").enqueue("c")
        note.enqueue("d")
        t.run_all()
    assert seen == ["b:", "b", "a:", "a", "d:", "d", "c:", "c"]


def test_queues_take_turns(hf: Holdfast) -> None:
    seen: list[str] = []

    @hf.task
    def note(name: str) -> None:
        seen.append(name)

    with hf.testing() as t:
        for name in ("mail 1", "mail 2", "billing 1", "billing 2"):
            note.options(queue=name.split()[0]).enqueue(name)
        t.run_all()
    assert seen == ["billing 1", "mail 1", "billing 2", "mail 2"]


def test_a_paused_queue_is_left_alone(hf: Holdfast) -> None:
    @hf.task
    def nothing() -> None: ...

    with hf.testing() as t:
        nothing.enqueue()
        hf.queues.pause("default")
        assert t.run_all() == 0
        hf.queues.resume("default")
        assert t.run_all() == 1


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_due_later_runs_when_the_test_has_let_time_pass(hf: Holdfast) -> None:
    @hf.task
    def remind() -> str:
        return "now"

    with hf.testing() as t:
        start = t.now
        job = remind.options(delay="1h").enqueue()
        assert t.run_all() == 0
        assert t.advance("59m") == start + timedelta(minutes=59)
        assert t.run_all() == 0
        t.advance("1m")
        assert t.run_all() == 1
        assert job.result() == "now"
        assert t.now == start + timedelta(hours=1)


def test_a_failed_attempt_is_repeated_after_its_backoff(hf: Holdfast) -> None:
    @hf.task(bind=True, retry=Retry(3, base="10s"))
    def flaky(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ConnectionError("not yet")
        return ctx.attempt

    with hf.testing() as t:
        job = flaky.enqueue()
        assert t.run_all() == 1
        assert job.state() == "retrying"
        t.advance("9s")
        assert t.run_all() == 0, "the backoff is waited in full"
        t.advance("1s")
        assert t.run_all() == 1
        t.advance("20s")
        assert t.run_all() == 1
        assert job.result() == 3


def test_the_outcomes_are_those_of_a_worker(hf: Holdfast) -> None:
    @hf.task(bind=True)
    async def end(ctx: Context, how: str) -> str:
        if how == "cancel":
            raise Cancel("not wanted")
        if how == "give up":
            raise GiveUp("no use")
        if how == "snooze" and t.now == start:
            raise Snooze("30s")
        return f"attempt {ctx.attempt}"

    with hf.testing() as t:
        start = t.now
        jobs = {how: end.enqueue(how) for how in ("cancel", "give up", "snooze", "return")}
        assert t.run_all() == 4
        assert [job.state() for job in jobs.values()] == ["cancelled", "dead", "pending", "completed"]
        assert [record.error_message for record in t.dead] == ["no use"]
        t.advance("30s")
        t.run_all()
        assert jobs["snooze"].result() == "attempt 1"


def test_what_has_expired_is_dead(hf: Holdfast) -> None:
    @hf.task(expires="1m")
    def nothing() -> None: ...

    with hf.testing() as t:
        nothing.enqueue()
        t.advance("2m")
        assert t.run_all() == 0
        assert [record.error_type for record in t.dead] == ["Expired"]


def test_a_soft_timeout_is_told_by_the_clock_of_the_machine(hf: Holdfast) -> None:
    @hf.task(soft_timeout="50ms", timeout="10s", retry=Retry(1))
    async def hang() -> None:
        await asyncio.Event().wait()

    with hf.testing() as t:
        hang.enqueue()
        t.run_all()
        assert [record.error_type for record in t.dead] == ["SoftTimeout"]


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_result_that_is_not_there_is_not_waited_for(hf: Holdfast) -> None:
    @hf.task
    def nothing() -> None: ...

    with hf.testing() as t:
        now, later = nothing.enqueue(), nothing.options(delay="1h").enqueue()
        with pytest.raises(ResultTimeout, match=r"is pending.* Call t\.run_all\(\) first"):
            now.result(timeout="1h")
        with pytest.raises(ResultTimeout, match=r"Call t\.advance\('1h'\) and t\.run_all\(\) first"):
            later.result()
        t.run_all()
        assert now.result() is None


def test_room_in_a_full_queue_is_not_waited_for() -> None:
    hf = Holdfast("memory://", queues=[Queue("default", bound=1)])

    @hf.task
    def nothing() -> None: ...

    with hf.testing() as t:
        nothing.enqueue()
        with pytest.raises(QueueFull):
            nothing.options(wait="1h").enqueue()
        t.run_all()
        nothing.enqueue()


# ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_task_that_enqueues_itself_for_ever_is_stopped(hf: Holdfast) -> None:
    @hf.task
    async def again() -> None:
        await again.aenqueue()

    with hf.testing() as t:
        again.enqueue()
        with pytest.raises(EndlessWork, match=r"More than 50 runs.* enqueue itself"):
            t.run_all(most=50)
        assert len(t.enqueued) == 52


def test_exactly_as_many_runs_as_allowed_are_fine(hf: Holdfast) -> None:
    @hf.task
    def nothing() -> None: ...

    with hf.testing() as t:
        hf.enqueue_many(nothing.call() for _ in range(5))
        assert t.run_all(most=5) == 5


def test_a_task_can_not_run_the_others(hf: Holdfast) -> None:
    @hf.task(retry=Retry(1))
    def greedy() -> None:
        t.run_all()

    with hf.testing() as t:
        greedy.enqueue()
        t.run_all()
        assert [record.error_type for record in t.dead] == [ConfigurationError.__name__]


async def test_two_can_not_run_at_once(hf: Holdfast) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    @hf.task
    async def wait() -> None:
        has_begun.set()
        await may_end.wait()

    async with hf.testing() as t:
        await wait.aenqueue()
        first = asyncio.create_task(t.arun_all())
        await has_begun.wait()
        with pytest.raises(ConfigurationError, match="under way already"):
            await t.arun_all()
        may_end.set()
        assert await first == 1


async def test_a_test_that_has_no_time_left_gets_its_job_back(hf: Holdfast) -> None:
    has_begun = asyncio.Event()
    is_cleaned_up = False

    @hf.task
    async def wait() -> None:
        nonlocal is_cleaned_up
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_cleaned_up = True

    async with hf.testing() as t:
        job = await wait.aenqueue()
        running = asyncio.create_task(t.arun_all())
        await has_begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert is_cleaned_up
        record = await job.arecord()
        assert (record.state, record.attempt) == (JobState.PENDING, 0)


def test_a_ctrl_c_in_a_task_ends_the_test(hf: Holdfast) -> None:
    @hf.task
    def interrupted() -> None:
        raise KeyboardInterrupt

    with hf.testing() as t:
        interrupted.enqueue()
        with pytest.raises(KeyboardInterrupt):
            t.run_all()


def test_a_ctrl_c_while_a_task_waits_lets_it_clean_up_and_ends_the_test(hf: Holdfast) -> None:
    said: list[str] = []

    @hf.task
    async def hang() -> None:
        _thread.interrupt_main()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)  # it takes its time
            said.append("cleaned up")

    with hf.testing() as t:
        hang.enqueue()
        with pytest.raises(KeyboardInterrupt):
            t.run_all()
    assert said == ["cleaned up"]


# ── around the jobs ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_hooks_and_middleware_are_called_as_by_a_worker(hf: Holdfast) -> None:
    said: list[str] = []

    @hf.on_startup
    async def connect(state: State) -> None:
        state.db = "open"
        said.append("startup")

    @hf.on_shutdown
    def disconnect(state: State) -> None:
        said.append(f"shutdown {state.db}")

    @hf.middleware
    @asynccontextmanager
    async def around(ctx: Context) -> AsyncIterator[None]:
        said.append(f"enter {ctx.task}")
        yield
        said.append(f"leave {ctx.task}")

    @hf.task(bind=True)
    def work(ctx: Context) -> None:
        said.append(f"work {ctx.state.db}")

    with hf.testing() as t:
        work.enqueue()
        t.run_all()
    assert said == ["startup", "enter work", "work open", "leave work", "shutdown open"]


def test_a_hook_that_fails_fails_the_test(hf: Holdfast) -> None:
    is_broken = True

    @hf.on_startup
    def connect(state: State) -> None:
        if is_broken:
            raise ConnectionError("no database")

    @hf.task
    def work() -> None: ...

    with hf.testing() as t:
        job = work.enqueue()
        with pytest.raises(ConnectionError, match="no database"):
            t.run_all()
        is_broken = False
        assert t.run_all() == 1
        assert job.result() is None


def test_handlers_are_told_of_dead_letters(hf: Holdfast) -> None:
    @hf.task(retry=Retry(1))
    def fail(number: int) -> None:
        raise ValueError("no")

    @fail.on_dead
    def page_someone(job: DeadJob) -> None:
        told.append((job.task, job.args, job.error))

    @hf.on_dead
    async def log_it(job: DeadJob) -> None:
        told.append((job.task, job.args, job.error))

    told: list[tuple[str, dict[str, object], str]] = []
    with hf.testing() as t:
        fail.enqueue(7)
        assert t.run_all() == 3
        assert t.run_all() == 0
    assert told == [("fail", {"number": 7}, "no")] * 2


def test_progress_can_be_read_afterwards(hf: Holdfast) -> None:
    @hf.task(bind=True)
    def work(ctx: Context) -> None:
        ctx.progress(3, 10, "scaling")

    with hf.testing() as t:
        job = work.enqueue()
        t.run_all()
        progress = hf.engine.wait(hf.engine.store.progress([job.id]), "…")[job.id]
        assert (progress.done, progress.total, progress.note) == (3, 10, "scaling")


async def test_an_embedded_worker_of_the_app_leaves_the_jobs_to_the_test(hf: Holdfast) -> None:
    @hf.task
    async def work() -> None: ...

    async with hf.testing() as t, hf.worker():
        job = await work.aenqueue()
        assert await hf.workers.alist() == []
        assert await t.arun_all() == 1
        assert await job.astate() == "completed"
