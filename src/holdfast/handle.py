"""Job: the user's handle on one job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.breaker import BreakerState
from holdfast.codec import check_payload, decode_any
from holdfast.engine import Engine
from holdfast.errors import (
    IdempotencyConflict,
    InvalidPayload,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NotAllowedInState,
    UnknownTask,
)
from holdfast.explain import explain
from holdfast.explanation import Explanation
from holdfast.job import Attempt, JobRecord, JobState
from holdfast.options import check_reason
from holdfast.recipe import Recipe, plain_arguments, published_recipe
from holdfast.schema import check_schema
from holdfast.span import Span, parse_span
from holdfast.store import Progress, Ruling
from holdfast.waiting import look

R_co = TypeVar("R_co", covariant=True)


class ResultReader(Protocol[R_co]):
    """What a handle must know of its job's task."""

    def read_result(self, payload: str | None) -> R_co:
        """What the task returned."""
        ...

    async def check_arguments(self, engine: Engine, task: str, payload: str) -> None:
        """Refuse arguments that the task does not accept."""
        ...

    async def recipe(self, engine: Engine, task: str) -> Recipe | None:
        """How calls of the task become jobs; None if nobody here knows that."""
        ...


class Job(msgspec.Struct, Generic[R_co], frozen=True, eq=False, gc=False):
    """A job that was enqueued, or that is asked about by its id. Holds no connection; cheap to make and to keep."""

    _engine: Engine
    id: UUID
    _reader: ResultReader[R_co]
    existing: bool = False
    """The job was there before: its idempotency key, unique key or id was known."""

    def __repr__(self) -> str:
        return f"<Job {self.id}{' (existing)' if self.existing else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def aresult(self, timeout: Span | None = None) -> R_co:
        """Wait until the job has ended and return what its task returned.

        `JobFailed`, with the remote traceback, if it is dead; `JobCancelled` if it was cancelled; `ResultTimeout`
        if it has not ended in time. Cancelling the wait does nothing to the job.
        """
        record = await self._engine.ended(self.id, None if timeout is None else parse_span(timeout, "timeout"))
        if record.state is JobState.COMPLETED:
            return self._reader.read_result(record.result_json)
        raise await self._failure(record)

    def result(self, timeout: Span | None = None) -> R_co:
        """`aresult` for synchronous code."""
        return self._engine.wait(self.aresult(timeout), "job.aresult")

    async def arecord(self) -> JobRecord:
        """All that is known of the job now."""
        return await look(await self._engine.ready(), self.id)

    def record(self) -> JobRecord:
        """`arecord` for synchronous code."""
        return self._engine.wait(self.arecord(), "job.arecord")

    async def astate(self) -> JobState:
        """The job's state now."""
        return (await self.arecord()).state

    def state(self) -> JobState:
        """`astate` for synchronous code."""
        return self._engine.wait(self.astate(), "job.astate")

    async def aattempts(self) -> list[Attempt]:
        """Every run of the job that is remembered, oldest first."""
        await self.arecord()
        return await self._engine.store.attempts(self.id)

    def attempts(self) -> list[Attempt]:
        """`aattempts` for synchronous code."""
        return self._engine.wait(self.aattempts(), "job.aattempts")

    async def aprogress(self) -> Progress | None:
        """How far the task says it is, by `ctx.progress(…)` in its last run; None if it has said nothing.

        It may be half a second old while the job runs.
        """
        found = await (await self._engine.ready()).progress([self.id])
        if self.id not in found:
            await self.arecord()
        return found.get(self.id)

    def progress(self) -> Progress | None:
        """`aprogress` for synchronous code."""
        return self._engine.wait(self.aprogress(), "job.aprogress")

    async def aexplain(self) -> Explanation:
        """Why the job does not run, or what it does. Printed, it is a sentence: "waiting: limit tenant=acme 4/4; …"."""
        store = await self._engine.ready()
        found = await store.circumstances(self.id)
        if found is None:
            raise _not_found(self.id)
        name = found.job.breaker or (None if found.task is None else found.task.definition.breaker)
        if name is not None:
            breakers = await store.breakers([name])
            still = next((each for each in breakers if each.state is not BreakerState.CLOSED), None)
            found = replace(found, breaker=still)
        return explain(found)

    def explain(self) -> Explanation:
        """`aexplain` for synchronous code."""
        return self._engine.wait(self.aexplain(), "job.aexplain")

    # ── steering ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def acancel(self, reason: str = "") -> None:
        """A waiting job is cancelled at once; a running one is asked to stop and stays active until it has."""
        store = await self._engine.ready()
        self._check(await store.cancel([self.id], check_reason(reason)), "cancel", "It has ended already.")

    def cancel(self, reason: str = "") -> None:
        """`acancel` for synchronous code."""
        self._engine.wait(self.acancel(reason), "job.acancel")

    async def aretry(self, args: Mapping[str, Any] | None = None) -> None:
        """Run a dead or cancelled job again, with a fresh budget of attempts. Its history is kept.

        The arguments named in `args` are replaced, the others stay; they are checked like those of a new job. Those
        that its rate, limit, order or tenant is found by can't be replaced: `InvalidPayload`.
        """
        store = await self._engine.ready()
        edited = None if args is None else await self._edited(args)
        self._check(await store.retry([self.id], edited), "retry", "Only dead and cancelled jobs can be retried.")

    def retry(self, args: Mapping[str, Any] | None = None) -> None:
        """`aretry` for synchronous code."""
        self._engine.wait(self.aretry(args), "job.aretry")

    async def arun_now(self) -> None:
        """Don't wait for the time of a scheduled or retrying job any longer."""
        store = await self._engine.ready()
        self._check(await store.run_now([self.id]), "run_now", "Only waiting jobs can be run now.")

    def run_now(self) -> None:
        """`arun_now` for synchronous code."""
        self._engine.wait(self.arun_now(), "job.arun_now")

    async def _edited(self, changes: Mapping[str, Any]) -> str:
        record = await self.arecord()
        changed = plain_arguments(check_payload(changes, task=record.task))
        merged = check_payload({**record.args, **changed}, task=record.task)
        await self._reader.check_arguments(self._engine, record.task, merged)
        recipe = None if record.line is None else await self._reader.recipe(self._engine, record.task)
        if recipe is not None:
            _check_line(record, recipe, merged)
        return merged

    def _check(self, rulings: Mapping[UUID, Ruling], verb: str, why: str) -> None:
        ruling = rulings[self.id]
        if ruling.state is None:
            raise _not_found(self.id)
        if ruling.holder is not None:
            raise IdempotencyConflict(
                f"Job {self.id} can't run again: its key belongs to job {ruling.holder} by now. Retry that one.",
                existing=ruling.holder,
            )
        if not ruling.is_done:
            raise NotAllowedInState(f"{verb}: job {self.id} is {ruling.state}. {why}", state=ruling.state)

    async def _failure(self, record: JobRecord) -> JobFailed:
        if record.state is JobState.CANCELLED:
            reason = f": {record.cancel_reason}" if record.cancel_reason else ""
            return JobCancelled(f"Job {self.id} ({record.task}) was cancelled{reason}.", id=self.id)
        attempts = await self._engine.store.attempts(self.id)
        last = attempts[-1].failure if attempts else None
        trace = last.traceback if last else None
        message = f"Job {self.id} ({record.task}) is dead: {record.error_type}: {record.error_message}"
        return JobFailed(
            f"{message}\n\n{trace}" if trace else message,
            id=self.id,
            error_type=record.error_type,
            error_message=record.error_message,
            traceback=trace,
        )


