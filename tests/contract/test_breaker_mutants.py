"""Stores that break one promise about breakers each, and the contract test that must notice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from holdfast import breaker, lifecycle
from holdfast.breaker import Admission, BreakerPolicy, BreakerRecord, BreakerReport, Circuit, Finding, Permit
from holdfast.clock import Clock
from holdfast.job import JobRecord, Stage
from holdfast.store import BreakerChange, Retention
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory_breakers import MemoryBreakers
from tests.contract.test_mutants import Mutant, run_contract_test

Listed = list[BreakerRecord]
"""Named here, because the breakers have a `listed` of their own."""
LONG = timedelta(days=365)


class Rewriting(MemoryBreakers):
    """Hears other reports than were made."""

    def heard(self, report: BreakerReport) -> BreakerReport | None:
        raise NotImplementedError

    def report(self, reports: Sequence[BreakerReport], now: datetime) -> Listed:
        super().report([heard for report in reports if (heard := self.heard(report)) is not None], now)
        return self.listed([report.breaker for report in reports], now)


class NeverOpens(MemoryBreakers):
    def _put(self, circuit: Circuit) -> None:
        super()._put(replace(circuit, opened_at=None, reset_at=None))


class SuccessesAreFailures(Rewriting):
    def heard(self, report: BreakerReport) -> BreakerReport:
        return replace(report, finding=Finding.FAILED) if report.finding is Finding.SUCCEEDED else report


class SuccessesChangeNothing(Rewriting):
    def heard(self, report: BreakerReport) -> BreakerReport | None:
        return report if report.finding is not Finding.SUCCEEDED else None


class SeveralFailuresCountAsOne(Rewriting):
    def heard(self, report: BreakerReport) -> BreakerReport:
        return replace(report, number=1)


class ProbesThatSayNothingKeepTheirPermits(Rewriting):
    def heard(self, report: BreakerReport) -> BreakerReport | None:
        return report if report.finding is not Finding.NOTHING else None


class ProbesThatSayNothingClose(Rewriting):
    def heard(self, report: BreakerReport) -> BreakerReport:
        return replace(report, finding=Finding.SUCCEEDED) if report.finding is Finding.NOTHING else report


class LeasesAreNotRenewed(Rewriting):
    def heard(self, report: BreakerReport) -> BreakerReport | None:
        return report if report.finding is not Finding.UNDER_WAY else None


class StalePermitsCount(Rewriting):
    def heard(self, report: BreakerReport) -> BreakerReport:
        if report.permit is None or report.breaker not in self._circuits:
            return report
        return replace(report, permit=replace(report.permit, opening=self._circuits[report.breaker].openings))


class WhatBeganBeforeItOpenedCounts(Rewriting):
    def heard(self, report: BreakerReport) -> BreakerReport:
        if report.permit is not None or report.breaker not in self._circuits:
            return report
        return replace(report, permit=Permit(uuid4(), self._circuits[report.breaker].openings))


class LateProbesDontCount(Rewriting):
    def heard(self, report: BreakerReport) -> BreakerReport | None:
        circuit = self._circuits.get(report.breaker)
        if report.permit is None or circuit is None or circuit.reset_at is None:
            return report
        return report if report.permit.id in circuit.permits else None


class TheLastErrorIsForgotten(Rewriting):
    def heard(self, report: BreakerReport) -> BreakerReport:
        return replace(report, error_type=None)


class ReportsMakeBreakers(MemoryBreakers):
    def report(self, reports: Sequence[BreakerReport], now: datetime) -> Listed:
        for report in reports:
            self._circuits.setdefault(report.breaker, Circuit(report.breaker, BreakerPolicy(), now))
        return super().report(reports, now)


class EverybodyMayTry(MemoryBreakers):
    def enter(self, name: str, id: UUID, now: datetime) -> Admission:
        before = self._find(name)
        self._circuits[name] = replace(before, policy=replace(before.policy, probes=1_000_000))
        admission = super().enter(name, id, now)
        self._circuits[name] = replace(self._circuits[name], policy=before.policy)
        return admission


class OneMayTryWhateverThePolicy(MemoryBreakers):
    def enter(self, name: str, id: UUID, now: datetime) -> Admission:
        before = self._find(name)
        self._circuits[name] = replace(before, policy=replace(before.policy, probes=1))
        admission = super().enter(name, id, now)
        self._circuits[name] = replace(self._circuits[name], policy=before.policy)
        return admission


class LeasesNeverEnd(MemoryBreakers):
    def _put(self, circuit: Circuit) -> None:
        super()._put(replace(circuit, permits={id: until + LONG for id, until in circuit.permits.items()}))


class LeasesLastAsLongAsTheResetTime(MemoryBreakers):
    def enter(self, name: str, id: UUID, now: datetime) -> Admission:
        admission = super().enter(name, id, now)
        circuit = self._circuits[name]
        if id in circuit.permits:
            self._circuits[name] = replace(circuit, permits=circuit.permits | {id: now + circuit.policy.reset})
        return admission


class AskingAgainIsAskingAnew(MemoryBreakers):
    def enter(self, name: str, id: UUID, now: datetime) -> Admission:
        return super().enter(name, uuid4(), now)


class TheResetTimeIsNotWaitedFor(MemoryBreakers):
    def enter(self, name: str, id: UUID, now: datetime) -> Admission:
        return super().enter(name, id, max(self._find(name).reset_at or now, now))


class StaysOpenForEver(MemoryBreakers):
    def enter(self, name: str, id: UUID, now: datetime) -> Admission:
        return super().enter(name, id, self._find(name).opened_at or now)


class EverybodyPasses(MemoryBreakers):
    def enter(self, name: str, id: UUID, now: datetime) -> Admission:
        return replace(super().enter(name, id, now), is_admitted=True)


class AResetForgetsNothing(MemoryBreakers):
    def change(self, name: str, change: BreakerChange, now: datetime) -> BreakerRecord:
        before = self._find(name)
        super().change(name, change, now)
        self._circuits[name] = replace(
            self._circuits[name], failures=before.failures, permits=before.permits, last_error=before.last_error
        )
        return breaker.seen(self._circuits[name], now)


class ChangesAreNotKept(MemoryBreakers):
    def change(self, name: str, change: BreakerChange, now: datetime) -> BreakerRecord:
        return breaker.seen(change(self._find(name), now), now)


class OldCodeDeclaresOverYoungerCode(MemoryBreakers):
    def declare(self, policies: Mapping[str, BreakerPolicy], code_from: datetime, now: datetime) -> Listed:
        return super().declare(policies, now, now)


class DeclaringClosesIt(MemoryBreakers):
    def declare(self, policies: Mapping[str, BreakerPolicy], code_from: datetime, now: datetime) -> Listed:
        self._circuits = {name: breaker.reset(circuit) for name, circuit in self._circuits.items()}
        return super().declare(policies, code_from, now)


class NobodyIsTold(MemoryBreakers):
    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__(lambda: None)


class EverybodyIsLetPass(MemoryBreakers):
    def is_closed(self, name: str, now: datetime) -> bool:
        return True


class NobodyIsLetPass(MemoryBreakers):
    def is_closed(self, name: str, now: datetime) -> bool:
        return False


# ── those that wait ──────────────────────────────────────────────────────────────────────────────────────────────────


class LetPassTakesAll(MemoryStore):
    async def let_pass(self, breaker: str, limit: int) -> int:
        for job in [job for job in self._jobs.values() if job.stage is Stage.SCHEDULED]:
            self._jobs[job.id] = replace(job, breaker=breaker)
        return await super().let_pass(breaker, limit)


class LetPassHasNoLimit(MemoryStore):
    async def let_pass(self, breaker: str, limit: int) -> int:
        return await super().let_pass(breaker, 1_000)


class LetPassMakesReadyInAnyOrder(MemoryStore):
    async def let_pass(self, breaker: str, limit: int) -> int:
        times = sorted(job.due_at for job in self._jobs.values())
        turned = dict(zip(times, reversed(times), strict=True))
        for job in list(self._jobs.values()):
            self._jobs[job.id] = replace(job, due_at=turned[job.due_at])
        return await super().let_pass(breaker, limit)


class LetPassChargesAWait(MemoryStore):
    async def let_pass(self, breaker: str, limit: int) -> int:
        for job in [job for job in self._jobs.values() if job.breaker == breaker]:
            self._jobs[job.id] = replace(job, waits=job.waits + 1)
        return await super().let_pass(breaker, limit)


class WhatGoesOnStillWaits(MemoryStore):
    def _put(self, before: JobRecord | None, after: JobRecord) -> JobRecord:
        kept = None if before is None else before.breaker
        return super()._put(before, replace(after, breaker=after.breaker or kept))


class LetPassForgetsTheLines(MemoryStore):
    async def let_pass(self, breaker: str, limit: int) -> int:
        with self._lock:
            now, passed = self._clock.now(), 0
            for job in [job for job in self._jobs.values() if job.breaker == breaker][:limit]:
                if (after := lifecycle.run_now(job, now)) is not None:
                    self._put(job, after)
                    passed += 1
            self._moved.clear()
            return passed


def _mutant(breakers: type[MemoryBreakers], caught_by: str) -> Mutant:
    class Broken(MemoryStore):
        def __init__(self, clock: Clock | None = None, retention: Retention | None = None) -> None:
            super().__init__(clock, retention)
            self._breakers = breakers(self._breakers._tell)

    Broken.__name__ = breakers.__name__
    return Mutant(Broken, caught_by)


MUTANTS = [
    _mutant(NeverOpens, "test_failures_in_a_row_open_a_breaker"),
    _mutant(SuccessesAreFailures, "test_a_success_in_between_starts_the_row_anew"),
    _mutant(SuccessesChangeNothing, "test_a_success_in_between_starts_the_row_anew"),
    _mutant(SeveralFailuresCountAsOne, "test_a_success_in_between_starts_the_row_anew"),
    _mutant(ProbesThatSayNothingKeepTheirPermits, "test_a_probe_that_says_nothing_makes_room_for_another"),
    _mutant(ProbesThatSayNothingClose, "test_a_probe_that_says_nothing_makes_room_for_another"),
    _mutant(LeasesAreNotRenewed, "test_a_probe_of_which_nobody_hears_is_replaced_when_its_lease_ends"),
    _mutant(LateProbesDontCount, "test_a_probe_of_which_nobody_hears_is_replaced_when_its_lease_ends"),
    _mutant(StalePermitsCount, "test_a_probe_that_fails_opens_it_for_another_reset_time"),
    _mutant(WhatBeganBeforeItOpenedCounts, "test_what_began_before_it_opened_says_nothing_about_an_open_breaker"),
    _mutant(TheLastErrorIsForgotten, "test_failures_in_a_row_open_a_breaker"),
    _mutant(ReportsMakeBreakers, "test_a_breaker_that_nobody_has_declared_is_not_found"),
    _mutant(EverybodyMayTry, "test_after_its_reset_time_as_many_pass_as_there_are_probes"),
    _mutant(OneMayTryWhateverThePolicy, "test_after_its_reset_time_as_many_pass_as_there_are_probes"),
    _mutant(LeasesNeverEnd, "test_a_probe_of_which_nobody_hears_is_replaced_when_its_lease_ends"),
    _mutant(LeasesLastAsLongAsTheResetTime, "test_the_lease_of_a_probe_is_never_very_short"),
    _mutant(AskingAgainIsAskingAnew, "test_asking_again_with_the_same_id_gives_the_same_permit"),
    _mutant(TheResetTimeIsNotWaitedFor, "test_nobody_passes_an_open_one_before_its_reset_time"),
    _mutant(StaysOpenForEver, "test_after_its_reset_time_as_many_pass_as_there_are_probes"),
    _mutant(EverybodyPasses, "test_nobody_passes_an_open_one_before_its_reset_time"),
    _mutant(AResetForgetsNothing, "test_a_breaker_that_is_reset_is_closed_at_once"),
    _mutant(ChangesAreNotKept, "test_a_breaker_can_be_opened_by_hand_for_any_span"),
    _mutant(OldCodeDeclaresOverYoungerCode, "test_the_policy_of_younger_code_stays"),
    _mutant(DeclaringClosesIt, "test_a_breaker_declared_anew_stands_as_it_stood"),
    _mutant(NobodyIsTold, "test_others_hear_of_what_happens_to_breakers"),
    _mutant(EverybodyIsLetPass, "test_jobs_that_wait_for_a_breaker_are_let_pass_once_it_is_closed"),
    _mutant(NobodyIsLetPass, "test_jobs_that_wait_for_a_breaker_are_let_pass_once_it_is_closed"),
    Mutant(LetPassTakesAll, "test_only_those_are_let_pass_that_wait_for_this_very_breaker"),
    Mutant(LetPassHasNoLimit, "test_as_many_are_let_pass_as_was_asked_for_in_the_order_of_their_times"),
    Mutant(LetPassMakesReadyInAnyOrder, "test_as_many_are_let_pass_as_was_asked_for_in_the_order_of_their_times"),
    Mutant(LetPassChargesAWait, "test_jobs_that_wait_for_a_breaker_are_let_pass_once_it_is_closed"),
    Mutant(WhatGoesOnStillWaits, "test_a_job_that_went_on_by_itself_waits_for_no_breaker_any_more"),
    Mutant(LetPassForgetsTheLines, "test_a_job_that_is_let_pass_still_waits_for_its_limits"),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.store.__name__)
async def test_a_broken_promise_about_breakers_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.store_contract.breakers.PATIENCE", 0.05)  # a hint that never comes
    assert await run_contract_test(mutant.caught_by, mutant.store) is not None


@pytest.mark.parametrize("name", sorted({mutant.caught_by for mutant in MUTANTS}))
async def test_what_notices_a_mutant_accepts_the_original(name: str) -> None:
    assert await run_contract_test(name, MemoryStore) is None
