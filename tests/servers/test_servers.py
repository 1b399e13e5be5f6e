"""The servers themselves: they come up from nothing, and leave nothing."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
from psycopg import sql

from holdfast.stores.postgres import PostgresStore
from tests.postgres.schema import things
from tests.servers.account import Account
from tests.servers.binaries import find_binaries, reachable
from tests.servers.certificate import make_certificate
from tests.servers.databases import Databases
from tests.servers.folder import fast_parent, make_folder
from tests.servers.packages import NoServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.provision import give_up

_PASSWORD = "p@ss/w:rd?#%&=' \\\"ü"
_PROJECT = Path(__file__).parents[2]
_STARTING = """
import time
from tests.servers.postgres import PostgresServer

server = PostgresServer().start()
print(server.pid, server.folder, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """A server with TLS that asks for a password."""
    try:
        server = PostgresServer(with_tls=True, auth="scram-sha-256", password=_PASSWORD)
    except NoServer as error:
        give_up(error)
    with server:
        yield server


async def test_every_test_has_a_database_of_its_own(postgres: Databases, postgres_database: str) -> None:
    other = postgres.create_database()
    try:
        await _ask(postgres_database, "CREATE TABLE things ()")
        assert await _ask(other, "SELECT to_regclass('things')") is None
    finally:
        postgres.drop_database(other)
    assert postgres.server_version >= 130_000


async def test_a_database_is_copied_from_its_template(postgres: Databases, postgres_database: str) -> None:
    await _ask(postgres_database, "CREATE TABLE things ()")
    copy = postgres.create_database("holdfast_test_copy", template=postgres_database.rpartition("/")[2])
    try:
        assert await _ask(copy, "SELECT to_regclass('things')::text") == "things"
    finally:
        postgres.drop_database("holdfast_test_copy")


async def test_a_copy_of_a_migrated_database_is_what_migrations_make_and_an_instance_of_its_own(
    postgres: Databases, postgres_database: str
) -> None:
    store = PostgresStore(postgres_database)
    await store.open()
    await store.close()
    copies = [postgres.create_migrated_database() for _ in range(2)]
    try:
        made = [postgres_database, *copies]
        assert [await things(url) for url in copies] == [await things(postgres_database)] * 2
        assert len({await _ask(url, "SELECT id FROM holdfast.instance") for url in made}) == 3
        assert {await _ask(url, "SELECT count(*) FROM holdfast.jobs") for url in made} == {0}
    finally:
        for url in copies:
            postgres.drop_database(url)


def test_who_has_copied_databases_leaves_nothing_behind(postgres: Databases) -> None:
    databases = Databases(postgres.url())
    databases.drop_database(databases.create_migrated_database())
    template = databases._migrated
    is_there = sql.SQL("SELECT count(*) FROM pg_database WHERE datname = {}").format(template)
    assert postgres.execute(is_there) == [(1,)]
    databases.close()
    assert postgres.execute(is_there) == [(0,)]


async def test_committed_data_survive_a_crash(synced_postgres: PostgresServer) -> None:
    assert await _ask(synced_postgres.url(), "SHOW fsync") == "on"
    url = synced_postgres.create_database()
    try:
        await _ask(url, "CREATE TABLE things AS SELECT 7 AS number")
        before = synced_postgres.pid
        synced_postgres.restart("immediate")
        assert synced_postgres.pid != before
        assert "database system was not properly shut down" in synced_postgres.log
        assert await _ask(url, "SELECT number FROM things") == 7
    finally:
        synced_postgres.drop_database(url)


async def test_a_private_server_takes_settings_and_leaves_nothing() -> None:
    server = PostgresServer(settings={"shared_preload_libraries": "pg_stat_statements", "work_mem": "7MB"})
    with server:
        pid = server.pid
        assert pid is not None
        assert await _ask(server.url(), "SHOW work_mem") == "7MB"
        assert await _ask(server.url(), "SHOW shared_preload_libraries") == "pg_stat_statements"
        assert await _ask(server.url(), "SHOW synchronous_commit") == "on"
        assert await _ask(server.socket_url(), "SELECT 1") == 1
        server.stop("smart")
        assert not server.is_running
        with pytest.raises(OSError):
            await _ask(server.url(), "SELECT 1")
    assert not _is_alive(pid)
    assert not server.folder.exists()


def test_a_killed_test_process_leaves_no_server() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STARTING], cwd=_PROJECT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid, folder = process.stdout.readline().split()
        assert _is_alive(int(pid))
        process.kill()
    _until(lambda: not _is_alive(int(pid)) and not Path(folder).exists())


