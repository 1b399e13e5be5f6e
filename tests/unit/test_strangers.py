"""Jobs of tasks that are not known here: given back for an hour, then dead."""

from __future__ import annotations

import pytest

from holdfast.engine import Engine
from holdfast.job import ClaimedJob
from holdfast.lifecycle import Bury, GiveBack
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from holdfast.worker.strangers import Strangers
from tests.unit.claims import claimed_job


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def strangers(clock: ManualClock) -> Strangers:
    return Strangers(Engine(lambda: MemoryStore(clock), clock))


def _job(clock: ManualClock) -> ClaimedJob:
    return claimed_job(created_microseconds=int(clock.now().timestamp() * 1_000_000))


def test_one_is_dead_when_nobody_has_known_its_task_for_an_hour(clock: ManualClock, strangers: Strangers) -> None:
    job = _job(clock)
    for _ in range(60):
        assert isinstance(strangers.turn_away(job), GiveBack)
        clock.advance("1m")
    assert isinstance(strangers.turn_away(job), Bury)
    assert isinstance(strangers.turn_away(_job(clock)), GiveBack), "each job has an hour of its own"


def test_a_task_that_was_known_in_between_has_another_hour(clock: ManualClock, strangers: Strangers) -> None:
    """Files that are replaced may lack a task for a moment, now and again."""
    job = _job(clock)
    strangers.turn_away(job)
    strangers.recognise(job.task)
    clock.advance("2h")
    assert isinstance(strangers.turn_away(job), GiveBack)
