"""The embedded worker on its own: it is taken for dead, its database is away, a thread does not let go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import pytest

from holdfast import ConfigurationError, Holdfast, JobFailed, JobState, Retry, State, StoreUnavailable
from holdfast.lifecycle import Transition
from holdfast.outcome import Outcome
from holdfast.store import NewWorker, WorkerRecord
from holdfast.worker.runs import Run
from holdfast.worker.station import Station

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


async def test_a_worker_that_meets_an_error_of_any_kind_tells_it_and_begins_anew(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @hf.task
    async def work() -> int:
        return 7

    async with hf, hf.worker():
        register = hf.engine.store.register

        async def fail_at_first(worker: NewWorker) -> None:
            monkeypatch.setattr(hf.engine.store, "register", register)
            raise OSError("out of files")

        monkeypatch.setattr(hf.engine.store, "register", fail_at_first)
        await _take_for_dead(hf)
        job = await work.aenqueue()
        assert await job.aresult(timeout=_PATIENCE) == 7
    assert "can't begin anew" in caplog.text
    assert "out of files" in caplog.text


async def test_a_worker_leaves_no_thread_behind_when_it_begins_anew_or_ends(hf: Holdfast) -> None:
    may_end = threading.Event()

    @hf.task
    def work() -> int:
        return 7

    @hf.task(timeout="100ms", retry=Retry(1))
    def hold() -> None:
        while not may_end.is_set():
            with contextlib.suppress(BaseException):
                may_end.wait(_PATIENCE)  # in one piece: no exception appears before it returns

    def threads() -> set[threading.Thread]:
        names = ("holdfast-task", "holdfast-prompter", "holdfast-keeper")
        return {thread for thread in threading.enumerate() if thread.name in names}

    before = threads()

    async def are_gone() -> bool:
        return threads() <= before

    async with asyncio.timeout(_PATIENCE), hf:
        for _ in range(5):
            async with hf.worker(concurrency=4):
                jobs = [await work.aenqueue() for _ in range(4)]
                assert [await job.aresult() for job in jobs] == [7] * 4
                assert threads() > before
        await _until(are_gone)
        async with hf.worker(concurrency=4):
            for _ in range(3):
                jobs = [await work.aenqueue() for _ in range(4)]
                assert [await job.aresult() for job in jobs] == [7] * 4
                former = threads()
                await _take_for_dead(hf)
                await work.aenqueue()  # whose claim is refused

                async def are_others(former: set[threading.Thread] = former) -> bool:
                    return not threads() & former - before

                await _until(are_others)
            held = await hold.aenqueue()
            with pytest.raises(JobFailed, match="HardTimeout"):
                await held.aresult()
        assert threads() > before, "nobody has waited for the one that is stuck"
        may_end.set()
        await _until(are_gone)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_worker_that_can_not_tell_what_came_of_a_job_begins_anew_and_runs_it_again(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Otherwise the job would be in its hands for as long as it lives."""

    @hf.task(name="async")
    async def on_the_loop() -> int:
        return 7

    @hf.task(name="thread")
    def in_a_thread() -> int:
        return 7

    decide, tries = Station._decide, 0

    def fail_at_first(station: Station, run: Run, outcome: Outcome) -> Transition:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise MemoryError
        return decide(station, run, outcome)

    monkeypatch.setattr(Station, "_decide", fail_at_first)
    async with asyncio.timeout(_PATIENCE), hf, hf.worker():
        job = await (on_the_loop if kind == "async" else in_a_thread).aenqueue()
        assert await job.aresult() == 7
    assert tries == 2


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


async def test_a_worker_that_runs_is_not_started_once_more_and_can_be_started_again(hf: Holdfast) -> None:
    @hf.task
    async def double(number: int) -> int:
        return 2 * number

    worker = hf.worker()
    for number in range(2):
        async with worker:
            with pytest.raises(ConfigurationError, match="running already"):
                async with worker:
                    raise AssertionError("it is not entered")
            assert await (await double.aenqueue(number)).aresult(timeout=_PATIENCE) == 2 * number
            assert len(await hf.workers.alist()) == 1
        assert await hf.workers.alist() == []


