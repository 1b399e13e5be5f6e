"""A full disk: told, nothing half-written, and over as soon as there is room."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.job import NewJob
from holdfast.stores.sqlite import SqliteStore
from tests.crash.audit import QUEUE, TASK, audit, ids, new_job, opened
from tests.crash.journal import Entries, Journal
from tests.crash.rounds import cannot

_RESERVE = 512 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        cannot("only root may mount a small disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        cannot(f"a small disk can't be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _make_room(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)


def _reserve(disk: Path) -> Path:
    """Something that can be deleted later."""
    reserve = disk / "reserve"
    reserve.write_bytes(b"x" * _RESERVE)
    return reserve


def _fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 4096) == 4096:
                pass
        except OSError:
            return


def _large_job() -> NewJob:
    id = ids.make()
    return NewJob(id, TASK, QUEUE, f'{{"key":"{id.hex}","filler":"{"x" * 2000}"}}')


async def _enqueue(store: SqliteStore, journal: Journal, jobs: list[NewJob]) -> None:
    keys = [job.id.hex for job in jobs]
    journal.intend(keys)
    await store.enqueue(jobs)
    journal.ack(keys)


async def _enqueue_for_ever(store: SqliteStore, journal: Journal, batch: int) -> None:
    while True:
        await _enqueue(store, journal, [_large_job() for _ in range(batch)])


@pytest.mark.parametrize("batch", [1, 50])
async def test_a_full_disk_is_told_and_left_behind_as_soon_as_there_is_room(
    disk: Path, journal: Path, batch: int
) -> None:
    reserve, path, log = _reserve(disk), disk / "jobs.db", Journal(journal)
    async with opened(path) as store:
        with pytest.raises(StoreUnavailable, match=r"disk is full.*make room") as full:
            await _enqueue_for_ever(store, log, batch)
        assert str(path) in str(full.value)
        acked = len(Entries(journal).acked)
        assert acked
        with pytest.raises(StoreUnavailable, match="disk is full"):
            await _enqueue(store, log, [_large_job() for _ in range(50)])
        reserve.unlink()
        await _enqueue(store, log, [_large_job() for _ in range(batch)])
        assert len(Entries(journal).acked) == acked + batch
        _make_room(disk)
    await audit(path, journal)


async def test_a_hundred_callers_on_a_full_disk_are_each_told_the_truth(disk: Path, journal: Path) -> None:
    path, log = disk / "jobs.db", Journal(journal)
    async with opened(path) as store:
        await store.enqueue([])
        _fill(disk)
        tried = [[_large_job()] for _ in range(100)]
        answers = await asyncio.gather(*(_enqueue(store, log, jobs) for jobs in tried), return_exceptions=True)
        failed = [answer for answer in answers if answer is not None]
        assert failed
        assert all(isinstance(answer, StoreUnavailable) and "disk is full" in str(answer) for answer in failed)
        assert len(Entries(journal).acked) == 100 - len(failed)
        _make_room(disk)
        again = [jobs for jobs, answer in zip(tried, answers, strict=True) if answer is not None]
        await asyncio.gather(*(_enqueue(store, log, jobs) for jobs in again))
        assert len(Entries(journal).acked) == 100
    await audit(path, journal)


async def test_a_new_file_on_a_full_disk_is_told_and_can_be_made_later(disk: Path, journal: Path) -> None:
    reserve, path = _reserve(disk), disk / "jobs.db"
    _fill(disk)
    store = SqliteStore(path)
    with pytest.raises(StoreUnavailable, match=r"disk is full.*make room"):
        await store.enqueue([new_job()])
    reserve.unlink()
    await _enqueue(store, Journal(journal), [new_job()])
    await store.close()
    await audit(path, journal)
