"""Sixteen producers, eight claimers, and everybody else at once: nobody meets an error, and nothing is lost."""

from __future__ import annotations

import asyncio
import sys

from holdfast.store import Settled
from tests.postgres.bustle import Bustle, drain
from tests.postgres.conftest import Opener
from tests.postgres.database import Database, until

DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"


async def test_producers_and_claimers_never_meet_a_deadlock(database: Database, make_store: Opener) -> None:
    stores = [make_store() for _ in range(3)]
    bustle = Bustle(stores, seed=3, with_people=False)
    await bustle.run()
    assert bustle.settled[Settled.APPLIED] >= len(bustle.enqueued) > 0
    assert bustle.settled.keys() == {Settled.APPLIED}
    assert await database.value(DEADLOCKS) == 0


async def test_no_error_reaches_anybody_and_every_job_ends_once(database: Database, make_store: Opener) -> None:
    stores = [make_store() for _ in range(3)]
    bustle = Bustle(stores, seed=1)
    # A second process does the same, so that not everything goes through one event loop.
    other = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.postgres.bustle", database.url)
    await bustle.run()
    assert await other.wait() == 0
    await drain(stores[0])
    assert bustle.settled[Settled.STALE] == 0, "nobody was taken for dead, so nobody's claim was taken away"
    states = {row["stage"]: row["count"] for row in await database.ask(_STAGES)}
    assert states.keys() <= {4, 5, 6}, states
    assert sum(states.values()) >= len(bustle.enqueued)
    assert await database.value("select count(*) from holdfast.keys where expires_at is null") == 0
    await until(database.is_quiet)
    assert await database.value("select count(*) from pg_locks where locktype = 'advisory' and objsubid = 2") == 0


_STAGES = "select stage, count(*) from holdfast.jobs group by stage"
