"""Bounds hold in transactions of the caller's too, and a long queue is not counted for each of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import Engine

from holdfast import Holdfast, Queue, QueueFull
from holdfast.clock import SystemClock
from holdfast.ids import Ids
from tests.postgres.callers import sqlalchemy_url
from tests.postgres.shop import Shop, fresh_name, opened_shop
from tests.servers.databases import Databases

make_id = Ids(SystemClock()).make
BOUND = 10_000
"""The smallest bound that is not counted each time."""


@pytest.fixture(scope="module")
def shop(postgres: Databases) -> Iterator[Shop]:
    with opened_shop(postgres) as shop:
        yield shop


@pytest.fixture
def queue() -> str:
    return fresh_name()


def fill(shop: Shop, connection: psycopg.Connection[Any], queue: str, step: int) -> int:
    """Enqueue until the queue is full, and return how many went in."""
    prepared, count = shop.echo.options(queue=queue), 0
    while True:
        try:
            shop.hf.enqueue_many([prepared.call("a") for _ in range(step)], tx=connection)
        except QueueFull:
            return count
        count += step


def test_a_process_that_enqueues_alone_fills_a_large_queue_to_its_bound_and_no_further(shop: Shop, queue: str) -> None:
    shop.hf.queues.bound(queue, BOUND)
    with psycopg.connect(shop.url) as connection:
        assert fill(shop, connection, queue, 1000) == BOUND
        connection.rollback()
        assert fill(shop, connection, queue, 800) == 9_600
        connection.commit()
        assert fill(shop, connection, queue, 100) == 400
        connection.commit()
    assert len(shop.jobs(queue)) == BOUND


def test_a_bound_that_the_code_declares_holds_before_the_database_knows_it(shop: Shop, queue: str) -> None:
    with Holdfast(shop.url, queues=[Queue(queue, bound=2)]) as hf, psycopg.connect(shop.url) as connection:
        there = hf.task(name="_echo")(_echo).options(tx=connection, queue=queue)
        there.enqueue("a")
        there.enqueue("b")
        with pytest.raises(QueueFull, match="bound of 2"):
            there.enqueue("c")


def test_the_function_in_the_database_lets_in_what_is_exempt(shop: Shop, queue: str) -> None:
    shop.hf.queues.bound(queue, 1)
    with psycopg.connect(shop.url) as connection:

        def enqueue(*exempt: bool) -> dict[str, Any]:
            jobs = [
                {"id": str(make_id()), "task": "_echo", "queue": queue, "args": "{}", "is_exempt": each}
                for each in exempt
            ]
            row = connection.execute("select holdfast.enqueue(%s)", [json.dumps(jobs)]).fetchone()
            assert row is not None
            answer: dict[str, Any] = json.loads(row[0])
            return answer

        assert enqueue(True, True, True)["refused"] == {}
        assert enqueue(False)["refused"]["0"]["waiting"] == 3
        refused = enqueue(True, False)["refused"]["0"]
        assert (refused["waiting"], refused["more_waiting"]) == (4, 1)
        assert enqueue(True)["queues"][queue]["waiting"] == 4, "what was refused has left nothing behind"
        connection.commit()
    assert len(shop.jobs(queue)) == 4


def test_a_bound_that_was_lowered_holds_for_the_next_one(shop: Shop, queue: str) -> None:
    with psycopg.connect(shop.url) as connection:
        there = shop.echo.options(tx=connection, queue=queue)
        there.enqueue("a")
        shop.hf.queues.bound(queue, 1)
        with pytest.raises(QueueFull):
            there.enqueue("b")


def test_a_long_queue_is_not_counted_for_every_transaction(shop: Shop, queue: str) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(shop.url, "psycopg"))
    shop.hf.enqueue_many([shop.echo.options(queue=queue).call("a") for _ in range(BOUND // 2)])
    shop.hf.queues.bound(queue, 10 * BOUND)
    looks = [look(shop, engine, queue) for _ in range(20)]
    assert looks[0]
    assert looks.count(True) < len(looks), "each transaction counted the queue"
    shop.hf.queues.bound(queue, BOUND // 2 + 100)
    assert [look(shop, engine, queue) for _ in range(3)] == [True] * 3, "a small bound is always counted"
    engine.dispose()


def look(shop: Shop, engine: Engine, queue: str) -> bool:
    """Enqueue in a transaction, and tell whether that had to look how full the queue is."""
    asked: list[dict[str, Any]] = []

    def listen(*arguments: Any) -> None:
        parameters = arguments[3]
        if "options" in parameters:
            asked.append(json.loads(parameters["options"]))

    sqlalchemy.event.listen(engine, "before_cursor_execute", listen)
    with engine.begin() as connection:
        shop.echo.options(tx=connection, queue=queue).enqueue("a")
    sqlalchemy.event.remove(engine, "before_cursor_execute", listen)
    (options,) = asked
    return not options.get("is_admitted", False)


def _echo(text: str) -> str:
    return text
