"""Explanations and limits as users see them, with an embedded worker at work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from holdfast import (
    Context,
    GiveUp,
    Holdfast,
    InvalidOption,
    Job,
    JobNotFound,
    JobState,
    Limit,
    LimitNotFound,
    Order,
    Rate,
    ReasonKind,
)
from holdfast.ids import Ids
from holdfast.job import Failure, FailureKind, NewJob
from holdfast.lifecycle import GiveBack
from holdfast.store import NewWorker, Settlement

PATIENCE = 30.0


async def until(look: Callable[[], Awaitable[bool]], what: str) -> None:
    """Look again and again until it is so."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        if await look():
            return
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.01)


async def test_a_job_tells_its_whole_life(hf: Holdfast) -> None:
    has_started, may_end = asyncio.Event(), asyncio.Event()

    @hf.task(bind=True)
    async def scale(ctx: Context) -> None:
        ctx.progress(3, 10, "scaling")
        has_started.set()
        await may_end.wait()

    job = await scale.aenqueue()
    assert (await job.aexplain()).kinds == (ReasonKind.NO_WORKER, ReasonKind.POSITION)
    await hf.queues.apause("default")
    assert (await job.aexplain()).kinds[0] is ReasonKind.PAUSED
    await hf.queues.aresume("default")
    async with asyncio.timeout(PATIENCE), hf.worker(queues=["default"]):
        await has_started.wait()

        async def is_told() -> bool:
            return "3 of 10 done, scaling" in str(await job.aexplain())

        await until(is_told, "its progress")
        explanation = await hf.jobs.aexplain(job.id)
        assert explanation.kinds == (ReasonKind.RUNNING,)
        assert "/embedded, attempt 1 of 5" in str(explanation)
        other = await scale.options(queue="elsewhere").aenqueue()
        assert str(await other.aexplain()).startswith("waiting: no live worker serves queue 'elsewhere'")
        may_end.set()
        await job.aresult()
        assert (await job.aexplain()).kinds == (ReasonKind.COMPLETED,)


async def test_a_worker_that_is_quiet_or_stops_is_not_waited_for(hf: Holdfast) -> None:
    has_started, may_end = asyncio.Event(), asyncio.Event()

    @hf.task
    async def long() -> None:
        has_started.set()
        await may_end.wait()

    quiet = "waiting: the workers of queue 'default' are quiet: they claim nothing more; it is the next in queue"

    async def leave_when_told(may_leave: asyncio.Event) -> None:
        async with hf.worker(concurrency=1):
            await may_leave.wait()

    async with asyncio.timeout(PATIENCE):
        for is_asked in (True, False):
            has_started.clear()
            may_end.clear()
            may_leave = asyncio.Event()
            working = asyncio.create_task(leave_when_told(may_leave))
            running = await long.aenqueue()
            await has_started.wait()
            if is_asked:
                [worker] = [each for each in await hf.workers.alist() if each.dead_at is None]
                await hf.workers.aquiet(worker.id)
            else:
                may_leave.set()
            job = await long.aenqueue()

            async def is_told(job: Job[None] = job) -> bool:
                return str(await job.aexplain()).startswith(quiet)

            await until(is_told, "the worker to be quiet")
            await job.acancel()
            may_end.set()
            may_leave.set()
            await working
            assert await running.astate() is JobState.COMPLETED


async def test_a_task_that_no_worker_here_knows_is_told(hf: Holdfast) -> None:
    @hf.task
    async def known() -> None: ...

    new = NewJob(Ids().make(), "unknown", "default", "{}")
    async with hf.worker():
        [worker] = await hf.workers.alist()
        assert worker.tasks == ("known",)
        await (await hf.engine.ready()).enqueue([new])

        async def is_told() -> bool:
            return ReasonKind.UNKNOWN_TASK in (await hf.jobs.aexplain(new.id)).kinds

        await until(is_told, "the reason")
        await (await known.aenqueue()).aresult(timeout="20s")


async def test_what_a_limit_holds_up_runs_as_soon_as_it_is_raised(hf: Holdfast) -> None:
    running, may_end = asyncio.Semaphore(0), asyncio.Event()

    @hf.task(limit=Limit(1, "{tenant}"), rate=Rate(100, "1m"))
    async def charge(tenant: str) -> None:
        running.release()
        await may_end.wait()

    async with asyncio.timeout(PATIENCE), hf.worker():
        first, second = await charge.aenqueue("acme"), await charge.aenqueue("acme")
        await running.acquire()
        waiting = second if (await first.arecord()).started_at is not None else first
        explanation = await waiting.aexplain()
        assert str(explanation) == "waiting: limit tenant=acme 1/1; it is the next in its line"
        assert [(record.kind, record.used) for record in await hf.limits.alist("charge")] == [("limit", 1), ("rate", 1)]
        record = await hf.limits.aset("charge", 2, key="acme")
        assert (record.most, record.declared) == (2, 1)
        await running.acquire()
        may_end.set()
        await first.aresult()
        await second.aresult()
    assert (await hf.limits.areset("charge", key="acme")).most == 1


