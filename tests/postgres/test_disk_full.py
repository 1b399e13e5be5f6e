"""The server's disk is full: told, nothing acknowledged is lost, and over as soon as there is room."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.job import NewJob
from holdfast.stores.postgres import PostgresStore
from tests.crash.rounds import cannot
from tests.postgres.database import PATIENCE, Database
from tests.postgres.jobs import new
from tests.servers.packages import NoServer
from tests.servers.postgres import PostgresServer
from tests.servers.provision import give_up

_SETTINGS = {"min_wal_size": "32MB", "max_wal_size": "32MB", "shared_buffers": "8MB", "autovacuum": "off"}
_ROOM = 1 << 20


@pytest.fixture
def disk() -> Iterator[Path]:
    """A small disk that every user may reach: pytest's own folders are private."""
    if os.geteuid() != 0:
        cannot("only root may mount a small disk")
    with tempfile.TemporaryDirectory(prefix="holdfast-disk-") as folder:
        os.chmod(folder, 0o755)
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=160m,mode=755", "tmpfs", folder],
            capture_output=True,
            text=True,
            check=False,
        )
        if mounted.returncode:
            cannot(f"a small disk can't be mounted here: {mounted.stderr.strip()}")
        yield Path(folder)
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def server(disk: Path) -> Iterator[PostgresServer]:
    try:
        server = PostgresServer(is_synced=True, parent=disk, settings=_SETTINGS)
    except NoServer as error:
        give_up(error)
    with server:
        yield server


@pytest.fixture
async def database(server: PostgresServer) -> AsyncIterator[Database]:
    database = Database(server.create_database())
    yield database
    await database.close()


class Ledger:
    """What was enqueued, and what came of it."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.acked: list[NewJob] = []
        self.refused: list[NewJob] = []
        self.doubtful: list[NewJob] = []

    async def enqueue(self, count: int = 1) -> None:
        # Nothing that the server could make smaller.
        jobs = [new(args_json=f'{{"filler":"{secrets.token_hex(20_000)}"}}') for _ in range(count)]
        try:
            await self._store.enqueue(jobs)
        except StoreUnavailable:
            self.refused += jobs
            raise
        except OutcomeUnknown:
            self.doubtful += jobs
            raise
        self.acked += jobs

    async def enqueue_for_ever(self, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                await self.enqueue(count)

    async def check(self, database: Database) -> None:
        if self.doubtful:
            await self._store.enqueue([replace(job, is_repeat=True) for job in self.doubtful])
        assert await database.ids() == sorted(job.id for job in self.acked + self.doubtful)


def _fill(disk: Path) -> Path:
    """Leave only a little room."""
    room = os.statvfs(disk)
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - _ROOM)
    return filler


async def test_a_full_disk_is_told_and_left_behind_as_soon_as_there_is_room(
    server: PostgresServer, disk: Path, database: Database
) -> None:
    store = PostgresStore(database.url)
    ledger = Ledger(store)
    await ledger.enqueue(5)
    await database.execute("select pg_switch_wal(); checkpoint")
    filler = await asyncio.to_thread(_fill, disk)
    with pytest.raises(StoreUnavailable, match=r"disk is full.*make room"):
        await ledger.enqueue_for_ever(5)
    callers = await asyncio.gather(*(ledger.enqueue(5) for _ in range(5)), return_exceptions=True)
    assert {type(caller) for caller in callers} == {StoreUnavailable}
    filler.unlink()
    await ledger.enqueue(5)
    await ledger.check(database)
    assert server.is_running
    await store.close()


@pytest.mark.usefixtures("_impatient")
async def test_a_server_that_dies_of_a_full_disk_keeps_what_it_has_acknowledged(
    server: PostgresServer, disk: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(database.url)
    ledger = Ledger(store)
    await ledger.enqueue(5)
    filler = await asyncio.to_thread(_fill, disk)
    flooding = asyncio.create_task(_flood(database))
    with pytest.raises((StoreUnavailable, OutcomeUnknown)):
        await ledger.enqueue_for_ever()
    await flooding
    assert "PANIC" in server.log
    monkeypatch.undo()  # now it comes back, and may take its time on a busy machine
    await asyncio.to_thread(filler.unlink)
    if not server.is_running:  # it did not even come up again in so little room
        await asyncio.to_thread(server.start)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await ledger.enqueue()
                break
            except (StoreUnavailable, OutcomeUnknown):
                await asyncio.sleep(0.05)
    await ledger.check(database)
    await store.close()


async def _flood(database: Database) -> None:
    """Somebody else writes until there is no room even for the server's own log, which ends it."""
    user = await database.connect()
    try:
        while True:
            await user.execute("select pg_logical_emit_message(false, 'flood', repeat('x', 1000000))")
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        user.terminate()
