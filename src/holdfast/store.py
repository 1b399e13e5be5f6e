"""The store contract: the durable truth about jobs, as verbs of the domain.

Every verb is one transaction: it happens whole or not at all, also when the caller is
cancelled while waiting for it. All of them take and return batches. What decides about
time is the store's clock. One store object serves any number of event loops and threads
of its process; what it must keep apart is its own business.

`holdfast.testing.store_contract` is the suite that every store passes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from holdfast.breaker import Admission, BreakerPolicy, BreakerRecord, BreakerReport, Circuit
from holdfast.errors import InvalidOption, QueueFull
from holdfast.gates import Gate, GateKind, GateRule
from holdfast.job import Attempt, ClaimedJob, Failure, FailureKind, JobRecord, JobState, NewJob, storable
from holdfast.lifecycle import Transition
from holdfast.limits import LimitDefinition, LimitRecord
from holdfast.liveness import Sighting
from holdfast.outcome import Crashed
from holdfast.schedule import Fired, Firing, Plan, ScheduleRecord, TickRecord
from holdfast.span import Span, parse_span
from holdfast.turns import Line

DEFAULT_BOUND: Final = 100_000
LARGEST_BATCH: Final = 10_000
LARGEST_PAGE: Final = 1_000
LONGEST_NAME: Final = 200
LONGEST_NOTE: Final = 200
MOST_AHEAD: Final = 10_000
"""Jobs before another one are counted up to here."""
MOST_WAITING: Final = 1_000
"""Jobs that wait for a limit are counted up to here."""
LONGEST_HISTORY: Final = 100
"""Attempts remembered per job; the oldest go first."""
WORKER_RETENTION: Final = timedelta(hours=1)
"""How long a dead worker is shown."""


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, init=False)
class Retention:
    """How long what is over is kept. Dead letters stay until somebody discards them."""

    completed: timedelta
    cancelled: timedelta
    idempotency: timedelta

    def __init__(self, *, completed: Span = "24h", cancelled: Span = "24h", idempotency: Span = "24h") -> None:
        object.__setattr__(self, "completed", parse_span(completed, "Retention(completed)"))
        object.__setattr__(self, "cancelled", parse_span(cancelled, "Retention(cancelled)"))
        object.__setattr__(self, "idempotency", parse_span(idempotency, "Retention(idempotency)"))


@dataclass(frozen=True)
class Queue:
    """A queue as the code declares it. Waiting jobs count against `bound`, jobs due later against `scheduled_bound`."""

    name: str
    bound: int = DEFAULT_BOUND
    scheduled_bound: int = DEFAULT_BOUND

    def __post_init__(self) -> None:
        check_name(self.name, "Queue(name)")
        check_bound(self.bound, "Queue(bound)")
        check_bound(self.scheduled_bound, "Queue(scheduled_bound)")


# ── values that the verbs take and return ────────────────────────────────────────────────────────────────────────────


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """The answer to one enqueued job. `is_existing`: a key or the id led to a job that was there before."""

    id: UUID
    is_existing: bool = False


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """What is to become of a claimed job. The last two may be False if the claim said so, which saves a look-up."""

    id: UUID
    token: UUID
    transition: Transition
    is_keyed: bool = True
    is_lined: bool = True


class Settled(StrEnum):
    """The answer to one settlement."""

    APPLIED = "applied"
    ALREADY = "already"
    """This very settlement was made before, and its answer was lost."""
    STALE = "stale"
    """The claim is not held any more: the job may be running elsewhere. Nothing was changed."""


class Ruling(msgspec.Struct, frozen=True):
    """The answer to something that a person asked of one job: its state afterwards; None if there is no such job."""

    is_done: bool
    state: JobState | None
    holder: UUID | None = None
    """Of a retry that was refused because its idempotency key has passed on: the job that has it now."""


class Tick(msgspec.Struct, frozen=True):
    """What a tick moved, and how long until the next job is due; None if none is scheduled."""

    ripened: int
    expired: int
    next_in: timedelta | None
    opens_in: timedelta | None = None
    """How long until a rate has room for those that wait there; None if none waits. What is not used then is lost."""


class Held(msgspec.Struct, frozen=True):
    """What a worker believes that it holds: its jobs, and the tokens of claims whose answer it still awaits.

    It may have been read from the memory of another process, a moment before the beat. So it need not name what was
    claimed since, but must name every claim that was sent before the last beat was answered.
    """

    jobs: Mapping[UUID, UUID]
    claiming: frozenset[UUID] = frozenset()


class Beaten(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    is_alive: bool
    """False: you were declared dead; drop everything and register anew."""
    taken: list[UUID] = []
    """Jobs you hold that are not yours any more: stop them."""
    cancelled: list[UUID] = []
    """Jobs of yours whose cancellation was asked for."""
    released: list[UUID] = []
    """Jobs the store thought you held; they were given back."""
    is_quiet: bool = False
    """Claim nothing more: somebody wants you to stop."""


class ProgressReport(msgspec.Struct, frozen=True):
    """What a running job says of itself, under the token of its claim. A note that is too long is cut."""

    id: UUID
    token: UUID
    done: float
    total: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "note", storable(self.note)[:LONGEST_NOTE])


class Progress(msgspec.Struct, frozen=True):
    """How far a job has come, as its task has told it: `done` of `total`, if it knows that, and when it said so."""

    done: float
    total: float | None
    note: str
    at: datetime


class NewWorker(msgspec.Struct, frozen=True):
    """A worker that registers."""

    id: UUID
    name: str
    host: str = ""
    pid: int = 0
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    """All that it has the code of, aliases too; empty if it does not say."""


class WorkerRecord(msgspec.Struct, frozen=True):
    """A worker as the store knows it."""

    id: UUID
    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    started_at: datetime
    beat_at: datetime
    beat: int
    dead_at: datetime | None = None
    active: int = 0
    is_quiet: bool = False
    """It was asked to claim nothing more."""
    tasks: tuple[str, ...] = ()
    """All that it has the code of, aliases too; empty if it does not say."""


class QueueRecord(msgspec.Struct, frozen=True):
    """A queue as the store knows it. A bound that was set at run time overrides the declared one."""

    name: str
    waiting: int = 0
    scheduled: int = 0
    declared_bound: int = DEFAULT_BOUND
    override_bound: int | None = None
    scheduled_bound: int = DEFAULT_BOUND
    paused_at: datetime | None = None

    @property
    def bound(self) -> int:
        return self.declared_bound if self.override_bound is None else self.override_bound

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None

    def refuse(self, waiting: int, scheduled: int) -> QueueFull | None:
        """The error for so many more jobs, if there is no room for them."""
        if waiting and self.waiting + waiting > self.bound:
            return _full(self.name, f"{self.waiting:,} jobs wait", waiting, self.bound)
        if scheduled and self.scheduled + scheduled > self.scheduled_bound:
            return _full(self.name, f"{self.scheduled:,} jobs are scheduled", scheduled, self.scheduled_bound)
        return None


class TaskDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that must be known of a task to enqueue it without its code."""

    name: str
    queue: str = "default"
    priority: int = 5
    max_attempts: int = 5
    delivery: str = "at_least_once"
    soft_timeout: float | None = None
    timeout: float | None = None
    expires: float | None = None
    idempotency_key: str | None = None
    unique: str | None = None
    unique_window: float | None = None
    limits: tuple[LimitDefinition, ...] = ()
    breaker: str | None = None
    """Its jobs wait while this one is open."""
    redact: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    on_dead: tuple[str, ...] = ()
    """The tasks that are told of its dead letters."""
    schema: dict[str, Any] = {}

    def is_called(self, name: str) -> bool:
        """Whether this is its name, or was."""
        return name == self.name or name in self.aliases


