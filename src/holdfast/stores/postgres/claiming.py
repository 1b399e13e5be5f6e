"""Claiming ready jobs, from where there may be any."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.errors import HoldfastError, WorkerDeclaredDead
from holdfast.job import ClaimedJob
from holdfast.store import LARGEST_BATCH, Hint, HintKind
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.connection import Connection
from holdfast.stores.postgres.floors import Floors, Snapshot, lane_number
from holdfast.stores.postgres.lined import LinedClaims
from holdfast.stores.postgres.office import Office
from holdfast.stores.postgres.statements import statement
from holdfast.turns import Bounds


class Plain(NamedTuple):
    """Jobs that stand in no line, and the queues that have work in lines: from those nothing was taken."""

    claimed: list[ClaimedJob]
    lined: dict[str, bool]
    """With whether some of those lines have yet to be opened."""


class Claiming:
    """A process's claims, and what it has learnt from them."""

    def __init__(self, floors: Floors) -> None:
        self._floors = floors
        self._lined = LinedClaims(floors)
        self._known_queues: set[str] = set()

    async def claim(
        self,
        office: Office,
        worker: UUID,
        token: UUID,
        demand: Mapping[str, int],
        at_once: Mapping[str, int] | None = None,
        most_behind: int = 0,
    ) -> list[ClaimedJob]:
        wanted = {queue: min(slots, LARGEST_BATCH) for queue, slots in demand.items() if slots > 0}
        # Where there were lines a moment ago, there is no need to ask whether there are any.
        plain = {queue: slots for queue, slots in wanted.items() if not self._lined.expects(queue)}

        async def work(connection: Connection) -> Plain:
            return await self._claim(office, connection, worker, token, plain)

        async def replay(connection: Connection) -> Plain:
            before = await connection.fetch(statement("claimed"), worker, token)
            return Plain(rows.claimed_before(before), {}) if before else await work(connection)

        claimed: list[ClaimedJob] = []
        lined = dict.fromkeys(wanted.keys() - plain.keys(), True)
        if plain or not wanted:
            advice = "The next heartbeat gives back what was claimed."
            claimed, others = await office.run(work, replay=replay, advice=advice)
            lined |= others
        for queue, is_woken in lined.items():
            most_rated = None if at_once is None else at_once.get(queue, 0)
            behind = sum(job.behind is not None for job in claimed) if most_behind else 0
            bounds = Bounds(wanted[queue], most_rated, most_behind - behind)
            try:
                claimed += await self._lined.claim(office, worker, token, queue, bounds, is_woken=is_woken)
            except HoldfastError:
                if not claimed:
                    raise
                break  # what was claimed must be run; the next claim meets the same
        return claimed

    async def _claim(
        self, office: Office, connection: Connection, worker: UUID, token: UUID, demand: Mapping[str, int]
    ) -> Plain:
        loop = asyncio.get_running_loop()
        started = loop.time()
        floors = {queue: self._floors.of(queue) for queue in demand}
        looks = {queue: floors[queue].look(started) for queue in demand}
        found = await connection.fetch(
            statement("claim"),
            worker,
            token,
            list(demand),
            list(demand.values()),
            [place for look in looks.values() for place in look.places],
            office.microseconds,
        )
        if not found:
            raise WorkerDeclaredDead
        whole, *taken = found
        snapshot = Snapshot(whole["oldest_transaction"], whole["next_transaction"])
        lined = {queue: queue in whole["woken"] for queue in {*whole["lined"], *whole["woken"]} - {*whole["paused"]}}
        others = lined.keys() | {*whole["paused"]}
        for queue, look in looks.items():
            if queue in others:
                continue  # it was not looked at
            places = ((lane_number(row[4], row[19]), row[21]) for row in taken if row[3] == queue)
            floors[queue].learn(look, places, demand[queue], snapshot)
            if look.is_sweep:
                floors[queue].swept(started, loop.time())
        if taken:
            await self._look_after(office, connection, {row[3] for row in taken}, whole["nearly_full"])
        return Plain(rows.claims(taken), lined)

    async def _look_after(
        self, office: Office, connection: Connection, queues: set[str], nearly_full: Sequence[str]
    ) -> None:
        """Jobs were taken from these queues."""
        full = queues.intersection(nearly_full)
        if full:
            office.pass_on([Hint(HintKind.ROOM, frozenset(full))])
        unknown = queues - self._known_queues
        if unknown:
            # In a transaction of a user's, a queue is filled before anybody has heard of it.
            with contextlib.suppress(Exception):  # the jobs are claimed, come what may; the next claim tries again
                await connection.execute(statement("know_queues"), list(unknown))
                self._known_queues |= unknown
