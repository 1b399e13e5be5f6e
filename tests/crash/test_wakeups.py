"""Wake-ups between processes."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.store import NewWorker
from tests.crash.audit import QUEUE, look, new_job, opened
from tests.crash.line import PATIENCE
from tests.crash.nursery import Nursery


@pytest.fixture(params=["short", "long"])
def any_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Sockets take paths of 108 characters at most; databases may lie deeper."""
    folder = tmp_path if request.param == "short" else tmp_path / ("deep" * 20) / ("down" * 20)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "jobs.db"


def _bells(path: Path) -> list[str]:
    folder = Path(f"{path}-bells")
    return sorted(bell.name for bell in folder.iterdir()) if folder.exists() else []


def _until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline, "It never became true."
        time.sleep(0.002)


async def test_a_result_arrives_by_the_bell_when_another_process_settles(nursery: Nursery, any_path: Path) -> None:
    job = new_job()
    async with opened(any_path) as store:
        await store.enqueue([job])
    with (
        nursery.start("settle_when_told", path=any_path, id=job.id, result="42") as settler,
        nursery.start("wait_for_result", path=any_path, id=job.id) as waiter,
    ):
        settler.hear("ready")
        waiter.hear("ready")
        _until(lambda: _bells(any_path))
        settler.say("go")
        assert waiter.hear("done") == {"result": 42}
        settler.hear("settled")


async def test_a_producer_at_a_full_queue_is_woken_when_another_process_claims(
    nursery: Nursery, any_path: Path
) -> None:
    with nursery.start("wait_for_room", path=any_path) as producer:
        producer.hear("ready")
        _until(lambda: _bells(any_path))
        async with opened(any_path) as store:
            worker = uuid4()
            await store.register(NewWorker(worker, "claim"))
            assert len(await store.claim(worker, uuid4(), {QUEUE: 1})) == 1
            producer.hear("done")


async def test_a_job_of_a_users_own_transaction_is_noticed_in_another_process(nursery: Nursery, any_path: Path) -> None:
    with nursery.start("wait_for_work", path=any_path, queue=QUEUE) as waiter:
        waiter.hear("ready")
        await _enqueue_in_own_transaction(any_path)
        waiter.hear("done")


async def test_a_job_of_a_users_own_transaction_is_noticed_while_other_bells_ring_all_the_time(
    nursery: Nursery, path: Path
) -> None:
    with nursery.start("wait_for_work", path=path, queue=QUEUE) as waiter, ExitStack() as stack:
        waiter.hear("ready")
        ringer = stack.enter_context(nursery.start("keep_ringing", path=path, queue="other"))
        ringer.hear("ready")
        _until(lambda: look(path, "select count(*) from holdfast_jobs")[0][0] > 3)
        await _enqueue_in_own_transaction(path)
        waiter.hear("done")


async def _enqueue_in_own_transaction(path: Path) -> None:
    async with opened(path) as store:
        with closing(sqlite3.connect(path)) as raw, raw:
            store.enqueue_in(raw, [new_job()])


async def test_the_bells_of_killed_processes_are_taken_down(nursery: Nursery, any_path: Path) -> None:
    for _ in range(3):
        with nursery.start("wait_for_ever", path=any_path) as waiter:
            waiter.hear("ready")
            waiter.kill()
    assert len(_bells(any_path)) == 3
    async with opened(any_path) as store:
        await store.enqueue([new_job()])
    assert _bells(any_path) == []


async def test_a_process_that_does_not_listen_to_its_bell_holds_nobody_up(nursery: Nursery, path: Path) -> None:
    """Its bell is full after a few rings."""
    with nursery.start("wait_for_ever", path=path) as waiter:
        waiter.hear("ready")
        os.kill(waiter.pid, signal.SIGSTOP)
        async with opened(path) as store:
            for _ in range(50):
                await store.enqueue([new_job()])
        assert len(_bells(path)) == 1
