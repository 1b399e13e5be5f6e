"""Steering, in namespaces: `hf.jobs`, `hf.dead`, `hf.queues`, `hf.workers`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict, Unpack
from uuid import UUID

from holdfast.engine import Engine
from holdfast.errors import InvalidOption
from holdfast.explanation import Explanation
from holdfast.handle import untyped
from holdfast.ids import check_id
from holdfast.job import Attempt, JobRecord, JobState
from holdfast.options import check_reason, check_texts, check_time, refuse_unknown
from holdfast.store import Filter, Page, QueueRecord, Ruling, WorkerRecord, check_name

_BATCH = 500


class Filters(TypedDict, total=False):
    """Which jobs. Everything given must hold."""

    state: JobState | str | Sequence[JobState | str]
    queue: str
    task: str
    tags: Sequence[str]
    args: Mapping[str, str | int | float | bool | None]
    since: datetime
    until: datetime
    finished_before: datetime
    error_type: str


@dataclass(frozen=True)
class Done:
    """What a bulk operation came to: how many jobs it changed, and how many it had to leave as they were."""

    changed: int
    skipped: int = 0


class Namespace:
    """Verbs of one kind."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<hf.{type(self).__name__.lower()}>"


class Jobs(Namespace):
    """Jobs in all states: look, count, search, cancel."""

    async def aget(self, id: UUID | str) -> JobRecord:
        """All that is known of a job; JobNotFound if there is none."""
        return await untyped(self._engine, check_id(id)).arecord()

    def get(self, id: UUID | str) -> JobRecord:
        """`aget` for synchronous code."""
        return self._engine.wait(self.aget(id), "hf.jobs.aget")

    async def aattempts(self, id: UUID | str) -> list[Attempt]:
        """Every run of a job that is remembered, oldest first."""
        return await untyped(self._engine, check_id(id)).aattempts()

    def attempts(self, id: UUID | str) -> list[Attempt]:
        """`aattempts` for synchronous code."""
        return self._engine.wait(self.aattempts(id), "hf.jobs.aattempts")

    async def aexplain(self, id: UUID | str) -> Explanation:
        """Why a job does not run, or what it does; JobNotFound if there is none."""
        return await untyped(self._engine, check_id(id)).aexplain()

    def explain(self, id: UUID | str) -> Explanation:
        """`aexplain` for synchronous code."""
        return self._engine.wait(self.aexplain(id), "hf.jobs.aexplain")

    async def apage(self, *, cursor: UUID | str | None = None, limit: int = 50, **filters: Unpack[Filters]) -> Page:
        """One page of jobs, newest first, and the cursor of the next one."""
        store = await self._engine.ready()
        return await store.page(check_filters(filters), None if cursor is None else check_id(cursor, "cursor"), limit)

    def page(self, *, cursor: UUID | str | None = None, limit: int = 50, **filters: Unpack[Filters]) -> Page:
        """`apage` for synchronous code."""
        return self._engine.wait(self.apage(cursor=cursor, limit=limit, **filters), "hf.jobs.apage")

    async def acount(self, **filters: Unpack[Filters]) -> int:
        """How many jobs there are."""
        store = await self._engine.ready()
        return await store.count(check_filters(filters))

    def count(self, **filters: Unpack[Filters]) -> int:
        """`acount` for synchronous code."""
        return self._engine.wait(self.acount(**filters), "hf.jobs.acount")

    async def acancel(self, *, reason: str = "", everything: bool = False, **filters: Unpack[Filters]) -> Done:
        """Cancel all unfinished jobs that pass the filter, in batches; running ones are asked to stop."""
        store = await self._engine.ready()
        why = check_reason(reason)
        unfinished = (JobState.PENDING, JobState.RETRYING, JobState.ACTIVE)
        filter = _bulk_filter(filters, unfinished, everything, "hf.jobs.cancel")
        return await _in_batches(self._engine, filter, lambda ids: store.cancel(ids, why))

    def cancel(self, *, reason: str = "", everything: bool = False, **filters: Unpack[Filters]) -> Done:
        """`acancel` for synchronous code."""
        return self._engine.wait(self.acancel(reason=reason, everything=everything, **filters), "hf.jobs.acancel")


