"""Few connections, all of them busy: waiting is bounded, the error says what to do, and heartbeats go on."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from psycopg import sql

from holdfast.errors import StoreUnavailable
from holdfast.store import Held
from holdfast.stores.postgres import PostgresStore, office
from holdfast.stores.postgres.pool import Pool
from tests.postgres.conftest import Opener
from tests.postgres.database import Database, until
from tests.postgres.jobs import enqueue, new, register
from tests.servers.databases import Databases


@pytest.fixture
def _impatient_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(connect: object, size: int) -> Pool:
        return Pool(connect, size, patience=0.5)  # type: ignore[arg-type]

    monkeypatch.setattr(office, "Pool", make)


@asynccontextmanager
async def _all_busy(store: PostgresStore, database: Database) -> AsyncIterator[None]:
    """Within it, both connections of the pool wait for a user who has locked two jobs."""
    ids = await enqueue(store, 2)
    user = await database.connect()
    transaction = user.transaction()
    await transaction.start()
    await user.execute("select from holdfast.jobs for update")
    stuck = [asyncio.create_task(store.cancel([id], "not wanted")) for id in ids]
    await database.until_waiting(2)
    yield
    assert not any(task.done() for task in stuck)
    await transaction.rollback()
    rulings = await asyncio.gather(*stuck)
    assert all(ruling[id].is_done for id, ruling in zip(ids, rulings, strict=True))
    await user.close()


@pytest.mark.usefixtures("_impatient_pool")
async def test_who_finds_all_connections_busy_is_told_and_may_try_again(make_store: Opener, database: Database) -> None:
    store = make_store(f"{database.url}?pool_size=2")
    async with _all_busy(store, database):
        before = await database.ids()
        callers = [store.enqueue([new()]), store.enqueue([new(idempotency_key="key")]), store.tick(), store.queues()]
        answers = await asyncio.gather(*callers, return_exceptions=True)
        for answer in answers:
            assert isinstance(answer, StoreUnavailable)
            assert "pool_size" in str(answer)
            assert "nothing was written" in str(answer).lower()
        assert await database.ids() == before
    await asyncio.gather(store.enqueue([new()]), store.tick(), store.queues())
    assert len(await database.ids()) == len(before) + 1


async def test_by_default_nobody_waits_for_a_connection_longer_than_ten_seconds() -> None:
    async def never() -> object:
        raise AssertionError

    assert Pool(never, 2)._patience == 10  # type: ignore[arg-type]


async def test_heartbeats_go_on_while_all_connections_are_busy(make_store: Opener, database: Database) -> None:
    store = make_store(f"{database.url}?pool_size=2")
    worker = await register(store)
    async with _all_busy(store, database):
        for beat in range(2, 5):
            assert (await store.beat(worker, Held({}))).is_alive
            assert await database.value("select beat from holdfast.workers") == beat


async def test_no_more_connections_are_opened_than_allowed(make_store: Opener, database: Database) -> None:
    store = make_store(f"{database.url}?pool_size=3")
    most = 0
    crowd = asyncio.gather(*(store.get([new().id]) for _ in range(200)), *(store.enqueue([new()]) for _ in range(200)))
    while not crowd.done():
        most = max(most, len(await database.backends()))
    await crowd
    assert most <= 3
    assert len(await database.backends()) <= 3


@pytest.fixture
def role(postgres: Databases) -> Iterator[str]:
    """A role that may have three connections."""
    name = f"holdfast_test_{secrets.token_hex(4)}"
    postgres.execute(sql.SQL("create role {} login connection limit 3").format(sql.Identifier(name)))
    yield name
    postgres.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


async def test_a_server_that_gives_fewer_connections_is_shared(
    role: str, postgres: Databases, bare: Database, make_store: Opener
) -> None:
    name = bare.url.rpartition("/")[2]
    await bare.execute(f"alter database {name} owner to {role}")
    store = make_store(postgres.url(name, user=role))
    answers = await asyncio.gather(*(store.get([new().id]) for _ in range(100)))
    assert answers == [[]] * 100


@pytest.mark.usefixtures("_impatient")
async def test_a_server_that_gives_no_connection_any_more_is_told(
    role: str, postgres: Databases, bare: Database, make_store: Opener
) -> None:
    name = bare.url.rpartition("/")[2]
    await bare.execute(f"alter database {name} owner to {role}")
    others = [make_store(postgres.url(name, user=role, pool_size="2")) for _ in range(3)]
    for other in others:
        await other.queues()
    store = make_store(postgres.url(name, user=role))
    with pytest.raises(StoreUnavailable, match="too many connections"):
        await store.enqueue([new()])
    await others[0].close()
    await until(lambda: _has_room(bare))
    assert len(await enqueue(store)) == 1


async def _has_room(database: Database) -> bool:
    return len(await database.backends()) < 3
