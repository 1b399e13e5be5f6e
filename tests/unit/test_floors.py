"""Floors: nothing that could be claimed lies below one, whoever commits what and when; and they do rise.

Random histories are acted out: producers that draw places and commit in any order, or not at all; jobs given back;
other claimers that lock rows and let go of them again; several claims of one claimer at the same time, each with its
snapshot, its locks, its commit and its answer at different moments.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.stores.postgres import floors as floors_module
from holdfast.stores.postgres.floors import LANES, Floor, Floors, Look, QueueFloors, Snapshot, lane_number
from tests.unit.visibility import Database, Scan, Stage, View

NO_SWEEP, SWEEP = 0.5, 2.0
"""Times before and after the next sweep of floors that were swept at 0."""
EVERYTHING = 1_000


@dataclass
class Claim:
    """One claim of the claimer under test, as far as it has come."""

    look: Look
    slots: int
    view: View | None = None
    transaction: int = 0
    scan: Scan | None = None
    has_ended: bool = False


class History:
    """Whatever may happen to one queue, step by step. Each history has its own habits."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.database = Database()
        self.floors = swept_floors()
        self.producers: list[int] = []
        self.others: list[int] = []
        self.claims: list[Claim] = []
        self.excused: set[int] = set()
        """Places of rows that were locked when a claim came by: a sweep is for them."""
        self.steps: list[Callable[[], None]] = [
            self.begin_to_produce,
            self.draw,
            self.end_producing,
            self.produce_at_once,
            self.somebody_takes_a_job,
            self.a_job_is_given_back,
            self.end_another,
            self.send_a_claim,
            self.move_a_claim_on,
            self.lose_a_connection,
            self.claim_at_once,
        ]
        self.weights = [self.chance.choice((0, 1, 2, 4)) for _ in self.steps]
        self.most_slots = self.chance.choice((1, 2, 5, 20))
        self.lanes = self.chance.choice(((9,), (9,), (8, 9), (9, 11)))

    def run(self, steps: int = 100) -> None:
        for step in self.chance.choices(self.steps, self.weights, k=steps) if any(self.weights) else ():
            step()
            self.check()
        self.come_to_an_end()

    # ── everybody else ───────────────────────────────────────────────────────────────────────────────────────────────

    def begin_to_produce(self) -> None:
        if len(self.producers) < 6:
            self.producers.append(self.database.begin())

    def draw(self) -> None:
        if self.producers:
            transaction = self.chance.choice(self.producers)
            for _ in range(self.chance.randint(1, 3)):
                self.database.insert(transaction, self.chance.choice(self.lanes))

    def end_producing(self) -> None:
        if self.producers:
            self.database.end(self._one_of(self.producers), self.chance.random() < 0.8)

    def produce_at_once(self) -> None:
        transaction = self.database.begin()
        for _ in range(self.chance.randint(1, 3)):
            self.database.insert(transaction, self.chance.choice(self.lanes))
        self.database.end(transaction, is_committed=True)

    def somebody_takes_a_job(self) -> None:
        if ready := self.database.free(Stage.READY):
            change = self.chance.choice((self.database.take, self.database.finish))
            change(self._other(), self.chance.choice(ready))

    def a_job_is_given_back(self) -> None:
        if taken := self.database.free(Stage.TAKEN):
            self.database.give_back(self._other(), self.chance.choice(taken), self.chance.choice(self.lanes))

    def end_another(self) -> None:
        if self.others:
            self.database.end(self._one_of(self.others), self.chance.random() < 0.6)

    def _other(self) -> int:
        self.others.append(self.database.begin())
        return self.others[-1]

    def _one_of(self, transactions: list[int]) -> int:
        return transactions.pop(self.chance.randrange(len(transactions)))

    # ── the claimer ──────────────────────────────────────────────────────────────────────────────────────────────────

    def send_a_claim(self) -> None:
        if len(self.claims) < 4:
            look = self.floors.look(SWEEP if self.chance.random() < 0.1 else NO_SWEEP)
            self.claims.append(Claim(look, self._slots()))

    def move_a_claim_on(self) -> None:
        """One step of a claim: its statement begins, it locks, it commits, its answer arrives."""
        if not self.claims:
            return
        claim = self.chance.choice(self.claims)
        if claim.view is None:
            claim.view = self.database.view()
        elif claim.scan is None:
            claim.transaction = self.database.begin()
            claim.scan = self.database.claim(claim.transaction, claim.view, claim.look.places, claim.slots)
            self.excused |= {version.place for version in claim.scan.skipped}
        elif not claim.has_ended:
            self.database.end(claim.transaction, is_committed=True)
            claim.has_ended = True
        else:
            self.claims.remove(claim)
            self.floors.learn(claim.look, claim.scan.taken, claim.slots, claim.view.snapshot)

    def lose_a_connection(self) -> None:
        for claim in self.claims:
            if claim.scan and not claim.has_ended:
                self.claims.remove(claim)
                self.database.end(claim.transaction, is_committed=False)
                return

    def claim_at_once(self) -> None:
        scan = claim_at_once(self.database, self.floors, self._slots())
        self.excused |= {version.place for version in scan.skipped}

    def _slots(self) -> int:
        return self.most_slots if self.chance.random() < 0.8 else EVERYTHING

    # ── what must hold ───────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Nothing that can be claimed, now or later, lies below its floor."""
        places = self.floors.look(NO_SWEEP).places
        for row in self.database.rows:
            # Whoever holds the lock of a row may roll back, so what was there before counts too.
            for version in row.versions[-1:] if row.locked_by is None else row.versions[-2:]:
                if version.stage is Stage.READY and version.place not in self.excused:
                    assert version.place >= places[version.lane]

    def come_to_an_end(self) -> None:
        """Everybody goes home: a sweep finds what is left, and the floors rise to the top."""
        for transaction in sorted(self.database.running):
            self.database.end(transaction, is_committed=True)
        claim_at_once(self.database, self.floors, EVERYTHING, SWEEP)
        assert not self.database.free(Stage.READY)
        for _ in range(2):
            claim_at_once(self.database, self.floors, EVERYTHING)
        look = self.floors.look(NO_SWEEP)
        assert look.places == look.reached


