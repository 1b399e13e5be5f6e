"""What the SQLite store does when its callers give up, its neighbours are stuck, or the system has nothing left."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast import Holdfast, InvalidOption, JobState, Queue, QueueFull
from holdfast import places as places_module
from holdfast import waiting as waiting_module
from holdfast.ids import Ids
from holdfast.job import NewJob
from holdfast.lifecycle import Complete
from holdfast.store import Filter, NewWorker, Settlement, Store
from holdfast.stores.sqlite import SqliteStore, doorbell, turns


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


def new_job() -> NewJob:
    return NewJob(Ids().make(), "task", "default", "{}")


async def complete_all(store: Store) -> None:
    worker = uuid4()
    await store.register(NewWorker(worker, "tester"))
    jobs = await store.claim(worker, uuid4(), {"default": 1000})
    await store.settle([Settlement(job.id, job.token, Complete("null")) for job in jobs])


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else has the turn, and does nothing with it."""
    file = os.open(f"{path}-turn", os.O_RDONLY | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(file)


async def test_a_process_that_is_stuck_in_its_turn_does_not_stop_the_others(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.2)
    with locked(path):
        async with asyncio.timeout(10):
            await store.enqueue([new_job()])
    assert await store.count(Filter()) == 1


async def test_callers_who_give_up_and_try_again_do_not_pile_up(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places_module, "MOST", 50)
    store = SqliteStore(path)
    await store.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        for _ in range(5):
            callers = [asyncio.create_task(store.enqueue([new_job()])) for _ in range(100)]
            await asyncio.sleep(0)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
        other.execute("rollback")
    await store.enqueue([new_job()])
    assert await store.count(Filter()) <= 51
    await store.close()


async def test_what_nobody_waits_for_any_more_is_not_read(store: SqliteStore) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()
    asked: list[int] = []

    def hold(_: object) -> None:
        is_asked.set()
        may_answer.wait(10)

    holding = asyncio.create_task(store._reader.read(hold))
    await asyncio.to_thread(is_asked.wait, 10)
    unwanted = asyncio.create_task(store._reader.read(lambda _: asked.append(1)))
    await asyncio.sleep(0)
    unwanted.cancel()
    await asyncio.gather(unwanted, return_exceptions=True)
    may_answer.set()
    await holding
    await store._reader.read(lambda _: asked.append(2))
    assert asked == [2]


def test_a_refusal_leaves_no_transaction_that_the_caller_did_not_begin(path: Path) -> None:
    hf = Holdfast(f"sqlite:///{path}", queues=[Queue("default", bound=1)])

    @hf.task
    def task(number: int) -> None: ...

    task.enqueue(1)
    with closing(sqlite3.connect(path)) as tx:
        with pytest.raises(QueueFull):
            task.options(tx=tx).enqueue(2)
        assert not tx.in_transaction
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            other.execute("begin immediate")  # nobody holds the lock
            other.execute("rollback")
    hf.close()


async def test_every_waiter_is_looked_after_however_many_there_are(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "LARGEST_BATCH", 10)
    hf = Holdfast(f"sqlite:///{path}")

    @hf.task
    async def task(number: int) -> None: ...

    jobs = await hf.aenqueue_many(task.call(number) for number in range(35))
    results = [asyncio.create_task(job.aresult()) for job in jobs]
    other = SqliteStore(path)
    await complete_all(other)
    async with asyncio.timeout(20):
        assert await asyncio.gather(*results) == [None] * 35
    await other.close()
    await hf.aclose()


async def test_a_result_comes_also_when_no_bell_can_be_put_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file_left(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(doorbell, "Socket", no_file_left)
    hf = Holdfast(f"sqlite:///{path}")

    @hf.task
    async def task(number: int) -> None: ...

    job = await task.aenqueue(1)
    result = asyncio.create_task(job.aresult())
    other = SqliteStore(path)
    await complete_all(other)
    async with asyncio.timeout(20):
        await result
    assert await job.astate() is JobState.COMPLETED
    await other.close()
    await hf.aclose()


async def test_waiting_for_many_results_one_after_the_other_leaves_no_threads_behind(path: Path) -> None:
    hf = Holdfast(f"sqlite:///{path}")

    @hf.task
    async def task(number: int) -> None: ...

    other = SqliteStore(path)
    before = 0
    for number in range(40):
        job = await task.aenqueue(number)
        result = asyncio.create_task(job.aresult())
        await asyncio.sleep(0)
        await complete_all(other)
        await result
        threads = len(os.listdir("/proc/self/task"))
        before = before or threads
        assert threads <= before + 2
    await other.close()
    await hf.aclose()


async def test_a_lock_file_that_can_not_be_opened_costs_no_file_handles(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    os.symlink("/nonexistent/folder/file", f"{path}-turn")
    store = SqliteStore(path)
    await store.enqueue([new_job()])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        await store.enqueue([new_job()])
    assert len(os.listdir("/proc/self/fd")) <= before  # what other tests have left behind may be swept up meanwhile
    await store.close()


def test_a_call_belongs_to_its_own_app(path: Path, tmp_path: Path) -> None:
    hf, other = Holdfast(f"sqlite:///{path}"), Holdfast(f"sqlite:///{tmp_path / 'other.db'}")

    @other.task
    def task(number: int) -> None: ...

    with pytest.raises(InvalidOption, match="another app"):
        hf.enqueue_many([task.call(1)])
    with pytest.raises(InvalidOption, match="wait="):
        task.options(wait="1s").call(1)
    assert hf.jobs.count() == 0
    hf.close()


def test_an_app_closes_at_the_end_of_its_block_and_a_path_may_have_slashes_to_spare(path: Path) -> None:
    with Holdfast(f"sqlite:////{path}") as hf:

        @hf.task
        def task(number: int) -> None: ...

        job = task.enqueue(1)
        assert job.state() is JobState.PENDING
    with Holdfast(f"sqlite:///{path}") as again:
        assert again.job(job.id).state() is JobState.PENDING


async def test_a_store_that_is_closed_while_its_turn_is_waited_for_leaves_no_lock_and_no_file_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.2)
    store = SqliteStore(path)
    await store.open()
    with locked(path):
        await store.enqueue([new_job()])
        await store.enqueue([new_job()])  # while the first wait still stands in line
        await store.close()
    async with asyncio.timeout(10):
        while {f"{path}-turn", f"{path}-next"} & set(open_files()):  # noqa: ASYNC110 - a thread closes them and tells nobody
            await asyncio.sleep(0.01)
    again = SqliteStore(path)
    assert await again.count(Filter()) == 2
    await again.close()


def open_files() -> list[str]:
    names: list[str] = []
    for file in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{file}"))
        except OSError:
            continue  # the folder's own, which is closed by now
    return names
