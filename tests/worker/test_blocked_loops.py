"""Who has ended in a thread or a process of its own, while another one blocks the event loop that would hear of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Job
from holdfast.job import JobState
from tests.worker.program import Client, Program


@pytest.fixture
def program(client: Client, request: pytest.FixtureRequest) -> Iterator[Program]:
    app = getattr(request, "param", "tests.worker.tasks:hf")
    with Program(client.url, client.history, "-p", "1", app=app) as program:
        client.working()
        yield program


pytestmark = pytest.mark.usefixtures("program")


def _beside(client: Client, task: str, **arguments: Any) -> tuple[Job[Any], Job[Any]]:
    """A job that ends as soon as the loop is blocked, and the one that blocks it."""
    client.enqueue("alone_facts").result("60s")  # whose process is there for the next one
    job = client.enqueue(task)
    blocking = client.enqueue("block_beside", job=str(job.id), **arguments)
    client.started(blocking)
    return job, blocking


@pytest.mark.parametrize("task", ["thread_in_time", "alone_in_time", "once_in_time"])
def test_who_has_ended_in_time_is_completed_however_late_a_blocked_loop_hears_of_it(client: Client, task: str) -> None:
    (worker,) = client.working()
    job, blocking = _beside(client, task, seconds=3)
    assert job.result("60s") == "in time"
    assert (job.record().runs, job.record().attempt, client.kinds(job)) == (1, 1, [])
    assert blocking.result("60s") == "went on"
    assert [each.pid for each in client.workers()] == [worker.pid]


@pytest.mark.parametrize(
    ("program", "task"),
    [
        ("tests.worker.tasks:hf", "thread_in_time"),
        ("tests.worker.tasks:wrapped", "thread_in_time"),  # whose middleware would have to be left
        ("tests.worker.tasks:hf", "alone_in_time"),
    ],
    indirect=["program"],
)
def test_who_has_ended_in_time_is_not_charged_if_a_blocked_loop_never_hears_of_it(client: Client, task: str) -> None:
    job, blocking = _beside(client, task)
    assert client.end_of(blocking).error_type == "HardTimeout"
    assert job.result("60s") == "in time"
    assert (job.record().runs, job.record().attempt, client.kinds(job)) == (2, 1, ["interrupted"])


def test_who_has_ended_and_may_run_only_once_is_lost_if_a_blocked_loop_never_hears_of_it(client: Client) -> None:
    job, blocking = _beside(client, "once_in_time")
    assert client.end_of(blocking).error_type == "HardTimeout"
    assert client.end_of(job).state is JobState.DEAD
    assert (job.record().runs, client.kinds(job)) == (1, ["lost"])
    assert len(client.history.read("end", job.id)) == 1
