"""Connections of the user's own beside busy writers: they are let in, and where there are none nobody waits for one."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast import native
from holdfast.ids import Ids
from holdfast.job import NewJob
from holdfast.stores.sqlite import SqliteStore, guests
from holdfast.stores.sqlite.occupancy import LONG_GAP, SHORT_GAP, SIZE, Occupancy
from holdfast.stores.sqlite.turns import Turn

PROJECT = Path(__file__).parents[2]
ENDLESS = 1_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@contextmanager
def program(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.integration.guest_programs", *map(str, arguments)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def visit(path: Path, transactions: int) -> list[float]:
    with program("visit", path, transactions) as guest:
        seconds: list[float] = json.loads(hear(guest))
    return seconds


# ── among real processes ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.serial
def test_beside_busy_writers_a_guest_makes_steady_progress(path: Path) -> None:
    visit(path, 1)  # so that the writers know
    with program("write", path, "one", ENDLESS) as one, program("write", path, "two", ENDLESS) as two:
        assert hear(one) == hear(two) == "writing"
        seconds = visit(path, 60)
        assert one.poll() is two.poll() is None
    # Measured on two cores, in seconds: 0.1 to 1 and 1 to 3. Without gaps: 1 to 6 and 6 to 29.
    assert max(seconds) < 1.5
    assert sum(seconds) < 5


def test_without_guests_busy_writers_never_leave_a_gap(path: Path) -> None:
    with program("write", path, "one", 100) as one, program("write", path, "two", 100) as two:
        for writer in (one, two):
            assert [hear(writer), hear(writer)] == ["writing", "done"]
    assert os.path.getsize(f"{path}-turn") == 0  # nobody has even begun to count
    assert not os.path.exists(f"{path}-guests")


def test_beside_a_guest_writers_count_together(path: Path) -> None:
    visit(path, 1)
    with program("write", path, "one", 1) as one:
        assert [hear(one), hear(one)] == ["writing", "done"]
    assert os.path.getsize(f"{path}-turn") == SIZE


# ── who leaves a gap, and when ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    naps: list[float] = []
    monkeypatch.setattr(native, "sleep", naps.append)
    return naps


def keep_busy(path: Path, *, long: bool = False) -> None:
    """Others have held the lock for long, until this moment."""
    now = time.monotonic()
    Path(f"{path}-turn").write_bytes(Occupancy(5.0, now, now - 10 if long else now).to_bytes())


def take_turn(path: Path) -> None:
    turn = Turn(path)
    with turn:
        turn.begun()
    turn.close()


def test_whoever_comes_after_much_writing_leaves_a_gap_for_guests(path: Path, slept: list[float]) -> None:
    guests.Guests(path).sign()
    keep_busy(path)
    take_turn(path)
    assert slept == [SHORT_GAP]
    keep_busy(path, long=True)
    take_turn(path)
    assert slept == [SHORT_GAP, LONG_GAP]


def test_nobody_leaves_a_gap_for_nobody(path: Path, slept: list[float]) -> None:
    keep_busy(path)
    take_turn(path)
    guests.Guests(path).sign()
    for seconds in (-guests.REMEMBERED - 1, guests.REMEMBERED + 1):  # long gone, or signed by a clock that went wrong
        os.utime(f"{path}-guests", (time.time() + seconds, time.time() + seconds))
        take_turn(path)
    assert slept == []


def test_a_turn_in_which_nothing_was_begun_leaves_no_trace(path: Path, slept: list[float]) -> None:
    guests.Guests(path).sign()
    keep_busy(path)
    before = Path(f"{path}-turn").read_bytes()
    turn = Turn(path)
    with turn:
        pass
    turn.close()
    assert Path(f"{path}-turn").read_bytes() == before


def test_rubbish_in_the_turn_file_and_a_missing_book_hurt_nobody(path: Path, slept: list[float]) -> None:
    guests.Guests(path).sign()
    Path(f"{path}-turn").write_bytes(b"\xff" * 100)
    take_turn(path)
    os.unlink(f"{path}-guests")
    take_turn(path)
    assert slept == []


# ── the guest book ───────────────────────────────────────────────────────────────────────────────────────────────────


def enqueue_as_guest(store: SqliteStore) -> None:
    with closing(sqlite3.connect(store.path)) as db, db:
        store.enqueue_in(db, [NewJob(Ids().make(), "task", "default", "{}")])


def test_the_book_is_signed_once_a_second_at_most(path: Path) -> None:
    store = SqliteStore(path)
    began = time.monotonic()
    enqueue_as_guest(store)
    os.utime(f"{path}-guests", (0, 0))
    enqueue_as_guest(store)
    assert os.stat(f"{path}-guests").st_mtime == 0 or time.monotonic() - began > guests.SIGNED_EVERY
    another = SqliteStore(path)
    enqueue_as_guest(another)
    assert os.stat(f"{path}-guests").st_mtime > 0


def test_a_book_that_can_not_be_signed_keeps_nobody_from_enqueuing(path: Path) -> None:
    os.symlink("/nonexistent/folder/file", f"{path}-guests")
    enqueue_as_guest(SqliteStore(path))


async def test_a_task_that_enqueues_in_its_own_transaction_is_no_guest(path: Path) -> None:
    store = SqliteStore(path)
    work = await store.open_work(uuid4(), timedelta(seconds=10))
    store.enqueue_in(work.connection, [NewJob(Ids().make(), "task", "default", "{}")])
    await work.roll_back()
    await store.close()
    assert "jobs.db-guests" not in os.listdir(path.parent)
