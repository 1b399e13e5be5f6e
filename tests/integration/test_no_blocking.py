"""Nothing that waits is called on an event loop: no sleep, no socket, no database, no lock that others may hold."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockingError, blockbuster_ctx

from holdfast import Call, Context, Holdfast, JobFailed, JobState, Retry
from holdfast.store import Filter


@contextmanager
def no_blocking() -> Iterator[None]:
    """Calls that wait for others raise BlockingError on a loop. A look into a folder on the own disk is not meant."""
    with blockbuster_ctx() as guard:
        for name, function in guard.functions.items():
            if name.startswith(("os.", "io.")):
                function.deactivate()
        yield


@pytest.fixture(params=["sqlite", "postgres"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Holdfast:
    if request.param == "postgres":
        return Holdfast(request.getfixturevalue("migrated_database"))
    return Holdfast(f"sqlite:///{tmp_path}/jobs.db")


async def test_the_guard_notices() -> None:
    with no_blocking(), pytest.raises(BlockingError):
        time.sleep(0)  # noqa: ASYNC251 - on purpose


async def test_a_worker_never_blocks_its_loop(hf: Holdfast) -> None:
    @hf.task(bind=True)
    async def on_the_loop(ctx: Context, number: int) -> int:
        ctx.progress(number)
        return number

    @hf.task(bind=True, delivery="transactional")
    async def in_a_transaction(ctx: Context, number: int) -> int:
        await ctx.tx.afetch("select 1")
        return number

    @hf.task
    def in_a_thread(number: int) -> int:
        time.sleep(0.001)
        return number

    @hf.task(retry=Retry(2, base="10ms"))
    async def fails() -> None:
        raise ValueError("broken")

    with no_blocking():
        async with hf.worker(concurrency=8):
            calls = [task.call(n) for task in (on_the_loop, in_a_thread, in_a_transaction) for n in range(20)]
            jobs = await hf.aenqueue_many(calls)
            later = await on_the_loop.options(delay="100ms").aenqueue(100)
            dead = await fails.aenqueue()
            assert [await job.aresult("60s") for job in jobs] == 3 * list(range(20))
            assert await later.aresult("60s") == 100
            with pytest.raises(JobFailed, match="broken"):
                await dead.aresult("60s")
        await hf.aclose()


_TOO_LONG = 0.05
"""Seconds of the processor that one turn of a loop may take: what others do meanwhile is not meant."""
_UNFINISHED = frozenset({JobState.PENDING, JobState.ACTIVE, JobState.RETRYING})


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What takes too long on any loop, in words, as asyncio's debug mode would tell it, which is slow itself."""
    found: list[str] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        before = time.thread_time()
        run(handle)
        took = time.thread_time() - before
        if took > _TOO_LONG:
            found.append(f"{took:.3f} s: {handle!r}")

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    # What thousands of other tests have left behind in this process would be looked through in the middle of a turn.
    gc.collect()
    gc.freeze()
    return found


async def test_whoever_takes_too_long_is_noticed(slow: list[str]) -> None:
    def compute() -> None:
        end = time.thread_time() + 1.1 * _TOO_LONG
        while time.thread_time() < end:
            pass

    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(compute)
    asyncio.get_running_loop().call_soon(done.set)
    await done.wait()
    assert ["compute" in each for each in slow] == [True]


async def test_no_turn_of_the_loop_takes_long_when_a_thousand_jobs_are_worked_off(
    hf: Holdfast, slow: list[str]
) -> None:
    @hf.task
    async def on_the_loop(number: int) -> int:
        return number

    @hf.task
    def in_a_thread(number: int) -> int:
        return number

    @hf.task(retry=Retry(2, base="1ms", jitter=False))
    async def fails(number: int) -> None:
        raise ValueError(number)

    async def work_off() -> None:
        async with hf.worker(concurrency=50):
            calls: list[Call[Any]] = [task.call(n) for task in (on_the_loop, in_a_thread) for n in range(400)]
            await hf.aenqueue_many([*calls, *(fails.call(n) for n in range(200))])
            await asyncio.gather(*(on_the_loop.aenqueue(n) for n in range(100)))
            async with asyncio.timeout(60):
                while await hf.engine.store.count(Filter(states=_UNFINISHED)):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.02)

    await work_off()
    slow.clear()  # what is imported and prepared with the first job is not meant
    await work_off()
    await hf.aclose()
    assert slow == []
