"""A store and its model, the memory store, are driven through the same random life and must agree at every step.

Both get the same clock, ids and tokens. HOLDFAST_THOROUGH=1 runs many more, and other, lives each time.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import hypothesis.strategies as st
import msgspec
import psycopg
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from holdfast import breaker
from holdfast.breaker import BreakerPolicy, Circuit
from holdfast.codec import fingerprint
from holdfast.errors import HoldfastError, QueueFull
from holdfast.gates import GateKind, GateRule, LineRule
from holdfast.ids import Ids
from holdfast.job import (
    Attempt,
    ClaimedJob,
    Delivery,
    Failure,
    FailureKind,
    JobRecord,
    JobState,
    Lane,
    NewJob,
    Stage,
    counts_as_scheduled,
    counts_as_waiting,
)
from holdfast.lifecycle import NOT_STARTED, Bury, Complete, GiveBack, Transition, Withdraw
from holdfast.liveness import FREE_FOR, Sighting
from holdfast.store import (
    Beaten,
    Enqueued,
    Filter,
    Held,
    NewWorker,
    Progress,
    ProgressReport,
    Pruned,
    Queue,
    QueueRecord,
    Settlement,
    Store,
    TaskDefinition,
    WorkerRecord,
)
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import ManualClock
from holdfast.testing.store_contract import RETENTION
from holdfast.testing.store_contract.harness import placeless

IS_THOROUGH = os.environ.get("HOLDFAST_THOROUGH") == "1"
PROFILE = settings(
    max_examples=1_000 if IS_THOROUGH else 120,
    stateful_step_count=80 if IS_THOROUGH else 45,
    derandomize=not IS_THOROUGH,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
ERROR = Failure(FailureKind.ERROR, "ValueError", "no", "Traceback")
NOBODY = UUID(int=0x7 << 76 | 0b10 << 62 | 1)

Answer = TypeVar("Answer")

TRANSITIONS: list[Transition] = [
    Complete(),
    Complete('{"n": 1}'),
    GiveBack(),
    NOT_STARTED,
    GiveBack(MINUTE),
    GiveBack(MINUTE, has_waited=True, is_unstarted=True),
    GiveBack(is_charged=True, failure=ERROR),
    GiveBack(HOUR, is_charged=True, failure=ERROR),
    GiveBack(MINUTE, failure=ERROR, has_waited=True),
    GiveBack(HOUR, has_waited=True, breaker="b"),
    GiveBack(has_waited=True, breaker="b"),
    GiveBack(MINUTE, is_charged=True, failure=ERROR, met_full_pool=True),
    GiveBack(failure=ERROR, has_crashed=True),
    Bury(ERROR),
    Bury(ERROR, has_crashed=True),
    Withdraw(),
    Withdraw("not wanted"),
]

picks = st.integers(0, 63)
some_picks = st.lists(picks, max_size=4)
queue_names = st.sampled_from(["a", "b"])
spans = st.sampled_from([timedelta(0), timedelta(seconds=1), MINUTE, HOUR])


def recipe(**options: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """What a new job is made of: these options, and now and then some of the others."""
    return st.fixed_dictionaries(
        {
            "queue": queue_names,
            "task": st.sampled_from(["x", "x", "x", "y"]),
            "args_json": st.sampled_from(['{"a": 1}', '{"a": 1}', '{"a": 2, "b": {"c": "d"}}']),
            "priority": st.sampled_from([5, 5, 8]),
            "delivery": st.sampled_from([Delivery.AT_LEAST_ONCE, Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE]),
            **options,
        }
    )


keyed = {"idempotency_key": st.sampled_from(["k", "k", "l"])}
unique = {"unique_key": st.sampled_from(["u", "u", "v"]), "unique_window": st.none() | spans}
timed = {"delay": spans, "expires_in": st.none() | spans}
marked = {"tags": st.sampled_from([("t",), ("t", "s")]), "context_json": st.just("{}"), "max_attempts": st.just(1)}
gates = {
    "limit": GateRule(GateKind.LIMIT, "x", "", 2),
    "rate": GateRule(GateKind.RATE, "x", "", 2, 30_000_000),
    "order": GateRule(GateKind.ORDER, "x", "k", 4),
    "block": GateRule(GateKind.ORDER, "x", "l", 4, is_blocking=True),
    "one tenant": GateRule(GateKind.FAIR, "", "one"),
    "another": GateRule(GateKind.FAIR, "", "other"),
}
line_rules = st.sampled_from(
    [
        LineRule(tuple(gates[name] for name in names))
        for names in (
            ["limit"],
            ["rate"],
            ["order"],
            ["block"],
            ["one tenant"],
            ["another"],
            ["limit", "one tenant"],
            ["limit", "rate", "order", "another"],
        )
    ]
)
recipes = st.one_of(
    recipe(),
    recipe(line=line_rules),
    recipe(**timed, line=line_rules),
    recipe(**marked, is_exempt=st.just(True)),
    recipe(**timed),
    recipe(**keyed),
    recipe(**unique),
    recipe(**keyed, **unique, **timed, is_repeat=st.booleans()),
)
filters = st.one_of(
    st.just(Filter()),
    st.builds(Filter, states=st.frozensets(st.sampled_from(JobState), max_size=3)),
    st.builds(Filter, queue=queue_names, task=st.none() | st.sampled_from(["x", "y"])),
    st.builds(Filter, tags=st.sampled_from([("t",), ("s", "t")])),
    st.builds(Filter, args=st.sampled_from([{"a": 1}, {"a": True}, {"a": "1"}, {"b.c": "d"}, {"a": 2.0}, {"b": None}])),
    st.builds(Filter, error_type=st.sampled_from(["ValueError", "Expired", "WorkerLost"])),
)


class StoreMachine(RuleBasedStateMachine):
    """Everything that can be asked of a store. Its bookkeeping is what a client would know, and no more."""

    knows_lines = True

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.ids = Ids(self.clock, random_bytes=bytes)  # no randomness but Hypothesis's own
        self.model = MemoryStore(self.clock, RETENTION)
        self.store = self.make_store()
        self.jobs: list[NewJob] = []
        self.has_reborn = False
        """A job was pruned and enqueued again, so that the order of ids is not that of enqueuing any more."""
        self.claims: list[ClaimedJob] = []
        self.workers: list[UUID] = []
        self.tokens: Iterator[UUID] = (UUID(int=0x4 << 76 | 0b10 << 62 | n) for n in range(1, 1 << 30))
        self.known: dict[Store, dict[UUID, tuple[JobRecord | None, list[Attempt]]]] = {self.model: {}, self.store: {}}
        """What was last seen of each job, and its attempts."""

    def make_store(self) -> Store:
        raise NotImplementedError

    def run(self, question: Coroutine[Any, Any, Answer]) -> Answer:
        """Without making ready for Ctrl-C each time, as a Runner does: that takes as long as a question."""
        return self.runner.get_loop().run_until_complete(question)

    def teardown(self) -> None:
        try:
            self.known = {self.model: {}, self.store: {}}
            self.everything_agrees()
        finally:
            self.run(self.store.close())
            self.runner.close()

    # ── asking both ──────────────────────────────────────────────────────────────────────────────────────────────

    def both(self, ask: Callable[[Store], Awaitable[Any]], normal: Callable[[Any], Any] = lambda answer: answer) -> Any:
        """Ask the store and the model the same; their answers, or their refusals, must be equal."""
        expected, answer = self.run(self._answers(ask))
        assert _comparable(answer, normal) == _comparable(expected, normal)
        return None if isinstance(expected, HoldfastError) else expected

    async def _answers(self, ask: Callable[[Store], Awaitable[Any]]) -> list[Any]:
        answers: list[Any] = []
        for store in (self.model, self.store):
            try:
                answers.append(await ask(store))
            except HoldfastError as refusal:
                answers.append(refusal)
        return answers

    def picked(self, numbers: Sequence[int]) -> list[UUID]:
        """Known jobs, each at most once, and now and then one that never was."""
        known = [job.id for job in self.jobs] + [NOBODY]
        return list(dict.fromkeys(known[number % len(known)] for number in numbers))

    def worker(self, number: int) -> UUID:
        """Mostly one of the latest, so that it is probably alive; any other one, or nobody, now and then."""
        known = [*self.workers, NOBODY]
        return self.workers[-1 - number % 2] if number < 48 else known[number % len(known)]

    def settlements(self, numbers: Sequence[int], transitions: Sequence[Transition]) -> list[Settlement]:
        """For claims of any age, so stale and repeated ones too; now and then under a token nobody had."""
        if not self.claims:
            return []
        made = []
        for number, transition in zip(numbers, transitions, strict=False):
            claim = self.claims[-1 - number % len(self.claims)]
            made.append(Settlement(claim.id, NOBODY if number == 63 else claim.token, transition))
        return made

    def make_job(self, recipe: dict[str, Any]) -> NewJob:
        if not self.knows_lines:
            recipe = {name: value for name, value in recipe.items() if name != "line"}
        key = recipe.get("idempotency_key")
        return NewJob(id=self.ids.make(), fingerprint=fingerprint(recipe["args_json"]) if key else None, **recipe)

    # ── producers ────────────────────────────────────────────────────────────────────────────────────────────────

    @initialize()
    def open(self) -> None:
        self.both(lambda store: store.open())
        self.both(lambda store: store.declare_queues([Queue("a", bound=5, scheduled_bound=2)]))
        self.register()
        self.register()
        self.enqueue([{"queue": queue, "task": "x", "args_json": "{}"} for queue in ("a", "a", "b", "b")])
        self.both(lambda store: store.declare_breakers({"b": BreakerPolicy()}))
        self.claim(0, 1, 1)

    @rule(batch=st.lists(recipes, min_size=1, max_size=4))
    def enqueue(self, batch: Sequence[dict[str, Any]]) -> None:
        jobs = [self.make_job(recipe) for recipe in batch]
        answers = self.both(lambda store: _enqueue(store, jobs))
        self.jobs += [] if answers is None else [job for job in jobs if job.id in {answer.id for answer in answers}]

    @rule(recipe=recipes)
    def enqueue_one(self, recipe: dict[str, Any]) -> None:
        self.enqueue([recipe])

    @rule(
        recipe=recipe(**keyed) | recipe(**unique),
        end=st.sampled_from([Complete(), Bury(ERROR), Withdraw()]),
        wait=st.sampled_from([timedelta(0), MINUTE, HOUR, 6 * HOUR]),
        again=st.booleans(),
    )
    def live_through_a_key(self, recipe: dict[str, Any], end: Transition, wait: timedelta, again: bool) -> None:
        """What chance alone would seldom do: use a key, end its job, let time pass, use the key again."""
        self.enqueue([recipe])
        self.claim(0, 9, 9)
        held = [claim for claim in self.claims if claim.is_keyed]
        self.both(lambda store: store.settle([Settlement(claim.id, claim.token, end) for claim in held]))
        self.clock.advance(wait)
        if again:
            self.enqueue([recipe])

    @rule(pick=picks, args=st.sampled_from([None, '{"other": 1}']))
    def enqueue_again(self, pick: int, args: str | None) -> None:
        if self.jobs:
            job = self.jobs[pick % len(self.jobs)]
            again = msgspec.structs.replace(job, is_repeat=True, args_json=args or job.args_json)
            answers: list[Enqueued] | None = self.both(lambda store: store.enqueue([again]))
            self.has_reborn = self.has_reborn or (answers is not None and not answers[0].is_existing)

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def register(self) -> None:
        worker = NewWorker(next(self.tokens), f"worker-{len(self.workers)}", "host", 1, ("a", "b"))
        self.both(lambda store: store.register(worker))
        self.workers.append(worker.id)

    @rule(pick=picks)
    def register_again(self, pick: int) -> None:
        worker = NewWorker(self.worker(pick), "again")
        self.both(lambda store: store.register(worker))

    @rule(pick=picks, a=st.integers(0, 9), b=st.integers(0, 9), behind=st.integers(0, 6))
    def claim(self, pick: int, a: int, b: int, behind: int = 0) -> None:
        worker, token = self.worker(pick), next(self.tokens)
        claimed: list[ClaimedJob] | None = self.both(
            lambda store: store.claim(worker, token, {"a": a, "b": b}, None, behind), _by_queue
        )
        self.claims += claimed or []

    @rule(numbers=some_picks, transitions=st.lists(st.sampled_from(TRANSITIONS), max_size=4))
    def settle(self, numbers: list[int], transitions: list[Transition]) -> None:
        batch = self.settlements(numbers, transitions)
        self.both(lambda store: store.settle(batch))

    @rule(pick=st.integers(0, 3), transition=st.sampled_from(TRANSITIONS))
    def settle_one_of_the_latest(self, pick: int, transition: Transition) -> None:
        self.settle([pick], [transition])

    @rule(pick=picks, dropped=st.frozensets(st.integers(0, 3), max_size=3), is_claiming=st.booleans())
    def beat(self, pick: int, dropped: frozenset[int], is_claiming: bool) -> None:
        worker = self.worker(pick)
        jobs = {claim.id: claim.token for n, claim in enumerate(self.claims) if n % 4 not in dropped}
        claiming = frozenset(claim.token for n, claim in enumerate(self.claims) if is_claiming and n % 4 in dropped)
        self.both(lambda store: store.beat(worker, Held(jobs, claiming)), _beaten)

    @rule(pick=picks)
    def quiet(self, pick: int) -> None:
        self.both(lambda store: store.quiet(self.worker(pick)))

    @rule(beats=st.integers(1, 3), is_awaited=st.booleans())
    def lose_the_answer_to_a_claim(self, beats: int, is_awaited: bool) -> None:
        """What a worker does not know of is given back, but not before its second beat, nor while it may yet hear."""
        self.clock.advance(timedelta(seconds=1))
        before = len(self.claims)
        self.claim(0, 1, 1)
        claiming = frozenset(claim.token for claim in self.claims[before:] if is_awaited)
        for _ in range(beats):
            self.clock.advance(timedelta(seconds=1))
            self.both(lambda store: store.beat(self.worker(0), Held({}, claiming)), _beaten)

    @rule(
        pick=picks,
        end=st.sampled_from(["rescue", "late rescue", "bury", "depart"]),
        numbers=some_picks,
        transitions=st.lists(st.sampled_from(TRANSITIONS), max_size=3),
    )
    def lose_worker(self, pick: int, end: str, numbers: list[int], transitions: list[Transition]) -> None:
        worker, batch = self.worker(pick), self.settlements(numbers, transitions)
        beats = {sighting.worker: sighting.beat for sighting in self.run(self.model.sightings())}
        match end:
            case "rescue":
                self.both(lambda store: store.rescue({worker: beats.get(worker, 1)}), sorted)
            case "late rescue":
                self.both(lambda store: store.rescue({worker: beats.get(worker, 1) - 1}), sorted)
            case "bury":
                self.both(lambda store: store.bury_worker(worker, batch), sorted)
            case _:
                self.both(lambda store: store.depart(worker), sorted)
        self.register()

    @rule(numbers=some_picks, done=st.integers(0, 9), wait=spans)
    def report_progress(self, numbers: list[int], done: int, wait: timedelta) -> None:
        """For claims of any age, so stale ones too."""
        claims = [self.claims[-1 - number % len(self.claims)] for number in numbers] if self.claims else []
        reports = [ProgressReport(claim.id, claim.token, done + n, 10, f"note {n}") for n, claim in enumerate(claims)]
        self.clock.advance(wait)
        self.both(lambda store: store.report_progress(reports))

    # ── time, people ─────────────────────────────────────────────────────────────────────────────────────────────

    @rule()
    def tick(self) -> None:
        self.both(lambda store: store.tick())

    @rule(
        span=st.sampled_from([timedelta(microseconds=1), timedelta(seconds=1), MINUTE, HOUR, 3 * HOUR]),
        is_ticking=st.booleans(),
    )
    def advance(self, span: timedelta, is_ticking: bool) -> None:
        self.clock.advance(span)
        if is_ticking:
            self.tick()

    @rule(numbers=some_picks, verb=st.sampled_from(["cancel", "retry", "edit", "run_now", "discard"]))
    def steer(self, numbers: list[int], verb: str) -> None:
        ids = self.picked(numbers)
        match verb:
            case "cancel":
                self.both(lambda store: store.cancel(ids, f"reason {len(ids)}"))
            case "retry":
                self.both(lambda store: store.retry(ids))
            case "edit":
                self.both(lambda store: store.retry(ids, '{"a": 3}'))
            case "run_now":
                self.both(lambda store: store.run_now(ids))
            case _:
                self.both(lambda store: store.discard(ids))

    @rule(limit=st.integers(1, 4), change=st.sampled_from([None, breaker.reset, breaker.trip]))
    def let_pass(self, limit: int, change: Callable[..., Circuit] | None) -> None:
        if change is breaker.reset:
            self.both(lambda store: store.change_breaker("b", lambda circuit, now: breaker.reset(circuit)))
        elif change is breaker.trip:
            self.both(lambda store: store.change_breaker("b", breaker.trip))
        self.both(lambda store: store.let_pass("b", limit))

    @rule(limit=st.integers(1, 4), is_stale=st.booleans())
    def announce(self, limit: int, is_stale: bool) -> None:
        dead: list[JobRecord] = self.both(
            lambda store: store.unannounced(limit), lambda jobs: list(map(placeless, jobs))
        )
        told = [(job.id, job.generation - is_stale) for job in dead]
        self.both(lambda store: store.announced(told))

    @rule(is_cancelled=st.booleans(), is_edited=st.booleans())
    def retry_all(self, is_cancelled: bool, is_edited: bool) -> None:
        wanted = {JobState.DEAD, JobState.CANCELLED} if is_cancelled else {JobState.DEAD}
        ids = [job.id for job in self.run(self.model.page(Filter(states=frozenset(wanted)), limit=50)).jobs]
        self.both(lambda store: store.retry(ids, '{"a": 4}' if is_edited else None))

    @rule(
        wait=st.sampled_from([timedelta(0), HOUR, 4 * HOUR, 6 * HOUR]),
        age=st.none() | spans,
        batch=st.sampled_from([1, 2, 1000]),
    )
    def prune(self, wait: timedelta, age: timedelta | None, batch: int) -> None:
        self.clock.advance(wait)
        dead_before = None if age is None else self.clock.now() - age
        self.both(lambda store: _prune_all(store, dead_before, batch))

    # ── queues, tasks, reading ───────────────────────────────────────────────────────────────────────────────────

    @rule(queue=queue_names, what=st.sampled_from(["pause", "resume", 1, 3, 50, None, Queue("b", bound=4)]))
    def control(self, queue: str, what: str | int | Queue | None) -> None:
        match what:
            case "pause":
                self.both(lambda store: store.pause(queue))
            case "resume":
                self.both(lambda store: store.resume(queue))
            case Queue():
                self.both(lambda store: store.declare_queues([what]))
            case _:
                assert not isinstance(what, str)
                self.both(lambda store: store.set_bound(queue, what))

    @rule(name=st.sampled_from(["x", "y"]), priority=st.integers(4, 5), aliases=st.sampled_from([(), ("old",)]))
    def publish(self, name: str, priority: int, aliases: tuple[str, ...]) -> None:
        definition = TaskDefinition(name=name, priority=priority, aliases=aliases)
        self.both(lambda store: store.publish_tasks([definition]))
        self.both(lambda store: store.tasks(), _by_name)
        self.both(lambda store: store.tasks([name]), _by_name)
        self.both(lambda store: store.tasks(["old"]), _by_name)

    @rule(
        filter=filters,
        limit=st.integers(1, 5),
        pick=picks,
        time=st.sampled_from(["", "created_from", "created_before", "finished_before"]),
        age=spans,
    )
    def read(self, filter: Filter, limit: int, pick: int, time: str, age: timedelta) -> None:
        if time:
            filter = msgspec.structs.replace(filter, **{time: self.clock.now() - age})
        self._read(filter, self.jobs[pick % len(self.jobs)].id if self.jobs and pick % 2 else None, limit)

    def _read(self, filter: Filter, cursor: UUID | None, limit: int) -> None:
        self.both(
            lambda store: store.page(filter, cursor, limit),
            lambda page: ([placeless(job) for job in page.jobs], page.next_cursor),
        )
        self.both(lambda store: store.count(filter))

    # ── what must always hold ────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def everything_agrees(self) -> None:
        model, store = self.run(self._pictures())
        for part in Picture.__struct_fields__:
            assert getattr(store, part) == getattr(model, part), part
        _check_counters(store)
        _check_keys(store)

    async def _pictures(self) -> tuple[Picture, Picture]:
        return await self._picture(self.model), await self._picture(self.store)

    async def _picture(self, store: Store) -> Picture:
        ids = [job.id for job in self.jobs]
        jobs = await store.get(ids)
        return await _picture(store, ids, jobs, await self._attempts(store, ids, jobs), self.has_reborn)

    async def _attempts(self, store: Store, ids: list[UUID], jobs: list[JobRecord]) -> list[list[Attempt]]:
        """All attempts, of which only those are asked for that belong to jobs that have changed or are gone.

        Attempts that change while their job does not are seen when this life ends, and all of them are asked for.
        """
        known, now = self.known[store], {job.id: job for job in jobs}
        changed = [id for id in dict.fromkeys(ids) if id not in known or known[id][0] != now.get(id)]
        for id, attempts in zip(changed, await asyncio.gather(*map(store.attempts, changed)), strict=True):
            known[id] = now.get(id), attempts
        return [known[id][1] for id in ids]


class Picture(msgspec.Struct):
    """All that can be read of a store, in a form that two stores can be compared by."""

    jobs: list[JobRecord]
    attempts: list[list[Attempt]]
    queues: list[QueueRecord]
    workers: list[WorkerRecord]
    sightings: list[Sighting]
    order: dict[str, list[UUID]]
    finished: list[UUID]
    progress: dict[UUID, Progress]
    unannounced: list[UUID]


async def _picture(
    store: Store, ids: list[UUID], jobs: list[JobRecord], attempts: list[list[Attempt]], has_reborn: bool
) -> Picture:
    def order(job: JobRecord) -> tuple[int, int, int, UUID]:
        # Of jobs that are given back together, which goes first is the store's own choice: the older one, or the one
        # with the smaller id. These are the same but for jobs that were born again.
        has_place = not (has_reborn and job.lane is Lane.GIVEN_BACK)
        return -job.priority, job.lane, job.place if has_place else 0, job.id

    ready = sorted((job for job in jobs if job.stage is Stage.READY), key=order)
    return Picture(
        jobs=[placeless(job) for job in jobs],
        attempts=attempts,
        queues=sorted(await store.queues(), key=lambda queue: queue.name),
        workers=sorted(await store.workers(), key=lambda worker: worker.id),
        sightings=sorted(
            (
                msgspec.structs.replace(sighting, is_locked=None, free_for=FREE_FOR)
                for sighting in await store.sightings()
            ),
            key=lambda sighting: sighting.worker,
        ),
        order={queue: [job.id for job in ready if job.queue == queue] for queue in ("a", "b")},
        finished=[job.id for job in await store.finished(ids)],
        progress=await store.progress(ids),
        unannounced=[job.id for job in await store.unannounced(1000)],
    )


def _check_counters(picture: Picture) -> None:
    for queue in picture.queues:
        mine = [job for job in picture.jobs if job.queue == queue.name]
        assert queue.waiting == sum(counts_as_waiting(job.stage, job.attempt) for job in mine)
        assert queue.scheduled == sum(counts_as_scheduled(job.stage, job.attempt) for job in mine)


def _check_keys(picture: Picture) -> None:
    """However jobs are enqueued and retried, no key has two unfinished jobs."""
    taken: set[tuple[str, str | None, str | None]] = set()
    for job in picture.jobs:
        for key in ((job.task, job.idempotency_key, None), (job.task, None, job.unique_key)):
            if not job.state.is_final and key[1:] != (None, None):
                assert key not in taken, f"two unfinished jobs have the key {key}"
                taken.add(key)


async def _enqueue(store: Store, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Of several full queues, which one is named is the store's own choice."""
    try:
        return await store.enqueue(jobs)
    except QueueFull as refusal:
        if {job.queue for job in jobs} == {refusal.queue}:
            raise
        raise QueueFull from refusal


