"""Connections are ended at random under load: nothing is lost, doubled or stuck."""

from __future__ import annotations

import random

from holdfast.errors import OutcomeUnknown, StoreUnavailable
from tests.crash.rounds import rounds
from tests.postgres.conftest import Opener
from tests.postgres.database import Database
from tests.postgres.load import Load


async def test_backends_that_are_terminated_at_random_lose_nothing(make_store: Opener, database: Database) -> None:
    stores = [make_store(), make_store()]
    for store in stores:
        await store.open()
    load = Load(stores)
    chance = random.Random(7)
    async with load.running():
        for _ in range(rounds(8)):
            await load.get_on(30)
            await database.terminate(f"random() < {chance.choice((0.3, 0.7, 1.0))}")
        await load.get_on(30)
    await load.check(database)
    assert load.stale == 0
    assert set(load.errors) <= {OutcomeUnknown, StoreUnavailable}
