"""A server that takes no writes any more, as after a failover: it is left as soon as there is another one."""

from __future__ import annotations

import pytest

from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.stores.postgres import PostgresStore
from tests.postgres.database import Database, until
from tests.postgres.jobs import enqueue


async def test_connections_to_a_server_that_takes_no_writes_are_not_kept(
    store: PostgresStore, database: Database
) -> None:
    await enqueue(store)
    name = await database.value("select current_database()")
    await database.execute(f'alter database "{name}" set default_transaction_read_only = on')
    await database.terminate()
    with pytest.raises((StoreUnavailable, OutcomeUnknown)):  # unknown, if its connection ended while it was used
        await enqueue(store)
    with pytest.raises(StoreUnavailable, match="takes no writes"):
        await enqueue(store)

    async def is_left() -> bool:
        return await database.backends() == []

    await until(is_left)
