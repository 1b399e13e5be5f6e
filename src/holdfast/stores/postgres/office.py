"""One event loop's office: its connections, and all that stands on them. And the offices of a process together."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

import asyncpg

from holdfast import native
from holdfast.clock import Clock
from holdfast.moment import to_microseconds
from holdfast.store import Hint
from holdfast.stores.hints import HintHub
from holdfast.stores.postgres import inherited
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.admission import Admission
from holdfast.stores.postgres.branch import PATIENCE, Branch
from holdfast.stores.postgres.connecting import connect_raw
from holdfast.stores.postgres.connection import Connection, Record, connect, is_behind_a_pooler
from holdfast.stores.postgres.enqueuing import Enqueuing
from holdfast.stores.postgres.faults import Fault, judge, translate
from holdfast.stores.postgres.floors import Floors
from holdfast.stores.postgres.migrate import Migration, migrate
from holdfast.stores.postgres.notices import Listener, Messenger
from holdfast.stores.postgres.pool import Pool
from holdfast.stores.postgres.request import Options
from holdfast.stores.postgres.reserved import Reserved
from holdfast.stores.postgres.settling import Settling
from holdfast.stores.postgres.statements import statement
from holdfast.stores.postgres.transaction import Transaction
from holdfast.stores.postgres.work import Works, connect_for_work

Result = TypeVar("Result")

_LOOK_EVERY: Final = 0.1
_PATIENCE: Final = 10.0
"""Seconds that a loop in another thread is given to close its connections. Each may take two to say goodbye."""


class Office(Branch):
    """What one event loop does with the database."""

    def __init__(self, offices: Offices, pool: Pool) -> None:
        super().__init__(pool, offices.where, offices.floors.forget)
        self._offices = offices
        self.messenger = Messenger(offices.sender, lambda work: self.run(work, replay=work))
        self.listener = Listener(offices.sender, offices.hub, offices.connect_for_a_session)
        self.reserved = Reserved(offices.connect_for_a_session, self._tell_lock)
        self.enqueuing = Enqueuing(
            self, offices.admission, self.pass_on, self.messenger.encode, lambda: Options(now=self.microseconds)
        )
        self.settling = Settling(self, offices.key_retention)
        self.works = Works(self, offices.connect_for_work, offices.where)
        self.keeper: AsyncGenerator[None, None] | None = None
        self.is_closing = False
        self._closing = asyncio.Lock()

    @property
    def microseconds(self) -> int | None:
        """The time for a statement: None stands for the server's."""
        return self._offices.microseconds

    @property
    def key_retention(self) -> timedelta:
        return self._offices.key_retention

    async def transact(
        self,
        work: Callable[[Transaction], Awaitable[Result]],
        *,
        is_repeatable: bool = True,
        replay: Callable[[Transaction], Awaitable[Result]] | None = None,
    ) -> Result:
        """Do something in a transaction of its own. `is_repeatable`: done twice, it comes to the same.

        If nobody knows whether it was done, `replay` is done instead, if it is given.
        """

        def attempt(
            work: Callable[[Transaction], Awaitable[Result]],
        ) -> Callable[[Connection], Awaitable[tuple[Result, list[Hint]]]]:
            async def try_it(connection: Connection) -> tuple[Result, list[Hint]]:
                transaction = Transaction(connection, self._offices.now(), self._offices.key_retention)
                async with connection.transaction():
                    result = await work(transaction)
                    await transaction.finish()
                return result, transaction.hints

            return try_it

        async def whole() -> Result:
            again = attempt(replay or work) if is_repeatable else None
            result, hints = await self.run(attempt(work), replay=again)
            self.pass_on(hints)
            return result

        return await self.own(whole())

    async def fetch(self, sql: str, *values: Any) -> list[Record]:
        """Run one statement that does no harm if it is done twice."""

        async def work(connection: Connection) -> list[Record]:
            return await connection.fetch(sql, *values)

        return await self.own(self.run(work, replay=work))

    def pass_on(self, hints: Sequence[Hint], is_told: bool = False) -> None:
        """Tell whoever waits, here and elsewhere; `is_told`: those elsewhere know already."""
        if hints:
            self._offices.hub.publish(hints)
            if not is_told:
                self.messenger.send(hints)

    async def _tell_lock(self, workers: list[UUID], is_held: bool) -> None:
        await self.fetch(statement("tell_lock"), workers, is_held, self.microseconds)

    async def close(self) -> None:
        """Finish what is under way, and let go of everything. Doing it once more does no harm.

        Whoever comes second waits for the first: an event loop that is over goes on to its end when this returns, and
        a connection that is just saying goodbye would stay open for ever.
        """
        self.is_closing = True
        async with self._closing:
            await self.enqueuing.drain()
            await self.settling.drain()
            await self.finish()
            await self.messenger.drain()
            await self.listener.stop()
            await self.reserved.close()
            await self.works.close()
            await self.pool.close()


