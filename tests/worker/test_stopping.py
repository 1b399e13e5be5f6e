"""G11: after SIGTERM nothing is claimed, short jobs finish, long ones are given back uncharged; twice means at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.job import JobState
from tests.crash.checker import check
from tests.crash.rounds import IS_THOROUGH
from tests.crash.tally import keep
from tests.worker.database import DATABASES, database
from tests.worker.program import Client, Program, is_alive, send, until


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with database(request, tmp_path) as url:
        yield url


_HANGS_UP = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
"""As in a terminal of its own, also if whoever runs the tests has said nohup."""
_NOHUP = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_short_jobs_finish_long_ones_are_given_back_and_nothing_more_is_claimed(
    client: Client, number: signal.Signals
) -> None:
    with Program(client.url, client.history, "-p", "1", "--grace", "1500ms", prelude=_HANGS_UP) as program:
        client.working()
        short = [client.enqueue(task, seconds=0.8) for task in ("sleep", "thread_sleep")]
        long = [client.enqueue(task, seconds=3600) for task in ("sleep", "thread_sleep", "alone_sleep", "alone_async")]
        for job in (*short, *long):
            client.started(job)
        short.append(client.enqueue("alone_async", seconds=0.8))
        client.started(short[-1])
        program.send(number)
        program.says("stopping: nothing more is claimed")
        late = client.enqueue("quick")
        assert program.wait() == 0
        for job in short:
            record = job.record()
            assert (record.state, record.attempt, record.runs) == (JobState.COMPLETED, 1, 1)
        for job in long:
            record = job.record()
            assert (record.state, record.attempt, record.crashes) == (JobState.PENDING, 0, 0)
            assert client.kinds(job) == ["interrupted"]
            (end,) = client.history.read("end", job.id)
            assert end.note == "CancelledError", "it could clean up"
        assert client.record(late).runs == 0
        assert client.app.workers.list() == [], "it has taken leave"
        assert _hooks_by_process(client, "shutdown").keys() == _hooks_by_process(client, "startup").keys()


SOUR = ("sour", "thread_sour", "alone_sour")


def test_what_is_interrupted_is_given_back_uncharged_whatever_it_raises(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1", "--grace", "100ms") as program:
        client.working()
        jobs = [client.enqueue(task) for task in SOUR]
        for job in jobs:
            client.started(job)
        assert program.stop() == 0
        for job in jobs:
            assert client.history.read("end", job.id)[0].note != "CancelledError"
            assert (job.record().state, job.record().attempt) == (JobState.PENDING, 0), "it has no second attempt"
            assert client.kinds(job) == ["interrupted"]


def test_what_is_cancelled_is_cancelled_whatever_it_raises(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1"):
        jobs = [client.enqueue(task) for task in SOUR]
        for job in jobs:
            client.started(job)
            job.cancel()
        assert {client.end_of(job).state for job in jobs} == {JobState.CANCELLED}


def test_children_say_all_that_they_have_to_say_before_they_end(client: Client) -> None:
    """More than a pipe takes at once."""
    with Program(client.url, client.history, "-p", "1", "-c", "1000", "--grace", "100ms") as program:
        client.working()
        jobs = client.enqueue_many("sleep", 1000, seconds=3600)
        until(lambda: client.count(JobState.ACTIVE) == len(jobs), "all of them to run")
        program.send(signal.SIGTERM)
        assert program.wait() == 0
        assert program.output.count("was stopped and given back") == len(jobs)


def test_a_worker_under_nohup_goes_on_when_its_terminal_is_closed(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1", prelude=_NOHUP) as program:
        client.working()
        program.send(signal.SIGHUP)
        assert client.enqueue("quick", number=3).result("60s") == 3
        program.send(signal.SIGTERM)
        assert program.wait() == 0
        assert program.output.count("stopping: nothing more is claimed") == 1


def _hooks_by_process(client: Client, what: str) -> dict[int, list[str]]:
    by_process: dict[int, list[str]] = {}
    for event in client.history.read(what):
        by_process.setdefault(event.pid, []).append(event.note)
    return by_process


def test_every_process_runs_its_shutdown_hooks_also_those_of_isolated_jobs(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1") as program:
        (worker,) = client.working()
        jobs = [client.enqueue("alone_sleep", seconds=0.5) for _ in range(2)]
        for job in jobs:
            job.result("60s")
        alone = {client.history.read("start", job.id)[0].pid for job in jobs}
        assert program.stop() == 0
        hooks = _hooks_by_process(client, "shutdown")
        assert hooks.keys() == {worker.pid, *alone}
        assert set(map(tuple, hooks.values())) == {("registered last", "registered first")}


def test_processes_that_are_killed_run_no_shutdown_hooks(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1") as program:
        client.working()
        client.enqueue("alone_facts").result("60s")
        job = client.enqueue("sleep", seconds=3600)
        client.started(job)
        family = program.family()
        program.send(signal.SIGTERM)
        program.says("stopping: nothing more is claimed")
        program.send(signal.SIGTERM)
        assert program.wait() == 0
        until(lambda: not any(map(is_alive, family)), "all of them to be gone")
        assert client.history.read("shutdown") == []


def test_a_first_long_job_has_its_grace(client: Client) -> None:
    """The very first job of a process: nothing was ever settled there."""
    with Program(client.url, client.history, "-p", "1") as program:
        client.working()
        job = client.enqueue("sleep", seconds=1.5)
        client.started(job)
        program.send(signal.SIGINT)  # as from a terminal
        assert program.wait() == 0
        assert (job.record().state, job.record().runs) == (JobState.COMPLETED, 1)


def test_what_does_not_let_itself_be_stopped_is_killed_and_given_back(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1", "--grace", "200ms") as program:
        client.working()
        jobs = [client.enqueue(task) for task in ("deaf", "thread_deaf")]
        for job in jobs:
            client.started(job)
        started = time.monotonic()
        assert program.stop() == 0
        assert time.monotonic() - started < 15
        for job in jobs:
            assert (job.record().state, job.record().attempt) == (JobState.PENDING, 0)


def test_a_second_signal_stops_at_once(client: Client) -> None:
    with Program(client.url, client.history, "-p", "2") as program:
        client.working(2)
        jobs = [client.enqueue(task, seconds=3600) for task in ("sleep", "thread_sleep", "alone_sleep")]
        for job in jobs:
            client.started(job)
        family = program.family()
        program.send(signal.SIGTERM)
        program.says("stopping: nothing")
        started = time.monotonic()
        program.send(signal.SIGTERM)
        assert program.wait() == 0
        assert time.monotonic() - started < 5
        assert not any(map(is_alive, family))
        for job in jobs:
            record = job.record()
            assert (record.state, record.attempt, record.crashes) == (JobState.PENDING, 0, 0)
        assert [each.dead_at is None for each in client.app.workers.list()] == [False, False], "nobody waits for them"


MOMENTS: dict[str, Callable[[Program, Client], object]] = {
    "it is a process": lambda program, _: program.pid,
    "it has a child": lambda program, _: until(program.children, "a child"),
    "its child imports the app": lambda _, client: until(lambda: client.history.read("import"), "the import"),
    "its child runs a hook": lambda _, client: until(lambda: client.history.read("hook"), "the hook"),
    "it has told what it is": lambda program, _: program.is_listening(),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_while_it_starts_stops_it(client: Client, moment: str) -> None:
    with Program(client.url, client.history, "-p", "1", app="tests.worker.slow_to_start:hf") as program:
        MOMENTS[moment](program, client)
        started = time.monotonic()
        status = program.stop()
        # Before the program has begun to listen, the signal ends it as it ends any program.
        assert status in ((0, -signal.SIGTERM) if moment == "it is a process" else (0,))
        assert time.monotonic() - started < 10
        assert client.app.workers.list() == [], "it has taken leave, if it was registered"


def test_a_reader_of_the_log_who_has_stopped_reading_holds_up_nobody(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1", is_heard=False) as program:
        (worker,) = client.working()
        for job in [client.enqueue("fail", kind="error") for _ in range(400)]:
            assert client.end_of(job).state is JobState.DEAD, "and three lines of the log tell of it"
        hanging = client.enqueue("swallow")
        assert client.end_of(hanging).error_type == "HardTimeout", "which is up to the supervisor"
        assert client.enqueue("quick", number=3).result("60s") == 3
        assert [each.dead_at for each in client.workers() if each.id == worker.id] in ([], [None])
        assert program.stop() == 0


def test_children_leave_signals_to_their_supervisor(client: Client) -> None:
    """As when a service manager, or a terminal, sends them to all processes at once."""
    with Program(client.url, client.history, "-p", "1") as program:
        client.working()
        job = client.enqueue("sleep", seconds=1)
        client.started(job)
        send(signal.SIGTERM, [program.pid, *program.family()])
        assert program.wait() == 0
        assert (job.record().state, job.record().runs) == (JobState.COMPLETED, 1)


def test_programs_that_a_task_starts_can_be_terminated(client: Client) -> None:
    """A process passes on which signals it ignores, so ours ignore none."""
    with Program(client.url, client.history, "-p", "1"):
        for job in [client.enqueue("thread_program"), client.enqueue("alone_program")]:
            assert job.result("60s") == [-signal.SIGTERM, -signal.SIGINT]


def test_sigquit_shows_what_runs(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1") as program:
        client.working()
        jobs = [client.enqueue(task, seconds=3600) for task in ("sleep", "thread_sleep", "alone_sleep")]
        for job in jobs:
            client.started(job)
        program.send(signal.SIGQUIT)
        program.says(r"child 1 \(pid \d+, working\): 3 running")
        for job, task in zip(jobs, ("sleep", "thread_sleep", "alone_sleep"), strict=True):
            program.says(rf"\d\.\d s  {task} {job.id}")
        program.says(r"child 2 \(pid \d+, (starting|spare)\): 0 running")


def test_rolling_restarts_under_load_lose_and_charge_nothing(client: Client) -> None:
    jobs = []
    with ExitStack() as stack:
        program = stack.enter_context(Program(client.url, client.history, "-p", "1", "--grace", "100ms"))
        client.working()
        for _ in range(20 if IS_THOROUGH else 2):
            jobs += [
                client.enqueue(task, seconds=0.3) for task in ("sleep", "thread_sleep", "alone_sleep", "once_only")
            ]
            jobs += client.enqueue_many("quick", 300)
            until(lambda seen=len(jobs): len(client.history.read("start")) > seen // 2, "some work")  # type: ignore[misc]
            follower = stack.enter_context(Program(client.url, client.history, "-p", "1", "--grace", "100ms"))
            assert program.stop() == 0
            follower.is_listening()
            program = follower
        records = client.ends_of(jobs)
    findings = check([job.id for job in jobs], records, client.history.read())
    keep(client.url, findings)
    assert findings.broken == {}
    assert all(record.crashes == 0 for record in records)
