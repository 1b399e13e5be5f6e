"""The record of a job: what it is, where it stands, what happened to it.

NewJob ──enqueue──▶ JobRecord ──claim──▶ ClaimedJob
                       └── Attempt, one for each time it ran
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.gates import LineRule
from holdfast.moment import from_microseconds


class JobState(StrEnum):
    """The state of a job, as people see it."""

    PENDING = "pending"
    ACTIVE = "active"
    RETRYING = "retrying"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DEAD = "dead"

    @property
    def is_final(self) -> bool:
        return self in (JobState.COMPLETED, JobState.CANCELLED, JobState.DEAD)


class Stage(IntEnum):
    """Where a job stands, as the stores keep it: one number, indexed.

    A waiting job (scheduled or ready) is shown as `pending`, or as `retrying`
    once an attempt has been charged to it.
    """

    SCHEDULED = 1
    READY = 2
    ACTIVE = 3
    COMPLETED = 4
    CANCELLED = 5
    DEAD = 6


class Lane(IntEnum):
    """Within one priority, what was given back goes before what is fresh."""

    GIVEN_BACK = 0
    FRESH = 1


class Delivery(StrEnum):
    """How often a job may run."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"
    TRANSACTIONAL = "transactional"


class FailureKind(StrEnum):
    """Why an attempt, or a job that never ran, failed."""

    ERROR = "error"
    TIMEOUT = "timeout"
    CRASH = "crash"
    LOST = "lost"
    EXPIRED = "expired"
    INVALID = "invalid"
    GAVE_UP = "gave_up"
    WAITED = "waited"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"


class Failure(msgspec.Struct, frozen=True):
    """What went wrong, as text: exceptions are never stored as objects.

    The texts come from anywhere, so what no database can hold is replaced, and what is too long is cut: a message
    at its end, a traceback at its beginning, since the last calls tell the most.
    """

    kind: FailureKind
    error_type: str
    message: str
    traceback: str | None = None

    def __post_init__(self) -> None:
        set_field = msgspec.structs.force_setattr
        set_field(self, "error_type", storable(self.error_type)[:200])
        set_field(self, "message", storable(self.message)[:LONGEST_MESSAGE])
        if self.traceback is not None:
            set_field(self, "traceback", storable(self.traceback)[-LONGEST_TRACEBACK:])


LONGEST_MESSAGE: Final = 4_000
LONGEST_TRACEBACK: Final = 32_000


def storable(text: str) -> str:
    """A text from anywhere, with a mark in place of what no database can hold."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job that is to be enqueued. Times are relative where they can be: the store's clock makes them absolute."""

    id: UUID
    task: str
    queue: str
    args_json: str
    priority: int = 5
    max_attempts: int = 5
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    delay: timedelta | None = None
    at: datetime | None = None
    expires_in: timedelta | None = None
    expires_at: datetime | None = None
    idempotency_key: str | None = None
    fingerprint: bytes | None = None
    unique_key: str | None = None
    unique_window: timedelta | None = None
    tags: tuple[str, ...] = ()
    context_json: str | None = None
    is_repeat: bool = False
    """The id was given by the caller: it may be there already."""
    line: LineRule | None = None
    """The limits that it is under, if it is under any."""
    is_exempt: bool = False
    """No bound refuses it, though it counts: it follows from a job that was accepted before."""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """All that the store knows of a job. Texts that end in `_json` are JSON as it was stored."""

    id: UUID
    task: str
    queue: str
    priority: int
    stage: Stage
    args_json: str
    max_attempts: int
    delivery: Delivery
    created_at: datetime
    due_at: datetime
    lane: Lane = Lane.FRESH
    place: int = 0
    attempt: int = 0
    runs: int = 0
    """How often it was claimed; of a job in a line, as far as its task may have been begun."""
    crashes: int = 0
    waits: int = 0
    pool_tries: int = 0
    generation: int = 0
    edits: int = 0
    expires_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    worker: UUID | None = None
    token: UUID | None = None
    result_json: str | None = None
    idempotency_key: str | None = None
    unique_key: str | None = None
    line: UUID | None = None
    """Where it stands, if it is under limits: see turns.py."""
    tags: tuple[str, ...] = ()
    context_json: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    cancel_requested_at: datetime | None = None
    cancel_reason: str | None = None
    breaker: str | None = None
    """If it is scheduled because it waits for a breaker: that one."""

    @property
    def state(self) -> JobState:
        return state_of(self.stage, self.attempt)

    @property
    def args(self) -> dict[str, Any]:
        return msgspec.json.decode(self.args_json, type=dict[str, Any])

    @property
    def context(self) -> dict[str, Any]:
        return msgspec.json.decode(self.context_json, type=dict[str, Any]) if self.context_json else {}

    @property
    def is_keyed(self) -> bool:
        return self.idempotency_key is not None or self.unique_key is not None

    def __repr__(self) -> str:
        # Arguments and results may be secret, so a record that is logged shows neither.
        tried = f"attempt {self.attempt}/{self.max_attempts}"
        return f"<JobRecord {self.id} {self.task} {self.state} queue={self.queue} {tried}>"


