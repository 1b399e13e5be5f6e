"""Heartbeats: a worker lives, and what it believes that it holds is compared with what the store thinks.

The beat itself is one small statement on a connection of its own, so that nothing makes it late. To
compare, the jobs held at this beat and the last one are looked up, and what was claimed since: however many
dead entries an old transaction keeps in the index of active jobs, they are not walked over.

When the last beat was is remembered here, not read from the worker's row: a beat that is sent again after a lost answer
would find itself there, and so would one that comes after a lock was lost and told of.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import msgspec

from holdfast.job import Stage
from holdfast.moment import from_microseconds
from holdfast.store import Beaten, Held
from holdfast.stores import decisions
from holdfast.stores.postgres.connection import Connection, Record
from holdfast.stores.postgres.office import Office
from holdfast.stores.postgres.statements import statement
from holdfast.stores.postgres.transaction import Transaction


class LastBeat(msgspec.Struct, frozen=True):
    """What a worker held at its last beat. All else that it can hold, it was given since `looked_from`."""

    at: int | None = None
    """None if this process does not know of any."""
    looked_from: int = 0
    held: frozenset[UUID] = frozenset()


class HeldRow(msgspec.Struct, frozen=True):
    """An active job of a worker's, as held.sql has it."""

    id: UUID
    token: UUID | None
    started_at: int
    cancel_requested_at: int | None


class Beating:
    """The beats of workers that this process beats for."""

    def __init__(self, statement_timeout: float) -> None:
        # In microseconds, with plenty to spare: no claim runs for longer than that.
        self._longest_claim = round((2 * statement_timeout + 60) * 1_000_000)
        self._last: dict[UUID, LastBeat] = {}

    def registered(self, worker: UUID, at: int) -> None:
        """That counts as a beat, of one who holds nothing."""
        self._last[worker] = LastBeat(at)

    def forget(self, worker: UUID) -> None:
        self._last.pop(worker, None)

    async def beat(self, office: Office, worker: UUID, held: Held) -> Beaten:
        before = self._last.get(worker, LastBeat())

        async def work(connection: Connection) -> list[Record]:
            is_locked = office.reserved.holds(worker)
            return await connection.fetch(statement("beat"), worker, office.microseconds, is_locked)

        beaten = await _run_aside(office, work)
        if not beaten:
            self.forget(worker)
            return Beaten(is_alive=False, taken=list(held.jobs))
        known = [*before.held | held.jobs.keys()]

        async def look(connection: Connection) -> list[Record]:
            return await connection.fetch(statement("held"), worker, known, before.looked_from)

        mine = [HeldRow(*row) for row in await _run_aside(office, look)]
        compared = decisions.compare(mine, held, before.at)
        released = await _release(office, worker, held, compared.unheld, before.at) if compared.unheld else []
        # What it awaits may be given up an hour later, so that is remembered like what it holds.
        held_now = held.jobs.keys() | {job.id for job in mine}
        beat_at = beaten[0]["beat_at"]
        self._last[worker] = LastBeat(beat_at, beat_at - self._longest_claim, frozenset(held_now))
        return Beaten(True, compared.taken, compared.cancelled, released, beaten[0]["is_quiet"])


async def _run_aside(office: Office, work: Callable[[Connection], Awaitable[list[Record]]]) -> list[Record]:
    """Over the reserved connection, however busy the others are; over one of them if it is lost."""
    try:
        return await office.reserved.run(work)
    except Exception:
        return await office.run(work, replay=work)


async def _release(
    office: Office, worker: UUID, held: Held, unheld: Sequence[UUID], last_beat: int | None
) -> list[UUID]:
    """Give back what the worker does not know of, if it is still so."""
    last = None if last_beat is None else from_microseconds(last_beat)

    async def work(it: Transaction) -> list[UUID]:
        jobs = await it.lock(unheld)
        mine = [
            job
            for job in jobs.values()
            if job.worker == worker and job.stage is Stage.ACTIVE and decisions.is_unheld(job, held, last)
        ]
        if mine:
            await it.save(decisions.release(mine, it.now))
        return [job.id for job in mine]

    return await office.transact(work)
