"""Every error a caller of Holdfast can meet.

    HoldfastError
    ├── ConfigurationError        the program is wrong; raised at import or on first use
    │   ├── InvalidOption         an option, name, span or template that makes no sense
    │   ├── InvalidTask           a function that can't be a task
    │   ├── DuplicateTask         two tasks under one name
    │   ├── InvalidURL            a database URL nobody understands
    │   ├── MissingDriver         a database whose driver is not installed
    │   ├── RunningLoop           a synchronous call on a running event loop
    │   ├── WaitingInTask         a task that waits for another job
    │   └── InvalidTransaction    ctx.tx where there is none, or used as it can't be
    ├── InvalidPayload            arguments that the task does not accept
    │   └── PayloadTooLarge
    ├── UnknownTask               a name that nobody has published
    ├── QueueFull                 the bound of a queue refused the job
    ├── IdempotencyConflict       one key, two payloads
    ├── WrongDatabase             a transaction on somebody else's database
    ├── StoreError
    │   ├── StoreUnavailable      nothing was written; try again
    │   ├── OutcomeUnknown        it may have been written; repeat with the same ids
    │   ├── TransactionLost       ctx.tx was rolled back while its task still ran
    │   └── SchemaMismatch
    │       ├── SchemaTooNew      the database is ahead of this version of Holdfast
    │       └── SchemaOutdated    the database is behind it, and can't be brought up here
    ├── WorkerDeclaredDead        this worker was taken for dead; its jobs run elsewhere
    ├── JobNotFound
    ├── ScheduleNotFound
    ├── LimitNotFound
    ├── BreakerNotFound
    ├── NotAllowedInState         the job's state does not allow that
    ├── JobFailed                 its result will never come
    │   └── JobCancelled
    └── ResultTimeout             its result has not come yet

A docstring is the default message. Messages end with what to do next.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


class HoldfastError(Exception):
    """Something went wrong in Holdfast."""

    def __init__(self, message: str | None = None) -> None:
        # Under -OO there are no docstrings, and a parent's would be wrong.
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or type(self).__name__))


class ConfigurationError(HoldfastError):
    """Holdfast is set up or used in a way that can't work."""


class InvalidOption(ConfigurationError, ValueError):
    """An option makes no sense. Look up what it takes, and correct it."""


class InvalidTask(ConfigurationError, TypeError):
    """This function can't be a task. Give it plain parameters that can be stored by name."""


class DuplicateTask(ConfigurationError):
    """Two tasks have the same name. Give one of them another with `name=`."""


class InvalidURL(ConfigurationError, ValueError):
    """This is not the URL of a database that Holdfast knows. Use sqlite:///path, postgresql://… or memory://."""


class MissingDriver(ConfigurationError, ImportError):
    """The driver of this database is not installed. Install the extra of Holdfast that brings it."""


class RunningLoop(ConfigurationError, RuntimeError):
    """This call would block the running event loop. Use its `a…` form with await."""


class WaitingInTask(ConfigurationError, RuntimeError):
    """A task must not wait for the result of another job: with all slots waiting, none would be left to run it.

    Enqueue the rest of the work as a job of its own, and let that job use the result.
    """


class InvalidTransaction(ConfigurationError, RuntimeError):
    """This is not how `ctx.tx` can be used. Declare the task with delivery='transactional'; leave the commit to it."""


class InvalidPayload(HoldfastError, ValueError):
    """The task does not accept these arguments. Compare them with its signature."""


class PayloadTooLarge(InvalidPayload):
    """The arguments are too large. Store the data elsewhere and pass its id."""


class UnknownTask(HoldfastError, LookupError):
    """No worker or server has published a task of this name. Check the name, or start its worker once."""


class QueueFull(HoldfastError):
    """The queue is full. Nothing was enqueued; try again later."""

    def __init__(
        self, message: str | None = None, *, queue: str = "", retry_after: float = 1.0, never_fits: bool = False
    ) -> None:
        super().__init__(message)
        self.queue = queue
        self.retry_after = retry_after
        self.never_fits = never_fits
        """More at once than the whole bound: waiting would not help."""


class IdempotencyConflict(HoldfastError):
    """This idempotency key was used with other arguments. Use a new key for a new request."""

    def __init__(self, message: str | None = None, *, existing: UUID | None = None) -> None:
        super().__init__(message)
        self.existing = existing


class WrongDatabase(HoldfastError):
    """`tx=` is a connection to another database than Holdfast's own. Use one to the database of the app's URL."""


class StoreError(HoldfastError):
    """The database refused or failed."""


class StoreUnavailable(StoreError):
    """The database can't be used now. Nothing was written; it is safe to try again."""


class OutcomeUnknown(StoreError):
    """The database failed while committing: the jobs may or may not be there.

    Enqueue again with `options(id=…)` and the same ids: what is there already is found, not doubled.
    """

    def __init__(self, message: str | None = None, *, ids: Sequence[UUID] = ()) -> None:
        super().__init__(message)
        self.ids = list(ids)


class TransactionLost(StoreError):
    """The task's transaction was rolled back, nothing of it was written. Let the error end the task, to be retried."""


class SchemaMismatch(StoreError):
    """The tables in this database are not those this version of Holdfast works with."""


class SchemaTooNew(SchemaMismatch):
    """The database was written by a newer Holdfast. Upgrade the holdfast package in this process."""


class SchemaOutdated(SchemaMismatch):
    """The database was written by an older Holdfast and can't be upgraded here. Open it with the right to write."""


class WorkerDeclaredDead(HoldfastError):
    """This worker was declared dead and its jobs were given to others. Drop them and register anew."""


class JobNotFound(HoldfastError, LookupError):
    """There is no such job. It may have been pruned after its retention, or discarded."""


class ScheduleNotFound(HoldfastError, LookupError):
    """There is no such schedule. Look for its name among `hf.schedules.all()`."""


class LimitNotFound(HoldfastError, LookupError):
    """There is no such limit. Look for it among `hf.limits.list()`."""


class BreakerNotFound(HoldfastError, LookupError):
    """There is no such breaker. Look for its name among `hf.breakers.list()`."""


class NotAllowedInState(HoldfastError):
    """The job's state does not allow that. Look at the job before you try again."""

    def __init__(self, message: str | None = None, *, state: str = "") -> None:
        super().__init__(message)
        self.state = state


class JobFailed(HoldfastError):
    """The job is dead: it failed for good. Look at its attempts; when the cause is mended, retry it."""

    def __init__(
        self,
        message: str | None = None,
        *,
        id: UUID | None = None,
        error_type: str | None = None,
        error_message: str | None = None,
        traceback: str | None = None,
    ) -> None:
        super().__init__(message)
        self.id = id
        self.error_type = error_type
        self.error_message = error_message
        self.traceback = traceback


class JobCancelled(JobFailed):
    """The job was cancelled. Retry it if it is wanted after all."""


class ResultTimeout(HoldfastError, TimeoutError):
    """The job has not finished in the time given. It goes on; ask again later."""
