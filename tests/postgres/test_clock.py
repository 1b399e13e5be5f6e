"""A process whose clock is wrong: time is told by the server."""

from __future__ import annotations

from uuid import uuid4

import pytest

from holdfast.lifecycle import Complete
from holdfast.liveness import Observer
from holdfast.store import Held, Settled
from holdfast.stores.postgres import PostgresStore
from tests.crash.rounds import IS_THOROUGH
from tests.postgres.database import Database
from tests.postgres.jobs import claim, enqueue, register, settle
from tests.postgres.process import Process

_HALF_AN_HOUR = 30 * 60
_MINUTE = 60


async def _ages(database: Database, column: str, table: str = "jobs", where: str = "true") -> list[float]:
    """How many seconds ago it was, by the server's clock."""
    found = await database.ask(
        f"select (holdfast.now() - {column}) / 1e6 from holdfast.{table} where {column} is not null and {where}"
    )
    return [float(row[0]) for row in found]


@pytest.mark.parametrize("hours", [-48, -1, 1, 48] if IS_THOROUGH else [-1, 48])
async def test_a_wrong_clock_moves_nothing(store: PostgresStore, database: Database, hours: int) -> None:
    mine = await register(store)
    await enqueue(store, queue="done", idempotency_key="key")
    assert await settle(store, await claim(store, mine, queue="done"), Complete()) == [Settled.APPLIED]
    worker = uuid4()
    async with Process(database.url, "live", worker, hours) as process:
        said = await process.hear()
        # What is due can be claimed, what is not can't, and nothing has expired.
        assert sorted(said["claimed"]) == ["due", "expiring", "failing"]
        assert said["expired"] == 0
        assert said["next_in"] == pytest.approx(_HALF_AN_HOUR, abs=_MINUTE)
        # Nothing is past its retention, and nobody's beat is old.
        assert said["pruned"] == [0, 0, 0]
        assert said["ages"] == pytest.approx([0, 0], abs=_MINUTE)
        # And that is how the others see it.
        for column in ("created_at", "started_at", "finished_at"):
            ages = await _ages(database, column)
            assert ages == pytest.approx([0] * len(ages), abs=_MINUTE)
        later = await _ages(database, "due_at", where="stage = 1")
        assert later == pytest.approx([-_HALF_AN_HOUR] * 2, abs=_MINUTE)
        assert await _ages(database, "expires_at") == pytest.approx([-_HALF_AN_HOUR], abs=_MINUTE)
        assert await _ages(database, "beat_at", "workers") == pytest.approx([0, 0], abs=_MINUTE)
        sightings = await store.sightings()
        assert [sighting.age.total_seconds() for sighting in sightings] == pytest.approx([0, 0], abs=_MINUTE)
        observer = Observer()
        observer.observe(sightings, 0.0)
        assert observer.observe(sightings, 4.0) == {}
        assert (await store.tick()).ripened == 0
        assert (await store.beat(mine, Held({}))).is_alive
