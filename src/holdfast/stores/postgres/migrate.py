"""Numbered migrations, forward only. Any number of processes may try at once: one does it, the others find it done.

A migration runs in one transaction, unless its first line says `-- outside of a transaction`: then its statements
run one by one, must bear being repeated, and may build indexes concurrently. Each waits only briefly for
a lock, and tries again: a migration that stood in line for a busy table would make everybody stand behind it.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

import asyncpg

from holdfast.errors import SchemaOutdated, SchemaTooNew, StoreUnavailable

_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_OUTSIDE = "-- outside of a transaction"
_LOCK = 0x686F6C6466617374  # "holdfast"
_BOOKKEEPING = """create table if not exists holdfast.migrations (
    number integer primary key, name text not null, applied_at timestamptz not null default clock_timestamp()
)"""
_STATEMENT_END = re.compile(r";\s*$", re.MULTILINE)
_PATIENCE = 60.0


@dataclass(frozen=True)
class Migration:
    """One numbered step forward."""

    number: int
    name: str
    sql: str

    @property
    def is_transactional(self) -> bool:
        return not self.sql.startswith(_OUTSIDE)

    def statements(self) -> list[str]:
        return [part.strip() for part in _STATEMENT_END.split(self.sql) if part.strip()]


def shipped_migrations(folder: Traversable | None = None) -> list[Migration]:
    """The migrations of this version, in order."""
    folder = folder or resources.files("holdfast.stores.postgres").joinpath("migrations")
    found = [(match, file) for file in folder.iterdir() if (match := _FILE_NAME.fullmatch(file.name))]
    migrations = [Migration(int(match[1]), match[2], file.read_text("utf-8")) for match, file in found]
    return sorted(migrations, key=lambda migration: migration.number)


def script(migrations: Sequence[Migration]) -> str:
    """All of it as text, for those who run it by hand. What was applied already must be left out by them."""
    parts = ["create schema if not exists holdfast;", f"{_BOOKKEEPING};"]
    for migration in migrations:
        done = f"insert into holdfast.migrations (number, name) values ({migration.number}, '{migration.name}');"  # noqa: S608
        body = f"{migration.sql.strip()}\n\n{done}"
        title = f"-- migration {migration.number:04}: {migration.name}"
        parts.append(f"{title}\nbegin;\n\n{body}\n\ncommit;" if migration.is_transactional else f"{title}\n{body}")
    return "\n\n".join(parts) + "\n"


async def applied(connection: asyncpg.Connection[asyncpg.Record]) -> int:
    """The number of the last migration that was applied; 0 if Holdfast has nothing here yet."""
    if await connection.fetchval("select to_regclass('holdfast.migrations')") is None:
        return 0
    number: int = await connection.fetchval("select coalesce(max(number), 0) from holdfast.migrations")
    return number


async def migrate(connection: asyncpg.Connection[asyncpg.Record], migrations: Sequence[Migration]) -> list[Migration]:
    """Bring the schema to the newest of these migrations, and return those that were applied."""
    done: list[Migration] = []
    async with asyncio.timeout(_PATIENCE + 10):
        for migration in migrations:
            if migration.number > await applied(connection):
                try:
                    await _apply(connection, migration, done)
                except asyncpg.InsufficientPrivilegeError as error:
                    raise SchemaOutdated(
                        f"The database needs migration {migration.number:04} ({migration.name}), and this role may not "
                        f"make it ({error}). Run `holdfast db migrate` once with a role that may."
                    ) from error
    check(await applied(connection), migrations)
    return done


def check(number: int, migrations: Sequence[Migration]) -> None:
    """Raise if this version can't work with a schema of that number."""
    known = migrations[-1].number
    if number > known:
        raise SchemaTooNew(
            f"The database has schema {number}, and this version of Holdfast knows {known}. "
            "Upgrade the holdfast package in this process."
        )
    if number < known:
        raise SchemaOutdated(
            f"The database has schema {number}, and this version of Holdfast needs {known}. Run `holdfast db migrate`."
        )


async def _apply(connection: asyncpg.Connection[asyncpg.Record], migration: Migration, done: list[Migration]) -> None:
    """Apply one migration, trying again while somebody holds a lock that it needs."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE
    while True:
        try:
            if migration.is_transactional:
                await _apply_whole(connection, migration, done)
            else:
                await _apply_one_by_one(connection, migration, done)
            return
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if loop.time() > deadline:
                raise StoreUnavailable(
                    f"Migration {migration.number:04} ({migration.name}) waited {_PATIENCE:g} s for a lock another "
                    "transaction holds. Nothing was changed; end long transactions, and run `holdfast db migrate`."
                ) from error
            await asyncio.sleep(random.uniform(0.2, 0.6))


async def _apply_whole(
    connection: asyncpg.Connection[asyncpg.Record], migration: Migration, done: list[Migration]
) -> None:
    async with connection.transaction():
        await connection.execute("set local lock_timeout = '30s'; set local statement_timeout = 0")
        await connection.execute(f"select pg_advisory_xact_lock({_LOCK})")
        if await _is_applied(connection, migration):
            return
        await connection.execute("set local lock_timeout = '1s'; set local synchronous_commit = 'on'")
        await connection.execute(migration.sql)
        await _record(connection, migration)
    done.append(migration)


async def _apply_one_by_one(
    connection: asyncpg.Connection[asyncpg.Record], migration: Migration, done: list[Migration]
) -> None:
    """For what can't be done in a transaction. The lock is the session's, so this needs a connection of its own."""
    await connection.execute("set lock_timeout = '30s'; set statement_timeout = 0")
    await connection.execute(f"select pg_advisory_lock({_LOCK})")
    try:
        if await _is_applied(connection, migration):
            return
        await connection.execute("set lock_timeout = '1s'")
        for statement in migration.statements():
            await connection.execute(statement)
        await _record(connection, migration)
    finally:
        await connection.execute(f"select pg_advisory_unlock({_LOCK})")
    done.append(migration)


async def _is_applied(connection: asyncpg.Connection[asyncpg.Record], migration: Migration) -> bool:
    if not await connection.fetchval("select exists (select from pg_namespace where nspname = 'holdfast')"):
        await connection.execute("create schema holdfast")
    await connection.execute(f"set client_min_messages = warning; {_BOOKKEEPING}")
    return bool(
        await connection.fetchval("select exists (select from holdfast.migrations where number = $1)", migration.number)
    )


async def _record(connection: asyncpg.Connection[asyncpg.Record], migration: Migration) -> None:
    await connection.execute(
        "insert into holdfast.migrations (number, name) values ($1, $2)", migration.number, migration.name
    )
