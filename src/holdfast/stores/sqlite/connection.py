"""Connections to a SQLite file, and its errors in our words."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from holdfast import forks, native
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.sqlite.known_lines import KnownLines
from holdfast.stores.sqlite.statements import Parameters

BUSY_SECONDS = 10.0
_OLDEST = (3, 35, 0)


class Connection:
    """One connection to the file, used by one thread."""

    factory: ClassVar[type[sqlite3.Connection]] = sqlite3.Connection

    def __init__(self, path: Path, *, is_reader: bool = False) -> None:
        check_version()
        self.path = path
        self._is_full = True
        self._patience = BUSY_SECONDS
        self.known_lines = KnownLines()
        with translated(path):
            self.raw = sqlite3.connect(
                f"file:{quote(str(path))}?mode={'rw' if is_reader else 'rwc'}",
                uri=True,
                isolation_level=None,
                timeout=BUSY_SECONDS,
                check_same_thread=False,
                cached_statements=256,
                factory=self.factory,
            )
        try:
            self._prepare(is_reader)
        except BaseException:
            self.close()
            raise

    def _prepare(self, is_reader: bool) -> None:
        with translated(self.path):
            self.execute("pragma cache_size = -16000")
            if is_reader:
                self.execute("pragma query_only = on")
                return
            mode = self._enter_wal_mode()
            if mode != "wal":
                raise StoreUnavailable(
                    f"{self.path} can't be put into WAL mode (it is in {mode!r}): the file or its folder is read-only, "
                    "or on a network share. Use a local folder that this process may write to, or PostgreSQL."
                )
            self.execute("pragma synchronous = full")
            # On macOS, an fsync alone does not reach the disk. Elsewhere these do nothing.
            self.execute("pragma fullfsync = on")
            self.execute("pragma checkpoint_fullfsync = on")
            self.execute("pragma journal_size_limit = 67108864")

    def _enter_wal_mode(self) -> str:
        """Nobody else may be writing at that moment, and here SQLite does not wait by itself."""
        give_up_at = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                ((mode,),) = self.execute("pragma journal_mode = wal")
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > give_up_at:
                    raise
                native.sleep(0.01)
            else:
                return str(mode)

    def execute(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        return self.raw.execute(sql, parameters).fetchall()

    def change(self, sql: str, parameters: Parameters = ()) -> int:
        """Execute a change and return how many rows it changed."""
        return self.raw.execute(sql, parameters).rowcount

    def wait_for_disk(self, is_wanted: bool) -> None:
        """Whether the next commits return only when they are on the disk."""
        if is_wanted != self._is_full:
            self.execute(f"pragma synchronous = {'full' if is_wanted else 'normal'}")
            self._is_full = is_wanted

    def wait_for_lock(self, waited: float) -> None:
        """Give up the next transaction if others hold the write lock for too long.

        Whoever `waited` for its turn waited for the same lock, and does not start counting anew.
        """
        patience = BUSY_SECONDS if waited < 0.1 else max(BUSY_SECONDS - waited, 0.05)
        if patience != self._patience:
            self.execute(f"pragma busy_timeout = {round(patience * 1000)}")
            self._patience = patience

    def roll_back(self) -> None:
        if self.raw.in_transaction:
            self.execute("rollback")

    def close(self) -> None:
        self.raw.close()


class Access:
    """A connection that is opened on first use, used by one at a time, and closed for the moment of a fork.

    SQLite keeps its locks in the memory of a process and in the kernel, and a fork copies only the former: with a
    connection open across it, parent and child would each believe in locks that nobody holds.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = native.make_lock()
        self._connection: Connection | None = None
        forks.watch(self)

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """While this lasts, nobody forks."""
        with self._lock:
            yield

    def connection(self) -> Connection:
        """Only while it is reserved."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def drop(self) -> None:
        """Close the connection; the next use opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def forget(self) -> None:
        """Let go of the connection without closing it, since somebody else may be using it."""
        self._connection = None

    def before_fork(self) -> None:
        self._lock.acquire()
        self.drop()

    def after_fork(self, *, in_child: bool) -> None:
        self._lock.release()


def check_version() -> None:
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreUnavailable(
            f"SQLite {sqlite3.sqlite_version} is too old: Holdfast needs 3.35 or newer. Use a newer Python build."
        )


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """SQLite's error, with what to do about it."""
    name = getattr(error, "sqlite_errorname", "") or ""
    match name.split("_")[1] if name.startswith("SQLITE_") else "":
        case _ if name == "SQLITE_BUSY_SNAPSHOT":
            advice = (
                "the transaction has read a state that others have changed since. "
                "Roll it back and start anew with BEGIN IMMEDIATE."
            )
        case "BUSY" | "LOCKED":
            advice = (
                f"another program has held its write lock for more than {BUSY_SECONDS:.0f} s. "
                "Look for a transaction that was left open; it is safe to try again."
            )
        case "FULL":
            advice = "the disk is full. Nothing was written; make room and try again."
        case "READONLY" | "PERM" | "AUTH":
            advice = "it is read-only. Give this process the right to write to the file and its folder."
        case "CANTOPEN":
            advice = why_it_cannot_be_opened(path)
        case "NOTADB":
            advice = "it is not a SQLite database. Point the URL to another file; this one was left as it is."
        case "CORRUPT":
            advice = (
                "it is damaged. Stop all workers, keep a copy, and restore a backup or use `sqlite3 FILE .recover`."
            )
        case "IOERR":
            advice = "reading or writing it failed. Check the disk and the file system."
        case _:
            advice = f"{error}."
    return StoreUnavailable(f"{path} can't be used: {advice} (SQLite: {error}{f', {name}' if name else ''})")


def why_it_cannot_be_opened(path: Path) -> str:
    """What to do about a file that is not there, or not ours to use."""
    if not os.access(path.parent, os.X_OK) and os.access(path.parent.parent, os.X_OK) and path.parent.exists():
        return "this process may not look into its folder. Change the folder's rights, or use another one."
    if not path.parent.exists():
        return f"the folder {path.parent} does not exist. Create it first."
    if path.is_dir():
        return "it is a folder. Name a file in it."
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return "this process may not read and write it. Change its owner or its rights."
    if not os.access(path.parent, os.W_OK):
        return "this process may not create files in its folder. Change the folder's rights, or use another one."
    return "it can't be opened."
