"""Context variables: what the app has set is seen by every job, and what a job has set is seen by no other one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import pytest

from holdfast import Context, Holdfast, State

_JOBS = 100
_tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("has_middleware", [False, True], ids=["plain", "within middleware"])
@pytest.mark.parametrize("first", ["async", "thread"])
@pytest.mark.parametrize("second", ["async", "thread"])
async def test_a_job_does_not_see_what_another_one_has_set(first: str, second: str, has_middleware: bool) -> None:
    hf = Holdfast("memory://")
    seen: list[str] = []

    def change(number: int) -> None:
        seen.append(_tenant.get())
        _tenant.set(f"acme {number}")

    @hf.task(name="async")
    async def on_the_loop(number: int) -> None:
        change(number)

    @hf.task(name="thread")
    def in_a_thread(number: int) -> None:
        change(number)

    @hf.on_startup
    async def start(_: State) -> None:
        _tenant.set("everybody")

    if has_middleware:

        @hf.middleware
        @asynccontextmanager
        async def around(_: Context) -> AsyncIterator[None]:
            yield

    tasks = {task.name: task for task in (on_the_loop, in_a_thread)}
    async with hf:
        # One slot, and many that are fetched ahead: each starts where the one before it has ended.
        jobs = await hf.aenqueue_many(tasks[(first, second)[number % 2]].call(number) for number in range(_JOBS))
        async with asyncio.timeout(60), hf.worker(concurrency=1):
            for job in jobs:
                await job.aresult()
    assert seen == ["everybody"] * _JOBS


async def test_a_thread_sees_what_its_middleware_has_set() -> None:
    hf = Holdfast("memory://")

    @hf.middleware
    @asynccontextmanager
    async def around(context: Context) -> AsyncIterator[None]:
        _tenant.set(f"set for {context.task}")
        yield

    @hf.task
    def work() -> str:
        return _tenant.get()

    async with asyncio.timeout(60), hf, hf.worker():
        assert await (await work.aenqueue()).aresult() == "set for work"
