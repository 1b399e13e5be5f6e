"""Claiming ready jobs, from where there may be any."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from uuid import UUID

from holdfast.errors import WorkerDeclaredDead
from holdfast.job import ClaimedJob
from holdfast.store import LARGEST_BATCH, Hint, HintKind
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.connection import Connection
from holdfast.stores.postgres.floors import Floors, Snapshot, lane_number
from holdfast.stores.postgres.office import Office
from holdfast.stores.postgres.statements import statement


class Claiming:
    """A process's claims, and what it has learnt from them."""

    def __init__(self, floors: Floors) -> None:
        self._floors = floors
        self._known_queues: set[str] = set()

    async def claim(self, office: Office, worker: UUID, token: UUID, demand: Mapping[str, int]) -> list[ClaimedJob]:
        wanted = {queue: min(slots, LARGEST_BATCH) for queue, slots in demand.items() if slots > 0}

        async def work(connection: Connection) -> list[ClaimedJob]:
            return await self._claim(office, connection, worker, token, wanted)

        async def replay(connection: Connection) -> list[ClaimedJob]:
            before = await connection.fetch(statement("claimed"), worker, token)
            return rows.claims(before) or await work(connection)

        return await office.run(work, replay=replay, advice="The next heartbeat gives back what was claimed.")

    async def _claim(
        self, office: Office, connection: Connection, worker: UUID, token: UUID, demand: Mapping[str, int]
    ) -> list[ClaimedJob]:
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
        for queue, look in looks.items():
            if queue in whole["paused"]:
                continue  # it was not looked at
            places = ((lane_number(row[4], row[19]), row[21]) for row in taken if row[3] == queue)
            floors[queue].learn(look, places, demand[queue], snapshot)
            if look.is_sweep:
                floors[queue].swept(started, loop.time())
        if taken:
            await self._look_after(office, connection, {row[3] for row in taken}, whole["nearly_full"])
        return rows.claims(taken)

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
