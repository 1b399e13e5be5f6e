"""From one schema to the next, with data, with many processes, with failures, and under load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from holdfast.errors import SchemaOutdated, SchemaTooNew, StoreError, StoreUnavailable
from holdfast.lifecycle import Complete
from holdfast.store import Settled
from holdfast.stores.postgres import PostgresStore, catalog
from holdfast.stores.postgres.migrate import check_server, migrate, shipped_migrations
from holdfast.stores.postgres.script import script
from tests.postgres.conftest import Opener
from tests.postgres.database import Database, until
from tests.postgres.jobs import bury, claim, enqueue, register, settle, start
from tests.postgres.schema import INDEX, NOTE, NOW, folder_with, things, with_more
from tests.servers.databases import Databases
from tests.servers.pgbouncer import PgBouncer

_PROJECT = Path(__file__).parents[2]


@pytest.fixture
def database(bare: Database) -> Database:
    return bare


async def _version(database: Database) -> int:
    number: int = await database.value("select max(number) from holdfast.migrations")
    return number


async def _open_together(url: str, folders: list[Path]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.postgres.opening", url, *map(str, folders)]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=_PROJECT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return [json.loads(line) for line in out.splitlines()]


async def _check_usable(store: PostgresStore) -> None:
    """Jobs go in, run and finish."""
    worker = await register(store)
    started = await start(store, worker, 3)
    assert await settle(store, started, Complete("1")) == [Settled.APPLIED] * 3
    await store.depart(worker)


@contextlib.asynccontextmanager
async def _reading(database: Database, table: str = "holdfast.jobs") -> AsyncIterator[None]:
    """Somebody reads a table, in a transaction that does not end."""
    reader = await database.connect()
    try:
        async with reader.transaction(isolation="repeatable_read"):
            await reader.fetch(f"select count(*) from {table}")
            yield
    finally:
        await reader.close()


# ── many processes ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_ten_processes_that_open_a_fresh_database_at_once_make_it_once(
    database: Database, tmp_path: Path
) -> None:
    folder = folder_with(tmp_path / "new", NOTE, INDEX)
    outcomes = await _open_together(database.url, [folder] * 10)
    assert [outcome["error"] for outcome in outcomes] == [None] * 10
    rows = await database.ask("select number from holdfast.migrations order by 1")
    assert [row["number"] for row in rows] == list(range(1, NOW + 3))
    assert len(await database.ids()) == 10
    assert await database.ask("select from pg_index where not indisvalid") == []


async def test_old_and_new_versions_that_start_at_once_leave_the_new_schema(database: Database, tmp_path: Path) -> None:
    old, new = folder_with(tmp_path / "old"), folder_with(tmp_path / "new", INDEX, NOTE)
    outcomes = await _open_together(database.url, [old, new] * 5)
    assert [outcome["error"] for outcome in outcomes if outcome["folder"] == str(new)] == [None] * 5
    for outcome in outcomes:
        assert outcome["error"] is None or outcome["error"].startswith("SchemaTooNew"), outcome
    assert await _version(database) == NOW + 2
    assert len(await database.ids()) == sum(outcome["error"] is None for outcome in outcomes)


# ── from old to new ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("more", [[NOTE], [INDEX], [NOTE, INDEX]])
async def test_an_upgrade_keeps_every_job_while_an_old_process_works_on(
    database: Database, store: PostgresStore, make_store: Opener, more: list[str]
) -> None:
    worker = await register(store)
    ready = await enqueue(store, 20)
    dead = await bury(store, worker, 2)
    active = await start(store, worker, 3)
    before = await store.get([*ready, *dead, *(job.id for job in active)])

    newer = make_store(migrations=with_more(*more))
    await newer.open()
    assert await _version(database) == NOW + len(more)
    assert await newer.get([job.id for job in before]) == before
    assert await settle(store, active, Complete("1")) == [Settled.APPLIED] * 3
    for each in (store, newer):
        await _check_usable(each)
    if NOTE in more:
        assert await database.value("select count(*) from holdfast.notes") == 25
    if INDEX in more:
        assert await database.value(
            "select indisvalid from pg_index where indexrelid = 'holdfast.jobs_of_colour'::regclass"
        )


async def test_an_old_process_refuses_a_newer_schema_and_leaves_it_alone(
    database: Database, make_store: Opener
) -> None:
    await make_store(migrations=with_more(NOTE)).open()
    before = await things(database.url)
    older = make_store()
    for _ in range(2):
        with pytest.raises(SchemaTooNew, match=f"schema {NOW + 1}.*knows {NOW}.*Upgrade the holdfast package"):
            await older.open()
    assert await things(database.url) == before


@pytest.mark.parametrize("first_line", ["", "-- outside of a transaction"])
async def test_a_failing_migration_leaves_the_old_schema_working(
    database: Database, store: PostgresStore, make_store: Opener, first_line: str
) -> None:
    before = await things(database.url)
    broken = make_store(migrations=with_more(f"{first_line}\ninsert into holdfast.nowhere values (1);"))
    with pytest.raises(StoreError, match="nowhere"):
        await broken.open()
    assert await things(database.url) == before
    assert await _version(database) == NOW
    await _check_usable(store)
    await make_store(migrations=with_more(NOTE)).open()


async def test_what_a_failing_migration_did_before_is_undone(database: Database, make_store: Opener) -> None:
    await make_store().open()
    before = await things(database.url)
    with pytest.raises(StoreError, match="nowhere"):
        await make_store(migrations=with_more(f"{NOTE}; insert into holdfast.nowhere values (1)")).open()
    assert await things(database.url) == before


# ── on a busy table ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_migration_that_must_wait_for_a_lock_lets_all_others_by(
    database: Database, store: PostgresStore, make_store: Opener
) -> None:
    worker = await register(store)
    await enqueue(store, 5)
    connection = await database.connect()
    waits = asyncio.Event()
    longest = 0.0
    try:
        async with _reading(database):
            upgrade = asyncio.create_task(migrate(connection, with_more(NOTE), tell=lambda _: waits.set()))
            await waits.wait()
            began = time.monotonic()
            while time.monotonic() - began < 3:  # several of its tries
                start_of_call = time.monotonic()
                await enqueue(store)
                assert len(await claim(store, worker)) == 1
                longest = max(longest, time.monotonic() - start_of_call)
            assert not upgrade.done()
        assert [migration.number for migration in await upgrade] == [NOW + 1]
    finally:
        await connection.close()
    assert longest < 2, "claims stood in line behind the migration"
    await _check_usable(make_store(migrations=with_more(NOTE)))


async def test_a_migration_gives_up_on_a_lock_with_advice_and_changes_nothing(
    database: Database, store: PostgresStore
) -> None:
    before = await things(database.url)
    connection = await database.connect()
    try:
        async with _reading(database):
            with pytest.raises(StoreUnavailable, match="end long transactions, and run `holdfast db migrate`"):
                await migrate(connection, with_more(NOTE), patience=0.1)
    finally:
        await connection.close()
    assert await things(database.url) == before


async def test_jobs_go_on_while_an_index_is_built(database: Database, store: PostgresStore, make_store: Opener) -> None:
    worker = await register(store)
    newer = make_store(migrations=with_more(INDEX))
    async with _reading(database, "holdfast.tasks"):
        upgrade = asyncio.create_task(newer.open())
        await _until_building(database)
        await enqueue(store, 5)
        assert len(await claim(store, worker, 5)) == 5
        assert not upgrade.done()
    await upgrade


async def test_an_index_whose_building_was_interrupted_is_built_anew(
    database: Database, store: PostgresStore, make_store: Opener
) -> None:
    jobs = await enqueue(store, 5)
    for _ in range(2):
        async with _reading(database, "holdfast.tasks"):
            upgrade = asyncio.create_task(make_store(migrations=with_more(INDEX)).open())
            await _until_building(database)
            assert await database.terminate("query ~ '^create index concurrently'") == 1
            with pytest.raises(StoreUnavailable):
                await upgrade
        assert (
            await database.value(
                "select indisvalid from pg_index where indexrelid = 'holdfast.jobs_of_colour'::regclass"
            )
            is False
        )
        assert await _version(database) == NOW
    newer = make_store(migrations=with_more(INDEX))
    await newer.open()
    assert await database.value(
        "select indisvalid from pg_index where indexrelid = 'holdfast.jobs_of_colour'::regclass"
    )
    assert await _version(database) == NOW + 1
    assert await database.ids() == jobs
    await _check_usable(newer)


async def _until_building(database: Database) -> None:
    """Until an index is being built, and waits for somebody who reads."""

    async def holds() -> bool:
        waiting: bool = await database.value(
            """
            select exists (
                select from pg_stat_activity
                where query ~ '^create index concurrently' and wait_event = 'virtualxid'
                  and datname = current_database()
            )
            """
        )
        return waiting

    await until(holds)


async def test_who_waits_for_a_migration_of_another_process_gives_up_with_advice(
    database: Database, store: PostgresStore, make_store: Opener
) -> None:
    connection = await database.connect()
    try:
        async with _reading(database, "holdfast.tasks"):
            upgrade = asyncio.create_task(make_store(migrations=with_more(INDEX)).open())
            await _until_building(database)
            with pytest.raises(StoreUnavailable, match=r"Another process.*run by `holdfast db migrate`"):
                await migrate(connection, with_more(INDEX), database.connect, patience=0.1)
        await upgrade
        assert await migrate(connection, with_more(INDEX), database.connect) == []
    finally:
        await connection.close()


# ── rights ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def role(postgres: Databases) -> AsyncIterator[str]:
    """A role that may log in, and nothing else. A database where it is given rights must be gone before it."""
    name = f"holdfast_role_{uuid4().hex[:12]}"
    connection = await asyncpg.connect(postgres.url())
    await connection.execute(f"create role {name} login")
    yield name
    await connection.execute(f"drop role {name}")
    await connection.close()


def _as(role: str, postgres: Databases, database: Database) -> str:
    return postgres.url(database.url.rpartition("/")[2], user=role)


async def test_a_role_that_owns_nothing_but_its_database_can_do_everything(
    postgres: Databases, role: str, database: Database
) -> None:
    await database.execute("revoke create on schema public from public")
    await database.execute(f"alter database {database.url.rpartition('/')[2]} owner to {role}")
    store = PostgresStore(_as(role, postgres, database), migrations=with_more(NOTE, INDEX))
    await _check_usable(store)
    await store.close()
    assert await database.value("select nspowner::regrole::text from pg_namespace where nspname = 'holdfast'") == role


async def test_a_role_that_may_not_make_tables_says_who_should(
    postgres: Databases, role: str, database: Database
) -> None:
    name = database.url.rpartition("/")[2]
    await database.execute(f"revoke create on database {name} from public")
    store = PostgresStore(_as(role, postgres, database))
    with pytest.raises(SchemaOutdated, match=r"migration 0001.*permission denied.*Run `holdfast db migrate`"):
        await store.open()
    await store.close()
    assert await database.value("select to_regnamespace('holdfast')") is None


async def test_a_role_without_rights_on_tables_works_until_a_migration_is_needed(
    postgres: Databases, role: str, database: Database, make_store: Opener
) -> None:
    await make_store().open()
    await database.execute(
        f"grant usage on schema holdfast to {role};"
        f"grant select, insert, update, delete on all tables in schema holdfast to {role};"
        f"grant usage on all sequences in schema holdfast to {role};"
    )
    url = _as(role, postgres, database)
    store = PostgresStore(url)
    await _check_usable(store)
    await store.close()
    for more in (NOTE, INDEX):
        newer = PostgresStore(url, migrations=with_more(more))
        with pytest.raises(SchemaOutdated, match=f"needs migration {NOW + 1:04}.*Run `holdfast db migrate`"):
            await newer.open()
        await newer.close()
    assert await _version(database) == NOW


async def test_a_database_without_plpgsql_says_what_is_missing(database: Database, make_store: Opener) -> None:
    await database.execute("drop extension plpgsql")
    store = make_store()
    with pytest.raises(StoreError, match="create extension plpgsql"):
        await store.open()
    await database.execute("create extension plpgsql")
    await _check_usable(store)


def test_a_server_that_is_too_old_is_refused() -> None:
    with pytest.raises(StoreUnavailable, match="PostgreSQL 12 is too old: Holdfast needs 13"):
        check_server(12)
    check_server(13)


# ── behind a pooler ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_migrations_work_behind_a_pooler_and_leave_nothing_in_its_connections(
    database: Database, pgbouncer: PgBouncer
) -> None:
    question = (
        "select name, setting from pg_settings where name in "
        "('lock_timeout', 'statement_timeout', 'client_min_messages', 'idle_in_transaction_session_timeout', "
        "'synchronous_commit', 'search_path', 'default_transaction_isolation') order by 1"
    )
    usual = await database.ask(question)
    url = pgbouncer.through(database.url)
    stores = [PostgresStore(url, migrations=with_more(NOTE, INDEX)) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    for store in stores:
        await store.close()
    assert await _version(database) == NOW + 2
    assert await database.ask("select from pg_index where not indisvalid") == []
    assert (
        await database.ask(
            "select from pg_locks as l join pg_database as d on d.oid = l.database "
            "where locktype = 'advisory' and datname = current_database()"
        )
        == []
    )
    clients = [await asyncpg.connect(url, statement_cache_size=0) for _ in range(3)]
    transactions = [client.transaction() for client in clients]
    pids = set()
    for client, transaction in zip(clients, transactions, strict=True):
        await transaction.start()
        pids.add(await client.fetchval("select pg_backend_pid()"))
        assert await client.fetch(question) == usual
    assert len(pids) == 3
    for client in clients:
        await client.close()


# ── the shipped ones ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_written_down_as_expected_is_what_the_migrations_make(
    database: Database, store: PostgresStore
) -> None:
    found, expected = await things(database.url), catalog.expected()
    assert expected.schema == NOW
    assert found == expected.things, "run .venv/bin/python scripts/postgres_catalog.py"


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.number for migration in shipped_migrations()] == list(range(1, NOW + 1))


def test_migrations_can_be_made_in_a_database_of_any_encoding() -> None:
    assert script(shipped_migrations()).isascii()