class PublishedTask(msgspec.Struct, frozen=True):
    """A definition in the store, and when it last changed."""

    definition: TaskDefinition
    revision: int
    published_at: datetime


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides whether a job runs, as it stood at one moment: see explain.py."""

    now: datetime
    """By the store's clock."""
    job: JobRecord
    paused_at: datetime | None = None
    """Since when its queue is paused."""
    ahead: int = 0
    """If it is ready: those that are claimed before it, up to MOST_AHEAD. In a line, only those of that line."""
    lines_ahead: int = 0
    """If it is ready: lines of its queue with ready jobs whose turn comes before, up to MOST_AHEAD."""
    line: Line | None = None
    gates: tuple[Gate, ...] = ()
    """Those that its line leads through. The holder of an order is the first one at work if there are several."""
    holders: Mapping[UUID, JobState] = {}
    """The jobs that have the orders among them."""
    workers: tuple[WorkerRecord, ...] = ()
    """Those that are not known to be dead, and its own."""
    task: PublishedTask | None = None
    progress: Progress | None = None
    breaker: BreakerRecord | None = None
    """The one that it waits for, or that of its task, unless it is closed. A moment later than the rest: whoever asks
    looks for it by its name."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to read. Everything given must hold; `tags` must all be there; `args` compares dotted names."""

    states: frozenset[JobState] = frozenset()
    queue: str | None = None
    task: str | None = None
    tags: tuple[str, ...] = ()
    args: Mapping[str, str | int | float | bool | None] = {}
    created_from: datetime | None = None
    created_before: datetime | None = None
    finished_before: datetime | None = None
    error_type: str | None = None


