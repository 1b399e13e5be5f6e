"""The flight recorder: what is written is what is read, whatever the writer is doing just then."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.breaker import Permit
from holdfast.job import ClaimedJob
from holdfast.retry import Retry
from holdfast.worker.recorder import (
    MOST_CLAIMS,
    NEVER,
    Flight,
    Outpost,
    Phase,
    Place,
    Recorder,
    describe_task,
    read_flight,
    read_overdue,
    size_for,
)
from tests.unit.claims import claimed_job, jobs

PLAIN = describe_task("t", Place.LOOP, Retry())

spans = st.timedeltas(timedelta(0), timedelta(days=3650))
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=200)


@st.composite
def retries(draw: st.DrawFn) -> Retry:
    base, cap = sorted([draw(spans), draw(spans)])
    return Retry(base=base, cap=cap, jitter=draw(st.booleans()))


# ── what is written is what is read ──────────────────────────────────────────────────────────────────────────────────


permits = st.builds(Permit, st.uuids(), st.integers(0, 2**63))


@given(
    jobs,
    names,
    st.sampled_from(Place),
    retries(),
    st.floats(0, 1e9),
    st.integers(0, 2**31 - 1),
    st.integers(0, 1000),
    st.none() | permits,
)
def test_a_slot_tells_all_that_a_supervisor_must_know(
    job: ClaimedJob, name: str, place: Place, retry: Retry, now: float, pid: int, fuse: int, permit: Permit | None
) -> None:
    recorder = Recorder.in_memory(2)
    slot = recorder.claimed(job, describe_task(name, place, retry, fuse))
    (claimed,) = recorder.flight().entries
    assert (claimed.fuse, claimed.permit) == (fuse, None)
    if permit is not None:
        recorder.trying(slot, job.id, permit)
    assert (claimed.phase, claimed.started_at, claimed.overdue_at, claimed.pid) == (Phase.CLAIMED, 0.0, NEVER, 0)
    recorder.started(slot, now, now + 5, pid)
    (entry,) = recorder.flight().running
    assert (entry.slot, entry.phase, entry.id, entry.token) == (slot, Phase.STARTED, job.id, job.token)
    assert (entry.place, entry.started_at, entry.overdue_at, entry.pid) == (place, now, now + 5, pid)
    assert (entry.fuse, entry.permit) == (fuse, permit)
    standing = ("attempt", "max_attempts", "crashes", "waits", "pool_tries", "delivery")
    assert [getattr(entry, name) for name in standing] == [getattr(job, name) for name in standing]
    assert abs(entry.retry.base - retry.base) < timedelta(milliseconds=1)
    assert abs(entry.retry.cap - retry.cap) < timedelta(milliseconds=1)
    assert entry.retry.jitter is retry.jitter
    recorder.finished(slot)
    assert recorder.flight().running == ()
    assert recorder.flight().entries[0].phase is Phase.FINISHED
    recorder.settled(slot)
    assert recorder.flight().entries == ()


@given(names)
def test_a_long_name_is_cut_between_characters(name: str) -> None:
    recorder = Recorder.in_memory(1)
    recorder.claimed(claimed_job(), describe_task(name, Place.LOOP, Retry()))
    (entry,) = recorder.flight().entries
    assert name.startswith(entry.task)
    assert "\ufffd" not in entry.task or "\ufffd" in name
    if len(name.encode()) <= 70:
        assert entry.task == name
    else:
        assert 66 < len(entry.task.encode()) <= 70


def test_another_process_that_has_only_the_file_can_say_that_a_job_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "recorder"
    path.write_bytes(bytes(size_for(3)))
    with path.open("r+b") as file:
        recorder = Recorder(mmap.mmap(file.fileno(), 0), 3, file.fileno())
        slots = [recorder.claimed(claimed_job(), PLAIN) for _ in range(3)]
        for slot in slots:
            recorder.started(slot, 1.0, 2.0, 4711)
        outpost = Outpost(file.fileno())
        outpost.finished(recorder.phase_of(slots[1]))
        assert {entry.slot for entry in recorder.flight().running} == {slots[0], slots[2]}


def test_a_file_that_a_task_has_opened_in_place_of_the_recorder_is_left_alone(tmp_path: Path) -> None:
    for name in ("recorder", "other"):
        (tmp_path / name).write_bytes(bytes(100))
    file = os.open(tmp_path / "recorder", os.O_RDWR)
    try:
        outpost = Outpost(file)
        with (tmp_path / "other").open("r+b") as other:
            os.dup2(other.fileno(), file)
        outpost.finished(50)
    finally:
        os.close(file)
    outpost.finished(50)
    assert (tmp_path / "recorder").read_bytes() == (tmp_path / "other").read_bytes() == bytes(100)


@pytest.mark.parametrize("place", Place)
def test_a_job_that_goes_on_elsewhere_is_seen_there(place: Place) -> None:
    recorder = Recorder.in_memory(1)
    slot = recorder.claimed(claimed_job(), PLAIN)
    recorder.started(slot, 1.0, 2.0)
    recorder.moved(slot, place)
    (entry,) = recorder.flight().running
    assert (entry.place, entry.task) == (place, "t")


def test_a_slot_that_is_used_again_has_nothing_left_of_its_last_job() -> None:
    recorder = Recorder.in_memory(1)
    job = claimed_job()
    slot = recorder.claimed(job, describe_task("a" * 70, Place.PROCESS, Retry(jitter=False), 7))
    recorder.trying(slot, job.id, Permit(UUID(int=1), 2))
    recorder.started(slot, 1.0, 2.0, 4711)
    recorder.settled(slot)
    recorder.claimed(claimed_job(), describe_task("b", Place.LOOP, Retry()))
    (entry,) = recorder.flight().entries
    assert (entry.task, entry.place, entry.started_at, entry.overdue_at, entry.pid) == ("b", Place.LOOP, 0.0, NEVER, 0)
    assert (entry.fuse, entry.permit) == (0, None)


def test_the_loop_tells_when_it_came_round_and_when_to_look() -> None:
    buffer = bytearray(size_for(3))
    assert read_flight(buffer) == Flight(frozenset(), (), 0, 0.0, 0), "before its process has begun"
    recorder = Recorder(buffer, 3)
    assert (read_flight(buffer).on_cpu, read_overdue(buffer)) == (-1, NEVER)
    recorder.turned(12.5, 7, 20.0)
    recorder.on_cpu[0] = 2
    flight = read_flight(buffer)
    assert (flight.turned_at, flight.finished, flight.on_cpu, read_overdue(buffer)) == (12.5, 7, 2, 20.0)
    slot = recorder.claimed(claimed_job(), PLAIN)
    recorder.started(slot, 13.0, 30.0)
    assert read_overdue(buffer) == 20.0, "somebody else is due earlier"
    recorder.started(slot, 13.0, 15.0)
    assert read_overdue(buffer) == 15.0, "without waiting for the loop to come round: it may never"


# ── any history ──────────────────────────────────────────────────────────────────────────────────────────────────────


class AnyHistory(RuleBasedStateMachine):
    """A recorder beside plain dictionaries that are told the same."""

    SLOTS = 4

    def __init__(self) -> None:
        super().__init__()
        self.recorder = Recorder.in_memory(self.SLOTS)
        self.claims: dict[int, UUID] = {}
        self.slots: dict[int, tuple[ClaimedJob, Phase]] = {}

    @precondition(lambda self: len(self.claims) < MOST_CLAIMS)
    @rule()
    def claim(self) -> None:
        token = uuid4()
        number = self.recorder.claiming(token)
        assert number not in self.claims, "a number was given out twice"
        self.claims[number] = token

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), brings=st.integers(0, 3))
    def answer(self, data: st.DataObject, brings: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.claims)))
        for _ in range(min(brings, self.recorder.free)):
            job = claimed_job(token=self.claims[number])
            slot = self.recorder.claimed(job, PLAIN)
            assert slot not in self.slots, "a slot was given out twice"
            self.slots[slot] = (job, Phase.CLAIMED)
        self.recorder.answered(number)
        del self.claims[number]

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), phase=st.sampled_from([Phase.STARTED, Phase.FINISHED, Phase.FREE]))
    def move(self, data: st.DataObject, phase: Phase) -> None:
        slot = data.draw(st.sampled_from(sorted(self.slots)))
        job, _ = self.slots[slot]
        match phase:
            case Phase.STARTED:
                self.recorder.started(slot, 1.0, 2.0)
            case Phase.FINISHED:
                self.recorder.finished(slot)
            case _:
                self.recorder.settled(slot)
                del self.slots[slot]
                return
        self.slots[slot] = (job, phase)

    @invariant()
    def everything_held_is_told(self) -> None:
        flight = self.recorder.flight()
        assert {(entry.slot, entry.id, entry.phase) for entry in flight.entries} == {
            (slot, job.id, phase) for slot, (job, phase) in self.slots.items()
        }
        assert flight.claiming == set(self.claims.values())
        assert flight.held.jobs == {job.id: job.token for job, _ in self.slots.values()}
        assert flight.held.claiming == {*self.claims.values(), *(job.token for job, _ in self.slots.values())}
        assert self.recorder.free == self.SLOTS - len(self.slots)


TestAnyHistory = AnyHistory.TestCase


def test_no_slot_is_given_out_twice_and_none_is_lost() -> None:
    recorder = Recorder.in_memory(10)
    slots = [recorder.claimed(claimed_job(), PLAIN) for _ in range(10)]
    assert sorted(slots) == list(range(10))
    with pytest.raises(IndexError):
        recorder.claimed(claimed_job(), PLAIN)


def test_of_a_job_that_was_claimed_again_while_its_settlement_is_answered_the_newer_claim_is_held() -> None:
    for is_newer_first in (True, False):
        recorder = Recorder.in_memory(2)
        older, newer = claimed_job(), claimed_job()
        newer = claimed_job(id=older.id)
        slots = {}
        for job in (newer, older) if is_newer_first else (older, newer):
            slots[job.token] = recorder.claimed(job, PLAIN)
            recorder.started(slots[job.token], 1.0, 2.0)
        recorder.finished(slots[older.token])
        held = recorder.flight().held
        assert held.jobs == {older.id: newer.token}
        assert held.claiming == {older.token, newer.token}


# ── reading while it is written ──────────────────────────────────────────────────────────────────────────────────────


class Disturbed(bytearray):
    """Memory that somebody changes between two looks at it."""

    countdown = -1
    disturb: Callable[[], None]

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if self.countdown == 0:
            self.countdown = -1
            self.disturb()
        elif self.countdown > 0:
            self.countdown -= 1
        return found


@pytest.mark.parametrize("has_claim", [True, False])
def test_a_slot_that_changes_hands_while_it_is_read_is_seen_whole(has_claim: bool) -> None:
    """Whatever moment of the reading it is."""
    moments = 0
    for moment in range(100):
        buffer = Disturbed(size_for(1))
        recorder = Recorder(buffer, 1)
        old, new = claimed_job(attempt=1), claimed_job(attempt=2)
        slot = recorder.claimed(old, describe_task("old", Place.LOOP, Retry(base=0, cap=1)))
        recorder.started(slot, 1.0, 2.0)
        claim = recorder.claiming(new.token) if has_claim else -1

        def change_hands(
            recorder: Recorder = recorder, slot: int = slot, new: ClaimedJob = new, claim: int = claim
        ) -> None:
            recorder.settled(slot)
            recorder.claimed(new, describe_task("new", Place.THREAD, Retry(base=2, cap=3)))
            recorder.started(slot, 3.0, 4.0)
            if claim >= 0:
                recorder.answered(claim)

        buffer.disturb, buffer.countdown = change_hands, moment
        flight = read_flight(buffer)
        if buffer.countdown >= 0:
            break
        moments += 1
        seen = [
            (entry.id, entry.token, entry.attempt, entry.task, entry.place, entry.retry.base.total_seconds())
            for entry in flight.entries
        ]
        assert seen in (
            [(old.id, old.token, 1, "old", Place.LOOP, 0)],
            [(new.id, new.token, 2, "new", Place.THREAD, 2)],
        )
        if has_claim:
            assert new.token in flight.held.claiming, "a job on its way is always seen in one of the two places"
    assert moments > 10


def _write_until_killed(memory: mmap.mmap, slots: int) -> None:
    recorder = Recorder(memory, slots)
    number = 0
    while True:
        taken = []
        for _ in range(slots):
            number = number % 1000 + 1
            id = UUID(int=number)
            job = claimed_job(id=id, token=id, attempt=number, max_attempts=number)
            retry = Retry(base=number, cap=number)
            taken.append(recorder.claimed(job, describe_task(str(number), Place.LOOP, retry)))
        for slot in taken:
            recorder.started(slot, float(number), float(number))
        for slot in taken:
            recorder.settled(slot)


def test_another_process_never_sees_a_half_filled_slot() -> None:
    slots = 3
    memory = mmap.mmap(-1, size_for(slots))
    writer = multiprocessing.get_context("fork").Process(target=_write_until_killed, args=(memory, slots))
    writer.start()
    seen = 0
    try:
        deadline = time.monotonic() + 0.7
        while time.monotonic() < deadline:
            for entry in read_flight(memory).entries:
                number = entry.attempt
                assert entry.id == entry.token == UUID(int=number)
                assert (entry.task, entry.max_attempts) == (str(number), number)
                assert entry.retry.base == entry.retry.cap == timedelta(seconds=number)
                seen += 1
    finally:
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
    assert seen > 100
