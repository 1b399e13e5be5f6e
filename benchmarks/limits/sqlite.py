"""The limit: the barest Python loop over the same statements on the shipped schema.

One thread, one connection, no asyncio, no checks, nothing that another caller would need. It makes ids and encodes
arguments, since any producer must, and keeps one row of counters per transaction, since the schema has it. What ours
reaches of it is what everything around the statements costs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.stores.sqlite.connection import Connection
from holdfast.stores.sqlite.migrate import migrate, shipped_migrations
from holdfast.stores.sqlite.statements import chunks, statement

QUEUE = "default"
TASK = "noop"
BOUND = 1_000_000_000

Claimed = list[Any]
"""The columns of a claimed job, as claim.sql has them; its id, in hex, comes first."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[list[Any]])


class Limit:
    """One file, one thread. The connection is Holdfast's own, so its pragmas are too."""

    def __init__(self, path: Path) -> None:
        connection = Connection(path)
        migrate(connection, shipped_migrations())
        self._connection = connection
        self._execute = connection.raw.execute
        found = self._execute(statement("queue"), (QUEUE,)).fetchall()
        self._waiting: int = found[0][0] if found else 0
        self._place: int = found[0][2] if found else 0
        self._worker = os.urandom(16)

    def close(self) -> None:
        self._connection.close()

    def enqueue(self, numbers: Sequence[int]) -> None:
        now = _now()
        ids = _ids(now, len(numbers))
        place = self._place
        rest = (5, 0, now, now, None, None, None, None, None)
        rows = [
            (id, TASK, QUEUE, 5, 2, place + index, _encoder.encode({"number": number}).decode(), *rest)
            for index, (id, number) in enumerate(zip(ids, numbers, strict=True), 1)
        ]
        self._begin(is_durable=True)
        self._change_many("enqueue", rows)
        self._place += len(rows)
        self._waiting += len(rows)
        self._commit()

    def claim(self, slots: int) -> tuple[bytes, list[Claimed]]:
        """The token of the claim, and its jobs."""
        token = os.urandom(16)
        self._begin(is_durable=False)
        now = _now()
        ((text, numbers),) = self._execute(statement("claim"), (QUEUE, now, slots, token.hex())).fetchall()
        claimed = _decoder.decode(text)
        self._execute(statement("start"), (self._worker, token, now, numbers))
        self._waiting -= len(claimed)
        self._commit()
        return token, claimed

    def settle(self, token: bytes, claimed: Sequence[Claimed]) -> None:
        self._begin(is_durable=True)
        self._change_many("complete", [(bytes.fromhex(job[0]), token, "null") for job in claimed], (_now(),))
        self._execute("commit")

    def _begin(self, *, is_durable: bool) -> None:
        self._connection.wait_for_disk(is_durable)
        self._execute("begin immediate")

    def _commit(self) -> None:
        self._execute(statement("save_queue"), (QUEUE, self._waiting, 0, self._place, BOUND, None, BOUND, None))
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
