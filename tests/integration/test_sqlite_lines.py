"""Lines in a SQLite file: what nobody needs any more leaves nothing behind, and what is remembered is still true."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from holdfast.errors import StoreError
from holdfast.gates import GateKind, GateRule, LineRule
from holdfast.ids import Ids
from holdfast.job import ClaimedJob, NewJob
from holdfast.lifecycle import Complete
from holdfast.moment import to_microseconds
from holdfast.store import NewWorker, Settlement
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.migrate import shipped_migrations
from holdfast.stores.sqlite.session import Operation
from holdfast.stores.sqlite.transaction import Transaction
from holdfast.testing import ManualClock
from holdfast.turns import Bounds


async def test_a_thousand_keys_leave_nothing_behind(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "jobs.db"
    store = SqliteStore(path, clock=clock)
    try:
        ids, worker = Ids(clock), uuid4()
        await store.register(NewWorker(worker, "worker"))
        rules = [
            LineRule(
                (
                    GateRule(GateKind.ORDER, "task", str(key)),
                    GateRule(GateKind.RATE, "task", str(key % 50), 1000, 1_000_000),
                    GateRule(GateKind.FAIR, "", str(key % 10)),
                )
            )
            for key in range(1000)
        ]
        await store.enqueue([NewJob(ids.make(), "task", "default", "{}", line=rule) for rule in rules])
        claimed = await store.claim(worker, uuid4(), {"default": 1000})
        assert len(claimed) == 1000
        assert _count(path) == (1000, 1060)
        await store.settle([Settlement(job.id, job.token, Complete()) for job in claimed])
        await store.claim(worker, uuid4(), {"default": 1000})  # finds that they are empty, and closes them
        clock.advance("48h")
        for _ in range(6):
            await store.prune()
        assert _count(path) == (0, 0)
    finally:
        await store.close()


def _count(path: Path) -> tuple[int, int]:
    with sqlite3.connect(path) as connection:
        (lines,) = connection.execute("select count(*) from holdfast_lines").fetchone()
        (gates,) = connection.execute("select count(*) from holdfast_gates").fetchone()
    return lines, gates


# ── two processes on one file ────────────────────────────────────────────────────────────────────────────────────────


class Process:
    """A store of its own on the file, as another process would have it."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self.store = SqliteStore(path, clock=clock)
        self._ids = Ids(clock)
        self._worker = uuid4()

    async def start(self) -> None:
        await self.store.register(NewWorker(self._worker, "worker"))

    def job(self, rule: LineRule, delay: timedelta | None = None) -> NewJob:
        return NewJob(self._ids.make(), "task", "default", "{}", line=rule, delay=delay)

    async def enqueue(self, rule: LineRule) -> UUID:
        (enqueued,) = await self.store.enqueue([self.job(rule)])
        return enqueued.id

    async def claim(self, slots: int = 10, most_behind: int = 0) -> list[ClaimedJob]:
        return await self.store.claim(self._worker, uuid4(), {"default": slots}, None, most_behind)

    async def settle(self, jobs: list[ClaimedJob]) -> None:
        await self.store.settle([Settlement(job.id, job.token, Complete()) for job in jobs])

    async def know(self, *rules: LineRule) -> None:
        """Do with these lines all there is to do, until everything about them that can be remembered is."""
        for _ in range(3):
            for rule in rules:
                await self.enqueue(rule)
            while claimed := await self.claim():
                await self.settle(claimed)

    async def line_of(self, job: UUID) -> UUID | None:
        (record,) = await self.store.get([job])
        return record.line


@asynccontextmanager
async def two_processes(path: Path, clock: ManualClock) -> AsyncIterator[tuple[Process, Process]]:
    one, other = Process(path, clock), Process(path, clock)
    try:
        await one.start()
        await other.start()
        yield one, other
    finally:
        await one.store.close()
        await other.store.close()


def limit(key: str, most: int = 1) -> LineRule:
    return LineRule((GateRule(GateKind.LIMIT, "task", key, most),))


def order(key: str) -> LineRule:
    return LineRule((GateRule(GateKind.ORDER, "task", key),))


