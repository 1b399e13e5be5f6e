"""Each worker is beaten for on its own: what happens to one is no other's business."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.liveness import BEAT_EVERY
from holdfast.store import Beaten, Held, Store
from holdfast.worker.heartbeat import Heartbeat


class Office:
    """A store that only beats."""

    def __init__(self) -> None:
        self.beats: list[UUID] = []
        self.faults: dict[UUID, Exception] = {}
        self.stuck: dict[UUID, asyncio.Event] = {}

    async def beat(self, worker: UUID, held: Held) -> Beaten:
        if worker in self.stuck:
            await self.stuck[worker].wait()
        if worker in self.faults:
            raise self.faults[worker]
        self.beats.append(worker)
        return Beaten(is_alive=True)


class Ward:
    is_working = True

    def __init__(self, fault: Exception | None = None) -> None:
        self.worker = uuid4()
        self.answers: list[Beaten] = []
        self._fault = fault

    def held(self) -> Held:
        if self._fault is not None:
            raise self._fault
        return Held({})

    def beaten(self, answer: Beaten, held: Held) -> None:
        self.answers.append(answer)


@pytest.fixture
def office() -> Office:
    return Office()


def heartbeat(office: Office, *wards: Ward) -> Heartbeat:
    return Heartbeat(lambda: cast("Store", office), lambda: cast("Any", wards))


async def test_a_worker_that_cannot_tell_what_it_holds_does_not_cost_the_others_their_beat(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    wards = [Ward(), Ward(ValueError("torn")), Ward()]
    pause = await heartbeat(office, *wards).act()
    assert [len(ward.answers) for ward in wards] == [1, 0, 1]
    assert pause < BEAT_EVERY.total_seconds() / 2, "it is tried again soon"
    assert f"the heartbeat of worker {wards[1].worker} failed" in caplog.text
    assert "ValueError: torn" in caplog.text


@pytest.mark.parametrize("fault", [StoreUnavailable(), ValueError("unexpected")])
async def test_a_beat_that_fails_does_not_cost_the_others_theirs(office: Office, fault: Exception) -> None:
    wards = [Ward(), Ward(), Ward()]
    office.faults[wards[0].worker] = fault
    answers = await asyncio.gather(heartbeat(office, *wards).act(), return_exceptions=True)
    assert [len(ward.answers) for ward in wards] == [0, 1, 1]
    assert isinstance(answers[0], StoreUnavailable) == isinstance(fault, StoreUnavailable)


async def test_a_beat_that_is_stuck_does_not_hold_up_the_others(office: Office) -> None:
    wards = [Ward() for _ in range(20)]
    stuck = office.stuck[wards[0].worker] = asyncio.Event()
    acting = asyncio.create_task(heartbeat(office, *wards).act())
    async with asyncio.timeout(20):
        while len(office.beats) < 19:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
    assert not acting.done()
    stuck.set()
    assert await acting == pytest.approx(BEAT_EVERY.total_seconds() * 0.8)
    assert all(len(ward.answers) == 1 for ward in wards)


async def test_a_worker_that_has_ended_is_not_beaten_for(office: Office) -> None:
    ward = Ward()
    ward.is_working = False
    await heartbeat(office, ward).act()
    assert office.beats == []
