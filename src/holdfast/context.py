"""What a running task may know of its job, and say about it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from holdfast.errors import InvalidOption
from holdfast.job import ClaimedJob

_LONGEST_NOTE: Final = 200


class SoftTimeout(asyncio.CancelledError):
    """The task's time is nearly over: clean up and stop. Counted as a transient failure.

    It is a CancelledError, so that task groups clean up and a careless `except Exception` does not eat it.
    """


class Surroundings(Protocol):
    """Where a job runs: what its context passes on."""

    def is_cancelled(self, job: UUID) -> bool: ...
    def deadline(self, job: UUID) -> datetime | None: ...
    def report_progress(self, job: UUID, done: float, total: float | None, note: str) -> None: ...


class Nowhere:
    """A task that was called directly: there is nobody to tell."""

    def is_cancelled(self, job: UUID) -> bool:
        return False

    def deadline(self, job: UUID) -> datetime | None:
        return None

    def report_progress(self, job: UUID, done: float, total: float | None, note: str) -> None:
        return


class Context:
    """The first argument of a task with `bind=True`: which job this is, and which attempt.

    A bound task that is called directly, not as a job, gets one whose `job_id` is None.
    """

    __slots__ = (
        "_context_json",
        "_surroundings",
        "attempt",
        "idempotency_key",
        "job_id",
        "max_attempts",
        "queue",
        "state",
        "task",
    )

    def __init__(self, task: str) -> None:
        self.task = task
        self.job_id: UUID | None = None
        self.queue = ""
        self.attempt = 1
        self.max_attempts = 1
        self.idempotency_key = ""
        """For effects outside: the same in every attempt of the job."""
        self.state: Any = None
        """What the hooks of `on_startup` have made in this process."""
        self._context_json: str | None = None
        self._surroundings: Surroundings = Nowhere()

    @classmethod
    def of_job(cls, job: ClaimedJob, task: str, state: Any, surroundings: Surroundings) -> Context:
        """The context of one attempt of a job."""
        self = cls(task)
        self.job_id = job.id
        self.queue = job.queue
        self.attempt = job.attempt
        self.max_attempts = job.max_attempts
        self.idempotency_key = job.effect_key
        self.state = state
        self._context_json = job.context_json
        self._surroundings = surroundings
        return self

    def __repr__(self) -> str:
        return f"<Context {self.task} {self.job_id or '(called directly)'} attempt {self.attempt}/{self.max_attempts}>"

    @property
    def context(self) -> dict[str, Any]:
        """What the producer passed as `options(context=…)`."""
        return msgspec.json.decode(self._context_json, type=dict[str, Any]) if self._context_json else {}

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
        if not isinstance(done, int | float) or not isinstance(total, int | float | None) or not isinstance(note, str):
            raise InvalidOption("progress() takes two numbers and a text, such as progress(3, 10, 'scaling').")
        if self.job_id is not None:
            self._surroundings.report_progress(self.job_id, done, total, note[:_LONGEST_NOTE])

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry this job."""
        return _JobLogger(logging.getLogger(f"holdfast.task.{self.task}"), self.log_fields)

    @property
    def log_fields(self) -> Mapping[str, object]:
        """How the job stands in log records."""
        return {"job_id": str(self.job_id), "task": self.task, "queue": self.queue, "attempt": self.attempt}


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs


current: ContextVar[Context | None] = ContextVar("holdfast_job", default=None)
"""The job in whose task this code runs, if it is one."""