class Page(msgspec.Struct, frozen=True):
    """Jobs, newest first, and the cursor of the next page; None on the last one."""

    jobs: list[JobRecord]
    next_cursor: UUID | None = None


class Pruned(msgspec.Struct, frozen=True):
    """What a prune removed. `is_done`: there is nothing more to remove now."""

    jobs: int
    keys: int
    workers: int
    is_done: bool


# ── hints ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class HintKind(StrEnum):
    WORK = "work"
    """Jobs became ready in a queue."""
    FINISHED = "finished"
    """Jobs reached a final state."""
    CANCEL = "cancel"
    """The cancellation of running jobs was asked for."""
    CONTROL = "control"
    """A queue was paused, resumed or given another bound; or these workers, by id, were asked to be quiet."""
    LATER = "later"
    """Jobs were scheduled: the next one may be due earlier than was thought."""
    ROOM = "room"
    """A queue that was full, or nearly so, has room again."""
    SCHEDULES = "schedules"
    """Schedules were declared or changed: the next one may be due earlier than was thought."""
    BREAKERS = "breakers"
    """Breakers were opened, tried, closed or declared."""


class Hint(msgspec.Struct, frozen=True):
    """Something may have changed. Without queues or ids: anywhere."""

    kind: HintKind
    queues: frozenset[str] = frozenset()
    ids: frozenset[UUID] = frozenset()

    def concerns(self, ids: Iterable[UUID]) -> bool:
        return not self.ids or not self.ids.isdisjoint(ids)


# ── the verbs ────────────────────────────────────────────────────────────────────────────────────────────────────────


