"""The databases of a PostgreSQL server, whoever runs it."""

from __future__ import annotations

import secrets
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import psycopg
from psycopg import sql

_WITH_STRATEGIES = 150_000


class Databases:
    """A server that lets us in and lets us create databases."""

    def __init__(self, address: str) -> None:
        self._address = address

    def url(
        self, database: str = "postgres", *, user: str | None = None, password: str | None = None, **params: str
    ) -> str:
        """Where a database is; a user named without a password has none."""
        parts = urlsplit(self._address)
        location = parts.netloc.rpartition("@")[2]
        if user is not None:
            login = quote(user, safe="") + (f":{quote(password, safe='')}" if password is not None else "")
        else:
            login = parts.netloc.rpartition("@")[0]
        query = urlencode(dict(parse_qsl(parts.query)) | params)
        return (
            f"{parts.scheme}://{login + '@' if login else ''}{location}/{quote(database)}{'?' + query if query else ''}"
        )

    def create_database(self, name: str | None = None, template: str | None = None) -> str:
        """Create a database, empty or a copy of the template, and return its URL."""
        name = name or f"holdfast_test_{secrets.token_hex(6)}"
        # To copy files is the cheapest way; before version 15 it was the only one.
        strategy = "STRATEGY file_copy" if self.server_version >= _WITH_STRATEGIES else ""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} {}").format(
            sql.Identifier(name), sql.Identifier(template or "template0"), sql.SQL(strategy)
        )
        self.execute(statement)
        return self.url(name)

    def create_migrated_database(self) -> str:
        """Create a database with Holdfast's tables, empty, and return its URL.

        It is a copy of one that was made once: to make the tables takes longer than most tests. Like any other
        database it is an instance of its own.
        """
        url = self.create_database(template=self._migrated)
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            connection.execute("update holdfast.instance set id = default")
        return url

    def drop_database(self, name_or_url: str) -> None:
        """Drop a database, named or by its URL, together with the connections to it."""
        name = _name_in(name_or_url) if "://" in name_or_url else name_or_url
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    @cached_property
    def server_version(self) -> int:
        """As PostgreSQL counts: 150018 is 15.18."""
        return int(self.execute(sql.SQL("SHOW server_version_num"))[0][0])

    @cached_property
    def _migrated(self) -> str:
        """The database that is copied. Nobody else knows of it: one with a connection can't be copied."""
        from holdfast.stores.postgres.cutting import cut
        from holdfast.stores.postgres.migrate import shipped_migrations
        from holdfast.stores.postgres.script import script

        url = self.create_database()
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            for statement in cut(script(shipped_migrations())):
                connection.execute(statement)
        return _name_in(url)

    def close(self) -> None:
        """Leave nothing behind on a server that others go on using."""
        if "_migrated" in self.__dict__:
            self.drop_database(self.__dict__.pop("_migrated"))

    def execute(self, statement: sql.Composed | sql.SQL) -> list[tuple[Any, ...]]:
        """Run one statement in the database `postgres`, outside a transaction.

        On a connection of its own: one kept open would be broken by a test that forks.
        """
        with psycopg.connect(self.url(), autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


def _name_in(url: str) -> str:
    return unquote(urlsplit(url).path.lstrip("/"))
