"""The jobs of ticks. One that is made twice has the same id, and is enqueued once."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from holdfast.ids import derived_id
from holdfast.job import NewJob
from holdfast.options import JobSettings
from holdfast.recipe import published_recipe
from holdfast.schedule import ScheduleRecord
from holdfast.store import TaskDefinition


def tick_job(record: ScheduleRecord, tick: datetime, task: TaskDefinition, chance: float) -> NewJob:
    """The job of a tick, which no bound refuses. `chance`, from 0 to 1, says how much of the jitter it waits."""
    id = derived_id(tick, b"tick", record.name.encode(), tick.isoformat().encode())
    jitter = record.plan.jitter
    delay = jitter * chance if jitter > timedelta(0) else None
    new = _job(record, task, id, {"schedule": record.name, "tick": tick.isoformat()}, delay)
    return msgspec.structs.replace(new, is_repeat=True, is_exempt=True)


def extra_job(record: ScheduleRecord, task: TaskDefinition, id: UUID) -> NewJob:
    """A job of a schedule that somebody wants now, whatever its ticks are."""
    return _job(record, task, id, {"schedule": record.name}, None)


def _job(
    record: ScheduleRecord, task: TaskDefinition, id: UUID, context: dict[str, str], delay: timedelta | None
) -> NewJob:
    plan = record.plan
    settings = JobSettings(
        queue=plan.queue, priority=plan.priority, delay=delay, context=msgspec.json.encode(context).decode()
    )
    new = published_recipe(task).make(plan.args_json, settings, id)
    # Its arguments are always the same, and so would be a key that is made of them: the tick is its key.
    return msgspec.structs.replace(new, idempotency_key=None, fingerprint=None)
