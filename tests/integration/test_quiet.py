"""A worker that was asked to be quiet claims nothing more, at once, and finishes what it runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast, InvalidOption, JobState, WorkerRecord
from holdfast.ids import Ids

_APP = """
from holdfast import Holdfast

hf = Holdfast({url!r})

@hf.task
async def work() -> None: ...
"""
_AT_ONCE = 5.0
"""Seconds: well below the time between two heartbeats."""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    is_sqlite = request.param == "sqlite"
    return f"sqlite:///{tmp_path}/jobs.db" if is_sqlite else str(request.getfixturevalue("migrated_database"))


async def _soon(is_so: Callable[[], Awaitable[bool]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await is_so():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def test_an_embedded_worker_is_quiet_at_once_and_finishes_what_it_runs(url: str) -> None:
    hf, has_begun, may_end = Holdfast(url), asyncio.Event(), asyncio.Event()

    @hf.task
    async def work() -> int:
        has_begun.set()
        await may_end.wait()
        return 7

    async with hf, hf.worker() as worker:
        running = await work.aenqueue()
        await has_begun.wait()
        [record] = await hf.workers.alist()
        assert await hf.workers.aquiet(record.id)

        async def is_quiet() -> bool:
            return worker._station is not None and worker._station._is_quiet

        await _soon(is_quiet, _AT_ONCE)
        waiting = await work.aenqueue()
        may_end.set()
        assert await running.aresult("10s") == 7
        assert await waiting.astate() is JobState.PENDING
        [record] = await hf.workers.alist()
        assert record.is_quiet


@asynccontextmanager
async def _holdfast_worker(url: str, folder: Path) -> AsyncIterator[asyncio.StreamReader]:
    """A supervisor with one child. Yields what it says."""
    (folder / "app.py").write_text(_APP.format(url=url))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "worker", "app:hf", "--processes", "1"),
        cwd=folder,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        yield process.stderr
    finally:
        process.terminate()
        async with asyncio.timeout(20):
            await process.communicate()


async def test_a_supervisor_s_child_is_quiet_at_once(url: str, tmp_path: Path) -> None:
    async with Holdfast(url) as hf, _holdfast_worker(url, tmp_path) as said:
        found: list[WorkerRecord] = []

        async def has_registered() -> bool:
            found[:] = await hf.workers.alist()
            return bool(found)

        await _soon(has_registered, 30)
        assert await hf.workers.aquiet(found[0].id)
        async with asyncio.timeout(_AT_ONCE):
            while b"asked to be quiet" not in await said.readline():
                pass


def test_a_worker_that_is_not_there_is_told(url: str) -> None:
    with Holdfast(url) as hf:
        assert hf.workers.quiet(Ids().make()) is False
        assert hf.workers.quiet(str(Ids().make())) is False
        for nonsense in ("worker", 7, None):
            with pytest.raises(InvalidOption, match="a worker's id"):
                hf.workers.quiet(nonsense)  # type: ignore[arg-type]
