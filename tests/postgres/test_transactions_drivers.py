"""Enqueuing in a transaction of the caller's, with every driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from holdfast import IdempotencyConflict, InvalidOption, QueueFull, RunningLoop, WrongDatabase
from tests.postgres.callers import CALLERS, AsyncCaller, Caller
from tests.postgres.shop import Shop, fresh_name, opened_shop
from tests.servers.databases import Databases

Connector = Callable[[str], Caller]

HOSTILE = "".join(map(chr, [*range(0xD800), *range(0xE000, 0xE100), 0xFFFD, 0xFFFE, 0xFFFF, 0x1F600, 0x10FFFF]))
"""Every kind of character: zero, quotes, backslashes, per cent signs, colons, line ends, beyond the first plane."""


@pytest.fixture(scope="module")
def shop(postgres: Databases) -> Iterator[Shop]:
    with opened_shop(postgres) as shop:
        yield shop


@pytest.fixture(scope="module")
def other_shop(postgres: Databases) -> Iterator[Shop]:
    """Another database with Holdfast in it."""
    with opened_shop(postgres) as shop:
        yield shop


@pytest.fixture(scope="module")
def bare(postgres: Databases) -> Iterator[str]:
    """A database without Holdfast."""
    import psycopg

    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        connection.execute("create table notes (text text primary key)")
    yield url
    postgres.drop_database(url)


@pytest.fixture(params=CALLERS, ids=lambda kind: kind.__name__)
def connect(request: pytest.FixtureRequest) -> Iterator[Connector]:
    made: list[Caller] = []

    def connect(url: str) -> Caller:
        made.append(request.param(url))
        return made[-1]

    yield connect
    for caller in made:
        caller.close()


@pytest.fixture
def caller(connect: Connector, shop: Shop) -> Caller:
    return connect(shop.url)


@pytest.fixture
def queue() -> str:
    return fresh_name()


def test_a_job_exists_once_its_transaction_is_committed(shop: Shop, caller: Caller, queue: str) -> None:
    caller.begin()
    caller.note(queue)
    job = caller.enqueue(shop.echo, "a", queue=queue)
    assert shop.jobs(queue) == []
    assert shop.claim(queue) == []
    caller.commit()
    assert queue in shop.notes()
    assert shop.claim(queue) == [job.id]
    assert job.record().args == {"text": "a"}


def test_no_job_exists_after_a_rollback(shop: Shop, caller: Caller, queue: str) -> None:
    caller.begin()
    caller.note(queue)
    undone = caller.enqueue(shop.echo, "a", queue=queue, idempotency_key=queue)
    caller.rollback()
    assert queue not in shop.notes()
    assert shop.jobs(queue) == []
    caller.begin()
    kept = caller.enqueue(shop.echo, "a", queue=queue, idempotency_key=queue)
    caller.commit()
    assert kept.id != undone.id
    assert not kept.existing
    assert shop.claim(queue) == [kept.id]


def test_a_refusal_leaves_the_transaction_usable(shop: Shop, caller: Caller, queue: str) -> None:
    shop.hf.queues.bound(queue, 2)
    taken = shop.echo.options(queue=queue, idempotency_key=queue).enqueue("a")
    caller.begin()
    caller.note(queue)
    first = caller.enqueue(shop.echo, "b", queue=queue)
    with pytest.raises(QueueFull) as full:
        caller.enqueue(shop.echo, "c", queue=queue)
    assert full.value.queue == queue
    with pytest.raises(IdempotencyConflict) as conflict:
        caller.enqueue(shop.echo, "d", queue=queue, idempotency_key=queue)
    assert conflict.value.existing == taken.id
    with pytest.raises(QueueFull):
        caller.enqueue_many(shop.hf, [shop.echo.call("e"), shop.echo.options(queue=queue).call("f")])
    caller.note(f"{queue} again")
    second = caller.enqueue(shop.echo, "g", queue=f"{queue} again")
    caller.commit()
    assert {queue, f"{queue} again"} <= shop.notes()
    assert shop.jobs(queue) == [taken.id, first.id]
    assert shop.jobs(f"{queue} again") == [second.id]


def test_keys_are_found(shop: Shop, caller: Caller, queue: str) -> None:
    known = shop.echo.options(queue=queue, idempotency_key=queue).enqueue("a")
    caller.begin()
    found = caller.enqueue(shop.echo, "a", queue=queue, idempotency_key=queue)
    new = caller.enqueue(shop.echo, "b", queue=queue, idempotency_key=f"{queue} b")
    again = caller.enqueue(shop.echo, "b", queue=queue, idempotency_key=f"{queue} b")
    caller.commit()
    assert (found.id, found.existing) == (known.id, True)
    assert (again.id, again.existing) == (new.id, True)
    assert shop.jobs(queue) == [known.id, new.id]


def test_many_calls_and_a_name_join_it_too(shop: Shop, caller: Caller, queue: str) -> None:
    there = shop.echo.options(queue=queue)
    caller.begin()
    many = caller.enqueue_many(shop.hf, [there.call(str(n)) for n in range(100)])
    sent = caller.send(shop.hf, "_echo", {"text": "by name"}, queue=queue)
    assert shop.jobs(queue) == []
    caller.commit()
    assert shop.claim(queue) == [job.id for job in (*many, sent)]


def test_every_character_comes_through(shop: Shop, caller: Caller, queue: str) -> None:
    tags = ["%s %(jobs)s $1 :jobs ::text \\ \" ' {} 😀", "`\\u0041\\u0000"]
    key = f"{queue} %s :options $2 😀 \\ ' \""
    caller.begin()
    jobs = [caller.enqueue(shop.echo, HOSTILE, queue=queue, tags=tags, idempotency_key=key) for _ in range(2)]
    with pytest.raises(IdempotencyConflict):
        caller.enqueue(shop.echo, "", queue=queue, idempotency_key=key)
    caller.commit()
    record = jobs[0].record()
    assert record.args == {"text": HOSTILE}
    assert list(record.tags) == tags
    assert record.idempotency_key == key
    assert jobs[1].existing


def test_another_database_is_refused_and_its_transaction_stays_usable(
    shop: Shop, other_shop: Shop, connect: Connector, queue: str
) -> None:
    caller = connect(other_shop.url)
    caller.begin()
    caller.note(queue)
    for _ in range(2):
        with pytest.raises(WrongDatabase):
            caller.enqueue(shop.echo, "a", queue=queue)
    caller.note(f"{queue} again")
    its_own = caller.enqueue(other_shop.echo, "b", queue=queue)
    caller.commit()
    assert {queue, f"{queue} again"} <= other_shop.notes()
    assert other_shop.jobs(queue) == [its_own.id]
    assert shop.jobs(queue) == []


def test_a_database_without_holdfast_is_refused_and_its_transaction_stays_usable(
    shop: Shop, bare: str, connect: Connector, queue: str
) -> None:
    caller = connect(bare)
    caller.begin()
    caller.note(queue)
    for _ in range(2):
        with pytest.raises(WrongDatabase):
            caller.enqueue(shop.echo, "a", queue=queue)
    caller.commit()
    caller.begin()
    with pytest.raises(Exception, match="duplicate key"):
        caller.note(queue)  # because the first one is there
    caller.rollback()


def test_a_connection_without_a_transaction_is_refused(shop: Shop, caller: Caller, queue: str) -> None:
    assert caller.leave_transactions()
    with pytest.raises(InvalidOption, match="no transaction open"):
        caller.enqueue(shop.echo, "a", queue=queue)
    caller.note(queue)
    assert queue in shop.notes(), "the connection is still as it was"
    assert shop.jobs(queue) == []


def test_a_failed_transaction_is_refused(shop: Shop, caller: Caller, queue: str) -> None:
    caller.begin()
    caller.note(queue)
    with pytest.raises(Exception, match="division by zero"):
        caller.execute("select 1 / 0")
    with pytest.raises(InvalidOption, match=r"failed already\. Roll it back"):
        caller.enqueue(shop.echo, "a", queue=queue)
    caller.rollback()
    caller.begin()
    job = caller.enqueue(shop.echo, "a", queue=queue)
    caller.commit()
    assert shop.jobs(queue) == [job.id]


def test_what_a_savepoint_undoes_is_not_enqueued(shop: Shop, caller: Caller, queue: str) -> None:
    caller.begin()
    first = caller.enqueue(shop.echo, "a", queue=queue)
    caller.execute("savepoint here")
    caller.enqueue(shop.echo, "b", queue=queue, idempotency_key=queue)
    caller.execute("rollback to savepoint here")
    third = caller.enqueue(shop.echo, "c", queue=queue, idempotency_key=queue)
    caller.commit()
    assert shop.claim(queue) == [first.id, third.id]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_stricter_isolation_will_do(shop: Shop, caller: Caller, queue: str, level: str) -> None:
    caller.begin()
    caller.execute(f"set transaction isolation level {level}")
    first = caller.enqueue(shop.echo, "a", queue=queue, idempotency_key=f"{queue} first")
    meanwhile = shop.echo.options(queue=queue).enqueue("b")
    last = caller.enqueue(shop.echo, "c", queue=queue)
    caller.commit()
    assert sorted(shop.claim(queue)) == sorted([first.id, meanwhile.id, last.id])


def test_a_transaction_that_may_only_read_is_refused(shop: Shop, caller: Caller, queue: str) -> None:
    caller.begin()
    caller.execute("set transaction read only")
    with pytest.raises(InvalidOption, match="may only read"):
        caller.enqueue(shop.echo, "a", queue=queue)
    caller.rollback()


def test_the_wrong_form_of_the_call_is_refused_by_the_name_of_the_right_one(
    shop: Shop, caller: Caller, queue: str
) -> None:
    """Nothing may block a running loop, and an asynchronous connection can't be waited for."""
    caller.begin()
    prepared = shop.echo.options(tx=caller.tx, queue=queue)

    async def enqueue() -> None:
        prepared.enqueue("a")

    with pytest.raises(RunningLoop, match=r"await _echo\.aenqueue"):
        caller.run(enqueue()) if isinstance(caller, AsyncCaller) else asyncio.run(enqueue())
    if isinstance(caller, AsyncCaller):
        with pytest.raises(InvalidOption, match="aenqueue"):
            prepared.enqueue("a")
    caller.note(queue)
    caller.commit()
    assert queue in shop.notes()
    assert shop.jobs(queue) == []