async def _prune_all(store: Store, dead_before: datetime | None, batch: int) -> tuple[int, int, int]:
    """Prune to the end: what goes first within a batch is the store's own choice."""
    total = Pruned(0, 0, 0, is_done=False)
    for _ in range(1_000):
        pruned = await store.prune(dead_before=dead_before, batch=batch)
        total = Pruned(total.jobs + pruned.jobs, total.keys + pruned.keys, total.workers + pruned.workers, is_done=True)
        if pruned.is_done:
            return total.jobs, total.keys, total.workers
    raise AssertionError("prune never comes to an end")


def _comparable(answer: Any, normal: Callable[[Any], Any]) -> Any:
    if isinstance(answer, HoldfastError):
        return type(answer), getattr(answer, "existing", None), getattr(answer, "queue", None)
    return normal(answer)


def _by_queue(claimed: list[ClaimedJob]) -> dict[str, list[ClaimedJob]]:
    """The order between queues is the store's own choice."""
    return {queue: [job for job in claimed if job.queue == queue] for queue in ("a", "b")}


def _beaten(beaten: Beaten) -> tuple[bool, bool, list[UUID], list[UUID], list[UUID]]:
    found = sorted(beaten.taken), sorted(beaten.cancelled), sorted(beaten.released)
    return beaten.is_alive, beaten.is_quiet, *found


