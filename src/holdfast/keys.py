"""Which job a key stands for. A key is kept apart from its job, so that pruning a job does not forget its key.

An idempotency key is taken by its first job until some time after that has ended; a unique key
until it has ended and its window, counted from the enqueue, is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.errors import IdempotencyConflict
from holdfast.job import JobRecord, NewJob


class KeyKind(IntEnum):
    IDEMPOTENCY = 1
    UNIQUE = 2


class KeyName(NamedTuple):
    task: str
    kind: KeyKind
    key: str


class KeyRecord(msgspec.Struct, frozen=True):
    """A key that was taken. `expires_at` is None while its job is unfinished."""

    job: UUID
    fingerprint: bytes | None = None
    window_until: datetime | None = None
    expires_at: datetime | None = None

    def is_live(self, now: datetime) -> bool:
        return self.expires_at is None or self.expires_at > now


def keys_of(job: NewJob | JobRecord) -> list[KeyName]:
    keys: list[KeyName] = []
    if job.idempotency_key is not None:
        keys.append(KeyName(job.task, KeyKind.IDEMPOTENCY, job.idempotency_key))
    if job.unique_key is not None:
        keys.append(KeyName(job.task, KeyKind.UNIQUE, job.unique_key))
    return keys


def holder_of(new: NewJob, taken: Mapping[KeyName, KeyRecord], now: datetime) -> UUID | None:
    """The job that a new one's keys lead to, if any; IdempotencyConflict if that has other arguments."""
    for name in keys_of(new):
        record = taken.get(name)
        if record is None or not record.is_live(now):
            continue
        if name.kind is KeyKind.IDEMPOTENCY and record.fingerprint != new.fingerprint:
            raise conflict_over_key(name.task, name.key, record.job)
        return record.job
    return None


def taken_by(new: NewJob, now: datetime) -> dict[KeyName, KeyRecord]:
    """The keys that a new job takes."""
    window_until = None if new.unique_window is None else now + new.unique_window
    return {
        name: KeyRecord(new.id, new.fingerprint)
        if name.kind is KeyKind.IDEMPOTENCY
        else KeyRecord(new.id, window_until=window_until)
        for name in keys_of(new)
    }


def closed(kind: KeyKind, record: KeyRecord, now: datetime, retention: timedelta) -> KeyRecord:
    """Its job has ended: from now on the key has an end too."""
    if kind is KeyKind.IDEMPOTENCY:
        return replace(record, expires_at=now + retention)
    return replace(record, expires_at=max(now, record.window_until or now))


def rival(job: JobRecord, taken: Mapping[KeyName, KeyRecord], now: datetime) -> UUID | None:
    """The other job that has a key of this one by now, so that this one may not run again."""
    for name in keys_of(job):
        record = taken.get(name)
        if record is not None and record.job != job.id and record.is_live(now):
            return record.job
    return None


def same_job(new: NewJob, task: str, args_json: str) -> UUID:
    """The id of a job that is there under this very id; IdempotencyConflict if it is another job."""
    if (new.task, new.args_json) != (task, args_json):
        raise conflict_over_id(new.id)
    return new.id


def conflict_over_key(task: str, key: str, existing: UUID) -> IdempotencyConflict:
    return IdempotencyConflict(
        f"Idempotency key {key!r} of task {task!r} was used with other arguments, "
        f"by job {existing}. Use a new key for a new request.",
        existing=existing,
    )


def conflict_over_id(existing: UUID) -> IdempotencyConflict:
    return IdempotencyConflict(
        f"Job {existing} is there already, with another task or other arguments. Leave id= out for a new job.",
        existing=existing,
    )
