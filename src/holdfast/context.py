"""What a running task may know of its job, and say about it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from holdfast.errors import InvalidOption, InvalidTransaction
from holdfast.job import ClaimedJob
from holdfast.transaction import TaskTransaction

_LONGEST_NOTE: Final = 200


class SoftTimeout(asyncio.CancelledError):
    """The task's time is nearly over: clean up and stop. Counted as a transient failure.

    It is a CancelledError, so that task groups clean up and a careless `except Exception` does not eat it.
    """


class Surroundings(Protocol):
    """Where a job runs: what its context passes on."""

    def is_cancelled(self, job: UUID) -> bool: ...
    def deadline(self, job: UUID) -> datetime | None: ...
    def report_progress(self, job: ClaimedJob, done: float, total: float | None, note: str) -> None: ...


class Nowhere:
    """A task that was called directly: there is nobody to tell."""

    def is_cancelled(self, job: UUID) -> bool:
        return False

    def deadline(self, job: UUID) -> datetime | None:
        return None

    def report_progress(self, job: ClaimedJob, done: float, total: float | None, note: str) -> None:
        return


_NOWHERE: Final = Nowhere()


class Context:
    """The first argument of a task with `bind=True`: which job this is, and which attempt.

    A bound task that is called directly, not as a job, gets one whose `job_id` is None.
    """

    __slots__ = ("_job", "_surroundings", "state", "task")

    def __init__(
        self, task: str, job: ClaimedJob | None = None, state: Any = None, surroundings: Surroundings | None = None
    ) -> None:
        # One is made for every run, so all else is worked out when it is asked for.
        self.task = task
        self.state = state
        """What the hooks of `on_startup` have made in this process."""
        self._job = job
        self._surroundings = surroundings or _NOWHERE

    @property
    def job_id(self) -> UUID | None:
        return None if self._job is None else self._job.id

    @property
    def queue(self) -> str:
        return "" if self._job is None else self._job.queue

    @property
    def attempt(self) -> int:
        """Which attempt this is; the first is 1."""
        return 1 if self._job is None else self._job.attempt

    @property
    def max_attempts(self) -> int:
        return 1 if self._job is None else self._job.max_attempts

    @property
    def idempotency_key(self) -> str:
        """For effects outside: the same in every attempt of the job."""
        return "" if self._job is None else self._job.effect_key

    def __repr__(self) -> str:
        return f"<Context {self.task} {self.job_id or '(called directly)'} attempt {self.attempt}/{self.max_attempts}>"

    @property
    def tx(self) -> TaskTransaction:
        """The transaction in which this task's writes, its completion and the jobs it enqueues are committed together.

        Opens with the first statement. Only in tasks with `delivery="transactional"`.
        """
        if self._job is None:
            raise InvalidTransaction(
                f"{self.task} was called directly, and there is no job to complete: ctx.tx is for jobs. Enqueue it."
            )
        raise InvalidTransaction(
            f"ctx.tx is only for tasks that are committed with their job. Declare {self.task} with "
            'delivery="transactional", and without isolation="process".'
        )

    @property
    def open_transaction(self) -> TaskTransaction | None:
        """The transaction that the task has opened: the jobs that it enqueues join it."""
        return None

    @property
    def context(self) -> dict[str, Any]:
        """What the producer passed as `options(context=…)`."""
        text = None if self._job is None else self._job.context_json
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}

    @property
    def deadline(self) -> datetime | None:
        """When the soft timeout comes."""
        return None if self.job_id is None else self._surroundings.deadline(self.job_id)

    @property
    def is_cancelled(self) -> bool:
        """Somebody wants the job to stop, or the worker must."""
        return self.job_id is not None and self._surroundings.is_cancelled(self.job_id)

    def raise_if_cancelled(self) -> None:
        """Stop here, with asyncio.CancelledError, if somebody wants the job to stop. For loops in `def` tasks."""
        if self.is_cancelled:
            raise asyncio.CancelledError("the job is to stop")

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far it is, such as `progress(3, 10, "scaling")`. Costs next to nothing; the latest is kept."""
        if not _is_number(done) or not (total is None or _is_number(total)) or not isinstance(note, str):
            raise InvalidOption("progress() takes two numbers and a text, such as progress(3, 10, 'scaling').")
        if self._job is not None:
            self._surroundings.report_progress(self._job, done, total, note[:_LONGEST_NOTE])

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry this job."""
        return _JobLogger(logging.getLogger(f"holdfast.task.{self.task}"), self.log_fields)

    @property
    def log_fields(self) -> Mapping[str, object]:
        """How the job stands in log records."""
        return {"job_id": str(self.job_id), "task": self.task, "queue": self.queue, "attempt": self.attempt}


class TransactionalContext(Context):
    """The context of a task with `delivery="transactional"`."""

    __slots__ = ("_transaction",)

    def __init__(
        self, task: str, job: ClaimedJob, state: Any, surroundings: Surroundings, transaction: TaskTransaction
    ) -> None:
        super().__init__(task, job, state, surroundings)
        self._transaction = transaction

    @property
    def tx(self) -> TaskTransaction:
        return self._transaction

    @property
    def open_transaction(self) -> TaskTransaction | None:
        return self._transaction if self._transaction.is_open else None


def _is_number(value: object) -> bool:
    """A number that a database and JSON can hold."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs


current: ContextVar[Context | None] = ContextVar("holdfast_job", default=None)
"""The job in whose task this code runs, if it is one."""
