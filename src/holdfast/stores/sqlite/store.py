"""The SQLite store: one file, any number of processes on one machine, nothing to install."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from holdfast import lifecycle
from holdfast.breaker import Admission, BreakerPolicy, BreakerRecord, BreakerReport
from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, WorkerDeclaredDead
from holdfast.gates import GateKind, GateRule
from holdfast.job import Attempt, ClaimedJob, Delivery, JobRecord, NewJob
from holdfast.lifecycle import Complete
from holdfast.limits import LimitRecord
from holdfast.liveness import Sighting
from holdfast.moment import MICROSECOND, from_microseconds, to_microseconds
from holdfast.schedule import Fired, Firing, Plan, ScheduleRecord, TickRecord
from holdfast.span import Span, parse_span
from holdfast.store import (
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
    check_batch,
    check_bound,
    check_limit,
)
from holdfast.stores import decisions
from holdfast.stores.decisions import Changes
from holdfast.stores.hints import HintHub
from holdfast.stores.sqlite import breaking, explaining, rows, scheduling
from holdfast.stores.sqlite.borrowed import enqueue_on
from holdfast.stores.sqlite.connection import Connection
from holdfast.stores.sqlite.desk import Bench
from holdfast.stores.sqlite.doorbell import Doorbell
from holdfast.stores.sqlite.guests import Guests
from holdfast.stores.sqlite.lent import TaskConnection
from holdfast.stores.sqlite.migrate import Migration, migrate, shipped_migrations
from holdfast.stores.sqlite.reader import Reader
from holdfast.stores.sqlite.search import Search
from holdfast.stores.sqlite.session import NeedsCare, NeedsDisk, Operation, Session
from holdfast.stores.sqlite.statements import chunks, records_statement, statement
from holdfast.stores.sqlite.transaction import OpenQueue, Transaction
from holdfast.stores.sqlite.worker_locks import FREE_FOR, WorkerLocks
from holdfast.stores.sqlite.workshop import SqliteWork, Workshop
from holdfast.stores.sqlite.writer import Writer
from holdfast.turns import Bounds

ConnectionT = TypeVar("ConnectionT", bound=Connection)

_BATCH = 1000
_PRUNE_WINDOW = 5000


class SqliteStore:
    """Jobs in a SQLite file, in WAL mode. Everything that must be on disk is, when a call returns."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        retention: Retention | None = None,
        queues: Sequence[Queue] = (),
        migrations: Sequence[Migration] | None = None,
        work_limit: Span = "1s",
    ) -> None:
        """The bounds of `queues` hold in transactions of the caller's own, even before they are declared.

        `work_limit` is how long the transaction of a task may hold the write lock.
        """
        self.path = Path(path).absolute()
        self._clock = clock or SystemClock()
        self._retention = retention or Retention()
        self._migrations = migrations
        self._declared = {queue.name: queue for queue in queues}
        self._is_open = False
        self._hub = HintHub()
        self._writer = Writer(lambda: Session(self.path, self._connect, self._clock, self))
        self._reader = Reader(self.path)
        self._searcher = Reader(self.path)
        self._work_limit = parse_span(work_limit, "work_limit").total_seconds()
        self._workshop = Workshop(self._make_bench)
        self._doorbell = Doorbell(self.path, self._hub.publish)
        self._locks = WorkerLocks(self.path)
        self._guests = Guests(self.path)
        self._prune_from = 0
        self._prune_lines_from = 0
        self._strict_queues: set[str] = set()
        """Queues with at-most-once jobs: their claims go to the disk at once."""

    # ── lifetime ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        if not self._is_open:
            await self._writer.run(Operation(lambda _: None, needs_lock=False))
            self._is_open = True

    def _connect(self) -> Connection:
        """Open the file and bring it up to date; in the writer's thread, while it has its turn."""
        return self._migrated(Connection(self.path))

    def _migrated(self, connection: ConnectionT) -> ConnectionT:
        try:
            migrate(connection, self._all_migrations())
        except BaseException:
            connection.close()
            raise
        return connection

    def _all_migrations(self) -> list[Migration]:
        return list(self._migrations or shipped_migrations())

    async def close(self) -> None:
        self._doorbell.close()
        await asyncio.gather(self._reader.close(), self._searcher.close(), self._workshop.close(), self._writer.close())
        self._locks.close()

    def abandon(self) -> None:
        self._writer.abandon()
        self._reader.abandon()
        self._searcher.abandon()
        self._workshop.abandon()
        self._locks.abandon()
        self._hub = HintHub()
        self._doorbell = Doorbell(self.path, self._hub.publish)

    # ── hints ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def changes(self, kinds: Iterable[HintKind]) -> AsyncIterator[AsyncIterator[Hint]]:
        await self.open()
        try:
            async with self._hub.subscribe(kinds) as hints:
                self._doorbell.listen_for(lambda: self._hub.kinds)
                yield hints
        finally:
            self._doorbell.listen_for(lambda: self._hub.kinds)

    def wanted(self) -> frozenset[HintKind]:
        """The kinds of hints that anybody waits for, here or in another process."""
        return self._hub.kinds | self._doorbell.wanted()

    def send(self, hints: list[Hint]) -> None:
        """Pass hints on, after their commit; in the writer's thread."""
        self._hub.publish(hints)
        self._doorbell.ring(hints)

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, jobs: Sequence[NewJob], tx: object | None = None) -> list[Enqueued]:
        if tx is not None:
            return self.enqueue_in(tx, jobs)
        check_batch(len(jobs))
        work = Operation(lambda it: it.enqueue(jobs), weight=len(jobs), jobs=jobs)
        return await self._writer.run(work)

    def enqueue_in(self, tx: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        check_batch(len(jobs))
        now = self._clock.now()
        return enqueue_on(tx, jobs, self.path, self._all_migrations(), self._declared, now, self._guests)

    async def claim(
        self,
        worker: UUID,
        token: UUID,
        demand: Mapping[str, int],
        at_once: Mapping[str, int] | None = None,
        most_behind: int = 0,
    ) -> list[ClaimedJob]:
        is_durable = not self._strict_queues.isdisjoint(demand)
        return await self._writer.run(
            Operation(lambda it: self._claim(it, worker, token, demand, at_once, most_behind), is_durable=is_durable)
        )

    def _claim(
        self,
        it: Transaction,
        worker: UUID,
        token: UUID,
        demand: Mapping[str, int],
        at_once: Mapping[str, int] | None,
        most_behind: int,
    ) -> list[ClaimedJob]:
        if not it.execute("is_alive", (worker.bytes,)):
            raise WorkerDeclaredDead
        if it.is_careful and (before := it.claimed_before(worker, token)):
            return before
        claimed: list[ClaimedJob] = []
        for queue, slots in demand.items():
            if slots > 0:
                most_rated = None if at_once is None else at_once.get(queue, 0)
                behind = sum(job.behind is not None for job in claimed) if most_behind else 0
                claimed += it.claim(queue, Bounds(slots, most_rated, most_behind - behind), worker, token)
        if not it.is_durable:
            strict = {job.queue for job in claimed if job.delivery is Delivery.AT_MOST_ONCE}
            if strict:
                self._strict_queues |= strict
                raise NeedsDisk
        return claimed

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        check_batch(len(settlements))
        return await self._writer.run(Operation(lambda it: self._settle(it, settlements), weight=len(settlements)))

    def _settle(self, it: Transaction, settlements: Sequence[Settlement]) -> list[Settled]:
        if it.is_careful:
            return self._settle_carefully(it, settlements)
        done = [
            (each.id.bytes, each.token.bytes, each.transition.result_json)
            for each in settlements
            if isinstance(each.transition, Complete)
        ]
        if len(done) == len(settlements):
            return self._complete_all(it, settlements, done)
        if not done or _has_repeated(settlements):
            return self._settle_carefully(it, settlements)
        self._complete_all(it, [each for each in settlements if isinstance(each.transition, Complete)], done)
        others = [each for each in settlements if not isinstance(each.transition, Complete)]
        answers = iter(self._settle_carefully(it, others))
        return [Settled.APPLIED if isinstance(each.transition, Complete) else next(answers) for each in settlements]

    def _complete_all(
        self, it: Transaction, settlements: Sequence[Settlement], done: Sequence[tuple[bytes, bytes, str | None]]
    ) -> list[Settled]:
        """Without a look at the jobs. `done` are the settlements as complete.sql takes them."""
        it.flush()
        if it.change_many("complete", done, (it.microseconds,)) != len(done):
            raise NeedsCare  # some are stale, or repeated: find out which
        it.close_keys([each.id for each in settlements if each.is_keyed], self._key_end(it))
        it.leave_by_id([each.id for each in settlements if each.is_lined], was_active=True)
        it.hint(HintKind.FINISHED, ids=(each.id for each in settlements))
        return [Settled.APPLIED] * len(settlements)

    def _settle_carefully(self, it: Transaction, settlements: Sequence[Settlement]) -> list[Settled]:
        jobs = it.load([settlement.id for settlement in settlements])
        answers, ended = decisions.judge_settlements(settlements, jobs)
        self._save(it, decisions.end(ended, it.now))
        return answers

    def _save(self, it: Transaction, changes: Changes) -> None:
        it.save(changes, self._key_end(it))

    def _key_end(self, it: Transaction) -> int:
        return to_microseconds(it.now + self._retention.idempotency)

    # ── the transactions of tasks ────────────────────────────────────────────────────────────────────────────────────

    async def open_work(self, job: UUID, timeout: timedelta) -> SqliteWork:
        await self.open()
        return await self._workshop.open(timeout)

    def _make_bench(self) -> Bench:
        return Bench(
            self.path,
            self._connect_for_work,
            self._clock,
            self,
            complete=self._complete,
            declared=self._declared,
            limit=self._work_limit,
        )

    def _connect_for_work(self) -> TaskConnection:
        connection = self._migrated(TaskConnection(self.path))
        connection.execute("pragma foreign_keys = on")
        return connection

    def _complete(self, it: Transaction, settlement: Settlement) -> Settled:
        try:
            (answer,) = self._settle(it, [settlement])
        except NeedsCare:  # whoever settled it instead, it was not this transaction
            return Settled.STALE
        return answer

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def tick(self) -> Tick:
        return await self._writer.run(Operation(self._tick, is_durable=False))

    def _tick(self, it: Transaction) -> Tick:
        expired = it.records("select_expired", (it.microseconds, _BATCH))
        self._save(it, decisions.expire(expired, it.now))
        ripe = it.records("select_due", (it.microseconds, _BATCH))
        self._save(it, Changes([(job, lifecycle.ripen(job)) for job in ripe]))
        ((next_due,),) = it.execute("next_due")
        opens_at = it.ripen_gates(_BATCH)
        times = [time for time in (next_due, opens_at) if time is not None]
        return Tick(len(ripe), len(expired), _span_until(min(times, default=None), it), _span_until(opens_at, it))

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def report_progress(self, reports: Sequence[ProgressReport]) -> None:
        check_batch(len(reports))

        def work(it: Transaction) -> None:
            it.change_many("report_progress", [rows.progress_row(report) for report in reports], (it.microseconds,))

        await self._writer.run(Operation(work, is_durable=False, weight=len(reports)))

    async def progress(self, ids: Sequence[UUID]) -> dict[UUID, Progress]:
        check_batch(len(ids))
        await self.open()

        def question(connection: Connection) -> dict[UUID, Progress]:
            found: dict[UUID, Progress] = {}
            for chunk in chunks([id.bytes for id in ids]):
                found |= rows.read_progress(connection.execute(statement("progress", len(chunk)), chunk))
            return found

        return await self._reader.read(question)

    # ── steering ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[UUID], reason: str) -> dict[UUID, Ruling]:
        return await self._steer(ids, lambda job, now: lifecycle.cancel(job, reason, now))

    async def asked_to_stop(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        check_batch(len(ids))
        await self.open()

        def question(connection: Connection) -> dict[UUID, str]:
            found = [
                row
                for chunk in chunks([id.bytes for id in ids])
                for row in connection.execute(statement("asked_to_stop", len(chunk)), chunk)
            ]
            return {UUID(bytes=id): reason for id, reason in found}

        return await self._reader.read(question)

    async def run_now(self, ids: Sequence[UUID]) -> dict[UUID, Ruling]:
        return await self._steer(ids, lifecycle.run_now)

    async def retry(self, ids: Sequence[UUID], args_json: str | None = None) -> dict[UUID, Ruling]:
        return await self._steer(ids, lambda job, now: lifecycle.retry(job, now, args_json), takes_keys=True)

    async def _steer(
        self,
        ids: Sequence[UUID],
        change: Callable[[JobRecord, datetime], JobRecord | None],
        *,
        takes_keys: bool = False,
    ) -> dict[UUID, Ruling]:
        check_batch(len(ids))

        def work(it: Transaction) -> dict[UUID, Ruling]:
            jobs = it.load(ids)
            watched = it.watch_keys(jobs.values()) if takes_keys else None
            steering = decisions.steer(ids, jobs, lambda job: change(job, it.now), watched)
            self._save(it, steering.changes)
            if steering.asked_to_stop:
                it.hint(HintKind.CANCEL, ids=steering.asked_to_stop)
            return steering.rulings

        return await self._writer.run(Operation(work, weight=len(ids)))

    async def discard(self, ids: Sequence[UUID]) -> dict[UUID, Ruling]:
        check_batch(len(ids))

        def work(it: Transaction) -> dict[UUID, Ruling]:
            jobs = it.load(ids)
            dead = [id for id, job in jobs.items() if lifecycle.may_discard(job)]
            it.delete(dead)
            return {id: Ruling(id in dead, jobs[id].state if id in jobs else None) for id in ids}

        return await self._writer.run(Operation(work, weight=len(ids)))

    async def unannounced(self, limit: int) -> list[JobRecord]:
        check_limit(limit)
        await self.open()

        def question(connection: Connection) -> list[JobRecord]:
            ((text,),) = connection.execute(records_statement("select_unannounced"), (limit,))
            return rows.read_records(text)

        return await self._reader.read(question)

    async def announced(self, jobs: Sequence[tuple[UUID, int]]) -> None:
        check_batch(len(jobs))
        told = [(id.bytes, generation) for id, generation in jobs]

        def work(it: Transaction) -> None:
            it.change_many("announced", told)

        await self._writer.run(Operation(work, weight=len(jobs)))

    async def prune(self, *, dead_before: datetime | None = None, batch: int = _BATCH) -> Pruned:
        """Look for what is old with a reader, which holds nobody up, and delete it in one short transaction."""
        now = self._clock.now()
        ends = (
            to_microseconds(now - self._retention.completed),
            to_microseconds(now - self._retention.cancelled),
            None if dead_before is None else to_microseconds(dead_before),
            to_microseconds(now),
        )
        await self.open()
        old, is_done = await self._searcher.read(lambda connection: self._find_old(connection, ends, batch))

        def work(it: Transaction) -> Pruned:
            still = [
                id
                for chunk in chunks([id.bytes for id in old])
                for id in rows.read_ids(it.answer("still_prunable", (*ends, *chunk), len(chunk)))
            ]
            it.delete(still)
            keys = it.change("prune_keys", (it.microseconds, batch))
            workers = it.change("prune_workers", (to_microseconds(it.now - WORKER_RETENTION),))
            self._prune_lines_from = it.forget_lines(self._prune_lines_from)
            return Pruned(len(still), keys, workers, is_done and keys < batch)

        return await self._writer.run(Operation(work))

    def _find_old(self, connection: Connection, ends: tuple[Any, ...], batch: int) -> tuple[list[UUID], bool]:
        """Go on where the last prune stopped, up to a batch or the end of the table, and then begin anew."""
        old: list[UUID] = []
        while True:
            ((last, text),) = connection.execute(statement("prunable"), (self._prune_from, _PRUNE_WINDOW, *ends))
            if last is None:
                self._prune_from = 0
                return old, True
            for seq, id in rows.read_numbered_ids(text):
                old.append(id)
                if len(old) == batch:
                    self._prune_from = seq
                    return old, False
            self._prune_from = last

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def register(self, worker: NewWorker) -> None:
        queues, tasks = (msgspec.json.encode(names).decode() for names in (worker.queues, worker.tasks))
        said = worker.id.bytes, worker.name, worker.host, worker.pid, queues, tasks

        def work(it: Transaction) -> None:
            # What an earlier life under this id still held, nobody runs any more.
            self._rescue(it, it.records("select_active_of_worker", (worker.id.bytes,)))
            it.change("register", (*said, it.microseconds))
            self._locks.take(worker.id)

        try:
            await self._writer.run(Operation(work))
        except HoldfastError:
            self._locks.let_go(worker.id)
            raise

    async def beat(self, worker: UUID, held: Held) -> Beaten:
        return await self._writer.run(Operation(lambda it: self._beat(it, worker, held), is_durable=False))

    def _beat(self, it: Transaction, worker: UUID, held: Held) -> Beaten:
        found = it.execute("last_beat", (worker.bytes,))
        if not found:
            return Beaten(is_alive=False, taken=list(held.jobs))
        # Tried once before, this beat may have been written already, and then it is not the last one that is found.
        ((beat_at, is_quiet),) = found
        last_beat = None if it.is_careful else from_microseconds(beat_at)
        it.change("beat", (worker.bytes, it.microseconds))
        mine = it.records("select_active_of_worker", (worker.bytes,))
        compared = decisions.compare(mine, held, last_beat)
        self._save(it, decisions.release([job for job in mine if job.id in compared.unheld], it.now))
        return Beaten(True, compared.taken, compared.cancelled, compared.unheld, bool(is_quiet))

    async def sightings(self) -> list[Sighting]:
        now = self._clock.now()
        await self.open()

        def question(connection: Connection) -> list[Sighting]:
            ((text,),) = connection.execute(statement("workers"))
            return [
                Sighting(worker.id, worker.beat, now - worker.beat_at, self._locks.is_held(worker.id), FREE_FOR)
                for worker in rows.read_workers(text)
                if worker.dead_at is None
            ]

        return await self._reader.read(question)

    async def rescue(self, gone: Mapping[UUID, int]) -> list[UUID]:
        def work(it: Transaction) -> list[UUID]:
            for worker, beat in gone.items():
                if it.change("declare_dead", (worker.bytes, beat, it.microseconds)):
                    self._locks.let_go(worker)
            return self._rescue(it, it.records("select_orphans", (_BATCH,)))

        return await self._writer.run(Operation(work))

    async def bury_worker(self, worker: UUID, settlements: Sequence[Settlement] = ()) -> list[UUID]:
        def work(it: Transaction) -> list[UUID]:
            it.change("declare_dead", (worker.bytes, -1, it.microseconds))
            self._locks.let_go(worker)
            self._settle_carefully(it, settlements)
            rest = it.records("select_active_of_worker", (worker.bytes,))
            self._save(it, decisions.depart(rest, it.now))
            return [job.id for job in rest]

        return await self._writer.run(Operation(work))

    def _rescue(self, it: Transaction, orphans: Sequence[JobRecord]) -> list[UUID]:
        self._save(it, decisions.rescue(orphans, it.now))
        return [job.id for job in orphans]

    async def depart(self, worker: UUID) -> list[UUID]:
        def work(it: Transaction) -> list[UUID]:
            held = it.records("select_active_of_worker", (worker.bytes,))
            self._save(it, decisions.depart(held, it.now))
            it.change("depart", (worker.bytes,))
            self._locks.let_go(worker)
            return [job.id for job in held]

        return await self._writer.run(Operation(work))

    async def quiet(self, worker: UUID) -> bool:
        def work(it: Transaction) -> bool:
            is_alive = bool(it.change("quiet", (worker.bytes,)))
            if is_alive:
                it.hint(HintKind.CONTROL, ids=(worker,))
            return is_alive

        return await self._writer.run(Operation(work))

    async def workers(self) -> list[WorkerRecord]:
        return rows.read_workers(await self._ask("workers"))

    # ── queues and tasks ─────────────────────────────────────────────────────────────────────────────────────────────

    async def declare_queues(self, queues: Sequence[Queue]) -> None:
        def work(it: Transaction) -> None:
            for declared in queues:
                it.queue(declared.name).declare(declared)

        await self._writer.run(Operation(work))

    async def queues(self) -> list[QueueRecord]:
        return rows.read_queues(await self._ask("queues"))

    async def busy_queues(self) -> list[str]:
        await self.open()
        found = await self._reader.read(lambda connection: connection.execute(statement("busy_queues")))
        return [name for (name,) in found]

    async def pause(self, queue: str) -> None:
        def change(row: OpenQueue, it: Transaction) -> None:
            row.paused_at = row.paused_at or it.microseconds

        await self._control(queue, change)

    async def resume(self, queue: str) -> None:
        def change(row: OpenQueue, it: Transaction) -> None:
            row.paused_at = None

        await self._control(queue, change)

    async def set_bound(self, queue: str, bound: int | None) -> None:
        override = None if bound is None else check_bound(bound, "bound")

        def change(row: OpenQueue, it: Transaction) -> None:
            row.override_bound = override

        await self._control(queue, change)

    async def _control(self, queue: str, change: Callable[[OpenQueue, Transaction], None]) -> None:
        def work(it: Transaction) -> None:
            row = it.queue(queue)
            change(row, it)
            row.is_changed = True
            it.hint(HintKind.CONTROL, (queue,))
            it.hint(HintKind.ROOM, (queue,))

        await self._writer.run(Operation(work))

    async def publish_tasks(self, definitions: Sequence[TaskDefinition], code_age: timedelta | None = None) -> None:
        def work(it: Transaction) -> None:
            age = None if code_age is None else code_age // MICROSECOND
            for definition in definitions:
                text = msgspec.json.encode(definition, order="deterministic").decode()
                it.change("publish_task", (definition.name, text, it.microseconds, age))

        await self._writer.run(Operation(work))

    async def tasks(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        published = rows.read_tasks(await self._ask("tasks"))
        if names is None:
            return published
        wanted = set(names)
        return [task for task in published if wanted & {task.definition.name, *task.definition.aliases}]

    # ── schedules ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def declare_schedules(self, plans: Mapping[str, Plan], code_age: timedelta | None = None) -> None:
        if plans:
            await self._writer.run(Operation(lambda it: scheduling.declare(it, plans, code_age)))

    async def schedules(self, names: Sequence[str] | None = None) -> list[ScheduleRecord]:
        await self.open()
        return await self._reader.read(lambda connection: scheduling.schedules(connection, names))

    async def change_schedule(self, name: str, change: ScheduleChange) -> ScheduleRecord | None:
        return await self._writer.run(Operation(lambda it: scheduling.change(it, name, change)))

    async def due_schedules(self, limit: int) -> DueSchedules:
        check_limit(limit)
        await self.open()
        now = self._clock.now()
        return await self._reader.read(lambda connection: scheduling.due(connection, limit, now))

    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        number = sum(len(firing.jobs) for firing in firings)
        check_batch(number)
        return await self._writer.run(Operation(lambda it: scheduling.fire(it, firings), weight=number))

    async def ticks(self, schedule: str, limit: int = 20) -> list[TickRecord]:
        check_limit(limit)
        await self.open()
        return await self._reader.read(lambda connection: scheduling.ticks(connection, schedule, limit))

    # ── limits, and why jobs wait ────────────────────────────────────────────────────────────────────────────────────

    async def limits(
        self, name: str | None = None, kind: GateKind | None = None, key: str | None = None, limit: int = 100
    ) -> list[LimitRecord]:
        check_limit(limit)
        await self.open()
        now = self._clock.now()
        return await self._searcher.read(lambda connection: explaining.limits(connection, name, kind, key, limit, now))

    async def override_limit(self, rule: GateRule, most: int | None, *, makes: bool = True) -> LimitRecord | None:
        return await self._writer.run(Operation(lambda it: explaining.override(it, rule, most, makes=makes)))

    async def circumstances(self, id: UUID) -> Circumstances | None:
        await self.open()
        now = self._clock.now()
        return await self._reader.read(lambda connection: explaining.circumstances(connection, id, now))

    # ── breakers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def declare_breakers(
        self, policies: Mapping[str, BreakerPolicy], code_age: timedelta | None = None
    ) -> list[BreakerRecord]:
        return await self._writer.run(Operation(lambda it: breaking.declare(it, policies, code_age)))

    async def breakers(self, names: Sequence[str] | None = None) -> list[BreakerRecord]:
        await self.open()
        now = self._clock.now()
        return await self._reader.read(lambda connection: breaking.breakers(connection, names, now))

    async def enter_breaker(self, name: str, id: UUID) -> Admission:
        return await self._writer.run(Operation(lambda it: breaking.enter(it, name, id), is_durable=False))

    async def report_breakers(self, reports: Sequence[BreakerReport]) -> list[BreakerRecord]:
        check_batch(len(reports))
        return await self._writer.run(Operation(lambda it: breaking.report(it, reports), is_durable=False))

    async def change_breaker(self, name: str, change: BreakerChange) -> BreakerRecord:
        return await self._writer.run(Operation(lambda it: breaking.change(it, name, change)))

    async def let_pass(self, breaker: str, limit: int) -> int:
        check_limit(limit)

        def work(it: Transaction) -> int:
            behind = breaking.behind(it, breaker, limit)
            self._save(it, Changes([(job, lifecycle.run_now(job, it.now) or job) for job in behind]))
            return len(behind)

        return await self._writer.run(Operation(work, is_durable=False))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[UUID]) -> list[JobRecord]:
        return await self._read_by_id("select_by_id", ids)

    async def finished(self, ids: Sequence[UUID]) -> list[JobRecord]:
        return await self._read_by_id("select_finished", ids)

    async def _read_by_id(self, selection: str, ids: Sequence[UUID]) -> list[JobRecord]:
        check_batch(len(ids))
        await self.open()

        def question(connection: Connection) -> list[JobRecord]:
            found: dict[UUID, JobRecord] = {}
            for chunk in chunks([id.bytes for id in ids]):
                ((text,),) = connection.execute(records_statement(selection, len(chunk)), chunk)
                found |= {job.id: job for job in rows.read_records(text)}
            return [found[id] for id in ids if id in found]

        return await self._reader.read(question)

    async def page(self, filter: Filter, cursor: UUID | None = None, limit: int = 50) -> Page:
        check_limit(limit)
        search = Search(filter, cursor)
        sql = statement("records").replace("{jobs}", search.page())
        await self.open()
        ((text,),) = await self._searcher.read(lambda connection: connection.execute(sql, (*search.values, limit + 1)))
        found = rows.read_records(text)
        return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)

    async def count(self, filter: Filter) -> int:
        search = Search(filter)
        await self.open()
        ((number,),) = await self._searcher.read(lambda connection: connection.execute(search.count(), search.values))
        return int(number)

    async def attempts(self, id: UUID) -> list[Attempt]:
        jobs = await self.get([id])
        if not jobs:
            return []
        return lifecycle.all_attempts(jobs[0], rows.read_attempts(await self._ask("attempts", (id.bytes,))))

    async def _ask(self, name: str, parameters: Sequence[Any] = ()) -> str:
        await self.open()
        ((text,),) = await self._reader.read(lambda connection: connection.execute(statement(name), parameters))
        return str(text)


def _has_repeated(settlements: Sequence[Settlement]) -> bool:
    return len({each.id.int for each in settlements}) < len(settlements)


def _span_until(time: int | None, it: Transaction) -> timedelta | None:
    return None if time is None else timedelta(microseconds=max(time - it.microseconds, 0))
