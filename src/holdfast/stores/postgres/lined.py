"""Claims from queues that have work in lines.

A claim that finds such a queue first opens the lines into which jobs have come, in a transaction of its own, and then
takes jobs as traffic.py says, in another: that one may wait for another claimer, and must have nothing in its hands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from holdfast import traffic
from holdfast.errors import WorkerDeclaredDead
from holdfast.gates import LineRule
from holdfast.job import ClaimedJob
from holdfast.store import HintKind
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.connection import Record
from holdfast.stores.postgres.floors import Floors, Look
from holdfast.stores.postgres.ledger import PostgresLedger
from holdfast.stores.postgres.office import Office
from holdfast.stores.postgres.transaction import Transaction

_MOST_WAKES: Final = 1000
_MOST_KNOWN: Final = 10_000
_MOST_ROUNDS: Final = 3
"""How often a claim looks whether lines that another claimer was at have left it something."""

_rules = msgspec.json.Decoder(LineRule)


class LinedClaims:
    """A process's claims from lines, and what it has learnt from them."""

    def __init__(self, floors: Floors) -> None:
        self._floors = floors
        self._known: dict[UUID, str] = {}
        """The rules of lines that are there already, as they were last told."""

    async def claim(
        self, office: Office, worker: UUID, token: UUID, queue: str, slots: int, most_rated: int | None
    ) -> list[ClaimedJob]:
        await self._open(office, queue)
        claimed: list[ClaimedJob] = []
        look = self._floors.of(queue).look(asyncio.get_running_loop().time())
        for _ in range(_MOST_ROUNDS):
            round = _Round(
                worker, token, queue, slots - len(claimed), most_rated, look, frozenset(job.id for job in claimed)
            )
            jobs = await office.transact(round.take, replay=round.find)
            claimed += jobs
            most_rated = None if most_rated is None else max(0, most_rated - round.rated)
            if not jobs or len(claimed) >= slots:
                break
        return claimed

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _open(self, office: Office, queue: str) -> None:
        while await office.transact(lambda it: self._take_wakes(it, queue)) == _MOST_WAKES:
            pass

    async def _take_wakes(self, it: Transaction, queue: str) -> int:
        found = sorted(await it.fetch("take_wakes", queue, _MOST_WAKES), key=lambda row: row["seq"])
        if not found:
            return 0
        ledger = PostgresLedger(it, 0, locks_lines=True)
        woken = {row["line"] for row in found}
        there = await ledger.lines(woken)
        told = {row["line"]: row for row in found if row["rule"] is not None}
        news = {id: row for id, row in told.items() if id not in there or self._known.get(id) != row["rule"]}
        if news:
            await ledger.enter({id: (_rules.decode(row["rule"]), queue, row["priority"]) for id, row in news.items()})
            there = await ledger.lines(woken)
            self._remember(news)
        await traffic.wake(ledger, there)
        await self._put_back(it, queue, woken - there.keys())
        return len(found)

    def _remember(self, news: dict[UUID, Record]) -> None:
        if len(self._known) + len(news) > _MOST_KNOWN:
            self._known.clear()
        self._known |= {id: row["rule"] for id, row in news.items()}

    async def _put_back(self, it: Transaction, queue: str, unknown: set[UUID]) -> None:
        """Somebody else is just making these lines."""
        if unknown:
            await it.fetch("wake", [queue] * len(unknown), list(unknown))


class _Round:
    """One transaction of a claim."""

    def __init__(
        self,
        worker: UUID,
        token: UUID,
        queue: str,
        slots: int,
        most_rated: int | None,
        look: Look,
        known: frozenset[UUID],
    ) -> None:
        """`known` are the jobs that earlier rounds have taken."""
        self._worker = worker
        self._token = token
        self._queue = queue
        self._slots = slots
        self._most_rated = most_rated
        self._look = look
        self._known = known
        self.rated = 0

    async def take(self, it: Transaction) -> list[ClaimedJob]:
        found = await it.fetch("attend", self._worker, self._queue, it.given_now)
        if not found:
            raise WorkerDeclaredDead
        now = found[0]["now"]
        if found[0]["is_paused"]:
            return []

        async def plain_jobs(lowest: int, highest: int, most: int) -> Sequence[UUID]:
            lanes = range(2 * (9 - highest), 2 * (9 - lowest) + 2)
            floors = [self._look.places[lane] for lane in lanes]
            return [row["id"] for row in await it.fetch("ready_plain", self._queue, most, list(lanes), floors, now)]

        picked = await traffic.pick(
            PostgresLedger(it, now),
            plain_jobs,
            self._queue,
            self._slots,
            now,
            coin=bool(self._token.int & 1),
            most_rated=self._most_rated,
        )
        self.rated = picked.rated
        if elsewhere := picked.queues - {self._queue}:
            it.hint(HintKind.WORK, elsewhere)
        if picked.has_timed:
            it.hint(HintKind.LATER, {self._queue})
        if not picked.jobs:
            return []
        return rows.started(await it.fetch("start", self._worker, self._token, picked.jobs, now), picked.jobs)

    async def find(self, it: Transaction) -> list[ClaimedJob]:
        """What an earlier try may have taken, whose answer was lost; otherwise take it now."""
        before = await it.fetch("claimed", self._worker, self._token)
        mine = [job for job in rows.claimed_before(before) if job.queue == self._queue and job.id not in self._known]
        return mine or await self.take(it)
