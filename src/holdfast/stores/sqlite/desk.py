"""The thread's side of tasks' transactions: one connection, one transaction after another, each for a short while.

A transaction has the write lock from its first statement to its end, and everybody else who writes waits for it. So its
time is bounded: when it is over, all is rolled back.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast import native
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, OutcomeUnknown, TransactionLost
from holdfast.job import NewJob
from holdfast.store import Enqueued, Hint, HintKind, Queue, Settled, Settlement
from holdfast.stores.sqlite.borrowed import savepoint
from holdfast.stores.sqlite.connection import translate
from holdfast.stores.sqlite.lent import TaskConnection
from holdfast.stores.sqlite.placeholders import rewrite
from holdfast.stores.sqlite.session import CannotBegin, Session, Signals, is_disk_error, is_locked
from holdfast.stores.sqlite.transaction import Transaction

Complete = Callable[[Transaction, Settlement], Settled]
"""Completes a job, if the claim is still held."""


class Client(Protocol):
    """Whoever a transaction is opened for. The thread calls all of this."""

    def is_wanted(self) -> bool:
        """False if it was given up while it waited for its turn."""
        ...

    def refuse(self, error: HoldfastError) -> None:
        """It can't be opened."""
        ...

    def serve(self, desk: Desk) -> None:
        """It is open: do what is asked for, until it is over."""
        ...


class Bench(Session):
    """The connection of tasks, used by one thread for one transaction at a time."""

    def __init__(
        self,
        path: Path,
        connect: Callable[[], TaskConnection],
        clock: Clock,
        signals: Signals,
        *,
        complete: Complete,
        declared: Mapping[str, Queue],
        limit: float,
    ) -> None:
        super().__init__(path, connect, clock, signals)
        self.complete = complete
        self.limit = limit
        self._declared = declared

    def perform(self, client: Client) -> None:
        """Open a transaction in its turn, and keep it open until its end, or until its time is over.

        While other processes have the lock in their turns, it waits for as long as the client does.
        """
        with self._access.reserved():
            while not self._has_performed(client):
                pass

    def _has_performed(self, client: Client) -> bool:
        """False if it was the turn of others all the time."""
        waited_from = self._clock.monotonic()
        with self._turn:
            if not client.is_wanted():
                return True
            try:
                connection = self._begin(True, self._clock.monotonic() - waited_from)
            except CannotBegin as error:
                if self._turn.is_others and is_locked(error):
                    return False
                client.refuse(error.reason)
                return True
            assert isinstance(connection, TaskConnection)
            desk = Desk(self, connection)
            try:
                client.serve(desk)
            finally:
                desk.roll_back()
                self._put_away(desk)
        if desk.is_committed:
            # It is done: whatever goes wrong with a hint must not make it look as if it were not.
            with contextlib.suppress(Exception):
                self._tell(desk)
        return True

    def _tell(self, desk: Desk) -> None:
        # Whoever began to wait meanwhile has seen neither the change nor a hint of it.
        hints = desk.hints + [Hint(kind) for kind in self._signals.wanted() - desk.wanted]
        if hints:
            self._signals.send(hints)

    def _put_away(self, desk: Desk) -> None:
        if desk.reason is not None and desk.is_lent:
            self._access.forget()  # its task may be using it this very moment
        elif desk.is_lent:
            self._access.drop()  # what a task has set on it must not reach the next one

    def begin_part(self, desk: Desk, *, is_careful: bool = False) -> Transaction:
        """What we do in it is done as in any other transaction."""
        now = self._clock.now()
        return Transaction(desk.connection, now, desk.wanted, is_careful=is_careful, declared=self._declared)

    def wanted(self) -> frozenset[HintKind]:
        return self._signals.wanted()

    def undo(self, connection: TaskConnection, error: BaseException) -> None:
        self._undo(connection, error)

    @property
    def path(self) -> Path:
        return self._path


