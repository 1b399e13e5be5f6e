"""The event loops of a real worker, its supervisor's and its children's: none of their turns takes long."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Job
from holdfast.job import JobState
from tests.worker.database import database
from tests.worker.history import VARIABLE, Event, History
from tests.worker.program import Client, Program, client_of, until
from tests.worker.watched import make_app


@pytest.fixture(params=["sqlite", "postgres"])
def client(
    request: pytest.FixtureRequest, tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    # As if uvloop were not installed.
    (tmp_path / "uvloop.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv(VARIABLE, str(history.path))
    with database(request, tmp_path) as url, client_of(url, history, make_app) as client:
        yield client


def _work_off(client: Client) -> None:
    """Jobs of all kinds, which end in all ways; some take their child along, so that another one takes its place."""
    well: list[Job[Any]] = client.enqueue_many("quick", 300)
    well += client.enqueue_many("thread_sleep", 20, seconds=0.01)
    for task in ("in_a_transaction", "in_a_transaction_of_a_thread"):
        well += client.enqueue_many(task, 20)
    for task in ("sleep", "alone_sleep", "alone_async", "once_only"):
        well.append(client.enqueue(task, seconds=0.01))
    badly = [client.enqueue(task, kind="value") for task in ("fail", "alone_fail") for _ in range(5)]
    badly += [client.enqueue(task) for task in ("soft", "thread_soft", "alone_soft")]
    badly += [client.enqueue(task) for task in ("swallow", "thread_hang", "alone_hang")]
    assert {record.state for record in client.ends_of(well)} == {JobState.COMPLETED}
    assert all(record.state.is_final for record in client.ends_of(badly))


def _long_turns(client: Client, since: float) -> list[Event]:
    return [event for event in client.history.read("long turn") if event.at > since]


def test_no_turn_of_the_loops_of_a_supervisor_and_its_children_takes_long(client: Client) -> None:
    prelude = "from tests.worker.watch import watch; watch()"
    with Program(client.url, client.history, "-p", "1", app="tests.worker.watched:hf", prelude=prelude) as program:
        _work_off(client)
        prepared_at = time.monotonic()  # what is imported and prepared with the first jobs is not meant
        _work_off(client)
        worked_off_at = time.monotonic()
        client.end_of(client.enqueue("compute"))
        until(lambda: _long_turns(client, worked_off_at), "the watch to notice")
        assert program.pid in {event.pid for event in client.history.read("turn")}
    assert [event.note for event in _long_turns(client, prepared_at) if event.at < worked_off_at] == []