def claim_at_once(database: Database, floors: QueueFloors, slots: int, time: float = NO_SWEEP) -> Scan:
    look = floors.look(time)
    view = database.view()
    transaction = database.begin()
    scan = database.claim(transaction, view, look.places, slots)
    database.end(transaction, is_committed=True)
    floors.learn(look, scan.taken, slots, view.snapshot)
    return scan


def swept_floors() -> QueueFloors:
    floors = QueueFloors()
    floors.swept(0, 0)
    return floors


@settings(max_examples=3_000 if os.environ.get("HOLDFAST_THOROUGH") else 300)
@given(seed=st.integers(0, 1 << 32))
def test_nothing_lies_below_a_floor_and_floors_do_rise(seed: int) -> None:
    History(seed).run()


# ── rising ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def filled(count: int, lane: int = 9) -> Database:
    database = Database()
    database.end(begin_with(database, count, lane), is_committed=True)
    return database


def begin_with(database: Database, count: int, lane: int = 9) -> int:
    """A transaction that has enqueued so many jobs and is still open."""
    transaction = database.begin()
    for _ in range(count):
        database.insert(transaction, lane)
    return transaction


def test_a_floor_follows_two_claims_behind() -> None:
    database, floors = filled(100), swept_floors()
    for number in range(10):
        claim_at_once(database, floors, 10)
        assert floors.look(NO_SWEEP).places[9] == max(0, 10 * (number - 1))


def test_an_old_transaction_holds_a_floor_and_its_end_lets_it_go() -> None:
    database, floors = filled(2), swept_floors()
    old = database.begin()
    for _ in range(3 * floors_module._MOST_MARKS):
        database.end(begin_with(database, 1), is_committed=True)
        claim_at_once(database, floors, 1)
    assert floors.look(NO_SWEEP).places[9] <= 2
    database.end(old, is_committed=True)
    for _ in range(4):
        claim_at_once(database, floors, EVERYTHING)
    assert floors.look(NO_SWEEP).places[9] == 2 + 3 * floors_module._MOST_MARKS


def test_lanes_that_a_filled_claim_did_not_reach_stay_where_they_are() -> None:
    database, floors = filled(5, lane=11), swept_floors()
    transaction = begin_with(database, 20, lane=3)
    for _ in range(3):
        claim_at_once(database, floors, 1)
    database.end(transaction, is_committed=True)
    before = floors.look(NO_SWEEP).places[11]
    for _ in range(10):
        claim_at_once(database, floors, 2)
    assert floors.look(NO_SWEEP).places[11] == before
    assert claim_at_once(database, floors, EVERYTHING).taken == [(11, 4), (11, 5)]


def test_what_a_late_committer_drew_is_taken_before_the_floor_passes_it() -> None:
    database, floors = Database(), swept_floors()
    late = begin_with(database, 3)
    database.end(begin_with(database, 5), is_committed=True)
    for _ in range(3):
        claim_at_once(database, floors, EVERYTHING)
    assert floors.look(NO_SWEEP).places[9] == 0
    database.end(late, is_committed=True)
    taken = [claim_at_once(database, floors, 1).taken for _ in range(3)]
    assert taken == [[(9, 1)], [(9, 2)], [(9, 3)]]


def test_a_transaction_that_the_snapshot_counts_as_not_begun_may_have_drawn_already() -> None:
    """The upper end of a snapshot is one after the last transaction that ended, whoever else has begun by then."""
    database, floors = Database(), swept_floors()
    first, second = database.begin(), database.begin()
    database.insert(second, 9)
    database.insert(first, 9)
    database.end(first, is_committed=True)
    assert database.view().snapshot.next == second
    for _ in range(3):
        claim_at_once(database, floors, EVERYTHING)
    database.end(second, is_committed=True)
    assert claim_at_once(database, floors, EVERYTHING).taken == [(9, 1)]