class JobVerbs(Protocol):
    """What producers and workers do with jobs."""

    async def enqueue(self, jobs: Sequence[NewJob], tx: object | None = None) -> list[Enqueued]:
        """Insert jobs, or find them by id, idempotency key or unique key: all of them or none.

        When this returns the jobs are on disk. `QueueFull` if a bound refuses any of them, `IdempotencyConflict`
        if a key was used with another fingerprint. Jobs that are exempt are not refused by a bound; the others find
        them there. With `tx`, a connection of the caller's, the jobs
        exist if and only if the caller commits, and the answer comes before that.
        """
        ...

    def enqueue_in(self, tx: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """The same on a synchronous connection of the caller's, in the caller's thread.

        `WrongDatabase` if that is not this store's database. A refusal leaves the transaction usable.
        """
        ...

    async def claim(
        self,
        worker: UUID,
        token: UUID,
        demand: Mapping[str, int],
        at_once: Mapping[str, int] | None = None,
        most_behind: int = 0,
    ) -> list[ClaimedJob]:
        """Take ready jobs, at most `demand` of each queue, for this worker, under a token it has just made.

        By priority, then given back before fresh, then in the order of becoming ready. Each job goes to
        one claimer; paused queues and expired jobs are passed over. Charges an attempt. The order of the answer is
        the order to start in. `WorkerDeclaredDead` if the worker is not registered and alive.

        Jobs in lines are claimed as far as their gates have room, by priority, then by the turns of their lines.
        Where there are jobs of the same priority in lines and others, each kind gets about half of the slots. Of those
        under a rate with a window of less than a minute or so, at most `at_once` are taken, since they are counted when
        they are claimed, not when they start.

        Of one order, several may be claimed together, as a train: each but the first is `behind` another one, since
        nobody else could run it meanwhile. At most `most_behind` of these are taken, beyond what was demanded.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Record what came of claimed jobs, in one transaction, each fenced by its token.

        A stale settlement changes nothing; one that is repeated after a lost answer is recognised.
        """
        ...

    async def tick(self) -> Tick:
        """Move what has become due to ready, and bury what has expired; at most a batch of each."""
        ...


class Row(Protocol):
    """A row of an answer: by position, by name, or unpacked. What the drivers have in common."""

    def __getitem__(self, key: int | str, /) -> Any: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def keys(self) -> Iterable[str]: ...


class WorkTransaction(Protocol):
    """An open transaction in which a task writes, and in which its job is completed.

    It is used on the event loop that opened it, one statement at a time, and ends with `complete` or `roll_back`.
    What a statement raises is the driver's own error; `TransactionLost` if the store had to end it before.
    """

    @property
    def connection(self) -> Any:
        """The driver's own. What is done with it belongs to the transaction."""
        ...

    async def execute(self, sql: str, args: Sequence[Any]) -> None: ...

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]: ...

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Insert jobs that exist if and only if this commits. A refusal leaves it usable; nothing is waited for."""
        ...

    async def complete(self, settlement: Settlement) -> Settled:
        """Complete the job, as the last statement, and commit: on disk when this returns.

        If the claim is stale, all of it is rolled back. If the answer to the commit is lost, it is found out by the
        token what became of it; `OutcomeUnknown` if that can't be. Any other error: nothing was written.
        """
        ...

    async def roll_back(self) -> None:
        """Undo all of it. Never raises, and does no harm when it is over already."""
        ...


class WorkVerbs(Protocol):
    """What tasks do to the database themselves."""

    async def open_work(self, job: UUID, timeout: timedelta) -> WorkTransaction:
        """Open a transaction for a running job, which will be over after `timeout`.

        Waits for as long as that, if need be, for those of other jobs to end.

        When the job is taken from its worker, or the worker is lost, what the transaction has locked is freed.
        """
        ...


class ProgressVerbs(Protocol):
    """How far jobs have come. It is for people to look at: nothing depends on it, and it is not waited for on disk."""

    async def report_progress(self, reports: Sequence[ProgressReport]) -> None:
        """Keep the last report of each job.

        One counts if its token is that of the job's last claim, also when that has been settled meanwhile. If the job
        was taken away, or is held by somebody else, the report is dropped in silence.
        """
        ...

    async def progress(self, ids: Sequence[UUID]) -> dict[UUID, Progress]:
        """What was last reported in the last run of each job; nothing of those that did not report in it.

        It can be read until the job runs again, also after its end, and goes with the job.
        """
        ...


class SteeringVerbs(Protocol):
    """What people do with jobs. Each id gets its own ruling; what a state does not allow is left as it is."""

    async def cancel(self, ids: Sequence[UUID], reason: str) -> dict[UUID, Ruling]:
        """Waiting jobs are cancelled at once; active ones are asked to stop and stay active until they have."""
        ...

    async def asked_to_stop(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        """Those of these active jobs whose cancellation was asked for, and the reason.

        Workers ask it of all that they have in hand, again and again, so it reads no more of a job than that.
        """
        ...

    async def retry(self, ids: Sequence[UUID], args_json: str | None = None) -> dict[UUID, Ruling]:
        """Dead or cancelled jobs become pending with a fresh budget, if asked with other arguments.

        Nobody needs to be told of them any more, until they go dead again.
        """
        ...

    async def run_now(self, ids: Sequence[UUID]) -> dict[UUID, Ruling]:
        """Jobs that wait for their time become ready."""
        ...

    async def discard(self, ids: Sequence[UUID]) -> dict[UUID, Ruling]:
        """Dead letters are deleted, with their history. Their keys stay taken until they expire."""
        ...

    async def prune(self, *, dead_before: datetime | None = None, batch: int = 1000) -> Pruned:
        """Delete what is past its retention, at most about a batch; dead letters only if a time is given for them."""
        ...


class DeadLetterVerbs(Protocol):
    """Dead letters that somebody must be told of. A job is marked whenever it goes dead, whatever the reason."""

    async def unannounced(self, limit: int) -> list[JobRecord]:
        """Dead jobs that are still marked, those that went dead first before the others."""
        ...

    async def announced(self, jobs: Sequence[tuple[UUID, int]]) -> None:
        """Take the mark from these jobs, each with the generation that was told of.

        One that has been retried meanwhile, and has gone dead again, keeps its mark.
        """
        ...


class WorkerVerbs(Protocol):
    """Who works, and who does not any more."""

    async def register(self, worker: NewWorker) -> None:
        """Make a worker known and alive; on disk when this returns.

        What the same id still held from an earlier life is rescued: a worker begins with empty hands.
        """
        ...

    async def beat(self, worker: UUID, held: Held) -> Beaten:
        """Say that a worker lives, and compare what it holds with what the store thinks it holds.

        A job counts as held until its settlement has been answered. What is not held is given back, if it was started
        no later than the beat before this one, or than the registration: what is younger may have been claimed after
        `held` was read. So a claim whose answer was lost is given back at the second beat after it.
        """
        ...

    async def sightings(self) -> list[Sighting]:
        """Every worker that is not known to be dead, for an Observer."""
        ...

    async def rescue(self, gone: Mapping[UUID, int]) -> list[UUID]:
        """Declare workers dead that still stand at the beat given, and take over the jobs of all that are not alive.

        Nobody's attempt is charged, but the crash is counted. Returns the jobs taken over, at most a batch.
        """
        ...

    async def bury_worker(self, worker: UUID, settlements: Sequence[Settlement] = ()) -> list[UUID]:
        """Declare a worker dead whose end was seen, settle what is known of its jobs, and give back the rest.

        Whoever saw the end knows what had started. The rest was on its way to the worker, so it is not counted as a
        crash; only an at-most-once job goes dead, to be on the safe side.
        """
        ...

    async def depart(self, worker: UUID) -> list[UUID]:
        """Take leave in good order: what is still held is given back uncharged, and the worker is forgotten.

        An at-most-once job that is still held goes dead, since it may have started. Settle first what did not.
        """
        ...

    async def quiet(self, worker: UUID) -> bool:
        """Ask a worker to claim nothing more, which its next beat tells it. What it runs goes on.

        False if there is no such worker alive. It lasts until the worker registers anew.
        """
        ...

    async def workers(self) -> list[WorkerRecord]: ...


class QueueVerbs(Protocol):
    """Queues exist as soon as they are used."""

    async def declare_queues(self, queues: Sequence[Queue]) -> None:
        """Take over the bounds from the code; those set at run time stay in force."""
        ...

    async def queues(self) -> list[QueueRecord]: ...

    async def busy_queues(self) -> list[str]:
        """The names of those with ready jobs. Costs no more with a million jobs than with one."""
        ...

    async def pause(self, queue: str) -> None:
        """Claim nothing from it any more. What runs goes on, and it can still be enqueued to."""
        ...

    async def resume(self, queue: str) -> None: ...

    async def set_bound(self, queue: str, bound: int | None) -> None:
        """Override the declared bound; None goes back to it."""
        ...


class TaskVerbs(Protocol):
    """Task definitions, for producers that don't have the code."""

    async def publish_tasks(self, definitions: Sequence[TaskDefinition], code_age: timedelta | None = None) -> None:
        """Add or replace definitions. One that has not changed keeps its revision.

        `code_age` is how long the code that they come from has been running. A definition of younger code stays: in a
        rolling deploy, old workers still start processes now and then, and these publish too. Of code that was started
        at nearly the same time, either may win.
        """
        ...

    async def tasks(self, names: Sequence[str] | None = None) -> list[PublishedTask]:
        """The definitions of these names or aliases, or all of them."""
        ...


