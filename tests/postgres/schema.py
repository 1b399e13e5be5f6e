"""What a database's schema looks like, and migrations that this version does not have yet."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import asyncpg

from holdfast.stores.postgres import catalog
from holdfast.stores.postgres.catalog import Thing
from holdfast.stores.postgres.migrate import Migration, shipped_migrations

SHIPPED: Final = Path(shipped_migrations.__code__.co_filename).parent / "migrations"
NOW: Final = shipped_migrations()[-1].number

NOTE: Final = """
-- A column, and a table that is filled from what is there; and a function.
alter table holdfast.jobs add column note text;
create table holdfast.notes (job uuid primary key, note text not null);
insert into holdfast.notes select id, 'old' from holdfast.jobs;
create function holdfast.note(id uuid) returns text language sql as $$
    select note from holdfast.notes where job = id;
$$;
"""
INDEX: Final = """-- outside of a transaction
alter table holdfast.jobs add column if not exists colour text default ';';
create index concurrently if not exists jobs_of_colour on holdfast.jobs (colour) where colour is not null;
"""


def folder_with(folder: Path, *more: str) -> Path:
    """A folder with the migrations of this version, and such that come after it."""
    shutil.copytree(SHIPPED, folder)
    for number, sql in enumerate(more, NOW + 1):
        (folder / f"{number:04}_more.sql").write_text(sql)
    return folder


def with_more(*more: str) -> list[Migration]:
    return [*shipped_migrations(), *(Migration(number, "more", sql) for number, sql in enumerate(more, NOW + 1))]


async def things(url: str) -> list[Thing]:
    """All that is in the schema holdfast."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            return await catalog.read(connection)
    finally:
        await connection.close()
