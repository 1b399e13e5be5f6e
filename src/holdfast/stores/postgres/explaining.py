"""Why jobs wait, in PostgreSQL: what is read of it, all in one statement."""

from __future__ import annotations

from uuid import UUID

import msgspec

from holdfast.moment import from_microseconds
from holdfast.store import Circumstances, Progress, WorkerRecord
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.connection import Record

_Names = tuple[str, ...]
_workers = msgspec.json.Decoder(list[tuple[UUID, str, str, int, _Names, int, int, int, int | None, int, bool, _Names]])
_published = msgspec.json.Decoder(tuple[str, int, int])


def circumstances(row: Record) -> Circumstances:
    """What circumstances.sql answers."""
    paused_at = row["paused_at"]
    return Circumstances(
        now=from_microseconds(row["moment"]),
        job=rows.record(row),
        paused_at=None if paused_at is None else from_microseconds(paused_at),
        ahead=row["ahead"],
        workers=tuple(_read_workers(row["workers"])),
        task=None if row["published"] is None else rows.task(_published.decode(row["published"])),
        progress=_read_progress(row),
    )


def _read_workers(text: str) -> list[WorkerRecord]:
    return [rows.worker(each) for each in _workers.decode(text)]


def _read_progress(row: Record) -> Progress | None:
    at = row["at"]
    return None if at is None else Progress(row["done"], row["total"], row["note"], from_microseconds(at))