class Untyped:
    """For jobs whose task is not known here: results are plain data, arguments are checked as far as published."""

    def read_result(self, payload: str | None) -> Any:
        return decode_any(payload)

    async def check_arguments(self, engine: Engine, task: str, payload: str) -> None:
        try:
            published = await engine.published(task)
        except UnknownTask:
            return  # nobody here knows what it takes; its worker will
        check_schema(task, published.definition.schema, payload)

    async def recipe(self, engine: Engine, task: str) -> Recipe | None:
        try:
            return published_recipe((await engine.published(task)).definition)
        except UnknownTask:
            return None


UNTYPED: Final = Untyped()


def untyped(engine: Engine, id: UUID, *, existing: bool = False) -> Job[Any]:
    """A handle on a job whose task is not known here."""
    return Job(engine, id, UNTYPED, existing)


def _check_line(record: JobRecord, recipe: Recipe, edited: str) -> None:
    """Refuse arguments with which a new job would be under another rate, limit, order or tenant: this one stays."""
    after = recipe.line(edited)
    if after is None or after.id_for(record.queue, record.priority) == record.line:
        return
    try:
        before = recipe.line(record.args_json)
    except InvalidPayload:
        before = None  # newer code has other keys
    # What the code says of its rules may have changed since, which is not this edit's doing.
    if before is not None and {gate.id for gate in before.gates} == {gate.id for gate in after.gates}:
        return
    was = {} if before is None else {(gate.kind, gate.name): gate.key for gate in before.gates}
    keys = [
        f"{gate.kind.name.lower()} {gate.key!r}" for gate in after.gates if was.get((gate.kind, gate.name)) != gate.key
    ]
    raise InvalidPayload(
        f"Job {record.id} stays in its line, and with these arguments it would belong to another one "
        f"({', '.join(keys)}). Enqueue a new job with them, and discard this one."
    )


def _not_found(id: UUID) -> JobNotFound:
    return JobNotFound(f"There is no job {id}. It may have been pruned after its retention, or discarded.")
