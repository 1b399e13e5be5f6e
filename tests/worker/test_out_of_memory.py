"""A child in which several jobs run, and one of them takes all the memory: whatever becomes of it, nothing is lost."""

from __future__ import annotations

import pytest

from holdfast.job import JobState
from tests.worker.program import Client, Program


@pytest.mark.parametrize("keeps", [False, True], ids=["lets go", "keeps"])
def test_the_neighbours_of_who_takes_all_the_memory_complete(client: Client, keeps: bool) -> None:
    with Program(client.url, client.history, "-p", "1"):
        client.working()
        neighbours = [
            client.enqueue(task, seconds=1) for task in ("sleep", "thread_sleep", "alone_sleep") for _ in range(3)
        ]
        for job in neighbours:
            client.started(job)
        guilty = client.enqueue("devour_beside", keeps=keeps)
        neighbours += client.enqueue_many("thread_sleep", 20, seconds=0.01)
        neighbours += client.enqueue_many("quick", 100)
        assert client.end_of(guilty).state is JobState.DEAD
        assert {record.state for record in client.ends_of(neighbours)} == {JobState.COMPLETED}
        assert client.enqueue("thread_sleep", seconds=0).result("60s") == "slept", "and there is one that works"
        assert client.count() == len(neighbours) + 2


def test_a_child_whose_event_loop_finds_no_memory_ends_and_its_jobs_run_elsewhere(client: Client) -> None:
    """What the loop was about to call may have been all that a job was waiting for."""
    with Program(client.url, client.history, "-p", "1") as program:
        (worker,) = client.working()
        job = client.enqueue("starve")
        assert job.result("60s") == "fed"
        assert (job.record().attempt, job.record().crashes) == (1, 1)
        program.says("there is no memory left to go on: this child ends")
        assert worker.pid != client.history.read("end", job.id)[-1].pid
