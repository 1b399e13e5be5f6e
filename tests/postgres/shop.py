"""A database with a table of the user's own beside Holdfast's, and the app that works with both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

import psycopg

from holdfast import Holdfast
from holdfast.ids import Ids
from holdfast.store import NewWorker
from holdfast.stores.postgres import PostgresStore
from holdfast.task import SyncTask
from tests.servers.databases import Databases


class Shop:
    """What others see of it goes over connections of their own, so only what was committed counts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.hf = Holdfast(url)
        self.echo: SyncTask[[str], str] = self.hf.task(_echo)
        self.hf.publish_tasks()
        self._others = psycopg.connect(url, autocommit=True)
        self._others.execute("create table notes (text text primary key)")
        self._worker = uuid4()
        self._runner = asyncio.Runner()
        self._store = PostgresStore(url)
        self._runner.run(self._store.register(NewWorker(self._worker, "shop")))

    def close(self) -> None:
        self._runner.run(self._store.close())
        self._runner.close()
        self._others.close()
        self.hf.close()

    def notes(self) -> set[str]:
        return {text for (text,) in self._others.execute("select text from notes")}

    def jobs(self, queue: str) -> list[UUID]:
        """All that were ever enqueued there."""
        found = self._others.execute("select id from holdfast.jobs where queue = %s order by place", [queue])
        return [id for (id,) in found]

    def claim(self, queue: str) -> list[UUID]:
        """What a worker finds there."""
        claimed = self._runner.run(self._store.claim(self._worker, uuid4(), {queue: 1000}))
        return [job.id for job in claimed]


def _echo(text: str) -> str:
    return text


@contextmanager
def opened_shop(postgres: Databases) -> Iterator[Shop]:
    url = postgres.create_migrated_database()
    shop = Shop(url)
    try:
        yield shop
    finally:
        shop.close()
        postgres.drop_database(url)


def fresh_name() -> str:
    """For a queue or a key that nobody else uses."""
    return str(Ids().make())