def line(rule: LineRule) -> UUID:
    return rule.id_for("default", 5)


@pytest.mark.parametrize("rule", [limit("a"), order("a")], ids=["limit", "order"])
async def test_a_line_that_another_process_has_forgotten_is_made_anew(tmp_path: Path, rule: LineRule) -> None:
    clock, path = ManualClock(), tmp_path / "jobs.db"
    async with two_processes(path, clock) as (one, other):
        await one.know(rule)
        clock.advance("48h")
        for _ in range(3):
            await other.store.prune()
        assert _count(path) == (0, 0)
        foreign = await other.enqueue(limit("b"))  # if numbers were given again, it would have that of the first
        mine = await one.enqueue(rule)
        assert await one.line_of(mine) == line(rule)
        assert await one.line_of(foreign) == line(limit("b"))
        assert {job.id for job in await one.claim()} == {mine, foreign}
        assert await one.claim() == []


@pytest.mark.parametrize("rule", [limit("a"), order("a")], ids=["limit", "order"])
async def test_what_another_process_has_claimed_counts(tmp_path: Path, rule: LineRule) -> None:
    async with two_processes(tmp_path / "jobs.db", ManualClock()) as (one, other):
        await one.know(rule)
        await other.know(rule)
        first, second = await one.enqueue(rule), await one.enqueue(rule)
        claimed = await other.claim()
        assert [job.id for job in claimed] == [first]
        assert await one.claim() == []
        await other.settle(claimed)
        assert [job.id for job in await one.claim()] == [second]
        assert await other.claim() == []


async def test_what_another_process_has_set_counts(tmp_path: Path) -> None:
    rule = limit("a")
    async with two_processes(tmp_path / "jobs.db", ManualClock()) as (one, other):
        await one.know(rule)
        await other.store.override_limit(rule.gates[0], 2)
        for _ in range(3):
            await one.enqueue(rule)
        assert len(await one.claim()) == 2


async def test_what_the_code_says_again_is_heard_again(tmp_path: Path) -> None:
    async with two_processes(tmp_path / "jobs.db", ManualClock()) as (one, _):
        await one.know(limit("a", 1))
        await one.know(limit("a", 3))
        for _ in range(4):
            await one.enqueue(limit("a", 1))
        assert len(await one.claim()) == 1


async def test_what_was_rolled_back_is_not_remembered(tmp_path: Path) -> None:
    async with two_processes(tmp_path / "jobs.db", ManualClock()) as (one, other):

        def fail(it: Transaction) -> None:
            for _ in range(2):
                it.enqueue([one.job(limit("a"))])
            it.claim("default", Bounds(10), uuid4(), uuid4())
            raise RuntimeError("on purpose")

        with pytest.raises(StoreError, match="on purpose"):
            await one.store._writer.run(Operation(fail))
        await other.enqueue(limit("b"))  # it gets the number that the other one had for a moment
        mine = await one.enqueue(limit("a"))
        assert await one.line_of(mine) == line(limit("a"))
        assert len(await one.claim()) == 2


# ── forgetting ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_line_is_not_forgotten_in_the_transaction_that_brings_a_job_for_later(tmp_path: Path) -> None:
    clock = ManualClock()
    async with two_processes(tmp_path / "jobs.db", clock) as (one, _):
        job = one.job(limit("a"), timedelta(minutes=1))

        def enqueue_and_prune(it: Transaction) -> None:
            it.enqueue([job])
            it.forget_lines(0)

        await one.store._writer.run(Operation(enqueue_and_prune))
        clock.advance("1m")
        await one.store.tick()
        assert [claimed.id for claimed in await one.claim()] == [job.id]


