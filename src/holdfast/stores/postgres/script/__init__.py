"""Migrations as one text, for those who run SQL by hand."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

from holdfast.stores.postgres.migrate import BOOKKEEPING, LOCK, LOCK_TIMEOUT, Migration

_HEADER = """\
-- Holdfast's tables, from schema {after} to schema {until}.
-- Run this with psql --set ON_ERROR_STOP=1. If it stops, because a lock was not to be had at once, then what is done
-- stays done: print the rest with holdfast db sql --from N, and run that.
"""
_NOTHING = "-- Holdfast's tables: nothing comes after schema {after}.\n"


def script(migrations: Sequence[Migration], after: int = 0) -> str:
    """What brings a database from schema `after` to the newest."""
    missing = [migration for migration in migrations if migration.number > after]
    if not missing:
        return _NOTHING.format(after=after)
    parts = [_HEADER.format(after=after, until=missing[-1].number)]
    if not after:
        parts.append(_fill("start", bookkeeping=BOOKKEEPING))
    for migration in missing:
        parts.append(_render(migration, after))
        after = migration.number
    return "\n".join(parts)


def _render(migration: Migration, previous: int) -> str:
    return _fill(
        "whole" if migration.is_transactional else "one_by_one",
        title=migration,
        number=migration.number,
        name=migration.name,
        previous=previous,
        sql=migration.sql.strip(),
        lock=LOCK,
        lock_timeout=LOCK_TIMEOUT,
    )


def _fill(template: str, **values: Any) -> str:
    text = resources.files(__name__).joinpath(f"{template}.sql").read_text("utf-8")
    return text.format(**values)
