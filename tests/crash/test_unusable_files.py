"""Files that can't be used: each is told by a typed error that says what to do, and nothing is harmed."""

# ruff: noqa: ASYNC240  # a test blocks nobody but itself

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import StoreUnavailable, WrongDatabase
from holdfast.stores.sqlite import SqliteStore
from tests.crash.audit import check_usable, new_job, opened
from tests.crash.nursery import Nursery
from tests.crash.rounds import cannot


def _need_root() -> None:
    if os.geteuid() != 0:
        cannot("only root can become a user without rights")


async def _failure(path: Path) -> str:
    store = SqliteStore(path)
    with pytest.raises(StoreUnavailable) as failed:
        await store.open()
    with pytest.raises(StoreUnavailable):
        await store.enqueue([new_job()])
    await store.close()
    assert str(path) in str(failed.value)
    return str(failed.value)


async def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    message = await _failure(tmp_path / "missing" / "jobs.db")
    assert "does not exist" in message
    assert "Create it" in message
    assert not (tmp_path / "missing").exists()


async def test_a_folder_in_place_of_the_file_is_told(tmp_path: Path) -> None:
    assert "it is a folder. Name a file in it" in await _failure(tmp_path)


@pytest.mark.parametrize("length", [10, 600, 100_000])
async def test_a_text_file_is_told_and_left_as_it_is(path: Path, length: int) -> None:
    text = b"0123456789" * (length // 10)
    path.write_bytes(text)
    assert "not a SQLite database. Point the URL to another file" in await _failure(path)
    assert path.read_bytes() == text


async def test_an_empty_file_becomes_a_database(path: Path) -> None:
    path.touch()
    async with opened(path) as store:
        await check_usable(store)


async def test_a_users_own_database_keeps_its_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("create table invoices (number integer)")
        raw.execute("insert into invoices values (7)")
        raw.commit()
    async with opened(path) as store:
        await check_usable(store)
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("select number from invoices").fetchall() == [(7,)]


def _unreadable_file(folder: Path) -> None:
    (folder / "jobs.db").touch(0o600)


def _read_only_file(folder: Path) -> None:
    (folder / "jobs.db").touch(0o444)


def _read_only_folder(folder: Path) -> None:
    folder.chmod(0o555)


def _closed_folder(folder: Path) -> None:
    folder.chmod(0o700)


@pytest.mark.parametrize(
    ("arrange", "advice"),
    [
        (_unreadable_file, "rights|right to"),
        (_read_only_file, "right to write|rights"),
        (_read_only_folder, "folder.*(rights|right to)"),
        (_closed_folder, "rights|right to"),
    ],
)
async def test_missing_rights_are_told(
    nursery: Nursery, shared_folder: Path, arrange: Callable[[Path], None], advice: str
) -> None:
    _need_root()
    arrange(shared_folder)
    with nursery.start("try_to_use", path=shared_folder / "jobs.db") as actor:
        outcome = actor.hear("done")
    assert outcome["error"] == "StoreUnavailable", outcome
    assert re.search(advice, outcome["message"]), outcome["message"]


async def test_a_file_that_root_has_used_first_stays_usable_for_those_who_may_write_to_it(
    nursery: Nursery, shared_folder: Path
) -> None:
    """SQLite gives its own side files the rights of the database; ours must not be stricter."""
    _need_root()
    path = shared_folder / "jobs.db"
    path.touch()
    path.chmod(0o666)
    async with opened(path) as store:
        await store.enqueue([new_job()])
    with nursery.start("try_to_use", path=path) as actor:
        assert actor.hear("done") == {"error": None, "message": ""}


async def test_a_transaction_elsewhere_is_told_also_if_our_own_folder_is_missing(tmp_path: Path) -> None:
    with closing(sqlite3.connect(":memory:")) as raw, pytest.raises(WrongDatabase, match="Pass one to that file"):
        SqliteStore(tmp_path / "missing" / "jobs.db").enqueue_in(raw, [new_job()])


async def test_a_bells_folder_that_can_not_be_listed_takes_nothing_from_an_enqueue(path: Path) -> None:
    """Wake-ups are a help. Their failure must not look like the failure of a job that is there."""
    Path(f"{path}-bells").write_text("not a folder")
    async with opened(path) as store:
        await check_usable(store)
