"""Numbered migrations, forward only. Any number of processes may try at once: one does it, the others find it done.

A migration runs in one transaction, unless its first line says `-- outside of a transaction`: then its statements
run one by one, must bear being repeated, and may build indexes concurrently. Nobody stands in line for
a lock for more than a moment: everybody else would have to stand behind.

Nothing here is left to a session, so that it works behind a pooler too.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Final, TypeAlias

import asyncpg

from holdfast.errors import SchemaOutdated, SchemaTooNew, StoreError, StoreUnavailable
from holdfast.stores.postgres.cutting import cut

Raw: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Connect: TypeAlias = Callable[[], Awaitable[Raw]]

LOCK: Final = 0x686F6C6466617374  # "holdfast"
LOCK_TIMEOUT: Final = "200ms"
BOOKKEEPING: Final = """create table if not exists holdfast.migrations (
    number integer primary key, name text not null, applied_at timestamptz not null default clock_timestamp()
)"""
OLDEST_SERVER: Final = 13

_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_OUTSIDE = "-- outside of a transaction"
_CONCURRENT = re.compile(
    r"(?:create\s+(?:unique\s+)?index|drop\s+index|reindex\s+\w+)\s+concurrently\s+(?:if\s+(?:not\s+)?exists\s+)?(\w+)",
    re.IGNORECASE,
)
_SETTINGS = f"""
    set local lock_timeout = '{LOCK_TIMEOUT}';
    set local statement_timeout = 0;
    set local synchronous_commit = 'on';
    set local client_min_messages = 'warning';
    set local search_path = pg_catalog, pg_temp
"""
_PATIENCE = 60.0
_SHORT = 30.0
"""Seconds that a question to the catalogue may take: whoever opens a store must not wait for ever."""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 5.0
"""In between, those whom we made wait get on."""
_TURN_PAUSE = 0.05


@dataclass(frozen=True)
class Migration:
    """One numbered step forward."""

    number: int
    name: str
    sql: str

    def __str__(self) -> str:
        return f"{self.number:04} ({self.name})"

    @property
    def is_transactional(self) -> bool:
        return not self.sql.startswith(_OUTSIDE)

    def statements(self) -> list[str]:
        return cut(self.sql)


class _Taken(Exception):
    """Another process is applying a migration."""


def shipped_migrations(folder: Traversable | None = None) -> list[Migration]:
    """The migrations of this version, in order."""
    folder = folder or resources.files("holdfast.stores.postgres").joinpath("migrations")
    found = [(match, file) for file in folder.iterdir() if (match := _FILE_NAME.fullmatch(file.name))]
    migrations = [Migration(int(match[1]), match[2], file.read_text("utf-8")) for match, file in found]
    return sorted(migrations, key=lambda migration: migration.number)


async def applied(connection: Raw) -> int:
    """The number of the last migration that was applied; 0 if Holdfast has nothing here yet."""
    async with _transaction(connection):
        return await _number(connection)


async def migrate(
    connection: Raw,
    migrations: Sequence[Migration],
    connect: Connect | None = None,
    *,
    patience: float = _PATIENCE,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Migration]:
    """Bring the schema to the newest of these migrations, and return those that were applied here.

    `connect` makes a further connection, which migrations outside of a transaction need. `tell` is told what is waited
    for.
    """
    check_server(connection.get_server_version().major)
    number = await applied(connection)
    missing = [migration for migration in migrations if migration.number > number]
    done = [each for each in missing if await _apply(connection, each, connect, patience, tell)]
    check(await applied(connection) if missing else number, migrations)
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


def check_server(major: int) -> None:
    if major < OLDEST_SERVER:
        raise StoreUnavailable(
            f"PostgreSQL {major} is too old: Holdfast needs {OLDEST_SERVER} or newer. Upgrade the server."
        )


async def _apply(
    connection: Raw,
    migration: Migration,
    connect: Connect | None,
    patience: float,
    tell: Callable[[str], None],
) -> bool:
    """Apply one migration, trying again while somebody is in the way; False if another process did it meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    pause, turn_pause = _FIRST_PAUSE, _TURN_PAUSE
    is_told = False
    while True:
        try:
            if migration.is_transactional:
                return await _apply_whole(connection, migration)
            return await _apply_one_by_one(connection, migration, connect)
        except _Taken as error:
            if loop.time() > deadline:
                raise StoreUnavailable(
                    f"Another process has been applying migrations for more than {patience:g} s. Try again when it is "
                    "done; a long one is best run by `holdfast db migrate`, before the new version starts."
                ) from error
            await asyncio.sleep(turn_pause * random.uniform(0.5, 1.5))
            turn_pause = min(turn_pause * 1.5, 1.0)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if loop.time() > deadline:
                raise StoreUnavailable(
                    f"Migration {migration} waited {patience:g} s for a lock that another transaction holds. "
                    "It is safe to repeat: end long transactions, and run `holdfast db migrate`."
                ) from error
            if not is_told:
                tell(f"Migration {migration} waits for a lock that another transaction holds …")
                is_told = True
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, _LONGEST_PAUSE)
        except asyncpg.InsufficientPrivilegeError as error:
            raise SchemaOutdated(
                f"The database needs migration {migration}, and this role may not make it ({error}). "
                "Run `holdfast db migrate` once with a role that may."
            ) from error
        except asyncpg.UndefinedObjectError as error:
            if "plpgsql" not in str(error):
                raise
            raise StoreError(
                f"Migration {migration} needs PostgreSQL's own language plpgsql, and this database lacks it. "
                "Let its owner run: create extension plpgsql;"
            ) from error


