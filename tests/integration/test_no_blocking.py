"""Nothing that waits is called on an event loop: no sleep, no socket, no database, no lock that others may hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from blockbuster import BlockingError, blockbuster_ctx

from holdfast import Context, Holdfast, JobFailed, Retry


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
        return Holdfast(request.getfixturevalue("postgres_database"))
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
