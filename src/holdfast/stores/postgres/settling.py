"""Settlements on their way into the database.

Mostly every job of a batch is completed, and one statement does it. What that could not do,
since it is stale or was done before, and everything else that can become of a job, is read and decided first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.errors import HoldfastError, OutcomeUnknown, StoreUnavailable
from holdfast.lifecycle import Complete
from holdfast.moment import MICROSECOND
from holdfast.store import Hint, HintKind, Settled, Settlement
from holdfast.stores import decisions
from holdfast.stores.postgres.connection import Connection, Record
from holdfast.stores.postgres.lanes import Call, Lane
from holdfast.stores.postgres.notices import MOST_NAMED
from holdfast.stores.postgres.statements import statement
from holdfast.stores.postgres.transaction import Transaction

if TYPE_CHECKING:
    from holdfast.stores.postgres.office import Office

SettlementCall = Call[Settlement, Settled]


class Settling:
    """One event loop's lane for settlements."""

    def __init__(self, office: Office, key_retention: timedelta) -> None:
        self._office = office
        self._key_retention = key_retention
        self._lane: Lane[Settlement, Settled] = Lane(self._flush)

    async def run(self, settlements: Sequence[Settlement]) -> list[Settled]:
        return await self._lane.run(settlements)

    async def drain(self) -> None:
        await self._lane.drain()

    async def _flush(self, calls: list[SettlementCall]) -> None:
        """Settle calls together; one by one if one of them can't be done and spoils it for the others."""
        try:
            answers = await self._settle([settlement for call in calls for settlement in call.items])
        except HoldfastError as error:
            if len(calls) == 1 or isinstance(error, StoreUnavailable | OutcomeUnknown):
                raise
            for call in calls:
                await self._flush_alone(call)
            return
        first = 0
        for call in calls:
            call.answer(answers[first : first + len(call.items)])
            first += len(call.items)

    async def _flush_alone(self, call: SettlementCall) -> None:
        try:
            call.answer(await self._settle(call.items))
        except HoldfastError as error:
            call.fail(error)

    async def _settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        done = [each for each in settlements if isinstance(each.transition, Complete)]
        # Numbers, since a UUID computes its hash in Python.
        if len({each.id.int for each in settlements}) < len(settlements):
            done = []  # a job that is settled twice at once must be decided about one by one
        if len(done) == len(settlements):
            some = await self._complete_all(done)
            if some is None:
                return [Settled.APPLIED] * len(settlements)
            completed, done = some, []
        else:
            completed = set()

        async def work(it: Transaction) -> tuple[set[UUID], list[Settled]]:
            by_now = completed
            if done:
                by_now, _ = completed_of(done, await it.fetch("complete", *self._values(done)))
                it.hint(HintKind.FINISHED, ids=by_now)
                # With those of the others, since gates must be waited for all at once.
                await it.depart_by_id([each.id for each in done if each.is_lined and each.id in by_now])
            return by_now, await settle_carefully(it, [each for each in settlements if each.id not in by_now])

        completed, answers = await self._office.transact(work)
        others = iter(answers)
        return [Settled.APPLIED if each.id in completed else next(others) for each in settlements]

    async def _complete_all(self, done: Sequence[Settlement]) -> set[UUID] | None:
        """Complete jobs, and return those that were, or None if all were: the others are stale, or were done before."""

        async def work(connection: Connection) -> tuple[list[UUID] | None, list[str]]:
            some, queues = await connection.fetch_row(statement(completing(done)), *self._values(done))
            return some, queues

        async def nothing(_: Connection) -> tuple[list[UUID], list[str]]:
            return [], []  # what came through is found by its token

        advice = "Settle it again: what was done is recognised."
        some, queues = await self._office.run(work, replay=nothing, advice=advice)
        completed = [each.id for each in done] if some is None else list(some)
        if completed:
            named = frozenset(completed) if len(completed) <= MOST_NAMED else frozenset[UUID]()
            self._office.pass_on([Hint(HintKind.FINISHED, ids=named), *opened(queues)])
        return None if some is None else set(some)

    def _values(self, done: Sequence[Settlement]) -> tuple[Any, ...]:
        return complete_values(done, self._office.microseconds, self._key_retention)


def complete_values(done: Sequence[Settlement], now: int | None, key_retention: timedelta) -> tuple[Any, ...]:
    """What complete.sql takes."""
    return (
        [each.id for each in done],
        [each.token for each in done],
        [each.transition.result_json for each in done if isinstance(each.transition, Complete)],
        [each.id for each in done if each.is_keyed],
        now,
        key_retention // MICROSECOND,
    )


def completing(done: Sequence[Settlement]) -> str:
    """The statement that completes these."""
    return "complete_lined" if any(each.is_lined for each in done) else "complete"


def completed_of(done: Sequence[Settlement], found: Sequence[Record]) -> tuple[set[UUID], list[str]]:
    """Those that were completed, while the others are stale, or were done before; and queues that have work now."""
    ((some, queues),) = found
    return {each.id for each in done} if some is None else set(some), queues


def opened(queues: Sequence[str]) -> list[Hint]:
    """What to tell of queues that have work now."""
    return [Hint(HintKind.WORK, frozenset(queues))] if queues else []


async def settle_carefully(it: Transaction, settlements: Sequence[Settlement]) -> list[Settled]:
    """Read the jobs, decide, and keep what was decided."""
    jobs = await it.lock([settlement.id for settlement in settlements])
    answers, ended = decisions.judge_settlements(settlements, jobs)
    if ended:
        await it.save(decisions.end(ended, it.now))
    return answers
