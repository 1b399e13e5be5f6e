"""t.crash_worker(): what becomes of a job whose worker dies at each point, by the rules for real crashes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from holdfast import ConfigurationError, Context, Holdfast, InvalidOption, JobState, Retry, State
from holdfast.testing import CrashPoint


class Ledger:
    """What has happened outside of the database, where nothing is rolled back."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.mark.parametrize(
    ("point", "happened", "runs"),
    [
        ("before_start", ["begin", "end"], 1),
        ("during", ["begin", "begin", "end"], 2),
        ("before_settle", ["begin", "end", "begin", "end"], 2),
        ("after_settle", ["begin", "end"], 1),
    ],
)
def test_an_async_task_is_redelivered(
    hf: Holdfast, ledger: Ledger, point: CrashPoint, happened: list[str], runs: int
) -> None:
    @hf.task
    async def work() -> str:
        ledger.write("begin")
        await asyncio.sleep(0)
        ledger.write("end")
        return "done"

    with hf.testing() as t:
        job = work.enqueue()
        t.crash_worker(point)
        assert t.run_all() == runs
        assert job.result() == "done"
    assert ledger.lines == happened


@pytest.mark.parametrize(
    ("point", "happened"),
    [("before_start", 1), ("during", 1), ("before_settle", 2), ("after_settle", 1)],
)
def test_a_def_task_is_redelivered(hf: Holdfast, ledger: Ledger, point: CrashPoint, happened: int) -> None:
    @hf.task
    def work() -> str:
        ledger.write("work")
        return "done"

    with hf.testing() as t:
        job = work.enqueue()
        t.crash_worker(point)
        t.run_all()
        assert job.result() == "done"
    assert ledger.lines == ["work"] * happened


def test_an_async_task_that_never_waits_dies_at_its_end(hf: Holdfast, ledger: Ledger) -> None:
    @hf.task
    async def work() -> None:
        ledger.write("work")

    with hf.testing() as t:
        job = work.enqueue()
        t.crash_worker("during")
        t.run_all()
        assert job.state() == "completed"
    assert ledger.lines == ["work", "work"]


def test_nobody_is_charged_for_a_crash_but_it_is_counted(hf: Holdfast) -> None:
    @hf.task(retry=Retry(1))
    async def work() -> None:
        await asyncio.sleep(0)

    with hf.testing() as t:
        job = work.enqueue()
        t.crash_worker("during")
        t.run_all()
        record = job.record()
        assert (record.state, record.attempt, record.crashes) == (JobState.COMPLETED, 1, 1)
        failures = [attempt.failure for attempt in job.attempts()]
        assert [failure and failure.error_type for failure in failures] == ["WorkerCrashed", None]


def test_a_crash_before_the_task_is_not_its_fault(hf: Holdfast) -> None:
    @hf.task
    def work() -> None: ...

    with hf.testing() as t:
        job = work.enqueue()
        for _ in range(5):
            t.crash_worker("before_start")
        t.run_all()
        assert (job.record().state, job.record().crashes) == (JobState.COMPLETED, 0)


def test_a_crash_right_after_the_task_is_counted_for_it_and_charged_to_nobody(hf: Holdfast) -> None:
    """What it has left behind may have done it."""

    @hf.task(retry=Retry(1))
    def work() -> None: ...

    with hf.testing() as t:
        job = work.enqueue()
        t.crash_worker("before_settle")
        t.run_all()
        record = job.record()
        assert (record.state, record.attempt, record.crashes) == (JobState.COMPLETED, 1, 1)
        again = work.enqueue()
        for _ in range(3):
            t.crash_worker("before_settle")
        t.run_all()
        record = again.record()
        assert (record.state, record.crashes) == (JobState.COMPLETED, 2), (
            "it was alone the third time, and not in there"
        )


