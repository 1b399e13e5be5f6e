"""G6: what a task writes through `ctx.tx` is there exactly once, whoever is killed, and whenever."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast, Job
from holdfast.job import JobState
from tests.crash.checker import Findings
from tests.crash.rounds import rounds
from tests.crash.tally import keep
from tests.integration.ledger import Ledger
from tests.worker.history import VARIABLE, History
from tests.worker.program import Program, until
from tests.worker.writing import make_app

_APP = "tests.worker.writing:hf"
_JOBS = 150
_SECONDS = 8


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    if request.param == "sqlite":
        ledger = Ledger(f"sqlite:///{tmp_path / 'jobs.db'}")
    else:
        ledger = Ledger(request.getfixturevalue("migrated_database"))
    ledger.make()
    return ledger


@pytest.fixture
def hf(ledger: Ledger) -> Iterator[Holdfast]:
    """A producer."""
    with make_app(ledger.url) as hf:
        yield hf


def start(ledger: Ledger, history: History) -> Program:
    return Program(ledger.url, history, "-p", "2", "-c", "8", app=_APP)


def tasks_of(hf: Holdfast, *names: str) -> list[Any]:
    return [hf.engine.tasks[name] for name in names]


def check(ledger: Ledger) -> None:
    """What is written is what is completed: each once, with everything that belongs to it."""
    entries, completed = Counter(ledger.entries()), Counter(ledger.completed())
    wrong = (entries - completed) + (completed - entries)
    keep(ledger.url, Findings(jobs=completed.total(), rewritten=[UUID(int=0)] * wrong.total()))
    assert not wrong
    written = [entry for entry in entries if not entry.endswith("followed")]
    assert [entry for entry in entries if entry.endswith("followed")] == [f"{entry} followed" for entry in written]


def test_the_ledger_has_one_entry_for_each_job_when_workers_are_killed_at_random(
    hf: Holdfast, ledger: Ledger, history: History
) -> None:
    chance = random.Random("ledger")
    write, write_in_a_thread = tasks_of(hf, "write", "write_in_a_thread")
    hf.enqueue_many(write.call(f"loop {number:03}") for number in range(_JOBS))
    hf.enqueue_many(write_in_a_thread.call(f"thread {number:03}") for number in range(_JOBS))
    stop_at = time.monotonic() + rounds(_SECONDS)
    while time.monotonic() < stop_at and unfinished(hf):
        with start(ledger, history) as program:  # leaving it kills it with all its children
            for _ in range(chance.randint(2, 4)):
                before = len(ledger.entries())
                until(lambda before=before: len(ledger.entries()) > before or not unfinished(hf), "an entry")  # type: ignore[misc]
                time.sleep(chance.uniform(0, 0.4))  # the moment of the kill
                kill(chance.choice([*program.children(), 0]))
    with start(ledger, history) as program:
        until(lambda: not unfinished(hf), "the end of all jobs")
        program.is_listening()
        assert program.stop() == 0
    check(ledger)
    assert ledger.crashed() > 10, "hardly anybody was killed while he worked"
    assert hf.jobs.count(state=[JobState.DEAD]) < _JOBS / 5, "only who is killed three times gives up"


def unfinished(hf: Holdfast) -> int:
    return hf.jobs.count(state=[JobState.PENDING, JobState.ACTIVE, JobState.RETRYING])


def kill(pid: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_suspect_of_crashes_writes_once_too_alone_in_its_process(
    hf: Holdfast, ledger: Ledger, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(history.path))
    with start(ledger, history) as program:
        until(lambda: [worker for worker in hf.workers.list() if worker.dead_at is None], "a worker")
        on_the_loop, in_a_thread = tasks_of(hf, "write_and_crash", "write_in_a_thread_and_crash")
        jobs: list[Job[None]] = []
        for task, entry in ((on_the_loop, "loop"), (in_a_thread, "thread")):
            jobs.append(task.enqueue(entry))
            jobs[-1].result("60s")  # one after the other: each is to crash by itself, and not with its neighbour
        until(lambda: len(ledger.completed()) == 4, "the followers")
        assert program.stop() == 0
    check(ledger)
    for job in jobs:
        starts = history.read("start", job.id)
        assert len(starts) == 3
        record = job.record()
        assert (record.crashes, record.attempt) == (2, 1)
