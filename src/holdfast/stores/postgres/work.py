"""The transactions of tasks: on connections of their own, with the user's own settings, a few for each event loop.

Others may wait for what a task has locked. So the server must notice when the task's machine is gone: it asks for
signs of life, gives up a transaction in which nothing has happened for longer than the task may run, and each
transaction is named after its job, so that whoever takes the job from a lost worker can end it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import asyncpg
from asyncpg.transaction import Transaction as DriverTransaction

from holdfast.errors import (
    HoldfastError,
    InvalidTransaction,
    OutcomeUnknown,
    StoreUnavailable,
    TransactionLost,
)
from holdfast.job import NewJob, Stage
from holdfast.store import Enqueued, Hint, HintKind, Row, Settled, Settlement
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.branch import PATIENCE
from holdfast.stores.postgres.connecting import connect_raw
from holdfast.stores.postgres.connection import Connection, Record
from holdfast.stores.postgres.faults import Fault, NoConnection, judge, translate
from holdfast.stores.postgres.pool import Pool
from holdfast.stores.postgres.settling import complete_values, completed_of, completing
from holdfast.stores.postgres.statements import statement
from holdfast.stores.postgres.transaction import Transaction

if TYPE_CHECKING:
    from holdfast.stores.postgres.office import Office

MOST_OPEN: Final = 10
"""Transactions of tasks that one event loop may have open at once. Further ones wait for as long as their jobs may."""
_SLACK: Final = timedelta(seconds=30)
_LONGEST_IDLE: Final = timedelta(days=20)
"""More does not fit into the setting."""
_PATIENCE: Final = 5.0
"""Seconds for the server to do what needs no time: begin, roll back, forget."""
_LONGEST_COMMIT: Final = 60.0
_PAUSE: Final = 0.1
_WAITS_FOR_DISK: Final = "coalesce(nullif(pg_catalog.current_setting('synchronous_commit'), 'off'), 'on')"
_OWN_SETTINGS: Final = f"""
    select
        pg_catalog.set_config('synchronous_commit', {_WAITS_FOR_DISK}, false),
        pg_catalog.set_config('tcp_keepalives_idle', '10', false),
        pg_catalog.set_config('tcp_keepalives_interval', '5', false),
        pg_catalog.set_config('tcp_keepalives_count', '3', false),
        pg_catalog.set_config('tcp_user_timeout', '25000', false)
"""
_WAIT_FOR_DISK: Final = f"select pg_catalog.set_config('synchronous_commit', {_WAITS_FOR_DISK}, true)"

Enqueue = Callable[[object, Sequence[NewJob]], Awaitable[list[Enqueued]]]


async def connect_for_work(address: Address, *, is_pooled: bool) -> Connection:
    """A connection with the settings of the user's role and database, not with those of the store's own."""
    raw = await connect_raw(address, statement_cache=0 if is_pooled else 100)
    try:
        if not is_pooled:
            await raw.execute(_OWN_SETTINGS, timeout=_PATIENCE)
    except BaseException as error:
        raw.terminate()
        if isinstance(error, Exception):
            raise NoConnection from error
        raise
    return Connection(raw, is_pooled=is_pooled, timeout=address.statement_timeout)


class Works:
    """One event loop's transactions of tasks."""

    def __init__(self, office: Office, connect: Callable[[], Awaitable[Connection]], where: str) -> None:
        """`where` is the database, for messages."""
        self._office = office
        self._where = where
        # A task that finds all of them busy has done nothing wrong: what ends its wait is its own timeout.
        self._pool = Pool(connect, MOST_OPEN, patience=None)

    async def open(self, job: UUID, timeout: timedelta, enqueue: Enqueue) -> PostgresWork:
        """Begin. Nothing of the task's is sent before this returns, so it is tried again as long as it may work.

        Waits for a connection that is free, for however long. `enqueue` inserts jobs on a connection with an open
        transaction.
        """
        loop = asyncio.get_running_loop()
        give_up_at: float | None = None
        while True:
            try:
                return await self._begin(job, timeout, enqueue)
            except Exception as error:
                fault = judge(error)
                if fault is Fault.LOST:
                    self._pool.drop_free()
                # Counted from the first trouble, not from before the wait for a connection.
                give_up_at = loop.time() + PATIENCE if give_up_at is None else give_up_at
                if fault is Fault.FINAL or loop.time() > give_up_at:
                    raise translate(error, self._where) from error
            await asyncio.sleep(_PAUSE * random.uniform(0.5, 1.5))

    async def _begin(self, job: UUID, timeout: timedelta, enqueue: Enqueue) -> PostgresWork:
        held = AsyncExitStack()
        connection = await held.enter_async_context(self._pool.connection())
        raw = connection.raw
        idle = min(timeout + _SLACK, _LONGEST_IDLE) // timedelta(milliseconds=1)
        transaction = raw.transaction()
        try:
            async with asyncio.timeout(_PATIENCE):
                await transaction.start()
                # No query yet: the task may still choose the isolation of its transaction.
                await raw.execute(
                    f"set local idle_in_transaction_session_timeout = {idle}; "
                    f"set local application_name = 'holdfast work {job}'"
                )
        except BaseException:
            raw.terminate()  # in whatever state it is
            await held.aclose()
            raise
        return PostgresWork(self._office, connection, transaction, enqueue, held)

    async def close(self) -> None:
        await self._pool.close()


