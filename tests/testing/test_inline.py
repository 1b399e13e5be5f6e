"""hf.testing(inline=True): what is enqueued has run when enqueue returns."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import Holdfast, JobFailed, Retry
from holdfast.testing import EndlessWork


def test_a_job_has_run_when_it_is_enqueued(hf: Holdfast) -> None:
    threads: list[threading.Thread] = []

    @hf.task
    def double(number: int) -> int:
        threads.append(threading.current_thread())
        return 2 * number

    with hf.testing(inline=True) as t:
        assert double.enqueue(21).result() == 42
        assert [job.result() for job in hf.enqueue_many([double.call(1), double.call(2)])] == [2, 4]
        assert hf.send("double", {"number": 3}).result() == 6
        assert t.run_all() == 0
    assert set(threads) == {threading.current_thread()}


async def test_a_job_has_run_when_it_is_enqueued_by_async_code(hf: Holdfast) -> None:
    @hf.task
    async def double(number: int) -> int:
        return 2 * number

    async with hf.testing(inline=True):
        assert await (await double.aenqueue(21)).aresult() == 42


def test_jobs_of_jobs_run_after_them(hf: Holdfast) -> None:
    said: list[str] = []

    @hf.task
    def parent() -> None:
        said.append("parent begins")
        child.enqueue()
        said.append("parent ends")

    @hf.task
    async def child() -> None:
        said.append("child")

    with hf.testing(inline=True):
        parent.enqueue()
    assert said == ["parent begins", "parent ends", "child"]


def test_a_failure_is_that_of_the_job(hf: Holdfast) -> None:
    @hf.task(retry=Retry(2, base="1m"))
    def fail() -> None:
        raise ValueError("no")

    with hf.testing(inline=True) as t:
        job = fail.enqueue()
        assert job.state() == "retrying"
        t.advance("1m")
        t.run_all()
        with pytest.raises(JobFailed, match="ValueError: no"):
            job.result()


def test_what_is_due_later_waits(hf: Holdfast) -> None:
    @hf.task
    def later() -> None: ...

    with hf.testing(inline=True) as t:
        job = later.options(delay="1h").enqueue()
        assert job.state() == "pending"
        t.advance("1h")
        assert t.run_all() == 1


def test_a_crash_can_be_had_inline(hf: Holdfast) -> None:
    runs: list[int] = []

    @hf.task
    def work() -> None:
        runs.append(1)

    with hf.testing(inline=True) as t:
        t.crash_worker("before_settle")
        assert work.enqueue().state() == "completed"
    assert len(runs) == 2


def test_endless_work_is_told_to_who_enqueued_it(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.rehearsal.MOST_RUNS", 20)

    @hf.task
    async def again() -> None:
        await again.aenqueue()

    with hf.testing(inline=True), pytest.raises(EndlessWork):
        again.enqueue()


async def test_concurrent_producers_all_have_their_jobs_run(hf: Holdfast) -> None:
    @hf.task
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async with hf.testing(inline=True) as t:
        await asyncio.gather(*(work.aenqueue(number) for number in range(20)))
        assert sorted([await job.aresult() for job in t.jobs(work)]) == list(range(20))


def test_producers_in_threads_all_have_their_jobs_run(hf: Holdfast) -> None:
    @hf.task
    def work(number: int) -> int:
        return number

    with hf.testing(inline=True) as t:
        threads = [threading.Thread(target=work.enqueue, args=[number]) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(job.result() for job in t.jobs(work)) == list(range(20))
