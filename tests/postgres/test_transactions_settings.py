"""Whatever users have set on the connection that they lend, enqueuing works, and leaves it as it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import psycopg2  # type: ignore[import-untyped]
import psycopg2.extras  # type: ignore[import-untyped]
import pytest
import sqlalchemy
from psycopg.adapt import Loader
from psycopg.rows import dict_row

from holdfast import IdempotencyConflict, QueueFull
from tests.postgres.callers import (
    CALLERS,
    Asyncpg,
    Caller,
    Psycopg,
    SqlalchemyConnection,
)
from tests.postgres.shop import Shop, fresh_name, opened_shop
from tests.servers.databases import Databases
from tests.servers.pgbouncer import PgBouncer


@pytest.fixture(scope="module")
def shop(postgres: Databases) -> Iterator[Shop]:
    with opened_shop(postgres) as shop:
        yield shop


@pytest.fixture
def queue() -> str:
    return fresh_name()


def use(shop: Shop, caller: Caller, queue: str) -> None:
    """Everything that holdfast.enqueue can answer, several times, among the user's own statements."""
    name = f"{queue} Ключ 鍵 😀"
    shop.hf.queues.bound(queue, 9)
    caller.begin()
    jobs = [caller.enqueue(shop.echo, f"{n} Привет 😀 \0", queue=queue, tags=["ж"]) for n in range(8)]
    keyed = [caller.enqueue(shop.echo, "key", queue=queue, idempotency_key=name) for _ in range(2)]
    assert [job.existing for job in keyed] == [False, True]
    with pytest.raises(IdempotencyConflict, match="Ключ"):
        caller.enqueue(shop.echo, "another", queue=queue, idempotency_key=name)
    with pytest.raises(QueueFull):
        caller.enqueue(shop.echo, "too many", queue=queue)
    caller.note(queue)
    caller.commit()
    assert queue in shop.notes()
    assert shop.jobs(queue) == [*(job.id for job in jobs), keyed[0].id]
    assert jobs[7].record().args == {"text": "7 Привет 😀 \0"}
    caller.close()


# ── drivers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Shouting(Loader):
    """Changes every text that it reads."""

    def load(self, data: Any) -> str:
        return bytes(data).decode().upper()


PSYCOPG: dict[str, dict[str, Any]] = {
    "rows of another kind": {"row_factory": dict_row},
    "cursors that bind on the client's side": {"cursor_factory": psycopg.ClientCursor},
    "cursors with other parameters": {"cursor_factory": psycopg.RawCursor},
    "everything prepared": {"prepare_threshold": 0},
    "nothing prepared": {"prepare_threshold": None},
    "another encoding": {"client_encoding": "latin1"},
    "no encoding": {"client_encoding": "sql_ascii"},
    "only asynchronous commits": {"options": "-c synchronous_commit=off"},
}


@pytest.mark.parametrize("options", PSYCOPG.values(), ids=PSYCOPG.keys())
def test_psycopg_with(shop: Shop, queue: str, options: dict[str, Any]) -> None:
    use(shop, Psycopg(shop.url, **options), queue)


def test_psycopg_with_a_loader_for_texts(shop: Shop, queue: str) -> None:
    caller = Psycopg(shop.url)
    caller.tx.adapters.register_loader("text", Shouting)
    use(shop, caller, queue)


def test_psycopg_in_a_pipeline(shop: Shop, queue: str) -> None:
    caller = Psycopg(shop.url)
    with caller.tx.pipeline():
        first = caller.enqueue(shop.echo, "a", queue=queue)
        caller.note(queue)
        second = caller.enqueue(shop.echo, "b", queue=queue)
        caller.commit()
    assert shop.jobs(queue) == [first.id, second.id]
    caller.close()


@pytest.mark.parametrize(
    "options",
    [{"cursor_factory": psycopg2.extras.RealDictCursor}, {"client_encoding": "latin1"}],
    ids=["rows of another kind", "another encoding"],
)
def test_psycopg2_with(shop: Shop, queue: str, options: dict[str, Any]) -> None:
    caller = Psycopg(shop.url)
    caller.tx.close()
    caller.tx = psycopg2.connect(shop.url, **options)
    caller.execute = lambda sql: caller.tx.cursor().execute(sql)  # type: ignore[method-assign]
    use(shop, caller, queue)


