"""Programs that enqueue to PostgreSQL: first steps, many loops, forks, gevent, and what is left when they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.connection import connect
from holdfast.stores.postgres.pool import Pool
from tests.integration.facade import PATIENCE, PostgresDatabase, run, write
from tests.servers.packages import NoServer
from tests.servers.postgres import PostgresServer
from tests.servers.provision import give_up

STRICT = ("-Werror",)
"""Nothing may be left to the garbage collector."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """A server that speaks TLS and asks for a password."""
    try:
        server = PostgresServer(auth="scram-sha-256", password="p@ss word", with_tls=True)
    except NoServer as error:
        give_up(error)
    with server:
        yield server


@pytest.fixture(params=["plain", "encrypted"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PostgresDatabase]:
    if request.param == "plain":
        yield PostgresDatabase(tmp_path, request.getfixturevalue("postgres_database"))
    else:
        guarded: PostgresServer = request.getfixturevalue("guarded")
        url = guarded.create_database()
        yield PostgresDatabase(tmp_path, f"{url}?sslmode=verify-full&sslrootcert={guarded.certificate}")
        guarded.drop_database(url)


@pytest.fixture
def plain(postgres_database: str, tmp_path: Path) -> PostgresDatabase:
    return PostgresDatabase(tmp_path, postgres_database)


def backends(database: PostgresDatabase) -> int:
    """Connections that the database has, apart from the one that asks."""
    with psycopg.connect(database.url) as connection:
        (count,) = connection.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        ).fetchone() or (0,)
    return int(count)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ── the first thing that a process does is to enqueue in a transaction ───────────────────────────────────────────────

FIRST = {
    "in a transaction that is older than the tables": """
        import psycopg
        connection = psycopg.connect(sys.argv[1])
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("create table notes (text text)")
        echo.options(tx=connection).enqueue(0)
        assert hf.jobs.count() == 0
        connection.commit()
        connection.close()
        hf.close()
    """,
    "beside a running loop": """
        import asyncio, psycopg
        def work():
            with psycopg.connect(sys.argv[1]) as connection:
                echo.options(tx=connection).enqueue(0)
        async def main():
            await asyncio.to_thread(work)
        asyncio.run(main())
    """,
    "in many threads at once": """
        import psycopg
        from concurrent.futures import ThreadPoolExecutor
        together = threading.Barrier(10)
        def work(n):
            with psycopg.connect(sys.argv[1]) as connection:
                together.wait()
                echo.options(tx=connection).enqueue(n)
        with ThreadPoolExecutor(10) as threads:
            list(threads.map(work, range(10)))
    """,
    "on a loop": """
        import asyncio, asyncpg
        async def main():
            connection = await asyncpg.connect(sys.argv[1])
            async with connection.transaction():
                await echo.options(tx=connection).aenqueue(0)
            await connection.close()
        asyncio.run(main())
    """,
    "in a forked child": """
        import psycopg
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
        else:
            with psycopg.connect(sys.argv[1]) as connection:
                echo.options(tx=connection).enqueue(0)
    """,
    "under gevent": """
        from gevent import monkey; monkey.patch_all()
        import gevent, psycopg
        def work(n):
            with psycopg.connect(sys.argv[1]) as connection:
                echo.options(tx=connection).enqueue(n)
        gevent.joinall([gevent.spawn(work, n) for n in range(10)], raise_error=True)
    """,
}


@pytest.mark.parametrize("program", FIRST.values(), ids=FIRST.keys())
def test_a_job_in_a_transaction_is_the_first_thing(plain: PostgresDatabase, program: str) -> None:
    is_patched = "gevent" in program
    prologue = "import warnings; warnings.simplefilter('ignore')" if is_patched else ""  # of patching so late
    run(plain, program, prologue=prologue, flags=() if is_patched else STRICT)
    assert plain.stored() == list(range(10 if "range(10)" in program else 1))
    until(lambda: backends(plain) == 0)


# ── nothing is left behind ───────────────────────────────────────────────────────────────────────────────────────────

ENDS = {
    "asyncio without a close": """
        import asyncio
        async def main():
            await asyncio.gather(*(echo.aenqueue(n) for n in range(20)))
            asyncio.create_task(hf.job((await idle.aenqueue(20)).id).aresult())
            await asyncio.sleep(0)
        asyncio.run(main())
    """,
    "a loop that ends at the worst moment of connecting": """
        import asyncio
        from asyncpg.connect_utils import TLSUpgradeProto
        connection_made = TLSUpgradeProto.connection_made
        def cancel_all(self, transport):
            connection_made(self, transport)
            for task in asyncio.all_tasks() - {running}:
                task.cancel()
        TLSUpgradeProto.connection_made = cancel_all

        async def main():
            global running
            running = asyncio.current_task()
            await asyncio.wait([asyncio.create_task(echo.aenqueue(0))])
        asyncio.run(main())
        TLSUpgradeProto.connection_made = connection_made
        assert hf.jobs.count() == 0
        hf.enqueue_many([echo.call(n) for n in range(21)])
        hf.close()
    """,
    "loops that end while they connect": """
        import asyncio
        async def main(turns):
            asyncio.create_task(echo.aenqueue(0))
            for _ in range(turns):
                await asyncio.sleep(0)
        for turns in range(0, 60, 6):
            asyncio.run(main(turns))
        while hf.jobs.count() < 21:
            echo.enqueue(0)
        hf.close()
    """,
    "uvloop without a close": """
        import uvloop
        async def main():
            for n in range(21):
                await echo.aenqueue(n)
        uvloop.run(main())
    """,
    "async with, again and again": """
        import asyncio
        async def main():
            for n in range(3):
                async with hf:
                    await asyncio.gather(*(echo.aenqueue(n) for n in range(7)))
        asyncio.run(main())
    """,
    "several kinds of loops and threads at once": """
        import asyncio, uvloop
        async def main():
            for n in range(5):
                await echo.aenqueue(n)
        runners = [lambda: asyncio.run(main()), lambda: uvloop.run(main()), lambda: echo.enqueue(1)]
        threads = [threading.Thread(target=target) for target in (*runners[:2], *runners[:2], runners[2])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        hf.close()
    """,
    "an exception": """
        import asyncio
        async def main():
            for n in range(21):
                await echo.aenqueue(n)
            raise KeyError
        try:
            asyncio.run(main())
        except KeyError:
            pass
    """,
}


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS.keys())
def test_no_connection_and_no_complaint_is_left_after(plain: PostgresDatabase, program: str) -> None:
    counting = """
        import psycopg, time
        deadline = time.monotonic() + 20
        with psycopg.connect(sys.argv[1]) as connection:
            ours = "select count(*) from pg_stat_activity where application_name = 'holdfast' and datname = %s"
            while connection.execute(ours, [connection.info.dbname]).fetchone() != (0,):
                assert time.monotonic() < deadline
                time.sleep(0.01)
                connection.rollback()
    """
    run(plain, program + counting, flags=STRICT)
    assert len(plain.stored()) == 21


def test_a_loop_that_is_closed_by_hand_leaves_no_connection_once_the_app_is_used_again(plain: PostgresDatabase) -> None:
    program = """
        import asyncio, logging
        logging.disable()  # asyncio rightly complains of what was still under way
        for n in range(5):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(echo.aenqueue(n))
            loop.close()
        hf.close()
        assert not held(), held()
    """
    run(plain, program)
    assert plain.stored() == list(range(5))


def test_close_closes_the_connections_of_all_loops(plain: PostgresDatabase) -> None:
    program = """
        import asyncio, time
        used, closed = threading.Barrier(4), threading.Event()

        async def main():
            await echo.aenqueue(1)
            used.wait()
            await asyncio.to_thread(closed.wait)
            await echo.aenqueue(2)

        threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(3)]
        for thread in threads:
            thread.start()
        used.wait()
        assert len(held()) >= 3
        hf.close()
        assert not held(), held()
        closed.set()
        for thread in threads:
            thread.join()
    """
    run(plain, program, flags=STRICT)
    assert plain.stored() == [1, 1, 1, 2, 2, 2]


async def test_a_connection_that_outlives_its_pool_is_not_kept(plain: PostgresDatabase) -> None:
    address = Address.parse(plain.url)
    pool = Pool(lambda: connect(address, is_pooled=False), 2)
    async with pool.connection() as first:
        await pool.close()
    async with pool.connection() as second:
        assert await second.fetch_value("select 1") == 1
    assert first.raw.is_closed()
    assert second.raw.is_closed()


# ── forks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_parent_and_child_go_on_with_connections_of_their_own(database: PostgresDatabase) -> None:
    program = """
        import gc
        echo.enqueue(0)
        before = held()
        assert before
        child = os.fork()
        assert held() == (before if child else [])
        first = 100 if child else 200
        for n in range(first, first + 20):
            echo.enqueue(n)
        gc.collect()
        assert (set(held()) >= set(before)) == bool(child)
        if child:
            assert os.waitpid(child, 0)[1] == 0
            for n in range(120, 130):
                echo.enqueue(n)
            assert set(held()) >= set(before), "the child disturbed a connection"
        hf.close()
    """
    run(database, program)
    assert database.stored() == [0, *range(100, 130), *range(200, 220)]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_killed_parent_is_seen_dead_though_its_child_lives(database: PostgresDatabase, loop: str) -> None:
    """A child with its parent's sockets would keep the parent's sessions, and the locks in them."""
    program = f"""
        import {loop}
        async def main():
            await echo.aenqueue(1)
            child = os.fork()
            if child == 0:
                os.close(1)
                signal.sigwait([signal.SIGTERM])
                os._exit(0)
            print(child, flush=True)
            signal.pause()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        {loop}.run(main())
    """
    with subprocess.Popen(
        [sys.executable, str(write(database, program)), database.url], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert backends(database) >= 1
            parent.kill()
            parent.wait()
            until(lambda: backends(database) == 0)
            os.kill(child, 0)  # it lives
        finally:
            os.kill(child, signal.SIGTERM)


# ── gevent ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_gevent_and_a_host_that_must_be_looked_up(database: PostgresDatabase) -> None:
    program = """
        import gevent
        from gevent._hub_local import get_hub_if_exists

        async def hub():
            await hf.jobs.acount()
            return get_hub_if_exists()

        assert hf._engine.wait(hub(), "hub") is None, "gevent's sockets were used"
        crowd = [gevent.spawn(echo.enqueue, n) for n in range(50)]
        gevent.joinall(crowd, raise_error=True)
        hf.close()
    """
    named = PostgresDatabase(database.folder, database.url.replace("127.0.0.1", "localhost"))
    run(named, program, prologue="from gevent import monkey; monkey.patch_all()")
    assert database.stored() == list(range(50))


def test_gevent_and_a_host_that_nobody_knows(plain: PostgresDatabase) -> None:
    program = """
        from holdfast import StoreUnavailable
        import holdfast.stores.postgres.office as office
        office.PATIENCE = 0
        for url in ("postgresql://no-such-host.invalid/shop", "postgresql:///shop?host=/nowhere"):
            try:
                Holdfast(url).jobs.count()
            except StoreUnavailable as error:
                assert "can't be reached" in str(error), error
            else:
                raise AssertionError
    """
    run(plain, program, prologue="from gevent import monkey; monkey.patch_all()")


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_hostile_search_path_of_the_role_does_not_matter(plain: PostgresDatabase) -> None:
    with psycopg.connect(plain.url, autocommit=True) as connection:
        connection.execute("create schema evil")
        for name in ("unnest(text[])", "hashtext(text)", "nextval(regclass)", "json_array_elements(json)"):
            connection.execute(f"create function evil.{name} returns integer language sql as 'select 1 / 0'")
    hostile = PostgresDatabase(plain.folder, f"{plain.url}?options=-c%20search_path%3Devil%2Cpg_catalog")
    run(
        hostile,
        "echo.options(idempotency_key='k').enqueue(1); hf.enqueue_many([echo.call(2)]); idle.enqueue(3).cancel()",
    )
    assert plain.stored() == [1, 2, 3]
