"""Another program holds the write lock of the file."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.stores.sqlite import SqliteStore, connection
from tests.crash.audit import check_counters, check_usable, keys_in, new_job, opened
from tests.crash.nursery import Nursery

pytestmark = pytest.mark.serial

_LIMIT = 1.0


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    """A plain connection of some other program's."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        yield other


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BUSY_SECONDS", _LIMIT)


async def test_a_lock_held_for_two_seconds_is_waited_for(path: Path, other: sqlite3.Connection) -> None:
    async with opened(path) as store:
        other.execute("begin immediate")
        asyncio.get_running_loop().call_later(2.0, other.execute, "commit")
        jobs = [new_job() for _ in range(100)]
        answers = await asyncio.gather(*(store.enqueue([job]) for job in jobs))
        assert not other.in_transaction
        assert [answer.id for (answer,) in answers] == [job.id for job in jobs]
        assert len(keys_in(path)) == 100


@pytest.mark.usefixtures("_impatient")
async def test_a_lock_held_for_too_long_fails_all_who_wait_at_about_the_same_time(
    path: Path, other: sqlite3.Connection
) -> None:
    async with opened(path) as store:
        other.execute("begin immediate")
        started = time.monotonic()
        answers = await asyncio.gather(*(store.enqueue([new_job()]) for _ in range(100)), return_exceptions=True)
        took = time.monotonic() - started
        assert {type(answer) for answer in answers} == {StoreUnavailable}
        assert all("write lock" in str(answer) and "left open" in str(answer) for answer in answers)
        # The first caller has waited alone; the others came while it did, and wait together.
        assert _LIMIT * 0.9 <= took < _LIMIT * 2 + 1
        other.execute("rollback")
        assert keys_in(path) == []
        await asyncio.gather(*(store.enqueue([new_job()]) for _ in range(100)))
        assert len(keys_in(path)) == 100
        await check_counters(store)


@pytest.mark.usefixtures("_impatient")
async def test_several_processes_that_wait_for_a_lock_do_not_wait_one_after_the_other(
    path: Path, other: sqlite3.Connection
) -> None:
    """Each store has a writer and a turn of its own, as each process has."""
    stores = [SqliteStore(path) for _ in range(6)]
    for store in stores:
        await store.open()
    other.execute("begin immediate")
    started = time.monotonic()
    answers = await asyncio.gather(*(store.enqueue([new_job()]) for store in stores), return_exceptions=True)
    took = time.monotonic() - started
    other.execute("rollback")
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    for store in stores:
        await check_usable(store)
        await store.close()
    assert took < _LIMIT * 2 + 1


@pytest.mark.usefixtures("_impatient")
async def test_a_file_whose_other_user_reads_for_long_can_still_be_written(
    path: Path, other: sqlite3.Connection
) -> None:
    async with opened(path) as store:
        await store.enqueue([new_job()])
        other.execute("begin")
        assert other.execute("select count(*) from holdfast_jobs").fetchall() == [(1,)]
        await store.enqueue([new_job()])
        assert other.execute("select count(*) from holdfast_jobs").fetchall() == [(1,)]
        other.execute("commit")
        assert other.execute("select count(*) from holdfast_jobs").fetchall() == [(2,)]


async def test_a_process_that_is_killed_in_its_turn_does_not_stop_the_others(nursery: Nursery, path: Path) -> None:
    async with opened(path) as store:
        await store.enqueue([new_job()])
        with nursery.start("hold_turn", path=path) as holder:
            holder.hear("held")
            waiting = asyncio.create_task(store.enqueue([new_job()]))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            holder.kill()
            await waiting
        await check_counters(store)
        await check_usable(store)
