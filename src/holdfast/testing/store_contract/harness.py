"""What a contract test is given: a store, its clock, and short ways to bring jobs into every state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

import msgspec
from msgspec.structs import replace

from holdfast.codec import fingerprint
from holdfast.ids import Ids
from holdfast.job import (
    Attempt,
    ClaimedJob,
    Failure,
    FailureKind,
    JobRecord,
    JobState,
    NewJob,
    counts_as_scheduled,
    counts_as_waiting,
)
from holdfast.lifecycle import Bury, Complete, GiveBack, Transition, Withdraw
from holdfast.store import Filter, NewWorker, QueueRecord, Retention, Settled, Settlement, Store
from holdfast.testing.clock import ManualClock

RETENTION: Final = Retention(completed="2h", cancelled="3h", idempotency="5h")
"""What the stores under test are made with: three different spans, so that none is taken for another."""

FAILURE: Final = Failure(FailureKind.ERROR, "shop.NoSuchOrder", "order 17 is gone", "Traceback …\n  line 2")
SECOND: Final = timedelta(seconds=1)


class SyncConnection(Protocol):
    """A connection of the caller's, in a transaction of its own: sqlite3's and psycopg's are such."""

    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class Harness:
    """A store under test.

    `make_another` makes a further, independent store object on the same database, with the same clock and
    retention. `connect` opens a synchronous connection of the user's to that database. Both are left out where
    there is no such thing; what needs them then runs on the one store object, or is skipped. `hints_travel` is False
    where hints don't reach other store objects, so that whoever waits there must look now and then.
    """

    store: Store
    clock: ManualClock
    make_another: Callable[[], Store] | None = None
    connect: Callable[[], SyncConnection] | None = None
    retention: Retention = RETENTION
    hints_travel: bool = True
    ids: Ids = field(init=False)
    _others: list[Store] = field(init=False, default_factory=list)
    _queues: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.ids = Ids(self.clock)

    def another(self) -> Store | None:
        """A second store object on the same database, or None where that is impossible."""
        if self.make_another is None:
            return None
        other = self.make_another()
        self._others.append(other)
        return other

    def pair(self) -> tuple[Store, Store]:
        """Two store objects on the same database, or twice the same one where there can be only one."""
        return self.store, self.another() or self.store

    def hearers(self) -> tuple[Store, Store]:
        """Those who must hear of what the store under test does: a pair, or twice that one."""
        return self.pair() if self.hints_travel else (self.store, self.store)

    async def close(self) -> None:
        for store in (*self._others, self.store):
            await store.close()

    # ── jobs that are to be ──────────────────────────────────────────────────────────────────────────────────────

    def new(self, args: Mapping[str, object] | None = None, **options: Any) -> NewJob:
        """A job with a fresh id and, if it has an idempotency key, with the fingerprint of its arguments."""
        text = msgspec.json.encode(args or {}).decode()
        settings: dict[str, Any] = {"id": self.ids.make(), "task": "task", "queue": "default", "args_json": text}
        if options.get("idempotency_key") is not None:
            settings["fingerprint"] = fingerprint(text)
        return NewJob(**(settings | options))

    def fresh_queue(self) -> str:
        self._queues += 1
        return f"queue-{self._queues}"

    async def enqueue(self, args: Mapping[str, object] | None = None, **options: Any) -> UUID:
        """Enqueue one job and return the id that the store answers with."""
        [answer] = await self.store.enqueue([self.new(args, **options)])
        return answer.id

    async def enqueue_many(self, count: int, **options: Any) -> list[UUID]:
        return [answer.id for answer in await self.store.enqueue([self.new(**options) for _ in range(count)])]

    # ── jobs in a state ──────────────────────────────────────────────────────────────────────────────────────────

    async def worker(self, name: str = "worker") -> UUID:
        """Register a worker and return its id."""
        worker = uuid4()
        await self.store.register(NewWorker(worker, name, host="host", pid=7, queues=("default",)))
        return worker

    async def worker_again(self, worker: UUID) -> None:
        """A worker that begins anew under the same id."""
        await self.store.register(NewWorker(worker, "worker", host="host", pid=7, queues=("default",)))

    async def claim(
        self, worker: UUID | None = None, demand: int | Mapping[str, int] = 1, queue: str = "default"
    ) -> list[ClaimedJob]:
        """Claim under a new token, for a new worker unless one is given."""
        wanted = demand if isinstance(demand, Mapping) else {queue: demand}
        return await self.store.claim(worker or await self.worker(), uuid4(), wanted)

    async def start(self, worker: UUID | None = None, **options: Any) -> ClaimedJob:
        """A job that runs; in a queue of its own unless one is given."""
        queue = options.setdefault("queue", self.fresh_queue())
        id = await self.enqueue(**options)
        [claimed] = await self.claim(worker, queue=queue)
        assert claimed.id == id, "start() needs a queue in which nothing else is ready"
        return claimed

    async def settle(self, claimed: ClaimedJob, transition: Transition) -> Settled:
        """As a worker does it: it knows from the claim what need not be looked up."""
        settlement = Settlement(claimed.id, claimed.token, transition, claimed.is_keyed, claimed.is_lined)
        [answer] = await self.store.settle([settlement])
        return answer

    async def ended(self, transition: Transition, **options: Any) -> UUID:
        """A job that ran once, and then this happened to it."""
        claimed = await self.start(**options)
        assert await self.settle(claimed, transition) is Settled.APPLIED
        return claimed.id

    async def completed(self, **options: Any) -> UUID:
        return await self.ended(Complete('"done"'), **options)

    async def cancelled(self, **options: Any) -> UUID:
        return await self.ended(Withdraw("not wanted"), **options)

    async def dead(self, **options: Any) -> UUID:
        return await self.ended(Bury(FAILURE), **options)

    async def in_every_state(self) -> dict[str, UUID]:
        """One job for each place where a job can stand."""
        hour = timedelta(hours=1)
        return {
            "ready": await self.enqueue(queue=self.fresh_queue()),
            "scheduled": await self.enqueue(queue=self.fresh_queue(), delay=hour),
            "given back": await self.ended(GiveBack()),
            "retrying": await self.ended(GiveBack(hour, is_charged=True, failure=FAILURE)),
            "active": (await self.start()).id,
            "completed": await self.completed(),
            "cancelled": await self.cancelled(),
            "dead": await self.dead(),
        }

    # ── what the store says ──────────────────────────────────────────────────────────────────────────────────────

    async def record(self, id: UUID, store: Store | None = None) -> JobRecord:
        [record] = await (store or self.store).get([id])
        return record

    async def state(self, id: UUID) -> JobState:
        return (await self.record(id)).state

    async def exists(self, id: UUID) -> bool:
        return bool(await self.store.get([id]))

    async def queue(self, name: str = "default") -> QueueRecord:
        return {queue.name: queue for queue in await self.store.queues()}[name]

    async def everything(self, filter: Filter | None = None) -> list[JobRecord]:
        """All jobs that pass the filter, page by page."""
        jobs: list[JobRecord] = []
        cursor: UUID | None = None
        while True:
            page = await self.store.page(filter or Filter(), cursor, limit=1000)
            jobs += page.jobs
            if page.next_cursor is None:
                return jobs
            assert cursor is None or page.next_cursor < cursor, "paging does not get on"
            cursor = page.next_cursor

    async def snapshot(self, ids: Iterable[UUID]) -> tuple[list[JobRecord], list[list[Attempt]], list[QueueRecord]]:
        """All that can be read of these jobs and of the queues, to be compared whole."""
        known = list(ids)
        records = await self.store.get(known)
        attempts = [await self.store.attempts(id) for id in known]
        return records, attempts, sorted(await self.store.queues(), key=lambda queue: queue.name)

    async def pass_time(self, span: str | timedelta) -> None:
        """Move the clock and do what has become due."""
        self.clock.advance(span)
        await self.store.tick()

    async def check_counters(self) -> None:
        """Each queue counts exactly the jobs that wait in it."""
        waiting: dict[str, int] = {}
        scheduled: dict[str, int] = {}
        for job in await self.everything():
            if counts_as_waiting(job.stage, job.attempt):
                waiting[job.queue] = waiting.get(job.queue, 0) + 1
            elif counts_as_scheduled(job.stage, job.attempt):
                scheduled[job.queue] = scheduled.get(job.queue, 0) + 1
        for queue in await self.store.queues():
            counted = (queue.waiting, queue.scheduled)
            assert counted == (waiting.pop(queue.name, 0), scheduled.pop(queue.name, 0)), queue.name
        assert not waiting, "jobs wait in a queue that does not exist"
        assert not scheduled, "jobs are scheduled in a queue that does not exist"


def placeless(record: JobRecord) -> JobRecord:
    """A record without its place: only the order of places means something, never their value."""
    return replace(record, place=0)


def ids_of(jobs: Sequence[JobRecord] | Sequence[ClaimedJob]) -> list[UUID]:
    return [job.id for job in jobs]
