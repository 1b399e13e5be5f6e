"""Middleware that waits is part of its run: timeouts and cancellations reach it, whatever kind of task is inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import Context, Holdfast, JobFailed, JobState, Retry, SoftTimeout

_PATIENCE = 60.0


def _app(waits: str) -> tuple[Holdfast, dict[str, Any], asyncio.Event, list[str]]:
    """`waits` is where its middleware hangs: before or after the task."""
    hf = Holdfast("memory://")
    is_waiting = asyncio.Event()
    story: list[str] = []

    async def wait() -> None:
        is_waiting.set()
        try:
            await asyncio.Event().wait()
        except SoftTimeout:
            story.append("soft timeout")
            raise
        except asyncio.CancelledError:
            story.append("cancelled")
            raise

    @hf.middleware
    @asynccontextmanager
    async def around(context: Context) -> AsyncIterator[None]:
        if waits == "before":
            await wait()
        yield
        if waits == "after":
            await wait()

    @hf.task(name="async", retry=Retry(1), soft_timeout="200ms", timeout="50s")
    async def on_the_loop() -> None:
        story.append("run")

    @hf.task(name="thread", retry=Retry(1), soft_timeout="200ms", timeout="50s")
    def in_a_thread() -> None:
        story.append("run")

    @hf.task(name="patient", retry=Retry(1))
    def patient() -> None:
        story.append("run")

    return hf, {task.name: task for task in (on_the_loop, in_a_thread, patient)}, is_waiting, story


@pytest.mark.parametrize("waits", ["before", "after"])
@pytest.mark.parametrize("task", ["async", "thread"])
async def test_a_soft_timeout_appears_in_middleware_that_waits(task: str, waits: str) -> None:
    hf, tasks, _, story = _app(waits)
    async with asyncio.timeout(_PATIENCE), hf, hf.worker():
        job = await tasks[task].aenqueue()
        with pytest.raises(JobFailed):
            await job.aresult()
        assert (await job.arecord()).error_type == "SoftTimeout"
    assert story == [*(["run"] if waits == "after" else []), "soft timeout"]


@pytest.mark.parametrize("waits", ["before", "after"])
async def test_a_cancellation_appears_in_middleware_of_a_thread_that_waits(waits: str) -> None:
    hf, tasks, is_waiting, story = _app(waits)
    async with asyncio.timeout(_PATIENCE), hf, hf.worker():
        job = await tasks["patient"].aenqueue()
        await is_waiting.wait()
        await job.acancel()
        with pytest.raises(JobFailed):
            await job.aresult()
        assert await job.astate() is JobState.CANCELLED
    assert story == [*(["run"] if waits == "after" else []), "cancelled"]