class PostgresWork:
    """One task's transaction."""

    def __init__(
        self,
        office: Office,
        connection: Connection,
        transaction: DriverTransaction,
        enqueue: Enqueue,
        held: AsyncExitStack,
    ) -> None:
        self._office = office
        self._connection = connection
        self._raw = connection.raw
        self._transaction = transaction
        self._enqueue = enqueue
        self._held = held
        """Lets go of the connection."""
        self._queues: dict[HintKind, set[str]] = {}
        self._is_over = False

    @property
    def connection(self) -> asyncpg.Connection[Record]:
        return self._raw

    async def execute(self, sql: str, args: Sequence[Any]) -> None:
        await self._raw.fetch(sql, *args)  # not `execute`, which would take several statements at once

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return cast("Sequence[Row]", await self._raw.fetch(sql, *args))

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        answers = await self._enqueue(self._raw, jobs)
        for new in jobs:
            kind = HintKind.WORK if new.delay is None and new.at is None else HintKind.LATER
            self._queues.setdefault(kind, set()).add(new.queue)
        return answers

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def complete(self, settlement: Settlement) -> Settled:
        self._is_over = True
        return await self._office.own(self._complete(settlement))

    async def _complete(self, settlement: Settlement) -> Settled:
        try:
            self._check()
            is_held = await self._pass_fence(settlement)
            if is_held:
                await self._commit()
        except Exception as error:
            is_lost = judge(error) is Fault.LOST
            if is_lost:
                self._raw.terminate()
            await self._undo()
            if is_lost:
                return await self._look(settlement, error)
            raise
        if not is_held:
            await self._undo()
            return Settled.STALE
        self._office.start(self._put_back())
        hints = [Hint(kind, frozenset(queues)) for kind, queues in self._queues.items()]
        self._office.pass_on([Hint(HintKind.FINISHED, ids=frozenset([settlement.id])), *hints])
        return Settled.APPLIED

    def _check(self) -> None:
        if not self._raw.is_closed() and not self._raw.is_in_transaction():
            raise InvalidTransaction(
                "The task has committed or rolled back its transaction itself, so its job can't be completed in it. "
                "Leave that to the worker; a part can be undone in `async with ctx.tx.connection.transaction():`."
            )

    async def _pass_fence(self, settlement: Settlement) -> bool:
        """Complete the job, if the claim is still held: nobody else can take it from now on until we commit."""
        try:
            if self._connection.is_pooled:
                await self._raw.execute(_WAIT_FOR_DISK, timeout=_LONGEST_COMMIT)
            values = complete_values([settlement], self._office.microseconds, self._office.key_retention)
            found = await self._raw.fetch(statement(completing([settlement])), *values, timeout=_LONGEST_COMMIT)
        except asyncpg.InFailedSQLTransactionError as error:
            raise TransactionLost(
                "A statement of this task's transaction has failed, and PostgreSQL takes none after that: nothing was "
                "written. Let its error end the task, or put what may fail into "
                "`async with ctx.tx.connection.transaction():`."
            ) from error
        except asyncpg.InterfaceError as error:
            if self._raw.is_closed():
                raise
            raise InvalidTransaction(
                f"The task has returned while a statement of its transaction was under way ({error}). Nothing was "
                "written; await all of them in the task."
            ) from error
        completed, queues = completed_of([settlement], found)
        if queues:
            self._queues.setdefault(HintKind.WORK, set()).update(queues)
        return bool(completed)

    async def _commit(self) -> None:
        async with asyncio.timeout(_LONGEST_COMMIT):
            await self._transaction.commit()

    async def _look(self, settlement: Settlement, error: Exception) -> Settled:
        """The connection was lost, perhaps while the server committed. What became of it stands in the job."""

        async def look(it: Transaction) -> Stage | None:
            # Waits for the server to end that transaction, if it has not noticed yet.
            job = (await it.lock([settlement.id])).get(settlement.id)
            return job.stage if job is not None and job.token == settlement.token else None

        said = str(error) or type(error).__name__
        try:
            stage = await self._office.transact(look)
        except HoldfastError as trouble:
            raise OutcomeUnknown(
                f"The connection was lost while the task's transaction was committed ({said}), and the database "
                "can't be asked what became of it. The job is settled as soon as it can be."
            ) from trouble
        if stage is Stage.ACTIVE:
            raise StoreUnavailable(
                f"The connection was lost before the task's transaction was committed ({said}). Nothing was written."
            ) from error
        # In any other stage it was settled by somebody else who knows the token, a supervisor for example.
        return Settled.ALREADY if stage is Stage.COMPLETED else Settled.STALE

    async def roll_back(self) -> None:
        if not self._is_over:
            self._is_over = True
            await self._office.own(self._undo())

    async def _undo(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                if not self._raw.is_closed() and self._raw.is_in_transaction():
                    await self._transaction.rollback()
        except Exception:
            self._raw.terminate()  # then the server does it
        self._office.start(self._put_back())

    async def _put_back(self) -> None:
        """What a task has set, locked or made for its session must not reach the next one."""
        async with self._held:
            try:
                if not self._raw.is_closed() and not self._connection.is_pooled:
                    await self._raw.reset(timeout=_PATIENCE)
                    await self._raw.execute(f"discard temp; {_OWN_SETTINGS}", timeout=_PATIENCE)
            except Exception:
                self._raw.terminate()
