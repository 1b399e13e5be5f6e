"""Compares what tasks wrote down with what the database says in the end, and names every promise that was broken.

    lost       acknowledged, and not in the database
    stuck      in no final state, after everything has come to rest
    unfounded  completed, and no run of it ever ended well
    stale      completed with the result of a run that another one had followed
    doubled    started again after it had reached a final state
    repeated   at-most-once, and started more than once
    charged    more attempts were charged than it has failed by itself
    rewritten  what it wrote through ctx.tx is not there exactly once, see tests/worker/test_ledger.py
    crowded, hasty, disordered: a limit, a rate or an order was passed, see traffic_checker.py

Recovery is how long it took from the kill of a process until each job that ran in it ran again. What is promised of it
depends on how much was killed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

from holdfast.job import Delivery, JobRecord, JobState
from tests.crash import traffic_checker
from tests.crash.traffic_checker import Bounds
from tests.worker.history import KILL, Event

BIRTH = "startup"
"""What a process writes down when it is ready to run jobs."""
_NOT_ITS_FAULT = ("CancelledError",)
"""With this a task ends that its worker has stopped."""


class Fate(StrEnum):
    """How much is killed, from little to much."""

    CHILD = "child killed, warm"
    COLD = "child killed, cold"
    """Who ran the job again had to be started first, with all that the app imports: a process for an isolated job, or
    the next child, if the spare one was killed too."""
    WORKER = "whole worker killed"
    EVERYTHING = "everything killed"
    """Nobody is left: how long it takes is up to who starts the next worker, and when."""
    CUT_OFF = "cut off"
    """Nobody sees it die, and its locks stay taken: a machine that is lost, a worker that was stopped."""


PROMISED: Final = {Fate.CHILD: 1.0, Fate.COLD: 1.0, Fate.WORKER: 5.0, Fate.EVERYTHING: math.inf, Fate.CUT_OFF: 35.0}
"""Seconds. A cold start is told apart to show why it takes longer; what is promised is the same."""
PROMISES: Final = (
    "lost",
    "stuck",
    "unfounded",
    "stale",
    "doubled",
    "repeated",
    "charged",
    "rewritten",
    "crowded",
    "hasty",
    "disordered",
)


def quantile(times: Iterable[float], part: float) -> float:
    """NaN if there is nothing."""
    ordered = sorted(times)
    return ordered[min(math.ceil(part * len(ordered)), len(ordered)) - 1] if ordered else math.nan


@dataclass
class Findings:
    """What was found. Everything but recovery must be empty."""

    jobs: int = 0
    runs: int = 0
    lost: list[UUID] = field(default_factory=list)
    stuck: list[UUID] = field(default_factory=list)
    unfounded: list[UUID] = field(default_factory=list)
    stale: list[UUID] = field(default_factory=list)
    doubled: list[UUID] = field(default_factory=list)
    repeated: list[UUID] = field(default_factory=list)
    charged: list[UUID] = field(default_factory=list)
    rewritten: list[UUID] = field(default_factory=list)
    crowded: list[UUID] = field(default_factory=list)
    hasty: list[UUID] = field(default_factory=list)
    disordered: list[UUID] = field(default_factory=list)
    recovery: dict[Fate, list[float]] = field(default_factory=dict)

    @property
    def broken(self) -> dict[str, list[UUID]]:
        """The promises that were broken, each with its jobs."""
        return {name: found for name in PROMISES if (found := getattr(self, name))}

    @property
    def late(self) -> dict[Fate, float]:
        """The longest recovery of each fate for which it was longer than is promised."""
        longest = {fate: max(times) for fate, times in self.recovery.items()}
        return {fate: longest[fate] for fate in longest if longest[fate] > PROMISED[fate]}

    def __str__(self) -> str:
        times = "; ".join(
            f"{len(times)} {fate}: p50 {quantile(times, 0.5):.2f} s, p99 {quantile(times, 0.99):.2f} s, "
            f"max {max(times):.2f} s"
            for fate, times in self.recovery.items()
        )
        return f"{self.jobs} jobs, {self.runs} runs; {times or 'no recovery'}; broken: {self.broken or 'nothing'}"


def check(
    acknowledged: Iterable[UUID],
    records: Iterable[JobRecord],
    events: Sequence[Event],
    bounds: Mapping[UUID, Bounds] | None = None,
    lateness: float = 0.0,
) -> Findings:
    """`records` is all that the database has, once everything has come to rest; `events` all that was written down;
    `bounds` what some of the jobs were under, in the order of enqueuing.
    """
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
    if bounds:
        runs = traffic_checker.runs_of(events)
        findings.crowded = traffic_checker.crowded(bounds, runs)
        findings.hasty = traffic_checker.hasty(bounds, runs, lateness)
        findings.disordered = traffic_checker.disordered(bounds, runs)
    return findings


def _check_job(findings: Findings, record: JobRecord, events: list[Event]) -> None:
    starts = [event for event in events if event.what == "start"]
    ends = [event for event in events if event.what == "end"]
    if not record.state.is_final:
        findings.stuck.append(record.id)
    if record.state is JobState.COMPLETED and not any(event.note == "" for event in ends):
        findings.unfounded.append(record.id)
    if record.state is JobState.COMPLETED and record.result_json is not None:
        # A run that signs its result has written its signature down when it started.
        result = msgspec.json.decode(record.result_json)
        if result in [start.note for start in starts[:-1] if start.note]:
            findings.stale.append(record.id)
    if record.finished_at is not None and any(start.time > record.finished_at.timestamp() for start in starts):
        findings.doubled.append(record.id)
    if record.delivery is Delivery.AT_MOST_ONCE and len(starts) > 1:
        findings.repeated.append(record.id)
    failures = sum(event.note != "" and event.note not in _NOT_ITS_FAULT for event in ends)
    # An at-most-once job that was lost keeps the attempt that it may have used.
    may_be_charged = failures + (record.state is JobState.COMPLETED or record.delivery is Delivery.AT_MOST_ONCE)
    if record.attempt > may_be_charged:
        findings.charged.append(record.id)


def _recovery(events: Sequence[Event], by_job: dict[UUID, list[Event]]) -> dict[Fate, list[float]]:
    found: dict[Fate, list[float]] = {}
    kills = [event for event in events if event.what == KILL]
    born = {event.pid: event.at for event in events if event.what == BIRTH}
    by_pid: dict[int, Event] = {}
    for kill in kills:
        by_pid.setdefault(kill.pid, kill)  # the dead can't be killed again
    for kill in by_pid.values():
        for mine in by_job.values():
            again = _run_again(kill, mine)
            if again is not None:
                # Who was to recover it may have been killed meanwhile, with more than that.
                fate = max((Fate(each.note) for each in kills if kill.at <= each.at < again.at), key=_HARDSHIP.index)
                if fate is Fate.CHILD and born.get(again.pid, 0.0) > kill.at:
                    fate = Fate.COLD
                found.setdefault(fate, []).append(again.at - kill.at)
    return found


_HARDSHIP = list(Fate)


def _run_again(kill: Event, events: list[Event]) -> Event | None:
    """When a job ran again that was running in the killed process; None if it was not, or never ran again."""
    here = [event for event in events if event.pid == kill.pid and event.at <= kill.at]
    if not here or here[-1].what != "start":
        return None
    again = [event for event in events if event.what == "start" and event.at > kill.at]
    return min(again, key=lambda event: event.at, default=None)