ScheduleChange = Callable[[ScheduleRecord | None, datetime], ScheduleRecord | None]
"""What a schedule becomes, from what it is and the time; None: there is none. See holdfast.schedule."""


class DueSchedules(msgspec.Struct, frozen=True):
    """Schedules whose time has come, by the store's clock, and how long until the next one is due; None if none is."""

    now: datetime
    schedules: list[ScheduleRecord]
    next_in: timedelta | None


class ScheduleVerbs(Protocol):
    """What is to be enqueued again and again."""

    async def declare_schedules(self, plans: Mapping[str, Plan], code_age: timedelta | None = None) -> None:
        """Take over what the code says of its schedules, by their names; what was set at run time stays in force.

        `code_age` is as with tasks: what younger code says stays. Others of the database are left as they are; one
        that no worker declares any more makes no jobs after a while.
        """
        ...

    async def schedules(self, names: Sequence[str] | None = None) -> list[ScheduleRecord]:
        """Those of these names, or all of them, also those that were removed from the code's; by name."""
        ...

    async def change_schedule(self, name: str, change: ScheduleChange) -> ScheduleRecord | None:
        """Make of a schedule what `change` says, and return that. What it raises changes nothing.

        It must be pure: it may be asked more than once, in any thread, and nobody waits for it.
        """
        ...

    async def due_schedules(self, limit: int) -> DueSchedules:
        """Schedules that stand at a tick which is over, the longest over first; no orphans."""
        ...

    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        """Enqueue the jobs of ticks and move their schedules on, in one transaction; on disk when this returns.

        Each is done if its schedule still stands where it stood when this was decided, so that of any number of
        schedulers one does it. No bound refuses the jobs. Where overlap is to be skipped and the job of an earlier
        tick is unfinished, the schedule moves on without one. A tick for which there is a job makes no second one.
        """
        ...

    async def ticks(self, schedule: str, limit: int = 20) -> list[TickRecord]:
        """The last ticks that made a job, latest first; about a hundred are remembered."""
        ...