def test_an_explicit_block_of_a_connection_that_commits_by_itself(shop: Shop, queue: str) -> None:
    with psycopg.connect(shop.url, autocommit=True) as connection:
        with connection.transaction(force_rollback=True):
            shop.echo.options(tx=connection, queue=queue).enqueue("a")
        with connection.transaction():
            job = shop.echo.options(tx=connection, queue=queue).enqueue("b")
        connection.execute("begin")
        another = shop.echo.options(tx=connection, queue=queue).enqueue("c")
        assert shop.jobs(queue) == [job.id]
        connection.execute("commit")
    assert shop.jobs(queue) == [job.id, another.id]


def test_asyncpg_with_codecs_and_without_a_cache(shop: Shop, queue: str) -> None:
    class Record(asyncpg.Record):
        def __getattr__(self, name: str) -> Any:
            return self[name]

    class Peculiar(Asyncpg):
        async def aconnect(self, url: str) -> None:
            self.tx = await asyncpg.connect(
                url, statement_cache_size=0, record_class=Record, server_settings={"application_name": "peculiar"}
            )
            for kind in ("json", "jsonb"):
                await self.tx.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")

    use(shop, Peculiar(shop.url), queue)


def test_a_connection_is_recognised_once_however_often_its_pool_lends_it(shop: Shop, queue: str) -> None:
    async def enqueue(pool: asyncpg.Pool[asyncpg.Record]) -> list[str]:
        asked: list[str] = []
        async with pool.acquire() as connection:
            connection.add_query_logger(lambda query: asked.append(query.query))
            async with connection.transaction():
                await shop.echo.options(tx=connection, queue=queue).aenqueue("a")
        return [query for query in asked if "holdfast" in query]

    async def main() -> None:
        async with asyncpg.create_pool(shop.url, min_size=1, max_size=1) as pool:
            assert len(await enqueue(pool)) == 2
            assert len(await enqueue(pool)) == 1
            assert len(await enqueue(pool)) == 1

    asyncio.run(main())


def test_asyncpg_with_a_transaction_begun_by_hand(shop: Shop, queue: str) -> None:
    caller = Asyncpg(shop.url)
    caller.execute("begin")
    job = caller.enqueue(shop.echo, "a", queue=queue)
    caller.execute("commit")
    assert shop.jobs(queue) == [job.id]
    caller.close()


def test_connections_through_pgbouncer(shop: Shop, pgbouncer: PgBouncer, queue: str) -> None:
    url = pgbouncer.through(shop.url)

    class Uncached(Asyncpg):
        async def aconnect(self, url: str) -> None:
            self.tx = await asyncpg.connect(url, statement_cache_size=0)

    use(shop, Psycopg(url, prepare_threshold=None), f"{queue} psycopg")
    use(shop, Uncached(url), f"{queue} asyncpg")


SQLALCHEMY: dict[str, dict[str, Any]] = {
    "echo": {"echo": "debug"},
    "hidden parameters": {"hide_parameters": True},
    "nothing compiled kept": {"query_cache_size": 0},
    "no pool": {"poolclass": sqlalchemy.NullPool},
    "schemas translated": {"execution_options": {"schema_translate_map": {"holdfast": "elsewhere", None: "nowhere"}}},
    "stricter isolation": {"isolation_level": "SERIALIZABLE"},
}


@pytest.mark.parametrize("options", SQLALCHEMY.values(), ids=SQLALCHEMY.keys())
def test_sqlalchemy_with(shop: Shop, queue: str, options: dict[str, Any]) -> None:
    use(shop, SqlalchemyConnection(shop.url, **options), queue)


@pytest.mark.parametrize("options", [{"stream_results": True, "max_row_buffer": 1}, {"yield_per": 1}], ids=str)
def test_sqlalchemy_with_rows_that_come_one_by_one(shop: Shop, queue: str, options: dict[str, Any]) -> None:
    caller = SqlalchemyConnection(shop.url)
    caller.tx = caller.tx.execution_options(**options)
    first, twin = (caller.enqueue(shop.echo, "a", queue=queue, idempotency_key=queue) for _ in range(2))
    second = caller.enqueue(shop.echo, "b", queue=queue)
    caller.commit()
    caller.close()
    assert (twin.id, twin.existing) == (first.id, True)
    assert shop.jobs(queue) == [first.id, second.id]


