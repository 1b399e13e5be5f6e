"""New jobs on their way into the database, in two lanes.

Jobs with keys go in a lane of their own: a key may be in use by a transaction that its user keeps open, and who
waits for that must not hold up the others. Calls that meet such a key leave the lane, see strays.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import asyncpg

from holdfast.errors import HoldfastError, OutcomeUnknown, PayloadTooLarge, StoreUnavailable
from holdfast.job import NewJob
from holdfast.store import Enqueued, Hint, HintKind
from holdfast.stores.postgres.admission import Admission
from holdfast.stores.postgres.branch import Branch
from holdfast.stores.postgres.connection import Connection
from holdfast.stores.postgres.lanes import Lane
from holdfast.stores.postgres.request import Options, Outcome, Request, check_keys, is_plain
from holdfast.stores.postgres.statements import statement
from holdfast.stores.postgres.strays import JobCall, Strays

_LANE_PATIENCE = 250
"""Milliseconds to wait in the lane for a transaction that uses a key."""
_LARGEST_CALL = 128 << 20


class Enqueuing:
    """One event loop's lanes."""

    def __init__(
        self,
        branch: Branch,
        admission: Admission,
        send: Callable[[list[Hint], bool], None],
        encode: Callable[[Hint], str],
        make_options: Callable[[], Options],
    ) -> None:
        self._branch = branch
        self._admission = admission
        self._send = send
        self._encode = encode
        self._make_options = make_options
        self._plain: Lane[NewJob, Enqueued] = Lane(self._flush_plain, weigh)
        self._keyed: Lane[NewJob, Enqueued] = Lane(self._flush_keyed, weigh)
        self._strays = Strays(self._enqueue)
        self._recounts: dict[str, asyncio.Task[None]] = {}

    async def run(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if is_plain(jobs):
            return await self._plain.run(jobs)
        check_keys(jobs)
        return await self._keyed.run(jobs)

    async def drain(self) -> None:
        await self._plain.drain()
        await self._keyed.drain()
        await self._strays.drain()
        while self._recounts:
            await asyncio.wait(self._recounts.values())

    # ── lanes ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _flush_plain(self, calls: list[JobCall]) -> None:
        await self._enqueue(calls, None)

    async def _flush_keyed(self, calls: list[JobCall]) -> None:
        stuck = [call for call in calls if self._strays.need(call.items)]
        for call in stuck:
            self._strays.take([call])
        for batch in _without_shared_ids([call for call in calls if call not in stuck]):
            try:
                await self._enqueue(batch, _LANE_PATIENCE)
            except asyncpg.LockNotAvailableError:
                self._strays.take(batch)

    # ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _enqueue(self, calls: list[JobCall], lock_timeout: int | None) -> None:
        """Do calls in one transaction; one by one if one of them can't be done and spoils it for the others."""
        try:
            outcome = await self._ask(calls, lock_timeout)
        except OutcomeUnknown as error:
            _fail(calls, error)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, asyncpg.LockNotAvailableError) and lock_timeout is not None:
                raise error.__cause__ from None
            _fail(calls, error)
        except HoldfastError as error:
            if len(calls) == 1:
                _fail(calls, error)
                return
            for call in calls:
                await self._enqueue([call], lock_timeout)
        else:
            for call, answer in zip(calls, outcome.calls, strict=True):
                if isinstance(answer, HoldfastError):
                    call.fail(answer)
                else:
                    call.answer(answer)

    async def _ask(self, calls: list[JobCall], lock_timeout: int | None) -> Outcome:
        options = self._make_options()
        options.is_locking = True
        options.lock_timeout = lock_timeout
        jobs = [call.items for call in calls]
        request = Request(jobs)
        if request.is_empty:
            return request.unasked()
        more, now = request.counts(), asyncio.get_running_loop().time()
        options.is_admitted = self._admission.admits(more, now)
        options.is_tight = self._admission.is_tight(more)

        notice = self._encode(Hint(HintKind.WORK, frozenset(more))) if _are_due(calls) else None

        async def work(connection: Connection) -> Outcome:
            return await _call(connection, request, options, notice)

        async def replay(connection: Connection) -> Outcome:
            # What came through the first time fills the queues too, so they must be looked at anew.
            options.is_admitted = False
            return await _call(connection, Request(jobs, is_replay=True), options, None)

        try:
            outcome = await self._branch.run(work, replay=replay, advice="Enqueue the jobs again with options(id=…).")
        except OutcomeUnknown as error:
            error.ids = [new.id for call in calls for new in call.items]
            raise
        self._admission.learn(outcome.depths, now)
        for queue, depth in outcome.depths.items():
            if depth.is_old:
                self._recount(queue)
        self._admission.count({queue: number for queue, number in more.items() if not _is_counted(outcome, queue)})
        queues: dict[HintKind, set[str]] = {}
        for new in self._accepted(calls, outcome):
            queues.setdefault(HintKind.WORK if _is_due(new) else HintKind.LATER, set()).add(new.queue)
        if queues:
            self._send([Hint(kind, frozenset(names)) for kind, names in queues.items()], outcome.is_told)
        return outcome

    def _recount(self, queue: str) -> None:
        """Have a long queue counted, beside those who enqueue to it."""

        async def work(connection: Connection) -> None:
            await connection.execute(statement("recount"), queue)

        async def whole() -> None:
            try:
                await self._branch.run(work, replay=work)
            except HoldfastError:
                pass  # whoever comes next tries again

        if queue not in self._recounts:
            self._recounts[queue] = task = asyncio.create_task(whole())
            task.add_done_callback(lambda _: self._recounts.pop(queue, None))

    def _accepted(self, calls: list[JobCall], outcome: Outcome) -> list[NewJob]:
        return [
            new
            for call, answer in zip(calls, outcome.calls, strict=True)
            if not isinstance(answer, HoldfastError)
            for new in call.items
        ]


