"""The checker is checked: it finds each thing that can be broken, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from holdfast.job import Delivery, JobRecord, Stage
from tests.crash.checker import Findings, check
from tests.worker.history import Event

JOB = uuid4()


def record(stage: Stage = Stage.COMPLETED, **facts: Any) -> JobRecord:
    usual: dict[str, Any] = {
        "id": JOB,
        "task": "t",
        "queue": "q",
        "priority": 5,
        "stage": stage,
        "args_json": "{}",
        "max_attempts": 5,
        "delivery": Delivery.AT_LEAST_ONCE,
        "created_at": datetime.fromtimestamp(0, UTC),
        "due_at": datetime.fromtimestamp(0, UTC),
        "attempt": 1,
        "finished_at": datetime.fromtimestamp(1000, UTC) if stage >= Stage.COMPLETED else None,
    }
    return JobRecord(**usual | facts)


def event(what: str, at: float, pid: int = 1, note: str = "", job: UUID | None = JOB) -> Event:
    return Event(what, job, "t", 1, note, pid, at, 900 + at)


def kill(at: float, pid: int = 1) -> Event:
    return event("kill", at, pid, job=None)


RUN = [event("start", 1), event("end", 2)]
KILLED = [event("start", 1), kill(2), event("start", 2.5, pid=2), event("end", 3, pid=2)]


@pytest.mark.parametrize("events", [RUN, KILLED])
def test_a_job_that_came_to_its_end_breaks_nothing(events: list[Event]) -> None:
    assert check([JOB], [record()], events).broken == {}


@pytest.mark.parametrize(
    ("broken", "records", "events"),
    [
        ("lost", [], RUN),
        ("stuck", [record(Stage.READY, attempt=0)], []),
        ("stuck", [record(Stage.ACTIVE, attempt=0)], [event("start", 1)]),
        ("unfounded", [record()], [event("start", 1)]),
        ("unfounded", [record(attempt=1)], [event("start", 1), event("end", 2, note="CancelledError")]),
        ("doubled", [record()], [*RUN, event("start", 101, pid=2), event("end", 102, pid=2)]),
        ("repeated", [record(Stage.DEAD, delivery=Delivery.AT_MOST_ONCE)], KILLED),
        ("charged", [record(attempt=2)], KILLED),
        ("charged", [record(Stage.DEAD, attempt=1)], [event("start", 1), kill(2)]),
    ],
)
def test_what_is_broken_is_found(broken: str, records: list[JobRecord], events: list[Event]) -> None:
    assert list(check([JOB], records, events).broken) == [broken]


def test_attempts_that_failed_by_themselves_are_charged_rightly() -> None:
    events = [event("start", 1), event("end", 2, note="ValueError"), event("start", 3), event("end", 4)]
    assert check([JOB], [record(attempt=2)], events).broken == {}
    assert check([JOB], [record(attempt=3)], events).broken == {"charged": [JOB]}


def test_an_at_most_once_job_may_be_lost_but_not_repeated() -> None:
    lost = record(Stage.DEAD, delivery=Delivery.AT_MOST_ONCE)
    assert check([JOB], [lost], [event("start", 1), kill(2)]).broken == {}


def test_recovery_is_counted_from_the_kill_of_the_process_in_which_the_job_ran() -> None:
    assert check([JOB], [record()], KILLED).recovery == [0.5]
    assert check([JOB], [record()], [*RUN, kill(3)]).recovery == [], "it had ended"
    assert check([JOB], [record()], [RUN[0], kill(1.5, pid=7), RUN[1]]).recovery == [], "it ran elsewhere"
    twice = [event("start", 1), kill(2), event("start", 3, pid=2), kill(4, pid=2), event("start", 8, pid=3)]
    assert check([JOB], [record()], twice).recovery == [1, 4]


def test_the_quantiles_are_those_of_the_recovery_times() -> None:
    findings = Findings(recovery=[float(number) for number in range(1, 101)])
    assert (findings.quantile(0.5), findings.quantile(0.99), findings.quantile(1.0)) == (50, 99, 100)
    assert "p50 50.00 s, p99 99.00 s, max 100.00 s" in str(findings)


def test_jobs_are_told_apart() -> None:
    other = uuid4()
    events = [*RUN, event("start", 1, pid=2, job=other)]
    findings = check([JOB, other], [record(), replace(record(), id=other)], events)
    assert findings.broken == {"unfounded": [other]}
    assert (findings.jobs, findings.runs) == (2, 2)