async def test_a_dead_job_that_blocks_its_order_is_named(hf: Holdfast) -> None:
    @hf.task(order=Order("{order_id}", on_dead="block"))
    async def step(order_id: int, is_bad: bool) -> None:
        if is_bad:
            raise GiveUp("no such order")

    async with hf.worker():
        bad, good = await step.aenqueue(7, is_bad=True), await step.aenqueue(7, is_bad=False)

        async def is_dead() -> bool:
            return (await bad.astate()).is_final

        await until(is_dead, "its end")
        text = (
            f"waiting: order order_id=7: behind job {bad.id}, which is dead, until somebody retries or discards that; "
        )
        assert str(await good.aexplain()) == f"{text}it is the next in its line"
        assert str(await bad.aexplain()).endswith("on attempt 1 of 5: GiveUp: no such order")
        await hf.dead.adiscard(task="step")
        await good.aresult(timeout="20s")


async def test_each_reason_to_wait_is_given_in_words(hf: Holdfast) -> None:
    stripe = hf.breaker("stripe")

    @hf.task
    async def plain(key: str = "") -> None: ...

    @hf.task(limit=Limit(4, "{key}"))
    async def limited(key: str) -> None: ...

    @hf.task(rate=Rate(1, "1h", key="{key}"))
    async def rated(key: str) -> None: ...

    @hf.task(order="{key}")
    async def ordered(key: str) -> None: ...

    @hf.task(breaker=stripe)
    async def guarded() -> None: ...

    await hf.apublish_tasks()
    store, worker = await hf.engine.ready(), uuid4()
    await store.register(NewWorker(worker, "box", queues=("default", "paused"), tasks=tuple(sorted(hf.engine.tasks))))
    failing = await plain.aenqueue()
    [claimed] = await store.claim(worker, uuid4(), {"default": 1})
    failure = Failure(FailureKind.ERROR, "ConnectionError", "no route to host")
    back = GiveBack(timedelta(hours=1), is_charged=True, failure=failure)
    await store.settle([Settlement(claimed.id, claimed.token, back)])
    many = [await limited.aenqueue("acme") for _ in range(5)]
    rates = [await rated.aenqueue("acme") for _ in range(2)]
    orders = [await ordered.aenqueue("o1") for _ in range(2)]
    taken = {job.id for job in await store.claim(worker, uuid4(), {"default": 20})}
    assert len(taken) == 6
    await hf.queues.apause("paused")
    await hf.breakers.aopen("stripe")
    await plain.aenqueue()
    unknown = NewJob(Ids().make(), "unknown", "default", "{}")
    await store.enqueue([unknown])
    [full], [late], [behind] = ([job for job in jobs if job.id not in taken] for jobs in (many, rates, orders))
    [holder] = [job for job in orders if job.id in taken]
    asked = {
        "queue 'paused' is paused": await plain.options(queue="paused").aenqueue(),
        "in ~60 min": await plain.options(delay="1h").aenqueue(),
        "attempt 2 of 5 in ~60 min, after ConnectionError: no route to host": failing,
        "rate key=acme 1/1 per 1h, ~": late,
        "limit key=acme 4/4": full,
        f"order key=o1: behind job {holder.id}, which is active": behind,
        "breaker stripe is open, ~": await guarded.aenqueue(),
        "no live worker serves queue 'elsewhere'": await plain.options(queue="elsewhere").aenqueue(),
        "no live worker of queue 'default' knows the task 'unknown'": hf.job(unknown.id),
        "before it in queue 'default'": await plain.aenqueue(),
    }
    for text, job in asked.items():
        assert text in str(await job.aexplain())
    [rate, _] = (await late.aexplain()).reasons
    assert rate.until is not None
    assert rate.until > (await late.arecord()).created_at


async def test_a_job_that_is_not_there_can_t_be_explained(hf: Holdfast) -> None:
    with pytest.raises(JobNotFound, match="There is no job"):
        await hf.jobs.aexplain(Ids().make())


async def test_limits_are_set_only_as_the_code_declares_them(hf: Holdfast) -> None:
    @hf.task(limit=Limit(1, "{tenant}"), rate=Rate(100, "1m", name="provider"))
    async def charge(tenant: str) -> None: ...

    await hf.apublish_tasks()
    with pytest.raises(InvalidOption, match="has a key"):
        await hf.limits.aset("charge", 2)
    with pytest.raises(InvalidOption, match="has no key"):
        await hf.limits.aset("provider", 2, kind="rate", key="acme")
    with pytest.raises(InvalidOption, match="from 1 to"):
        await hf.limits.aset("charge", 0, key="acme")
    with pytest.raises(InvalidOption, match="Only a limit and a rate"):
        await hf.limits.aset("charge", 2, kind="fair")  # type: ignore[arg-type]
    with pytest.raises(LimitNotFound, match="Did you mean 'charge'"):
        await hf.limits.aset("chrage", 2, key="acme")
    with pytest.raises(LimitNotFound, match="Nothing is set or used"):
        await hf.limits.areset("charge", key="acme")
    assert await hf.limits.alist() == []
    assert (await hf.limits.aset("provider", 7, kind="rate")).most == 7
    assert (await hf.limits.areset("provider", kind="rate")).most == 100


async def test_a_job_behind_an_open_breaker_says_so_until_it_is_closed(hf: Holdfast) -> None:
    stripe = hf.breaker("stripe", failures=1, reset="10m")

    @hf.task(breaker=stripe)
    async def charge() -> str:
        return "done"

    await hf.apublish_tasks()
    await hf.breakers.aopen("stripe")
    job = await charge.aenqueue()
    explanation = await job.aexplain()
    assert ReasonKind.BREAKER in explanation.kinds
    assert "breaker stripe is open" in str(explanation)
    await hf.breakers.areset("stripe")
    assert ReasonKind.BREAKER not in (await job.aexplain()).kinds
