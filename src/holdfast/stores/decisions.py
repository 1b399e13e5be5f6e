"""What the databases' stores decide alike once they have read the jobs concerned. No clock, no database.

The memory store says the same in its own words: it is what they are tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast import keys, lifecycle
from holdfast.codec import fingerprint
from holdfast.job import FINAL, Attempt, JobRecord, Stage
from holdfast.keys import KeyName, KeyRecord
from holdfast.lifecycle import GiveBack, Transition
from holdfast.store import Held, Ruling, Settled, Settlement, crash_of

Ended = tuple[JobRecord, Transition]
"""An active job, and what is to become of it."""


class Changes(msgspec.Struct):
    """Records before and after, what goes into the history of those whose attempt has ended, and keys taken back."""

    pairs: list[tuple[JobRecord, JobRecord]] = []
    attempts: dict[UUID, Attempt] = {}
    reopened: dict[KeyName, KeyRecord] = {}
    unstarted: set[UUID] = set()
    """Jobs that were given back, and whose tasks were not begun."""


def judge_settlements(
    settlements: Sequence[Settlement], jobs: Mapping[UUID, JobRecord]
) -> tuple[list[Settled], list[Ended]]:
    """Which settlements hold, by the tokens of their claims."""
    answers: list[Settled] = []
    transitions: dict[UUID, Transition] = {}
    for settlement in settlements:
        job = jobs.get(settlement.id)
        if job is None or job.token != settlement.token:
            answers.append(Settled.STALE)
        elif job.stage is not Stage.ACTIVE or settlement.id in transitions:
            answers.append(Settled.ALREADY)
        else:
            transitions[settlement.id] = settlement.transition
            answers.append(Settled.APPLIED)
    return answers, [(jobs[id], transition) for id, transition in transitions.items()]


def end(ended: Iterable[Ended], now: datetime, *, keep_token: bool = True) -> Changes:
    """Apply transitions to active jobs. Without its token a job can't be settled by its former holder."""
    changes = Changes()
    for job, transition in ended:
        after = lifecycle.finish(job, transition, now)
        changes.pairs.append((job, after if keep_token else replace(after, token=None)))
        if attempt := lifecycle.ended_attempt(job, transition, now):
            changes.attempts[job.id] = attempt
        if isinstance(transition, GiveBack) and transition.is_unstarted:
            changes.unstarted.add(job.id)
    return changes


def rescue(orphans: Sequence[JobRecord], now: datetime) -> Changes:
    """Their worker is gone."""
    return end(
        [(job, lifecycle.after_crash(job, crash_of(job.worker))) for job in orphans],
        now,
        keep_token=False,
    )


def depart(held: Sequence[JobRecord], now: datetime) -> Changes:
    """Their worker has taken leave."""
    return end([(job, lifecycle.after_departure(job)) for job in held], now, keep_token=False)


def release(unheld: Sequence[JobRecord], now: datetime) -> Changes:
    """Their worker does not know of them: mostly the answer to its claim was lost, but nobody knows that for sure."""
    return end([(job, GiveBack()) for job in unheld], now, keep_token=False)


def expire(jobs: Sequence[JobRecord], now: datetime) -> Changes:
    """They were not started in time."""
    return Changes(
        [(job, lifecycle.expire(job, now)) for job in jobs],
        {job.id: lifecycle.failed_attempt(job, lifecycle.expired_failure(job), now) for job in jobs},
    )


class HeldJob(Protocol):
    """What must be known of an active job to compare it with what its worker believes."""

    @property
    def id(self) -> UUID: ...
    @property
    def token(self) -> UUID | None: ...
    @property
    def started_at(self) -> Any: ...
    @property
    def cancel_requested_at(self) -> object | None: ...


class Comparison(msgspec.Struct):
    """What a worker holds, and what the store thinks that it holds."""

    taken: list[UUID]
    """It holds them no more."""
    cancelled: list[UUID]
    """They are to be cancelled."""
    unheld: list[UUID]
    """It does not know of them: the answer to its claim was lost."""


def compare(mine: Iterable[HeldJob], held: Held, last_beat: datetime | int | None) -> Comparison:
    """`last_beat` is the time of the beat before this one, in whatever the jobs tell time by; None if nobody knows."""
    active = {job.id: job for job in mine}
    return Comparison(
        [id for id, token in held.jobs.items() if id not in active or active[id].token != token],
        [id for id, job in active.items() if job.cancel_requested_at is not None and id in held.jobs],
        [id for id, job in active.items() if is_unheld(job, held, last_beat)],
    )


def is_unheld(job: HeldJob, held: Held, last_beat: datetime | int | None) -> bool:
    """Its worker does not know of it, and would if it were to come yet: the claim is older than the last beat."""
    if held.jobs.get(job.id) == job.token or job.token in held.claiming:
        return False
    return last_beat is not None and bool(job.started_at <= last_beat)


class WatchedKeys:
    """Who has the keys of jobs that a person wants to run again, and those that they take back."""

    def __init__(self, found: Mapping[KeyName, KeyRecord], now: datetime) -> None:
        self._found = dict(found)
        self._now = now
        self.reopened: dict[KeyName, KeyRecord] = {}

    def rival(self, job: JobRecord) -> UUID | None:
        """The other job that has a key of this one by now."""
        return keys.rival(job, self._found, self._now)

    def reopen(self, job: JobRecord) -> None:
        """The job runs again, so its keys have no end any more."""
        for name in keys.keys_of(job):
            record = self._found.get(name)
            if record is None or record.job != job.id:
                record = KeyRecord(job.id, fingerprint(job.args_json))
            self.reopened[name] = self._found[name] = replace(record, expires_at=None)


class Steering(msgspec.Struct):
    """What came of a person's wish, for each job."""

    rulings: dict[UUID, Ruling]
    changes: Changes

    @property
    def asked_to_stop(self) -> list[UUID]:
        """Running jobs whose cancellation was asked for."""
        return [after.id for before, after in self.changes.pairs if after.stage is Stage.ACTIVE and after is not before]


def steer(
    ids: Iterable[UUID],
    jobs: Mapping[UUID, JobRecord],
    change: Callable[[JobRecord], JobRecord | None],
    watched: WatchedKeys | None = None,
) -> Steering:
    """Change the jobs whose state allows it. If their keys are watched, no other job may have one of them by now."""
    steering = Steering({}, Changes(reopened=watched.reopened if watched is not None else {}))
    for id in dict.fromkeys(ids):
        job = jobs.get(id)
        holder = watched.rival(job) if watched is not None and job is not None else None
        changed = None if job is None or holder is not None else change(job)
        if job is not None and changed is not None:
            steering.changes.pairs.append((job, changed))
            if watched is not None:
                watched.reopen(changed)
        shown = changed or job
        steering.rulings[id] = Ruling(changed is not None, shown.state if shown else None, holder)
    return steering


def newly_final(pairs: Iterable[tuple[JobRecord, JobRecord]]) -> list[JobRecord]:
    return [after for before, after in pairs if after.stage in FINAL and before.stage not in FINAL]
