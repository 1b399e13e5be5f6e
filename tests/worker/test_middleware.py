"""Middleware goes around every job, wherever it runs: the first one registered is outermost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.job import JobState
from tests.worker.history import History
from tests.worker.program import Client, Program, client_of, is_alive


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("middleware")
    with client_of(f"sqlite:///{folder / 'jobs.db'}", History(folder / "history")) as client:
        yield client


@pytest.fixture(scope="module")
def program(client: Client) -> Iterator[Program]:
    with Program(client.url, client.history, "-p", "1", app="tests.worker.tasks:wrapped") as program:
        client.working()
        yield program


pytestmark = pytest.mark.usefixtures("program")

AROUND = ["enter outer", "enter inner", "start", "end", "leave inner", "leave outer"]


def _order(client: Client, job: object) -> list[str]:
    return [event.what for event in client.history.read(job=job.id)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("task", ["sleep", "thread_sleep", "alone_sleep", "alone_async"])
def test_it_is_entered_and_left_around_the_task(client: Client, task: str) -> None:
    job = client.enqueue(task, seconds=0.01)
    assert job.result("60s") == "slept"
    assert _order(client, job) == AROUND


@pytest.mark.parametrize("task", ["soft", "thread_soft", "alone_soft", "alone_async_soft"])
def test_it_is_left_after_a_soft_timeout(client: Client, task: str) -> None:
    job = client.enqueue(task)
    assert client.end_of(job).error_type == "SoftTimeout"
    assert _order(client, job) == [*AROUND[:3], "clean-up", *AROUND[3:]]


@pytest.mark.parametrize("task", ["sleep", "thread_sleep", "alone_sleep", "alone_async"])
def test_it_is_left_after_a_cancellation(client: Client, task: str) -> None:
    job = client.enqueue(task, seconds=3600)
    client.started(job)
    job.cancel()
    assert client.end_of(job).state is JobState.CANCELLED
    assert _order(client, job) == AROUND


def test_it_is_left_after_an_error(client: Client) -> None:
    job = client.enqueue("fail", kind="give up")
    assert client.end_of(job).state is JobState.DEAD
    assert _order(client, job) == AROUND


def test_a_task_alone_in_its_process_may_block_inside_it(client: Client) -> None:
    job = client.enqueue("alone_enqueues")
    other = client.app.job(job.result("60s"))
    assert other.result("60s") == "slept"


def test_a_thread_that_outlasts_middleware_which_times_out_is_killed_at_its_own_timeout(tmp_path: Path) -> None:
    with (
        client_of(f"sqlite:///{tmp_path / 'jobs.db'}", History(tmp_path / "history")) as client,
        Program(client.url, client.history, "-p", "1", app="tests.worker.tasks:hasty"),
    ):
        job = client.enqueue("thread_hang")
        assert client.end_of(job).error_type == "HardTimeout"
        (start,) = client.history.read("start", job.id)
        assert not is_alive(start.pid)