async def test_jobs_of_a_claim_whose_answer_was_lost_are_behind_others_only_in_an_order(tmp_path: Path) -> None:
    """Jobs that a rate has let through must not wait for each other: they count from when they were claimed."""
    store = SqliteStore(tmp_path / "jobs.db")
    try:
        ids, worker = Ids(), uuid4()
        await store.register(NewWorker(worker, "worker"))
        for number, kind in enumerate((GateKind.RATE, GateKind.LIMIT, GateKind.ORDER)):
            queue = f"queue{number}"
            rule = LineRule((GateRule(kind, "task", "", 10, 60_000_000 if kind is GateKind.RATE else 0),))
            jobs = [NewJob(ids.make(), "task", queue, "{}", line=rule) for _ in range(3)]
            await store.enqueue(jobs)
            token = uuid4()
            claimed = await store.claim(worker, token, {queue: 5}, None, 4)
            assert [job.id for job in claimed] == [job.id for job in jobs]
            again = await store._writer.run(Operation(lambda it, token=token: it.claimed_before(worker, token)))  # type: ignore[misc]
            assert [(job.id, job.behind) for job in again] == [(job.id, job.behind) for job in claimed]
            assert (again[1].behind is None) is (kind is not GateKind.ORDER)
    finally:
        await store.close()


async def test_who_was_ahead_of_others_is_not_forgotten_before_they_have_caught_up(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "jobs.db"
    async with two_processes(path, clock) as (one, _):
        for _ in range(3):
            await one.enqueue(LineRule((GateRule(GateKind.ORDER, "task", "ahead", 20),)))
        for _ in range(5):
            await one.enqueue(limit("behind", 5))
        train = await one.claim(1, 10)
        assert len(train) == 3
        await one.settle(train)
        clock.advance("48h")
        await one.store.prune()
        assert _count(path) == (2, 2)
        await one.settle(await one.claim(4))
        await one.store.prune()
        assert _count(path) == (1, 1)


# ── an older file ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_lines_of_an_older_file_are_taken_over(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "jobs.db"
    kept = GateRule(GateKind.ORDER, "task", "a")
    fair = GateRule(GateKind.FAIR, "", "t")
    rule = LineRule((kept, fair))
    now = to_microseconds(clock.now())
    first, second, third = (Ids(clock).make() for _ in range(3))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("create table holdfast_migrations (number integer primary key, name text not null)")
        connection.executescript(shipped_migrations()[0].sql)
        connection.execute("insert into holdfast_migrations values (1, 'jobs')")
        connection.execute("insert into holdfast_queues (name, waiting, last_place) values ('default', 2, 3)")
        for place, (id, stage) in enumerate([(first, 3), (second, 2), (third, 2)], 1):
            connection.execute(
                "insert into holdfast_jobs (id, task, queue, priority, stage, place, args, max_attempts, delivery, "
                "created_at, due_at, line, token) values (?, 'task', 'default', 5, ?, ?, '{}', 5, 0, ?, ?, ?, ?)",
                (id.bytes, stage, place, now, now, line(rule).bytes, first.bytes if stage == 3 else None),
            )
        for gate, holder in ((fair, None), (kept, first.bytes)):
            connection.execute(
                "insert into holdfast_gates (id, kind, name, key, declared, per, is_blocking, held, holder, log, turn, "
                "lines) values (?, ?, ?, ?, 1, 0, 0, 0, ?, '[]', 1, 1)",
                (gate.id.bytes, int(gate.kind), gate.name, gate.key, holder),
            )
        connection.execute(
            "insert into holdfast_lines (id, queue, priority, gates, state, parked_at, turn, tenant) "
            "values (?, 'default', 5, ?, 2, ?, 1, ?)",
            (line(rule).bytes, kept.id.bytes + fair.id.bytes, kept.id.bytes, fair.id.bytes),
        )
        connection.commit()
    async with two_processes(path, clock) as (one, _):
        told = await one.store.circumstances(second)
        assert told is not None
        assert told.line is not None
        assert (told.line.gates, told.line.parked_at, told.line.tenant) == ((kept.id, fair.id), kept.id, fair.id)
        assert [gate.holder for gate in told.gates] == [first, None]
        assert await one.claim() == []
        await one.store.settle([Settlement(first, first, Complete())])
        assert [job.id for job in await one.claim()] == [second]
        assert await one.line_of(await one.enqueue(rule)) == line(rule)
        assert _count(path) == (1, 3), "new lines of this tenant take turns in their own queue"
