"""What comes of jobs in a real worker: one process for all of these tests, which none of them may disturb."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from holdfast.ids import Ids
from holdfast.job import JobState, NewJob
from tests.worker.history import History
from tests.worker.program import Client, Program, client_of, until

ids = Ids()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return History(tmp_path_factory.mktemp("outcomes") / "history")


@pytest.fixture(scope="module")
def client(history: History) -> Iterator[Client]:
    with client_of(f"sqlite:///{history.path.parent / 'jobs.db'}", history) as client:
        yield client


@pytest.fixture(scope="module")
def program(client: Client) -> Iterator[Program]:
    with Program(client.url, client.history, "-p", "1") as program:
        pid = client.working()[0].pid
        yield program
        assert [worker.pid for worker in client.workers()] == [pid], "nothing here may cost the worker its process"


pytestmark = pytest.mark.usefixtures("program")


# ── tasks that return ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("task", ["sleep", "thread_sleep", "alone_sleep", "alone_async"])
def test_a_task_runs_where_it_belongs_and_its_result_is_kept(client: Client, task: str) -> None:
    job = client.enqueue(task, seconds=0.01)
    assert job.result("60s") == "slept"
    assert (job.record().attempt, len(client.history.read("start", job.id))) == (1, 1)


@pytest.mark.parametrize("kind", ["object", "huge", "cycle"])
def test_a_result_that_cannot_be_stored_buries_the_job_at_once(client: Client, kind: str) -> None:
    job = client.enqueue("answer", kind=kind)
    record = client.end_of(job)
    assert (record.state, client.kinds(job)) == (JobState.DEAD, ["invalid"])
    assert len(client.history.read("start", job.id)) == 1


# ── tasks that raise ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("task", ["fail", "alone_fail"])
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("error", "ValueError"),
        ("evil", "_Evil"),
        ("exit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("cancelled", "CancelledError"),
    ],
)
def test_a_task_that_raises_is_retried_and_at_last_buried(client: Client, task: str, kind: str, error: str) -> None:
    job = client.enqueue(task, kind=kind)
    record = client.end_of(job)
    assert (record.state, record.error_type, record.attempt, record.runs) == (JobState.DEAD, error, 3, 3)
    assert client.kinds(job) == ["error"] * 3
    assert len(client.history.read("start", job.id)) == 3


@pytest.mark.parametrize("task", ["fail", "alone_fail"])
def test_an_exception_that_lies_about_its_class_is_one_like_any_other(client: Client, task: str) -> None:
    job = client.enqueue(task, kind="liar")
    record = client.end_of(job)
    assert (record.state, record.attempt, record.runs, record.crashes) == (JobState.DEAD, 3, 3, 0)
    assert client.kinds(job) == ["error"] * 3


def test_the_traceback_of_a_failure_is_kept(client: Client) -> None:
    job = client.enqueue("fail", kind="group")
    client.end_of(job)
    failure = job.attempts()[-1].failure
    assert failure is not None
    assert "ValueError: one" in (failure.traceback or "")
    assert "worker/executor.py" not in (failure.traceback or "")


def test_a_task_may_give_up(client: Client) -> None:
    job = client.enqueue("fail", kind="give up")
    record = client.end_of(job)
    assert (record.state, record.error_message, client.kinds(job)) == (JobState.DEAD, "no use", ["gave_up"])


def test_a_task_may_cancel_its_job(client: Client) -> None:
    record = client.end_of(client.enqueue("fail", kind="cancel"))
    assert (record.state, record.cancel_reason) == (JobState.CANCELLED, "not wanted")


@pytest.mark.parametrize("task", ["fail", "alone_fail"])
def test_a_snooze_is_not_charged(client: Client, task: str) -> None:
    job = client.enqueue(task, kind="snooze")
    assert job.result("60s") == 1
    record = job.record()
    assert (record.attempt, record.runs, record.waits) == (1, 4, 3)
    assert client.kinds(job) == []


def test_a_task_that_wants_to_be_tried_again_is_charged(client: Client) -> None:
    job = client.enqueue("fail", kind="again")
    assert job.result("60s") == 3
    assert job.record().runs == 3


# ── arguments, tasks and times ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("task", ["sleep", "thread_sleep", "alone_sleep"])
def test_arguments_that_the_task_does_not_take_bury_the_job(client: Client, task: str) -> None:
    new = NewJob(ids.make(), task, "default", '{"no": 1}')
    client.ask(client.store.enqueue([new]))
    job = client.app.job(new.id)
    assert client.end_of(job).state is JobState.DEAD
    assert client.kinds(job) == ["invalid"]


def test_thousands_of_jobs_with_bad_arguments_are_worked_off(client: Client) -> None:
    """One after the other fails before it has begun, and the next one is started at once: not one within the other."""
    new = [NewJob(ids.make(), "thread_sleep", "default", '{"no": 1}', max_attempts=1) for _ in range(3000)]
    client.ask(client.store.enqueue(new))
    for each in (new[0], new[-1]):
        assert client.end_of(client.app.job(each.id)).state is JobState.DEAD
    records = client.ask(client.store.get([each.id for each in new]))
    assert {record.error_type for record in records} == {"InvalidPayload"}


def test_a_task_that_is_not_known_here_is_given_back_uncharged(client: Client, program: Program) -> None:
    new = NewJob(ids.make(), "of_the_next_release", "default", "{}")
    client.ask(client.store.enqueue([new]))
    program.says("there is no task 'of_the_next_release' here")
    record = until(lambda: found if (found := client.record(new.id)).waits else None, "it to be given back")
    assert (record.state, record.attempt, record.error_type) == (JobState.PENDING, 0, None)
    client.app.job(new.id).cancel()


def test_a_job_that_expires_before_it_could_start_is_buried(client: Client) -> None:
    client.app.queues.pause("slow")
    job = client.enqueue("quick", {"queue": "slow", "expires": "100ms"})
    record = client.end_of(job)
    client.app.queues.resume("slow")
    assert (record.state, record.error_type, client.kinds(job)) == (JobState.DEAD, "Expired", ["expired"])
    assert client.history.read("start", job.id) == []


def test_a_delayed_job_starts_when_its_time_has_come(client: Client) -> None:
    asked = time.time()
    job = client.enqueue("quick", {"delay": "300ms"})
    job.result("60s")
    (start,) = client.history.read("start", job.id)
    assert 0.3 <= start.time - asked < 5


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_that_appears_later_is_served_at_once(client: Client) -> None:
    started = time.monotonic()
    client.enqueue("quick", {"queue": "brand new"}).result("60s")
    assert time.monotonic() - started < 4, "before anybody polls"


def test_pause_and_resume_take_effect_at_once(client: Client) -> None:
    client.enqueue("quick", {"queue": "stop and go"}).result("60s")
    client.app.queues.pause("stop and go")
    paused = client.enqueue("quick", {"queue": "stop and go"})
    client.enqueue("quick").result("60s")
    assert client.record(paused).state is JobState.PENDING
    resumed = time.monotonic()
    client.app.queues.resume("stop and go")
    paused.result("60s")
    assert time.monotonic() - resumed < 4, "before anybody polls"


# ── cancelling ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("task", ["sleep", "thread_sleep", "alone_sleep", "alone_async"])
def test_a_running_job_is_cancelled_inside_its_task(client: Client, task: str) -> None:
    job = client.enqueue(task, seconds=3600)
    client.started(job)
    asked = time.monotonic()
    job.cancel("changed my mind")
    record = client.end_of(job)
    took = time.monotonic() - asked
    assert (record.state, record.cancel_reason) == (JobState.CANCELLED, "changed my mind")
    (end,) = client.history.read("end", job.id)
    assert end.note == "CancelledError", "the task could clean up"
    assert took < 5, "without waiting for a beat"


@pytest.mark.parametrize("task", ["heed", "thread_heed", "alone_heed"])
def test_a_task_that_goes_on_sees_that_it_was_cancelled_and_can_stop_there(client: Client, task: str) -> None:
    job = client.enqueue(task)
    until(lambda: client.history.read("is cancelled", job.id), "its first look")
    job.cancel()
    assert client.end_of(job).state is JobState.CANCELLED, "it would have completed"
    assert [event.note for event in client.history.read("is cancelled", job.id)] == ["False", "True"]
    (end,) = client.history.read("end", job.id)
    assert end.note == "CancelledError"


# ── soft timeouts ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("task", ["soft", "thread_soft", "alone_soft", "alone_async_soft"])
def test_a_soft_timeout_is_seen_inside_the_task_which_cleans_up(client: Client, task: str) -> None:
    job = client.enqueue(task)
    record = client.end_of(job)
    assert (record.state, record.error_type, client.kinds(job)) == (JobState.DEAD, "SoftTimeout", ["timeout"])
    (start,), (end,) = client.history.read("start", job.id), client.history.read("end", job.id)
    assert len(client.history.read("clean-up", job.id)) == 1
    assert end.note == "SoftTimeout"
    assert 0.28 < end.at - start.at < 3


# ── what a task knows ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_context_tells_what_job_this_is(client: Client) -> None:
    job = client.enqueue("facts", {"queue": "facts", "idempotency_key": "k1", "context": {"trace": "t1"}})
    facts = job.result("60s")
    assert facts == {
        "job_id": str(job.id),
        "task": "facts",
        "queue": "facts",
        "attempt": 1,
        "max_attempts": 5,
        "idempotency_key": "k1",
        "context": {"trace": "t1"},
        "state": "by the first hook",
        "deadline": True,
        "is_cancelled": False,
        "pid": client.workers()[0].pid,
    }


@pytest.mark.parametrize("task", ["time_left", "thread_time_left", "alone_time_left"])
def test_the_deadline_is_when_the_soft_timeout_comes(client: Client, task: str) -> None:
    assert 900 < client.enqueue(task).result("60s") <= 1000.5


def test_the_progress_of_an_isolated_job_is_seen_with_its_result(client: Client) -> None:
    job = client.enqueue("alone_progress")
    job.result("60s")
    progress = job.progress()
    assert progress is not None
    assert (progress.done, progress.total, progress.note) == (10, 10, "step 10")


def test_threads_and_processes_have_the_state_of_the_hooks(client: Client) -> None:
    in_thread = client.enqueue("thread_facts").result("60s")
    alone = client.enqueue("alone_facts").result("60s")
    assert in_thread["state"] == alone["state"] == "by the first hook"
    assert in_thread["thread"].startswith("holdfast-task")
    assert alone["deadline"] is True
    assert alone["pid"] != client.workers()[0].pid


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("facts", "in the task"),
        ("facts", "through the context"),
        ("thread_facts", "in the thread"),
        ("alone_facts", "alone"),
    ],
)
def test_log_records_carry_their_job(client: Client, program: Program, task: str, said: str) -> None:
    job = client.enqueue(task)
    job.result("60s")
    program.says(rf"WARNING .*{task} {job.id}.* {said}\n")


def test_hooks_run_once_in_each_process_in_their_order(client: Client) -> None:
    client.enqueue("alone_facts").result("60s")
    by_pid: dict[int, list[str]] = {}
    for event in client.history.read("startup"):
        by_pid.setdefault(event.pid, []).append(event.note)
    assert client.workers()[0].pid in by_pid
    assert len(by_pid) >= 2, "also in processes of isolated jobs"
    assert set(map(tuple, by_pid.values())) == {("first", "second after by the first hook")}
