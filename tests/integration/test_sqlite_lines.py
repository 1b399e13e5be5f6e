"""Lines in a SQLite file: what nobody needs any more leaves nothing behind."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from uuid import uuid4

from holdfast.gates import GateKind, GateRule, LineRule
from holdfast.ids import Ids
from holdfast.job import NewJob
from holdfast.lifecycle import Complete
from holdfast.store import NewWorker, Settlement
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import ManualClock


async def test_a_thousand_keys_leave_nothing_behind(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "jobs.db"
    store = SqliteStore(path, clock=clock)
    try:
        ids, worker = Ids(clock), uuid4()
        await store.register(NewWorker(worker, "worker"))
        rules = [
            LineRule(
                (
                    GateRule(GateKind.ORDER, "task", str(key)),
                    GateRule(GateKind.RATE, "task", str(key % 50), 1000, 1_000_000),
                    GateRule(GateKind.FAIR, "", str(key % 10)),
                )
            )
            for key in range(1000)
        ]
        await store.enqueue([NewJob(ids.make(), "task", "default", "{}", line=rule) for rule in rules])
        claimed = await store.claim(worker, uuid4(), {"default": 1000})
        assert len(claimed) == 1000
        assert _count(path) == (1000, 1060)
        await store.settle([Settlement(job.id, job.token, Complete()) for job in claimed])
        await store.claim(worker, uuid4(), {"default": 1000})  # finds that they are empty, and closes them
        clock.advance("48h")
        for _ in range(6):
            await store.prune()
        assert _count(path) == (0, 0)
    finally:
        await store.close()


def _count(path: Path) -> tuple[int, int]:
    with sqlite3.connect(path) as connection:
        (lines,) = connection.execute("select count(*) from holdfast_lines").fetchone()
        (gates,) = connection.execute("select count(*) from holdfast_gates").fetchone()
    return lines, gates