class Offices:
    """The offices of one process, one for each event loop, opened on first use; and what they know together."""

    def __init__(
        self, address: Address, migrations: Sequence[Migration], clock: Clock | None, key_retention: timedelta
    ) -> None:
        self.address = address
        self.where = f"PostgreSQL at {address.place}"
        """What messages call the database."""
        self.key_retention = key_retention
        self._migrations = list(migrations)
        self._clock = clock
        self._start_anew()

    def _start_anew(self) -> None:
        self.sender = uuid4()
        self.hub = HintHub()
        self.admission = Admission()
        self.floors = Floors()
        self.instance: UUID | None = None
        """Which database this is; None until it was opened."""
        self._is_pooled = False
        self._lock = native.make_lock()
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self._of_loops: dict[asyncio.AbstractEventLoop, Office] = {}

    def now(self) -> datetime | None:
        """The time, if this process is to tell it; otherwise the server does."""
        return None if self._clock is None else self._clock.now()

    @property
    def microseconds(self) -> int | None:
        now = self.now()
        return None if now is None else to_microseconds(now)

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Find out what is there, and bring it up to date."""
        if self.instance is None:
            async with self._opening.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                if self.instance is None:
                    await _finished(self._open())

    async def _open(self) -> None:
        raw = await self._first_connection()
        try:
            self._is_pooled = await is_behind_a_pooler(raw)
            await migrate(raw, self._migrations, lambda: connect_raw(self.address, statement_cache=0))
            async with raw.transaction():
                self.instance = await raw.fetchval("select id from holdfast.instance")
        except Exception as error:
            raise translate(error, self.where) from error
        finally:
            with contextlib.suppress(Exception):
                await raw.close(timeout=2)
            if not raw.is_closed():
                raw.terminate()

    async def _first_connection(self) -> asyncpg.Connection[Record]:
        """Connect, waiting for a server that is just being restarted."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while True:
            try:
                return await connect_raw(self.address, statement_cache=0)
            except Exception as error:
                if judge(error) is Fault.FINAL or loop.time() > deadline:
                    raise translate(error, self.where) from error
            await asyncio.sleep(0.2)

    async def here(self) -> Office:
        """The office of this event loop."""
        await self.open()
        loop = asyncio.get_running_loop()
        office = self._of_loops.get(loop)
        if office is None:
            with self._lock:
                for other in [each for each in self._of_loops if each.is_closed()]:
                    inherited.leave_behind(other, self._of_loops.pop(other))
                office = self._of_loops[loop] = Office(self, Pool(self._connect, self.address.pool_size))
            office.keeper = self._keep(loop, office)
            await anext(office.keeper)
        return office

    async def _keep(self, loop: asyncio.AbstractEventLoop, office: Office) -> AsyncGenerator[None, None]:
        """An event loop that comes to its end finishes its generators first: then this closes its connections."""
        try:
            yield
        finally:
            if self._of_loops.get(loop) is office:
                del self._of_loops[loop]
            await office.close()

    async def _connect(self) -> Connection:
        return await connect(self.address, is_pooled=self._is_pooled)

    async def connect_for_work(self) -> Connection:
        """A connection for the transactions of tasks."""
        return await connect_for_work(self.address, is_pooled=self._is_pooled)

    async def connect_for_a_session(self) -> Connection | None:
        """A connection to keep: for a lock, or to listen. Behind a pooler there is no such thing."""
        return None if self._is_pooled else await connect(self.address, is_pooled=False, is_watched=True)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        here = asyncio.get_running_loop()
        with self._lock:
            self._opening = {}
            # A loop that is at rest closes its office when it comes to its end.
            closing = [loop for loop in self._of_loops if loop is here or loop.is_running() or loop.is_closed()]
            offices = {loop: self._of_loops.pop(loop) for loop in closing}
        for loop, office in offices.items():
            if loop is here:
                await office.close()
            elif loop.is_closed():
                inherited.leave_behind(loop, office)
            else:
                await _close_elsewhere(loop, office)

    def abandon(self) -> None:
        """In a forked child: what is open is the parent's."""
        inherited.leave_to_parent(self._of_loops)
        self._start_anew()


async def _close_elsewhere(loop: asyncio.AbstractEventLoop, office: Office) -> None:
    """Close the office of a loop in another thread. A loop that ends meanwhile closes it by itself."""
    done: concurrent.futures.Future[None] = concurrent.futures.Future()

    def begin() -> None:
        if office.is_closing:
            return  # the loop is at its end, and would not wait for one more
        closing = loop.create_task(office.close())
        closing.add_done_callback(lambda _: closing.cancelled() or closing.exception())
        closing.add_done_callback(lambda _: done.set_result(None))

    with contextlib.suppress(RuntimeError):  # it has just ended
        loop.call_soon_threadsafe(begin)
    patience = asyncio.get_running_loop().time() + _PATIENCE
    waiting = asyncio.wrap_future(done)
    while not done.done() and not loop.is_closed() and asyncio.get_running_loop().time() < patience:
        await asyncio.wait([waiting], timeout=_LOOK_EVERY)


async def _finished(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, also if the caller is cancelled meanwhile."""
    task = asyncio.create_task(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