def weigh(jobs: Sequence[NewJob]) -> int:
    """A job counts as many times as it has kilobytes: some thousand small ones, or a hundred of the largest."""
    return sum(1 + len(new.args_json) // 1024 for new in jobs)


def check_size(jobs: Sequence[NewJob]) -> None:
    """All jobs of a call go to the server in one text, and that can hold so much."""
    size = sum(len(new.args_json) for new in jobs)
    if size > _LARGEST_CALL:
        raise PayloadTooLarge(
            f"The arguments of these {len(jobs):,} jobs are {size >> 20:,} MiB, too much for one transaction. "
            f"Send at most {_LARGEST_CALL >> 20:,} MiB a call."
        )


async def _call(connection: Connection, request: Request, options: Options, notice: str | None) -> Outcome:
    """`notice` is what to tell others of the jobs, if that can be done on the way."""
    if request.is_plain and options.is_admitted:
        values = request.jobs(), options.now, request.lines(), notice
        _, is_told = await connection.fetch_row(statement("insert_jobs"), *values)
        return replace(request.admitted(), is_told=is_told)
    answer = await connection.fetch_value(statement("enqueue"), request.jobs(), request.options(options))
    return request.read(answer)


def _is_due(new: NewJob) -> bool:
    return new.delay is None and new.at is None


def _are_due(calls: list[JobCall]) -> bool:
    return all(_is_due(new) for call in calls for new in call.items)


def _is_counted(outcome: Outcome, queue: str) -> bool:
    depth = outcome.depths.get(queue)
    return depth is not None and depth.is_certain


def _fail(calls: list[JobCall], error: HoldfastError) -> None:
    for call in calls:
        mine = error
        if isinstance(error, OutcomeUnknown):
            mine = OutcomeUnknown(str(error), ids=[new.id for new in call.items])
            mine.__cause__ = error.__cause__
        call.fail(mine)


def _without_shared_ids(calls: list[JobCall]) -> list[list[JobCall]]:
    """Batches in which no id stands twice. Mostly there is one."""
    batches: list[tuple[list[JobCall], set[object]]] = []
    for call in calls:
        ids = {new.id for new in call.items}
        for batch, seen in batches:
            if seen.isdisjoint(ids):
                batch.append(call)
                seen |= ids
                break
        else:
            batches.append(([call], set(ids)))
    return [batch for batch, _ in batches]
