"""G4, G5 and G12: real workers are killed and stopped at bad moments, and every job comes to its one end."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast import Job
from holdfast.clock import SystemClock
from holdfast.ids import Ids
from holdfast.job import JobState, NewJob
from tests.crash.checker import PROMISED, Fate
from tests.crash.killing import SLACK, check_promises, findings_of, kill
from tests.crash.rounds import IS_THOROUGH, rounds
from tests.worker.database import DATABASES, database
from tests.worker.history import KILL, History
from tests.worker.program import Client, Program, client_of, is_alive, until


@pytest.fixture(params=["sqlite", "postgres"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    with database(request, tmp_path) as url, client_of(url, History(tmp_path / "history")) as client:
        yield client


def _sticky(client: Client, number: int) -> list[Job[Any]]:
    """Jobs that come to an end only if they are run again; return when all of them run."""
    tasks = ["stick", "stick", "thread_stick", "alone_stick"]
    jobs = [client.enqueue(tasks[each % len(tasks)]) for each in range(number)]
    for job in jobs:
        client.started(job)
    return jobs


SQLITE_WILL_DO = pytest.mark.parametrize("client", DATABASES, indirect=True)
"""For what happens in the worker, whatever the database."""


# ── a child ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@SQLITE_WILL_DO
def test_a_killed_child_loses_no_job_and_charges_nobody(client: Client) -> None:
    with Program(client.url, client.history, "-p", "2", "-c", "16") as program:
        children = client.working(2)
        sticky = _sticky(client, 16)
        quick = client.enqueue_many("quick", 300)
        for child in children:
            lost = [job for job in sticky if job.record().worker == child.id]
            kill(client, Fate.CHILD, child.pid)
            for job in lost:
                client.end_of(job)
        findings = findings_of(client, [*sticky, *quick])
        check_promises(findings, Fate.CHILD, Fate.COLD)
        assert sum(map(len, findings.recovery.values())) >= 16
        assert len(client.working(2)) == 2, "they were replaced"
        assert len(re.findall(r"child \d+ was killed by SIGKILL", program.output)) == 2


# ── a supervisor ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_children_die_with_their_supervisor_and_another_worker_takes_over(client: Client) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(Program(client.url, client.history, "-p", "1"))
        client.working(1)
        jobs = _sticky(client, 8)
        stack.enter_context(Program(client.url, client.history, "-p", "1"))
        client.working(2)
        family = first.family()
        assert len(family) >= 3
        kill(client, Fate.WORKER, first.pid)
        until(lambda: not any(map(is_alive, family)), "the whole family to be dead")
        findings = findings_of(client, jobs)
        check_promises(findings, Fate.WORKER)
        assert len(findings.recovery[Fate.WORKER]) == 8


@SQLITE_WILL_DO
def test_after_everything_was_killed_the_next_worker_takes_over(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1") as program:
        client.working(1)
        jobs = _sticky(client, 4)
        kill(client, Fate.EVERYTHING, program.pid, *program.family())
    waiting = client.enqueue_many("quick", 50)
    with Program(client.url, client.history, "-p", "1"):
        waiting[0].result("60s")
        ready = client.history.read("start", waiting[0].id)[0].at
        findings = findings_of(client, [*jobs, *waiting])
        check_promises(findings, Fate.EVERYTHING)
        assert len(findings.recovery[Fate.EVERYTHING]) == 4
        assert max(findings.recovery[Fate.EVERYTHING]) < 5 + 2 * SLACK, "the new worker has to start as well"
        for job in jobs:
            took_over = client.history.read("start", job.id)[-1].at
            assert took_over - ready < PROMISED[Fate.WORKER] + SLACK, "once there is a worker again"


# ── a worker that is taken for dead, and is not ──────────────────────────────────────────────────────────────────────


def test_a_worker_that_wakes_up_after_its_funeral_is_refused_and_begins_anew(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1") as program:
        (before,) = client.working(1)
        job = client.enqueue("sleep", seconds=0.5)
        client.started(job)
        everybody = [program.pid, *program.family()]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        sightings = {each.worker: each.beat for each in client.ask(client.store.sightings())}
        assert client.ask(client.store.rescue({before.id: sightings[before.id]})) == [job.id]
        rescued = job.record()
        assert (rescued.state, rescued.attempt, rescued.crashes) == (JobState.PENDING, 0, 1)
        for pid in reversed(everybody):
            os.kill(pid, signal.SIGCONT)

        findings = findings_of(client, [job])
        assert findings.broken == {}
        assert (len(client.history.read("start", job.id)), job.record().attempt) == (2, 1)
        program.says("is not ours any more|was taken for dead")
        (after,) = until(lambda: [each for each in client.workers() if each.id != before.id], "it to register anew")
        assert after.pid != before.pid
        assert not is_alive(before.pid)
        assert client.enqueue("quick", number=3).result("60s") == 3


@pytest.mark.skipif(not IS_THOROUGH, reason="it takes half a minute: HOLDFAST_THOROUGH=1 runs it")
def test_workers_that_are_stopped_past_their_lease_are_replaced_and_refused_when_they_go_on(client: Client) -> None:
    """As if their machines were cut off: they hold their locks, and don't know that time has passed."""
    jobs: list[Job[Any]] = []
    with ExitStack() as stack:
        zombies = [stack.enter_context(Program(client.url, client.history, "-p", "1", "-c", "12")) for _ in range(3)]
        client.working(3)
        for _ in range(12):
            jobs += [client.enqueue(task, seconds=15) for task in ("sign", "thread_sign", "alone_sign")]
        for job in jobs:
            client.started(job)
        stack.enter_context(Program(client.url, client.history, "-p", "1", "-c", "40"))
        client.working(4)
        for zombie in zombies:
            _stop(client, zombie)
        for job in jobs:
            client.started(job, times=2)
        for zombie in zombies:
            _wake(zombie)
        findings = findings_of(client, jobs)
        check_promises(findings, Fate.CUT_OFF)
        assert len(findings.recovery[Fate.CUT_OFF]) == len(jobs)
        for zombie in zombies:
            zombie.says("is not ours any more|was taken for dead")
        records = [job.record() for job in jobs]
        assert {(record.attempt, record.crashes) for record in records} == {(1, 1)}
        client.working(4)
        assert client.enqueue("quick", number=3).result("60s") == 3


