"""Tasks that are alone in a process, in an embedded worker, whose loop and whose app they share nothing with."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Job, JobCancelled, JobFailed, JobState, Retry

_PATIENCE = 60.0
"""A limit for hangs, not a measure of speed."""
_MODULE = "embedded_app"
_APP = """
import asyncio, os, pathlib, sys, time
from holdfast import Context, Holdfast, Retry, SoftTimeout
hf = Holdfast({url!r})
once = Retry(1)
folder = pathlib.Path({folder!r})
"""

Deploy = Callable[[str], Holdfast]


@pytest.fixture
def deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deploy]:
    """Makes an app with these tasks, which other processes can import as well."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    def write(tasks: str) -> Holdfast:
        head = _APP.format(url=f"sqlite:///{tmp_path}/jobs.db", folder=str(tmp_path))
        (tmp_path / f"{_MODULE}.py").write_text(head + tasks)
        app: Holdfast = importlib.import_module(_MODULE).hf
        return app

    yield write
    sys.modules.pop(_MODULE, None)


async def _enqueue(hf: Holdfast, task: str, **arguments: Any) -> Job[Any]:
    found: Any = hf.engine.tasks[task]
    job: Job[Any] = await found.aenqueue(**arguments)
    return job


_SLOW_START = """
if "isolated" in sys.argv[0]:
    time.sleep(2.5)

@hf.task(isolation="process", timeout="2s", retry=once)
def isolated() -> str:
    return "done"

@hf.task(delivery="at_most_once", timeout="2s")
async def only_once() -> str:
    return "done"
"""


async def test_the_start_of_its_process_does_not_count_against_the_time_of_a_task(deploy: Deploy) -> None:
    hf = deploy(_SLOW_START)
    async with hf, hf.worker():
        jobs = [await _enqueue(hf, "isolated"), await _enqueue(hf, "only_once")]
        for job in jobs:
            assert await job.aresult(_PATIENCE) == "done"
            assert (await job.arecord()).runs == 1


_TASKS = """
@hf.task(isolation="process", retry=once)
def double(number: int) -> list[int]:
    return [2 * number, os.getpid()]

@hf.task(isolation="process", retry=Retry(2, base="10ms"))
async def fails() -> None:
    raise ValueError("broken")

@hf.task(isolation="process", retry=once)
def crashes() -> None:
    os._exit(7)

@hf.task(bind=True, isolation="process", retry=once)
def floods(ctx: Context) -> None:
    for number in range(20_000):
        ctx.progress(number + 1)

@hf.task(isolation="process", soft_timeout="500ms", timeout="30s", retry=once)
def slow() -> None:
    try:
        time.sleep(60)
    finally:
        (folder / "cleaned up").touch()

@hf.task(isolation="process", soft_timeout="300ms", timeout="600ms", retry=once)
def deaf() -> None:
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue

@hf.task(isolation="process", timeout="1h")
async def endless() -> None:
    (folder / "has begun").touch()
    await asyncio.sleep(3600)

@hf.task(delivery="at_most_once", timeout="1h")
def only_once() -> None:
    with open(folder / "starts", "a") as starts:
        starts.write(f"{os.getpid()}\\n")
    time.sleep(3600)
"""


async def test_results_come_from_another_process_which_is_used_again(deploy: Deploy) -> None:
    hf = deploy(_TASKS)
    async with hf, hf.worker():
        results = [await (await _enqueue(hf, "double", number=n)).aresult(_PATIENCE) for n in range(2)]
    assert [number for number, _ in results] == [0, 2]
    (first, second) = (pid for _, pid in results)
    assert first == second != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)  # it has ended with the worker


async def test_failures_and_crashes_are_those_of_the_job_alone(deploy: Deploy) -> None:
    hf = deploy(_TASKS)
    async with hf, hf.worker():
        failed, crashed = await _enqueue(hf, "fails"), await _enqueue(hf, "crashes")
        other = await _enqueue(hf, "double", number=1)
        with pytest.raises(JobFailed, match="ValueError: broken"):
            await failed.aresult(_PATIENCE)
        with pytest.raises(JobFailed, match=r"ProcessCrashed.*ended with status 7, and nothing else ran in it"):
            await crashed.aresult(_PATIENCE)
        assert (await other.aresult(_PATIENCE))[0] == 2
    records = [await job.arecord() for job in (failed, crashed, other)]
    assert [(record.attempt, record.crashes) for record in records] == [(2, 0), (1, 1), (1, 0)]


