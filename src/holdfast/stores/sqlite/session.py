"""The thread's side of writing: one connection, one transaction after another.

If a shared transaction fails, its operations are run again one by one, so that one that
can't succeed does not take the others with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, OutcomeUnknown, StoreError, StoreUnavailable
from holdfast.job import NewJob
from holdfast.store import Hint, HintKind
from holdfast.stores.sqlite.connection import Connection, translate
from holdfast.stores.sqlite.transaction import Transaction
from holdfast.stores.sqlite.turns import Turn

Result = TypeVar("Result")


class CannotBegin(Exception):
    """No transaction could be opened."""

    def __init__(self, reason: HoldfastError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class NeedsDisk(Exception):
    """What this transaction did must be on the disk when it returns, which could not be known before."""


class NeedsCare(Exception):
    """Something is not as usual: run this operation again by itself, looking before each step."""


class Operation(Generic[Result]):
    """A verb that waits for its transaction.

    `work` may raise a HoldfastError only before it has written anything.
    """

    __slots__ = ("error", "future", "is_durable", "is_last", "jobs", "loop", "result", "weight", "work")

    def __init__(
        self,
        work: Callable[[Transaction], Result],
        *,
        is_durable: bool = True,
        is_last: bool = False,
        weight: int = 1,
        jobs: Sequence[NewJob] = (),
    ) -> None:
        self.work = work
        self.is_durable = is_durable
        """It must be on the disk when it returns."""
        self.is_last = is_last
        """After it, the session is closed."""
        self.weight = weight
        self.jobs = jobs
        """What it enqueues: if its commit fails halfway, they may be there all the same."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[Result] | None = None
        self.result: Result | None = None
        self.error: BaseException | None = None

    def expect(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Result]:
        """Where its answer will be found."""
        self.loop = loop
        self.future = loop.create_future()
        return self.future


class Signals(Protocol):
    """Where hints go."""

    def wanted(self) -> frozenset[HintKind]:
        """The kinds of hints that anybody waits for."""
        ...

    def send(self, hints: list[Hint]) -> None: ...


class Session:
    """A connection to the file with the right to write, used by one thread from its first operation to its last."""

    def __init__(self, path: Path, connect: Callable[[], Connection], clock: Clock, signals: Signals) -> None:
        self._path = path
        self._connect = connect
        self._clock = clock
        self._signals = signals
        self._turn = Turn(path)
        self._connection: Connection | None = None

    def run(self, operations: list[Operation[Any]]) -> None:
        """Run operations in one transaction, or one by one if that fails. Each ends up with a result or an error."""
        try:
            self._commit(operations, is_durable=any(operation.is_durable for operation in operations))
        except CannotBegin as error:
            _fail(operations, error.reason)
        except NeedsDisk:
            self._run_alone(operations, is_careful=False)
        except (NeedsCare, sqlite3.Error):
            self._run_alone(operations, is_careful=True)
        except BaseException as error:
            _fail(operations, error)

    def _run_alone(self, operations: list[Operation[Any]], *, is_careful: bool) -> None:
        for operation in operations:
            operation.result = operation.error = None
            try:
                self._commit([operation], is_durable=True, is_careful=is_careful)
            except CannotBegin as error:
                operation.error = error.reason
            except NeedsCare:
                self._run_alone([operation], is_careful=True)
            except sqlite3.Error as error:
                operation.error = self._explain(operation, error)
            except BaseException as error:
                operation.error = error

    def _commit(self, operations: list[Operation[Any]], *, is_durable: bool, is_careful: bool = False) -> None:
        with self._taken_turn():
            connection = self._begin(is_durable)
            try:
                now = self._clock.now()
                transaction = Transaction(
                    connection, now, self._signals.wanted(), is_durable=is_durable, is_careful=is_careful
                )
                for operation in operations:
                    _run(operation, transaction)
                transaction.finish()
                connection.execute("commit")
            except BaseException as error:
                self._undo(connection, error)
                raise
        hints = transaction.all_hints()
        if hints:
            self._signals.send(hints)

    @contextlib.contextmanager
    def _taken_turn(self) -> Iterator[None]:
        try:
            self._turn.__enter__()
        except OSError as error:
            raise CannotBegin(StoreUnavailable(f"The lock files of {self._path} can't be used: {error}.")) from error
        try:
            yield
        finally:
            self._turn.__exit__(None, None, None)

    def _begin(self, is_durable: bool) -> Connection:
        """Open a transaction, and the file if need be. What fails here would fail for each operation alone, too."""
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = self._connect()
            connection.wait_for_disk(is_durable)
            connection.execute("begin immediate")
        except sqlite3.Error as error:
            raise CannotBegin(translate(error, self._path)) from error
        except HoldfastError as error:
            raise CannotBegin(error) from error
        return connection

    def _undo(self, connection: Connection, error: BaseException) -> None:
        try:
            connection.roll_back()
        except sqlite3.Error:
            self._disconnect()
        if isinstance(error, sqlite3.OperationalError) and "IOERR" in getattr(error, "sqlite_errorname", ""):
            self._disconnect()  # what it believes about the file may be wrong now

    def _explain(self, operation: Operation[Any], error: sqlite3.Error) -> StoreError:
        path = self._path
        name = getattr(error, "sqlite_errorname", "") or ""
        explained: StoreError
        if operation.jobs and name.startswith("SQLITE_IOERR"):
            # The commit may have reached the log before the disk failed, and a later reader may find it there.
            explained = OutcomeUnknown(
                f"{translate(error, path)} The jobs may or may not be there: enqueue them again with options(id=…).",
                ids=[new.id for new in operation.jobs],
            )
        else:
            explained = translate(error, path)
        explained.__cause__ = error
        return explained

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def close(self) -> None:
        self._disconnect()
        self._turn.close()


def _run(operation: Operation[Any], transaction: Transaction) -> None:
    try:
        operation.result = operation.work(transaction)
    except HoldfastError as error:
        operation.error = error


def _fail(operations: list[Operation[Any]], error: BaseException) -> None:
    for operation in operations:
        operation.error = error
