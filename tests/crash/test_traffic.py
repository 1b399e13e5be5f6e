"""Limits, rates, orders and fairness hold between real workers that race, and a dead holder gives back what it held."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast import Job, JobState
from tests.crash.checker import PROMISED, Fate
from tests.crash.killing import SLACK, check_promises, findings_of, kill
from tests.crash.rounds import IS_THOROUGH
from tests.crash.traffic_checker import Bounds, LimitBound, RateBound, mostly_used, used
from tests.worker.database import LIMITED_DATABASES, database
from tests.worker.history import History
from tests.worker.limited import MOST, PER, RATE, SHORT, make_app
from tests.worker.program import Client, Program, client_of, until

APP = "tests.worker.limited:hf"
WINDOWS = {"rated": PER, "rated_shortly": SHORT}
"""Seconds in which each of these tasks starts so many of a key."""


@pytest.fixture(params=LIMITED_DATABASES)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    with database(request, tmp_path) as url, client_of(url, History(tmp_path / "history"), make_app) as client:
        yield client


class Crowd:
    """Jobs under limits, in the order of enqueuing, with what each of them is under."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.jobs: list[Job[Any]] = []
        self.bounds: dict[UUID, Bounds] = {}

    def add(self, task: str, bounds: Bounds, **arguments: Any) -> Job[Any]:
        job = self._client.enqueue(task, **arguments)
        self.jobs.append(job)
        self.bounds[job.id] = bounds
        return job

    def add_many(self, task: str, count: int, bounds: Bounds, **arguments: Any) -> None:
        jobs = self._client.enqueue_many(task, count, **arguments)
        self.jobs += jobs
        self.bounds |= {job.id: bounds for job in jobs}

    def limited(self, key: str, count: int, seconds: float = 0.0) -> None:
        self.add_many("limited", count, Bounds(LimitBound(f"limited {key}", MOST)), key=key, seconds=seconds)

    def rated(self, task: str, key: str, windows: int) -> None:
        bound = RateBound(f"{task} {key}", RATE, WINDOWS[task])
        self.add_many(task, windows * RATE, Bounds(rate=bound), key=key)

    def ordered(self, key: str, failures: int = 0) -> None:
        self.add("ordered", Bounds(order=f"ordered {key}"), key=key, failures=failures)

    def combined(self, tenant: str, key: str, failures: int = 0) -> None:
        bounds = Bounds(LimitBound(f"combined {tenant}", MOST), order=f"combined {tenant} {key}")
        self.add("combined", bounds, tenant=tenant, key=key, failures=failures)

    def sticky(self) -> list[Job[Any]]:
        """Jobs that hold all places of a limit, and an order, until they are run again; once they run."""
        limited = Bounds(LimitBound("limited held", MOST))
        jobs = [self.add("limited_stick", limited, key="held") for _ in range(MOST)]
        jobs.append(self.add("ordered_stick", Bounds(order="ordered held"), key="held"))
        for job in jobs:
            self._client.started(job)
        return jobs


def workers(stack: ExitStack, client: Client, number: int, *options: str) -> list[Program]:
    programs = [stack.enter_context(Program(client.url, client.history, *options, app=APP)) for _ in range(number)]
    client.working(number)
    return programs


def lateness_of(client: Client, jobs: Sequence[Job[Any]]) -> float:
    """By how much longer than another one a job took from its claim, as the store says, to its start."""
    starts = {event.job: event.time for event in client.history.read("start")}
    ways = [
        starts[record.id] - record.started_at.timestamp()
        for record in client.records(jobs)
        if record.started_at is not None and record.runs == 1
    ]
    return max(ways, default=0.0) - min(ways, default=0.0)


# ── races ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_workers_that_race_pass_no_limit_and_keep_every_order(client: Client) -> None:
    chance, crowd = random.Random("race"), Crowd(client)
    with ExitStack() as stack:
        workers(stack, client, 3, "-p", "1", "-c", "12")
        for number in range(60 if IS_THOROUGH else 8):
            for key in "abc":
                crowd.limited(key, 4, seconds=chance.choice([0.0, 0.005, 0.03]))
            for key in "uvwxyz":
                crowd.ordered(key, failures=int(number % 3 == 0))
            for tenant in "mn":
                for key in "xyz":
                    crowd.combined(tenant, key, failures=int(number % 4 == 0))
        findings = findings_of(client, crowd.jobs, crowd.bounds)
    assert findings.broken == {}
    assert len({event.pid for event in client.history.read("start")}) >= 3, "they did race"


@pytest.mark.serial  # else it would measure what the other tests leave of the machine
def test_workers_that_race_pass_no_rate_and_use_nearly_all_of_it(client: Client) -> None:
    crowd, windows = Crowd(client), 20 if IS_THOROUGH else 3
    with ExitStack() as stack:
        workers(stack, client, 2, "-p", "1", "-c", "12")
        for key in "ab":
            for task, per in WINDOWS.items():
                crowd.rated(task, key, int(windows * PER / per))
        client.ends_of(crowd.jobs, 4 * windows * PER + 60)
        findings = findings_of(client, crowd.jobs, crowd.bounds, lateness_of(client, crowd.jobs))
    assert findings.broken == {}
    # By the store's clock no window may be passed at all.
    claims: dict[tuple[str, str], list[float]] = {}
    for record in client.records(crowd.jobs):
        assert record.started_at is not None
        claims.setdefault((record.task, record.args["key"]), []).append(record.started_at.timestamp())
    for (task, _), times in claims.items():
        times.sort()
        per = WINDOWS[task]
        assert all(later - first >= per for first, later in zip(times, times[RATE:], strict=False))
        assert mostly_used(times, RATE, per) >= 0.95, task
        assert not IS_THOROUGH or used(times, RATE, per) >= 0.95, "the machine is idle but for this test"


