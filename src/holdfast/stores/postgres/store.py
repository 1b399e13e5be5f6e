"""The PostgreSQL store: one database, any number of machines."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from holdfast import lifecycle
from holdfast.breaker import Admission, BreakerPolicy, BreakerRecord, BreakerReport
from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.gates import GateKind, GateRule
from holdfast.job import Attempt, ClaimedJob, JobRecord, NewJob
from holdfast.limits import LimitRecord
from holdfast.liveness import Sighting
from holdfast.moment import MICROSECOND, from_microseconds, to_microseconds
from holdfast.schedule import Fired, Firing, Plan, ScheduleRecord, TickRecord
from holdfast.store import (
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
    check_batch,
    check_bound,
    check_limit,
)
from holdfast.stores import decisions
from holdfast.stores.decisions import Changes
from holdfast.stores.postgres import breaking, explaining, rows, scheduling
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.beating import Beating
from holdfast.stores.postgres.claiming import Claiming
from holdfast.stores.postgres.connection import Record
from holdfast.stores.postgres.enqueuing import check_size
from holdfast.stores.postgres.faults import is_unreadable
from holdfast.stores.postgres.lending import Lending
from holdfast.stores.postgres.migrate import Migration, shipped_migrations
from holdfast.stores.postgres.office import Offices
from holdfast.stores.postgres.request import declared_bounds
from holdfast.stores.postgres.search import Search
from holdfast.stores.postgres.settling import settle_carefully
from holdfast.stores.postgres.statements import records_of, records_statement, statement
from holdfast.stores.postgres.transaction import Transaction
from holdfast.stores.postgres.work import PostgresWork
from holdfast.traffic import Departure

Result = TypeVar("Result")

_BATCH = 1000
_PRUNE_WINDOW = 5000
_FIRST_ID = UUID(int=0)


class PostgresStore:
    """Jobs in the schema `holdfast` of a PostgreSQL database. What must be on disk is, when a call returns."""

    def __init__(
        self,
        url: str | Address,
        *,
        clock: Clock | None = None,
        retention: Retention | None = None,
        queues: Sequence[Queue] = (),
        migrations: Sequence[Migration] | None = None,
    ) -> None:
        """Without a clock, time is told by the server. The bounds of `queues` hold even before they are declared."""
        self.address = url if isinstance(url, Address) else Address.parse(url)
        self._retention = retention or Retention()
        self._declared = declared_bounds({queue.name: queue for queue in queues})
        self._offices = Offices(self.address, migrations or shipped_migrations(), clock, self._retention.idempotency)
        self._start_anew()

    def _start_anew(self) -> None:
        self._lending = Lending(self._offices, self._declared)
        self._claiming = Claiming(self._offices.floors)
        self._beating = Beating(self.address.statement_timeout)
        self._prune_from = _FIRST_ID
        self._prune_lines_from = _FIRST_ID

    # ── lifetime ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        await self._offices.open()

    async def close(self) -> None:
        await self._offices.close()

    def abandon(self) -> None:
        self._offices.abandon()
        self._start_anew()

    async def _transact(
        self, work: Callable[[Transaction], Awaitable[Result]], *, is_repeatable: bool = True
    ) -> Result:
        office = await self._offices.here()
        return await office.transact(work, is_repeatable=is_repeatable)

    async def _fetch(self, sql: str, *values: Any) -> list[Record]:
        office = await self._offices.here()
        return await office.fetch(sql, *values)

    async def _change(self, name: str, *values: Any) -> None:
        await self._fetch(statement(name), *values)

    @property
    def _microseconds(self) -> int | None:
        """The time for a statement: None stands for the server's."""
        return self._offices.microseconds

    # ── hints ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def changes(self, kinds: Iterable[HintKind]) -> AsyncIterator[AsyncIterator[Hint]]:
        office = await self._offices.here()
        wanted = frozenset(kinds)
        async with self._offices.hub.subscribe(wanted) as hints, office.listener.listening(wanted):
            yield hints

    # ── enqueuing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, jobs: Sequence[NewJob], tx: object | None = None) -> list[Enqueued]:
        check_batch(len(jobs))
        check_size(jobs)
        if tx is not None:
            return await self._lending.aenqueue(tx, jobs)
        office = await self._offices.here()
        return await office.enqueuing.run(jobs)

    def enqueue_in(self, tx: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        check_batch(len(jobs))
        check_size(jobs)
        return self._lending.enqueue(tx, jobs)

    # ── claiming and settling ────────────────────────────────────────────────────────────────────────────────────────

    async def claim(
        self,
        worker: UUID,
        token: UUID,
        demand: Mapping[str, int],
        at_once: Mapping[str, int] | None = None,
        most_behind: int = 0,
    ) -> list[ClaimedJob]:
        office = await self._offices.here()
        return await office.own(self._claiming.claim(office, worker, token, demand, at_once, most_behind))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        check_batch(len(settlements))
        if not settlements:
            return []
        office = await self._offices.here()
        return await office.settling.run(settlements)

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def report_progress(self, reports: Sequence[ProgressReport]) -> None:
        check_batch(len(reports))
        if reports:
            await self._change("report_progress", *rows.progress_reports(reports), self._microseconds)

    async def progress(self, ids: Sequence[UUID]) -> dict[UUID, Progress]:
        check_batch(len(ids))
        return rows.progress(await self._fetch(statement("progress"), list(ids)))

    # ── the transactions of tasks ────────────────────────────────────────────────────────────────────────────────────

    async def open_work(self, job: UUID, timeout: timedelta) -> PostgresWork:
        office = await self._offices.here()
        return await office.works.open(job, timeout, lambda tx, jobs: self.enqueue(jobs, tx))

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def tick(self) -> Tick:
        # Mostly there is nothing to do, and every idle worker finds that out all the time: it is one look, no more.
        (ahead,) = await self._fetch(statement("next_due"))
        now = self._microseconds or ahead["now"]
        over = {name for name in ("due_at", "expires_at", "opens_at") if ahead[name] is not None and ahead[name] <= now}
        if not over:
            return Tick(0, 0, _span_until(_earliest(ahead), now), _span_until(ahead["opens_at"], now))
        return await self._tick(over)

    async def _tick(self, over: set[str]) -> Tick:
        """`over`: which of the times that next_due.sql tells have come. Each of them costs some statements."""

        async def work(it: Transaction) -> Tick:
            expired: list[JobRecord] = []
            ripened: dict[str, int] = {}
            if "expires_at" in over and (expired := await it.records("lock_expired", it.given_now, _BATCH)):
                await it.save(decisions.expire(expired, it.now))
            if "due_at" in over:
                ripened = {row["queue"]: row["number"] for row in await it.fetch("ripen", it.given_now, _BATCH)}
            if ripened:
                it.hint(HintKind.WORK, ripened)
                await it.fetch("know_queues", list(ripened))
            await it.finish()
            (ahead,) = await it.fetch("next_due")
            now = it.given_now or ahead["now"]
            if ahead["opens_at"] is not None and ahead["opens_at"] <= now:
                await it.ripen_gates(now, _BATCH)
                (ahead,) = await it.fetch("next_due")
            if not expired:
                await it.fetch("be_forgettable")  # what is lost in a crash is due again
            next_in, opens_in = _span_until(_earliest(ahead), now), _span_until(ahead["opens_at"], now)
            return Tick(sum(ripened.values()), len(expired), next_in, opens_in)

        return await self._transact(work)

    # ── steering ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[UUID], reason: str) -> dict[UUID, Ruling]:
        return await self._steer(ids, lambda job, now: lifecycle.cancel(job, reason, now))

    async def asked_to_stop(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        check_batch(len(ids))
        found = await self._fetch(statement("asked_to_stop"), list(ids))
        return {row[0]: row[1] for row in found}

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

        async def work(it: Transaction) -> dict[UUID, Ruling]:
            jobs = await it.lock(ids)
            watched = await it.watch_keys(jobs.values()) if takes_keys and jobs else None
            steering = decisions.steer(ids, jobs, lambda job: change(job, it.now), watched)
            await it.save(steering.changes)
            if steering.asked_to_stop:
                it.hint(HintKind.CANCEL, ids=steering.asked_to_stop)
            return steering.rulings

        # Done twice, it would seem to have come too late the second time.
        return await self._transact(work, is_repeatable=False)

    async def discard(self, ids: Sequence[UUID]) -> dict[UUID, Ruling]:
        check_batch(len(ids))

        async def work(it: Transaction) -> dict[UUID, Ruling]:
            jobs = await it.lock(ids)
            dead = [id for id, job in jobs.items() if lifecycle.may_discard(job)]
            lined = [(id, line) for id in dead if (line := jobs[id].line) is not None]
            it.depart(Departure(id, line, was_active=False, is_over=True) for id, line in lined)
            await it.fetch("delete", dead)
            return {id: Ruling(id in dead, jobs[id].state if id in jobs else None) for id in ids}

        return await self._transact(work, is_repeatable=False)

    async def unannounced(self, limit: int) -> list[JobRecord]:
        check_limit(limit)
        return [rows.record(row) for row in await self._fetch(records_statement("select_unannounced"), limit)]

    async def announced(self, jobs: Sequence[tuple[UUID, int]]) -> None:
        check_batch(len(jobs))
        told = sorted(dict.fromkeys(jobs))
        await self._change("announced", [id for id, _ in told], [generation for _, generation in told])

    async def prune(self, *, dead_before: datetime | None = None, batch: int = _BATCH) -> Pruned:
        now = self._offices.now() or from_microseconds((await self._fetch("select holdfast.now()"))[0][0])
        ends = (
            to_microseconds(now - self._retention.completed),
            to_microseconds(now - self._retention.cancelled),
            None if dead_before is None else to_microseconds(dead_before),
        )
        old, is_done = await self._find_old(ends, to_microseconds(now), batch)

        async def work(it: Transaction) -> Pruned:
            ((jobs, blocking, lines),) = await it.fetch("prune", old, *ends, to_microseconds(now))
            pairs = zip(blocking, lines, strict=True)
            it.depart(Departure(job, line, was_active=False, is_over=True) for job, line in pairs)
            ((keys,),) = await it.fetch("prune_keys", to_microseconds(now), batch)
            ((workers,),) = await it.fetch("prune_workers", to_microseconds(now - WORKER_RETENTION))
            return Pruned(jobs, keys, workers, is_done and keys < batch)

        pruned = await self._transact(work)
        self._prune_lines_from = await self._transact(lambda it: it.forget_lines(self._prune_lines_from, now))
        return pruned

    async def _find_old(self, ends: tuple[int, int, int | None], now: int, batch: int) -> tuple[list[UUID], bool]:
        """Go on where the last prune stopped, up to a batch or the end of what can be old, and then begin anew."""
        youngest = _id_at(max(end for end in ends if end is not None))
        old: list[UUID] = []
        while True:
            ((last, found),) = await self._fetch(
                statement("prunable"), self._prune_from, youngest, _PRUNE_WINDOW, *ends, now
            )
            if last is None:
                self._prune_from = _FIRST_ID
                return old, True
            old += islice(found, batch - len(old))
            if len(old) == batch:
                self._prune_from = old[-1]
                return old, False
            self._prune_from = last

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def register(self, worker: NewWorker) -> None:
        office = await self._offices.here()
        self._beating.forget(worker.id)

        async def work(it: Transaction) -> int:
            await it.fetch("lock_workers", [worker.id])
            # What an earlier life under this id still held, nobody runs any more.
            orphans = await it.records("lock_active_of_worker", worker.id)
            if orphans:
                await it.save(decisions.rescue(orphans, it.now))
            values = (worker.id, worker.name, worker.host, worker.pid, list(worker.queues))
            is_locked = office.reserved.holds(worker.id)
            ((now,),) = await it.fetch("register", *values, it.given_now, is_locked, list(worker.tasks))
            return int(now)

        async def whole() -> None:
            await office.reserved.hold(worker.id)
            self._beating.registered(worker.id, await office.transact(work))

        await office.own(whole())

    async def beat(self, worker: UUID, held: Held) -> Beaten:
        office = await self._offices.here()
        return await office.own(self._beating.beat(office, worker, held))

    async def sightings(self) -> list[Sighting]:
        office = await self._offices.here()
        found = await office.fetch(statement("sightings"))
        # After a restart of the server everybody's lock is free for a while: who has lost its own judges nobody by it.
        is_blind = office.reserved.is_cut_off
        given = self._microseconds
        return [
            Sighting(
                row["id"],
                row["beat"],
                timedelta(microseconds=(given or row["now"]) - row["beat_at"]),
                None if is_blind else row["is_locked"],
            )
            for row in found
        ]

    async def rescue(self, gone: Mapping[UUID, int]) -> list[UUID]:
        async def work(it: Transaction) -> list[UUID]:
            if gone:
                await it.fetch("lock_workers", list(gone))
                await it.fetch("declare_dead", list(gone), list(gone.values()), it.given_now)
            dead = [row["id"] for row in await it.fetch("lock_dead")]
            if not dead:
                return []
            await it.fetch("end_work", dead)
            return await self._rescue(it, dead)

        return await self._transact(work)

    async def bury_worker(self, worker: UUID, settlements: Sequence[Settlement] = ()) -> list[UUID]:
        check_batch(len(settlements))

        async def work(it: Transaction) -> list[UUID]:
            await it.fetch("lock_workers", [worker])
            await it.fetch("declare_dead", [worker], [-1], it.given_now)
            await it.fetch("end_work", [worker])
            await settle_carefully(it, settlements)
            rest = await it.records("lock_active_of_worker", worker)
            await it.save(decisions.depart(rest, it.now) if rest else Changes())
            await it.fetch("empty", [worker])
            return [job.id for job in rest]

        self._beating.forget(worker)
        return await self._part_from(worker, work)

    async def _rescue(self, it: Transaction, dead: Sequence[UUID]) -> list[UUID]:
        """Take over what dead workers hold, whose rows are locked; at most a batch."""
        orphans = await it.records("lock_orphans", dead, _BATCH)
        if orphans:
            await it.save(decisions.rescue(orphans, it.now))
        if len(orphans) < _BATCH:
            await it.fetch("empty", dead)
        return [job.id for job in orphans]

    async def depart(self, worker: UUID) -> list[UUID]:
        async def work(it: Transaction) -> list[UUID]:
            await it.fetch("lock_workers", [worker])
            held = await it.records("lock_active_of_worker", worker)
            if held:
                await it.save(decisions.depart(held, it.now))
            await it.fetch("depart", worker)
            return [job.id for job in held]

        self._beating.forget(worker)
        return await self._part_from(worker, work)

    async def _part_from(self, worker: UUID, work: Callable[[Transaction], Awaitable[list[UUID]]]) -> list[UUID]:
        """Do something after which this worker is no more, so that its lock is not needed either."""
        office = await self._offices.here()

        async def whole() -> list[UUID]:
            ids = await office.transact(work)
            await office.reserved.let_go(worker)
            return ids

        return await office.own(whole())

    async def quiet(self, worker: UUID) -> bool:
        if not await self._fetch(statement("quiet"), worker):
            return False
        office = await self._offices.here()
        office.pass_on([Hint(HintKind.CONTROL, ids=frozenset([worker]))])
        return True

    async def workers(self) -> list[WorkerRecord]:
        return [rows.worker(row) for row in await self._fetch(statement("workers"))]

    # ── queues and tasks ─────────────────────────────────────────────────────────────────────────────────────────────

    async def declare_queues(self, queues: Sequence[Queue]) -> None:
        names = [queue.name for queue in queues]
        bounds = [queue.bound for queue in queues], [queue.scheduled_bound for queue in queues]
        await self._change("declare_queues", names, *bounds)
        self._forget_bounds(names)

    def _forget_bounds(self, queues: Sequence[str]) -> None:
        self._offices.admission.forget(queues)
        self._lending.forget(queues)

    async def queues(self) -> list[QueueRecord]:
        return [rows.queue(row) for row in await self._fetch(statement("queues"))]

    async def busy_queues(self) -> list[str]:
        return [row["queue"] for row in await self._fetch(statement("busy_queues"))]

    async def pause(self, queue: str) -> None:
        await self._control(queue, "pause", self._microseconds)

    async def resume(self, queue: str) -> None:
        await self._control(queue, "resume")

    async def set_bound(self, queue: str, bound: int | None) -> None:
        await self._control(queue, "set_bound", None if bound is None else check_bound(bound, "bound"))

    async def _control(self, queue: str, name: str, *values: Any) -> None:
        await self._change(name, queue, *values)
        self._forget_bounds([queue])
        concerned = frozenset([queue])
        office = await self._offices.here()
        office.pass_on([Hint(HintKind.CONTROL, concerned), Hint(HintKind.ROOM, concerned)])

    async def publish_tasks(self, definitions: Sequence[TaskDefinition], code_age: timedelta | None = None) -> None:
        names = [definition.name for definition in definitions]
        texts = [msgspec.json.encode(definition, order="deterministic").decode() for definition in definitions]
        age = None if code_age is None else code_age // MICROSECOND
        await self._change("publish_tasks", names, texts, self._microseconds, age)

    async def tasks(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        published = [rows.task(row) for row in await self._fetch(statement("tasks"))]
        if names is None:
            return published
        wanted = set(names)
        return [task for task in published if wanted & {task.definition.name, *task.definition.aliases}]

    # ── schedules ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def declare_schedules(self, plans: Mapping[str, Plan], code_age: timedelta | None = None) -> None:
        if plans:
            await self._transact(lambda it: scheduling.declare(it, plans, code_age))

    async def schedules(self, names: Sequence[str] | None = None) -> list[ScheduleRecord]:
        wanted = None if names is None else list(names)
        return scheduling.records(await self._fetch(statement("schedules"), wanted))

    async def change_schedule(self, name: str, change: ScheduleChange) -> ScheduleRecord | None:
        # Done twice, it might be refused the second time.
        return await self._transact(lambda it: scheduling.change(it, name, change), is_repeatable=False)

    async def due_schedules(self, limit: int) -> DueSchedules:
        (row,) = await self._fetch(statement("due_schedules"), self._microseconds, check_limit(limit))
        return scheduling.due(row)

    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        jobs = [new for firing in firings for new in firing.jobs]
        check_batch(len(jobs))
        check_size(jobs)
        return await self._transact(lambda it: scheduling.fire(it, firings)) if firings else []

    async def ticks(self, schedule: str, limit: int = 20) -> list[TickRecord]:
        return scheduling.ticks(await self._fetch(statement("ticks"), schedule, check_limit(limit)))

    # ── limits, and why jobs wait ────────────────────────────────────────────────────────────────────────────────────

    async def limits(
        self, name: str | None = None, kind: GateKind | None = None, key: str | None = None, limit: int = 100
    ) -> list[LimitRecord]:
        wanted = name, None if kind is None else int(kind), key, check_limit(limit)
        return explaining.limits(await self._fetch(statement("limits"), *wanted, MOST_WAITING, self._microseconds))

    async def override_limit(self, rule: GateRule, most: int | None, *, makes: bool = True) -> LimitRecord | None:
        return await self._transact(lambda it: explaining.override(it, rule, most, makes=makes))

    async def circumstances(self, id: UUID) -> Circumstances | None:
        found = await self._fetch(statement("circumstances"), [id], self._microseconds, MOST_AHEAD)
        return explaining.circumstances(found[0]) if found else None

    # ── breakers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def declare_breakers(
        self, policies: Mapping[str, BreakerPolicy], code_age: timedelta | None = None
    ) -> list[BreakerRecord]:
        return await self._transact(lambda it: breaking.declare(it, policies, code_age)) if policies else []

    async def breakers(self, names: Sequence[str] | None = None) -> list[BreakerRecord]:
        wanted = None if names is None else list(names)
        return breaking.records(await self._fetch(statement("breakers"), wanted, self._microseconds))

    async def enter_breaker(self, name: str, id: UUID) -> Admission:
        return await self._transact(lambda it: breaking.enter(it, name, id))

    async def report_breakers(self, reports: Sequence[BreakerReport]) -> list[BreakerRecord]:
        check_batch(len(reports))
        # Done twice, failures would count twice.
        return await self._transact(lambda it: breaking.report(it, reports), is_repeatable=False) if reports else []

    async def change_breaker(self, name: str, change: BreakerChange) -> BreakerRecord:
        return await self._transact(lambda it: breaking.change(it, name, change), is_repeatable=False)

    async def let_pass(self, breaker: str, limit: int) -> int:
        check_limit(limit)

        async def work(it: Transaction) -> int:
            behind = await breaking.behind(it, breaker, limit)
            await it.save(Changes([(job, lifecycle.run_now(job, it.now) or job) for job in behind]))
            return len(behind)

        return await self._transact(work)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[UUID]) -> list[JobRecord]:
        return await self._read_by_id("select_by_id", ids)

    async def finished(self, ids: Sequence[UUID]) -> list[JobRecord]:
        return await self._read_by_id("select_finished", ids)

    async def _read_by_id(self, selection: str, ids: Sequence[UUID]) -> list[JobRecord]:
        check_batch(len(ids))
        found = await self._fetch(records_statement(selection), list(ids))
        jobs = {job.id: job for job in map(rows.record, found)}
        return [jobs[id] for id in ids if id in jobs]

    async def page(self, filter: Filter, cursor: UUID | None = None, limit: int = 50) -> Page:
        check_limit(limit)
        found = [
            rows.record(row)
            for row in await self._search(filter, lambda search: records_of(search.page(limit + 1)), cursor)
        ]
        return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)

    async def count(self, filter: Filter) -> int:
        ((number,),) = await self._search(filter, Search.count)
        return int(number)

    async def _search(self, filter: Filter, ask: Callable[[Search], str], cursor: UUID | None = None) -> list[Record]:
        """What is asked of the jobs that the filter lets through. Arguments that can't be read match nothing."""
        search = Search(filter, cursor)
        sql = ask(search)
        try:
            return await self._fetch(sql, *search.values)
        except HoldfastError as error:
            if not filter.args or not is_unreadable(error.__cause__):
                raise
        search = Search(filter, cursor, is_wary=True)
        sql = ask(search)
        return await self._fetch(sql, *search.values)

    async def attempts(self, id: UUID) -> list[Attempt]:
        jobs = await self.get([id])
        if not jobs:
            return []
        return lifecycle.all_attempts(jobs[0], rows.attempts(await self._fetch(statement("attempts"), id)))


def _earliest(ahead: Record) -> int | None:
    """When somebody's time comes, or a gate opens."""
    return min((time for time in (ahead["due_at"], ahead["opens_at"]) if time is not None), default=None)


def _span_until(time: int | None, now: int) -> timedelta | None:
    return None if time is None else timedelta(microseconds=max(time - now, 0))


def _id_at(microseconds: int) -> UUID:
    """The first id that could be made at this time: one that is smaller was made before it."""
    return UUID(int=max(microseconds // 1000, 0) << 80)
