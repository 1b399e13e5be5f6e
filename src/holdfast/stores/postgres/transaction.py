"""What one transaction does to jobs that it has read: it locks them, and keeps what was decided about them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from holdfast import keys, traffic
from holdfast.gates import is_idle
from holdfast.job import WAITING, Attempt, JobRecord, Stage
from holdfast.keys import KeyName, KeyRecord
from holdfast.moment import MICROSECOND, from_microseconds, to_microseconds
from holdfast.store import LONGEST_HISTORY, Hint, HintKind
from holdfast.stores.decisions import Changes, WatchedKeys, newly_final
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.connection import Connection, Record
from holdfast.stores.postgres.faults import Overtaken
from holdfast.stores.postgres.ledger import PostgresLedger
from holdfast.stores.postgres.statements import records_statement, statement
from holdfast.traffic import Departure

_WINDOW: Final = 1000


class Transaction:
    """An open transaction. Jobs are locked when they are read, in the order of their ids."""

    def __init__(self, connection: Connection, now: datetime | None, retention: timedelta) -> None:
        """Without a `now`, the time is that of the server, and known once jobs have been read."""
        self._connection = connection
        self._now = now
        self._retention = retention
        self._departures: list[Departure] = []
        self._woken: dict[UUID, str] = {}
        """Lines in which jobs have become ready, and their queues."""
        self.hints: list[Hint] = []

    @property
    def now(self) -> datetime:
        assert self._now is not None, "the time is not known before jobs have been read"
        return self._now

    @property
    def given_now(self) -> int | None:
        """The time for a statement: None stands for the server's."""
        return None if self._now is None else to_microseconds(self._now)

    def hint(self, kind: HintKind, queues: Iterable[str] = (), ids: Iterable[UUID] = ()) -> None:
        self.hints.append(Hint(kind, frozenset(queues), frozenset(ids)))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def fetch(self, name: str, *values: Any) -> list[Record]:
        return await self._connection.fetch(statement(name), *values)

    async def records(self, selection: str, *values: Any) -> list[JobRecord]:
        found = await self._connection.fetch(records_statement(selection), *values)
        if found and self._now is None:
            self._now = from_microseconds(found[0]["now"])
        return [rows.record(row) for row in found]

    async def lock(self, ids: Sequence[UUID]) -> dict[UUID, JobRecord]:
        if not ids:
            return {}
        return {job.id: job for job in await self.records("lock_by_id", ids)}

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def watch_keys(self, jobs: Iterable[JobRecord]) -> WatchedKeys:
        """Look up who has the keys of these jobs."""
        names = sorted({name for job in jobs for name in keys.keys_of(job)})
        found: dict[KeyName, KeyRecord] = {}
        if names:
            tasks, kinds, texts = zip(*names, strict=True)
            found = rows.keys(await self.fetch("find_keys", tasks, [int(kind) for kind in kinds], texts))
        return WatchedKeys(found, self.now)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def save(self, changes: Changes) -> None:
        """Keep changed records, and all that hangs on them: places, keys, history, hints."""
        changed = [(before, after) for before, after in changes.pairs if after is not before]
        if changed:
            await self.fetch("save", rows.changed_jobs(changed))
            await self._close_keys(newly_final(changed))
            self._move_in_lines([pair for pair in changed if pair[1].line is not None], changes.unstarted)
            await self._hint_at(changed)
        if changes.reopened:
            taken = rows.taken_keys(changes.reopened.items())
            if len(await self.fetch("take_keys", taken, to_microseconds(self.now))) < len(changes.reopened):
                raise Overtaken
        await self._remember(changes.attempts)

    # ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _move_in_lines(self, moved: Sequence[tuple[JobRecord, JobRecord]], unstarted: Container[UUID]) -> None:
        self.depart(
            departure
            for before, after in moved
            if (departure := traffic.departure(before, after, is_unstarted=after.id in unstarted)) is not None
        )
        for before, after in moved:
            if after.line is not None and after.stage is Stage.READY and before.stage is not Stage.READY:
                self._woken[after.line] = after.queue

    def depart(self, departures: Iterable[Departure]) -> None:
        """Jobs have left their lines. Their gates are told in the end, when all that is waited for has been locked."""
        self._departures += departures

    async def depart_by_id(self, ids: Sequence[UUID]) -> None:
        """These jobs have been completed, and those of them that stood in a line have left it."""
        found = await self.fetch("lines_of", ids) if ids else []
        if found and self._now is None:
            self._now = from_microseconds(found[0]["now"])
        self.depart(Departure(row["id"], row["line"], was_active=True, is_over=True) for row in found)

    async def finish(self) -> None:
        """Open lines, and gates, for what has changed. After this the transaction may be committed."""
        departures, self._departures = self._departures, []
        woken, self._woken = self._woken, {}
        if woken:
            await self.fetch("wake", list(woken.values()), list(woken))
        if departures:
            now = to_microseconds(self.now)
            ledger = PostgresLedger(self, now)
            await traffic.leave(ledger, departures, now)
            await self._flush(ledger)

    async def _flush(self, ledger: PostgresLedger) -> None:
        opened = await ledger.flush()
        if opened:
            self.hint(HintKind.WORK, opened)

    async def ripen_gates(self, now: int, most: int) -> None:
        """Open the lines that wait for gates whose time has come."""
        ledger = PostgresLedger(self, now)
        await traffic.ripen(ledger, await ledger.due_gates(most), now)
        await self._flush(ledger)

    async def forget_lines(self, after: UUID, now: datetime) -> UUID:
        """Forget some lines and gates that nobody needs any more. Where to go on."""
        ((last, closed),) = await self.fetch("forgotten_lines", after, _WINDOW)
        ledger = PostgresLedger(self, to_microseconds(now))
        mine = [row["id"] for row in await self.fetch("lock_closed_lines", closed)] if closed else []
        lines = [rows.line(row) for row in await self.fetch("forget_lines", mine)] if mine else []
        if lines:
            await traffic.forget(ledger, lines)
            await ledger.flush()
        unused = [rows.gate(row) for row in await self.fetch("unused_gates", _WINDOW)]
        idle = [gate.id for gate in unused if is_idle(gate, to_microseconds(now))]
        if idle:
            await self.fetch("forget_gates", idle)
        return UUID(int=0) if last is None else UUID(int=last.int)

    # ── what hangs on jobs ───────────────────────────────────────────────────────────────────────────────────────────

    async def _close_keys(self, ended: Sequence[JobRecord]) -> None:
        keyed = [job.id for job in ended if job.is_keyed]
        if keyed:
            await self.fetch("close_keys", keyed, to_microseconds(self.now), self._retention // MICROSECOND)
        if ended:
            self.hint(HintKind.FINISHED, ids=(job.id for job in ended))

    async def _hint_at(self, changed: Sequence[tuple[JobRecord, JobRecord]]) -> None:
        ready = {after.queue for _, after in changed if after.stage is Stage.READY}
        if ready:
            self.hint(HintKind.WORK, ready)
        later = {after.queue for _, after in changed if after.stage is Stage.SCHEDULED}
        if later:
            self.hint(HintKind.LATER, later)
        left = {after.queue for before, after in changed if before.stage in WAITING and after.stage not in WAITING}
        if left:
            await self.hint_at_room(left)

    async def hint_at_room(self, queues: Iterable[str]) -> None:
        """Jobs have left these queues: who waits for room in one of them may try again."""
        full = [row["name"] for row in await self.fetch("nearly_full", sorted(queues))]
        if full:
            self.hint(HintKind.ROOM, full)

    async def _remember(self, attempts: Mapping[UUID, Attempt]) -> None:
        if not attempts:
            return
        await self.fetch("record_failures", rows.failures(attempts.items()))
        long = [id for id, attempt in attempts.items() if attempt.run >= LONGEST_HISTORY]
        if long:
            await self.fetch("trim_history", long, LONGEST_HISTORY)
