"""G9: at a hard timeout the process is killed within a second, whatever it is doing; and only the guilty is charged."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.job import JobRecord, JobState
from tests.crash.rounds import IS_THOROUGH
from tests.crash.tally import LATEST_KILL, keep_kill
from tests.worker.database import DATABASES, database
from tests.worker.history import History
from tests.worker.program import PATIENCE, Client, Program, client_of, is_alive

LIMIT = 1.0
"""The hard timeout of the tasks here, in seconds."""
SLACK = 2.0
"""More than the second that is promised, for a machine on which all tests run at once. The long form allows none."""
EPISODES = pytest.mark.parametrize("episode", range(4 if IS_THOROUGH else 1))


@pytest.fixture(scope="module", params=DATABASES)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("timeouts")
    with database(request, folder) as url, client_of(url, History(folder / "history")) as client:
        yield client


@pytest.fixture(scope="module")
def program(client: Client) -> Iterator[Program]:
    with Program(client.url, client.history, "-p", "1") as program:
        client.working()
        yield program


pytestmark = pytest.mark.usefixtures("program")


def _death_of(pid: int) -> float:
    deadline = time.monotonic() + PATIENCE
    while is_alive(pid):
        assert time.monotonic() < deadline, "it is not killed"
        time.sleep(0.005)
    return time.monotonic()


def _lateness(record: JobRecord) -> float:
    """Seconds between the end of its time and its being stopped, as its worker has recorded it."""
    told = re.search(r"Stopped after ([\d.]+) s", record.error_message or "")
    assert told is not None, record.error_message
    return round(float(told[1]) - LIMIT, 3)


@EPISODES
@pytest.mark.parametrize("task", ["block", "swallow", "thread_hang", "hold_interpreter", "alone_hang"])
def test_who_overruns_its_time_is_killed_and_charged_and_its_neighbours_are_not(
    client: Client, task: str, episode: int, record_property: Callable[[str, object], None]
) -> None:
    (worker,) = client.working()
    if task == "alone_hang":  # which disturbs nobody
        neighbours = [client.enqueue(each, seconds=2) for each in ("sleep", "thread_sleep", "alone_sleep")]
    else:
        neighbours = [client.enqueue(each) for each in ("stick", "thread_stick", "alone_stick")]
    for job in neighbours:
        client.started(job)
    guilty = client.enqueue(task)
    client.started(guilty)
    (start,) = client.history.read("start", guilty.id)
    late = _death_of(start.pid) - start.at - LIMIT
    record_property("seconds past the limit", round(late, 3))
    assert -0.1 < late < 1 + SLACK
    assert is_alive(worker.pid) is (task == "alone_hang"), "the others are killed only if they must be"

    record = client.end_of(guilty)
    assert (record.state, record.error_type, record.attempt) == (JobState.DEAD, "HardTimeout", 1)
    assert client.kinds(guilty) == ["timeout"]
    keep_kill(client.url, _lateness(record))
    assert 0 <= _lateness(record) <= LATEST_KILL + (0 if IS_THOROUGH else SLACK)
    for job in neighbours:
        assert job.result("60s") in ("slept", "unstuck")
        record = job.record()
        assert (record.attempt, record.crashes) == (1, 0)
        assert client.kinds(job) == ([] if task == "alone_hang" else ["interrupted"])


def test_a_loop_that_is_blocked_for_a_moment_at_the_end_of_a_neighbours_time_costs_nobody_anything(
    client: Client,
) -> None:
    """The neighbour's time is over during the block; it could not know, and ends as soon as it can."""
    (worker,) = client.working()
    neighbour = client.enqueue("nearly_late")
    client.started(neighbour)
    blocking = client.enqueue("block", seconds=0.4)
    client.started(blocking)
    assert neighbour.result("60s") == "in time"
    assert blocking.result("60s") == "went on"
    assert [job.record().attempt for job in (neighbour, blocking)] == [1, 1]
    assert [each.pid for each in client.workers()] == [worker.pid]


def test_a_job_that_hangs_in_its_process_takes_with_it_what_it_has_started(client: Client) -> None:
    job = client.enqueue("alone_family")
    client.started(job)
    (child,) = [event.pid for event in client.history.read("child", job.id)]
    assert is_alive(child)
    assert client.end_of(job).error_type == "HardTimeout"
    assert _death_of(child)
