"""Trains: a worker that has several jobs of an order in hand runs them one after the other, whatever comes of each."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
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


async def _until_started(started: list[str], number: int) -> None:
    while len(started) < number:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


async def _in_hand(hf: Holdfast, jobs: list[Job[Any]]) -> list[Job[Any]]:
    """Those of them that a worker has in hand."""
    records = await hf.engine.store.get([job.id for job in jobs])
    claimed = {record.id for record in records if record.state is JobState.ACTIVE}
    return [job for job in jobs if job.id in claimed]


@asynccontextmanager
async def _train_in_hand(hf: Holdfast) -> AsyncIterator[tuple[list[Job[Any]], list[int], asyncio.Event]]:
    """Five jobs of one order, of which the first runs until the event is set, with others behind it; and who ran."""
    release, ran = asyncio.Event(), list[int]()

    @hf.task(order="one")
    async def step(number: int) -> None:
        ran.append(number)
        if number == 0:
            await release.wait()

    async with asyncio.timeout(_PATIENCE), hf:
        jobs: list[Job[Any]] = [*await hf.aenqueue_many(step.call(number) for number in range(5))]
        async with hf.worker():
            while len(await _in_hand(hf, jobs)) < 3:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            yield jobs, ran, release


async def test_who_waits_behind_another_is_cancelled_at_once_and_those_behind_it_run_in_their_order(
    hf: Holdfast,
) -> None:
    async with _train_in_hand(hf) as (jobs, ran, release):
        await jobs[1].acancel(reason="not wanted")
        while await jobs[1].astate() is not JobState.CANCELLED:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        assert ran == [0], "the first one still runs"
        release.set()
        await jobs[-1].aresult()
    assert ran == [0, 2, 3, 4]


async def test_what_waits_behind_another_is_given_back_when_its_queue_is_paused(hf: Holdfast) -> None:
    async with _train_in_hand(hf) as (jobs, ran, release):
        await hf.queues.apause("default")
        while await _in_hand(hf, jobs) != jobs[:1]:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        release.set()
        await jobs[0].aresult()
        assert ran == [0]
        await hf.queues.aresume("default")
        await jobs[-1].aresult()
        assert {(await _attempts(hf, job)) for job in jobs} == {1}
    assert ran == [0, 1, 2, 3, 4]


async def test_what_was_fetched_ahead_is_given_back_when_its_queue_is_paused(hf: Holdfast) -> None:
    paused, ran = asyncio.Event(), list[int]()

    @hf.task
    async def step(number: int) -> None:
        ran.append(number)
        if number == 200:  # by now, some are fetched ahead
            await hf.queues.apause("default")
            paused.set()

    async with asyncio.timeout(_PATIENCE), hf:
        jobs = await hf.aenqueue_many(step.call(number) for number in range(2_000))
        async with hf.worker(concurrency=1):
            await paused.wait()
            while await _in_hand(hf, jobs):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            done = len(ran)
            assert done < len(jobs)
            assert await hf.jobs.acount(state="pending") == len(jobs) - done
            await hf.queues.aresume("default")
            await _all_over(jobs)
    assert sorted(ran) == list(range(2_000))


async def test_plain_jobs_and_other_queues_have_their_part_of_the_slots_beside_trains(hf: Holdfast) -> None:
    started: list[str] = []
    kinds = ("ordered", "plain", "elsewhere")

    async def work(kind: str) -> None:
        started.append(kind)
        await asyncio.sleep(0.005)

    @hf.task(order="{key}")
    async def ordered(key: int) -> None:
        await work("ordered")

    @hf.task
    async def plain() -> None:
        await work("plain")

    @hf.task(queue="other")
    async def elsewhere() -> None:
        await work("elsewhere")

    async with asyncio.timeout(_PATIENCE), hf:
        await hf.aenqueue_many(ordered.call(number % 40) for number in range(2_000))
        async with hf.worker(concurrency=4):
            await _until_started(started, 300)  # trains are under way
            await hf.aenqueue_many(plain.call() for _ in range(800))
            await hf.aenqueue_many(elsewhere.call() for _ in range(800))
            first = len(started)
            await _until_started(started, first + 500)
        counts = {kind: started[first + 100 : first + 500].count(kind) for kind in kinds}
    assert counts["plain"] > 40, counts
    assert counts["elsewhere"] > 60, counts
    assert counts["ordered"] > 100, counts