def _stop(client: Client, program: Program) -> None:
    family = [program.pid, *program.family()]
    for pid in family:
        client.history.write(KILL, pid=pid, note=Fate.CUT_OFF)
    for pid in family:
        os.kill(pid, signal.SIGSTOP)


def _wake(program: Program) -> None:
    for pid in (*program.family(), program.pid):
        os.kill(pid, signal.SIGCONT)


@pytest.mark.skipif(not IS_THOROUGH, reason="it takes half a minute: HOLDFAST_THOROUGH=1 runs it")
@SQLITE_WILL_DO
@pytest.mark.parametrize("is_busy", [True, False])
def test_a_child_that_is_stopped_is_replaced(client: Client, is_busy: bool) -> None:
    with Program(client.url, client.history, "-p", "1") as program:
        (before,) = client.working(1)
        client.enqueue("quick").result("60s")
        jobs = _sticky(client, 4) if is_busy else []
        os.kill(before.pid, signal.SIGSTOP)
        jobs.append(client.enqueue("quick"))
        program.says("its event loop has been blocked for")
        findings = findings_of(client, jobs)
        assert findings.broken == {}
        assert client.workers()[0].pid != before.pid


# ── at most once ─────────────────────────────────────────────────────────────────────────────────────────────────────


@SQLITE_WILL_DO
def test_an_at_most_once_job_never_starts_twice_whatever_is_killed(client: Client) -> None:
    chance = random.Random("once")
    with Program(client.url, client.history, "-p", "2", "-c", "4"):
        client.working(2)
        jobs = [client.enqueue("once_only", seconds=chance.choice([0.0, 0.2])) for _ in range(rounds(12))]
        others = client.enqueue_many("quick", rounds(100))
        for _ in range(20 if IS_THOROUGH else 3):
            # Children that die before they have done anything are started again more and more slowly.
            goal = len(client.history.read("end")) + chance.randint(1, 30)
            until(lambda goal=goal: len(client.history.read("end")) >= goal or _is_done(client), "some work")  # type: ignore[misc]
            kill(client, Fate.CHILD, chance.choice(client.working(1)).pid)
        findings = findings_of(client, [*jobs, *others])
        assert findings.broken == {}
        for job in jobs:
            record = job.record()
            if record.state is not JobState.COMPLETED:
                assert (record.state, client.kinds(job)[-1]) == (JobState.DEAD, "lost")


