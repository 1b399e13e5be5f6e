"""Schedules in a store and in its model, the memory store, are led through the same random life and must agree.

Beside that, whatever happens: a tick of a schedule makes at most one job, and what has passed never comes again.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import psycopg
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from holdfast import schedule
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, ScheduleNotFound
from holdfast.lifecycle import Complete
from holdfast.schedule import Catchup, Firing, Overlap, Plan, ScheduleRecord
from holdfast.store import DueSchedules, Filter, NewWorker, Settlement, Store, TaskDefinition
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import ManualClock
from holdfast.testing.store_contract import RETENTION
from holdfast.tick import tick_job
from tests.contract.test_model import IS_THOROUGH, PROFILE, Answer

NAMES = ["a", "b", "c"]
TASK = TaskDefinition(name="x")
WORKER = UUID(int=0x4 << 76 | 0b10 << 62 | 1)

names = st.sampled_from(NAMES)
timings = st.sampled_from(
    [
        {"every": timedelta(minutes=1)},
        {"every": timedelta(minutes=7)},
        {"cron": "*/20 * * * *", "tz": "Australia/Lord_Howe"},
        {"cron": "30 2 * * *", "tz": "Europe/Paris"},
    ]
)
policies = st.sampled_from(
    [
        {"catchup": Catchup.ONCE, "overlap": Overlap.SKIP},
        {"catchup": Catchup.SKIP, "overlap": Overlap.SKIP},
        {"catchup": Catchup.ONCE, "overlap": Overlap.QUEUE},
        {"catchup": Catchup.ALL, "overlap": Overlap.QUEUE},
    ]
)
plans = st.builds(
    lambda timing, policy, args: Plan(task="x", args_json=args, **timing, **policy),
    timings,
    policies,
    st.sampled_from(["{}", '{"n":1}']),
)
edits = st.one_of(timings, policies, st.sampled_from([{"queue": "slow"}, {"queue": None}, {"priority": 7}]))
spans = st.sampled_from([timedelta(seconds=20), timedelta(minutes=1), timedelta(minutes=6), timedelta(hours=5)])

Change = Callable[[ScheduleRecord, datetime], ScheduleRecord | None]


class ScheduleMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.model = MemoryStore(self.clock, RETENTION)
        self.store = self.make_store(self.clock)
        self.old_firings: list[Firing] = []
        self.tokens = (UUID(int=0x4 << 76 | 0b10 << 62 | number) for number in range(2, 1 << 30))
        self.passed: dict[tuple[str, datetime], datetime] = {}
        self.both(lambda store: store.register(NewWorker(WORKER, "worker")))

    def make_store(self, clock: Clock) -> Store:
        raise NotImplementedError

    def run(self, question: Coroutine[Any, Any, Answer]) -> Answer:
        """Without making ready for Ctrl-C each time, as a Runner does: that takes as long as a question."""
        return self.runner.get_loop().run_until_complete(question)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()

    def both(self, ask: Callable[[Store], Awaitable[Any]]) -> Any:
        """Ask the store and the model the same; their answers, or their refusals, must be equal."""
        expected, answer = self.run(self._answers(ask))
        assert _comparable(answer) == _comparable(expected)
        return None if isinstance(expected, HoldfastError) else expected

    async def _answers(self, ask: Callable[[Store], Awaitable[Any]]) -> list[Any]:
        answers: list[Any] = []
        for store in (self.model, self.store):
            try:
                answers.append(await ask(store))
            except HoldfastError as refusal:
                answers.append(refusal)
        return answers

    def change(self, name: str, change: Change) -> None:
        def act(record: ScheduleRecord | None, now: datetime) -> ScheduleRecord | None:
            if record is None:
                raise ScheduleNotFound
            return change(record, now)

        self.both(lambda store: store.change_schedule(name, act))

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────

    @rule(some=st.dictionaries(names, plans, max_size=2), age=st.none() | spans)
    def declare(self, some: dict[str, Plan], age: timedelta | None) -> None:
        self.both(lambda store: store.declare_schedules(some, age))

    @rule(name=names, plan=plans)
    def add(self, name: str, plan: Plan) -> None:
        self.both(lambda store: store.change_schedule(name, lambda record, now: schedule.add(record, name, plan, now)))

    @rule(name=names, edited=edits)
    def edit(self, name: str, edited: dict[str, Any]) -> None:
        self.change(name, lambda record, now: schedule.change(record, edited, now))

    @rule(name=names, verb=st.sampled_from([schedule.pause, schedule.resume, schedule.reset, schedule.remove]))
    def steer(self, name: str, verb: Change) -> None:
        self.change(name, verb)

    @rule(span=spans)
    def wait(self, span: timedelta) -> None:
        self.clock.advance(span)
        self.both(lambda store: store.tick())

    @rule(span=spans)
    def put_the_clock_back(self, span: timedelta) -> None:
        self.clock.jump(-span)

    @rule()
    def fire(self) -> None:
        due: DueSchedules = self.both(lambda store: store.due_schedules(10))
        firings = [firing for record in due.schedules if (firing := _firing(record, due.now)) is not None]
        self.old_firings += firings
        self.both(lambda store: store.fire(firings))

    @rule(number=st.integers(0, 63))
    def fire_what_was_decided_before(self, number: int) -> None:
        if self.old_firings:
            firing = self.old_firings[-1 - number % len(self.old_firings)]
            self.both(lambda store: store.fire([firing]))

    @rule(number=st.integers(1, 4))
    def work(self, number: int) -> None:
        token = next(self.tokens)

        async def finish(store: Store) -> list[UUID]:
            claimed = await store.claim(WORKER, token, {"default": number, "slow": number})
            await store.settle([Settlement(job.id, token, Complete(None)) for job in claimed])
            return sorted(job.id for job in claimed)

        self.both(finish)

    # ── what always holds ────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def they_agree(self) -> None:
        records: list[ScheduleRecord] = self.both(lambda store: store.schedules())
        self.both(lambda store: store.due_schedules(2))
        for name in NAMES:
            self.both(lambda store, name=name: store.ticks(name, 1_000))  # type: ignore[misc]
        for record in records:
            life = (record.name, record.created_at)
            before = self.passed.get(life)
            if record.passed_tick is not None:
                assert before is None or before <= record.passed_tick, "it went back"
                self.passed[life] = record.passed_tick
                assert record.next_tick is None or record.next_tick > record.passed_tick

    @invariant()
    def a_tick_has_one_job(self) -> None:
        jobs = self.run(self.store.page(Filter(), None, 1_000)).jobs
        ticks = [(job.context["schedule"], job.context["tick"]) for job in jobs]
        assert len(ticks) == len(set(ticks))


def _firing(record: ScheduleRecord, now: datetime) -> Firing | None:
    passage = schedule.decide(record, now)
    if passage is None or record.next_tick is None:
        return None
    jobs = [tick_job(record, tick, TASK, 0.0) for tick in passage.ticks]
    return Firing(record.name, record.revision, record.next_tick, passage, jobs)


def _comparable(answer: Any) -> Any:
    return type(answer) if isinstance(answer, HoldfastError) else answer


class SqliteMachine(ScheduleMachine):
    def make_store(self, clock: Clock) -> Store:
        memory = Path("/dev/shm")  # a disk that is fast to sync, where there is one
        self.folder = tempfile.mkdtemp(prefix="holdfast-", dir=memory if memory.is_dir() else None)
        return SqliteStore(Path(self.folder) / "holdfast.db", clock=clock, retention=RETENTION)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder, ignore_errors=True)


class PostgresMachine(ScheduleMachine):
    url: str

    def make_store(self, clock: Clock) -> Store:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(_EMPTY)
        return PostgresStore(self.url, clock=clock, retention=RETENTION)


_EMPTY = """
do $$
begin
    if to_regclass('holdfast.jobs') is not null then
        truncate holdfast.jobs, holdfast.keys, holdfast.queues, holdfast.workers, holdfast.schedules, holdfast.ticks;
    end if;
end
$$
"""
FEW = settings(PROFILE, max_examples=40, stateful_step_count=40)


def test_schedules_in_sqlite_against_their_model() -> None:
    run_state_machine_as_test(SqliteMachine, settings=PROFILE if IS_THOROUGH else FEW)


def test_schedules_in_postgres_against_their_model(migrated_database: str) -> None:
    machine = type("Machine", (PostgresMachine,), {"url": migrated_database})
    few = settings(FEW, max_examples=12, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=PROFILE if IS_THOROUGH else few)
