"""Holdfast's schema in one PostgreSQL database, as its owner sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from holdfast.installation import Finding, Report, Severity, Step, judge_schema, sorted_findings
from holdfast.stores.postgres import catalog
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.connecting import connect_raw
from holdfast.stores.postgres.connection import is_behind_a_pooler
from holdfast.stores.postgres.faults import translate
from holdfast.stores.postgres.migrate import Migration, Raw, applied, migrate, shipped_migrations
from holdfast.stores.postgres.script import script
from holdfast.stores.postgres.surroundings import Surroundings


class PostgresInstallation:
    """The schema holdfast of a database."""

    def __init__(self, address: Address, place: str, migrations: Sequence[Migration] | None = None) -> None:
        self.place = place
        self._address = address
        self._migrations = list(migrations or shipped_migrations())

    @property
    def steps(self) -> list[Step]:
        return [_step(migration) for migration in self._migrations]

    async def schema(self) -> int:
        async with self._connected() as connection:
            return await applied(connection)

    async def migrate(self, tell: Callable[[str], None]) -> list[Step]:
        async with self._connected() as connection:
            done = await migrate(connection, self._migrations, self._connect, tell=tell)
            return [_step(migration) for migration in done]

    def script(self, after: int) -> str:
        return script(self._migrations, after)

    async def check(self) -> Report:
        async with self._connected() as connection:
            is_pooled = await is_behind_a_pooler(connection)
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                found = await connection.fetchrow(catalog.question("surroundings"))
                assert found is not None
                surroundings = Surroundings(**found)
                findings = list(surroundings.judge(self._address, is_pooled=is_pooled))
                schema, others = await self._judge_schema(connection, surroundings)
        return Report(
            f"PostgreSQL {surroundings.version}",
            schema,
            self._migrations[-1].number,
            sorted_findings([*findings, *others]),
        )

    async def _judge_schema(self, connection: Raw, surroundings: Surroundings) -> tuple[int | None, list[Finding]]:
        needed = self._migrations[-1].number
        wanted = catalog.expected().things
        findings: list[Finding] = []
        if surroundings.has_schema:
            rows = await connection.fetch(catalog.question("rights"), [thing.owner for thing in wanted])
            lacking = [str(row["lacking"]) for row in rows]
            if lacking:
                findings.append(catalog.lacking_rights(lacking, surroundings.quoted_role))
            if "usage of the schema" in lacking or "select on migrations" in lacking:
                return None, findings
        ((is_there,),) = await connection.fetch("select to_regclass('holdfast.migrations') is not null")
        number = 0
        if is_there:
            number = await connection.fetchval("select coalesce(max(number), 0) from holdfast.migrations")
        if number == needed:
            findings += catalog.compare(wanted, await catalog.read(connection))
            findings += await _judge_instance(connection)
        else:
            findings.append(judge_schema(number, needed))
        return number, findings

    async def _connect(self) -> Raw:
        return await connect_raw(self._address, statement_cache=0)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Raw]:
        connection: Raw | None = None
        try:
            connection = await self._connect()
            yield connection
        except Exception as error:
            raise translate(error, self.place) from error
        finally:
            if connection is not None:
                with suppress(Exception):
                    await connection.close(timeout=2)
                if not connection.is_closed():
                    connection.terminate()


def _step(migration: Migration) -> Step:
    return Step(migration.number, migration.name)


async def _judge_instance(connection: Raw) -> list[Finding]:
    ((is_there,),) = await connection.fetch("select to_regclass('holdfast.instance') is not null")
    rows = await connection.fetchval("select count(*) from holdfast.instance") if is_there else 1
    if rows == 1:
        return []
    return [
        Finding(
            Severity.WRONG,
            f"The table instance has {rows} rows instead of one: nobody can tell which database this is.",
            "Run: truncate holdfast.instance; insert into holdfast.instance default values;",
        )
    ]
