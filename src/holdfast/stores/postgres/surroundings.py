"""The server, its settings and the way to it: what of that matters to jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.installation import Finding, Severity
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.migrate import OLDEST_SERVER

_BESIDES_THE_POOL = 2
"""A listener, and a worker's own connection."""


@dataclass(frozen=True)
class Surroundings:
    """As the server tells them to this role."""

    version: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    encoding: str
    read_only: str
    is_standby: bool
    role: str
    quoted_role: str
    most_connections: int
    has_plpgsql: bool
    has_schema: bool

    def judge(self, address: Address, *, is_pooled: bool) -> Iterator[Finding]:
        yield from self._judge_server()
        yield from self._judge_durability()
        yield from self._judge_connections(address, is_pooled=is_pooled)

    def _judge_server(self) -> Iterator[Finding]:
        major = re.match(r"\d+", self.version)
        if major is None or int(major[0]) < OLDEST_SERVER:
            yield Finding(
                Severity.WRONG,
                f"PostgreSQL {self.version} is too old.",
                f"Upgrade the server to {OLDEST_SERVER} or newer.",
            )
        if self.is_standby:
            yield Finding(
                Severity.WRONG, "This server is a standby: it takes no writes.", "Point the URL at the primary."
            )
        elif self.read_only == "on":
            yield Finding(
                Severity.WRONG,
                "Transactions are read-only by default (default_transaction_read_only is on).",
                f"Run: alter role {self.quoted_role} set default_transaction_read_only = off;",
            )
        if self.encoding != "UTF8":
            yield Finding(
                Severity.WARNING,
                f"The database's encoding is {self.encoding}: arguments with other characters are refused.",
                "Use a database made with: create database … encoding 'UTF8' template template0;",
            )
        if not self.has_plpgsql:
            yield Finding(
                Severity.WRONG,
                "PostgreSQL's own language plpgsql is missing.",
                "Let the owner of the database run: create extension plpgsql;",
            )

    def _judge_durability(self) -> Iterator[Finding]:
        for name, value in (("fsync", self.fsync), ("full_page_writes", self.full_page_writes)):
            if value == "off":
                yield Finding(
                    Severity.WRONG,
                    f"{name} is off: a power failure of the server loses jobs, or the whole database.",
                    f"Run: alter system set {name} = on; select pg_reload_conf();",
                )
        if self.synchronous_commit == "off":
            yield Finding(
                Severity.WARNING,
                "synchronous_commit is off. Holdfast waits for the disk all the same; your own transactions don't.",
                f"If that was not meant, run: alter role {self.quoted_role} set synchronous_commit = on;",
            )

    def _judge_connections(self, address: Address, *, is_pooled: bool) -> Iterator[Finding]:
        needed = address.pool_size + (0 if is_pooled else _BESIDES_THE_POOL)
        if is_pooled:
            yield Finding(
                Severity.NOTE,
                "There is a connection pooler in between, such as PgBouncer. Workers poll for jobs instead of being "
                "woken, and a dead worker is noticed by its heartbeats only.",
                "For the full speed, let workers connect to the server directly.",
            )
        elif needed > self.most_connections:
            yield Finding(
                Severity.WRONG,
                f"One process may open {needed} connections (pool_size {address.pool_size}, and "
                f"{_BESIDES_THE_POOL} besides), and the server gives {self.role} {max(self.most_connections, 0)}.",
                "Raise max_connections or the limit of the role or database, or lower pool_size= in the URL.",
            )
