"""Trains: a worker that has several jobs of an order in hand runs them one after the other, whatever comes of each."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from holdfast import Context, GiveUp, Holdfast, Job, JobState, Retry, Snooze
from holdfast.job import ClaimedJob
from holdfast.store import Store

_PATIENCE = 60.0
"""A limit for hangs, not a measure of speed."""


class Watched:
    """What a store's claims have brought."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.behind = 0
        self.claims = 0
        claim = store.claim

        async def watch(worker: UUID, token: UUID, demand: Mapping[str, int], *options: Any) -> list[ClaimedJob]:
            claimed = await claim(worker, token, demand, *options)
            self.claims += bool(claimed)
            self.behind += sum(job.behind is not None for job in claimed)
            return claimed

        monkeypatch.setattr(store, "claim", watch)


async def _all_over(jobs: list[Job[Any]]) -> list[JobState]:
    async with asyncio.timeout(_PATIENCE):
        while True:
            states = [await job.astate() for job in jobs[-1:]]
            if all(state in (JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED) for state in states):
                states = [await job.astate() for job in jobs]
                if all(state in (JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED) for state in states):
                    return states
            await asyncio.sleep(0.02)


async def test_short_jobs_of_one_order_are_claimed_together_and_run_in_their_order(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: defaultdict[str, list[int]] = defaultdict(list)
    running: defaultdict[str, int] = defaultdict(int)
    crowded: list[str] = []

    @hf.task(bind=True, order="{key}", retry=Retry(3, base="1ms", cap="1ms"))
    async def step(ctx: Context, key: str, number: int) -> None:
        running[key] += 1
        if running[key] > 1:
            crowded.append(key)
        try:
            await asyncio.sleep(0)
            if number % 40 == 7 and ctx.attempt == 1:
                raise ValueError("planned")
            if number % 40 == 17 and not any(number == each for each in snoozed[key]):
                snoozed[key].append(number)
                raise Snooze("1ms")
            if number % 40 == 27:
                raise GiveUp("planned")
            started[key].append(number)
        finally:
            running[key] -= 1

    snoozed: defaultdict[str, list[int]] = defaultdict(list)
    async with hf:
        watched = Watched(hf.engine.store, monkeypatch)
        jobs = await hf.aenqueue_many(step.call(key, number) for number in range(150) for key in "ab")
        async with hf.worker():
            states = await _all_over(jobs)
    dead = [number for number in range(150) if number % 40 == 27]
    assert started == {key: [number for number in range(150) if number not in dead] for key in "ab"}
    assert crowded == []
    assert states.count(JobState.DEAD) == 2 * len(dead)
    assert watched.behind > 50, "most of them came behind others"
    assert watched.claims < 200


async def test_a_long_job_of_an_order_holds_up_nobody_else(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind it are given back after a while, and slots that are free are used by others."""
    reached, release = asyncio.Event(), asyncio.Event()

    @hf.task(order="{key}")
    async def step(key: str, number: int) -> None:
        if number == 120:
            reached.set()
            await release.wait()

    @hf.task
    async def other() -> str:
        return "done"

    async with hf:
        watched = Watched(hf.engine.store, monkeypatch)
        jobs = await hf.aenqueue_many(step.call("a", number) for number in range(140))
        async with asyncio.timeout(_PATIENCE), hf.worker(queues={"default": 2}):
            await reached.wait()
            assert await (await other.aenqueue()).aresult() == "done"
            while await jobs[-1].astate() is not JobState.PENDING:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)
            release.set()
            await _all_over(jobs)
    assert watched.behind > 0
    assert {(await _attempts(hf, job)) for job in jobs[121:]} == {1}, "waiting is not an attempt"


async def _attempts(hf: Holdfast, job: Job[Any]) -> int:
    [record] = await hf.engine.store.get([job.id])
    return record.attempt


async def test_a_worker_that_stops_gives_back_those_behind_what_it_finishes(hf: Holdfast) -> None:
    reached, release = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    @hf.task(order="{key}")
    async def step(key: str, number: int) -> None:
        if number == 100:
            reached.set()
            await release.wait()
        ran.append(number)

    async with asyncio.timeout(_PATIENCE), hf:
        jobs = await hf.aenqueue_many(step.call("a", number) for number in range(140))
        worker = hf.worker()
        async with worker:
            await reached.wait()
            asyncio.get_running_loop().call_later(0.05, release.set)
        assert ran == list(range(101))
        assert [await job.astate() for job in jobs[101:]] == [JobState.PENDING] * 39
        async with hf.worker():
            await _all_over(jobs)
    assert ran == list(range(140))
