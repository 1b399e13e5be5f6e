"""Claims from queues that have work in lines.

Whoever claims first opens the lines into which jobs have come, and then takes jobs as traffic.py says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from holdfast import traffic
from holdfast.errors import WorkerDeclaredDead
from holdfast.job import ClaimedJob
from holdfast.store import Hint, HintKind
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.floors import Floors, Look
from holdfast.stores.postgres.ledger import PostgresLedger
from holdfast.stores.postgres.office import Office
from holdfast.stores.postgres.transaction import Transaction
from holdfast.turns import Bounds

_MOST_WAKES: Final = 200
"""To take at once. Each may be of many lines."""
_MOST_MADE: Final = 1000
"""Lines that one claim makes before it takes jobs. What it leaves, the next one opens."""
_MOST_ROUNDS: Final = 3
"""How often a claim looks whether lines that another claimer was at have left it something."""


class LinedClaims:
    """A process's claims from lines, and what it has learnt from them."""

    def __init__(self, floors: Floors) -> None:
        self._floors = floors
        self._broad: dict[str, int] = {}
        """Queues whose lines gave hardly one job each, when last claimed from: more of them are looked at together.

        With how many jobs of each were asked for.
        """
        self._ordered: set[str] = set()
        """Queues whose lines led to orders, when last claimed from."""
        self._told: set[str] = set()
        """Queues whose wakes had to be taken before the last claim."""
        self._expected: set[str] = set()
        """Queues that had work in lines when last claimed from."""

    def expects(self, queue: str) -> bool:
        """Whether a queue is likely to have work in lines."""
        return queue in self._expected

    async def claim(
        self,
        office: Office,
        worker: UUID,
        token: UUID,
        queue: str,
        bounds: Bounds,
        *,
        is_woken: bool,
    ) -> list[ClaimedJob]:
        """`is_woken`: there are lines that may have to be opened first."""
        claimed: list[ClaimedJob] = []
        look = self._floors.of(queue).look(asyncio.get_running_loop().time())
        rounds = 0
        rated = 0
        has_opened = is_woken and queue in self._told
        is_some_left = has_opened and await self._open(office, queue)
        while rounds < _MOST_ROUNDS:
            known = frozenset(job.id for job in claimed)
            behind = sum(job.behind is not None for job in claimed)
            round = _Round(worker, token, queue, bounds.without(len(claimed), rated, behind), look, known)
            round.most_each = self._broad.get(queue)
            round.is_ordered = queue in self._ordered
            round.may_leave_wakes = has_opened
            round.most_wakes = 0 if is_some_left else _MOST_WAKES
            claimed += await office.transact(round.take, replay=round.find)
            if round.has_only_opened:
                is_some_left = await self._open(office, queue)
                has_opened = True
                continue
            rounds += 1
            self._expected = self._expected | {queue} if round.is_lined else self._expected - {queue}
            rated += round.rated
            self._ordered = self._ordered | {queue} if round.is_ordered else self._ordered - {queue}
            self._broad.pop(queue, None)
            if round.gave_little and not round.is_ordered:
                self._broad[queue] = round.most_asked
            started = sum(job.behind is None for job in claimed)
            if started >= bounds.slots or not round.has_more:
                break
        if is_some_left:
            office.pass_on([Hint(HintKind.WORK, frozenset((queue,)))])
        return claimed

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _open(self, office: Office, queue: str) -> bool:
        """Open the lines of a queue that jobs have come into, or in which some are ready now. Whether some are left.

        Most are opened by the claim itself. Here those are made that are not there, and tenants give turns to theirs:
        who does that may have to wait for others, and must have nothing in his hands then.
        """
        made = 0
        had_to = False
        while True:
            most = _MOST_MADE - made
            news, has_more, is_needed = await office.transact(
                lambda it: self._take_wakes(it, queue, most)  # noqa: B023 - it is awaited here
            )
            made += news
            had_to |= is_needed
            if not has_more or made >= _MOST_MADE:
                break
        self._told = self._told | {queue} if had_to else self._told - {queue}
        return has_more

    async def _take_wakes(self, it: Transaction, queue: str, most: int) -> tuple[int, bool, bool]:
        """Open some. How many had to be made; whether there may be more, but for those that are left for later; and
        whether no claim could do it.
        """
        ((row),) = await it.fetch("take_wakes", queue, _MOST_WAKES, most)
        found = rows.wakes(row, queue)
        ledger = PostgresLedger(it, 0)
        there = {line.id for line in ledger.keep_lines(found.lines)}
        if found.news:
            there |= await ledger.enter(queue, found.news)
        await traffic.wake(ledger, there)
        await ledger.flush()
        left = found.busy | {id: told for id, told in found.news.items() if id not in there}
        if left:  # somebody else is at these lines, or has just made them
            rules, priorities = zip(*left.values(), strict=True)
            await it.fetch("put_back_wakes", queue, list(left), priorities, rules)
        is_needed = bool(found.news) or any(line.tenant is not None for line in found.lines)
        return len(found.news), found.has_more and not left, is_needed


