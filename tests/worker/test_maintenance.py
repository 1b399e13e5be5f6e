"""What `holdfast worker` does beside running jobs: tells handlers of dead letters, prunes, and names its processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.job import JobState
from holdfast.lifecycle import Complete
from holdfast.store import NewWorker, Settlement
from tests.worker.database import DATABASES, database
from tests.worker.history import History
from tests.worker.looked_after import make_app
from tests.worker.program import Client, Program, client_of, until

_APP = "tests.worker.looked_after:hf"


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with database(request, tmp_path) as url:
        yield url


@pytest.fixture
def client(url: str, history: History) -> Iterator[Client]:
    with client_of(url, history, make_app) as client:
        yield client


def start(client: Client) -> Program:
    return Program(client.url, client.history, "-p", "1", app=_APP)


def test_handlers_of_dead_letters_are_told(client: Client) -> None:
    with start(client):
        job = client.enqueue("doomed", order=7)
        assert client.end_of(job).state is JobState.DEAD
        (told,) = until(lambda: client.history.read("mourned", job.id), "its handler")
    assert told.note == "7: planned"


def test_what_is_past_its_retention_is_pruned(client: Client) -> None:
    client.ask(_complete_one(client))
    assert client.count(JobState.COMPLETED) == 1
    with start(client):
        until(lambda: client.count() == 0, "it to be pruned")


async def _complete_one(client: Client) -> None:
    """Without a worker, which would prune it."""
    store, worker, token = client.store, uuid4(), uuid4()
    job = await client.app.engine.tasks["work"].aenqueue()  # type: ignore[attr-defined]
    await store.register(NewWorker(worker, "by hand"))
    assert len(await store.claim(worker, token, {"default": 1})) == 1
    await store.settle([Settlement(job.id, token, Complete())])
    await store.depart(worker)


def test_processes_say_what_they_are(client: Client) -> None:
    with start(client) as program:
        (worker,) = client.working()
        until(lambda: _title(program.pid) == f"holdfast: supervisor {_APP}", "the supervisor's title")
        until(lambda: _title(worker.pid) == f"holdfast: worker {_APP} [1]", "the child's title")


def _title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").strip()
