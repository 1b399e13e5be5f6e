"""Processes of isolated jobs, as their worker keeps them."""

from __future__ import annotations

import asyncio
from datetime import datetime
from uuid import UUID

import pytest

from holdfast.job import ClaimedJob
from holdfast.outcome import Completed
from holdfast.worker.isolation import Isolation
from holdfast.worker.recorder import Place, Recorder
from holdfast.worker.runs import Plan, Run
from tests.unit.claims import claimed_job
from tests.worker.history import VARIABLE, Event, History
from tests.worker.program import PATIENCE, is_alive, until
from tests.worker.tasks import make_app


class Nobody:
    """Nobody cancels, and nobody listens."""

    def is_cancelled(self, job: UUID) -> bool:
        return False

    def deadline(self, job: UUID) -> datetime | None:
        return None

    def report_progress(self, job: ClaimedJob, done: float, total: float | None, note: str) -> None: ...


def _both_hooks(history: History) -> list[Event] | None:
    events = history.read("shutdown")
    return events if len(events) == 2 else None


async def test_a_process_that_has_nothing_to_do_for_a_while_ends_in_good_order(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(history.path))
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{history.path.parent / 'jobs.db'}")
    plan = Plan(make_app("memory://").engine.tasks["alone_sleep"])  # type: ignore[arg-type]
    recorder = Recorder.in_memory(1)
    isolation = Isolation(lambda: "tests.worker.tasks:hf", recorder, Nobody(), idle_for=0.1)
    job = claimed_job(task="alone_sleep", args_json='{"seconds":0}')
    run = Run(job, plan, Place.PROCESS, recorder.claimed(job, plan.described), 0)
    assert isinstance(await isolation.run(run), Completed)
    events = await asyncio.to_thread(until, lambda: _both_hooks(history), "the hooks")
    (start,) = history.read("start")
    assert [(event.pid, event.note) for event in events] == [
        (start.pid, "registered last"),
        (start.pid, "registered first"),
    ]
    await isolation.close(PATIENCE)
    assert not is_alive(start.pid)
