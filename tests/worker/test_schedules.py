"""Real workers fire what the code schedules, whatever becomes of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Holdfast, JobState, ScheduleRecord
from holdfast.job import JobRecord
from tests.servers.databases import Databases
from tests.worker.history import History
from tests.worker.program import Program, send, until

SECOND = timedelta(seconds=1)
APP = """
from holdfast import Context, Holdfast
hf = Holdfast()

@hf.every("1s", catchup="all", overlap="queue", bind=True)
async def beat(ctx: Context, number: int = {number}) -> str:
    return str(ctx.context["tick"])
"""

Deploy = Callable[..., str]


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path, postgres: Databases) -> Iterator[Holdfast]:
    """A client that has no code."""
    is_sqlite = request.param == "sqlite"
    app = Holdfast(f"sqlite:///{tmp_path / 'jobs.db'}" if is_sqlite else postgres.create_migrated_database())
    yield app
    app.close()
    if not is_sqlite:
        postgres.drop_database(app.url)


@pytest.fixture
def deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deploy:
    """Writes a module, and makes it importable for the workers."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    def write(name: str, body: str) -> str:
        (tmp_path / f"{name}.py").write_text(body)
        return f"{name}:hf"

    return write


def _find(app: Holdfast) -> ScheduleRecord | None:
    return next((record for record in app.schedules.all() if record.name == "beat"), None)


def _has_completed(app: Holdfast, number: int) -> bool:
    return app.jobs.count(state="completed") >= number


def _jobs(app: Holdfast) -> list[JobRecord]:
    return app.jobs.page(limit=1000).jobs


def test_a_worker_declares_fires_and_runs_what_its_code_schedules(
    app: Holdfast, deploy: Deploy, history: History
) -> None:
    with Program(app.url, history, "-p", "1", app=deploy("beating", APP.format(number=1))) as program:
        until(lambda: _has_completed(app, 3), "three ticks")
        record = _find(app)
        assert record is not None
        assert (record.source, record.plan.task, record.plan.every) == ("code", "beat", SECOND)
        app.schedules.pause("beat")
        fired = app.schedules.get("beat").fired
        until(lambda: _has_completed(app, fired), "what was fired before")
        assert len(_jobs(app)) == fired
        assert program.stop() == 0
    for job in _jobs(app):
        assert (job.state, job.result_json) == (JobState.COMPLETED, f'"{job.context["tick"]}"')


def test_a_worker_that_is_killed_leaves_no_tick_out(app: Holdfast, deploy: Deploy, history: History) -> None:
    name = deploy("beating", APP.format(number=1))
    with Program(app.url, history, "-p", "1", app=name) as first:
        until(lambda: _has_completed(app, 1), "the first tick")
        start = min(datetime.fromisoformat(job.context["tick"]) for job in _jobs(app))
        send(signal.SIGKILL, [first.pid, *first.family()])
        first.wait()
    stopped = app.schedules.get("beat").fired
    with Program(app.url, history, "-p", "1", app=name) as second:
        until(lambda: app.schedules.get("beat").fired > stopped, "the ticks after the kill")
        app.schedules.pause("beat")
        assert second.stop() == 0
    last = app.schedules.get("beat").last_tick
    assert last is not None
    expected = {start + number * SECOND for number in range((last - start) // SECOND + 1)}
    ticks = [datetime.fromisoformat(job.context["tick"]) for job in _jobs(app)]
    assert len(ticks) == len(set(ticks))
    assert expected <= set(ticks)


def test_in_a_rolling_deploy_the_newer_code_s_schedule_stays(app: Holdfast, deploy: Deploy, history: History) -> None:
    old = deploy("old_beating", APP.format(number=1))
    new = deploy("new_beating", APP.format(number=1).replace('"1s"', '"2s"'))
    with Program(app.url, history, "-p", "1", app=old) as before:
        until(lambda: _find(app), "the old schedule")
        with Program(app.url, history, "-p", "1", app=new):
            until(lambda: app.schedules.get("beat").plan.every == 2 * SECOND, "the new schedule")
            # A child that the old supervisor starts declares what it has, too.
            [*children] = before.children()
            os.kill(children[0], signal.SIGKILL)
            before.says("killed by SIGKILL")
            fired = app.schedules.get("beat").fired
            until(lambda: app.schedules.get("beat").fired >= fired + 2, "two more ticks")
            assert app.schedules.get("beat").plan.every == 2 * SECOND


def test_arguments_that_do_not_fit_end_the_worker_with_the_reason(
    app: Holdfast, deploy: Deploy, history: History
) -> None:
    body = APP.format(number=1).replace("bind=True", 'bind=True, args={"number": "many"}')
    with Program(app.url, history, "-p", "1", app=deploy("wrong_beating", body)) as program:
        program.says("args= does not fit its task")
        assert program.wait() == 1