BreakerChange = Callable[[Circuit, datetime], Circuit]
"""What a breaker becomes, from what it is and the time. See holdfast.breaker."""


class BreakerVerbs(Protocol):
    """What keeps failing is left alone for a while, by everybody. The store's clock decides.

    How a breaker stands may be forgotten with the last moments before a power loss.
    """

    async def declare_breakers(
        self, policies: Mapping[str, BreakerPolicy], code_age: timedelta | None = None
    ) -> list[BreakerRecord]:
        """Take over what the code says of its breakers, by their names, and return how they stand, by name.

        `code_age` is as with tasks: what younger code says stays.
        """
        ...

    async def breakers(self, names: Sequence[str] | None = None) -> list[BreakerRecord]:
        """How those of these names stand, or all of them; by name."""
        ...

    async def enter_breaker(self, name: str, id: UUID) -> Admission:
        """Ask to pass. While it is half-open, as many may as it has probes, each with a permit under an id of its own.

        Asking again with the same id gives the same permit. `BreakerNotFound` if nobody has declared it.
        """
        ...

    async def report_breakers(self, reports: Sequence[BreakerReport]) -> list[BreakerRecord]:
        """Take note of what came of it when breakers were passed, in this order, and return how they stand now.

        Reports about a breaker that nobody has declared are dropped.
        """
        ...

    async def change_breaker(self, name: str, change: BreakerChange) -> BreakerRecord:
        """Make of a breaker what `change` says, and return how it stands then. `BreakerNotFound` if there is none.

        `change` must be pure: it may be asked more than once, in any thread, and nobody waits for it.
        """
        ...

    async def let_pass(self, breaker: str, limit: int) -> int:
        """Make jobs ready that wait for a breaker, if it is closed, and return how many: at most `limit`.

        Those that were to go on first come first. Others that wait for their time are left alone.
        """
        ...