class Dead(Namespace):
    """The dead letters: nothing leaves them unless somebody says so."""

    async def apage(self, *, cursor: UUID | str | None = None, limit: int = 50, **filters: Unpack[Filters]) -> Page:
        """One page of dead letters, newest first, and the cursor of the next one."""
        store = await self._engine.ready()
        filter = _with_states(filters, (JobState.DEAD,))
        return await store.page(filter, None if cursor is None else check_id(cursor, "cursor"), limit)

    def page(self, *, cursor: UUID | str | None = None, limit: int = 50, **filters: Unpack[Filters]) -> Page:
        """`apage` for synchronous code."""
        return self._engine.wait(self.apage(cursor=cursor, limit=limit, **filters), "hf.dead.apage")

    async def acount(self, **filters: Unpack[Filters]) -> int:
        """How many dead letters there are."""
        store = await self._engine.ready()
        return await store.count(_with_states(filters, (JobState.DEAD,)))

    def count(self, **filters: Unpack[Filters]) -> int:
        """`acount` for synchronous code."""
        return self._engine.wait(self.acount(**filters), "hf.dead.acount")

    async def aretry(self, *, everything: bool = False, **filters: Unpack[Filters]) -> Done:
        """Run all dead letters that pass the filter again, in batches."""
        store = await self._engine.ready()
        filter = _bulk_filter(filters, (JobState.DEAD,), everything, "hf.dead.retry")
        return await _in_batches(self._engine, filter, store.retry)

    def retry(self, *, everything: bool = False, **filters: Unpack[Filters]) -> Done:
        """`aretry` for synchronous code."""
        return self._engine.wait(self.aretry(everything=everything, **filters), "hf.dead.aretry")

    async def adiscard(self, *, everything: bool = False, **filters: Unpack[Filters]) -> Done:
        """Delete all dead letters that pass the filter, in batches. They can't be brought back."""
        store = await self._engine.ready()
        filter = _bulk_filter(filters, (JobState.DEAD,), everything, "hf.dead.discard")
        return await _in_batches(self._engine, filter, store.discard)

    def discard(self, *, everything: bool = False, **filters: Unpack[Filters]) -> Done:
        """`adiscard` for synchronous code."""
        return self._engine.wait(self.adiscard(everything=everything, **filters), "hf.dead.adiscard")


class Queues(Namespace):
    """Queues: depth, bound, pause and resume."""

    async def alist(self) -> list[QueueRecord]:
        """All queues that were ever used or declared, by name."""
        return await (await self._engine.declared()).queues()

    def list(self) -> list[QueueRecord]:
        """`alist` for synchronous code."""
        return self._engine.wait(self.alist(), "hf.queues.alist")

    async def apause(self, queue: str) -> None:
        """Claim nothing from it any more. What runs goes on, and it can still be enqueued to."""
        await (await self._engine.declared()).pause(check_name(queue, "queue"))

    def pause(self, queue: str) -> None:
        """`apause` for synchronous code."""
        self._engine.wait(self.apause(queue), "hf.queues.apause")

    async def aresume(self, queue: str) -> None:
        """Claim from it again."""
        await (await self._engine.declared()).resume(check_name(queue, "queue"))

    def resume(self, queue: str) -> None:
        """`aresume` for synchronous code."""
        self._engine.wait(self.aresume(queue), "hf.queues.aresume")

    async def abound(self, queue: str, bound: int | None) -> None:
        """Set how many jobs may wait in it, over what the code says; None goes back to that."""
        await (await self._engine.declared()).set_bound(check_name(queue, "queue"), bound)

    def bound(self, queue: str, bound: int | None) -> None:
        """`abound` for synchronous code."""
        self._engine.wait(self.abound(queue, bound), "hf.queues.abound")


