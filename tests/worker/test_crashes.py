"""G8: a job that kills its process goes dead after three crashes, and its neighbours are not charged."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from holdfast.job import JobState
from holdfast.lifecycle import MOST_CRASHES
from tests.worker.database import DATABASES, database
from tests.worker.history import History
from tests.worker.program import Client, Program, client_of, until


@pytest.fixture(scope="module", params=DATABASES)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("crashes")
    with database(request, folder) as url, client_of(url, History(folder / "history")) as client:
        yield client


@pytest.fixture(scope="module")
def program(client: Client) -> Iterator[Program]:
    with Program(client.url, client.history, "-p", "1") as program:
        client.working()
        yield program


pytestmark = pytest.mark.usefixtures("program")


@pytest.mark.parametrize("how", ["segfault", "abort", "kill", "exit 0", "exit 3"])
def test_who_kills_the_process_is_found_and_buried_and_its_neighbours_complete(client: Client, how: str) -> None:
    neighbours = [
        client.enqueue("sleep", seconds=0.5),
        client.enqueue("thread_sleep", seconds=0.5),
        client.enqueue("alone_sleep", seconds=0.5),
    ]
    for job in neighbours:
        client.started(job)
    guilty = client.enqueue("crash", how=how)
    record = client.end_of(guilty)
    assert (record.state, record.crashes) == (JobState.DEAD, MOST_CRASHES)
    assert client.kinds(guilty) == ["crash"] * MOST_CRASHES
    starts = client.history.read("start", guilty.id)
    assert len(starts) == MOST_CRASHES
    assert len({start.pid for start in starts}) == MOST_CRASHES
    for job in neighbours:
        assert job.result("60s") == "slept"
        assert job.record().attempt == 1


def test_who_leaves_something_behind_that_kills_the_process_is_found_and_buried(client: Client) -> None:
    """Its task has ended well each time; that is never known."""
    guilty = client.enqueue("crash", how="exit behind")
    record = client.end_of(guilty)
    assert (record.state, record.crashes) == (JobState.DEAD, MOST_CRASHES)
    assert client.kinds(guilty) == ["crash"] * MOST_CRASHES
    assert len(client.history.read("start", guilty.id)) == MOST_CRASHES
    assert client.enqueue("quick", number=7).result("60s") == 7


def test_who_ends_the_process_from_a_task_beside_itself_does_so_twice_at_most(client: Client) -> None:
    """Then it is alone, where that is an exception like any other, and its attempts are bounded."""
    guilty = client.enqueue("crash", how="exit in a task")
    record = client.end_of(guilty)
    assert (record.state, record.error_type, record.crashes) == (JobState.DEAD, "SystemExit", 2)
    assert client.kinds(guilty) == ["crash"] * 2 + ["error"] * record.max_attempts


@pytest.mark.parametrize("how", ["segfault", "kill", "exit 0"])
def test_in_a_process_of_its_own_it_costs_nobody_else_anything(client: Client, how: str) -> None:
    (worker,) = client.working()
    neighbour = client.enqueue("sleep", seconds=1)
    client.started(neighbour)
    guilty = client.enqueue("alone_crash", how=how)
    record = client.end_of(guilty)
    assert (record.state, record.error_type, record.crashes) == (JobState.DEAD, "ProcessCrashed", MOST_CRASHES)
    assert len(client.history.read("start", guilty.id)) == MOST_CRASHES
    assert neighbour.result("60s") == "slept"
    assert [each.pid for each in client.workers()] == [worker.pid]
    assert (neighbour.record().attempt, neighbour.record().runs) == (1, 1)


def test_a_job_that_uses_too_much_memory_fails_like_any_other(client: Client) -> None:
    job = client.enqueue("devour")
    record = client.end_of(job)
    assert (record.state, record.error_type, record.attempt) == (JobState.DEAD, "MemoryError", 3)


def test_an_idle_process_that_was_killed_is_nobodys_crash(client: Client) -> None:
    """The process is kept for the next job, and dies before it comes."""
    client.enqueue("alone_facts").result("60s")
    for _ in range(5):
        idle = client.enqueue("alone_facts").result("60s")["pid"]
        os.kill(idle, signal.SIGKILL)
        job = client.enqueue("alone_facts")
        assert job.result("60s")["pid"] != idle
        assert (job.record().attempt, job.record().crashes) == (1, 0)


def test_a_child_that_dies_with_nothing_to_do_is_replaced(client: Client) -> None:
    (worker,) = client.working()
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: [each for each in client.workers() if each.pid != worker.pid], "a replacement")
    assert client.enqueue("quick", number=7).result("60s") == 7
