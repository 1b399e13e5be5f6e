"""What a running task may know of its job."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID


@dataclass(frozen=True)
class Context:
    """The first argument of a task with `bind=True`: which job this is, and which attempt.

    A bound task that is called directly, not as a job, gets one whose `job_id` is None.
    """

    task: str
    job_id: UUID | None = None
    queue: str = ""
    attempt: int = 1
    max_attempts: int = 1
    idempotency_key: str = ""
    """For effects outside: the same in every attempt of the job."""
    context: dict[str, Any] = field(default_factory=dict)
    """What the producer passed as `options(context=…)`."""


class SoftTimeout(asyncio.CancelledError):
    """The task's time is nearly over: clean up and stop. Counted as a transient failure.

    It is a CancelledError, so that task groups clean up and a careless `except Exception` does not eat it.
    """
