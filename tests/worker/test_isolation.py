"""Processes of isolated jobs, as their worker keeps them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast import Job
from holdfast.clock import SystemClock
from holdfast.ids import Ids
from holdfast.job import ClaimedJob, Delivery, JobRecord, JobState, NewJob
from holdfast.outcome import Completed, Interrupted, Outcome
from holdfast.worker.isolation import Isolation
from holdfast.worker.recorder import Place, Recorder
from holdfast.worker.runs import Plan, Run
from tests.unit.claims import claimed_job
from tests.worker.history import VARIABLE, Event, History
from tests.worker.program import PATIENCE, Client, Program, children_of, is_alive, until
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


async def test_a_job_that_would_begin_too_late_for_its_rate_begins_in_the_same_process_when_it_comes_again(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large that process is: if it were replaced, the next one would be too late as well, and so on."""
    monkeypatch.setenv(VARIABLE, str(history.path))
    plan = Plan(make_app("memory://").engine.tasks["alone_sleep"])  # type: ignore[arg-type]
    recorder = Recorder.in_memory(2)
    isolation = Isolation(lambda: "tests.worker.tasks:hf", recorder, Nobody(), max_memory=1)
    job = claimed_job(task="alone_sleep", args_json='{"seconds":0}')
    outcomes, pids = list[Outcome](), list[set[int]]()
    for _ in range(2):
        run = Run(job, plan, Place.PROCESS, recorder.claimed(job, plan.described), 0)
        run.start_by = 0.0
        outcomes.append(await isolation.run(run))
        pids.append(set(children_of(os.getpid())))
    assert outcomes == [Interrupted(has_started=False), Completed('"slept"')]
    (start,) = history.read("start")
    assert start.pid in pids[0], "it was there before"
    await isolation.close(PATIENCE)


class Listener(Nobody):
    """Hears of progress whenever a process sends some."""

    def __init__(self) -> None:
        self.heard: list[float] = []
        self.has_news = asyncio.Event()

    def report_progress(self, job: ClaimedJob, done: float, total: float | None, note: str) -> None:
        self.heard.append(done)
        self.has_news.set()

    async def hears(self, done: float) -> None:
        while done not in self.heard:
            self.has_news.clear()
            await self.has_news.wait()


async def test_a_flood_of_progress_is_sent_as_a_trickle_whose_last_drop_arrives(
    history: History, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(history.path))
    monkeypatch.setenv("HOLDFAST_URL", "memory://")
    plan = Plan(make_app("memory://").engine.tasks["alone_flood"])  # type: ignore[arg-type]
    recorder, listener = Recorder.in_memory(2), Listener()
    isolation = Isolation(lambda: "tests.worker.tasks:hf", recorder, listener)
    end = tmp_path / "end"

    async def flood(reports: int) -> float:
        """How many seconds it took."""
        job = claimed_job(task="alone_flood", args_json=f'{{"reports":{reports},"end":"{end}"}}')
        outcome = await isolation.run(Run(job, plan, Place.PROCESS, recorder.claimed(job, plan.described), 0))
        assert isinstance(outcome, Completed)
        return float(outcome.result_json or "")

    async with asyncio.timeout(PATIENCE):
        first = asyncio.create_task(flood(50_000))
        await listener.hears(50_000)  # while the task still runs
        end.touch()
        seconds = await first + await flood(49_999)
    assert listener.heard[-1] == 49_999, "when the task has ended, so has what it says"
    assert len(listener.heard) <= 20 * seconds + 4
    await isolation.close(PATIENCE)


# ── code that is not there ───────────────────────────────────────────────────────────────────────────────────────────

APP = """
import sys
from holdfast import Holdfast
from tests.worker.history import here
hf = Holdfast()

@hf.task({options})
def {task}() -> str:
    here().write("start")
    return "done"
"""
HOOK = """
@hf.on_startup
def connect(state) -> None:
    if "isolated" in sys.argv[0] and len(here().read("refused")) < 2:
        here().write("refused")
        raise RuntimeError("no way to the cache")
"""
ALONE = [('isolation="process"', Delivery.AT_LEAST_ONCE), ('delivery="at_most_once"', Delivery.AT_MOST_ONCE)]
alone = pytest.mark.parametrize(("options", "delivery"), ALONE, ids=["isolated", "at-most-once"])