class _Round:
    """One transaction of a claim."""

    most_each: int | None = None
    """So many jobs are looked up in each line at first, where lines are expected to give hardly one."""
    is_ordered = False
    """Whether its lines lead to orders, as far as is known."""
    may_leave_wakes = False
    """What others are at may stay closed for now."""
    most_wakes = _MOST_WAKES
    """So many are taken."""

    def __init__(
        self,
        worker: UUID,
        token: UUID,
        queue: str,
        bounds: Bounds,
        look: Look,
        known: frozenset[UUID],
    ) -> None:
        """`known` are the jobs that earlier rounds have taken."""
        self._worker = worker
        self._token = token
        self._queue = queue
        self._bounds = bounds
        self._look = look
        self._known = known
        self.rated = 0
        self.gave_little = False
        self.most_asked = 1
        self.has_only_opened = False
        """There were lines that could not be opened here, so nothing was claimed: they may come first."""
        self.has_more = False
        """Another round may find something: not all lines could be looked at."""
        self.is_lined = False
        """There was work in lines."""

    async def take(self, it: Transaction) -> list[ClaimedJob]:
        self.has_only_opened = False
        found = await it.fetch(
            "attend", self._worker, self._queue, it.given_now, self._bounds.slots, self._look.places, self.most_wakes
        )
        if not found:
            raise WorkerDeclaredDead
        (row,) = found
        if row["is_paused"]:
            return []
        self.is_lined = bool(row["open"] or row["wakes"])
        turns = dict(zip(row["open"], row["turns"], strict=True))
        ledger = PostgresLedger(
            it,
            row["now"],
            turns,
            {self._queue: row["reached"]},
            self._bounds,
            self.most_each,
            is_ordered=self.is_ordered,
        )
        woken = ledger.keep_lines(rows.woken_of_queue(row, self._queue))
        await traffic.wake(ledger, [line.id for line in woken])
        if not self.may_leave_wakes and (row["wakes"] == _MOST_WAKES or row["is_left"]):
            self.has_only_opened = True
            await ledger.flush()
            await it.fetch("be_forgettable")
            return []

        async def plain_jobs(lowest: int, highest: int, most: int) -> Sequence[UUID]:
            ranked = zip(row["plain"], row["priorities"], strict=True)
            return [id for id, priority in ranked if lowest <= priority <= highest][:most]

        picked = await traffic.pick(
            ledger,
            plain_jobs,
            self._queue,
            self._bounds,
            lambda: ledger.now,
            coin=bool(self._token.int & 1),
            is_broad=self.most_each is not None,
            is_ordered=self.is_ordered,
        )
        self.is_ordered = picked.has_orders
        self.most_asked = ledger.most_asked
        self.gave_little = self.most_asked == 1 or 2 * ledger.lines_used_up > len(picked.jobs)
        self.rated = picked.rated
        claimed: list[ClaimedJob] = []
        if picked.jobs:
            opened, claimed = await ledger.start(self._worker, self._token, picked.jobs, picked.behind)
        else:
            opened = await ledger.flush()
            await it.fetch("be_forgettable")
        if opened:
            it.hint(HintKind.WORK, opened)
        elif any(ledger.is_open(line.id) for line in woken):
            it.hint(HintKind.WORK, {self._queue})  # others could not see them meanwhile
        if picked.has_timed:
            it.hint(HintKind.LATER, {self._queue})
        self.has_more = self._queue in opened or ledger.must_wait or (ledger.has_others and bool(picked.jobs))
        return claimed

    async def find(self, it: Transaction) -> list[ClaimedJob]:
        """What an earlier try may have taken, whose answer was lost; otherwise take it now."""
        before = await it.fetch("claimed", self._worker, self._token)
        mine = [job for job in rows.claimed_before(before) if job.queue == self._queue and job.id not in self._known]
        return mine or await self.take(it)