def test_a_claim_that_is_slow_to_answer_does_not_vouch_for_what_another_one_reached() -> None:
    database, floors = Database(), swept_floors()
    slow_look, slow_view = floors.look(NO_SWEEP), database.view()
    late = begin_with(database, 1)
    database.end(begin_with(database, 1), is_committed=True)
    assert claim_at_once(database, floors, EVERYTHING).taken == [(9, 2)]
    floors.learn(slow_look, [], EVERYTHING, slow_view.snapshot)
    claim_at_once(database, floors, EVERYTHING)
    database.end(late, is_committed=True)
    assert claim_at_once(database, floors, EVERYTHING).taken == [(9, 1)]


# ── sweeping ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_look_is_a_sweep_and_so_is_one_when_it_is_time() -> None:
    floors = QueueFloors()
    assert floors.look(100.0).is_sweep
    floors.swept(started=100.0, ended=100.001)
    assert not floors.look(101.0).is_sweep
    look = floors.look(101.001)
    assert look.is_sweep
    assert look.places == [0] * LANES


@pytest.mark.parametrize(("took", "pause"), [(0.0, 1.0), (0.02, 1.0), (0.1, 5.0), (1.2, 60.0), (30.0, 60.0)])
def test_the_longer_a_sweep_takes_the_later_comes_the_next(took: float, pause: float) -> None:
    floors = QueueFloors()
    floors.swept(started=10.0, ended=10.0 + took)
    assert not floors.look(10.0 + took + pause - 0.01).is_sweep
    assert floors.look(10.0 + took + pause + 0.01).is_sweep


def test_a_row_that_was_locked_and_let_go_is_found_by_the_next_sweep() -> None:
    database, floors = Database(), swept_floors()
    late = begin_with(database, 1)
    database.end(begin_with(database, 1), is_committed=True)
    for _ in range(2):
        claim_at_once(database, floors, 5)
    database.end(late, is_committed=True)
    rival = database.begin()
    database.take(rival, database.rows[0])
    assert claim_at_once(database, floors, 5).taken == []
    assert floors.look(NO_SWEEP).places[9] == 2
    database.end(rival, is_committed=False)
    assert claim_at_once(database, floors, 5).taken == []
    assert claim_at_once(database, floors, 5, SWEEP).taken == [(9, 1)]


def test_floors_are_forgotten_together() -> None:
    floors = Floors()
    known = floors.of("a")
    assert floors.of("a") is known
    assert floors.of("b") is not known
    floors.forget()
    assert floors.of("a") is not known


def test_lanes_stand_in_the_order_of_starting() -> None:
    order = [lane_number(priority, lane) for priority in range(9, -1, -1) for lane in (0, 1)]
    assert order == list(range(LANES))


# ── the tester is tested ─────────────────────────────────────────────────────────────────────────────────────────────


class RisesWhileOldTransactionsRun(Floor):
    def rise(self, snapshot: Snapshot, reached_before: int, highest: int, is_exhausted: bool) -> None:
        super().rise(Snapshot(snapshot.next, snapshot.next), reached_before, highest, is_exhausted)


class RisesToWhatAnotherClaimReached(Floor):
    def rise(self, snapshot: Snapshot, reached_before: int, highest: int, is_exhausted: bool) -> None:
        super().rise(snapshot, self.reached, highest, is_exhausted)


class RisesOverWhatAClaimHadNoRoomFor(Floor):
    def rise(self, snapshot: Snapshot, reached_before: int, highest: int, is_exhausted: bool) -> None:
        super().rise(snapshot, reached_before, highest, is_exhausted=True)


class RisesToWhatItsOwnClaimReached(Floor):
    def rise(self, snapshot: Snapshot, reached_before: int, highest: int, is_exhausted: bool) -> None:
        super().rise(snapshot, max(reached_before, highest), highest, is_exhausted)


class NeverRises(Floor):
    def rise(self, snapshot: Snapshot, reached_before: int, highest: int, is_exhausted: bool) -> None:
        self.reached = max(self.reached, highest)


def test_some_of_many_histories() -> None:
    for seed in range(20):
        History(seed).run()


@pytest.mark.parametrize(
    ("mutant", "caught_by"),
    [
        (RisesWhileOldTransactionsRun, test_some_of_many_histories),
        (RisesWhileOldTransactionsRun, test_what_a_late_committer_drew_is_taken_before_the_floor_passes_it),
        (RisesOverWhatAClaimHadNoRoomFor, test_what_a_late_committer_drew_is_taken_before_the_floor_passes_it),
        (
            RisesToWhatItsOwnClaimReached,
            test_a_transaction_that_the_snapshot_counts_as_not_begun_may_have_drawn_already,
        ),
        (
            RisesToWhatAnotherClaimReached,
            test_a_claim_that_is_slow_to_answer_does_not_vouch_for_what_another_one_reached,
        ),
        (NeverRises, test_some_of_many_histories),
        (NeverRises, test_a_floor_follows_two_claims_behind),
    ],
)
def test_a_floor_that_rises_too_soon_or_not_at_all_is_noticed(
    mutant: type[Floor], caught_by: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors_module, "Floor", mutant)
    with pytest.raises(AssertionError):
        caught_by()
