"""Old and new code at work on one database: what only the new code can run waits for it, and is not lost."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast, Job
from holdfast.clock import SystemClock
from holdfast.ids import Ids
from holdfast.job import JobRecord, JobState, NewJob
from holdfast.store import PublishedTask
from tests.servers.databases import Databases
from tests.worker.history import History
from tests.worker.program import Client, Program, client_of, until

OLD = """
from holdfast import Holdfast
hf = Holdfast()

@hf.task{options}
{kind} greet(name: str) -> str:
    return f"hello {{name}}"
"""
NEW = """
from holdfast import Holdfast
hf = Holdfast()

@hf.task{options}
{kind} greet(name: str, title: str) -> str:
    return f"hello {{title}} {{name}}"
"""
FOR_THE_NEW = '{"name":"Ada","title":"Lady"}'
FOR_NOBODY = '{"no":1}'
ids = Ids(SystemClock())

Deploy = Callable[..., str]


@pytest.fixture(params=["sqlite", "postgres"])
def client(request: pytest.FixtureRequest, tmp_path: Path, history: History, postgres: Databases) -> Iterator[Client]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if is_sqlite else postgres.create_migrated_database()
    with client_of(url, history) as client:
        yield client
    if not is_sqlite:
        postgres.drop_database(url)


@pytest.fixture
def deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deploy:
    """Writes a module, and makes it importable for the workers."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    def write(name: str, body: str, *, kind: str = "async def", options: str = "") -> str:
        (tmp_path / f"{name}.py").write_text(body.format(kind=kind, options=options))
        return f"{name}:hf"

    return write


def _enqueue(client: Client, args: str) -> Job[object]:
    new = NewJob(ids.make(), "greet", "default", args)
    client.ask(client.store.enqueue([new]))
    return client.app.job(new.id)


def _published(client: Client) -> PublishedTask | None:
    found: list[PublishedTask] = client.ask(client.store.tasks(["greet"]))
    return found[0] if found else None


def _arguments(client: Client) -> set[str]:
    published = _published(client)
    return set() if published is None else set(published.definition.schema["properties"])


def _has_arguments(client: Client, wanted: set[str]) -> bool:
    return _arguments(client) == wanted


def _ended_or_hurried(client: Client, job: Job[object]) -> bool:
    """Whether it has ended. Whoever is faster gets it, and the pauses grow: a test has no time for them."""
    client.ask(client.store.run_now([job.id]))
    return client.record(job.id).state.is_final


def _given_back(client: Client, job: Job[object]) -> JobRecord:
    return until(lambda: found if (found := client.record(job.id)).waits else None, "it to be given back")


@pytest.mark.parametrize(
    ("kind", "options"),
    [("async def", ""), ("def", ""), ("def", '(isolation="process")')],
    ids=["loop", "thread", "alone"],
)
def test_arguments_that_only_the_newer_definition_takes_wait_for_a_worker_that_has_it(
    client: Client, deploy: Deploy, kind: str, options: str
) -> None:
    old = deploy("old_app", OLD, kind=kind, options=options)
    new = deploy("new_app", NEW, kind=kind, options=options)
    with Program(client.url, client.history, "-p", "1", app=old) as before:
        until(lambda: _has_arguments(client, {"name"}), "the old definition")
        newer = Holdfast(client.url)
        _define_newer(newer)
        newer.publish_tasks()
        newer.close()
        job = _enqueue(client, FOR_THE_NEW)
        before.says("there is a newer definition of 'greet'")
        record = _given_back(client, job)
        assert (record.state, record.attempt) == (JobState.PENDING, 0)
        with Program(client.url, client.history, "-p", "1", app=new):
            until(lambda: _ended_or_hurried(client, job), "a worker that has the newer definition")
        assert job.result("60s") == "hello Lady Ada"
        assert client.record(job.id).attempt == 1
        assert _enqueue(client, '{"name":"Bob"}').result("60s") == "hello Bob", "the old one goes on with what it knows"


def _define_newer(app: Holdfast) -> None:
    @app.task
    async def greet(name: str, title: str) -> str:
        return f"hello {title} {name}"


def test_arguments_that_nobody_s_definition_takes_are_dead_at_once(client: Client, deploy: Deploy) -> None:
    with Program(client.url, client.history, "-p", "1", app=deploy("old_app", OLD)):
        client.working()
        job = _enqueue(client, FOR_NOBODY)
        record = client.end_of(job)
        assert (record.state, record.waits, record.error_type) == (JobState.DEAD, 0, "InvalidPayload")


def test_a_process_that_an_old_worker_starts_later_does_not_publish_over_the_newer_definition(
    client: Client, deploy: Deploy
) -> None:
    with Program(client.url, client.history, "-p", "1", app=deploy("old_app", OLD)):
        (first,) = client.working()
        with Program(client.url, client.history, "-p", "1", app=deploy("new_app", NEW)) as after:
            until(lambda: _has_arguments(client, {"name", "title"}), "the new definition")
            after.stop()
        (same,) = client.working()
        assert same.pid == first.pid
        os.kill(first.pid, signal.SIGKILL)
        job = _enqueue(client, '{"name":"Bob"}')
        assert job.result("60s") == "hello Bob", "another process of the old worker is at work, and has published"
        assert _arguments(client) == {"name", "title"}
        job = _enqueue(client, FOR_THE_NEW)
        assert _given_back(client, job).state is JobState.PENDING


def test_a_worker_that_is_started_with_the_old_code_again_publishes_it(client: Client, deploy: Deploy) -> None:
    old, new = deploy("old_app", OLD), deploy("new_app", NEW)
    for app, arguments in ((old, {"name"}), (new, {"name", "title"}), (old, {"name"})):
        with Program(client.url, client.history, "-p", "1", app=app) as program:
            until(functools.partial(_has_arguments, client, arguments), f"the definition of {app}")
            client.working()
            program.stop()
    published = _published(client)
    assert published is not None
    assert published.revision == 3


def test_code_that_changes_on_disk_is_published_by_the_next_process(client: Client, deploy: Deploy) -> None:
    app = deploy("one_app", OLD)
    with Program(client.url, client.history, "-p", "1", "--max-jobs", "1", app=app):
        until(lambda: _has_arguments(client, {"name"}), "the old definition")
        deploy("one_app", NEW)

        def look() -> bool:
            client.end_of(_enqueue(client, '{"name":"Bob"}'))
            return _arguments(client) == {"name", "title"}

        # The spare process still has the old code, and jobs have one after the other put to work.
        until(look, "the new definition")


async def test_an_app_with_a_worker_of_its_own_does_not_publish_over_one_that_was_started_later(url: str) -> None:
    old, new = Holdfast(url), Holdfast(url)
    old.engine.code_since -= 60  # an age is told when a database is asked, and is no more exact than that is fast

    @old.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    _define_newer(new)
    store = old.engine.store
    async with old, new:
        for app in (old, new, old):
            async with app.worker():
                pass
        [published] = await store.tasks(["greet"])
        assert (published.revision, set(published.definition.schema["properties"])) == (2, {"name", "title"})
        async with old.worker():
            job = await new.asend("greet", {"name": "Ada", "title": "Lady"})
            async with new.worker():
                while not (await job.arecord()).state.is_final:
                    await store.run_now([job.id])
        assert await job.aresult("60s") == "hello Lady Ada"
        assert await greet("Bob") == "hello Bob"
