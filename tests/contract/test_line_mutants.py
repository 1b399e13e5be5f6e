"""Stores that break one promise about limits each, and the contract test that must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from holdfast import gates, traffic, turns
from holdfast.gates import Gate, GateKind, GateRule
from holdfast.job import JobRecord, Stage
from holdfast.lifecycle import GiveBack, Transition
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory_ledger import MemoryLedger
from holdfast.traffic import Departure, Ledger
from holdfast.turns import Bounds, Line
from tests.contract.test_mutants import run_contract_test

# ── gates ────────────────────────────────────────────────────────────────────────────────────────────────────────────

SECOND = 1_000_000


def places_are_never_freed(gate: Gate, job: UUID, *, was_active: bool, is_over: bool, waits: bool) -> Gate:
    return (
        gate
        if gate.kind is GateKind.LIMIT
        else gates.vacated(gate, job, was_active=was_active, is_over=is_over, waits=waits)
    )


def places_are_freed_by_jobs_that_wait(gate: Gate, job: UUID, *, was_active: bool, is_over: bool, waits: bool) -> Gate:
    return gates.vacated(gate, job, was_active=True, is_over=is_over, waits=waits)


def places_are_freed_at_the_end_only(gate: Gate, job: UUID, *, was_active: bool, is_over: bool, waits: bool) -> Gate:
    return gates.vacated(gate, job, was_active=was_active and is_over, is_over=is_over, waits=waits)


def orders_are_never_freed(gate: Gate, job: UUID, *, was_active: bool, is_over: bool, waits: bool) -> Gate:
    return (
        gate
        if gate.kind is GateKind.ORDER
        else gates.vacated(gate, job, was_active=was_active, is_over=is_over, waits=waits)
    )


def orders_are_freed_by_a_retry(gate: Gate, job: UUID, *, was_active: bool, is_over: bool, waits: bool) -> Gate:
    return gates.vacated(gate, job, was_active=was_active, is_over=True, waits=waits)


def anybody_frees_an_order(gate: Gate, job: UUID, *, was_active: bool, is_over: bool, waits: bool) -> Gate:
    return gates.vacated(gate, gate.holder or job, was_active=was_active, is_over=is_over, waits=waits)


def rates_count_what_runs(gate: Gate, job: UUID, *, was_active: bool, is_over: bool, waits: bool) -> Gate:
    if gate.kind is GateKind.RATE and was_active:
        return replace(gate, log=gate.log[1:])
    return gates.vacated(gate, job, was_active=was_active, is_over=is_over, waits=waits)


def a_train_is_over_with_its_first_job(gate: Gate, job: UUID, *, was_active: bool, is_over: bool, waits: bool) -> Gate:
    after = gates.vacated(gate, job, was_active=was_active, is_over=is_over, waits=waits)
    return replace(after, held=0) if gate.kind is GateKind.ORDER else after


def who_waits_does_not_come_first(gate: Gate, job: UUID, *, was_active: bool, is_over: bool, waits: bool) -> Gate:
    return gates.vacated(gate, job, was_active=was_active, is_over=is_over)


def trains_have_any_length(gate: Gate) -> int:
    return 1_000


def rates_are_not_counted(gate: Gate, jobs: Sequence[UUID], now: int) -> Gate:
    return gate if gate.kind is GateKind.RATE else gates.taken(gate, jobs, now)


def claims_are_counted_once(gate: Gate, jobs: Sequence[UUID], now: int) -> Gate:
    return gates.taken(gate, jobs[:1], now)


def holders_are_not_noted(gate: Gate, jobs: Sequence[UUID], now: int) -> Gate:
    return gate if gate.kind is GateKind.ORDER else gates.taken(gate, jobs, now)


def starts_are_counted_for_good(gate: Gate, claimed_at: int) -> Gate:
    return gate


def what_is_not_started_makes_room_for_all(gate: Gate, claimed_at: int) -> Gate:
    return replace(gate, log=())


def limits_are_off_by_one(gate: Gate, now: int) -> int:
    return gates.room(gate, now) + (gate.kind is GateKind.LIMIT)


def windows_are_minutes_of_the_clock(gate: Gate, now: int) -> int:
    minute = 60 * SECOND
    return gates.room(replace(gate, log=tuple(entry for entry in gate.log if entry[0] // minute == now // minute)), now)


def windows_are_too_short(gate: Gate, now: int) -> int:
    return gates.room(replace(gate, per=gate.per // 2), now)


def rates_open_too_early(gate: Gate, now: int) -> int | None:
    opening = gates.opens_at(gate, now)
    return None if opening is None else (opening + now) // 2


def rates_open_too_late(gate: Gate, now: int) -> int | None:
    opening = gates.opens_at(gate, now)
    return None if opening is None else opening + gate.per


def rates_never_open(gate: Gate, now: int) -> int | None:
    return None


def nobody_is_let_in_again(gate: Gate, now: int) -> int:
    return 0


def dead_jobs_never_block(rule: GateRule) -> Gate:
    return replace(gates.made(rule), is_blocking=False)


def dead_jobs_always_block(rule: GateRule) -> Gate:
    return replace(gates.made(rule), is_blocking=True)


def what_the_code_says_now_is_not_heard(gate: Gate, rule: GateRule) -> Gate:
    return gate


def keys_are_one(kind: GateKind, name: str, key: str) -> UUID:
    return gates._id_of(("gate", int(kind), name))


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def lines_are_not_woken(ledger: Ledger, ids: Iterable[UUID]) -> frozenset[str]:
    return frozenset()


async def nothing_parked_is_released(ledger: Ledger, gates: Mapping[UUID, Gate], now: int) -> frozenset[str]:
    return frozenset()


async def departures_are_not_heard(ledger: Ledger, departures: Sequence[Departure], now: int) -> frozenset[str]:
    return frozenset()


async def lines_stay_where_they_were_made(ledger: Ledger, priorities: Mapping[UUID, int]) -> frozenset[str]:
    return frozenset()


async def lines_that_advance_are_closed(ledger: Ledger, priorities: Mapping[UUID, int]) -> frozenset[str]:
    lines = await ledger.lines(priorities)
    await ledger.save([turns.at_priority(line, priorities[id]) for id, line in lines.items()], [])
    return frozenset()


def lines_have_no_tenant(line: Line, gates: Mapping[UUID, Gate], current: int) -> tuple[Line, Gate | None]:
    return original_opened(replace(line, tenant=None), gates, current)


def who_was_away_catches_up(line: Line, gates: Mapping[UUID, Gate], current: int) -> tuple[Line, Gate | None]:
    return original_opened(line, gates, 0)


original_opened = turns.opened


# ── ledgers and stores ───────────────────────────────────────────────────────────────────────────────────────────────


class RetriesAreLookedForInFront(MemoryLedger):
    async def lines_of_ready(self, jobs: Sequence[UUID]) -> dict[UUID, UUID]:
        found = await super().lines_of_ready(jobs)
        return {job: line for job, line in found.items() if self._ready_in(line)[0] == job}


class OneQueueKeepsTheRoom(MemoryLedger):
    async def parked(self, wanted: Mapping[UUID, int]) -> list[Line]:
        found = await super().parked(dict.fromkeys(wanted, 1000))
        return sorted(found, key=lambda line: (-line.priority, line.turn))[: sum(wanted.values())]


class TurnsAreForgotten(MemoryLedger):
    async def save(self, lines: Iterable[Line], gates: Iterable[Gate]) -> None:
        await super().save([replace(line, turn=0) for line in lines], [replace(gate, turn=0) for gate in gates])


class GatesAreNotSaved(MemoryLedger):
    async def save(self, lines: Iterable[Line], gates: Iterable[Gate]) -> None:
        await super().save(lines, [gate for gate in gates if gate.id not in self._gates])


class PrioritiesAreOne(MemoryLedger):
    async def open_lines(self, queue: str, priority: int, most: int, *, is_unrated: bool) -> list[Line]:
        mine = [line for line in self._open() if line.queue == queue]
        return sorted(mine, key=lambda line: (line.turn, line.id))[:most]


class RatesAreForgottenWithTheirJobs(MemoryLedger):
    def forget(self, known: set[UUID], now: int) -> None:
        super().forget(known, now)
        self._gates = {id: gate for id, gate in self._gates.items() if gate.lines}


class JobsThatRunAgainKeepTheirPlaces(MemoryStore):
    def _leave(self, departures: Sequence[Departure]) -> None:
        super()._leave([each for each in departures if each.is_over])


class NothingThatIsGivenBackCounts(MemoryStore):
    def _finished(self, job: JobRecord, transition: Transition, now: datetime) -> JobRecord:
        if isinstance(transition, GiveBack):
            transition = replace(transition, is_unstarted=True)
        return super()._finished(job, transition, now)


class WhateverIsClaimedHasBegun(MemoryStore):
    def _finished(self, job: JobRecord, transition: Transition, now: datetime) -> JobRecord:
        return replace(super()._finished(job, transition, now), runs=job.runs)


class RatedJobsAreFetchedAhead(MemoryStore):
    def _pick(
        self, queue: str, bounds: Bounds, coin: bool, now: datetime
    ) -> tuple[list[JobRecord], Mapping[UUID, UUID]]:
        return super()._pick(queue, replace(bounds, most_rated=None), coin, now)


class GivenBackJobsGoToTheEnd(MemoryStore):
    def _put(self, before: JobRecord | None, after: JobRecord) -> JobRecord:
        if before is not None and after.stage is Stage.READY and before.stage is Stage.ACTIVE:
            before = replace(before, line=None)
            after = replace(super()._put(before, replace(after, line=None)), line=after.line)
            self._jobs[after.id] = after
            self._moved.append((before, after))
            return after
        return super()._put(before, after)


def with_ledger(kind: type[MemoryLedger]) -> type[MemoryStore]:
    def make(store: MemoryStore, *arguments: object, **options: object) -> None:
        MemoryStore.__init__(store, *arguments, **options)  # type: ignore[arg-type]
        store._ledger = kind(store._ready_in, store._ready_where)

    return type(kind.__name__, (MemoryStore,), {"__init__": make})


@dataclass(frozen=True)
class Broken:
    """Places in the code, what is put there, and the contract test that must notice."""

    caught_by: str
    function: Callable[..., Any] | None = None
    at: tuple[str, ...] = ()
    store: type[MemoryStore] = MemoryStore

    @property
    def name(self) -> str:
        return self.store.__name__ if self.function is None else self.function.__name__


def _ledger(kind: type[MemoryLedger], caught_by: str) -> Broken:
    return Broken(caught_by, store=with_ledger(kind))


def _traffic(name: str, function: Callable[..., Any], caught_by: str) -> Broken:
    users = [module.__name__ for module in (traffic, turns) if hasattr(module, name)]
    return Broken(caught_by, function, tuple(f"{module}.{name}" for module in users))


MUTANTS = [
    _traffic(
        "vacated",
        a_train_is_over_with_its_first_job,
        "test_nobody_else_is_claimed_before_all_of_a_train_have_left",
    ),
    _traffic(
        "vacated",
        who_waits_does_not_come_first,
        "test_while_some_of_a_broken_train_are_out_nobody_passes_them",
    ),
    _traffic("longest_train", trains_have_any_length, "test_a_train_is_no_longer_than_the_order_lets_it_be"),
    Broken("test_what_is_given_back_is_claimed_in_its_order_again", store=GivenBackJobsGoToTheEnd),
    _traffic("vacated", places_are_never_freed, "test_lines_may_share_a_gate"),
    _traffic("vacated", places_are_freed_by_jobs_that_wait, "test_a_cancelled_job_that_waits_frees_no_place"),
    _traffic("vacated", places_are_freed_at_the_end_only, "test_what_is_given_back_at_once_comes_first"),
    _traffic("vacated", orders_are_never_freed, "test_one_at_a_time_in_their_order"),
    _traffic("vacated", orders_are_freed_by_a_retry, "test_an_order_is_kept_across_retries"),
    _traffic(
        "vacated",
        anybody_frees_an_order,
        "test_a_cancelled_job_that_waits_lets_nobody_pass_the_one_that_will_run_again",
    ),
    _traffic("vacated", rates_count_what_runs, "test_no_more_start_in_a_window_than_the_rate"),
    _traffic("taken", rates_are_not_counted, "test_no_more_start_in_a_window_than_the_rate"),
    _traffic("taken", claims_are_counted_once, "test_no_more_start_in_a_window_than_the_rate"),
    _traffic("taken", holders_are_not_noted, "test_one_at_a_time_in_their_order"),
    _traffic("room", limits_are_off_by_one, "test_no_more_run_at_once_than_the_limit_of_their_key"),
    _traffic("unused", starts_are_counted_for_good, "test_a_cancelled_job_that_has_not_started_does_not_count"),
    _traffic("unused", what_is_not_started_makes_room_for_all, "test_what_was_not_started_after_all_does_not_count"),
    Broken("test_what_was_not_started_after_all_does_not_count", store=NothingThatIsGivenBackCounts),
    Broken("test_what_expires_before_its_first_start_blocks_nobody", store=WhateverIsClaimedHasBegun),
    Broken("test_what_expires_after_its_first_start_blocks_its_key", store=NothingThatIsGivenBackCounts),
    _traffic(
        "room",
        windows_are_minutes_of_the_clock,
        "test_a_rate_counts_in_any_window_and_not_by_the_minutes_of_the_clock",
    ),
    _traffic("room", windows_are_too_short, "test_a_rate_counts_in_any_window_and_not_by_the_minutes_of_the_clock"),
    _traffic("opens_at", rates_open_too_early, "test_a_tick_tells_when_a_rate_has_room_again"),
    _traffic("opens_at", rates_open_too_late, "test_a_tick_tells_when_a_rate_has_room_again"),
    _traffic("opens_at", rates_never_open, "test_no_more_start_in_a_window_than_the_rate"),
    _traffic("to_open", nobody_is_let_in_again, "test_lines_may_share_a_gate"),
    _traffic("made", dead_jobs_never_block, "test_what_runs_or_waits_keeps_its_line"),
    _traffic("made", dead_jobs_always_block, "test_a_dead_job_lets_the_next_one_go_on"),
    _traffic(
        "declared",
        what_the_code_says_now_is_not_heard,
        "test_a_limit_that_the_code_has_raised_counts_from_the_next_job_on",
    ),
    Broken("test_no_more_run_at_once_than_the_limit_of_their_key", keys_are_one, ("holdfast.gates._gate_id",)),
    _traffic("wake", lines_are_not_woken, "test_jobs_of_one_line_are_claimed_in_their_order"),
    _traffic(
        "advance",
        lines_stay_where_they_were_made,
        "test_a_key_of_an_order_goes_on_at_the_priority_of_its_last_job",
    ),
    _traffic(
        "advance",
        lines_that_advance_are_closed,
        "test_an_order_whose_last_job_comes_later_is_not_forgotten",
    ),
    _traffic("release", nothing_parked_is_released, "test_everything_in_lines_comes_to_its_end"),
    _traffic("leave", departures_are_not_heard, "test_what_is_given_back_at_once_comes_first"),
    _traffic("opened", lines_have_no_tenant, "test_many_lines_of_one_tenant_get_no_more_than_one_line_of_another"),
    _traffic("opened", who_was_away_catches_up, "test_who_comes_later_does_not_make_up_for_what_he_has_not_used"),
    _ledger(RetriesAreLookedForInFront, "test_a_retry_is_found_behind_however_many_wait_for_it"),
    _ledger(OneQueueKeepsTheRoom, "test_a_queue_that_nobody_claims_from_keeps_no_room_from_others"),
    _ledger(TurnsAreForgotten, "test_turns_go_on_from_one_claim_to_the_next"),
    _ledger(GatesAreNotSaved, "test_lines_may_share_a_gate"),
    _ledger(PrioritiesAreOne, "test_what_is_more_important_goes_first_in_lines_and_beside_them"),
    _ledger(RatesAreForgottenWithTheirJobs, "test_a_rate_is_remembered_longer_than_its_jobs"),
    Broken("test_what_is_given_back_at_once_comes_first", store=JobsThatRunAgainKeepTheirPlaces),
    Broken(
        "test_of_those_under_a_rate_only_what_can_start_at_once_is_claimed",
        store=RatedJobsAreFetchedAhead,
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
async def test_a_broken_promise_about_limits_is_noticed(mutant: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant.function is not None:
        for place in mutant.at:
            monkeypatch.setattr(place, mutant.function)
    assert await run_contract_test(mutant.caught_by, mutant.store) is not None


@pytest.mark.parametrize("name", sorted({mutant.caught_by for mutant in MUTANTS}))
async def test_what_notices_a_mutant_accepts_the_original(name: str) -> None:
    assert await run_contract_test(name, MemoryStore) is None
