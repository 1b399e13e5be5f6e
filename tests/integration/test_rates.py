"""Rates beside other work: jobs that must start when they are claimed find slots to start in."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast, JobState, Rate
from holdfast.options import TaskOptions
from holdfast.worker.ahead import Ahead
from holdfast.worker.runs import Run

_PATIENCE = 60.0
"""A limit for hangs, not a measure of speed."""


@pytest.mark.parametrize("options", [{}, {"order": "{key}"}], ids=["plain", "in orders"])
async def test_a_rate_is_used_while_short_jobs_wait_for_every_slot(
    hf: Holdfast, options: TaskOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are fetched ahead, so that there is always one for a slot that becomes free."""
    ended = asyncio.Semaphore(0)
    started: list[int] = []
    waiting: list[str] = []
    add = Ahead.add

    def watch(ahead: Ahead, run: Run, now: float) -> None:
        waiting.append(run.job.task)
        add(ahead, run, now)

    monkeypatch.setattr(Ahead, "add", watch)

    @hf.task(**options)
    async def short(key: int) -> None:
        await asyncio.sleep(0.02)
        ended.release()

    @hf.task(rate=Rate(5, "1s"))
    async def rated(number: int) -> None:
        started.append(number)

    async with asyncio.timeout(_PATIENCE):
        others = await hf.aenqueue_many([short.call(number % 8) for number in range(2000)])
        async with hf.worker(concurrency=4, grace=0.5):
            for _ in range(100):
                await ended.acquire()
            for job in await hf.aenqueue_many([rated.call(number) for number in range(15)]):
                await job.aresult()
            assert await others[-1].astate() is JobState.PENDING, "the others have not come to their end meanwhile"
    assert started == list(range(15))
    assert set(waiting) == {"short"}, "whoever has passed a rate counts from then on, and must not wait for a slot"
