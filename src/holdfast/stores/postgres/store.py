"""The PostgreSQL store: one database, any number of machines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID, uuid4

import asyncpg
import msgspec

from holdfast import lifecycle, native
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, WorkerDeclaredDead, WrongDatabase
from holdfast.job import Attempt, ClaimedJob, JobRecord, NewJob, Stage
from holdfast.lifecycle import Complete
from holdfast.liveness import Sighting
from holdfast.moment import MICROSECOND, from_microseconds, to_microseconds
from holdfast.portal import Portal
from holdfast.store import (
    WORKER_RETENTION,
    Beaten,
    Enqueued,
    Filter,
    Held,
    Hint,
    HintKind,
    NewWorker,
    Page,
    Pruned,
    PublishedTask,
    Queue,
    QueueRecord,
    Retention,
    Ruling,
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
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.admission import Admission
from holdfast.stores.postgres.branch import PATIENCE, Branch
from holdfast.stores.postgres.connection import Connection, Record, connect, connect_raw, is_behind_a_pooler
from holdfast.stores.postgres.drivers import borrow
from holdfast.stores.postgres.enqueuing import Enqueuing, check_size
from holdfast.stores.postgres.faults import Fault, judge, translate
from holdfast.stores.postgres.floors import Floors, Snapshot, lane_number
from holdfast.stores.postgres.lanes import Call, Lane
from holdfast.stores.postgres.migrate import Migration, migrate, shipped_migrations
from holdfast.stores.postgres.notices import Listener, Messenger
from holdfast.stores.postgres.pool import Pool
from holdfast.stores.postgres.request import Options, Request, declared_bounds
from holdfast.stores.postgres.reserved import Reserved
from holdfast.stores.postgres.search import Search
from holdfast.stores.postgres.statements import records_of, records_statement, statement
from holdfast.stores.postgres.transaction import Transaction

Result = TypeVar("Result")

_BATCH = 1000
_PRUNE_WINDOW = 5000
_FIRST_ID = UUID(int=0)


class _Office(Branch):
    """One event loop's branch, with all that stands on its connections."""

    enqueuing: Enqueuing
    settling: Lane[Settlement, Settled]
    messenger: Messenger
    listener: Listener
    reserved: Reserved
    keeper: AsyncGenerator[None, None]


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
        self._clock = clock
        self._retention = retention or Retention()
        self._migrations = list(migrations or shipped_migrations())
        self._declared = declared_bounds({queue.name: queue for queue in queues})
        # In microseconds, with plenty to spare: statements don't run for longer than that.
        self._longest_claim = round((2 * self.address.statement_timeout + 60) * 1_000_000)
        self._start_anew()

    def _start_anew(self) -> None:
        self._sender = uuid4()
        self._hub = HintHub()
        self._admission = Admission()
        self._floors = Floors()
        self._offices: dict[asyncio.AbstractEventLoop, _Office] = {}
        self._instance: UUID | None = None
        self._is_pooled = False
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self._lock = native.make_lock()
        self._prune_from = _FIRST_ID
        self._known_queues: set[str] = set()
        self._beats: dict[UUID, _LastBeat] = {}

    # ── lifetime ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        if self._instance is None:
            async with self._opening.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                if self._instance is None:
                    await _finished(self._open())

    async def _open(self) -> None:
        """Find out what is there, and bring it up to date."""
        raw = await self._first_connection()
        try:
            self._is_pooled = await is_behind_a_pooler(raw)
            await migrate(raw, self._migrations, lambda: connect_raw(self.address, statement_cache=0))
            async with raw.transaction():
                self._instance = await raw.fetchval("select id from holdfast.instance")
        except Exception as error:
            raise translate(error, self._where) from error
        finally:
            with contextlib.suppress(Exception):
                await raw.close(timeout=2)
            if not raw.is_closed():
                raw.terminate()

    async def _first_connection(self) -> asyncpg.Connection[Record]:
        """Connect, waiting for a server that is just being restarted."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while True:
            try:
                return await connect_raw(self.address, statement_cache=0)
            except Exception as error:
                if judge(error) is Fault.FINAL or loop.time() > deadline:
                    raise translate(error, self._where) from error
            await asyncio.sleep(0.2)

    @property
    def _where(self) -> str:
        return "PostgreSQL"

    async def close(self) -> None:
        here = asyncio.get_running_loop()
        with self._lock:
            offices, self._offices = self._offices, {}
            self._opening = {}
        for loop, office in offices.items():
            if loop is here:
                await self._close_office(office)
            elif loop.is_running():
                future = asyncio.run_coroutine_threadsafe(self._close_office(office), loop)
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(asyncio.wrap_future(future), 5)
            # The connections of a loop that runs no more have gone with it.

    async def _close_office(self, office: _Office) -> None:
        await office.enqueuing.drain()
        await office.settling.drain()
        await office.messenger.drain()
        await office.listener.stop()
        await office.reserved.close()
        await office.close()

    def abandon(self) -> None:
        _abandoned.append(self._offices)
        self._start_anew()

    async def _office(self) -> _Office:
        await self.open()
        loop = asyncio.get_running_loop()
        office = self._offices.get(loop)
        if office is None:
            with self._lock:
                _abandoned.extend(self._offices.pop(other) for other in list(self._offices) if other.is_closed())
                office = self._offices[loop] = self._make_office()
            office.keeper = self._keep(loop, office)
            await anext(office.keeper)
        return office

    async def _keep(self, loop: asyncio.AbstractEventLoop, office: _Office) -> AsyncGenerator[None, None]:
        """An event loop that comes to its end finishes its generators first: then this closes its connections."""
        try:
            yield
        finally:
            if self._offices.get(loop) is office:
                del self._offices[loop]
                await self._close_office(office)

    def _make_office(self) -> _Office:
        pool = Pool(lambda: connect(self.address, is_pooled=self._is_pooled), self.address.pool_size)
        office = _Office(pool, self._where, self._floors.forget)
        office.messenger = Messenger(self._sender, lambda work: office.run(work, replay=work))
        office.listener = Listener(self._sender, self._hub, self._connect_for_a_session)
        office.reserved = Reserved(self._connect_for_a_session, lambda ids, held: self._tell_lock(office, ids, held))
        office.enqueuing = Enqueuing(office, self._admission, lambda hints: self._pass_on(office, hints), self._options)
        office.settling = Lane(lambda calls: self._flush_settlements(office, calls))
        return office

    async def _connect_for_a_session(self) -> Connection | None:
        """A connection to keep: for a lock, or to listen. Behind a pooler there is no such thing."""
        if self._is_pooled:
            return None
        return await connect(self.address, is_pooled=False, is_watched=True)

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _transact(
        self, work: Callable[[Transaction], Awaitable[Result]], *, is_repeatable: bool = True
    ) -> Result:
        """Do something in a transaction of its own. `is_repeatable`: done twice, it comes to the same."""
        office = await self._office()

        async def attempt(connection: Connection) -> tuple[Result, list[Hint]]:
            transaction = Transaction(connection, self._now(), self._retention.idempotency)
            async with connection.transaction():
                result = await work(transaction)
            return result, transaction.hints

        async def whole() -> Result:
            result, hints = await office.run(attempt, replay=attempt if is_repeatable else None)
            self._pass_on(office, hints)
            return result

        return await office.own(whole())

    async def _fetch(self, sql: str, *values: Any) -> list[Record]:
        """Run one statement that does no harm if it is done twice."""
        office = await self._office()

        async def work(connection: Connection) -> list[Record]:
            return await connection.fetch(sql, *values)

        return await office.own(office.run(work, replay=work))

    async def _change(self, name: str, *values: Any) -> None:
        await self._fetch(statement(name), *values)

    def _now(self) -> datetime | None:
        return None if self._clock is None else self._clock.now()

    @property
    def _microseconds(self) -> int | None:
        """The time for a statement: None stands for the server's."""
        return None if self._clock is None else to_microseconds(self._clock.now())

    # ── hints ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def changes(self, kinds: Iterable[HintKind]) -> AsyncIterator[AsyncIterator[Hint]]:
        office = await self._office()
        async with self._hub.subscribe(kinds) as hints, office.listener.listening():
            yield hints

    def _pass_on(self, office: _Office, hints: Sequence[Hint]) -> None:
        if hints:
            self._hub.publish(hints)
            office.messenger.send(hints)

    # ── enqueuing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, jobs: Sequence[NewJob], tx: object | None = None) -> list[Enqueued]:
        check_batch(len(jobs))
        check_size(jobs)
        if tx is not None:
            borrowed, request = borrow(tx), Request([jobs])
            await self.open()
            if request.is_empty:
                return _only(request.unasked().calls)
            answer = await borrowed.aenqueue(request.jobs(), request.options(self._options(is_borrowed=True)))
            return self._read(request, answer)
        office = await self._office()
        return await office.enqueuing.run(jobs)

    def enqueue_in(self, tx: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        check_batch(len(jobs))
        check_size(jobs)
        borrowed, request = borrow(tx), Request([jobs])
        if self._instance is None:
            self._open_from_outside()
        if request.is_empty:
            return _only(request.unasked().calls)
        return self._read(request, borrowed.enqueue(request.jobs(), request.options(self._options(is_borrowed=True))))

    def _open_from_outside(self) -> None:
        """For a synchronous caller: find out which instance this is, on a connection and a loop of our own."""
        portal = Portal()
        try:
            portal.run(self.open(), "aenqueue")
        finally:
            portal.close()

    def _options(self, *, is_borrowed: bool = False) -> Options:
        """In a transaction of the caller's, it must be our database, and the code's bounds hold already."""
        if not is_borrowed:
            return Options(now=self._microseconds)
        return Options(instance=self._instance, now=self._microseconds, declared=self._declared)

    def _read(self, request: Request, answer: str) -> list[Enqueued]:
        try:
            return _only(request.read(answer).calls)
        except WrongDatabase:
            raise WrongDatabase from None

    # ── claiming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def claim(self, worker: UUID, token: UUID, demand: Mapping[str, int]) -> list[ClaimedJob]:
        office = await self._office()
        wanted = {queue: min(slots, _BATCH * 10) for queue, slots in demand.items() if slots > 0}

        async def work(connection: Connection) -> list[ClaimedJob]:
            return await self._claim(office, connection, worker, token, wanted)

        async def replay(connection: Connection) -> list[ClaimedJob]:
            before = await connection.fetch(statement("claimed"), worker, token)
            return rows.claims(before) or await work(connection)

        return await office.own(
            office.run(work, replay=replay, advice="The next heartbeat gives back what was claimed.")
        )

    async def _claim(
        self, office: _Office, connection: Connection, worker: UUID, token: UUID, demand: Mapping[str, int]
    ) -> list[ClaimedJob]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        looks = {queue: self._floors.of(queue).look(started) for queue in demand}
        found = await connection.fetch(
            statement("claim"),
            worker,
            token,
            list(demand),
            list(demand.values()),
            [place for look in looks.values() for place in look.places],
            self._microseconds,
        )
        if not found:
            raise WorkerDeclaredDead
        snapshot = Snapshot(found[0]["oldest_transaction"], found[0]["next_transaction"])
        taken = found if found[0]["id"] is not None else []
        for queue, look in looks.items():
            if queue in found[0]["paused"]:
                continue  # it was not looked at
            floors = self._floors.of(queue)
            places = ((lane_number(row[4], row[19]), row[20]) for row in taken if row[3] == queue)
            floors.learn(look, places, demand[queue], snapshot)
            if look.is_sweep:
                floors.swept(started, loop.time())
        if taken:
            await self._look_after(office, connection, {row[3] for row in taken}, taken[0]["nearly_full"])
        return rows.claims(taken)

    async def _look_after(
        self, office: _Office, connection: Connection, queues: set[str], nearly_full: Sequence[str]
    ) -> None:
        """Jobs were taken from these queues."""
        full = queues.intersection(nearly_full)
        if full:
            self._pass_on(office, [Hint(HintKind.ROOM, frozenset(full))])
        unknown = queues - self._known_queues
        if unknown:
            # In a transaction of a user's, a queue is filled before anybody has heard of it.
            await connection.execute(statement("know_queues"), list(unknown))
            self._known_queues |= unknown

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        check_batch(len(settlements))
        if not settlements:
            return []
        office = await self._office()
        return await office.settling.run(settlements)

    async def _flush_settlements(self, office: _Office, calls: list[Call[Settlement, Settled]]) -> None:
        settlements = [settlement for call in calls for settlement in call.items]
        answers = await self._settle(office, settlements)
        first = 0
        for call in calls:
            call.answer(answers[first : first + len(call.items)])
            first += len(call.items)

    async def _settle(self, office: _Office, settlements: Sequence[Settlement]) -> list[Settled]:
        done = [each for each in settlements if isinstance(each.transition, Complete)]
        is_simple = len(done) == len(settlements) and len({each.id for each in settlements}) == len(settlements)

        async def complete(connection: Connection) -> set[UUID]:
            """Those that were completed. What is not among them is stale, or was done before."""
            missed = await connection.fetch_value(
                statement("complete"),
                [each.id for each in done],
                [each.token for each in done],
                [each.transition.result_json for each in done if isinstance(each.transition, Complete)],
                [each.id for each in done if each.is_keyed],
                self._microseconds,
                self._retention.idempotency // MICROSECOND,
            )
            return {each.id for each in done} if missed is None else set(missed)

        async def nothing(_: Connection) -> set[UUID]:
            return set()

        advice = "Settle it again: what was done is recognised."
        completed: set[UUID] = set()
        if is_simple:
            completed = await office.run(complete, replay=nothing, advice=advice)
            if completed:
                self._pass_on(office, [Hint(HintKind.FINISHED, ids=frozenset(completed))])
            if len(completed) == len(settlements):
                return [Settled.APPLIED] * len(settlements)
        left = [each for each in settlements if each.id not in completed]

        async def carefully(it: Transaction) -> list[Settled]:
            return await self._settle_carefully(it, left)

        answers = iter(await self._transact(carefully))
        return [Settled.APPLIED if each.id in completed else next(answers) for each in settlements]

    async def _settle_carefully(self, it: Transaction, settlements: Sequence[Settlement]) -> list[Settled]:
        jobs = await it.lock([settlement.id for settlement in settlements])
        answers, ended = decisions.judge_settlements(settlements, jobs)
        if ended:
            await it.save(decisions.end(ended, it.now))
        return answers

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def tick(self) -> Tick:
        async def work(it: Transaction) -> Tick:
            expired = await it.records("lock_expired", it.given_now, _BATCH)
            if expired:
                await it.save(decisions.expire(expired, it.now))
            ripened = {row["queue"]: row["number"] for row in await it.fetch("ripen", it.given_now, _BATCH)}
            if ripened:
                it.hint(HintKind.WORK, ripened)
                await it.fetch("know_queues", list(ripened))
            ((due_at, now),) = await it.fetch("next_due")
            now = it.given_now or now
            next_in = None if due_at is None else timedelta(microseconds=max(due_at - now, 0))
            return Tick(sum(ripened.values()), len(expired), next_in)

        return await self._transact(work)

    # ── steering ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[UUID], reason: str) -> dict[UUID, Ruling]:
        return await self._steer(ids, lambda job, now: lifecycle.cancel(job, reason, now))

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
            if takes_keys:
                await it.watch_keys(jobs.values())
                steering = decisions.steer(ids, jobs, lambda job: change(job, it.now), it.rival, it.reopen_keys)
            else:
                steering = decisions.steer(ids, jobs, lambda job: change(job, it.now))
            await it.save(Changes(steering.pairs))
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
            await it.fetch("delete", dead)
            return {id: Ruling(id in dead, jobs[id].state if id in jobs else None) for id in ids}

        return await self._transact(work, is_repeatable=False)

    async def prune(self, *, dead_before: datetime | None = None, batch: int = _BATCH) -> Pruned:
        now = self._now() or from_microseconds((await self._fetch("select holdfast.now()"))[0][0])
        ends = (
            to_microseconds(now - self._retention.completed),
            to_microseconds(now - self._retention.cancelled),
            None if dead_before is None else to_microseconds(dead_before),
        )
        old, is_done = await self._find_old(ends, to_microseconds(now), batch)

        async def work(it: Transaction) -> Pruned:
            ((jobs,),) = await it.fetch("prune", old, *ends, to_microseconds(now))
            ((keys,),) = await it.fetch("prune_keys", to_microseconds(now), batch)
            ((workers,),) = await it.fetch("prune_workers", to_microseconds(now - WORKER_RETENTION))
            return Pruned(jobs, keys, workers, is_done and keys < batch)

        return await self._transact(work)

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
        office = await self._office()
        is_locked = await office.own(office.reserved.hold(worker.id))

        self._beats.pop(worker.id, None)

        async def work(it: Transaction) -> None:
            await it.fetch("lock_workers", [worker.id])
            # What an earlier life under this id still held, nobody runs any more.
            orphans = await it.records("lock_active_of_worker", worker.id)
            if orphans:
                await it.save(decisions.rescue(orphans, it.now))
            values = (worker.id, worker.name, worker.host, worker.pid, list(worker.queues))
            await it.fetch("register", *values, it.given_now, is_locked)

        await self._transact(work)

    async def beat(self, worker: UUID, held: Held) -> Beaten:
        office = await self._office()
        return await office.own(self._beat(office, worker, held))

    async def _beat(self, office: _Office, worker: UUID, held: Held) -> Beaten:
        async def work(connection: Connection) -> list[Record]:
            return await connection.fetch(statement("beat"), worker, self._microseconds, office.reserved.holds(worker))

        try:
            beaten = await office.reserved.run(work)
        except Exception:
            beaten = await office.run(work, replay=work)
        if not beaten:
            self._beats.pop(worker, None)
            return Beaten(is_alive=False, taken=list(held.jobs))
        before = self._beats.get(worker, _LastBeat())
        found = await self._fetch(statement("held"), worker, [*before.held | held.jobs.keys()], before.looked_from)
        mine = [_HeldRow(*row) for row in found]
        compared = decisions.compare(mine, held)
        released = await self._release(worker, held, compared.unheld) if compared.unheld else []
        # What it awaits may be given up an hour later, so that is remembered like what it holds.
        known = held.jobs.keys() | {job.id for job in mine}
        self._beats[worker] = _LastBeat(beaten[0]["beat_at"] - self._longest_claim, frozenset(known))
        return Beaten(True, compared.taken, compared.cancelled, released)

    async def _release(self, worker: UUID, held: Held, unheld: Sequence[UUID]) -> list[UUID]:
        """Give back what the worker does not know of, if it is still so."""

        async def work(it: Transaction) -> list[UUID]:
            jobs = await it.lock(unheld)
            mine = [
                job
                for job in jobs.values()
                if job.worker == worker
                and job.stage is Stage.ACTIVE
                and held.jobs.get(job.id) != job.token
                and job.token not in held.claiming
            ]
            if mine:
                await it.save(decisions.release(mine, it.now))
            return [job.id for job in mine]

        return await self._transact(work)

    async def _tell_lock(self, office: _Office, workers: list[UUID], is_held: bool) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(statement("tell_lock"), workers, is_held, self._microseconds)

        await office.run(work, replay=work)

    async def sightings(self) -> list[Sighting]:
        found = await self._fetch(statement("sightings"))
        given = self._microseconds
        return [
            Sighting(
                row["id"],
                row["beat"],
                timedelta(microseconds=(given or row["now"]) - row["beat_at"]),
                row["is_locked"],
            )
            for row in found
        ]

    async def rescue(self, gone: Mapping[UUID, int]) -> list[UUID]:
        async def work(it: Transaction) -> list[UUID]:
            if gone:
                await it.fetch("lock_workers", list(gone))
                await it.fetch("declare_dead", list(gone), list(gone.values()), it.given_now)
            dead = [row["id"] for row in await it.fetch("lock_dead")]
            return await self._rescue(it, dead) if dead else []

        return await self._transact(work)

    async def bury_worker(self, worker: UUID, settlements: Sequence[Settlement] = ()) -> list[UUID]:
        check_batch(len(settlements))

        async def work(it: Transaction) -> list[UUID]:
            await it.fetch("lock_workers", [worker])
            await it.fetch("declare_dead", [worker], [-1], it.given_now)
            await self._settle_carefully(it, settlements)
            return await self._rescue(it, [worker])

        rescued = await self._transact(work)
        await self._let_go(worker)
        return rescued

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

        released = await self._transact(work)
        self._beats.pop(worker, None)
        await self._let_go(worker)
        return released

    async def _let_go(self, worker: UUID) -> None:
        office = await self._office()
        await office.own(office.reserved.let_go(worker))

    async def workers(self) -> list[WorkerRecord]:
        return [rows.worker(row) for row in await self._fetch(statement("workers"))]

    # ── queues and tasks ─────────────────────────────────────────────────────────────────────────────────────────────

    async def declare_queues(self, queues: Sequence[Queue]) -> None:
        names = [queue.name for queue in queues]
        bounds = [queue.bound for queue in queues], [queue.scheduled_bound for queue in queues]
        await self._change("declare_queues", names, *bounds)
        self._admission.forget(names)

    async def queues(self) -> list[QueueRecord]:
        return [rows.queue(row) for row in await self._fetch(statement("queues"))]

    async def pause(self, queue: str) -> None:
        await self._control(queue, "pause", self._microseconds)

    async def resume(self, queue: str) -> None:
        await self._control(queue, "resume")

    async def set_bound(self, queue: str, bound: int | None) -> None:
        await self._control(queue, "set_bound", None if bound is None else check_bound(bound, "bound"))

    async def _control(self, queue: str, name: str, *values: Any) -> None:
        await self._change(name, queue, *values)
        self._admission.forget([queue])
        concerned = frozenset([queue])
        self._pass_on(await self._office(), [Hint(HintKind.CONTROL, concerned), Hint(HintKind.ROOM, concerned)])

    async def publish_tasks(self, definitions: Sequence[TaskDefinition]) -> None:
        texts = [msgspec.json.encode(definition, order="deterministic").decode() for definition in definitions]
        await self._change("publish_tasks", [definition.name for definition in definitions], texts, self._microseconds)

    async def tasks(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        published = [rows.task(row) for row in await self._fetch(statement("tasks"))]
        if names is None:
            return published
        wanted = set(names)
        return [task for task in published if wanted & {task.definition.name, *task.definition.aliases}]

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
        search = Search(filter, cursor)
        sql = records_of(search.page(limit + 1))
        found = [rows.record(row) for row in await self._fetch(sql, *search.values)]
        return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)

    async def count(self, filter: Filter) -> int:
        search = Search(filter)
        ((number,),) = await self._fetch(search.count(), *search.values)
        return int(number)

    async def attempts(self, id: UUID) -> list[Attempt]:
        jobs = await self.get([id])
        if not jobs:
            return []
        return lifecycle.all_attempts(jobs[0], rows.attempts(await self._fetch(statement("attempts"), id)))


_abandoned: list[object] = []
"""Connections that a forked child has from its parent, or that a closed loop has left: collecting them would
disturb those who still use them, or complain."""


class _LastBeat(msgspec.Struct, frozen=True):
    """What a worker held or awaited at its last beat. All else that it can hold, it was given since `looked_from`."""

    looked_from: int = 0
    held: frozenset[UUID] = frozenset()


class _HeldRow(msgspec.Struct, frozen=True):
    id: UUID
    token: UUID | None
    cancel_requested_at: int | None


def _id_at(microseconds: int) -> UUID:
    """The first id that could be made at this time: one that is smaller was made before it."""
    return UUID(int=max(microseconds // 1000, 0) << 80)


def _only(calls: Sequence[list[Enqueued] | HoldfastError]) -> list[Enqueued]:
    (answer,) = calls
    if isinstance(answer, HoldfastError):
        raise answer
    return answer


async def _finished(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, also if the caller is cancelled meanwhile."""
    task = asyncio.create_task(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
