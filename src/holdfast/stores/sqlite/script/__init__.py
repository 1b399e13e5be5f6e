"""Migrations as one text, for those who run SQL by hand."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from holdfast.stores.sqlite.migrate import BOOKKEEPING, Migration

_HEADER = """\
-- Holdfast's tables, from schema {after} to schema {until}. Run this with sqlite3 -bail FILE.
"""
_NOTHING = "-- Holdfast's tables: nothing comes after schema {after}.\n"


def script(migrations: Sequence[Migration], after: int = 0) -> str:
    """What brings a file from schema `after` to the newest."""
    missing = [migration for migration in migrations if migration.number > after]
    if not missing:
        return _NOTHING.format(after=after)
    template = resources.files(__name__).joinpath("whole.sql").read_text("utf-8")
    parts = [_HEADER.format(after=after, until=missing[-1].number)]
    parts += [
        template.format(
            title=f"{migration.number:04} ({migration.name})",
            number=migration.number,
            name=migration.name,
            bookkeeping=BOOKKEEPING,
            sql=migration.sql.strip(),
        )
        for migration in missing
    ]
    return "\n".join(parts)