class Workers(Namespace):
    """Who works."""

    async def alist(self) -> list[WorkerRecord]:
        """All workers that are alive, or died lately."""
        return await (await self._engine.ready()).workers()

    def list(self) -> list[WorkerRecord]:
        """`alist` for synchronous code."""
        return self._engine.wait(self.alist(), "hf.workers.alist")

    async def aquiet(self, id: UUID | str) -> bool:
        """Let a worker claim nothing more; what it runs goes on. False if there is no such worker alive.

        It hears of it at once, or with its next heartbeat.
        """
        return await (await self._engine.ready()).quiet(_worker_id(id))

    def quiet(self, id: UUID | str) -> bool:
        """`aquiet` for synchronous code."""
        return self._engine.wait(self.aquiet(id), "hf.workers.aquiet")


def _worker_id(value: object) -> UUID:
    try:
        return value if isinstance(value, UUID) else UUID(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, AttributeError):
        raise InvalidOption("id= takes a worker's id, as hf.workers.list() has it.") from None


# ── filters and batches ──────────────────────────────────────────────────────────────────────────────────────────────


def check_filters(filters: Filters) -> Filter:
    """Check filters as people write them."""
    refuse_unknown(filters, Filters, "filter")
    since, until, ended = filters.get("since"), filters.get("until"), filters.get("finished_before")
    return Filter(
        states=_states(filters.get("state", ())),
        queue=_text(filters.get("queue"), "queue"),
        task=_text(filters.get("task"), "task"),
        tags=tuple(check_name(tag, "tags") for tag in check_texts(filters.get("tags", ()), "tags")),
        args=_arguments(filters.get("args", {})),
        created_from=None if since is None else check_time(since, "since"),
        created_before=None if until is None else check_time(until, "until"),
        finished_before=None if ended is None else check_time(ended, "finished_before"),
        error_type=_text(filters.get("error_type"), "error_type"),
    )


def _text(value: object, name: str) -> str | None:
    return None if value is None else check_name(value, name)


def _arguments(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidOption("args= takes names and values, such as args={'tenant': 'acme'}.")
    wanted: dict[str, Any] = dict(value)
    for name, text in wanted.items():
        if isinstance(text, str):
            check_reason(text, f"args.{name}")
    return wanted


def _states(value: object) -> frozenset[JobState]:
    names = [value] if isinstance(value, str) else value
    try:
        return frozenset(JobState(name) for name in names)  # type: ignore[attr-defined]
    except (ValueError, TypeError):
        raise InvalidOption(f"state is one of {', '.join(JobState)}.") from None


def _with_states(filters: Filters, states: Sequence[JobState]) -> Filter:
    if "state" in filters:
        raise InvalidOption("state= can't be given here: it is fixed. Use hf.jobs for other states.")
    return check_filters({**filters, "state": states})


def _bulk_filter(filters: Filters, states: Sequence[JobState], everything: bool, verb: str) -> Filter:
    """A bulk operation without a filter is more often a slip than a wish."""
    if not filters and not everything:
        raise InvalidOption(f"{verb}() needs a filter, such as task=…; everything=True means all of them.")
    return _with_states(filters, states)


async def _in_batches(
    engine: Engine, filter: Filter, change: Callable[[Sequence[UUID]], Awaitable[dict[UUID, Ruling]]]
) -> Done:
    changed = skipped = 0
    async for ids in _batches(engine, filter):
        rulings = await change(ids)
        done = sum(ruling.is_done for ruling in rulings.values())
        changed, skipped = changed + done, skipped + len(rulings) - done
    return Done(changed, skipped)


async def _batches(engine: Engine, filter: Filter) -> AsyncIterator[list[UUID]]:
    cursor: UUID | None = None
    while True:
        page: Page = await engine.store.page(filter, cursor, _BATCH)
        if page.jobs:
            yield [job.id for job in page.jobs]
        cursor = page.next_cursor
        if cursor is None:
            return