def _by_name(tasks: list[Any]) -> list[Any]:
    return sorted(tasks, key=lambda task: task.definition.name)


class SqliteMachine(StoreMachine):
    def make_store(self) -> Store:
        memory = Path("/dev/shm")  # a disk that is fast to sync, where there is one
        self.folder = tempfile.mkdtemp(prefix="holdfast-", dir=memory if memory.is_dir() else None)
        return SqliteStore(Path(self.folder) / "holdfast.db", clock=self.clock, retention=RETENTION)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder, ignore_errors=True)


TestSqliteAgainstItsModel = SqliteMachine.TestCase
TestSqliteAgainstItsModel.settings = PROFILE


class PostgresMachine(StoreMachine):
    """All lives are led in one database, which is emptied before each: that is much faster than to make another."""

    url: str
    knows_lines = False

    def make_store(self) -> Store:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(_EMPTY)
        return PostgresStore(self.url, clock=self.clock, retention=RETENTION)


_EMPTY = """
do $$
begin
    if to_regclass('holdfast.jobs') is not null then
        delete from holdfast.jobs;
        delete from holdfast.keys;
        delete from holdfast.failures;
        delete from holdfast.progress;
        delete from holdfast.queues;
        delete from holdfast.workers;
        delete from holdfast.tasks;
        delete from holdfast.breakers;
    end if;
end
$$
"""


def test_postgres_against_its_model(migrated_database: str) -> None:
    machine = type("Machine", (PostgresMachine,), {"url": migrated_database})
    # Every question is a round trip, so there is time for fewer lives, and none for making a failing one shorter.
    few = settings(PROFILE, max_examples=20, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=PROFILE if IS_THOROUGH else few)
