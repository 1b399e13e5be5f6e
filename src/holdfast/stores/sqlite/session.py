"""The thread's side of writing: one connection, one transaction after another.

If a shared transaction fails, its operations are run again one by one, so that one that
can't succeed does not take the others with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, OutcomeUnknown, StoreError, StoreUnavailable
from holdfast.job import NewJob
from holdfast.store import Hint, HintKind
from holdfast.stores.sqlite.connection import Access, Connection, translate
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

    __slots__ = (
        "error",
        "future",
        "is_durable",
        "is_last",
        "jobs",
        "loop",
        "needs_lock",
        "place",
        "result",
        "weight",
        "work",
    )

    def __init__(
        self,
        work: Callable[[Transaction], Result],
        *,
        is_durable: bool = True,
        is_last: bool = False,
        needs_lock: bool = True,
        weight: int = 1,
        jobs: Sequence[NewJob] = (),
    ) -> None:
        self.work = work
        self.is_durable = is_durable
        """It must be on the disk when it returns."""
        self.is_last = is_last
        """After it, the session is closed."""
        self.needs_lock = needs_lock
        """Without it, all it wants is that the file is open."""
        self.weight = weight
        self.jobs = jobs
        """What it enqueues: if its commit fails halfway, they may be there all the same."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[Result] | None = None
        self.place: asyncio.Semaphore | None = None
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
        self._access = Access(connect)
        self._clock = clock
        self._signals = signals
        self._turn = Turn(path)
        self._is_log_doubtful = False
        """A wait for the disk has failed, so what was committed before it may be missing from the log."""

    def run(self, operations: list[Operation[Any]]) -> None:
        """Run operations in one transaction, or one by one if that fails. Each ends up with a result or an error."""
        with self._access.reserved():
            self._run_together(operations)

    def close(self) -> None:
        with self._access.reserved():
            self._access.drop()
            self._turn.close()

    def _run_together(self, operations: list[Operation[Any]]) -> None:
        try:
            if not any(operation.needs_lock for operation in operations):
                self._open()
                return
            self._commit(operations, is_durable=any(operation.is_durable for operation in operations))
        except CannotBegin as error:
            _fail(operations, error.reason)
        except NeedsDisk:
            self._run_alone(operations, is_careful=False)
        except Exception as error:
            self._run_alone(operations, is_careful=True, may_be_there=is_disk_error(error))

    def _run_alone(self, operations: list[Operation[Any]], *, is_careful: bool, may_be_there: bool = False) -> None:
        """`may_be_there`: an earlier try may have reached the log, so a failure now does not mean that it did not."""
        for index, operation in enumerate(operations):
            operation.result = operation.error = None
            try:
                self._commit([operation], is_durable=True, is_careful=is_careful)
            except CannotBegin as error:
                # It would fail for each of the others, too, and each would wait as long.
                for other in operations[index:]:
                    other.result, other.error = None, _explained(other, error.reason, may_be_there)
                return
            except NeedsCare:
                self._run_alone([operation], is_careful=True, may_be_there=may_be_there)
            except Exception as error:
                reason = translate(error, self._path) if isinstance(error, sqlite3.Error) else _unexpected(error)
                reason.__cause__ = error
                operation.error = _explained(operation, reason, may_be_there or is_disk_error(error))

    def _commit(self, operations: list[Operation[Any]], *, is_durable: bool, is_careful: bool = False) -> None:
        waited_from = self._clock.monotonic()
        with self._turn:
            connection = self._begin(is_durable, self._clock.monotonic() - waited_from)
            try:
                wanted = self._signals.wanted()
                transaction = Transaction(
                    connection,
                    self._clock.now(),
                    wanted,
                    is_durable=is_durable,
                    is_careful=is_careful,
                    known_lines=connection.known_lines,
                )
                for operation in operations:
                    _run(operation, transaction)
                transaction.finish()
                connection.execute("commit")
            except BaseException as error:
                self._undo(connection, error)
                raise
        # It is done: whatever goes wrong with a hint must not make it look as if it were not.
        with contextlib.suppress(Exception):
            transaction.committed()
            self._send(transaction, wanted)

    def _send(self, transaction: Transaction, wanted: frozenset[HintKind]) -> None:
        # Whoever began to wait meanwhile has seen neither the change nor a hint of it.
        newcomers = [Hint(kind) for kind in self._signals.wanted() - wanted]
        hints = transaction.all_hints() + newcomers
        if hints:
            self._signals.send(hints)

    def _open(self) -> None:
        """Open the file, which needs the lock only if its tables are to be made."""
        try:
            with self._turn:
                self._access.connection()
        except sqlite3.Error as error:
            raise CannotBegin(translate(error, self._path)) from error
        except HoldfastError as error:
            raise CannotBegin(error) from error

    def _begin(self, is_durable: bool, waited: float) -> Connection:
        """Open a transaction, and the file if need be. What fails here would fail for each operation alone, too."""
        try:
            self._mend_log()
            connection = self._access.connection()
            connection.wait_for_disk(is_durable)
            connection.wait_for_lock(waited)
            connection.execute("begin immediate")
            self._turn.begun()
        except sqlite3.Error as error:
            raise CannotBegin(translate(error, self._path)) from error
        except HoldfastError as error:
            raise CannotBegin(error) from error
        return connection

    def _undo(self, connection: Connection, error: BaseException) -> None:
        try:
            connection.roll_back()
        except sqlite3.Error:
            self._access.drop()
        if is_disk_error(error):
            self._access.drop()  # what it believes about the file may be wrong now
            self._is_log_doubtful = True
            with contextlib.suppress(sqlite3.Error, HoldfastError):
                self._mend_log()  # while it is still our turn

    def _mend_log(self) -> None:
        """After a failed wait for the disk, move all that is in the log into the database before anything is added.

        Claims are committed without waiting. If the disk has forgotten one of them, the log is broken there, and what
        is acknowledged after it would not survive a power cut.
        """
        if self._is_log_doubtful:
            ((is_busy, _, _),) = self._access.connection().execute("pragma wal_checkpoint(truncate)")
            if is_busy:
                raise StoreUnavailable(
                    f"{self._path}: a write to the disk has failed, and a long read keeps its log from being mended. "
                    "Nothing was written; end the read, or try again."
                )
            self._is_log_doubtful = False


def is_locked(error: CannotBegin) -> bool:
    """Somebody else has the write lock."""
    return (getattr(error.__cause__, "sqlite_errorname", "") or "").startswith("SQLITE_BUSY")


def is_disk_error(error: BaseException) -> bool:
    """A commit that fails so may have reached the log all the same."""
    return (getattr(error, "sqlite_errorname", "") or "").startswith("SQLITE_IOERR")


def _unexpected(error: Exception) -> StoreError:
    return StoreError(f"An operation failed unexpectedly and changed nothing: {error!r}. Please report it.")


def _explained(operation: Operation[Any], reason: HoldfastError, may_be_there: bool) -> HoldfastError:
    if not may_be_there:
        return reason
    # The commit may have reached the log before the disk failed, and a later reader may find it there.
    advice = "enqueue the jobs again with options(id=…)" if operation.jobs else "look before you repeat it"
    unknown = OutcomeUnknown(
        f"{reason} It may have been done all the same: {advice}.",
        ids=[new.id for new in operation.jobs],
    )
    unknown.__cause__ = reason
    return unknown


def _run(operation: Operation[Any], transaction: Transaction) -> None:
    try:
        operation.result = operation.work(transaction)
    except HoldfastError as error:
        operation.error = error


def _fail(operations: list[Operation[Any]], error: BaseException) -> None:
    for operation in operations:
        operation.error = error
