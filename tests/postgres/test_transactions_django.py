"""Enqueuing inside Django's transaction.atomic, without a project."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections, transaction  # type: ignore[import-untyped]

from holdfast import InvalidOption, QueueFull, WrongDatabase
from tests.postgres.callers import configure_django, django_database
from tests.postgres.shop import Shop, fresh_name, opened_shop
from tests.servers.databases import Databases


@pytest.fixture(scope="module")
def shop(postgres: Databases) -> Iterator[Shop]:
    with opened_shop(postgres) as shop:
        yield shop


@pytest.fixture(scope="module")
def other_shop(postgres: Databases) -> Iterator[Shop]:
    with opened_shop(postgres) as shop:
        yield shop


@pytest.fixture(autouse=True)
def databases(shop: Shop, other_shop: Shop) -> Iterator[None]:
    configure_django(
        default=django_database(shop.url),
        other=django_database(other_shop.url),
        lite={"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    )
    yield
    connections.close_all()


@pytest.fixture
def queue() -> str:
    return fresh_name()


def note(text: str, database: Any = connection) -> None:
    with database.cursor() as cursor:
        cursor.execute("insert into notes values (%s)", [text])


def test_an_inner_block_that_is_rolled_back_takes_its_jobs_along(shop: Shop, queue: str) -> None:
    there = shop.echo.options(tx=connection, queue=queue)
    with transaction.atomic():
        first = there.enqueue("a")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            fail_after(there.enqueue("b"))
        with transaction.atomic():
            third = there.enqueue("c")
            with transaction.atomic():
                there.enqueue("d")
                transaction.set_rollback(True)
        note(queue)
    assert queue in shop.notes()
    assert shop.claim(queue) == [first.id, third.id]


def test_an_outer_block_that_is_rolled_back_takes_all_along(shop: Shop, queue: str) -> None:
    there = shop.echo.options(tx=connection, queue=queue)
    with transaction.atomic():
        with transaction.atomic():
            there.enqueue("a")
        there.enqueue("b")
        transaction.set_rollback(True)
    assert shop.jobs(queue) == []


def test_without_a_savepoint_a_block_that_fails_refuses_more(shop: Shop, queue: str) -> None:
    there = shop.echo.options(tx=connection, queue=queue)
    with transaction.atomic():
        there.enqueue("a")
        with pytest.raises(ZeroDivisionError), transaction.atomic(savepoint=False):
            fail_after(there.enqueue("b"))
        with pytest.raises(InvalidOption, match="failed already"):
            there.enqueue("c")
    assert shop.jobs(queue) == []


def test_a_refusal_does_not_break_the_block(shop: Shop, queue: str) -> None:
    shop.hf.queues.bound(queue, 1)
    there = shop.echo.options(tx=connection, queue=queue)
    with transaction.atomic():
        job = there.enqueue("a")
        with pytest.raises(QueueFull):
            there.enqueue("b")
        note(queue)
    assert queue in shop.notes()
    assert shop.jobs(queue) == [job.id]


def test_what_happens_on_commit_sees_the_job(shop: Shop, queue: str) -> None:
    seen: list[object] = []
    with transaction.atomic():
        job = shop.echo.options(tx=connection, queue=queue).enqueue("a")
        transaction.on_commit(lambda: seen.append(job.state()))
    assert seen == ["pending"]


def test_each_database_has_jobs_of_its_own(shop: Shop, other_shop: Shop, queue: str) -> None:
    """`connection` is the default one, and `connections` gives any."""
    with transaction.atomic(), transaction.atomic("other"):
        first = shop.echo.options(tx=connections["default"], queue=queue).enqueue("a")
        second = other_shop.echo.options(tx=connections["other"], queue=queue).enqueue("b")
        with pytest.raises(WrongDatabase):
            shop.echo.options(tx=connections["other"], queue=queue).enqueue("c")
        with pytest.raises(WrongDatabase):
            other_shop.echo.options(tx=connection, queue=queue).enqueue("d")
        note(queue, connections["other"])
    assert shop.jobs(queue) == [first.id]
    assert other_shop.jobs(queue) == [second.id]
    assert queue in other_shop.notes()


def test_a_block_on_one_database_is_none_on_another(shop: Shop, queue: str) -> None:
    with transaction.atomic("other"), pytest.raises(InvalidOption, match=r"transaction\.atomic"):
        shop.echo.options(tx=connection, queue=queue).enqueue("a")
    assert shop.jobs(queue) == []


def test_a_database_that_is_not_postgresql_is_refused_and_stays_usable(shop: Shop) -> None:
    with transaction.atomic("lite"):
        with connections["lite"].cursor() as cursor:
            cursor.execute("create table notes (text)")
        with pytest.raises(WrongDatabase, match="connected to sqlite"):
            shop.echo.options(tx=connections["lite"]).enqueue("a")
        note("a", connections["lite"])


def test_with_autocommit_switched_off_a_transaction_is_always_open(shop: Shop, queue: str) -> None:
    transaction.set_autocommit(False)
    there = shop.echo.options(tx=connection, queue=queue)
    there.enqueue("a")
    transaction.rollback()
    job = there.enqueue("b")
    transaction.commit()
    transaction.set_autocommit(True)
    assert shop.jobs(queue) == [job.id]


def test_a_connection_that_came_back_as_another_database_is_looked_at_anew(
    shop: Shop, postgres: Databases, queue: str
) -> None:
    """Test runners point the same object to another database."""
    with transaction.atomic():
        shop.echo.options(tx=connection, queue=queue).enqueue("a")
    connection.close()
    bare = postgres.create_database()
    connection.settings_dict["NAME"] = bare.rpartition("/")[2]
    with transaction.atomic():
        with pytest.raises(WrongDatabase):
            shop.echo.options(tx=connection, queue=queue).enqueue("b")
        with connection.cursor() as cursor:
            cursor.execute("select 1")
    connection.close()
    postgres.drop_database(bare)


def fail_after(job: object) -> None:
    del job
    raise ZeroDivisionError