class Desk:
    """An open transaction, in the hands of the thread."""

    def __init__(self, bench: Bench, connection: TaskConnection) -> None:
        self._bench = bench
        self._deadline = time.monotonic() + bench.limit
        self.connection = connection
        self.wanted = bench.wanted()
        """The kinds of hints that anybody waited for when it began."""
        self.hints: list[Hint] = []
        """What to tell others, once it is committed."""
        self.reason: HoldfastError | None = None
        """Why it is over, if it had to be ended before its time."""
        self.is_over = False
        self.is_committed = False
        self.is_lent = False
        """The task has had the connection itself in its hands."""

    @property
    def limit(self) -> float:
        return self._bench.limit

    @property
    def seconds_left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    # ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────

    def fetch(self, sql: str, args: Sequence[Any]) -> list[sqlite3.Row]:
        """What it raises is the driver's own error, unless the transaction is over with it."""
        self._check()
        try:
            rows = self.connection.ask(rewrite(sql), args)
        except Exception as error:
            self._check(error)
            raise
        self._check()
        return rows

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        self._check()
        it = self._bench.begin_part(self, is_careful=any(new.is_repeat for new in jobs))
        try:
            with savepoint(self.connection):
                answers = it.enqueue(jobs)
                it.finish()
        except sqlite3.Error as error:
            self._check(error)
            raise translate(error, self._bench.path) from error
        self.hints += it.all_hints()
        return answers

    def _check(self, error: Exception | None = None) -> None:
        """After some errors SQLite has rolled back everything by itself: what came next would be committed alone."""
        is_stopped = getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT"
        if is_stopped and not self.seconds_left:
            self.expire()
        elif not self.connection.raw.in_transaction:
            self._lose(
                f"SQLite has rolled back this task's transaction ({error or 'on a conflict'}). Nothing of it was "
                "written; let the error end the task, to be retried."
            )
        if self.reason is not None:
            raise self.reason from error

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def complete(self, settlement: Settlement) -> Settled:
        """Complete the job and commit, if the claim is still held."""
        self._check()
        try:
            it = self._bench.begin_part(self)
            answer = self._bench.complete(it, settlement)
            if answer is Settled.APPLIED:
                it.finish()
                self.connection.execute("commit")
        except Exception as error:
            self._fail(error)
            raise
        if answer is Settled.APPLIED:
            self.is_over = self.is_committed = True
            self.hints += it.all_hints()
        else:
            self.roll_back()
        return answer

    def _fail(self, error: Exception) -> None:
        self.is_over = True
        self._bench.undo(self.connection, error)
        if isinstance(error, sqlite3.IntegrityError) or not isinstance(error, sqlite3.Error):
            return  # a constraint of the task's own tables: its driver's error says it best
        reason = translate(error, self._bench.path)
        if is_disk_error(error):
            raise OutcomeUnknown(f"{reason} The job may have been completed all the same.") from error
        raise reason from error

    def roll_back(self) -> None:
        """Undo all of it. Nothing if it is over."""
        if not self.is_over:
            self.is_over = True
            try:
                _insist(self.connection.roll_back)
            except sqlite3.Error as error:
                self._bench.undo(self.connection, error)

    def expire(self) -> None:
        """Its time is over: others wait."""
        self.connection.raw.interrupt()  # whatever the task is doing with the connection itself
        self._lose(
            f"The task's transaction has held the write lock of {self._bench.path} for more than {self.limit:g} s, and "
            "was rolled back, since all others who write wait for it. Nothing of it was written. Do what is slow "
            "before the first statement of ctx.tx, or use PostgreSQL."
        )

    def _lose(self, message: str) -> None:
        self.reason = TransactionLost(message)
        if self.is_lent:
            with contextlib.suppress(sqlite3.Error):
                _insist(self.connection.seal)
        self.roll_back()


def _insist(act: Callable[[], None], naps: int = 100) -> None:
    """What was just interrupted on the same connection may not have noticed yet, and takes us along."""
    for _ in range(naps):
        try:
            act()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_INTERRUPT":
                raise
            native.sleep(0.001)
        else:
            return
    act()