class ReadingVerbs(Protocol):
    async def get(self, ids: Sequence[UUID]) -> list[JobRecord]:
        """Those of the jobs that exist, in the order asked for."""
        ...

    async def page(self, filter: Filter, cursor: UUID | None = None, limit: int = 50) -> Page:
        """Jobs that pass the filter, newest first, after the cursor."""
        ...

    async def count(self, filter: Filter) -> int: ...

    async def finished(self, ids: Sequence[UUID]) -> list[JobRecord]:
        """Those of the jobs that are in a final state."""
        ...

    async def attempts(self, id: UUID) -> list[Attempt]:
        """Every run of a job that is remembered, oldest first."""
        ...


class ExplainingVerbs(Protocol):
    """What somebody must know who asks why a job does not run."""

    async def circumstances(self, id: UUID) -> Circumstances | None:
        """All that decides about one job, read at one moment; None if there is no such job.

        It costs no more than a fixed number of look-ups, however many jobs there are.
        """
        ...


class LimitVerbs(Protocol):
    """Gates, as people look at them and set them."""

    async def limits(
        self, name: str | None = None, kind: GateKind | None = None, key: str | None = None, limit: int = 100
    ) -> list[LimitRecord]:
        """Those that are used, or were lately: first those that jobs wait for, then by name, kind and key."""
        ...

    async def override_limit(self, rule: GateRule, most: int | None, *, makes: bool = True) -> LimitRecord | None:
        """Let so many through a gate, over what the code says; None goes back to that. It holds for the next claim.

        What was held up by it and is not any more is opened, and those who wait for work are told. If there is no such
        gate, it is made as the rule says; or, unless that is wanted, the answer is None.
        """
        ...


class Store(
    JobVerbs,
    WorkVerbs,
    ProgressVerbs,
    SteeringVerbs,
    DeadLetterVerbs,
    WorkerVerbs,
    QueueVerbs,
    TaskVerbs,
    ScheduleVerbs,
    LimitVerbs,
    ExplainingVerbs,
    BreakerVerbs,
    ReadingVerbs,
    Protocol,
):
    """Everything a database must do for Holdfast."""

    async def open(self) -> None:
        """Connect, bring the schema up to date, be ready. Idempotent; the other verbs do it on first use."""
        ...

    async def close(self) -> None:
        """Finish what is under way and let go of everything. A closed store opens again on use."""
        ...

    def abandon(self) -> None:
        """After a fork, in the child: let go of everything without touching it, since the parent still uses it."""
        ...

    def changes(self, kinds: Iterable[HintKind]) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        """Hints as they come. They may be late, doubled, merged, or lost: whoever waits must also look now and then."""
        ...


def _full(queue: str, depth: str, more: int, bound: int) -> QueueFull:
    never_fits = more > bound
    if never_fits:
        advice = "That many never fit: send fewer at once, or raise the bound."
    else:
        advice = "Nothing was enqueued; try again later, add workers, or raise the bound."
    message = f"Queue {queue!r} is full: {depth}, {more:,} more would pass its bound of {bound:,}. {advice}"
    return QueueFull(message, queue=queue, never_fits=never_fits)


def crash_of(worker: UUID | None) -> Crashed:
    """The crash that rescue records: the worker is gone, and nobody knows whose fault it was."""
    failure = Failure(FailureKind.CRASH, "WorkerLost", f"Worker {worker} was lost while it held this job.")
    return Crashed(failure, with_worker=True)


# ── checks that every store and every caller shares ──────────────────────────────────────────────────────────────────


def check_name(value: object, option: str, longest: int = LONGEST_NAME) -> str:
    """A name that every store can keep and every terminal can show."""
    if not isinstance(value, str) or not value or len(value) > longest or not value.isprintable():
        raise InvalidOption(f"{option} must be 1 to {longest} printable characters.")
    return value


def check_bound(value: object, option: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000_000:
        raise InvalidOption(f"{option} must be a whole number from 1 to 1,000,000,000.")
    return value


def check_batch(size: int) -> None:
    if size > LARGEST_BATCH:
        raise InvalidOption(
            f"{size:,} at once are too many for one transaction. Send at most {LARGEST_BATCH:,} a call."
        )


def check_limit(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
        raise InvalidOption(f"limit must be a number from 1 to {LARGEST_PAGE:,}.")
    return limit
