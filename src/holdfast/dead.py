"""Dead letters as their handlers see them, and the jobs by which they are told."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.codec import PayloadLimits, Refused, read_json
from holdfast.ids import derived_id
from holdfast.job import JobRecord, NewJob, storable
from holdfast.options import PLAIN
from holdfast.recipe import published_recipe
from holdfast.store import TaskDefinition

_LIMITS: Final = PayloadLimits()
ANNOUNCEMENT_LIMITS: Final = PayloadLimits(depth=_LIMITS.depth + 2)
"""What handlers take: arguments that their own task takes stand two levels deeper in it."""
_LONGEST_TEXT: Final = 4_000
_arguments: Final = msgspec.json.Decoder(dict[str, Any])


class DeadJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a handler of `on_dead` is told: which job went to the dead letters, and why."""

    id: UUID
    task: str
    queue: str
    args: dict[str, Any]
    error_type: str
    error: str
    attempts: int
    died_at: datetime
    unreadable_args: str | None = None
    """If `args` is empty because the arguments can't be read: the beginning of what was stored in their place."""


def announcement(job: JobRecord, handler: TaskDefinition) -> NewJob:
    """The job by which a handler is told of a dead letter. Made twice, it has the same id, and is enqueued once.

    No bound refuses it: a full queue, which dead letters often come with, must not hide them.
    """
    died_at = job.finished_at or job.created_at
    args, unreadable = _read(job.args_json)
    dead = DeadJob(
        id=job.id,
        task=job.task,
        queue=job.queue,
        args=args,
        error_type=job.error_type or "",
        error=job.error_message or "",
        attempts=job.attempt,
        died_at=died_at,
        unreadable_args=unreadable,
    )
    (parameter,) = handler.schema["properties"]
    id = derived_id(died_at, job.id.bytes, str(job.generation).encode(), handler.name.encode())
    new = published_recipe(handler).make(msgspec.json.encode({parameter: dead}).decode(), PLAIN, id)
    return msgspec.structs.replace(new, is_repeat=True, is_exempt=True)


def _read(stored: str) -> tuple[dict[str, Any], str | None]:
    """The arguments; or none, and what is there instead.

    Other languages enqueue what they like, and that it is no arguments may be the very reason why the job is dead.
    """
    if len(stored) <= _LIMITS.payload:
        try:
            return read_json(_arguments, stored, _LIMITS.depth), None
        except Refused:
            pass
    return {}, storable(stored[:_LONGEST_TEXT])
