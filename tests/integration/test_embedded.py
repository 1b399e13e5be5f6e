"""The embedded worker on its own: it is taken for dead, its database is away, a thread does not let go."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import pytest

from holdfast import Holdfast, JobState, Retry, State, StoreUnavailable
from holdfast.store import NewWorker, WorkerRecord

_PATIENCE = 30.0
"""A limit for hangs, not a measure of speed."""


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not await holds():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def _alive(hf: Holdfast) -> list[WorkerRecord]:
    return [worker for worker in await hf.workers.alist() if worker.dead_at is None]


async def _take_for_dead(hf: Holdfast) -> UUID:
    """What others do to a worker whose machine has slept for too long."""
    [worker] = await _alive(hf)
    await hf.engine.store.bury_worker(worker.id)
    return worker.id


async def test_a_worker_that_was_taken_for_dead_drops_its_work_and_registers_anew_each_time(hf: Holdfast) -> None:
    starts, known, dropped = asyncio.Queue[int](), set[int](), list[int]()

    @hf.task
    async def work(n: int) -> int:
        starts.put_nowait(n)
        if n not in known:
            known.add(n)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                dropped.append(n)
                raise
        return n

    @hf.task
    async def claimed_in_vain() -> None:
        """Its claim is refused, which tells the worker at once what its next beat would tell it."""

    former: set[UUID] = set()
    async with asyncio.timeout(_PATIENCE), hf, hf.worker():
        for n in range(2):
            job = await work.aenqueue(n)
            assert await starts.get() == n
            former.add(await _take_for_dead(hf))
            await claimed_in_vain.aenqueue()
            assert await job.aresult() == n
            assert await starts.get() == n
            assert dropped == list(range(n + 1))
            [worker] = await _alive(hf)
            assert worker.id not in former


async def test_a_worker_begins_anew_also_if_the_database_is_away_at_first(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @hf.task
    async def work() -> int:
        return 7

    tries = 0
    async with hf, hf.worker():
        register = hf.engine.store.register

        async def refuse_at_first(worker: NewWorker) -> None:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise StoreUnavailable("away")
            await register(worker)

        monkeypatch.setattr(hf.engine.store, "register", refuse_at_first)
        await _take_for_dead(hf)
        job = await work.aenqueue()
        assert await job.aresult(timeout=_PATIENCE) == 7
    assert tries == 3
    assert "can't begin anew, trying again: away" in caplog.text


async def test_an_app_may_end_while_its_worker_begins_anew(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []

    @hf.on_shutdown
    async def stop(state: State) -> None:
        stopped.append("stopped")

    @hf.task
    async def work() -> None: ...

    tries = 0

    async def refuse(worker: NewWorker) -> None:
        nonlocal tries
        tries += 1
        raise StoreUnavailable("away")

    async def has_tried() -> bool:
        return tries > 0

    async with asyncio.timeout(_PATIENCE), hf:
        async with hf.worker():
            monkeypatch.setattr(hf.engine.store, "register", refuse)
            await _take_for_dead(hf)
            await work.aenqueue()
            await _until(has_tried)
        assert stopped == ["stopped"]


async def test_an_app_that_can_not_register_its_worker_shuts_down_what_it_started(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    @hf.on_startup
    async def start(state: State) -> None:
        calls.append("started")

    @hf.on_shutdown
    async def stop(state: State) -> None:
        calls.append("stopped")

    async def refuse(worker: NewWorker) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(hf.engine.store, "register", refuse)
    with pytest.raises(StoreUnavailable, match="away"):
        async with hf.worker():
            raise AssertionError("it is not at work")
    assert calls == ["started", "stopped"]


async def test_a_hard_timeout_cancels_and_a_thread_that_does_not_stop_is_written_off_and_reported(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = threading.Event()

    @hf.task(timeout="0.6s", soft_timeout="0.3s", retry=Retry(1))
    async def swallow() -> None:
        while not may_end.is_set():
            try:
                await asyncio.sleep(_PATIENCE)
            except asyncio.CancelledError:
                continue

    @hf.task(timeout="0.6s", soft_timeout="0.3s", retry=Retry(1))
    def hold() -> None:
        while not may_end.is_set():
            try:
                may_end.wait(_PATIENCE)  # in one piece: no exception appears before it returns
            except BaseException:
                continue

    @hf.task
    async def quick() -> int:
        return 7

    caplog.set_level(logging.WARNING)
    async with hf, hf.worker(concurrency=2):
        try:
            jobs = [await swallow.aenqueue(), await hold.aenqueue()]

            async def are_dead() -> bool:
                return {(await hf.jobs.aget(job.id)).state for job in jobs} == {JobState.DEAD}

            await _until(are_dead)
            for job in jobs:
                assert (await hf.jobs.aget(job.id)).error_type == "HardTimeout"
            assert await (await quick.aenqueue()).aresult(timeout=_PATIENCE) == 7, "their slots are free again"
        finally:
            may_end.set()
    assert str(jobs[1].id) in caplog.text


async def test_a_suspect_runs_also_where_no_other_process_could_find_the_app(hf: Holdfast) -> None:
    """An app that a function makes can't be imported elsewhere, and losing its process says little against a job."""

    @hf.task
    async def work() -> int:
        return 7

    async with hf:
        job = await work.aenqueue()
        for _ in range(3):
            worker = uuid4()
            await hf.engine.store.register(NewWorker(worker, "lost"))
            await hf.engine.store.claim(worker, uuid4(), {"default": 1})
            beats = {each.worker: each.beat for each in await hf.engine.store.sightings()}
            assert await hf.engine.store.rescue(beats) == [job.id]
        async with hf.worker():
            assert await job.aresult(timeout=_PATIENCE) == 7
