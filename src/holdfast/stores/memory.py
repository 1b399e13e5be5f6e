"""The memory store: the readable reference, the model that the others are tested against, and the store of unit tests.

It keeps every promise of the contract but one: what it holds dies with the process.
"""

from __future__ import annotations

import threading
from collections import ChainMap, Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from itertools import islice
from uuid import UUID

from msgspec.structs import replace

from holdfast import keys, lifecycle, traffic
from holdfast.breaker import Admission, BreakerPolicy, BreakerRecord, BreakerReport
from holdfast.clock import Clock, SystemClock
from holdfast.codec import fingerprint
from holdfast.errors import InvalidTransaction, WorkerDeclaredDead, WrongDatabase
from holdfast.gates import Gate, GateKind, GateRule, is_train
from holdfast.job import (
    FINAL,
    WAITING,
    Attempt,
    ClaimedJob,
    JobRecord,
    JobState,
    NewJob,
    Stage,
    counts_as_scheduled,
    counts_as_waiting,
)
from holdfast.keys import KeyName, KeyRecord
from holdfast.lifecycle import GiveBack, Transition
from holdfast.limits import LimitRecord, limit_record
from holdfast.liveness import Sighting
from holdfast.moment import from_microseconds, to_microseconds
from holdfast.schedule import Fired, Firing, Plan, ScheduleRecord, TickRecord
from holdfast.store import (
    LONGEST_HISTORY,
    MOST_AHEAD,
    MOST_WAITING,
    WORKER_RETENTION,
    Beaten,
    BreakerChange,
    Circumstances,
    DueSchedules,
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
    PublishedTask,
    Queue,
    QueueRecord,
    Retention,
    Ruling,
    ScheduleChange,
    Settled,
    Settlement,
    TaskDefinition,
    Tick,
    WorkerRecord,
    WorkTransaction,
    check_batch,
    check_bound,
    check_limit,
    crash_of,
)
from holdfast.stores.filters import check_filter, passes
from holdfast.stores.hints import HintHub
from holdfast.stores.memory_breakers import MemoryBreakers
from holdfast.stores.memory_ledger import MemoryLedger
from holdfast.stores.memory_schedules import MemorySchedules
from holdfast.traffic import Departure, at_once
from holdfast.turns import Bounds

_BATCH = 1000


