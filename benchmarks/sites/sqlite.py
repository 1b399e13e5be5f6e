"""Fresh files on a real disk, and files filled beforehand."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.limit import BOUND, QUEUE, TASK
from holdfast.stores.sqlite.connection import Connection
from holdfast.stores.sqlite.migrate import migrate, shipped_migrations

_IN_MEMORY = ("tmpfs", "ramfs")

# Ids that sort before those of today, one after the other, as if they had been enqueued long ago.
_FILL = """
with recursive numbers (number) as (select 1 union all select number + 1 from numbers where number < :count)
insert into holdfast_jobs (
    id, task, queue, priority, stage, place, args, max_attempts, delivery, created_at, due_at,
    attempt, runs, started_at, finished_at, worker, token, result
)
select
    cast(char(1) || printf('%015d', :first + number) as blob), :task, :queue, 5, :stage, :first + number,
    json_object('number', number), 5, 0, :now, :now,
    :stage = 4, :stage = 4, iif(:stage = 4, :now, null), iif(:stage = 4, :now, null),
    iif(:stage = 4, zeroblob(16), null), iif(:stage = 4, zeroblob(16), null), iif(:stage = 4, 'null', null)
from numbers
"""
_COUNT = """
insert into holdfast_queues (name, waiting, last_place, declared_bound, scheduled_bound) values (?, ?, ?, ?, ?)
"""
_READY, _COMPLETED = 2, 4
_LONG_AGO = 1_700_000_000_000_000


@contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """The path of a database that does not exist yet. It is removed afterwards, with all that lies beside it."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=folder) as made:
        yield Path(made) / "jobs.db"


def fill(path: Path, *, ready: int = 0, finished: int = 0) -> None:
    """Make the shipped schema and put jobs into it, counted as enqueuing would have, with the bounds raised."""
    connection = Connection(path)
    try:
        migrate(connection, shipped_migrations())
        connection.execute("begin immediate")
        for first, count, stage in ((0, finished, _COMPLETED), (finished, ready, _READY)):
            if count:
                values = {"first": first, "count": count, "stage": stage}
                names = {"task": TASK, "queue": QUEUE, "now": _LONG_AGO}
                connection.raw.execute(_FILL, values | names)
        connection.execute(_COUNT, (QUEUE, ready, finished + ready, BOUND, BOUND))
        connection.execute("commit")
        connection.execute("pragma wal_checkpoint(truncate)")
    finally:
        connection.close()


def file_system(folder: Path) -> str:
    """The file system that a folder is on, from /proc/mounts; empty where there is none."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    above = {str(folder.resolve()), *(str(parent) for parent in folder.resolve().parents)}
    found = [(len(mount[1]), mount[2]) for mount in mounts if mount[1] in above]
    return max(found)[1] if found else ""


def is_real_disk(folder: Path) -> bool:
    return file_system(folder) not in _IN_MEMORY
