"""A real `holdfast worker` makes known what it has the code of, and what it runs is explained."""

from __future__ import annotations

from holdfast import ReasonKind
from holdfast.ids import Ids
from holdfast.job import NewJob
from tests.worker.history import History
from tests.worker.program import Client, Program, until


def test_a_worker_makes_its_tasks_known(client: Client, url: str, history: History) -> None:
    with Program(url, history, "--processes", "2", "--queue", "default"):
        for worker in client.working(2):
            assert worker.tasks == tuple(sorted(client.app.engine.tasks))


def test_a_job_is_explained_while_it_waits_and_while_it_runs(client: Client, url: str, history: History) -> None:
    job = client.enqueue("sleep", seconds=3600)
    assert job.explain().kinds == (ReasonKind.NO_WORKER, ReasonKind.POSITION)
    unknown = NewJob(Ids().make(), "nobody_knows", "default", "{}")
    client.ask(client.store.enqueue([unknown]))
    with Program(url, history, "--processes", "1", "--queue", "default"):
        client.started(job)
        [worker] = client.workers()
        explanation = job.explain()
        assert explanation.kinds == (ReasonKind.RUNNING,)
        assert f" on {worker.name}, attempt 1 of" in str(explanation)
        until(
            lambda: ReasonKind.UNKNOWN_TASK in client.app.jobs.explain(unknown.id).kinds,
            "it to be told that nobody knows the task",
        )
        elsewhere = client.enqueue("sleep", {"queue": "elsewhere"}, seconds=3600)
        assert str(elsewhere.explain()).startswith("waiting: no live worker serves queue 'elsewhere'")
