"""The limit on SQLite: one thread, nothing awaited."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.app import BOUND, QUEUE, TASK
from benchmarks.limit import Claim
from holdfast.stores.sqlite.connection import Connection
from holdfast.stores.sqlite.migrate import migrate, shipped_migrations
from holdfast.stores.sqlite.statements import chunks, statement

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[list[Any]])


class SqliteLimit:
    """One file. The connection is Holdfast's own, so its pragmas are too.

    Each transaction writes one row of counters, since the schema has it.
    """

    def __init__(self, path: Path) -> None:
        connection = Connection(path)
        migrate(connection, shipped_migrations())
        self._connection = connection
        self._execute = connection.raw.execute
        found = self._execute(statement("queue"), (QUEUE,)).fetchall()
        self._waiting: int = found[0][0] or 0
        self._place: int = found[0][2] or 0
        self._worker = os.urandom(16)

    async def close(self) -> None:
        self._connection.close()

    async def enqueue(self, numbers: Sequence[int]) -> None:
        now = _now()
        ids = _ids(now, len(numbers))
        place = self._place
        rest = (5, 0, now, now, None, None, None, None, None, None)
        rows = [
            (id, TASK, QUEUE, 5, 2, place + index, _encoder.encode({"number": number}).decode(), *rest)
            for index, (id, number) in enumerate(zip(ids, numbers, strict=True), 1)
        ]
        self._begin(is_durable=True)
        self._change_many("enqueue", rows)
        self._place += len(rows)
        self._waiting += len(rows)
        self._commit()

    async def claim(self, slots: int) -> Claim:
        token = os.urandom(16)
        self._begin(is_durable=False)
        now = _now()
        ((text, numbers),) = self._execute(statement("claim"), (QUEUE, now, slots, token.hex(), 0, 9)).fetchall()
        claimed = _decoder.decode(text)
        self._execute(statement("start"), (self._worker, token, now, numbers))
        self._waiting -= len(claimed)
        self._commit()
        return Claim(token, claimed)

    async def settle(self, claim: Claim) -> None:
        self._begin(is_durable=True)
        done = [(bytes.fromhex(job[0]), claim.token, "null") for job in claim.jobs]
        self._change_many("complete", done, (_now(),))
        self._execute("commit")

    def _begin(self, *, is_durable: bool) -> None:
        self._connection.wait_for_disk(is_durable)
        self._execute("begin immediate")

    def _commit(self) -> None:
        self._execute(statement("save_queue"), (QUEUE, self._waiting, 0, self._place, BOUND, None, BOUND, None, 0))
        self._execute("commit")

    def _change_many(self, name: str, rows: Sequence[tuple[Any, ...]], first: tuple[Any, ...] = ()) -> None:
        """In chunks, as ours: one statement for each row was slower here too."""
        for chunk in chunks(rows):
            flat = list(first)
            for row in chunk:
                flat.extend(row)
            self._execute(statement(name, len(chunk)), flat)


def _now() -> int:
    return time.time_ns() // 1000


def _ids(now: int, count: int) -> list[bytes]:
    """Ids that rise with the time, for one draw of randomness, as UUIDv7 do; the version bits cost nothing."""
    stamp = now << 12
    noise = os.urandom(8 * count)
    return [(stamp + index).to_bytes(8, "big") + noise[8 * index : 8 * index + 8] for index in range(count)]