def test_what_a_killed_guardian_left_is_swept_away() -> None:
    server = PostgresServer().start()
    pid, ward = server.pid, server._ward
    assert pid is not None
    assert ward._guardian is not None
    ward._guardian.kill()
    ward._guardian.wait()
    assert _is_alive(pid)
    folder, lock = make_folder(fast_parent())
    assert server.folder.exists(), "the lock of a living process was ignored"
    os.close(ward._lock)  # as if this process had died, too
    ward._lock = -1
    other, other_lock = make_folder(fast_parent())
    try:
        assert not server.folder.exists()
        assert folder.exists()
        _until(lambda: not _is_alive(pid))
    finally:
        for path, handle in ((folder, lock), (other, other_lock)):
            (path / "lock").unlink()
            path.rmdir()
            os.close(handle)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends its servers another user's rights")
def test_programs_in_a_closed_folder_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = find_binaries().parent
    if not (original / "share").is_dir():
        pytest.skip("these programs cannot be moved, and belong to the system, which closes no folder")
    package = tmp_path / original.parent.name  # pytest's folders are closed
    package.mkdir()
    (package / "install").symlink_to(original)
    (tmp_path / f"{package.name}.libs").symlink_to(original.parent.with_name(f"{package.name}.libs"))
    with tempfile.TemporaryDirectory(dir=fast_parent()) as public:
        os.chmod(public, 0o755)
        monkeypatch.setattr("tempfile.tempdir", public)
        copy = reachable(package / "install" / "bin", Account.for_servers())
        assert copy.is_relative_to(public)
        with PostgresServer(binaries=copy) as server:
            assert server.server_version >= 130_000


async def test_a_password_is_asked_for_and_may_hold_anything(guarded: PostgresServer) -> None:
    assert await _ask(guarded.url(), "SELECT 1") == 1
    with pytest.raises(asyncpg.InvalidPasswordError):
        await _ask(guarded.url(user="postgres", password="wrong"), "SELECT 1")


async def test_tls_is_spoken_and_the_certificate_verified(guarded: PostgresServer, tmp_path: Path) -> None:
    using_tls = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    assert await _ask(guarded.url(sslmode="disable"), using_tls) is False
    assert await _ask(guarded.url(sslmode="require"), using_tls) is True
    certificate = str(guarded.certificate)
    assert await _ask(guarded.url(sslmode="verify-full", sslrootcert=certificate), using_tls) is True
    other, _ = make_certificate(tmp_path, Account.for_servers())
    with pytest.raises(ssl.SSLCertVerificationError):
        await _ask(guarded.url(sslmode="verify-full", sslrootcert=str(other)), using_tls)


async def test_pgbouncer_shares_connections_between_transactions(pgbouncer: PgBouncer, postgres_database: str) -> None:
    url = pgbouncer.through(postgres_database)
    connections = [await asyncpg.connect(url, statement_cache_size=0) for _ in range(8)]
    try:
        backends = {await connection.fetchval("SELECT pg_backend_pid()") for connection in connections}
        assert len(backends) < len(connections)
        assert await connections[0].fetchval("SELECT current_database()") == postgres_database.rpartition("/")[2]
    finally:
        for connection in connections:
            await connection.close()


async def _ask(url: str, question: str) -> object:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
