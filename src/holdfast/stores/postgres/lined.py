"""Claims from queues that have work in lines.

Whoever claims first opens the lines into which jobs have come, and then takes jobs as traffic.py says.
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
        self._broad: set[str] = set()
        """Queues whose lines gave hardly one job each, when last claimed from: these are asked for more at once."""

    async def claim(
        self, office: Office, worker: UUID, token: UUID, queue: str, slots: int, most_rated: int | None
    ) -> list[ClaimedJob]:
        claimed: list[ClaimedJob] = []
        look = self._floors.of(queue).look(asyncio.get_running_loop().time())
        for _ in range(_MOST_ROUNDS):
            known = frozenset(job.id for job in claimed)
            is_broad = queue in self._broad
            round = _Round(worker, token, queue, slots - len(claimed), most_rated, look, known, is_broad=is_broad)
            claimed += await office.transact(round.take, replay=round.find)
            most_rated = None if most_rated is None else max(0, most_rated - round.rated)
            self._broad = self._broad | {queue} if round.gave_little else self._broad - {queue}
            if len(claimed) >= slots or not round.has_more:
                break
            if round.has_opened:
                await self.open(office, queue)
        return claimed

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, office: Office, queue: str) -> None:
        """Open the lines of a queue that jobs have come into, or in which some have become ready."""
        while await office.transact(lambda it: self._take_wakes(it, queue)) == _MOST_WAKES:
            pass

    async def _take_wakes(self, it: Transaction, queue: str) -> int:
        """Open some, in a transaction of its own: who claims may have to wait, and must have nothing in his hands then.

        Answers with how many wakes there were; with 0 if some had to be left for later.
        """
        ((text, lines, known, _),) = await it.fetch("take_wakes", queue, _MOST_WAKES)
        if text is None:
            return 0
        found = rows.read_wakes(text)
        ledger = PostgresLedger(it, 0)
        there = {line.id for line in ledger.keep_lines(rows.read_lines(lines))}
        woken = {wake.line for wake in found}
        busy = set(known) - there
        told = {wake.line: wake for wake in found if wake.rule is not None and wake.line not in busy}
        news = {id: wake for id, wake in told.items() if id not in there or self._known.get(id) != wake.rule}
        if news:
            there |= await ledger.enter(
                {id: (_rules.decode(wake.rule or ""), queue, wake.priority or 0) for id, wake in news.items()}
            )
            self._remember(news)
        await traffic.wake(ledger, there)
        await ledger.flush()
        if unknown := woken - there:  # somebody else is at these lines, or is just making them
            await it.fetch("wake", [queue] * len(unknown), list(unknown))
        return 0 if unknown else len(found)

    def _remember(self, news: dict[UUID, rows.Wake]) -> None:
        if len(self._known) + len(news) > _MOST_KNOWN:
            self._known.clear()
        self._known |= {id: wake.rule for id, wake in news.items() if wake.rule is not None}


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
        *,
        is_broad: bool,
    ) -> None:
        """`known` are the jobs that earlier rounds have taken."""
        self._worker = worker
        self._token = token
        self._queue = queue
        self._slots = slots
        self._most_rated = most_rated
        self._look = look
        self._known = known
        self._is_broad = is_broad
        self.rated = 0
        self.gave_little = False
        self.has_more = False
        """Another round may find something: not all lines could be looked at."""
        self.has_opened = False
        """Lines are to be opened that were parked."""

    async def take(self, it: Transaction) -> list[ClaimedJob]:
        found = await it.fetch("attend", self._worker, self._queue, it.given_now, self._slots, self._look.places)
        if not found:
            raise WorkerDeclaredDead
        ((now, is_paused, priorities, beside, at_priority),) = found
        if is_paused:
            return []

        async def plain_jobs(lowest: int, highest: int, most: int) -> Sequence[UUID]:
            ranked = zip(beside, at_priority, strict=True)
            return [id for id, priority in ranked if lowest <= priority <= highest][:most]

        ledger = PostgresLedger(it, now, priorities, self._slots)
        picked = await traffic.pick(
            ledger,
            plain_jobs,
            self._queue,
            self._slots,
            now,
            coin=bool(self._token.int & 1),
            most_rated=self._most_rated,
            is_broad=self._is_broad,
        )
        self.gave_little = 2 * ledger.lines_used_up > len(picked.jobs)
        self.rated = picked.rated
        if opened := await ledger.flush():
            it.hint(HintKind.WORK, opened)
        self.has_opened = self._queue in opened
        if picked.has_timed:
            it.hint(HintKind.LATER, {self._queue})
        self.has_more = self.has_opened or (ledger.has_others and bool(picked.jobs))
        if not picked.jobs:
            return []
        return rows.started(await it.fetch("start", self._worker, self._token, picked.jobs, now), picked.jobs)

    async def find(self, it: Transaction) -> list[ClaimedJob]:
        """What an earlier try may have taken, whose answer was lost; otherwise take it now."""
        before = await it.fetch("claimed", self._worker, self._token)
        mine = [job for job in rows.claimed_before(before) if job.queue == self._queue and job.id not in self._known]
        return mine or await self.take(it)