class ClaimedJob(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A job that its claimer may run now: what execution needs, and no more.

    Claiming is the busiest thing a store does, so this is an array that is read from JSON in one go.
    """

    id: UUID
    token: UUID
    task: str
    queue: str
    priority: int
    args_json: str
    attempt: int
    max_attempts: int
    runs: int
    crashes: int
    waits: int
    pool_tries: int
    edits: int
    delivery: Delivery
    created_microseconds: int
    due_microseconds: int
    idempotency_key: str | None
    has_unique_key: bool
    context_json: str | None
    is_lined: bool = False
    """It stands in a line: its end may make room for others."""
    behind: UUID | None = None
    """The job of the same order that was claimed before it. It may start when that is completed; if anything else comes
    of that, it is to be given back."""

    @property
    def created_at(self) -> datetime:
        return from_microseconds(self.created_microseconds)

    @property
    def due_at(self) -> datetime:
        return from_microseconds(self.due_microseconds)

    @property
    def is_keyed(self) -> bool:
        return self.has_unique_key or self.idempotency_key is not None

    @property
    def effect_key(self) -> str:
        """The key for effects outside: the same in every attempt, another once the arguments were edited."""
        key = self.idempotency_key or str(self.id)
        return f"{key}:{self.edits}" if self.edits else key


class Attempt(msgspec.Struct, frozen=True):
    """One run of a job, as it can be read afterwards. `failure` is None while it runs, and if it succeeded.

    A job that expired without running has one attempt with no start.
    """

    run: int
    generation: int
    started_at: datetime | None
    ended_at: datetime | None
    worker: UUID | None
    failure: Failure | None = None


WAITING = frozenset({Stage.SCHEDULED, Stage.READY})
FINAL = frozenset({Stage.COMPLETED, Stage.CANCELLED, Stage.DEAD})


def counts_as_waiting(stage: Stage, attempt: int) -> bool:
    """It fills its queue: it could run now, or has failed and will run again."""
    return stage is Stage.READY or (stage is Stage.SCHEDULED and attempt > 0)


def counts_as_scheduled(stage: Stage, attempt: int) -> bool:
    """It has never been tried and waits for its time, which has a bound of its own."""
    return stage is Stage.SCHEDULED and attempt == 0


def state_of(stage: Stage, attempt: int) -> JobState:
    """The state that people see."""
    if stage in WAITING:
        return JobState.RETRYING if attempt else JobState.PENDING
    return _SHOWN[stage]


_SHOWN = {
    Stage.ACTIVE: JobState.ACTIVE,
    Stage.COMPLETED: JobState.COMPLETED,
    Stage.CANCELLED: JobState.CANCELLED,
    Stage.DEAD: JobState.DEAD,
}
