"""Dead letters as their handlers see them, and the jobs by which they are told."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast.ids import derived_id
from holdfast.job import JobRecord, NewJob
from holdfast.options import PLAIN
from holdfast.recipe import published_recipe
from holdfast.store import TaskDefinition


class DeadJob(msgspec.Struct, frozen=True):
    """What a handler of `on_dead` is told: which job went to the dead letters, and why."""

    id: UUID
    task: str
    queue: str
    args: dict[str, Any]
    error_type: str
    error: str
    attempts: int
    died_at: datetime


def announcement(job: JobRecord, handler: TaskDefinition) -> NewJob:
    """The job by which a handler is told of a dead letter. Made twice, it has the same id, and is enqueued once.

    No bound refuses it: a full queue, which dead letters often come with, must not hide them.
    """
    died_at = job.finished_at or job.created_at
    dead = DeadJob(
        job.id, job.task, job.queue, job.args, job.error_type or "", job.error_message or "", job.attempt, died_at
    )
    (parameter,) = handler.schema["properties"]
    id = derived_id(died_at, job.id.bytes, str(job.generation).encode(), handler.name.encode())
    new = published_recipe(handler).make(msgspec.json.encode({parameter: dead}).decode(), PLAIN, id)
    return msgspec.structs.replace(new, is_repeat=True, is_exempt=True)