async def test_a_worker_that_is_being_left_is_not_started_once_more(hf: Holdfast) -> None:
    started, may_end = asyncio.Event(), asyncio.Event()

    @hf.task
    async def linger() -> int:
        started.set()
        await may_end.wait()
        return 7

    worker = hf.worker()
    await worker.__aenter__()
    job = await linger.aenqueue()
    await started.wait()
    leaving = asyncio.create_task(worker.__aexit__(None, None, None))
    while not leaving.done():
        await asyncio.sleep(0)
        with pytest.raises(ConfigurationError, match="running already"):
            await worker.__aenter__()
        may_end.set()
        await asyncio.wait([leaving], timeout=0.01)
    await leaving
    async with worker:
        assert await job.aresult(timeout=_PATIENCE) == 7


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
async def test_what_went_well_is_told_to_those_who_want_all(
    hf: Holdfast, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    @hf.task
    async def well() -> int:
        return 7

    @hf.task(retry=Retry(1))
    def badly() -> None:
        raise ValueError

    caplog.set_level(level, "holdfast.worker")
    async with asyncio.timeout(_PATIENCE), hf:
        jobs = [await well.aenqueue(), await badly.aenqueue()]
        async with hf.worker():
            assert await jobs[0].aresult() == 7
            with pytest.raises(JobFailed):
                await jobs[1].aresult()
    told = [record.getMessage() for record in caplog.records if "is completed after" in record.getMessage()]
    assert [line.partition(" is ")[0] for line in told] == ([f"well {jobs[0].id}"] if level == logging.DEBUG else [])


async def test_an_app_that_is_cancelled_while_its_worker_starts_leaves_nobody_behind(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that beats and claims nothing would make everybody believe that the queues are served."""
    is_registered, may_go_on = threading.Event(), threading.Event()
    register = hf.engine.store.register

    async def register_and_wait(worker: NewWorker) -> None:
        await register(worker)
        is_registered.set()
        await asyncio.to_thread(may_go_on.wait, _PATIENCE)

    monkeypatch.setattr(hf.engine.store, "register", register_and_wait)
    async with hf:
        starting = asyncio.create_task(hf.worker().__aenter__())
        await asyncio.to_thread(is_registered.wait, _PATIENCE)
        assert await _alive(hf) != []
        starting.cancel()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        for keeper in [thread for thread in threading.enumerate() if thread.name == "holdfast-keeper"]:
            keeper.join(_PATIENCE / 10)  # it has said that it ends
            assert not keeper.is_alive()
        assert await _alive(hf) == []


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


async def test_a_job_for_which_no_thread_can_be_started_is_put_off_uncharged_and_costs_no_other(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, list[str]()

    def refuse_at_first(thread: threading.Thread) -> None:
        if thread.name == "holdfast-task" and len(refused) < 3:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    has_begun, may_end = asyncio.Event(), asyncio.Event()

    @hf.task
    async def neighbour() -> int:
        has_begun.set()
        await may_end.wait()
        return 1

    @hf.task(retry=Retry(1))
    def in_a_thread() -> int:
        return 2

    monkeypatch.setattr("holdfast.worker.crew._NO_THREAD_FOR", 0.05)
    async with hf, hf.worker():
        [worker] = await _alive(hf)
        running = await neighbour.aenqueue()
        await has_begun.wait()
        monkeypatch.setattr(threading.Thread, "start", refuse_at_first)
        job = await in_a_thread.aenqueue()
        assert await job.aresult(_PATIENCE) == 2
        may_end.set()
        assert await running.aresult(_PATIENCE) == 1
        assert [each.id for each in await _alive(hf)] == [worker.id]
    record, other = await job.arecord(), await running.arecord()
    assert (record.attempt, record.runs, record.waits, record.crashes) == (1, 4, 3, 0)
    assert (other.runs, other.crashes) == (1, 0)
