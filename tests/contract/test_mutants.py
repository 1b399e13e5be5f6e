"""The tester is tested: stores that break one promise each, and the contract test that must notice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from holdfast import keys, lifecycle
from holdfast.errors import HoldfastError
from holdfast.job import Attempt, ClaimedJob, Delivery, JobRecord, Lane, NewJob, Stage
from holdfast.lifecycle import GiveBack
from holdfast.store import (
    Beaten,
    Enqueued,
    Filter,
    Held,
    Hint,
    HintKind,
    NewWorker,
    Page,
    Progress,
    ProgressReport,
    Pruned,
    Ruling,
    Settled,
    Settlement,
    Store,
    TaskDefinition,
    Tick,
    WorkerRecord,
)
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.testing.store_contract import RETENTION, Harness, StoreContract
from tests.contract.test_model import PROFILE, StoreMachine

# ── the fence ────────────────────────────────────────────────────────────────────────────────────────────────────────


class SettleIgnoresTheToken(MemoryStore):
    def _settle(self, settlement: Settlement, now: datetime) -> Settled:
        job = self._jobs.get(settlement.id)
        token = job.token if job and job.token else settlement.token
        return super()._settle(Settlement(settlement.id, token, settlement.transition), now)


class RescueKeepsTheToken(MemoryStore):
    def _rescue(self, orphans: Sequence[JobRecord], now: datetime) -> list[UUID]:
        rescued = super()._rescue(orphans, now)
        for job in orphans:
            self._jobs[job.id] = replace(self._jobs[job.id], token=job.token)
        return rescued


class ReleaseKeepsTheToken(MemoryStore):
    def _give_back(self, held: Sequence[JobRecord], now: datetime) -> None:
        super()._give_back(held, now)
        for job in held:
            self._jobs[job.id] = replace(self._jobs[job.id], token=job.token)


class RetryKeepsTheToken(MemoryStore):
    async def retry(self, ids: Sequence[UUID], args_json: str | None = None) -> dict[UUID, Ruling]:
        tokens = {job.id: job.token for job in await self.get(ids)}
        rulings = await super().retry(ids, args_json)
        for id, token in tokens.items():
            self._jobs[id] = replace(self._jobs[id], token=token)
        return rulings


class RepeatedSettlementIsAppliedAgain(MemoryStore):
    def _settle(self, settlement: Settlement, now: datetime) -> Settled:
        answer = super()._settle(settlement, now)
        return Settled.APPLIED if answer is Settled.ALREADY else answer


class RepeatedSettlementIsStale(MemoryStore):
    def _settle(self, settlement: Settlement, now: datetime) -> Settled:
        answer = super()._settle(settlement, now)
        return Settled.STALE if answer is Settled.ALREADY else answer


class SettlementForgetsTheToken(MemoryStore):
    def _settle(self, settlement: Settlement, now: datetime) -> Settled:
        answer = super()._settle(settlement, now)
        if answer is Settled.APPLIED and isinstance(settlement.transition, GiveBack):
            self._jobs[settlement.id] = replace(self._jobs[settlement.id], token=None)
        return answer


class StaleSettlementStillWritesHistory(MemoryStore):
    def _settle(self, settlement: Settlement, now: datetime) -> Settled:
        answer = super()._settle(settlement, now)
        if answer is Settled.STALE and (job := self._jobs.get(settlement.id)):
            self._record(job, lifecycle.ended_attempt(job, settlement.transition, now))
        return answer


class ProgressIgnoresTheToken(MemoryStore):
    async def report_progress(self, reports: Sequence[ProgressReport]) -> None:
        tokens = {job.id: job.token for job in self._jobs.values()}
        await super().report_progress(
            [replace(report, token=tokens.get(report.id) or UUID(int=1)) for report in reports]
        )


class ProgressOutlivesItsRun(MemoryStore):
    async def progress(self, ids: Sequence[UUID]) -> dict[UUID, Progress]:
        return {id: self._progress[id][1] for id in ids if id in self._progress}


class ProgressOutlivesItsJob(MemoryStore):
    def _forget(self, ids: Sequence[UUID]) -> None:
        kept = dict(self._progress)
        super()._forget(ids)
        self._progress = kept


# ── claims ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class ClaimHandsAJobTwice(MemoryStore):
    """Between reading and writing it lets others in, as a store without locks would."""

    async def claim(self, worker: UUID, token: UUID, demand: Mapping[str, int], *_: Any, **__: Any) -> list[ClaimedJob]:
        seen = dict(self._jobs)
        await asyncio.sleep(0)
        now = dict(self._jobs)
        self._jobs |= {id: job for id, job in seen.items() if now.get(id) is not None and job.stage is Stage.READY}
        return await super().claim(worker, token, demand)


class ClaimIgnoresPriority(MemoryStore):
    async def claim(self, worker: UUID, token: UUID, demand: Mapping[str, int], *_: Any, **__: Any) -> list[ClaimedJob]:
        priorities = {job.id: job.priority for job in self._jobs.values()}
        self._jobs = {id: replace(job, priority=5) for id, job in self._jobs.items()}
        claimed = await super().claim(worker, token, demand)
        self._jobs = {id: replace(job, priority=priorities[id]) for id, job in self._jobs.items()}
        return claimed


class ClaimTakesTheNewestFirst(MemoryStore):
    async def claim(self, worker: UUID, token: UUID, demand: Mapping[str, int], *_: Any, **__: Any) -> list[ClaimedJob]:
        self._jobs = {id: replace(job, place=-job.place) for id, job in self._jobs.items()}
        claimed = await super().claim(worker, token, demand)
        self._jobs = {id: replace(job, place=-job.place) for id, job in self._jobs.items()}
        return claimed


class GivenBackGoesToTheEndOfTheLine(MemoryStore):
    def _put(self, before: JobRecord | None, after: JobRecord) -> JobRecord:
        return super()._put(before, replace(after, lane=Lane.FRESH))


class ClaimIgnoresThePause(MemoryStore):
    async def claim(self, worker: UUID, token: UUID, demand: Mapping[str, int], *_: Any, **__: Any) -> list[ClaimedJob]:
        paused = self._queues
        self._queues = {name: replace(queue, paused_at=None) for name, queue in paused.items()}
        return await super().claim(worker, token, demand)


class ClaimTakesExpiredJobs(MemoryStore):
    async def claim(self, worker: UUID, token: UUID, demand: Mapping[str, int], *_: Any, **__: Any) -> list[ClaimedJob]:
        expiries = {job.id: job.expires_at for job in self._jobs.values()}
        self._jobs = {id: replace(job, expires_at=None) for id, job in self._jobs.items()}
        claimed = await super().claim(worker, token, demand)
        self._jobs = {id: replace(job, expires_at=expiries[id]) for id, job in self._jobs.items()}
        return claimed


class DeadWorkersMayClaim(MemoryStore):
    def _alive(self, worker: UUID) -> None:
        return


class DemandIsShared(MemoryStore):
    async def claim(self, worker: UUID, token: UUID, demand: Mapping[str, int], *_: Any, **__: Any) -> list[ClaimedJob]:
        total = sum(demand.values())
        return await super().claim(worker, token, dict.fromkeys(demand, total))


# ── what attempts cost ───────────────────────────────────────────────────────────────────────────────────────────────


class ReleaseChargesTheAttempt(MemoryStore):
    def _settle(self, settlement: Settlement, now: datetime) -> Settled:
        transition = settlement.transition
        if isinstance(transition, GiveBack):
            settlement = Settlement(settlement.id, settlement.token, replace(transition, is_charged=True))
        return super()._settle(settlement, now)


class LostClaimsAreCharged(MemoryStore):
    def _give_back(self, held: Sequence[JobRecord], now: datetime) -> None:
        for job in held:
            self._put(job, replace(lifecycle.finish(job, GiveBack(is_charged=True), now), token=None))


class CrashesAreNotCounted(MemoryStore):
    def _rescue(self, orphans: Sequence[JobRecord], now: datetime) -> list[UUID]:
        return super()._rescue([replace(job, crashes=-1) for job in orphans], now)


class AtMostOnceRunsTwice(MemoryStore):
    def _rescue(self, orphans: Sequence[JobRecord], now: datetime) -> list[UUID]:
        return super()._rescue([replace(job, delivery=Delivery.AT_LEAST_ONCE) for job in orphans], now)


class DepartureCountsAsACrash(MemoryStore):
    async def depart(self, worker: UUID) -> list[UUID]:
        rescued = self._rescue(self._active_of(worker), self._clock.now())
        self._workers.pop(worker, None)
        return rescued


class HistoryHasNoEnd(MemoryStore):
    def _record(self, job: JobRecord, attempt: Attempt | None) -> None:
        if attempt is not None:
            self._history.setdefault(job.id, []).append(attempt)


# ── enqueue, bounds, keys ────────────────────────────────────────────────────────────────────────────────────────────


class EnqueueIgnoresTheBound(MemoryStore):
    def _refuse_beyond_bounds(self, records: Sequence[JobRecord], exempt: frozenset[UUID]) -> None:
        return


class BoundIsOffByOne(MemoryStore):
    def _refuse_beyond_bounds(self, records: Sequence[JobRecord], exempt: frozenset[UUID]) -> None:
        super()._refuse_beyond_bounds(records[1:], exempt)


class ScheduledJobsHaveNoBound(MemoryStore):
    def _refuse_beyond_bounds(self, records: Sequence[JobRecord], exempt: frozenset[UUID]) -> None:
        super()._refuse_beyond_bounds([job for job in records if job.stage is Stage.READY], exempt)


class ARefusedBatchIsHalfInserted(MemoryStore):
    async def enqueue(self, jobs: Sequence[NewJob], tx: object | None = None) -> list[Enqueued]:
        answers: list[Enqueued] = []
        if tx is not None or len(jobs) > 100:
            return await super().enqueue(jobs, tx)
        for job in jobs:
            answers += await super().enqueue([job])
        return answers


class BoundIsCheckedBeforeItIsSafe(MemoryStore):
    """Reads the depth, waits, then inserts: two producers both see the last place."""

    async def enqueue(self, jobs: Sequence[NewJob], tx: object | None = None) -> list[Enqueued]:
        before = dict(self._queues)
        await asyncio.sleep(0)
        current, self._queues = self._queues, before
        try:
            self._refuse_beyond_bounds([lifecycle.admit(job, self._clock.now()) for job in jobs], frozenset())
        finally:
            self._queues = {
                name: replace(queue, override_bound=1_000_000, scheduled_bound=1_000_000)
                for name, queue in current.items()
            }
        answers = await super().enqueue(jobs, tx)
        self._queues = {
            name: replace(
                queue,
                override_bound=before[name].override_bound if name in before else None,
                scheduled_bound=before[name].scheduled_bound if name in before else queue.scheduled_bound,
            )
            for name, queue in self._queues.items()
        }
        return answers


class KeyIsForgottenAtCompletion(MemoryStore):
    def _close_keys(self, job: JobRecord) -> None:
        for name in keys.keys_of(job):
            self._keys.pop(name, None)


class KeyNeverExpires(MemoryStore):
    def _close_keys(self, job: JobRecord) -> None:
        return


class KeyIsForgottenWithItsJob(MemoryStore):
    def _forget(self, ids: Sequence[UUID]) -> None:
        self._keys = {name: record for name, record in self._keys.items() if record.job not in ids}
        super()._forget(ids)


class KeyIgnoresTheFingerprint(MemoryStore):
    async def enqueue(self, jobs: Sequence[NewJob], tx: object | None = None) -> list[Enqueued]:
        return await super().enqueue([replace(job, fingerprint=b"same") for job in jobs], tx)


class KeyIsOneOverAllTasks(MemoryStore):
    async def enqueue(self, jobs: Sequence[NewJob], tx: object | None = None) -> list[Enqueued]:
        return await super().enqueue([replace(job, task="task") for job in jobs], tx)


class UniqueWindowIsForgotten(MemoryStore):
    async def enqueue(self, jobs: Sequence[NewJob], tx: object | None = None) -> list[Enqueued]:
        return await super().enqueue([replace(job, unique_window=None) for job in jobs], tx)


class ARepeatedIdIsAlwaysFound(MemoryStore):
    def _same_job(self, new: NewJob, fresh: Mapping[UUID, NewJob]) -> UUID | None:
        return new.id if new.id in fresh or new.id in self._jobs else None


# ── time, people, pruning ────────────────────────────────────────────────────────────────────────────────────────────


class TickForgetsTheExpired(MemoryStore):
    async def tick(self) -> Tick:
        expiries = {job.id: job.expires_at for job in self._jobs.values()}
        self._jobs = {id: replace(job, expires_at=None) for id, job in self._jobs.items()}
        tick = await super().tick()
        self._jobs = {id: replace(job, expires_at=expiries[id]) for id, job in self._jobs.items()}
        return tick


class TickRipensInTheOrderOfEnqueue(MemoryStore):
    async def tick(self) -> Tick:
        now = self._clock.now()
        ripe = [job for job in self._jobs.values() if job.stage is Stage.SCHEDULED and job.due_at <= now]
        for job in ripe:
            self._put(job, lifecycle.ripen(job))
        tick = await super().tick()
        return Tick(tick.ripened + len(ripe), tick.expired, tick.next_in)


class CancelEndsARunningJob(MemoryStore):
    async def cancel(self, ids: Sequence[UUID], reason: str) -> dict[UUID, Ruling]:
        now = self._clock.now()
        for job in await self.get(ids):
            if job.stage is Stage.ACTIVE:
                self._put(job, lifecycle.finish(job, lifecycle.Withdraw(reason), now))
        return await super().cancel(ids, reason)


class ACancelledJobRunsAgain(MemoryStore):
    def _settle(self, settlement: Settlement, now: datetime) -> Settled:
        job = self._jobs.get(settlement.id)
        if job is not None and isinstance(settlement.transition, GiveBack):
            self._jobs[job.id] = replace(job, cancel_requested_at=None)
        return super()._settle(settlement, now)


class RetryKeepsTheBudget(MemoryStore):
    async def retry(self, ids: Sequence[UUID], args_json: str | None = None) -> dict[UUID, Ruling]:
        before = {job.id: job for job in await self.get(ids)}
        rulings = await super().retry(ids, args_json)
        for id, ruling in rulings.items():
            if ruling.is_done:
                self._jobs[id] = replace(self._jobs[id], attempt=before[id].attempt)
        return rulings


class RetryForgetsTheKey(MemoryStore):
    def _reopen_keys(self, job: JobRecord) -> None:
        return


class RetryIgnoresWhoHasTheKeyNow(MemoryStore):
    async def retry(self, ids: Sequence[UUID], args_json: str | None = None) -> dict[UUID, Ruling]:
        taken, self._keys = self._keys, {}
        rulings = await super().retry(ids, args_json)
        self._keys |= taken
        return rulings


class DiscardTakesCancelledJobsToo(MemoryStore):
    async def discard(self, ids: Sequence[UUID]) -> dict[UUID, Ruling]:
        rulings = await super().discard(ids)
        for job in await self.get(ids):
            if job.stage is Stage.CANCELLED:
                self._forget([job.id])
        return rulings


class PruneDeletesDeadLetters(MemoryStore):
    async def prune(self, *, dead_before: datetime | None = None, batch: int = 1000) -> Pruned:
        return await super().prune(dead_before=dead_before or self._clock.now(), batch=batch)


class PruneIgnoresLiveKeys(MemoryStore):
    async def prune(self, *, dead_before: datetime | None = None, batch: int = 1000) -> Pruned:
        taken, self._keys = self._keys, {}
        pruned = await super().prune(dead_before=dead_before, batch=batch)
        self._keys = taken
        return pruned


class AnnouncementIgnoresTheGeneration(MemoryStore):
    async def announced(self, jobs: Sequence[tuple[UUID, int]]) -> None:
        await super().announced([(id, self._jobs[id].generation) for id, _ in jobs if id in self._jobs])


class RetriedJobsAreAnnounced(MemoryStore):
    async def retry(self, ids: Sequence[UUID], args_json: str | None = None) -> dict[UUID, Ruling]:
        marked = self._unannounced & set(ids)
        rulings = await super().retry(ids, args_json)
        self._unannounced |= marked
        return rulings


class ExpiredJobsAreNotAnnounced(MemoryStore):
    async def tick(self) -> Tick:
        marked = set(self._unannounced)
        tick = await super().tick()
        self._unannounced = marked
        return tick


class PruneSaysDoneTooEarly(MemoryStore):
    async def prune(self, *, dead_before: datetime | None = None, batch: int = 1000) -> Pruned:
        return replace(await super().prune(dead_before=dead_before, batch=batch), is_done=True)


class PruneForgetsLivingWorkers(MemoryStore):
    async def prune(self, *, dead_before: datetime | None = None, batch: int = 1000) -> Pruned:
        pruned = await super().prune(dead_before=dead_before, batch=batch)
        oldest = self._clock.now() - timedelta(minutes=30)
        self._workers = {id: worker for id, worker in self._workers.items() if worker.beat_at > oldest}
        return pruned


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class RescueIgnoresTheBeat(MemoryStore):
    async def rescue(self, gone: Mapping[UUID, int]) -> list[UUID]:
        return await super().rescue({id: self._workers[id].beat if id in self._workers else 0 for id in gone})


class RescueDoesNotResume(MemoryStore):
    async def rescue(self, gone: Mapping[UUID, int]) -> list[UUID]:
        return await super().rescue(gone) if gone else []


class BeatRevivesTheDead(MemoryStore):
    async def beat(self, worker: UUID, held: Held) -> Beaten:
        if record := self._workers.get(worker):
            self._workers[worker] = replace(record, dead_at=None)
        return await super().beat(worker, held)


class BeatReleasesAwaitedClaims(MemoryStore):
    async def beat(self, worker: UUID, held: Held) -> Beaten:
        return await super().beat(worker, Held(held.jobs))


class BeatReleasesTheLatestClaims(MemoryStore):
    def _is_old(self, job: JobRecord, worker: WorkerRecord) -> bool:
        return True


class BeatKeepsLostClaims(MemoryStore):
    async def beat(self, worker: UUID, held: Held) -> Beaten:
        tokens = frozenset(job.token for job in self._active_of(worker) if job.token)
        return await super().beat(worker, Held(held.jobs, held.claiming | tokens))


class BeatForgetsWhatWasTaken(MemoryStore):
    async def beat(self, worker: UUID, held: Held) -> Beaten:
        return replace(await super().beat(worker, held), taken=[])


class QuietOutlivesRegistration(MemoryStore):
    async def register(self, worker: NewWorker) -> None:
        before = self._workers.get(worker.id)
        await super().register(worker)
        self._workers[worker.id] = replace(self._workers[worker.id], is_quiet=before is not None and before.is_quiet)


class BurialIsNotFenced(MemoryStore):
    async def bury_worker(self, worker: UUID, settlements: Sequence[Settlement] = ()) -> list[UUID]:
        tokens = {job.id: job.token for job in self._jobs.values()}
        known = [replace(item, token=tokens.get(item.id) or item.token) for item in settlements]
        return await super().bury_worker(worker, known)


# ── queues, tasks, reading, hints ────────────────────────────────────────────────────────────────────────────────────


class CountersDriftOnCancel(MemoryStore):
    async def cancel(self, ids: Sequence[UUID], reason: str) -> dict[UUID, Ruling]:
        before = dict(self._queues)
        rulings = await super().cancel(ids, reason)
        self._queues |= before
        return rulings


class NobodyIsExempt(MemoryStore):
    def _refuse_beyond_bounds(self, records: Sequence[JobRecord], exempt: frozenset[UUID]) -> None:
        super()._refuse_beyond_bounds(records, frozenset())


class ExemptJobsTakeNoRoom(MemoryStore):
    def _refuse_beyond_bounds(self, records: Sequence[JobRecord], exempt: frozenset[UUID]) -> None:
        super()._refuse_beyond_bounds([job for job in records if job.id not in exempt], frozenset())


class EveryPublicationIsARevision(MemoryStore):
    async def publish_tasks(self, definitions: Sequence[TaskDefinition], code_age: timedelta | None = None) -> None:
        await super().publish_tasks([replace(definition, priority=-1) for definition in definitions], code_age)
        await super().publish_tasks(definitions, code_age)


class OldCodePublishesOverYoungerCode(MemoryStore):
    async def publish_tasks(self, definitions: Sequence[TaskDefinition], code_age: timedelta | None = None) -> None:
        await super().publish_tasks(definitions)


class PagesOverlap(MemoryStore):
    async def page(self, filter: Filter, cursor: UUID | None = None, limit: int = 50) -> Page:
        return await super().page(filter, cursor and UUID(int=cursor.int + 1), limit)


class TheLastPageDoesNotSaySo(MemoryStore):
    async def page(self, filter: Filter, cursor: UUID | None = None, limit: int = 50) -> Page:
        page = await super().page(filter, cursor, limit)
        return Page(page.jobs, page.jobs[-1].id if len(page.jobs) == limit else None)


class FiltersConfuseOneAndTrue(MemoryStore):
    async def page(self, filter: Filter, cursor: UUID | None = None, limit: int = 50) -> Page:
        args = {name: int(value) if isinstance(value, bool) else value for name, value in filter.args.items()}
        return await super().page(replace(filter, args=args), cursor, limit)


class FinishedJobsAreNotHintedAt(MemoryStore):
    def _ring(self, kind: HintKind, queues: Iterable[str] = (), ids: Iterable[UUID] = ()) -> None:
        if kind is not HintKind.FINISHED:
            super()._ring(kind, queues, ids)


class HintsNameTheWrongJob(MemoryStore):
    def _ring(self, kind: HintKind, queues: Iterable[str] = (), ids: Iterable[UUID] = ()) -> None:
        if kind is HintKind.FINISHED:
            self._hub.publish([Hint(kind, ids=frozenset({UUID(int=1)}))])
        else:
            super()._ring(kind, queues, ids)


class ACancelledCallerTakesOthersWithIt(MemoryStore):
    """Callers share one task, and nobody shields it."""

    _shared: asyncio.Task[None] | None = None

    async def enqueue(self, jobs: Sequence[NewJob], tx: object | None = None) -> list[Enqueued]:
        if self._shared is None or self._shared.done():
            self._shared = asyncio.create_task(asyncio.sleep(0))
        await self._shared
        return await super().enqueue(jobs, tx)


@dataclass(frozen=True)
class Mutant:
    store: type[MemoryStore]
    caught_by: str


MUTANTS = [
    Mutant(SettleIgnoresTheToken, "test_a_stale_settlement_changes_nothing"),
    Mutant(RescueKeepsTheToken, "test_a_zombie_can_neither_settle_nor_spoil_what_was_taken_over"),
    Mutant(ReleaseKeepsTheToken, "test_a_released_job_cannot_be_settled_under_its_old_token"),
    Mutant(RetryKeepsTheToken, "test_a_claim_is_stale_after_a_person_s_retry"),
    Mutant(RepeatedSettlementIsAppliedAgain, "test_a_repeated_settlement_is_recognised_and_changes_nothing"),
    Mutant(RepeatedSettlementIsStale, "test_racing_settlements_of_one_claim_apply_once"),
    Mutant(SettlementForgetsTheToken, "test_a_repeated_settlement_is_recognised_after_the_job_has_ripened"),
    Mutant(StaleSettlementStillWritesHistory, "test_a_stale_settlement_changes_nothing"),
    Mutant(ProgressIgnoresTheToken, "test_a_report_under_a_token_that_is_not_the_job_s_is_dropped"),
    Mutant(ProgressOutlivesItsRun, "test_a_new_run_starts_anew"),
    Mutant(ProgressOutlivesItsJob, "test_it_goes_with_its_job"),
    Mutant(ClaimHandsAJobTwice, "test_racing_claimers_never_share_a_job_and_together_get_all"),
    Mutant(ClaimIgnoresPriority, "test_the_more_important_goes_first"),
    Mutant(ClaimTakesTheNewestFirst, "test_equal_priorities_go_in_the_order_of_becoming_ready"),
    Mutant(GivenBackGoesToTheEndOfTheLine, "test_given_back_goes_before_fresh_within_its_priority"),
    Mutant(ClaimIgnoresThePause, "test_a_paused_queue_gives_nothing_until_it_is_resumed"),
    Mutant(ClaimTakesExpiredJobs, "test_an_expired_job_is_passed_over"),
    Mutant(DeadWorkersMayClaim, "test_a_dead_worker_may_not_claim"),
    Mutant(DemandIsShared, "test_no_queue_gives_more_than_is_asked_of_it"),
    Mutant(ReleaseChargesTheAttempt, "test_a_release_hands_the_attempt_back"),
    Mutant(LostClaimsAreCharged, "test_a_claim_whose_answer_was_lost_is_given_back_uncharged"),
    Mutant(CrashesAreNotCounted, "test_a_job_that_loses_one_worker_after_the_other_goes_dead_at_last"),
    Mutant(AtMostOnceRunsTwice, "test_an_at_most_once_job_is_lost_rather_than_run_twice"),
    Mutant(DepartureCountsAsACrash, "test_a_departing_worker_gives_back_what_it_holds_uncharged"),
    Mutant(HistoryHasNoEnd, "test_the_oldest_attempts_are_forgotten_first"),
    Mutant(EnqueueIgnoresTheBound, "test_a_queue_takes_exactly_its_bound"),
    Mutant(BoundIsOffByOne, "test_a_batch_that_fills_the_queue_is_taken_and_one_more_is_not"),
    Mutant(ScheduledJobsHaveNoBound, "test_scheduled_jobs_have_a_bound_of_their_own"),
    Mutant(ARefusedBatchIsHalfInserted, "test_one_conflict_refuses_the_whole_batch"),
    Mutant(BoundIsCheckedBeforeItIsSafe, "test_racing_producers_fill_the_queue_exactly"),
    Mutant(KeyIsForgottenAtCompletion, "test_the_key_holds_after_each_end_until_its_retention_has_passed"),
    Mutant(KeyNeverExpires, "test_the_key_holds_after_each_end_until_its_retention_has_passed"),
    Mutant(KeyIsForgottenWithItsJob, "test_a_discarded_job_leaves_its_key_taken"),
    Mutant(KeyIgnoresTheFingerprint, "test_a_key_with_other_arguments_is_a_conflict_that_names_the_job"),
    Mutant(KeyIsOneOverAllTasks, "test_each_task_has_its_own_keys"),
    Mutant(UniqueWindowIsForgotten, "test_a_finished_job_is_returned_within_the_window_of_its_enqueue"),
    Mutant(ARepeatedIdIsAlwaysFound, "test_an_id_with_other_arguments_is_a_conflict"),
    Mutant(TickForgetsTheExpired, "test_an_expired_job_goes_dead_with_the_reason"),
    Mutant(TickRipensInTheOrderOfEnqueue, "test_what_is_due_becomes_ready_in_the_order_of_its_times"),
    Mutant(CancelEndsARunningJob, "test_a_running_job_stays_active_until_it_has_stopped"),
    Mutant(ACancelledJobRunsAgain, "test_a_job_that_is_to_be_cancelled_is_not_run_again"),
    Mutant(RetryKeepsTheBudget, "test_a_retried_job_has_a_fresh_budget_and_its_old_history"),
    Mutant(RetryForgetsTheKey, "test_a_retry_makes_its_key_live_again"),
    Mutant(RetryIgnoresWhoHasTheKeyNow, "test_a_retry_is_refused_when_its_idempotency_key_has_passed_on"),
    Mutant(DiscardTakesCancelledJobsToo, "test_discard_rules_by_state"),
    Mutant(AnnouncementIgnoresTheGeneration, "test_an_announcement_of_an_earlier_death_leaves_the_mark_of_the_next"),
    Mutant(RetriedJobsAreAnnounced, "test_a_retried_job_needs_no_announcement_until_it_goes_dead_again"),
    Mutant(PruneDeletesDeadLetters, "test_dead_letters_stay_for_ever"),
    Mutant(PruneIgnoresLiveKeys, "test_a_job_stays_as_long_as_its_idempotency_key"),
    Mutant(PruneSaysDoneTooEarly, "test_a_prune_takes_about_a_batch_and_says_when_it_is_done"),
    Mutant(PruneForgetsLivingWorkers, "test_long_dead_workers_go_and_living_ones_stay"),
    Mutant(RescueIgnoresTheBeat, "test_a_worker_that_beat_in_the_meantime_is_spared"),
    Mutant(RescueDoesNotResume, "test_a_large_rescue_goes_on_where_it_stopped"),
    Mutant(BeatRevivesTheDead, "test_a_dead_worker_s_beat_does_not_bring_it_back"),
    Mutant(BeatReleasesAwaitedClaims, "test_a_claim_whose_answer_is_awaited_is_left_alone"),
    Mutant(
        BeatReleasesTheLatestClaims,
        "test_a_job_that_was_claimed_after_the_last_beat_is_given_back_at_the_next_but_one",
    ),
    Mutant(BeatKeepsLostClaims, "test_a_claim_whose_answer_was_lost_is_given_back_uncharged"),
    Mutant(BeatForgetsWhatWasTaken, "test_jobs_that_were_taken_away_are_named"),
    Mutant(QuietOutlivesRegistration, "test_it_lasts_until_the_worker_registers_anew"),
    Mutant(BurialIsNotFenced, "test_a_settlement_in_a_burial_is_fenced_too"),
    Mutant(CountersDriftOnCancel, "test_cancel_rules_by_state"),
    Mutant(NobodyIsExempt, "test_a_job_that_is_exempt_is_never_refused_and_counts"),
    Mutant(ExemptJobsTakeNoRoom, "test_exempt_jobs_take_their_room_before_the_others_of_their_batch"),
    Mutant(EveryPublicationIsARevision, "test_a_definition_that_has_not_changed_keeps_its_revision"),
    Mutant(OldCodePublishesOverYoungerCode, "test_code_that_is_older_does_not_replace_what_younger_code_has_published"),
    Mutant(PagesOverlap, "test_pages_are_complete_newest_first_and_without_doubles"),
    Mutant(TheLastPageDoesNotSaySo, "test_the_last_page_says_so_also_when_it_is_full"),
    Mutant(FiltersConfuseOneAndTrue, "test_values_are_compared_with_their_type"),
    Mutant(FinishedJobsAreNotHintedAt, "test_a_finished_job_is_hinted_at"),
    Mutant(HintsNameTheWrongJob, "test_a_finished_job_is_hinted_at"),
    Mutant(ACancelledCallerTakesOthersWithIt, "test_cancelling_one_caller_of_enqueue_disturbs_no_other"),
]


async def run_contract_test(name: str, store: type[MemoryStore]) -> str | None:
    """Run one test of the contract on a store; return what it complained about, or None if it passed."""
    clock = ManualClock()
    harness = Harness(store(clock, RETENTION), clock)
    try:
        async with asyncio.timeout(20):
            await getattr(StoreContract(), name)(harness)
    except (AssertionError, HoldfastError, ValueError, TimeoutError, pytest.fail.Exception) as complaint:
        return repr(complaint)
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.store.__name__)
async def test_a_broken_promise_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.store_contract.changes.SOON", 0.05)  # a hint that never comes
    assert await run_contract_test(mutant.caught_by, mutant.store) is not None


@pytest.mark.parametrize("name", sorted({mutant.caught_by for mutant in MUTANTS}))
async def test_what_notices_a_mutant_accepts_the_original(name: str) -> None:
    assert await run_contract_test(name, MemoryStore) is None


NOTICED_BY_THE_MODEL = [
    SettleIgnoresTheToken,
    RescueKeepsTheToken,
    SettlementForgetsTheToken,
    GivenBackGoesToTheEndOfTheLine,
    ReleaseChargesTheAttempt,
    EnqueueIgnoresTheBound,
    KeyNeverExpires,
    TickRipensInTheOrderOfEnqueue,
    CancelEndsARunningJob,
    RetryKeepsTheBudget,
    BeatReleasesAwaitedClaims,
    BeatReleasesTheLatestClaims,
    AnnouncementIgnoresTheGeneration,
    ExpiredJobsAreNotAnnounced,
]


@pytest.mark.parametrize("mutant", NOTICED_BY_THE_MODEL)
def test_the_model_notices_too(mutant: type[MemoryStore]) -> None:
    """A random life is long and varied enough to meet what is broken."""

    class MutantMachine(StoreMachine):
        def make_store(self) -> Store:
            return mutant(self.clock, RETENTION)

    # It ends with the first life that notices, which is among the first hundred or so.
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            MutantMachine, settings=settings(PROFILE, phases=[Phase.generate], max_examples=_MOST_LIVES)
        )


_MOST_LIVES = 3_000
"""So many that chance has no part in it: the mutant that is hardest to notice is met by one life in sixty."""