def test_django_with_binding_on_the_server_and_its_log(shop: Shop, queue: str) -> None:
    from tests.postgres.callers import Django

    caller = Django(shop.url, server_side_binding=True)
    caller.tx.force_debug_cursor = True
    seen: list[str] = []

    def wrapper(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        seen.append(sql)
        return execute(sql, *rest)

    with caller.tx.execute_wrapper(wrapper):
        use(shop, caller, queue)
    assert any("holdfast.enqueue" in sql for sql in seen)


# ── the session's own settings ───────────────────────────────────────────────────────────────────────────────────────

HOSTILE = """
create schema evil;
create domain evil.text as varchar(1);
create domain evil.json as integer;
create domain evil.bigint as integer check (value < 0);
create function evil.now() returns bigint language sql as 'select 1::pg_catalog.int8';
create function evil.clock_timestamp() returns timestamptz language sql as $$select '1970-01-01'::timestamptz$$;
create function evil.hashtext(pg_catalog.text) returns integer language sql as 'select 1 / 0';
create function evil.nextval(regclass) returns pg_catalog.int8 language sql as 'select 1 / 0';
create function evil.encode(bytea, pg_catalog.text) returns pg_catalog.text language sql as $$select ''::varchar$$;
create function evil.convert_to(pg_catalog.text, name) returns bytea language sql as 'select null::bytea';
create function evil.to_regprocedure(pg_catalog.text) returns regprocedure language sql as 'select null::regprocedure';
create function evil.differ(pg_catalog.text, pg_catalog.text) returns boolean language sql as 'select true';
create operator evil.= (leftarg = pg_catalog.text, rightarg = pg_catalog.text, function = evil.differ);
create operator evil.<> (leftarg = pg_catalog.text, rightarg = pg_catalog.text, function = evil.differ);
grant usage on schema evil to public;
"""


@pytest.fixture(scope="module")
def with_evil(shop: Shop) -> None:
    with psycopg.connect(shop.url) as connection:
        connection.execute(HOSTILE)


@pytest.mark.parametrize("path", ["''", "pg_catalog", "evil, pg_catalog, pg_temp", '"$user", evil, pg_catalog, public'])
@pytest.mark.parametrize("kind", CALLERS, ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("with_evil")
def test_the_search_path_does_not_matter(shop: Shop, queue: str, kind: type[Caller], path: str) -> None:
    caller = kind(shop.url)
    caller.begin()
    caller.execute(f"set local search_path = {path}")
    jobs = [caller.enqueue(shop.echo, n, queue=queue, idempotency_key=f"{queue} {n}") for n in ("a", "b")]
    caller.execute(f"insert into public.notes values (current_setting('search_path') || '{queue}')")
    caller.commit()
    caller.close()
    shown = path.replace("''", '""')
    assert f"{shown}{queue}" in shop.notes(), "the setting is still the user's"
    assert shop.claim(queue) == [job.id for job in jobs]


def test_a_commit_that_would_not_wait_for_the_disk_waits_if_it_has_a_job_in_it(shop: Shop, queue: str) -> None:
    with psycopg.connect(shop.url) as connection:
        connection.execute("set synchronous_commit = off")
        connection.commit()
        shop.echo.options(tx=connection, queue=queue).enqueue("a")
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)
        connection.commit()
        assert connection.execute("show synchronous_commit").fetchone() == ("off",)


def test_the_settings_of_the_session_are_left_alone(shop: Shop, queue: str) -> None:
    everything = "select name, setting from pg_settings where name not like 'plpgsql.%'"  # these come with a first use
    with psycopg.connect(shop.url) as connection:
        before = connection.execute(everything).fetchall()
        shop.hf.queues.bound(queue, 1)
        shop.echo.options(tx=connection, queue=queue, idempotency_key=queue).enqueue("a")
        with pytest.raises(QueueFull):
            shop.echo.options(tx=connection, queue=queue).enqueue("a")
        assert connection.execute(everything).fetchall() == before