def test_a_job_that_kills_every_worker_is_dead_after_three(hf: Holdfast, ledger: Ledger) -> None:
    @hf.task
    async def poison() -> None:
        ledger.write("poison")
        await asyncio.sleep(0)

    @hf.task
    async def neighbour() -> None: ...

    with hf.testing() as t:
        poison.enqueue()
        for _ in range(3):
            t.crash_worker("during")
        t.run_all()
        (dead,) = t.dead
        assert (dead.task, dead.crashes, dead.error_type) == ("poison", 3, "ProcessCrashed")
        neighbour.enqueue()
        t.run_all()
        assert len(t.dead) == 1
    assert ledger.lines == ["poison"] * 3


@pytest.mark.parametrize(
    ("point", "state", "happened"),
    [
        ("before_start", "completed", 1),
        ("during", "dead", 0),
        ("before_settle", "dead", 1),
        ("after_settle", "completed", 1),
    ],
)
def test_an_at_most_once_job_never_starts_twice(
    hf: Holdfast, ledger: Ledger, point: CrashPoint, state: str, happened: int
) -> None:
    @hf.task(delivery="at_most_once")
    def work() -> None:
        ledger.write("work")

    with hf.testing() as t:
        job = work.enqueue()
        t.crash_worker(point)
        t.run_all()
        assert job.state() == state
    assert ledger.lines == ["work"] * happened


def test_each_crash_is_for_one_run(hf: Holdfast, ledger: Ledger) -> None:
    @hf.task
    def work(number: int) -> None:
        ledger.write(str(number))

    with hf.testing() as t:
        work.enqueue(1)
        work.enqueue(2)
        t.crash_worker("before_settle")
        t.run_all()
    assert ledger.lines == ["1", "1", "2"]


def test_a_worker_that_died_is_not_shut_down_and_another_one_starts(hf: Holdfast, ledger: Ledger) -> None:
    @hf.on_startup
    def start(state: State) -> None:
        ledger.write("start")

    @hf.on_shutdown
    def stop(state: State) -> None:
        ledger.write("stop")

    @hf.task
    def work() -> None: ...

    with hf.testing() as t:
        work.enqueue()
        t.crash_worker("after_settle")
        t.run_all()
    assert ledger.lines == ["start", "start", "stop"]


# ── at a place of the test's own ─────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_dies_where_the_test_says_so(hf: Holdfast, ledger: Ledger) -> None:
    def charge() -> None:
        ledger.write("charge")
        if len(ledger.lines) == 1:
            t.die()

    @hf.task
    def in_a_thread() -> None:
        charge()
        ledger.write("end")

    with hf.testing() as t:
        job = in_a_thread.enqueue()
        assert t.run_all() == 2
        assert (job.record().state, job.record().crashes) == (JobState.COMPLETED, 1)
    assert ledger.lines == ["charge", "charge", "end"]


async def test_a_worker_dies_where_an_async_test_says_so(hf: Holdfast, ledger: Ledger) -> None:
    @hf.task(bind=True)
    async def work(ctx: Context, kind: str) -> None:
        ledger.write(kind)
        await asyncio.sleep(0)
        if len(ledger.lines) == 1:
            t.die()

    async with hf.testing() as t:
        job = await work.aenqueue("loop")
        assert await t.arun_all() == 2
        assert (await job.arecord()).crashes == 1
    assert ledger.lines == ["loop", "loop"]


def test_even_a_task_that_catches_everything_is_dead(hf: Holdfast, ledger: Ledger) -> None:
    @hf.task
    def stubborn() -> None:
        ledger.write("begin")
        if len(ledger.lines) == 1:
            try:
                t.die()
            except BaseException:
                ledger.write("caught")

    with hf.testing() as t:
        stubborn.enqueue()
        t.run_all()
    assert ledger.lines == ["begin", "caught", "begin"]


def test_only_a_running_task_can_die(hf: Holdfast) -> None:
    with hf.testing() as t, pytest.raises(ConfigurationError, match="none is running"):
        t.die()


def test_an_unknown_point_is_refused(hf: Holdfast) -> None:
    with hf.testing() as t, pytest.raises(InvalidOption, match="'before_start', 'during', 'before_settle'"):
        t.crash_worker(cast("Any", "at_noon"))