class MemoryStore:
    """Jobs in dictionaries, under one lock."""

    def __init__(self, clock: Clock | None = None, retention: Retention | None = None) -> None:
        self._clock = clock or SystemClock()
        self._retention = retention or Retention()
        self._lock = threading.RLock()
        self._hub = HintHub()
        self._jobs: dict[UUID, JobRecord] = {}
        self._waiting: dict[UUID, None] = {}
        """Ids of those that are scheduled or ready: a test with thousands of jobs asks for the next one as often."""
        self._history: dict[UUID, list[Attempt]] = {}
        self._progress: dict[UUID, tuple[int, Progress]] = {}
        self._unannounced: set[UUID] = set()
        self._keys: dict[KeyName, KeyRecord] = {}
        self._queues: dict[str, QueueRecord] = {}
        self._workers: dict[UUID, WorkerRecord] = {}
        self._tasks: dict[str, PublishedTask] = {}
        self._code_from: dict[str, datetime] = {}
        self._last_place = 0
        self._ledger = MemoryLedger(self._ready_in, self._ready_where)
        self._moved: list[tuple[JobRecord | None, JobRecord]] = []
        """Changes of jobs in lines, until `_move_in_lines`."""
        self._unstarted: set[UUID] = set()
        """Those of them that were given back without having begun."""
        self._schedules = MemorySchedules(self._state, self._enqueue_ticks)
        self._breakers = MemoryBreakers(lambda: self._hub.publish([Hint(HintKind.BREAKERS)]))

    # ── lifetime ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        return None

    def abandon(self) -> None:
        self._lock = threading.RLock()
        self._hub = HintHub()

    def changes(self, kinds: Iterable[HintKind]) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        return self._hub.subscribe(kinds)

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, jobs: Sequence[NewJob], tx: object | None = None) -> list[Enqueued]:
        if tx is not None:
            return self.enqueue_in(tx, jobs)
        check_batch(len(jobs))
        with self._lock:
            return self._enqueue(jobs)

    def _enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        now = self._clock.now()
        answers, fresh, taken = self._resolve(jobs, now)
        records = [lifecycle.admit(new, now) for new in fresh]
        self._refuse_beyond_bounds(records, frozenset(new.id for new in fresh if new.is_exempt))
        self._keys |= taken
        at_once(
            traffic.enter(self._ledger, [(new.line, new.queue, new.priority) for new in fresh if new.line is not None])
        )
        for record in records:
            self._put(None, record)
        self._move_in_lines()
        self._ring_for_work(records)
        return answers

    def enqueue_in(self, tx: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        raise WrongDatabase(
            "The memory store has no transactions to join. Use a sqlite:/// or postgresql:// URL for tx=."
        )

    def _resolve(
        self, jobs: Sequence[NewJob], now: datetime
    ) -> tuple[list[Enqueued], list[NewJob], dict[KeyName, KeyRecord]]:
        """Tell the jobs that are there already from those to insert, with the keys they take."""
        answers: list[Enqueued] = []
        fresh: dict[UUID, NewJob] = {}
        taken: dict[KeyName, KeyRecord] = {}
        known = ChainMap(taken, self._keys)
        for new in jobs:
            existing = self._same_job(new, fresh) or keys.holder_of(new, known, now)
            answers.append(Enqueued(existing or new.id, is_existing=existing is not None))
            if existing is None:
                fresh[new.id] = new
                taken |= keys.taken_by(new, now)
        return answers, list(fresh.values()), taken

    def _same_job(self, new: NewJob, fresh: Mapping[UUID, NewJob]) -> UUID | None:
        there: NewJob | JobRecord | None = fresh.get(new.id) or self._jobs.get(new.id)
        if there is None:
            return None
        return keys.same_job(new, there.task, there.args_json)

    def _refuse_beyond_bounds(self, records: Sequence[JobRecord], exempt: frozenset[UUID]) -> None:
        """As if those that are exempt had come before the others."""
        waiting, scheduled = _count([job for job in records if job.id not in exempt])
        there, later = _count([job for job in records if job.id in exempt])
        for name in waiting | scheduled:
            found = self._queue(name)
            found = replace(found, waiting=found.waiting + there[name], scheduled=found.scheduled + later[name])
            if refusal := found.refuse(waiting[name], scheduled[name]):
                raise refusal

    async def claim(
        self,
        worker: UUID,
        token: UUID,
        demand: Mapping[str, int],
        at_once: Mapping[str, int] | None = None,
        most_behind: int = 0,
    ) -> list[ClaimedJob]:
        with self._lock:
            now = self._clock.now()
            self._alive(worker)
            claimed: list[JobRecord] = []
            behind: dict[UUID, UUID] = {}
            for queue, slots in demand.items():
                if slots > 0 and not self._queue(queue).is_paused:
                    most_rated = None if at_once is None else at_once.get(queue, 0)
                    bounds = Bounds(slots, most_rated, most_behind - len(behind))
                    jobs, in_trains = self._pick(queue, bounds, bool(token.int & 1), now)
                    claimed += jobs
                    behind |= in_trains
            started = [self._put(job, lifecycle.start(job, worker, token, now)) for job in claimed]
            self._moved.clear()  # they were taken from their lines
            return [_claimed(job, behind.get(job.id)) for job in started]

    def _pick(
        self, queue: str, bounds: Bounds, coin: bool, now: datetime
    ) -> tuple[list[JobRecord], Mapping[UUID, UUID]]:
        """The jobs that a claim takes from a queue: by priority, and of the same priority some of either kind.

        And which one those are behind that are not the first of their train.
        """
        plain = [job for job in self._ready(now) if job.queue == queue and job.line is None]
        plain.sort(key=lambda job: (-job.priority, job.lane, job.place))

        async def plain_jobs(lowest: int, highest: int, most: int) -> list[JobRecord]:
            return [job for job in plain if lowest <= job.priority <= highest][:most]

        while True:
            picked = at_once(
                traffic.pick(self._ledger, plain_jobs, queue, bounds, lambda: to_microseconds(now), coin=coin)
            )
            self._ring(HintKind.WORK, picked.queues)
            if picked.has_timed:
                self._ring(HintKind.LATER, {queue})
            if picked.jobs or not picked.is_cut_short:  # otherwise go on at once: there is nobody to let in between
                return [self._jobs[each] if isinstance(each, UUID) else each for each in picked.jobs], picked.behind

    def _ready(self, now: datetime) -> list[JobRecord]:
        waiting = map(self._jobs.__getitem__, self._waiting)
        return [job for job in waiting if job.stage is Stage.READY and not lifecycle.has_expired(job, now)]

    def _ready_where(self, id: UUID) -> UUID | None:
        job = self._jobs[id]
        return job.line if job.stage is Stage.READY and not lifecycle.has_expired(job, self._clock.now()) else None

    def _ready_in(self, line: UUID) -> list[UUID]:
        mine = [job for job in self._ready(self._clock.now()) if job.line == line]
        return [job.id for job in sorted(mine, key=lambda job: (job.lane, job.place))]

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        check_batch(len(settlements))
        with self._lock:
            answers = [self._settle(settlement, self._clock.now()) for settlement in settlements]
            self._move_in_lines()
            return answers

    def _settle(self, settlement: Settlement, now: datetime) -> Settled:
        job = self._jobs.get(settlement.id)
        if job is None or job.token != settlement.token:
            return Settled.STALE
        if job.stage is not Stage.ACTIVE:
            return Settled.ALREADY
        self._record(job, lifecycle.ended_attempt(job, settlement.transition, now))
        self._put(job, self._finished(job, settlement.transition, now))
        return Settled.APPLIED

    async def open_work(self, job: UUID, timeout: timedelta) -> WorkTransaction:
        raise InvalidTransaction(
            "memory:// has no tables of yours, so there is nothing that ctx.tx could write to. Use sqlite:///jobs.db, "
            "or postgresql://…, in tests too."
        )

    async def tick(self) -> Tick:
        with self._lock:
            now = self._clock.now()
            expired = list(
                islice(
                    (job for job in map(self._jobs.__getitem__, self._waiting) if lifecycle.has_expired(job, now)),
                    _BATCH,
                )
            )
            for job in expired:
                self._record(job, lifecycle.failed_attempt(job, lifecycle.expired_failure(job), now))
                self._put(job, lifecycle.expire(job, now))
            self._move_in_lines()
            scheduled = sorted(
                (job for job in map(self._jobs.__getitem__, self._waiting) if job.stage is Stage.SCHEDULED),
                key=lambda job: (job.due_at, job.id),
            )
            ripe = [job for job in scheduled if job.due_at <= now][:_BATCH]
            self._ring_for_work([self._put(job, lifecycle.ripen(job)) for job in ripe])
            self._move_in_lines()
            moment = to_microseconds(now)
            self._ring(HintKind.WORK, at_once(traffic.ripen(self._ledger, self._ledger.due_gates(moment), moment)))
            next_times = [job.due_at for job in scheduled[len(ripe) :][:1]]
            opens_in = None
            if (opening := self._ledger.next_at()) is not None:
                next_times.append(from_microseconds(opening))
                opens_in = max(from_microseconds(opening), now) - now
            return Tick(len(ripe), len(expired), max(min(next_times), now) - now if next_times else None, opens_in)

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def report_progress(self, reports: Sequence[ProgressReport]) -> None:
        check_batch(len(reports))
        with self._lock:
            now = self._clock.now()
            for report in reports:
                job = self._jobs.get(report.id)
                if job is not None and job.token == report.token:
                    self._progress[job.id] = job.runs, Progress(report.done, report.total, report.note, now)

    async def progress(self, ids: Sequence[UUID]) -> dict[UUID, Progress]:
        check_batch(len(ids))
        with self._lock:
            runs = {id: self._jobs[id].runs for id in ids if id in self._jobs}
            reported = {id: self._progress[id] for id in runs if id in self._progress}
            return {id: progress for id, (run, progress) in reported.items() if run == runs[id]}

    # ── steering ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[UUID], reason: str) -> dict[UUID, Ruling]:
        with self._lock:
            rulings = self._steer(ids, lambda job, now: lifecycle.cancel(job, reason, now))
            self._move_in_lines()
            return rulings

    async def asked_to_stop(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        check_batch(len(ids))
        with self._lock:
            active = [job for id in ids if (job := self._jobs.get(id)) is not None and job.stage is Stage.ACTIVE]
            return {job.id: job.cancel_reason or "" for job in active if job.cancel_requested_at is not None}

    async def run_now(self, ids: Sequence[UUID]) -> dict[UUID, Ruling]:
        with self._lock:
            rulings = self._steer(ids, lifecycle.run_now)
            self._move_in_lines()
            return rulings

    async def retry(self, ids: Sequence[UUID], args_json: str | None = None) -> dict[UUID, Ruling]:
        check_batch(len(ids))
        with self._lock:
            rulings = {id: self._retry(id, args_json) for id in ids}
            self._move_in_lines()
            return rulings

    def _retry(self, id: UUID, args_json: str | None) -> Ruling:
        job = self._jobs.get(id)
        holder = None if job is None else keys.rival(job, self._keys, self._clock.now())
        if job is not None and holder is not None:
            return Ruling(False, job.state, holder)
        ruling = self._steer([id], lambda job, now: lifecycle.retry(job, now, args_json))[id]
        if ruling.is_done:
            self._reopen_keys(self._jobs[id])
        return ruling

    async def discard(self, ids: Sequence[UUID]) -> dict[UUID, Ruling]:
        check_batch(len(ids))
        with self._lock:
            rulings: dict[UUID, Ruling] = {}
            dead: list[UUID] = []
            for id in dict.fromkeys(ids):
                job = self._jobs.get(id)
                is_dead = job is not None and lifecycle.may_discard(job)
                rulings[id] = Ruling(is_dead, job.state if job else None)
                if is_dead:
                    dead.append(id)
            self._forget(dead)
            return rulings

    def _steer(
        self, ids: Sequence[UUID], change: Callable[[JobRecord, datetime], JobRecord | None]
    ) -> dict[UUID, Ruling]:
        check_batch(len(ids))
        with self._lock:
            now = self._clock.now()
            rulings: dict[UUID, Ruling] = {}
            for id in ids:
                job = self._jobs.get(id)
                changed = None if job is None else change(job, now)
                if job is not None and changed is not None:
                    job = self._put(job, changed)
                rulings[id] = Ruling(changed is not None, job.state if job else None)
            touched = [self._jobs[id] for id, ruling in rulings.items() if ruling.is_done]
            self._ring_for_work(touched)
            self._ring(HintKind.CANCEL, ids={job.id for job in touched if job.stage is Stage.ACTIVE})
            return rulings

    async def unannounced(self, limit: int) -> list[JobRecord]:
        check_limit(limit)
        with self._lock:
            dead = [self._jobs[id] for id in self._unannounced]
            return sorted(dead, key=lambda job: (job.finished_at, job.id))[:limit]

    async def announced(self, jobs: Sequence[tuple[UUID, int]]) -> None:
        check_batch(len(jobs))
        with self._lock:
            told = {id for id, generation in jobs if id in self._jobs and self._jobs[id].generation == generation}
            self._unannounced -= told

    async def prune(self, *, dead_before: datetime | None = None, batch: int = _BATCH) -> Pruned:
        with self._lock:
            now = self._clock.now()
            ends = {
                Stage.COMPLETED: now - self._retention.completed,
                Stage.CANCELLED: now - self._retention.cancelled,
                Stage.DEAD: dead_before,
            }
            old = [id for id, job in self._jobs.items() if self._is_over(job, ends.get(job.stage), now)]
            self._forget(old[:batch])
            dead_keys = [name for name, record in self._keys.items() if not record.is_live(now)]
            for name in dead_keys[:batch]:
                del self._keys[name]
            oldest = now - WORKER_RETENTION
            gone = [id for id, worker in self._workers.items() if worker.dead_at and worker.dead_at < oldest]
            for id in gone[:batch]:
                del self._workers[id]
            self._ledger.forget({job.line for job in self._jobs.values() if job.line}, to_microseconds(now))
            is_done = len(old) <= batch and len(dead_keys) <= batch and len(gone) <= batch
            return Pruned(min(len(old), batch), min(len(dead_keys), batch), min(len(gone), batch), is_done)

    def _is_over(self, job: JobRecord, end: datetime | None, now: datetime) -> bool:
        if end is None or job.finished_at is None or job.finished_at >= end:
            return False
        # The answer to a repeated request is this job's result, so it stays as long as its key does.
        return not any(
            (record := self._keys.get(name)) is not None and record.job == job.id and record.is_live(now)
            for name in keys.keys_of(job)
        )

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def register(self, worker: NewWorker) -> None:
        with self._lock:
            now = self._clock.now()
            # What an earlier life under this id still held, nobody runs any more.
            self._rescue(self._active_of(worker.id), now)
            before = self._workers.get(worker.id)
            # Counted on, so that what was observed of an earlier life can't end this one.
            beat = 1 if before is None else before.beat + 1
            self._workers[worker.id] = WorkerRecord(
                worker.id, worker.name, worker.host, worker.pid, worker.queues, now, now, beat, tasks=worker.tasks
            )

    async def beat(self, worker: UUID, held: Held) -> Beaten:
        with self._lock:
            now = self._clock.now()
            record = self._workers.get(worker)
            if record is None or record.dead_at is not None:
                return Beaten(is_alive=False, taken=list(held.jobs))
            self._workers[worker] = replace(record, beat=record.beat + 1, beat_at=now)
            mine = {job.id: job for job in self._active_of(worker)}
            taken = [id for id, token in held.jobs.items() if id not in mine or mine[id].token != token]
            cancelled = [id for id, job in mine.items() if job.cancel_requested_at and id in held.jobs]
            unheld = [
                job
                for id, job in mine.items()
                if held.jobs.get(id) != job.token and job.token not in held.claiming and self._is_old(job, record)
            ]
            self._give_back(unheld, now)
            return Beaten(True, taken, cancelled, [job.id for job in unheld], record.is_quiet)

    def _is_old(self, job: JobRecord, worker: WorkerRecord) -> bool:
        """Claimed before its worker's last beat: if the worker were to learn of it, it would have by now."""
        return job.started_at is None or job.started_at <= worker.beat_at

    async def sightings(self) -> list[Sighting]:
        with self._lock:
            now = self._clock.now()
            return [
                Sighting(worker.id, worker.beat, now - worker.beat_at)
                for worker in self._workers.values()
                if worker.dead_at is None
            ]

    async def rescue(self, gone: Mapping[UUID, int]) -> list[UUID]:
        with self._lock:
            now = self._clock.now()
            for id, beat in gone.items():
                worker = self._workers.get(id)
                if worker is not None and worker.beat == beat and worker.dead_at is None:
                    self._workers[id] = replace(worker, dead_at=now)
            orphans = [
                job for job in self._jobs.values() if job.stage is Stage.ACTIVE and not self._is_alive(job.worker)
            ]
            return self._rescue(orphans[:_BATCH], now)

    async def bury_worker(self, worker: UUID, settlements: Sequence[Settlement] = ()) -> list[UUID]:
        with self._lock:
            now = self._clock.now()
            record = self._workers.get(worker)
            if record is not None and record.dead_at is None:
                self._workers[worker] = replace(record, dead_at=now)
            for settlement in settlements:
                self._settle(settlement, now)
            self._move_in_lines()
            rest = self._active_of(worker)
            self._take_over([(job, lifecycle.after_departure(job)) for job in rest], now)
            return [job.id for job in rest]

    async def depart(self, worker: UUID) -> list[UUID]:
        with self._lock:
            held = self._active_of(worker)
            self._take_over([(job, lifecycle.after_departure(job)) for job in held], self._clock.now())
            self._workers.pop(worker, None)
            return [job.id for job in held]

    async def quiet(self, worker: UUID) -> bool:
        with self._lock:
            if not self._is_alive(worker):
                return False
            self._workers[worker] = replace(self._workers[worker], is_quiet=True)
            self._ring(HintKind.CONTROL, ids={worker})
            return True

    async def workers(self) -> list[WorkerRecord]:
        with self._lock:
            return self._shown_workers()

    def _shown_workers(self) -> list[WorkerRecord]:
        active = Counter(job.worker for job in self._jobs.values() if job.stage is Stage.ACTIVE)
        return [replace(worker, active=active[worker.id]) for worker in self._workers.values()]

    def _rescue(self, orphans: Sequence[JobRecord], now: datetime) -> list[UUID]:
        self._take_over([(job, lifecycle.after_crash(job, crash_of(job.worker))) for job in orphans], now)
        return [job.id for job in orphans]

    def _give_back(self, held: Sequence[JobRecord], now: datetime) -> None:
        self._take_over([(job, GiveBack()) for job in held], now)

    def _take_over(self, held: Sequence[tuple[JobRecord, Transition]], now: datetime) -> None:
        """Take jobs from their worker. Their tokens go too: that worker must not settle them any more."""
        for job, transition in held:
            self._record(job, lifecycle.ended_attempt(job, transition, now))
            self._put(job, replace(self._finished(job, transition, now), token=None))
        self._move_in_lines()

    def _finished(self, job: JobRecord, transition: Transition, now: datetime) -> JobRecord:
        if isinstance(transition, GiveBack) and transition.is_unstarted:
            self._unstarted.add(job.id)
        return lifecycle.finish(job, transition, now)

    def _alive(self, worker: UUID) -> None:
        if not self._is_alive(worker):
            raise WorkerDeclaredDead

    def _is_alive(self, worker: UUID | None) -> bool:
        record = self._workers.get(worker) if worker else None
        return record is not None and record.dead_at is None

    def _active_of(self, worker: UUID) -> list[JobRecord]:
        return [job for job in self._jobs.values() if job.stage is Stage.ACTIVE and job.worker == worker]

    # ── queues and tasks ─────────────────────────────────────────────────────────────────────────────────────────────

    async def declare_queues(self, queues: Sequence[Queue]) -> None:
        with self._lock:
            for queue in queues:
                self._queues[queue.name] = replace(
                    self._queue(queue.name), declared_bound=queue.bound, scheduled_bound=queue.scheduled_bound
                )

    async def queues(self) -> list[QueueRecord]:
        with self._lock:
            return [self._queues[name] for name in sorted(self._queues)]

    async def busy_queues(self) -> list[str]:
        with self._lock:
            return sorted({job.queue for job in self._jobs.values() if job.stage is Stage.READY})

    async def pause(self, queue: str) -> None:
        self._control(queue, lambda record: replace(record, paused_at=record.paused_at or self._clock.now()))

    async def resume(self, queue: str) -> None:
        self._control(queue, lambda record: replace(record, paused_at=None))

    async def set_bound(self, queue: str, bound: int | None) -> None:
        override = None if bound is None else check_bound(bound, "bound")
        self._control(queue, lambda record: replace(record, override_bound=override))

    def _control(self, queue: str, change: Callable[[QueueRecord], QueueRecord]) -> None:
        with self._lock:
            self._queues[queue] = change(self._queue(queue))
            self._ring(HintKind.CONTROL, queues={queue})
            self._ring(HintKind.ROOM, queues={queue})

    async def publish_tasks(self, definitions: Sequence[TaskDefinition], code_age: timedelta | None = None) -> None:
        with self._lock:
            now = self._clock.now()
            code_from = now - (code_age or timedelta(0))
            for definition in definitions:
                old = self._tasks.get(definition.name)
                is_younger = old is None or code_age is None or code_from >= self._code_from[definition.name]
                if is_younger and (old is None or old.definition != definition):
                    revision = 1 if old is None else old.revision + 1
                    self._tasks[definition.name] = PublishedTask(definition, revision, now)
                    self._code_from[definition.name] = code_from

    async def tasks(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        with self._lock:
            published = sorted(self._tasks.values(), key=lambda task: task.definition.name)
            if names is None:
                return published
            wanted = set(names)
            return [task for task in published if wanted & {task.definition.name, *task.definition.aliases}]

    # ── schedules ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def declare_schedules(self, plans: Mapping[str, Plan], code_age: timedelta | None = None) -> None:
        with self._lock:
            now = self._clock.now()
            if self._schedules.declare(plans, now - (code_age or timedelta(0)), now):
                self._hub.publish([Hint(HintKind.SCHEDULES)])

    async def schedules(self, names: Sequence[str] | None = None) -> list[ScheduleRecord]:
        with self._lock:
            return self._schedules.listed(names)

    async def change_schedule(self, name: str, change: ScheduleChange) -> ScheduleRecord | None:
        with self._lock:
            changed = self._schedules.change(name, change, self._clock.now())
            self._hub.publish([Hint(HintKind.SCHEDULES)])
            return changed

    async def due_schedules(self, limit: int) -> DueSchedules:
        check_limit(limit)
        with self._lock:
            return self._schedules.due(limit, self._clock.now())

    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        check_batch(sum(len(firing.jobs) for firing in firings))
        with self._lock:
            return [self._schedules.fire(firing) for firing in firings]

    async def ticks(self, schedule: str, limit: int = 20) -> list[TickRecord]:
        check_limit(limit)
        with self._lock:
            return self._schedules.ticks(schedule, limit)

    def _enqueue_ticks(self, jobs: Sequence[NewJob]) -> list[UUID]:
        """A job that is there under the id of a tick is its job, whatever has become of the schedule since."""
        fresh = [new for new in jobs if new.id not in self._jobs]
        found = {new.id: answer.id for new, answer in zip(fresh, self._enqueue(fresh), strict=True)}
        return [found.get(new.id, new.id) for new in jobs]

    def _state(self, id: UUID) -> JobState | None:
        return self._jobs[id].state if id in self._jobs else None

    # ── limits, and why jobs wait ────────────────────────────────────────────────────────────────────────────────────

    async def limits(
        self, name: str | None = None, kind: GateKind | None = None, key: str | None = None, limit: int = 100
    ) -> list[LimitRecord]:
        check_limit(limit)
        with self._lock:
            now = self._clock.now()
            found = [
                gate
                for gate in self._ledger.all_gates()
                if name in (None, gate.name) and kind in (None, gate.kind) and key in (None, gate.key)
            ]
            awaited = {line.parked_at for line in self._ledger.all_lines()}
            found.sort(key=lambda gate: (gate.id not in awaited, gate.name, gate.kind, gate.key))
            return [limit_record(gate, self._held_up_at(gate), now) for gate in found[:limit]]

    def _held_up_at(self, gate: Gate) -> int:
        parked = {line.id for line in self._ledger.all_lines() if line.parked_at == gate.id}
        return min(sum(job.line in parked for job in self._ready(self._clock.now())), MOST_WAITING)

    async def override_limit(self, rule: GateRule, most: int | None, *, makes: bool = True) -> LimitRecord | None:
        with self._lock:
            now = self._clock.now()
            gate, queues = at_once(traffic.override(self._ledger, rule, most, to_microseconds(now), makes=makes))
            self._ring(HintKind.WORK, queues)
            return None if gate is None else limit_record(gate, self._held_up_at(gate), now)

    async def circumstances(self, id: UUID) -> Circumstances | None:
        with self._lock:
            job = self._jobs.get(id)
            if job is None:
                return None
            now = self._clock.now()
            line = None if job.line is None else at_once(self._ledger.lines([job.line])).get(job.line)
            gates = {} if line is None else at_once(self._ledger.gates(line.gates))
            gates = {
                id: replace(gate, holder=self._first_at_work(line.id)) if line and is_train(gate) else gate
                for id, gate in gates.items()
            }
            is_ready = job.stage is Stage.READY
            run, progress = self._progress.get(id, (0, None))
            return Circumstances(
                now=now,
                job=job,
                paused_at=self._queue(job.queue).paused_at,
                ahead=self._ahead(job, now) if is_ready else 0,
                lines_ahead=min(self._ledger.ahead(job.queue, job.priority, line), MOST_AHEAD) if is_ready else 0,
                line=line,
                gates=tuple(gates.values()),
                holders={
                    holder: self._jobs[holder].state
                    for gate in gates.values()
                    if (holder := gate.holder) is not None and holder in self._jobs
                },
                workers=tuple(
                    worker for worker in self._shown_workers() if worker.dead_at is None or worker.id == job.worker
                ),
                task=next((task for task in self._tasks.values() if task.definition.is_called(job.task)), None),
                progress=progress if run == job.runs else None,
            )

    def _first_at_work(self, line: UUID) -> UUID | None:
        mine = [job for job in self._jobs.values() if job.line == line and job.stage is Stage.ACTIVE]
        return min(mine, key=lambda job: (job.lane, job.place)).id if mine else None

    def _ahead(self, job: JobRecord, now: datetime) -> int:
        if job.line is not None:
            others = [(other.lane, other.place) for other in self._ready(now) if other.line == job.line]
            return min(sum(place < (job.lane, job.place) for place in others), MOST_AHEAD)
        plain = [other for other in self._ready(now) if other.queue == job.queue and other.line is None]
        mine = -job.priority, job.lane, job.place
        return min(sum((-other.priority, other.lane, other.place) < mine for other in plain), MOST_AHEAD)

    # ── breakers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def declare_breakers(
        self, policies: Mapping[str, BreakerPolicy], code_age: timedelta | None = None
    ) -> list[BreakerRecord]:
        with self._lock:
            now = self._clock.now()
            return self._breakers.declare(policies, now - (code_age or timedelta(0)), now)

    async def breakers(self, names: Sequence[str] | None = None) -> list[BreakerRecord]:
        with self._lock:
            return self._breakers.listed(names, self._clock.now())

    async def enter_breaker(self, name: str, id: UUID) -> Admission:
        with self._lock:
            return self._breakers.enter(name, id, self._clock.now())

    async def report_breakers(self, reports: Sequence[BreakerReport]) -> list[BreakerRecord]:
        check_batch(len(reports))
        with self._lock:
            return self._breakers.report(reports, self._clock.now())

    async def change_breaker(self, name: str, change: BreakerChange) -> BreakerRecord:
        with self._lock:
            return self._breakers.change(name, change, self._clock.now())

    async def let_pass(self, breaker: str, limit: int) -> int:
        check_limit(limit)
        with self._lock:
            now = self._clock.now()
            if not self._breakers.is_closed(breaker, now):
                return 0
            waiting = map(self._jobs.__getitem__, self._waiting)
            behind = [job for job in waiting if job.stage is Stage.SCHEDULED and job.breaker == breaker]
            behind.sort(key=lambda job: (job.due_at, job.id))
            rulings = self._steer([job.id for job in behind[:limit]], lifecycle.run_now)
            self._move_in_lines()
            return len(rulings)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[UUID]) -> list[JobRecord]:
        check_batch(len(ids))
        with self._lock:
            return [self._jobs[id] for id in ids if id in self._jobs]

    async def finished(self, ids: Sequence[UUID]) -> list[JobRecord]:
        return [job for job in await self.get(ids) if job.stage in FINAL]

    async def page(self, filter: Filter, cursor: UUID | None = None, limit: int = 50) -> Page:
        check_limit(limit)
        check_filter(filter)
        with self._lock:
            newest_first = sorted(self._jobs, reverse=True)
            found = [
                self._jobs[id]
                for id in newest_first
                if (cursor is None or id < cursor) and passes(self._jobs[id], filter)
            ]
        return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)

    async def count(self, filter: Filter) -> int:
        check_filter(filter)
        with self._lock:
            return sum(passes(job, filter) for job in self._jobs.values())

    async def attempts(self, id: UUID) -> list[Attempt]:
        with self._lock:
            job = self._jobs.get(id)
            return [] if job is None else lifecycle.all_attempts(job, self._history.get(id, []))

    # ── the only places that write ───────────────────────────────────────────────────────────────────────────────────

    def _put(self, before: JobRecord | None, after: JobRecord) -> JobRecord:
        """Keep a record, with its place in the line, its queue's counters and its keys in step."""
        if after.stage is Stage.READY and (before is None or lifecycle.takes_new_place(before, after)):
            self._last_place += 1
            after = replace(after, place=self._last_place)
        self._jobs[after.id] = after
        if after.stage in WAITING:
            self._waiting[after.id] = None
        else:
            self._waiting.pop(after.id, None)
        self._count(before, -1)
        self._count(after, +1)
        if before is not None and after.stage in FINAL and before.stage not in FINAL:
            self._close_keys(after)
            self._ring(HintKind.FINISHED, ids={after.id})
        if after.stage is not Stage.DEAD:
            self._unannounced.discard(after.id)
        elif before is not None and before.stage is not Stage.DEAD:
            self._unannounced.add(after.id)
        if before is not None and after.stage is Stage.READY:
            self._ring(HintKind.WORK, queues={after.queue})
        if before is not None and after.stage is Stage.SCHEDULED:
            self._ring(HintKind.LATER, queues={after.queue})
        if before is not None and before.stage is Stage.READY and after.stage is not Stage.READY:
            self._ring(HintKind.ROOM, queues={after.queue})
        if after.line is not None:
            self._moved.append((before, after))
        return after

    def _move_in_lines(self) -> None:
        """What has changed makes room for others, or wants to run. All of it together, as a transaction does it."""
        moved, self._moved = self._moved, []
        unstarted, self._unstarted = self._unstarted, set()
        departures = [
            traffic.departure(before, after, is_unstarted=after.id in unstarted)
            for before, after in moved
            if before is not None
        ]
        self._leave([departure for departure in departures if departure is not None])
        woken = {
            after.line
            for before, after in moved
            if after.line is not None
            and after.stage is Stage.READY
            and (before is None or before.stage is not Stage.READY)
        }
        if woken:
            at_once(traffic.wake(self._ledger, woken))

    def _leave(self, departures: Sequence[Departure]) -> None:
        if departures:
            self._ring(
                HintKind.WORK, at_once(traffic.leave(self._ledger, departures, to_microseconds(self._clock.now())))
            )

    def _forget(self, ids: Sequence[UUID]) -> None:
        jobs = [self._jobs.pop(id) for id in ids]
        self._leave([Departure(job.id, job.line, was_active=False, is_over=True) for job in jobs if job.line])
        for job in jobs:
            self._count(job, -1)
            self._waiting.pop(job.id, None)
            self._history.pop(job.id, None)
            self._progress.pop(job.id, None)
            self._unannounced.discard(job.id)

    def _count(self, job: JobRecord | None, by: int) -> None:
        if job is None:
            return
        queue = self._queue(job.queue)
        self._queues[job.queue] = replace(
            queue,
            waiting=queue.waiting + by * counts_as_waiting(job.stage, job.attempt),
            scheduled=queue.scheduled + by * counts_as_scheduled(job.stage, job.attempt),
        )

    def _record(self, job: JobRecord, attempt: Attempt | None) -> None:
        if attempt is not None:
            history = self._history.setdefault(job.id, [])
            history.append(attempt)
            del history[:-LONGEST_HISTORY]

    def _close_keys(self, job: JobRecord) -> None:
        for name in keys.keys_of(job):
            record = self._keys.get(name)
            if record is not None and record.job == job.id:
                self._keys[name] = keys.closed(name.kind, record, self._clock.now(), self._retention.idempotency)

    def _reopen_keys(self, job: JobRecord) -> None:
        for name in keys.keys_of(job):
            record = self._keys.get(name)
            if record is None or record.job != job.id:
                record = KeyRecord(job.id, fingerprint(job.args_json))
            self._keys[name] = replace(record, expires_at=None)

    def _queue(self, name: str) -> QueueRecord:
        return self._queues.get(name) or QueueRecord(name)

    def _ring_for_work(self, jobs: Iterable[JobRecord]) -> None:
        jobs = list(jobs)
        self._ring(HintKind.WORK, queues={job.queue for job in jobs if job.stage is Stage.READY})
        self._ring(HintKind.LATER, queues={job.queue for job in jobs if job.stage is Stage.SCHEDULED})

    def _ring(self, kind: HintKind, queues: Iterable[str] = (), ids: Iterable[UUID] = ()) -> None:
        hint = Hint(kind, frozenset(queues), frozenset(ids))
        if hint.queues or hint.ids:
            self._hub.publish([hint])


def _claimed(job: JobRecord, behind: UUID | None) -> ClaimedJob:
    assert job.token is not None
    return ClaimedJob(
        id=job.id,
        token=job.token,
        task=job.task,
        queue=job.queue,
        priority=job.priority,
        args_json=job.args_json,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        runs=job.runs,
        crashes=job.crashes,
        waits=job.waits,
        pool_tries=job.pool_tries,
        edits=job.edits,
        delivery=job.delivery,
        created_microseconds=to_microseconds(job.created_at),
        due_microseconds=to_microseconds(job.due_at),
        idempotency_key=job.idempotency_key,
        has_unique_key=job.unique_key is not None,
        context_json=job.context_json,
        is_lined=job.line is not None,
        behind=behind,
    )


def _count(records: Sequence[JobRecord]) -> tuple[Counter[str], Counter[str]]:
    """How many of these are ready in each queue, and how many are scheduled."""
    ready = Counter(job.queue for job in records if job.stage is Stage.READY)
    return ready, Counter(job.queue for job in records if job.stage is Stage.SCHEDULED)