Deploy = Callable[[str], str]


@pytest.fixture
def deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deploy:
    """Writes a module, and makes it importable for the workers."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    def write(body: str) -> str:
        (tmp_path / "one_app.py").write_text(body)
        return "one_app:hf"

    return write


def _enqueue(
    client: Client, task: str = "work", args: str = "{}", delivery: Delivery = Delivery.AT_LEAST_ONCE
) -> Job[object]:
    new = NewJob(Ids(SystemClock()).make(), task, "default", args, delivery=delivery, max_attempts=1)
    client.ask(client.store.enqueue([new]))
    return client.app.job(new.id)


def _given_back(client: Client, job: Job[object]) -> JobRecord:
    return until(lambda: found if (found := client.record(job)).waits else None, "it to be given back")


def _end_of(client: Client, job: Job[object]) -> JobRecord:
    """Its record, once it has ended. The pauses grow, and a test has no time for them."""

    def look() -> JobRecord | None:
        client.ask(client.store.run_now([job.id]))
        return found if (found := client.record(job)).state.is_final else None

    return until(look, "its end")


def _completed_once(client: Client, record: JobRecord) -> bool:
    assert (record.state, record.attempt, record.crashes) == (JobState.COMPLETED, 1, 0)
    return len(client.history.read("start")) == 1


@alone
def test_an_app_that_cannot_be_imported_any_more_costs_a_job_nothing_but_time(
    client: Client, deploy: Deploy, options: str, delivery: Delivery
) -> None:
    app = APP.format(options=options, task="work")
    with Program(client.url, client.history, "-p", "1", app=deploy(app)) as program:
        client.working()
        deploy("raise RuntimeError('half copied')")
        job = _enqueue(client, delivery=delivery)
        record = _given_back(client, job)
        assert (record.state, record.attempt) == (JobState.PENDING, 0)
        program.says(r"work .* was not started, again in 1 s: .*half copied")
        deploy(app)
        assert _completed_once(client, _end_of(client, job))


@alone
def test_a_start_hook_that_fails_for_a_moment_costs_a_job_nothing_but_time(
    client: Client, deploy: Deploy, options: str, delivery: Delivery
) -> None:
    app = APP.format(options=options, task="work") + HOOK
    with Program(client.url, client.history, "-p", "1", app=deploy(app)) as program:
        job = _enqueue(client, delivery=delivery)
        record = _end_of(client, job)
        assert _completed_once(client, record)
        assert record.waits == 2
        program.says(r"work .* was not started, again in 2 s: .*no way to the cache")


@alone
def test_a_task_that_is_not_on_disk_any_more_waits_for_code_that_has_it(
    client: Client, deploy: Deploy, options: str, delivery: Delivery
) -> None:
    app = APP.format(options=options, task="work")
    with Program(client.url, client.history, "-p", "1", app=deploy(app)) as program:
        client.working()
        deploy(APP.format(options=options, task="renamed"))
        job = _enqueue(client, delivery=delivery)
        record = _given_back(client, job)
        assert (record.state, record.attempt, record.crashes) == (JobState.PENDING, 0, 0)
        program.says("there is no task 'work' in the code on disk")
        deploy(app)
        assert _completed_once(client, _end_of(client, job))


# ── context variables ────────────────────────────────────────────────────────────────────────────────────────────────

VARIABLES = """
import contextlib, contextvars, os
from holdfast import Holdfast
hf = Holdfast()
tenant = contextvars.ContextVar("tenant", default="nobody")
release = contextvars.ContextVar("release", default="none")

@hf.on_startup
async def read(state) -> None:
    release.set("7")

@hf.task(isolation="process")
{kind} work(name: str) -> list[str]:
    before = tenant.get()
    tenant.set(name)
    return [before, release.get(), str(os.getpid())]
"""
MIDDLEWARE = """
@hf.middleware
@contextlib.asynccontextmanager
async def around(ctx):
    assert tenant.get() == "nobody", "of the job before"
    yield
    assert tenant.get() != "nobody", "of this job"
