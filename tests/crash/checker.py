"""Compares what tasks wrote down with what the database says in the end, and names every promise that was broken.

    lost       acknowledged, and not in the database
    stuck      in no final state, after everything has come to rest
    unfounded  completed, and no run of it ever ended well
    doubled    started again after it had reached a final state
    repeated   at-most-once, and started more than once
    charged    more attempts were charged than it has failed by itself

Recovery is how long it took from the kill of a process until each job that ran in it ran again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from holdfast.job import Delivery, JobRecord, JobState
from tests.worker.history import Event

KILL = "kill"
"""What a test writes down with the pid of a process that it is about to kill."""
_NOT_ITS_FAULT = ("CancelledError",)
"""With this a task ends that its worker has stopped."""


@dataclass
class Findings:
    """What was found. Everything but recovery must be empty."""

    jobs: int = 0
    runs: int = 0
    lost: list[UUID] = field(default_factory=list)
    stuck: list[UUID] = field(default_factory=list)
    unfounded: list[UUID] = field(default_factory=list)
    doubled: list[UUID] = field(default_factory=list)
    repeated: list[UUID] = field(default_factory=list)
    charged: list[UUID] = field(default_factory=list)
    recovery: list[float] = field(default_factory=list)

    @property
    def broken(self) -> dict[str, list[UUID]]:
        """The promises that were broken, each with its jobs."""
        names = ("lost", "stuck", "unfounded", "doubled", "repeated", "charged")
        return {name: found for name in names if (found := getattr(self, name))}

    def quantile(self, part: float) -> float:
        """Of the recovery times; NaN if nothing had to recover."""
        if not self.recovery:
            return math.nan
        ordered = sorted(self.recovery)
        return ordered[min(math.ceil(part * len(ordered)), len(ordered)) - 1]

    def __str__(self) -> str:
        p50, p99, longest = (self.quantile(part) for part in (0.5, 0.99, 1.0))
        return (
            f"{self.jobs} jobs, {self.runs} runs, {len(self.recovery)} recovered "
            f"(p50 {p50:.2f} s, p99 {p99:.2f} s, max {longest:.2f} s); broken: {self.broken or 'nothing'}"
        )


def check(acknowledged: Iterable[UUID], records: Iterable[JobRecord], events: Sequence[Event]) -> Findings:
    """`records` is all that the database has, once everything has come to rest; `events` all that was written down."""
    by_id = {record.id: record for record in records}
    findings = Findings(jobs=len(by_id), runs=sum(event.what == "start" for event in events))
    findings.lost = [id for id in acknowledged if id not in by_id]
    by_job: dict[UUID, list[Event]] = {}
    for event in events:
        if event.job is not None:
            by_job.setdefault(event.job, []).append(event)
    for id, record in by_id.items():
        _check_job(findings, record, by_job.get(id, []))
    findings.recovery = _recovery(events, by_job)
    return findings


def _check_job(findings: Findings, record: JobRecord, events: list[Event]) -> None:
    starts = [event for event in events if event.what == "start"]
    ends = [event for event in events if event.what == "end"]
    if not record.state.is_final:
        findings.stuck.append(record.id)
    if record.state is JobState.COMPLETED and not any(event.note == "" for event in ends):
        findings.unfounded.append(record.id)
    if record.finished_at is not None and any(start.time > record.finished_at.timestamp() for start in starts):
        findings.doubled.append(record.id)
    if record.delivery is Delivery.AT_MOST_ONCE and len(starts) > 1:
        findings.repeated.append(record.id)
    failures = sum(event.note != "" and event.note not in _NOT_ITS_FAULT for event in ends)
    # An at-most-once job that was lost keeps the attempt that it may have used.
    may_be_charged = failures + (record.state is JobState.COMPLETED or record.delivery is Delivery.AT_MOST_ONCE)
    if record.attempt > may_be_charged:
        findings.charged.append(record.id)


def _recovery(events: Sequence[Event], by_job: dict[UUID, list[Event]]) -> list[float]:
    found = []
    for kill in events:
        if kill.what == KILL:
            for mine in by_job.values():
                found += _recovery_of(kill, mine)
    return found


def _recovery_of(kill: Event, events: list[Event]) -> list[float]:
    """When a job ran again that was running in the killed process; nothing if it was not, or never ran again."""
    here = [event for event in events if event.pid == kill.pid and event.at <= kill.at]
    if not here or here[-1].what != "start":
        return []
    again = [event.at for event in events if event.what == "start" and event.at > kill.at]
    return [min(again) - kill.at] if again else []