async def _apply_whole(connection: Raw, migration: Migration) -> bool:
    async with _turn(connection):
        if await _is_applied(connection, migration):
            return False
        await connection.execute(migration.sql)
        await _record(connection, migration)
    return True


async def _apply_one_by_one(connection: Raw, migration: Migration, connect: Connect | None) -> bool:
    """For what can't be done in a transaction: another connection has the turn meanwhile.

    It has an open transaction, but no snapshot, which a concurrent build would have to wait for.
    """
    assert connect is not None, "a migration outside of a transaction needs a second connection"
    async with _turn(connection):
        pass  # it seems to be free: worth a connection
    holder = await connect()
    try:
        async with _turn(holder):
            try:
                async with asyncio.timeout(_SHORT), _transaction(connection):
                    if await _is_applied(connection, migration):
                        return False
            except TimeoutError as error:
                raise StoreUnavailable(
                    f"Migration {migration} needs two connections at once, and did not get the second one. "
                    "Run `holdfast db migrate` with a URL that goes past the connection pooler, if there is one."
                ) from error
            for statement in migration.statements():
                await _run_apart(connection, statement)
            async with _transaction(connection):
                await _record(connection, migration)
    finally:
        with suppress(Exception):
            await holder.close(timeout=2)
        if not holder.is_closed():
            holder.terminate()
    return True


async def _run_apart(connection: Raw, statement: str) -> None:
    concurrent = _CONCURRENT.match(statement)
    if concurrent is None:
        async with _transaction(connection):
            await connection.execute(statement)
        return
    async with _transaction(connection):
        is_ours = await _ask(connection, "select pg_backend_pid()") == connection.get_server_pid()
        is_broken = await _ask(
            connection,
            "select exists (select from pg_index where indexrelid = to_regclass('holdfast.' || $1) and not indisvalid)",
            concurrent[1],
        )
    if is_ours:
        # Nobody waits behind a concurrent build, so it may take its time. Behind a pooler, the user's settings hold.
        await connection.execute("set statement_timeout = 0; set lock_timeout = 0")
    if is_broken:
        # A build that was interrupted leaves an index that is never used, and that "if not exists" takes for done.
        await connection.execute(f"drop index concurrently if exists holdfast.{concurrent[1]}")
    await connection.execute(statement)


@asynccontextmanager
async def _turn(connection: Raw) -> AsyncIterator[None]:
    """A transaction that only one process has at a time; _Taken if it is not ours now.

    Who waited for the lock in the database would have a snapshot all the while, and keep the one who has it from
    building an index concurrently.
    """
    async with _transaction(connection):
        if not await _ask(connection, f"select pg_try_advisory_xact_lock({LOCK})"):
            raise _Taken
        # An answer keeps its snapshot until the next simple statement, and this may be the last for a long time.
        await connection.execute("set local idle_in_transaction_session_timeout = 0")
        yield


@asynccontextmanager
async def _transaction(connection: Raw) -> AsyncIterator[None]:
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(_SETTINGS, timeout=_SHORT)
        yield


async def _is_applied(connection: Raw, migration: Migration) -> bool:
    if not await _ask(connection, "select exists (select from pg_namespace where nspname = 'holdfast')"):
        await connection.execute("create schema holdfast")
    await connection.execute(BOOKKEEPING)
    return bool(
        await _ask(connection, "select exists (select from holdfast.migrations where number = $1)", migration.number)
    )


async def _record(connection: Raw, migration: Migration) -> None:
    await connection.execute(
        "insert into holdfast.migrations (number, name) values ($1, $2) on conflict do nothing",
        migration.number,
        migration.name,
    )


async def _number(connection: Raw) -> int:
    if await _ask(connection, "select to_regclass('holdfast.migrations')") is None:
        return 0
    return int(await _ask(connection, "select coalesce(max(number), 0) from holdfast.migrations"))


async def _ask(connection: Raw, sql: str, *values: Any) -> Any:
    return await connection.fetchval(sql, *values, timeout=_SHORT)
