"""How far a job is: what its task says reaches whoever asks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast import Context, Holdfast, Job, JobNotFound, Progress, StoreUnavailable
from holdfast.ids import Ids
from holdfast.store import ProgressReport


@pytest.fixture(params=["sqlite", "postgres"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Holdfast:
    is_sqlite = request.param == "sqlite"
    return Holdfast(f"sqlite:///{tmp_path}/jobs.db" if is_sqlite else request.getfixturevalue("migrated_database"))


async def _progress_of(job: Job[None], done: float) -> Progress:
    """Wait until it is so far."""
    async with asyncio.timeout(10):
        while (progress := await job.aprogress()) is None or progress.done != done:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    return progress


async def test_what_a_task_said_last_is_seen_with_its_result(hf: Holdfast) -> None:
    @hf.task(bind=True)
    async def on_the_loop(ctx: Context) -> None:
        for number in range(1, 11):
            ctx.progress(number, 10, f"step {number}")
            await asyncio.sleep(0)

    @hf.task(bind=True)
    def in_a_thread(ctx: Context) -> None:
        for number in range(1, 11):
            ctx.progress(number, 10, f"step {number}")

    async with hf, hf.worker():
        for task in (on_the_loop, in_a_thread):
            for _ in range(5):
                job = await task.aenqueue()
                await job.aresult("10s")
                progress = await job.aprogress()
                assert progress is not None
                assert (progress.done, progress.total, progress.note) == (10, 10, "step 10")


async def test_progress_is_seen_while_the_task_runs(hf: Holdfast) -> None:
    may_end = threading.Event()

    @hf.task(bind=True)
    def scale(ctx: Context) -> None:
        ctx.progress(3, 10, "scaling")
        may_end.wait(10)

    async with hf, hf.worker():
        job = await scale.aenqueue()
        try:
            progress = await _progress_of(job, 3)
            assert (progress.total, progress.note) == (10, "scaling")
            assert job.id in await hf._engine.store.progress([job.id])
        finally:
            may_end.set()
        await job.aresult("10s")


async def test_a_task_that_reports_all_the_time_is_passed_on_twice_a_second(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_on = 0

    @hf.task(bind=True)
    def count(ctx: Context) -> int:
        end, number = time.monotonic() + 1.2, 0
        while time.monotonic() < end:
            number += 1
            ctx.progress(number)
        return number

    async with hf, hf.worker():
        store = hf._engine.store
        keep = store.report_progress

        async def watch(reports: Sequence[ProgressReport]) -> None:
            nonlocal passed_on
            passed_on += 1
            await keep(reports)

        monkeypatch.setattr(store, "report_progress", watch)
        started = time.monotonic()
        job = await count.aenqueue()
        number = await job.aresult("10s")
        elapsed = time.monotonic() - started
        progress = await job.aprogress()
    assert progress is not None
    assert progress.done == number
    assert 2 <= passed_on <= elapsed / 0.5 + 2, "the first at once, the last with the job's end"


async def test_a_store_that_takes_no_progress_costs_nothing_else(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    @hf.task(bind=True)
    async def task(ctx: Context) -> int:
        for number in range(3):
            ctx.progress(number)
            await asyncio.sleep(0)
        return 7

    async with hf, hf.worker():

        async def refuse(reports: Sequence[ProgressReport]) -> None:
            raise StoreUnavailable

        monkeypatch.setattr(hf._engine.store, "report_progress", refuse)
        job = await task.aenqueue()
        assert await job.aresult("10s") == 7
        assert await job.aprogress() is None


def test_a_job_that_has_not_reported_has_none_and_one_that_is_not_there_is_told(hf: Holdfast) -> None:
    @hf.task
    def task() -> None: ...

    with hf:
        assert task.enqueue().progress() is None
        with pytest.raises(JobNotFound):
            hf.job(Ids().make()).progress()
