"""The limit on PostgreSQL: one connection, every statement by itself, parameters bound by hand."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final, Self
from uuid import uuid4

import msgspec
from asyncpg.pgproto.pgproto import UUID

from benchmarks.app import BOUND, QUEUE, TASK
from benchmarks.limit import Claim
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.connection import Connection, connect
from holdfast.stores.postgres.migrate import migrate, shipped_migrations
from holdfast.stores.postgres.statements import statement

_PLAIN: Final = '{"is_plain":true,"is_admitted":true}'
_LANES: Final = 20
_RETENTION: Final = 86_400_000_000

# What the schema itself allows at most: no function, no JSON, no options, columns as arrays in the driver's own format.
_BARE_INSERT = """
insert into holdfast.jobs
    (id, place, created_at, due_at, max_attempts, stage, priority, delivery, task, queue, args)
select new.id, nextval('holdfast.places'), $4, $4, 5, 2, 5, 0, new.task, new.queue, new.args
from unnest($1::uuid[], $2::text[], $3::text[], $5::text[]) as new (id, task, args, queue)
"""

_encoder = msgspec.json.Encoder()


class _NewJob(msgspec.Struct, gc=False):
    id: str
    task: str
    queue: str
    args: str


class PostgresLimit:
    """One worker. The connection is Holdfast's own, so its settings and its plans are too."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._fetch = connection.raw.fetch
        self._worker = uuid4()
        self._floor = Floor()

    @classmethod
    async def open(cls, url: str) -> Self:
        connection = await connect(Address.parse(url), is_pooled=False)
        await migrate(connection.raw, shipped_migrations())
        limit = cls(connection)
        await limit._fetch(statement("register"), limit._worker, "limit", "", 0, [], None, False, [])
        await limit._fetch(statement("declare_queues"), [QUEUE], [BOUND], [BOUND])
        return limit

    async def close(self) -> None:
        await self._connection.close()

    async def enqueue(self, numbers: Sequence[int]) -> None:
        ids = _ids(len(numbers))
        jobs = [
            _NewJob(id.hex(), TASK, QUEUE, _encoder.encode({"number": number}).decode())
            for id, number in zip(ids, numbers, strict=True)
        ]
        await self._fetch(statement("enqueue"), _encoder.encode(jobs).decode(), _PLAIN)

    async def insert(self, numbers: Sequence[int]) -> None:
        """Enqueue as if there were no interface to keep: the other reference for bulk."""
        count = len(numbers)
        arguments = [_encoder.encode({"number": number}).decode() for number in numbers]
        ids = [UUID(id) for id in _ids(count)]
        await self._fetch(_BARE_INSERT, ids, [TASK] * count, arguments, _now(), [QUEUE] * count)

    async def claim(self, slots: int) -> Claim:
        token = UUID(os.urandom(16))
        floors = [self._floor.place] * _LANES
        found = await self._fetch(statement("claim"), self._worker, token, [QUEUE], [slots], floors, None)
        whole, *jobs = found
        if jobs:
            highest = max([job["seen_place"] for job in jobs])
            self._floor.rise(whole["oldest_transaction"], whole["next_transaction"], highest)
        return Claim(token, jobs)

    async def settle(self, claim: Claim) -> None:
        jobs, count = claim.jobs, len(claim.jobs)
        ids = [job[0] for job in jobs]
        await self._fetch(statement("complete"), ids, [claim.token] * count, ["null"] * count, [], None, _RETENTION)


class Floor:
    """The place below which nothing is left, for jobs that all stand in one lane.

    Transactions that were open at one claim may still put jobs below what had been reached by then. So the floor rises
    to that only when a claim has begun after their end, from below, and has come at least as far.
    """

    __slots__ = ("_mark", "_next_transaction", "_reached", "place")

    def __init__(self) -> None:
        self.place = 0
        self._reached = 0
        self._mark = 0
        self._next_transaction = 0

    def rise(self, oldest_transaction: int, next_transaction: int, highest: int) -> None:
        if self._next_transaction <= oldest_transaction and highest >= self._mark:
            self.place = self._mark
            self._mark, self._next_transaction = self._reached, next_transaction
        self._reached = max(self._reached, highest)


def _now() -> int:
    return time.time_ns() // 1000


def _ids(count: int) -> list[bytes]:
    """Ids that rise with the time, for one draw of randomness, as UUIDv7 do; the version bits cost nothing."""
    stamp = _now() << 12
    noise = os.urandom(8 * count)
    return [(stamp + index).to_bytes(8, "big") + noise[8 * index : 8 * index + 8] for index in range(count)]
