"""One connection to PostgreSQL, and what must be true of it whatever the user's settings say.

Behind PgBouncer in transaction mode a connection is another one in every transaction: nothing
may be set, prepared or locked for longer. That is noticed on connecting, and then every
statement stands in a transaction of its own that sets what it needs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import asyncpg

from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.connecting import connect_raw
from holdfast.stores.postgres.faults import Fault, NoConnection, NotCommitted, judge

Record = asyncpg.Record

_SETTINGS: Final = {
    "default_transaction_isolation": "read committed",
    "search_path": "pg_catalog, pg_temp",
    # The tables are small one day and large the next, and a plan is kept: only plans that are good for both will do.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
}
_SLACK = 5.0
"""The server stops a statement that takes too long, and says so. If even that does not come, we go."""


class Connection:
    """A connection that one task uses at a time."""

    def __init__(self, raw: asyncpg.Connection[Record], *, is_pooled: bool, timeout: float) -> None:
        self._raw = raw
        self.is_pooled = is_pooled
        """It goes through a pooler, and may be another one in every transaction."""
        self._timeout = timeout
        # The isolation of a transaction must be chosen before its first statement.
        own = f"begin isolation level read committed; {_settings_sql(timeout, is_local=True)}"
        self._begin = own if is_pooled else "begin"
        self._is_in_transaction = False

    @property
    def raw(self) -> asyncpg.Connection[Record]:
        return self._raw

    @property
    def is_usable(self) -> bool:
        return not self._raw.is_closed() and not self._raw.is_in_transaction()

    async def fetch(self, sql: str, *values: Any) -> list[Record]:
        """The rows that a statement answers with. Outside of a transaction it is one by itself."""
        if self.is_pooled and not self._is_in_transaction:
            async with self.transaction():
                return await self._raw.fetch(sql, *values, timeout=self._timeout + _SLACK)
        return await self._raw.fetch(sql, *values, timeout=self._timeout + _SLACK)

    async def fetch_row(self, sql: str, *values: Any) -> Record:
        (row,) = await self.fetch(sql, *values)
        return row

    async def fetch_value(self, sql: str, *values: Any) -> Any:
        ((value,),) = await self.fetch(sql, *values)
        return value

    async def execute(self, sql: str, *values: Any) -> None:
        await self.fetch(sql, *values)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction. NotCommitted says that the connection was lost before the commit was sent."""
        try:
            await self._raw.execute(self._begin, timeout=self._timeout + _SLACK)
            self._is_in_transaction = True
            yield
        except BaseException as error:
            self._is_in_transaction = False
            await self._roll_back()
            if judge(error) is Fault.LOST:
                raise NotCommitted from error
            raise
        self._is_in_transaction = False
        done = await self._raw.execute("commit", timeout=self._timeout + _SLACK)
        if done != "COMMIT":
            raise NotCommitted from RuntimeError("the transaction was rolled back by the server")

    async def _roll_back(self) -> None:
        if self._raw.is_closed():
            return
        try:
            await self._raw.execute("rollback", timeout=_SLACK)
        except BaseException:
            self._raw.terminate()

    async def close(self) -> None:
        with suppress(Exception):
            await self._raw.close(timeout=2)
        if not self._raw.is_closed():
            self._raw.terminate()

    def terminate(self) -> None:
        self._raw.terminate()


async def connect(address: Address, *, is_pooled: bool, is_watched: bool = False) -> Connection:
    """Connect. `is_watched`: the server notices soon when this side is gone, and lets go of its locks."""
    raw = await connect_raw(address, statement_cache=0 if is_pooled else 100)
    try:
        if not is_pooled:
            await raw.execute(_settings_sql(address.statement_timeout, is_local=False, is_watched=is_watched))
    except BaseException as error:
        raw.terminate()
        if isinstance(error, Exception):
            raise NoConnection from error
        raise
    return Connection(raw, is_pooled=is_pooled, timeout=address.statement_timeout)


async def is_behind_a_pooler(raw: asyncpg.Connection[Record]) -> bool:
    """A pooler makes up the process number that it tells its clients."""
    await raw.execute("begin")
    told = raw.get_server_pid()
    real: int = await raw.fetchval("select pg_backend_pid()")
    await raw.execute("rollback")
    return told != real


def _settings_sql(statement_timeout: float, *, is_local: bool, is_watched: bool = False) -> str:
    """All settings in one statement. A user who switched synchronous_commit off did not mean our promises."""
    settings = _SETTINGS | {"statement_timeout": f"{round(statement_timeout * 1000)}ms"}
    if is_local:
        del settings["default_transaction_isolation"]
    if is_watched:
        settings |= {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
    local = "true" if is_local else "false"
    parts = [f"pg_catalog.set_config('{name}', '{value}', {local})" for name, value in settings.items()]
    waiting = "coalesce(nullif(pg_catalog.current_setting('synchronous_commit'), 'off'), 'on')"
    parts.append(f"pg_catalog.set_config('synchronous_commit', {waiting}, {local})")
    return f"select {', '.join(parts)}"
