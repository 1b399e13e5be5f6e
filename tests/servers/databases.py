"""The databases of a PostgreSQL server, whoever runs it."""

from __future__ import annotations

import secrets
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import psycopg
from psycopg import sql


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
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template or "template0")
        )
        self.execute(statement)
        return self.url(name)

    def drop_database(self, name_or_url: str) -> None:
        """Drop a database, named or by its URL, together with the connections to it."""
        name = unquote(urlsplit(name_or_url).path.lstrip("/")) if "://" in name_or_url else name_or_url
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    @cached_property
    def server_version(self) -> int:
        """As PostgreSQL counts: 150018 is 15.18."""
        return int(self.execute(sql.SQL("SHOW server_version_num"))[0][0])

    def execute(self, statement: sql.Composed | sql.SQL) -> list[tuple[Any, ...]]:
        """Run one statement in the database `postgres`, outside a transaction.

        On a connection of its own: one kept open would be broken by a test that forks.
        """
        with psycopg.connect(self.url(), autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []
