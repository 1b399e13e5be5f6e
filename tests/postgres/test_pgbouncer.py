"""Behind PgBouncer in transaction mode: nobody has a connection for longer than a transaction."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from uuid import UUID, uuid4

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.errors import StoreUnavailable
from holdfast.lifecycle import Complete
from holdfast.store import Held, HintKind, Queue
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres import migrate as migrating
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.connection import connect
from tests.postgres.database import PATIENCE, Database
from tests.postgres.jobs import QUEUE, claim, enqueue, new, register, settle
from tests.postgres.schema import INDEX, with_more
from tests.servers.databases import Databases
from tests.servers.packages import NoServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.provision import give_up

SIZE = 3
"""How many connections PgBouncer has to a database, in the tests that share it."""

# PgBouncer itself keeps these in step with its clients.
_STATE = """
    select
        (
            select array_agg(name || '=' || setting order by name)
            from pg_settings
            where source = 'session'
              and name not in (
                  'application_name', 'client_encoding', 'DateStyle', 'IntervalStyle', 'TimeZone',
                  'standard_conforming_strings', 'transaction_isolation', 'transaction_read_only',
                  'transaction_deferrable'
              )
        ) as settings,
        (select array_agg(statement) from pg_prepared_statements) as prepared,
        (select array_agg(channel) from pg_listening_channels() as channel) as channels,
        (select array_agg(name) from pg_cursors where is_holdable) as cursors,
        (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()) as locks
"""


@contextmanager
def _pgbouncer(postgres: Databases, **settings: str | int) -> Iterator[PgBouncer]:
    """One of a test's own."""
    try:
        bouncer = PgBouncer(postgres, settings=settings)
    except NoServer as error:
        give_up(error)
    with bouncer:
        yield bouncer


@asynccontextmanager
async def _opened(url: str, count: int = 1, **options: object) -> AsyncIterator[list[PostgresStore]]:
    stores = [PostgresStore(url, **options) for _ in range(count)]  # type: ignore[arg-type]
    try:
        await asyncio.gather(*(store.open() for store in stores))
        yield stores
    finally:
        for store in stores:
            await store.close()


@asynccontextmanager
async def _all_of_the_pool(url: str, count: int) -> AsyncIterator[list[asyncpg.Connection[asyncpg.Record]]]:
    """Each of PgBouncer's connections to the database, in a transaction of somebody else's."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for _ in range(count):
            client = await asyncpg.connect(url, statement_cache_size=0)
            stack.push_async_callback(client.close)
            await stack.enter_async_context(client.transaction())
            clients.append(client)
        pids = {await client.fetchval("select pg_backend_pid()") for client in clients}
        assert len(pids) == count
        yield clients


# ── noticing it ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_pooler_is_noticed_and_no_lock_is_claimed_to_be_held(database: Database, pgbouncer: PgBouncer) -> None:
    async with _opened(database.url) as [direct], _opened(pgbouncer.through(database.url)) as [pooled]:
        far, near = await register(pooled), await register(direct)
        for observer in (direct, pooled):
            seen = {sighting.worker: sighting.is_locked for sighting in await observer.sightings()}
            assert seen == {far: None, near: True}
        beaten = await pooled.beat(far, Held({}))
        assert beaten.is_alive
        assert {sighting.worker: sighting.is_locked for sighting in await direct.sightings()}[far] is None


async def test_a_pooler_in_session_mode_is_treated_alike(postgres: Databases, database: Database) -> None:
    with _pgbouncer(postgres, pool_mode="session", default_pool_size=20) as bouncer:
        async with _opened(bouncer.through(database.url)) as [store]:
            worker = await register(store)
            assert [sighting.is_locked for sighting in await store.sightings()] == [None]
            await enqueue(store, 3)
            claimed = await claim(store, worker, 3)
            await settle(store, claimed, Complete("1"))
        async with _opened(bouncer.through(database.url)) as [again]:
            assert len(await again.get([job.id for job in claimed])) == 3


# ── what is left behind, and what others leave behind ────────────────────────────────────────────────────────────────


async def test_nothing_is_left_in_connections_that_others_will_use(database: Database, pgbouncer: PgBouncer) -> None:
    url = pgbouncer.through(database.url)
    async with _all_of_the_pool(url, SIZE) as clients:
        before = [await client.fetchrow(_STATE) for client in clients]
    async with _opened(url, 2) as stores:
        for store in stores:
            await _use_everything(store)
        async with _all_of_the_pool(url, SIZE) as clients:
            assert [await client.fetchrow(_STATE) for client in clients] == before
    assert (
        await database.ask(
            "select from pg_locks as l join pg_database as d on d.oid = l.database "
            "where l.locktype = 'advisory' and d.datname = current_database()"
        )
        == []
    )


async def _use_everything(store: PostgresStore) -> None:
    worker = await register(store)
    await store.declare_queues([Queue("small", bound=20)])
    async with store.changes([HintKind.WORK, HintKind.FINISHED, HintKind.ROOM]):
        await asyncio.gather(
            *(store.enqueue([new(), new(idempotency_key=f"{worker}-{number}")]) for number in range(10)),
            *(store.enqueue([new(queue="small")]) for _ in range(10)),
        )
        claimed = [job for jobs in await asyncio.gather(*(claim(store, worker, 5) for _ in range(4))) for job in jobs]
        await asyncio.gather(*(settle(store, [job], Complete("1")) for job in claimed))
    await store.beat(worker, Held({}))
    await store.tick()
    await store.queues()
    await store.rescue({})
    await store.depart(worker)


async def test_what_others_left_in_a_connection_does_not_change_what_we_do(
    database: Database, pgbouncer: PgBouncer
) -> None:
    url = pgbouncer.through(database.url)
    settings = {
        "default_transaction_isolation": "serializable",
        "synchronous_commit": "off",
        "enable_seqscan": "on",
        "plan_cache_mode": "auto",
        "search_path": "nowhere",
        "lock_timeout": "7ms",
        "statement_timeout": "7s",
        "jit": "on",
    }
    async with _all_of_the_pool(url, SIZE) as clients:
        for client in clients:
            for name, value in settings.items():
                await client.execute(f"set {name} = '{value}'")
    ours = {
        "transaction_isolation": "read committed",
        "synchronous_commit": "on",
        "enable_seqscan": "off",
        "plan_cache_mode": "force_generic_plan",
        "search_path": "pg_catalog, pg_temp",
        "lock_timeout": "10s",
        "statement_timeout": "30s",
        "jit": "off",
    }
    question = f"select {', '.join(f'current_setting({name!r}) as {name}' for name in ours)}"
    connection = await connect(Address.parse(url), is_pooled=True)
    try:
        assert dict(await connection.fetch_row(question)) == ours
        async with connection.transaction():
            assert dict(await connection.fetch_row(question)) == ours
    finally:
        await connection.close()
    async with _all_of_the_pool(url, SIZE) as clients:
        for client in clients:
            for name, value in settings.items():
                assert await client.fetchval(f"select current_setting('{name}')") == value  # and we left them theirs
    async with _opened(url) as [store]:
        await _use_everything(store)


# ── few connections ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_a_small_pool_makes_many_wait_but_locks_nobody_out(
    postgres: Databases, database: Database, size: int
) -> None:
    with _pgbouncer(postgres, default_pool_size=size) as bouncer:
        async with asyncio.timeout(PATIENCE), _opened(bouncer.through(database.url), 4) as stores:
            await stores[0].declare_queues([Queue("small", bound=1000)])
            await asyncio.gather(*(_work(store) for store in stores for _ in range(2)))
    assert set((await database.stages()).values()) == {4}
    assert await database.stuck() == []


async def _work(store: PostgresStore) -> None:
    """A worker that enqueues for itself, with all that takes locks."""
    worker, queue = await register(store), f"queue-{uuid4()}"
    for number in range(3):
        await asyncio.gather(
            store.enqueue([new(queue=queue), new(queue="small")]),
            store.enqueue([new(queue=queue, idempotency_key=f"shared-{number}-{queue}", unique_key="one")]),
            store.enqueue([new(queue=queue, unique_key=str(uuid4()))]),
            store.beat(worker, Held({})),
            store.tick(),
        )
    held = True
    while held:
        held = bool(jobs := await store.claim(worker, uuid4(), {queue: 10, "small": 10}))
        await asyncio.gather(*(settle(store, [job], Complete("1")) for job in jobs))
    await store.depart(worker)


async def test_a_migration_that_needs_two_connections_says_so_where_there_is_one(
    postgres: Databases, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _opened(database.url):
        pass
    monkeypatch.setattr(migrating, "_SHORT", 0.5)
    with _pgbouncer(postgres, default_pool_size=1) as bouncer:
        store = PostgresStore(bouncer.through(database.url), migrations=with_more(INDEX))
        with pytest.raises(StoreUnavailable, match=r"two connections.*past the connection pooler"):
            await store.open()
        await store.close()
        async with _opened(bouncer.through(database.url)) as [usual]:
            await enqueue(usual)


# ── restarts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_restart_under_load_loses_no_job_and_doubles_none(postgres: Databases, database: Database) -> None:
    with _pgbouncer(postgres) as bouncer:
        async with _opened(bouncer.through(database.url), 2) as [producer, consumer]:
            worker = await register(consumer)
            sent: list[UUID] = []
            done: list[UUID] = []
            is_over = asyncio.Event()

            async def produce() -> None:
                while not is_over.is_set():
                    sent.extend(await enqueue(producer, random.randint(1, 5)))

            async def consume() -> None:
                while not is_over.is_set() or len(done) < len(sent):
                    jobs = await claim(consumer, worker, 5)
                    await settle(consumer, jobs, Complete("1"))
                    done.extend(job.id for job in jobs)
                    if not jobs:
                        # A claim may have been committed after all: then the worker does not know that it has it.
                        assert (await consumer.beat(worker, Held({}))).is_alive

            async def disturb() -> None:
                for _ in range(3):
                    goal = len(sent) + 20
                    while len(sent) < goal:  # noqa: ASYNC110  # between the restarts, work must get on
                        await asyncio.sleep(0.01)
                    await asyncio.to_thread(bouncer.restart)
                is_over.set()

            try:
                async with asyncio.timeout(2 * PATIENCE), asyncio.TaskGroup() as group:
                    for _ in range(4):
                        group.create_task(produce())
                    group.create_task(consume())
                    group.create_task(disturb())
            except TimeoutError:
                states = Counter((await database.stages()).values())
                pytest.fail(f"it does not get on: {is_over.is_set()=}, {len(sent)=}, {len(done)=}, {states=}")
            await consumer.depart(worker)
    assert sorted(await database.ids()) == sorted(sent)
    assert set((await database.stages()).values()) == {4}
    assert sorted(done) == sorted(sent)


# ── hints ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_result_is_found_by_looking_where_no_hint_can_come(database: Database, pgbouncer: PgBouncer) -> None:
    url = pgbouncer.through(database.url)
    hf = Holdfast(url)

    @hf.task(queue=QUEUE)
    async def double(number: int) -> int:
        return 2 * number

    async with hf, _opened(url) as [elsewhere]:
        job = await double.aenqueue(21)
        waiting = asyncio.create_task(job.aresult(timeout=PATIENCE))
        worker = await register(elsewhere)
        claimed = await claim(elsewhere, worker)
        assert not waiting.done()
        await settle(elsewhere, claimed, Complete("42"))
        assert await waiting == 42


async def test_who_listens_directly_hears_those_behind_the_pooler(database: Database, pgbouncer: PgBouncer) -> None:
    async with (
        _opened(database.url) as [direct],
        _opened(pgbouncer.through(database.url)) as [pooled],
        direct.changes([HintKind.WORK]) as hints,
    ):
        await enqueue(pooled, queue="urgent")
        async with asyncio.timeout(PATIENCE):
            while "urgent" not in (await anext(hints)).queues:
                pass
