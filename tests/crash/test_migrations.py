"""From one schema to the next, with data, with several processes, with failures."""

# ruff: noqa: ASYNC240  # a test blocks nobody but itself

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast.errors import SchemaTooNew, StoreError
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.migrate import Migration, shipped_migrations
from tests.crash.audit import check_counters, check_usable, key_of, keys_in, look, new_job, opened
from tests.crash.nursery import Nursery
from tests.crash.rounds import cannot, rounds

NOW = shipped_migrations()[-1].number
NEXT = Migration(
    NOW + 1,
    "note",
    """
    -- A column, and a table that is filled from what is there.
    alter table holdfast_jobs add column note text;
    create table holdfast_notes (job blob primary key, note text not null);
    insert into holdfast_notes select id, 'old' from holdfast_jobs;
    """,
)
BROKEN = Migration(
    NOW + 1,
    "broken",
    """
    create table holdfast_notes (job blob primary key, note text not null);
    update holdfast_jobs set queue = 'spoiled';
    insert into holdfast_nowhere values (1);
    """,
)


async def _fill(path: Path) -> list[str]:
    jobs = [new_job() for _ in range(200)]
    async with opened(path, migrations=shipped_migrations()) as store:
        await store.enqueue(jobs)
    return sorted(key_of(job) for job in jobs)


def _version(path: Path) -> int:
    ((number,),) = look(path, "select max(number) from holdfast_migrations")
    return int(number)


async def test_an_upgrade_keeps_every_job_and_raises_the_version(path: Path) -> None:
    keys = await _fill(path)
    async with opened(path, migrations=[*shipped_migrations(), NEXT]) as store:
        assert _version(path) == NOW + 1
        assert sorted(keys_in(path)) == keys
        assert look(path, "select count(*) from holdfast_notes") == [(200,)]
        await check_counters(store)
        await check_usable(store)


async def test_processes_that_upgrade_at_once_upgrade_once(nursery: Nursery, tmp_path: Path) -> None:
    for number in range(rounds(2)):
        path = tmp_path / f"{number}.db"
        keys = await _fill(path)
        with ExitStack() as stack:
            actors = [
                stack.enter_context(nursery.start("open_together", path=path, extra=asdict(NEXT))) for _ in range(6)
            ]
            for actor in actors:
                actor.hear("ready")
            for actor in actors:
                actor.say("go")
            added = [actor.hear("opened")["key"] for actor in actors]
        assert sorted(keys_in(path)) == sorted([*keys, *added])
        assert look(path, f"select count(*) from holdfast_migrations where number = {NOW + 1}") == [(1,)]


async def test_a_failing_migration_leaves_the_old_schema_whole_and_working(path: Path) -> None:
    keys = await _fill(path)
    schema = look(path, "select sql from sqlite_master order by name")
    async with opened(path) as in_use:
        broken = SqliteStore(path, migrations=[*shipped_migrations(), BROKEN])
        for _ in range(2):
            with pytest.raises(StoreError, match="holdfast_nowhere") as failed:
                await broken.open()
            assert str(path) in str(failed.value)
        await broken.close()
        await check_usable(in_use)
    assert _version(path) == NOW
    assert look(path, "select sql from sqlite_master order by name") == schema
    assert look(path, "select count(*) from holdfast_jobs where queue = 'spoiled'") == [(0,)]
    async with opened(path) as store:
        assert sorted(keys_in(path)) == keys
        await check_usable(store)


async def test_a_file_of_a_newer_version_is_refused_and_left_alone(path: Path) -> None:
    keys = await _fill(path)
    async with opened(path, migrations=[*shipped_migrations(), NEXT]):
        pass
    older = SqliteStore(path)
    with pytest.raises(SchemaTooNew, match=f"schema {NOW + 1}.*knows {NOW}.*Upgrade the holdfast package"):
        await older.open()
    with pytest.raises(SchemaTooNew):
        await older.enqueue([new_job()])
    await older.close()
    assert sorted(keys_in(path)) == keys
    assert _version(path) == NOW + 1


@pytest.mark.parametrize(
    ("rights", "error"),
    [
        (0o777, "SchemaOutdated"),
        (0o555, "StoreUnavailable"),  # without its side files SQLite can't even read which schema it has
    ],
)
async def test_an_old_file_that_can_not_be_written_says_how_to_upgrade_it(
    nursery: Nursery, shared_folder: Path, rights: int, error: str
) -> None:
    if os.geteuid() != 0:
        cannot("only root can become a user without rights")
    path = shared_folder / "jobs.db"
    await _fill(path)
    path.chmod(0o444)
    shared_folder.chmod(rights)
    with nursery.start("try_to_use", path=path, extra=asdict(NEXT)) as actor:
        outcome = actor.hear("done")
    assert outcome["error"] == error, outcome
    assert "right to write" in outcome["message"]
    assert _version(path) == NOW