"""


@pytest.mark.parametrize("around", ["", MIDDLEWARE], ids=["bare", "within middleware"])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_job_sees_context_variables_of_the_start_hooks_and_not_of_the_job_before_it(
    client: Client, deploy: Deploy, kind: str, around: str
) -> None:
    with Program(client.url, client.history, "-p", "1", app=deploy(VARIABLES.format(kind=kind) + around)):
        client.working()
        names = ("acme", "globex")
        seen: list[Any] = [_enqueue(client, args=f'{{"name":"{name}"}}').result("60s") for name in names]
    (*first, pid), (*second, other) = seen
    assert pid == other, "they ran in the same process"
    assert first == second == ["nobody", "7"]


# ── middleware that waits ────────────────────────────────────────────────────────────────────────────────────────────

WAITING = """
import asyncio, contextlib
from holdfast import Holdfast
from tests.worker.history import here
hf = Holdfast()

@hf.task(isolation="process", soft_timeout="300ms", timeout="10s")
def work() -> None: ...

@hf.task(isolation="process", soft_timeout="10s", timeout="11s")
def slow() -> None: ...

async def wait(ctx) -> None:
    here().write("waits", job=ctx.job_id)
    try:
        await asyncio.sleep(3600)
    except BaseException as error:
        here().write("woken", job=ctx.job_id, note=type(error).__name__)
        raise

@hf.middleware
@contextlib.asynccontextmanager
async def around(ctx):
    {body}
"""


@pytest.mark.parametrize("body", ["await wait(ctx); yield", "yield; await wait(ctx)"], ids=["before", "after"])
def test_a_soft_timeout_and_a_cancellation_reach_the_middleware_of_a_def_task(
    client: Client, deploy: Deploy, body: str
) -> None:
    with Program(client.url, client.history, "-p", "1", app=deploy(WAITING.format(body=body))):
        timed, cancelled = _enqueue(client), _enqueue(client, "slow")
        until(lambda: client.history.read("waits", cancelled.id), "it to wait")
        cancelled.cancel()
        assert client.end_of(cancelled).state is JobState.CANCELLED
        assert client.end_of(timed).error_type == "SoftTimeout"
        notes = [[event.note for event in client.history.read("woken", job.id)] for job in (timed, cancelled)]
        assert notes == [["SoftTimeout"], ["CancelledError"]]


# ── rates ────────────────────────────────────────────────────────────────────────────────────────────────────────────

RATED = """
import sys, time
from holdfast import Context, Holdfast, Rate
from tests.worker.history import here
hf = Holdfast()
if "isolated" in sys.argv[0]:
    time.sleep(1)

@hf.task(bind=True, rate=Rate(3, "3s"), {options})
def work(ctx: Context) -> None:
    here().write("start", job=ctx.job_id)

@hf.task
def publish() -> None: ...
"""


def test_many_jobs_that_must_be_alone_share_processes_and_do_not_start_one_each(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1", "-c", "32"):
        client.working()
        jobs = client.enqueue_many("alone_sleep", 64, seconds=0)
        assert {job.result("60s") for job in jobs} == {"slept"}
    assert len({event.pid for event in client.history.read("start")}) < 32


@alone
def test_starts_of_processes_bring_no_more_jobs_into_a_window_than_its_rate_lets_through(
    client: Client, deploy: Deploy, options: str, delivery: Delivery
) -> None:
    """Those of the first window would begin late, in new processes, and those of the second at once, in the same."""
    with Program(client.url, client.history, "-p", "1", app=deploy(RATED.format(options=options))) as program:
        _enqueue(client, "publish").result("60s")  # after it, the tasks are known
        jobs = [client.app.send("work") for _ in range(9)]
        records = client.ends_of(jobs)
    starts = sorted(event.at for event in client.history.read("start"))
    assert len(starts) == 9
    # Half a second is for a machine that is busy while it wakes a process that is there.
    assert min(fourth - first for first, fourth in zip(starts, starts[3:], strict=False)) > 2.5
    assert {(record.state, record.attempt, record.waits) for record in records} == {(JobState.COMPLETED, 1, 0)}
    given_back = program.output.count("was given back before it began")
    assert 0 < given_back <= 16, "at most once for each process"
    assert {record.runs for record in records} == {1}