# ── at any moment ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not IS_THOROUGH, reason="a long one: HOLDFAST_THOROUGH=1 runs it")
def test_kills_at_any_moment_for_a_long_time(client: Client) -> None:
    """In episodes with two kills each: a job that is lost with its process for the third time goes dead by design."""
    chance = random.Random("long")
    jobs: list[Job[Any]] = []
    with ExitStack() as stack:
        programs = [stack.enter_context(Program(client.url, client.history, "-p", "2")) for _ in range(2)]
        for _ in range(30):
            jobs += client.enqueue_many("quick", 300)
            jobs += [client.enqueue(task, seconds=chance.random()) for task in ("sign", "thread_sign", "alone_sign")]
            jobs += [client.enqueue("once_only", seconds=0.1)]
            for _ in range(2):
                goal = len(client.history.read("end")) + chance.randint(1, 120)
                until(lambda goal=goal: len(client.history.read("end")) >= goal or _is_done(client), "work")  # type: ignore[misc]
                _kill_something(client, stack, programs, chance)
            until(lambda: _is_done(client), "the end of all jobs")
        check_promises(findings_of(client, jobs), Fate.CHILD, Fate.WORKER)


def _kill_something(client: Client, stack: ExitStack, programs: list[Program], chance: random.Random) -> None:
    match chance.randrange(10):
        case 0 | 1:
            kill(client, Fate.WORKER, programs.pop(0).pid)
        case 2:
            programs.pop(0).send(signal.SIGTERM)
        case _:
            kill(client, Fate.CHILD, chance.choice(client.working(1)).pid)
    if len(programs) < 2:
        programs.append(stack.enter_context(Program(client.url, client.history, "-p", "2")))


def _is_done(client: Client) -> bool:
    return client.count(JobState.PENDING, JobState.ACTIVE, JobState.RETRYING) == 0


# ── an app with a worker of its own ──────────────────────────────────────────────────────────────────────────────────

EMBEDDED = """
import asyncio, os, signal
from pathlib import Path
from holdfast import Holdfast

hf = Holdfast()

@hf.task
async def poison() -> None:
    with open("runs", "a") as runs:
        runs.write("x")
    os.kill(os.getpid(), signal.SIGKILL)

@hf.task
async def linger() -> int:
    while not Path("may_end").exists():
        await asyncio.sleep(0.01)
    return 7

async def main() -> None:
    async with hf, hf.worker():
        await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


@SQLITE_WILL_DO
def test_a_job_that_kills_its_app_does_so_twice_and_its_neighbours_complete(client: Client, tmp_path: Path) -> None:
    """Then it is alone in a process, where its guilt is certain; and nobody who was merely there is buried with it."""
    (tmp_path / "shop.py").write_text(EMBEDDED)
    ids = Ids(SystemClock())
    poison, neighbour = NewJob(ids.make(), "poison", "default", "{}"), NewJob(ids.make(), "linger", "default", "{}")
    client.ask(client.store.enqueue([neighbour, poison]))
    lives = 0
    while client.record(poison.id).state is not JobState.DEAD:
        lives += 1
        assert lives <= 3, "it kills its app again and again"
        with _app(client, tmp_path) as app:
            until(lambda app=app: app.poll() is not None or _is_dead(client, poison.id), "the poison to work")  # type: ignore[misc]
    assert (lives, (tmp_path / "runs").read_text()) == (3, "xxx")
    assert client.record(poison.id).error_type == "ProcessCrashed"
    (tmp_path / "may_end").touch()
    with _app(client, tmp_path):
        assert client.app.job(neighbour.id).result("60s") == 7
    assert client.record(neighbour.id).attempt == 1


@contextmanager
def _app(client: Client, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "shop.py"], cwd=folder, env=os.environ | {"HOLDFAST_URL": client.url}
    ) as app:
        try:
            yield app
        finally:
            app.kill()


def _is_dead(client: Client, id: UUID) -> bool:
    return client.record(id).state is JobState.DEAD
