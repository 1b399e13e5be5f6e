"""What must be on the disk is waited for, whatever the user has set; what need not be is not."""

from __future__ import annotations

import asyncpg
import psycopg
import pytest

from holdfast.job import Delivery
from holdfast.lifecycle import Bury, Complete
from holdfast.store import Held
from holdfast.stores.postgres import PostgresStore
from tests.postgres.conftest import Opener
from tests.postgres.database import Database
from tests.postgres.jobs import FAILURE, claim, enqueue, new, register, settle

_RECORD_AT_COMMIT = """
    create table public.commits (relation text, setting text);
    create function public.record_commit() returns trigger language plpgsql as $$
        begin
            insert into public.commits values (tg_table_name, current_setting('synchronous_commit'));
            return null;
        end
    $$;
    -- Deferred, it runs when the transaction commits: what is set then is what the server goes by.
    create constraint trigger record_commit after insert or update on holdfast.jobs
        deferrable initially deferred for each row execute function public.record_commit();
    create constraint trigger record_commit after insert or update on holdfast.workers
        deferrable initially deferred for each row execute function public.record_commit();
"""


@pytest.fixture(params=["alter role {role} in database {name} set", "alter database {name} set"])
async def careless(request: pytest.FixtureRequest, database: Database, make_store: Opener) -> PostgresStore:
    """A store in a database whose owner waits for no disk."""
    role = await database.value("select current_user")
    name = database.url.rpartition("/")[2]
    await database.execute(f"{request.param.format(role=role, name=name)} synchronous_commit = 'off'")
    store = make_store()
    await store.open()
    await database.execute(_RECORD_AT_COMMIT)
    user = await database.connect()
    assert await user.fetchval("show synchronous_commit") == "off"
    await user.close()
    return store


async def _settings(database: Database, relation: str = "jobs") -> set[str]:
    """What was set when rows of this table were committed since the last time."""
    found = await database.ask("delete from public.commits returning relation, setting")
    assert found
    return {row["setting"] for row in found if row["relation"] == relation}


async def test_only_claims_and_beats_do_not_wait_for_the_disk(careless: PostgresStore, database: Database) -> None:
    worker = await register(careless)
    assert await _settings(database, "workers") == {"on"}
    await enqueue(careless, 3)
    assert await _settings(database) == {"on"}
    await enqueue(careless, 2, idempotency_key="key")
    assert await _settings(database) == {"on"}
    claimed = await claim(careless, worker, 3)
    assert await _settings(database) == {"off"}
    await careless.beat(worker, Held({job.id: job.token for job in claimed}))
    assert await _settings(database, "workers") == {"off"}
    await settle(careless, claimed[:1], Complete())
    assert await _settings(database) == {"on"}
    await settle(careless, claimed[1:2], Bury(FAILURE))
    assert await _settings(database) == {"on"}
    await careless.retry([claimed[1].id])
    assert await _settings(database) == {"on"}
    await careless.bury_worker(worker)
    assert await _settings(database) == {"on"}


async def test_a_claim_of_a_job_that_may_not_run_twice_waits_for_the_disk(
    careless: PostgresStore, database: Database
) -> None:
    worker = await register(careless)
    await enqueue(careless, 2)
    await enqueue(careless, 1, delivery=Delivery.AT_MOST_ONCE)
    await _settings(database)
    await claim(careless, worker, 2)
    assert await _settings(database) == {"off"}
    await claim(careless, worker, 2)
    assert await _settings(database) == {"on"}
    await enqueue(careless)
    await _settings(database)
    await claim(careless, worker, 2)
    assert await _settings(database) == {"off"}, "what one claim needed must not make the next one slow"


async def test_a_transaction_of_the_users_waits_for_the_disk_once_it_enqueues(
    careless: PostgresStore, database: Database
) -> None:
    with psycopg.connect(database.url) as connection:
        connection.execute("set local synchronous_commit = 'off'")
        careless.enqueue_in(connection, [new()])
    assert await _settings(database) == {"on"}
    user = await database.connect()
    async with user.transaction():
        await careless.enqueue([new(idempotency_key="key")], tx=user)
    assert await user.fetchval("show synchronous_commit") == "off", "only that transaction was meant"
    await user.close()
    assert await _settings(database) == {"on"}


async def _with(level: str, database: Database) -> None:
    name = database.url.rpartition("/")[2]
    await database.execute(f"alter database {name} set synchronous_commit = '{level}'")


@pytest.mark.parametrize("level", ["local", "remote_write", "remote_apply"])
async def test_a_level_that_keeps_our_promise_is_the_owners_choice(
    make_store: Opener, database: Database, level: str
) -> None:
    await _with(level, database)
    store = make_store()
    await store.open()
    await database.execute(_RECORD_AT_COMMIT)
    await enqueue(store)
    assert await _settings(database) == {level}


async def test_the_settings_of_the_users_connection_come_back(careless: PostgresStore, database: Database) -> None:
    await careless.open()
    names = ["synchronous_commit", "lock_timeout", "enable_seqscan", "enable_hashjoin", "jit", "search_path"]

    async def settings(connection: asyncpg.Connection[asyncpg.Record]) -> list[str]:
        return [await connection.fetchval(f"show {name}") for name in names]

    user = await database.connect()
    before = await settings(user)
    async with user.transaction():
        await careless.enqueue([new()], tx=user)
        assert (await settings(user))[1:] == before[1:]
    assert await settings(user) == before
    await user.close()