async def test_the_last_of_a_flood_of_progress_is_stored(deploy: Deploy) -> None:
    hf = deploy(_TASKS)
    async with hf, hf.worker():
        job = await _enqueue(hf, "floods")
        await job.aresult(_PATIENCE)
        progress = await job.aprogress()
    assert progress is not None
    assert progress.done == 20_000


async def test_a_soft_timeout_lets_a_task_clean_up_and_a_hard_one_kills_it(deploy: Deploy, tmp_path: Path) -> None:
    hf = deploy(_TASKS)
    async with hf, hf.worker():
        slow, deaf = await _enqueue(hf, "slow"), await _enqueue(hf, "deaf")
        with pytest.raises(JobFailed, match="SoftTimeout"):
            await slow.aresult(_PATIENCE)
        with pytest.raises(JobFailed, match="HardTimeout"):
            await deaf.aresult(_PATIENCE)
        assert (tmp_path / "cleaned up").exists()
        assert [(await job.arecord()).runs for job in (slow, deaf)] == [1, 1]


async def test_a_task_that_ends_just_when_its_hard_timeout_comes_is_charged(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks at the worker's own tasks must not stop it: it would be given back, again and again."""
    monkeypatch.setattr("holdfast.worker.station._TURN_EVERY", 0.001)
    monkeypatch.setattr("holdfast.worker.isolation._KILL_AFTER", 2.0)
    hf = deploy("""
@hf.task(isolation="process", soft_timeout="300ms", timeout="600ms", retry=once)
async def hardly_deaf() -> None:
    try:
        await asyncio.sleep(60)
    except SoftTimeout:
        await asyncio.sleep(60)
""")
    async with hf, hf.worker():
        job = await _enqueue(hf, "hardly_deaf")
        with pytest.raises(JobFailed, match="HardTimeout"):
            await job.aresult(_PATIENCE)
        assert (await job.arecord()).runs == 1


async def test_a_job_that_is_cancelled_stops_in_its_process(deploy: Deploy, tmp_path: Path) -> None:
    hf = deploy(_TASKS)
    async with asyncio.timeout(_PATIENCE), hf, hf.worker():
        job = await _enqueue(hf, "endless")
        while not (tmp_path / "has begun").exists():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
        await job.acancel("not wanted")
        with pytest.raises(JobCancelled, match="not wanted"):
            await job.aresult()
        assert (await (await _enqueue(hf, "double", number=3)).aresult())[0] == 6


async def test_a_job_that_may_run_only_once_is_not_run_again_when_its_worker_stops(
    deploy: Deploy, tmp_path: Path
) -> None:
    hf = deploy(_TASKS)
    async with asyncio.timeout(_PATIENCE), hf:
        async with hf.worker(grace=0):
            job = await _enqueue(hf, "only_once")
            while not (tmp_path / "starts").exists():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)
        record = await job.arecord()
        assert (record.state, record.error_type) == (JobState.DEAD, "Interrupted")
        async with hf.worker():
            assert (await (await _enqueue(hf, "double", number=3)).aresult())[0] == 6
        assert len((tmp_path / "starts").read_text().split()) == 1


async def test_an_app_that_other_processes_can_not_import_is_told_what_to_do() -> None:
    hf = Holdfast("memory://")

    @hf.task
    async def plain() -> int:
        return 7

    @hf.task(isolation="process", retry=Retry(1))
    def alone() -> None: ...

    async with hf, hf.worker():
        job = await alone.aenqueue()
        with pytest.raises(JobFailed, match="assign it to a global variable of a module"):
            await job.aresult(_PATIENCE)
        assert await (await plain.aenqueue()).aresult(_PATIENCE) == 7
