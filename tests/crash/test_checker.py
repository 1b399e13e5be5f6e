"""The checker is checked: it finds each thing that can be broken, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from holdfast.job import Delivery, JobRecord, Stage
from tests.crash.checker import BIRTH, Fate, Findings, check, quantile
from tests.worker.history import KILL, Event

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


def kill(at: float, pid: int = 1, fate: Fate = Fate.CHILD) -> Event:
    return event(KILL, at, pid, fate, job=None)


RUN = [event("start", 1), event("end", 2)]
KILLED = [event("start", 1), kill(2), event("start", 2.5, pid=2), event("end", 3, pid=2)]
SIGNED = [
    event("start", 1, note="of the first"),
    event("start", 3, pid=2, note="of the second"),
    event("end", 4, pid=2),
    event("end", 5),
]


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
        ("stale", [record(result_json='"of the first"')], SIGNED),
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


def test_a_result_is_that_of_the_latest_run() -> None:
    assert check([JOB], [record(result_json='"of the second"')], SIGNED).broken == {}


def test_recovery_is_counted_from_the_kill_of_the_process_in_which_the_job_ran() -> None:
    assert check([JOB], [record()], KILLED).recovery == {Fate.CHILD: [0.5]}
    assert check([JOB], [record()], [*RUN, kill(3)]).recovery == {}, "it had ended"
    assert check([JOB], [record()], [RUN[0], kill(1.5, pid=7), RUN[1]]).recovery == {}, "it ran elsewhere"
    twice = [event("start", 1), kill(2), event("start", 3, pid=2), kill(4, pid=2), event("start", 8, pid=3)]
    assert check([JOB], [record()], twice).recovery == {Fate.CHILD: [1, 4]}


def test_recovery_is_counted_under_the_worst_that_happened_until_then() -> None:
    events = [event("start", 1), kill(2), kill(3, pid=8, fate=Fate.WORKER), event("start", 6, pid=2), kill(7, pid=9)]
    assert check([JOB], [record()], events).recovery == {Fate.WORKER: [4]}


def test_a_recovery_for_which_a_process_had_to_be_started_is_told_apart() -> None:
    cold = [KILLED[0], kill(2), event(BIRTH, 2.2, pid=2, job=None), *KILLED[2:]]
    assert check([JOB], [record()], cold).recovery == {Fate.COLD: [0.5]}
    warm = [event(BIRTH, 0.5, pid=2, job=None), *KILLED]
    assert check([JOB], [record()], warm).recovery == {Fate.CHILD: [0.5]}


def test_the_dead_cannot_be_killed_again() -> None:
    events = [event("start", 1), kill(2, fate=Fate.WORKER), kill(4), event("start", 5, pid=2)]
    assert check([JOB], [record()], events).recovery == {Fate.WORKER: [3]}


def test_a_recovery_that_took_longer_than_is_promised_is_late() -> None:
    findings = Findings(recovery={Fate.CHILD: [0.2, 1.1], Fate.WORKER: [1.1, 4.9], Fate.CUT_OFF: [36, 3]})
    assert findings.late == {Fate.CHILD: 1.1, Fate.CUT_OFF: 36}


def test_the_quantiles_are_those_of_the_recovery_times() -> None:
    times = [float(number) for number in range(1, 101)]
    assert (quantile(times, 0.5), quantile(times, 0.99), quantile(times, 1.0)) == (50, 99, 100)
    shown = str(Findings(recovery={Fate.CHILD: times}))
    assert "100 child killed, warm: p50 50.00 s, p99 99.00 s, max 100.00 s" in shown


def test_jobs_are_told_apart() -> None:
    other = uuid4()
    events = [*RUN, event("start", 1, pid=2, job=other)]
    findings = check([JOB, other], [record(), replace(record(), id=other)], events)
    assert findings.broken == {"unfounded": [other]}
    assert (findings.jobs, findings.runs) == (2, 2)
