"""What `holdfast db sql` prints makes the same tables as `holdfast db migrate`, whoever runs it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.cutting import cut
from holdfast.stores.postgres.migrate import shipped_migrations
from holdfast.stores.postgres.script import script
from tests.postgres.schema import INDEX, NOTE, NOW, things, with_more
from tests.servers.binaries import find_binaries
from tests.servers.databases import Databases

Runner = Callable[[str, str], Awaitable[None]]


async def _run_with_asyncpg(url: str, text: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in cut(text):
            await connection.execute(statement)
    finally:
        await connection.close()


async def _run_with_psql(url: str, text: str) -> None:
    await _run_program("psql", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--quiet", url, stdin=text)


async def _run_program(name: str, *arguments: str, stdin: str = "") -> str:
    program = _find(name)
    if program is None:
        pytest.skip(f"NOT TESTED: there is no {name} here")
    command = [str(program), *arguments]
    done = await asyncio.to_thread(
        lambda: subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def _find(name: str) -> Path | None:
    """The program that came with the server, or the system's."""
    for folder in (str(find_binaries()), os.environ.get("PATH", "")):
        found = shutil.which(name, path=folder)
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return Path(found)
    return None


@contextmanager
def _other_database(postgres: Databases) -> Iterator[str]:
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.mark.parametrize("run", [_run_with_asyncpg, _run_with_psql])
@pytest.mark.parametrize("after", range(NOW + 2))
async def test_the_script_makes_the_same_tables_as_the_migrations(
    postgres: Databases, postgres_database: str, run: Runner, after: int
) -> None:
    migrations = with_more(NOTE, INDEX)
    migrated = PostgresStore(postgres_database, migrations=migrations)
    await migrated.open()
    await migrated.close()
    with _other_database(postgres) as by_hand:
        if after:
            older = PostgresStore(by_hand, migrations=migrations[:after])
            await older.open()
            await older.close()
        await run(by_hand, script(migrations, after))
        assert await things(by_hand) == await things(postgres_database)
        numbers = "select number, name from holdfast.migrations order by 1"
        assert await _ask(by_hand, numbers) == await _ask(postgres_database, numbers)
        store = PostgresStore(by_hand, migrations=migrations)
        await store.open()
        await store.close()


async def test_pg_dump_sees_no_difference_either(postgres: Databases, postgres_database: str) -> None:
    store = PostgresStore(postgres_database)
    await store.open()
    await store.close()
    with _other_database(postgres) as by_hand:
        await _run_with_asyncpg(by_hand, script(shipped_migrations()))
        assert await _dump(by_hand) == await _dump(postgres_database)


async def _dump(url: str) -> str:
    try:
        text = await _run_program("pg_dump", "--schema-only", "--no-comments", "--dbname", url)
    except RuntimeError as error:
        if "server version mismatch" in str(error):
            pytest.skip("NOT TESTED: pg_dump is older than the server")
        raise
    assert "holdfast.jobs" in text
    return re.sub(r"(?m)^\\(un)?restrict .*$", "", text)  # it has a random key


@pytest.mark.parametrize("run", [_run_with_asyncpg, _run_with_psql])
async def test_a_script_that_was_run_already_refuses_and_changes_nothing(postgres_database: str, run: Runner) -> None:
    text = script(shipped_migrations())
    await run(postgres_database, text)
    before = await things(postgres_database), await _ask(postgres_database, "select id from holdfast.instance")
    with pytest.raises(Exception, match=f"Migration 1 comes after schema 0, but the schema is {NOW}"):
        await run(postgres_database, text)
    assert (
        await things(postgres_database),
        await _ask(postgres_database, "select id from holdfast.instance"),
    ) == before


async def test_a_script_for_a_later_schema_refuses_an_earlier_one(postgres_database: str) -> None:
    migrations = with_more(NOTE, INDEX)
    await _run_with_asyncpg(postgres_database, script(migrations[:NOW]))
    with pytest.raises(asyncpg.RaiseError, match=f"comes after schema {NOW + 1}, but the schema is {NOW}"):
        await _run_with_asyncpg(postgres_database, script(migrations, NOW + 1))


def test_nothing_comes_after_the_newest_schema() -> None:
    assert cut(script(shipped_migrations(), NOW)) == []
    assert f"nothing comes after schema {NOW}" in script(shipped_migrations(), NOW)


async def _ask(url: str, question: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(question)
    finally:
        await connection.close()