def test_a_tenant_with_ten_jobs_is_done_long_before_one_with_thousands(client: Client) -> None:
    parts = 10 if IS_THOROUGH else 1
    large = [job for _ in range(parts) for job in client.enqueue_many("fair", 2_000, tenant="large")]
    with ExitStack() as stack:
        workers(stack, client, 2, "-p", "1", "-c", "4")
        client.started(large[0])
        small = client.enqueue_many("fair", 10, tenant="small")
        enqueued_at = time.monotonic()
        client.ends_of(small)
        client.ends_of(large)
    starts = client.history.read("start")
    order = [event.job for event in starts]
    waited = order.index(small[-1].id) - order.index(small[0].id)
    assert waited < 200, "each of them waited for about one of the others"
    # Counted from when they were there: a slow machine may have run many before.
    before = sum(event.at < enqueued_at for event in starts)
    assert before < len(large) * 9 / 10, "the others had something to do"
    assert max(order.index(job.id) for job in small) - before < 300


# ── kills ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _recovers(client: Client, crowd: Crowd, sticky: list[Job[Any]], fate: Fate) -> None:
    """What was held comes back to those who wait for it, in time, and no limit was passed meanwhile."""
    waiting = [job for job in crowd.jobs if job not in sticky]
    findings = findings_of(client, crowd.jobs, crowd.bounds)
    check_promises(findings)
    assert sum(map(len, findings.recovery.values())) == len(sticky)
    last_kill = max(event.at for event in client.history.read("kill"))
    first = min(event.at for event in client.history.read("start") if event.job in [job.id for job in waiting])
    assert first - last_kill < PROMISED[fate] + SLACK, "the places that were held are free"
    assert {job.record().attempt for job in sticky} == {1}, "nobody is charged for a kill"


def test_a_killed_child_gives_back_the_places_and_the_orders_that_it_held(client: Client) -> None:
    crowd = Crowd(client)
    with ExitStack() as stack:
        workers(stack, client, 1, "-p", "2", "-c", "8")
        client.working(2)
        sticky = crowd.sticky()
        crowd.limited("held", 12)
        for _ in range(6):
            crowd.ordered("held")
        for child in {job.record().worker for job in sticky}:
            kill(client, Fate.CHILD, next(worker.pid for worker in client.workers() if worker.id == child))
        _recovers(client, crowd, sticky, Fate.CHILD)


def test_a_killed_worker_gives_back_the_places_and_the_orders_that_it_held(client: Client) -> None:
    crowd = Crowd(client)
    with ExitStack() as stack:
        (first,) = workers(stack, client, 1, "-p", "1", "-c", "8")
        sticky = crowd.sticky()
        workers(stack, client, 1, "-p", "1", "-c", "8")
        client.working(2)
        crowd.limited("held", 12)
        for _ in range(6):
            crowd.ordered("held")
        kill(client, Fate.WORKER, first.pid)
        _recovers(client, crowd, sticky, Fate.WORKER)


@pytest.mark.skipif(not IS_THOROUGH, reason="a long one: HOLDFAST_THOROUGH=1 runs it")
def test_kills_at_any_moment_pass_no_limit_for_a_long_time(client: Client) -> None:
    """In episodes with two kills each: a job that is lost with its process for the third time goes dead by design."""
    chance, crowd = random.Random("long"), Crowd(client)

    def is_over() -> bool:
        return not client.count(JobState.PENDING, JobState.ACTIVE, JobState.RETRYING)

    with ExitStack() as stack:
        programs = workers(stack, client, 2, "-p", "2", "-c", "8")
        for _ in range(15):
            for key in "abc":
                crowd.limited(key, 30, seconds=chance.choice([0.01, 0.05, 0.1]))
                for _ in range(20):
                    crowd.ordered(key, failures=chance.choice([0, 0, 1]))
                    crowd.combined(key, chance.choice("xy"), failures=chance.choice([0, 0, 1]))
            for _ in range(2):
                goal = len(client.history.read("end")) + chance.randint(1, 40)
                until(lambda goal=goal: len(client.history.read("end")) >= goal or is_over(), "some work")  # type: ignore[misc]
                if chance.random() < 0.2:
                    kill(client, Fate.WORKER, programs.pop(0).pid)
                    programs += workers(stack, client, 1, "-p", "2", "-c", "8")
                else:
                    kill(client, Fate.CHILD, chance.choice(client.working(1)).pid)
            client.ends_of(crowd.jobs, 120)
        check_promises(findings_of(client, crowd.jobs, crowd.bounds), Fate.CHILD)
