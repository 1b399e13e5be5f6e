"""How many statements a job takes from enqueue to settle, counted by the server.

A round trip is a statement that the client sent; what a function runs inside the server is counted as a statement too.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache

import asyncpg

from benchmarks.loop import run
from benchmarks.rounds import Side, alternate
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.table import Findings, rows
from benchmarks.worker import registered_worker
from holdfast.stores.postgres.statements import names, statement

_GROUPS = (1, 10, 100, 1_000)
_FIGURES = ("round trips/job", "statements/job")
_MOST_FOR_SINGLES = 1_000
_SHOWN = 10
_WIDTH = 90
_COUNTED = """
select query, toplevel as is_sent, calls
from pg_stat_statements
where dbid = (select oid from pg_database where datname = current_database()) and query not like '%pg_stat_statements%'
order by calls desc
"""


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    found = Findings()
    for group in _GROUPS:
        jobs = min(sizes.statement_jobs, _MOST_FOR_SINGLES * group)
        listed: list[str] = []
        for store, figures in alternate(hosts, _sides(group, jobs, listed), rounds=1).items():
            found.rows.extend(rows(f"enqueue, claim, settle, {group:,} together", store, figures, _FIGURES))
            found.notes.append(f"statements, {store}, {jobs:,} jobs, {group:,} together:")
            found.notes.extend(listed)
    return found


def _sides(group: int, jobs: int, listed: list[str]) -> dict[str, Side]:
    return {
        "ours": lambda site: run(_ours(site, group, jobs, listed)),
        "limit": lambda site: run(_limit(site, group, jobs)),
    }


async def _ours(site: Site, group: int, jobs: int, listed: list[str]) -> Sample:
    await _count(site)
    async with _counted(site, jobs, listed) as sample:
        async with registered_worker(site) as worker:
            await worker.enqueue(1)
            await worker.settle(await worker.claim(1))
            await _reset(site)
            for _ in range(jobs // group):
                await worker.enqueue(group)
                await worker.settle(await worker.claim(group))
    return sample


async def _limit(site: Site, group: int, jobs: int) -> Sample:
    await _count(site)
    async with _counted(site, jobs, []) as sample:
        limit = await site.open_limit()
        await limit.enqueue([0])
        await limit.settle(await limit.claim(1))
        await _reset(site)
        for _ in range(jobs // group):
            await limit.enqueue(range(group))
            await limit.settle(await limit.claim(group))
        await limit.close()
    return sample


async def _count(site: Site) -> None:
    """Connections from here on are counted."""
    async with _connected(site) as connection:
        await connection.execute("create extension if not exists pg_stat_statements")
        name = await connection.fetchval("select quote_ident(current_database())")
        await connection.execute(f"alter database {name} set pg_stat_statements.track = 'all'")


async def _reset(site: Site) -> None:
    async with _connected(site) as connection:
        await connection.execute("select pg_stat_statements_reset()")


@asynccontextmanager
async def _counted(site: Site, jobs: int, listed: list[str]) -> AsyncIterator[Sample]:
    sample: Sample = {}
    yield sample
    async with _connected(site) as connection:
        found = await connection.fetch(_COUNTED)
    sent = sum(row["calls"] for row in found if row["is_sent"])
    sample |= {"round trips/job": sent / jobs, "statements/job": sum(row["calls"] for row in found) / jobs}
    for row in found[:_SHOWN]:
        where = "sent" if row["is_sent"] else "inside"
        listed.append(f"  {row['calls']:>8,} {where:<6}  {_name(row['query'])}")


def _name(query: str) -> str:
    """The file that a statement comes from, or else how it begins."""
    return _names().get(_shape(query)) or re.sub(r"\s+", " ", query)[:_WIDTH]


@cache
def _names() -> dict[str, str]:
    return {_shape(statement(name)): f"{name}.sql" for name in names()}


def _shape(query: str) -> str:
    """A statement without its constants: the server has put parameters in their place."""
    return re.sub(r"\s+", "", re.sub(r"'[^']*'|\$\d+|\b(\d+(\.\d+)?|null|true|false)\b", "?", query))


@asynccontextmanager
async def _connected(site: Site) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(site.url)
    try:
        yield connection
    finally:
        await connection.close()
