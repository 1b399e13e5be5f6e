"""Middleware that waits is part of its run: timeouts and cancellations reach it, whatever kind of task is inside."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
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


@pytest.mark.parametrize("answer", ["raises", "returns"])
async def test_middleware_that_times_out_around_a_thread_reaches_it_and_is_not_left_before_it_has_ended(
    answer: str,
) -> None:
    hf = Holdfast("memory://")
    story: list[str] = []

    @hf.middleware
    @asynccontextmanager
    async def around(context: Context) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(0.1):
                yield
        finally:
            story.append("left")

    @hf.task(retry=Retry(1))
    def work() -> str:
        try:
            _spin()
        except asyncio.CancelledError:
            time.sleep(0.2)
            story.append("ended")
            if answer == "raises":
                raise
        return "something"

    async with asyncio.timeout(_PATIENCE), hf, hf.worker():
        job = await work.aenqueue()
        if answer == "raises":
            with pytest.raises(JobFailed):
                await job.aresult()
            assert (await job.arecord()).error_type == "TimeoutError"
        else:
            assert await job.aresult() == "something", "as of a coroutine that swallows it"
    assert story == ["ended", "left"]


def _spin() -> None:
    """Wait in Python, where an exception can appear."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        time.sleep(0.001)


_DEAF = """
import asyncio, contextlib, signal, sys, threading, time
from holdfast import Holdfast

hf = Holdfast("memory://")
has_begun = threading.Event()

@hf.middleware
@contextlib.asynccontextmanager
async def around(context):
    async with asyncio.timeout(0.1 if sys.argv[1] == "times out" else None):
        yield

@hf.task
def deaf():
    has_begun.set()
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)

async def main():
    async with hf, hf.worker(grace="100ms"):
        await deaf.aenqueue()
        await asyncio.to_thread(has_begun.wait)
        await asyncio.sleep(0.3)

asyncio.run(main())
"""


@pytest.mark.parametrize("middleware", ["times out", "waits"])
def test_a_thread_that_never_ends_within_middleware_does_not_keep_an_app_from_ending(middleware: str) -> None:
    subprocess.run([sys.executable, "-c", _DEAF, middleware], timeout=_PATIENCE, check=True)
