"""The embedded worker: jobs run in the caller's own process and event loop, beside a web app for example.

    async with hf.worker(queues={"default": 10}):
        ...

The same engine as in a child process of `holdfast worker`, without the powers of a supervisor. Heartbeats come from a
thread, so a blocked loop does not look like a dead worker. A hard timeout cancels; what does not let itself be
cancelled goes on, but its slot is written off and its job is treated as timed out. A task that crashes the process
takes the app with it: the jobs are rescued by other workers, or when the app starts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

from holdfast.engine import Engine
from holdfast.errors import ConfigurationError, HoldfastError, InvalidOption
from holdfast.hooks import State
from holdfast.maintenance.herald import Herald
from holdfast.maintenance.pruner import Pruner
from holdfast.maintenance.rescuer import Rescuer
from holdfast.maintenance.scheduler import Scheduler
from holdfast.maintenance.ticker import Ticker
from holdfast.maintenance.undertaker import Undertaker
from holdfast.span import Span, parse_span
from holdfast.store import Beaten, Held, NewWorker, Store
from holdfast.worker import guilt
from holdfast.worker.executor import Executor
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.isolation import Isolation
from holdfast.worker.locating import refuse_in_isolation
from holdfast.worker.recorder import Recorder
from holdfast.worker.reporting import Reporting
from holdfast.worker.slots import DEFAULT_CONCURRENCY, make_slots
from holdfast.worker.station import Station, finish, slots_for
from holdfast.worker.telling import tell_handlers_of_jobs

log = logging.getLogger("holdfast.worker")

_TELL_BLOCKED_AFTER: Final = 5.0
_LOOK_EVERY: Final = 1.0
_LEAST_PATIENCE: Final = 1.0
"""Seconds for the shutdown hooks of isolated processes, however little of the grace time is left."""


class EmbeddedWorker:
    """Works from entering to leaving. Leaving claims nothing more, lets what runs finish, and gives back the rest."""

    def __init__(
        self,
        engine: Engine,
        locate: Callable[[], str],
        queues: Mapping[str, int | None] | Sequence[str] | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        grace: Span = "30s",
    ) -> None:
        """`locate` names the app for processes of isolated jobs."""
        self._engine = engine
        self._locate = locate
        self._slots = make_slots(queues, concurrency)
        self._grace = parse_span(grace, "grace").total_seconds()
        self._state = State()
        self._station: Station | None = None
        self._isolation: Isolation | None = None
        self._executor: Executor | None = None
        self._keeper: Keeper | None = None
        self._tasks: list[asyncio.Task[None]] = []
        """The work; none while it begins anew."""
        self._watching: asyncio.Task[None] | None = None
        self._is_entered = False

    async def __aenter__(self) -> Self:
        refuse_in_isolation()
        engine = self._engine
        if engine.is_unattended:
            return self  # a test of the app runs the jobs itself
        if self._is_entered:
            raise ConfigurationError("This worker is running already. For another one, call hf.worker() again.")
        self._is_entered = True
        try:
            await self._start()
        except BaseException:
            self._is_entered = False
            raise
        return self

    async def _start(self) -> None:
        engine = self._engine
        await engine.declared()
        await engine.publish_tasks(engine.code_since)
        await engine.hooks.start(self._state)
        tell_handlers_of_jobs()
        try:
            await self._begin()
        except BaseException:
            await engine.hooks.stop(self._state)
            raise
        self._watching = asyncio.create_task(self._begin_anew_when_lost(), name="holdfast-worker")
        engine.workers_here += 1

    async def _begin(self) -> None:
        engine, worker = self._engine, self._engine.ids.make()
        recorder = Recorder.in_memory(slots_for(self._slots))
        reporting = Reporting(engine)
        self._isolation = Isolation(self._locate, recorder, reporting)
        self._executor = Executor(engine, recorder, engine.hooks, self._state, self._isolation, reporting)
        self._station = Station(
            engine,
            worker,
            self._slots,
            recorder,
            self._executor,
            enforces_timeouts=True,
            isolates_suspects=self._can_be_found(),
        )
        reporting.attach(self._station)
        self._keeper = Keeper(engine, worker, self._station, recorder, self._slots.queues)
        try:
            await self._keeper.start()
        except BaseException:
            # It may be registered by now, or be about to: one that beats and claims nothing would mislead everybody.
            await self._keeper.stop()
            raise
        self._tasks = [
            asyncio.create_task(self._station.run(), name="holdfast-station"),
            asyncio.create_task(reporting.run(), name="holdfast-reporting"),
        ]

    def _can_be_found(self) -> bool:
        """Whether other processes can import the app: one that a function makes can't be."""
        try:
            self._locate()
        except InvalidOption:
            return False
        return True

    async def _begin_anew_when_lost(self) -> None:
        """Taken for dead, as after a laptop's sleep, or failed: drop everything, and register anew. Each time."""
        while True:
            assert self._station is not None
            await _lost(self._station, self._tasks[0])
            has_begun = False
            while not has_begun:
                has_begun = await self._try_to_begin_anew()

    async def _try_to_begin_anew(self) -> bool:
        """Whatever goes wrong is told, and may be tried again: nobody else looks after this worker."""
        assert self._station is not None
        try:
            self._station.quiet()
            self._station.drop_all()
            await self._stop_working(_LEAST_PATIENCE)
            await self._begin()
            return True
        except HoldfastError as error:
            log.warning("this worker can't begin anew, trying again: %s", error)
        except Exception:
            log.exception("this worker can't begin anew, trying again")
        await asyncio.sleep(random.uniform(0.5, 1.5))
        return False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._station is None or self._watching is None:
            return  # it was not entered, or has been left
        watching, self._watching = self._watching, None
        self._engine.workers_here -= 1
        watching.cancel()
        await asyncio.wait([watching])
        stop_by = time.monotonic() + self._grace
        try:
            if self._tasks:
                await finish(self._station, self._grace)
        finally:
            try:
                await self._stop_working(max(stop_by - time.monotonic(), _LEAST_PATIENCE))
                await self._engine.hooks.stop(self._state)
            finally:
                self._is_entered = False

    async def _stop_working(self, patience: float) -> None:
        assert self._isolation is not None
        assert self._executor is not None
        assert self._keeper is not None
        assert self._station is not None
        self._station.leave()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._executor.crew.close()
        await self._isolation.close(patience)
        await self._keeper.stop()


async def _lost(station: Station, working: asyncio.Task[None]) -> None:
    """Return when a worker has to begin anew."""
    declared = asyncio.create_task(station.is_declared_dead.wait())
    try:
        await asyncio.wait([declared, working], return_when=asyncio.FIRST_COMPLETED)
    finally:
        declared.cancel()
    if working.done():
        log.error("this worker has failed and begins anew", exc_info=working.exception())
        await asyncio.sleep(1)
    else:
        log.warning("this worker was taken for dead: its jobs run elsewhere by now, so it begins anew")


class Keeper:
    """A thread with an event loop of its own: it beats, and looks after the database, whatever the app's loop does."""

    def __init__(
        self, engine: Engine, worker: UUID, station: Station, recorder: Recorder, queues: tuple[str, ...]
    ) -> None:
        self.worker = worker
        self._engine = engine
        self._station = station
        self._recorder = recorder
        self._queues = queues
        self._home = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self._is_unwanted = False
        self._thread = threading.Thread(target=self._serve, name="holdfast-keeper", daemon=True)
        self._started: asyncio.Future[None] = self._home.create_future()
        self._ended: asyncio.Future[None] = self._home.create_future()

    async def start(self) -> None:
        """Return when the worker is registered."""
        self._thread.start()
        await asyncio.shield(self._started)

    async def stop(self) -> None:
        """Take leave, and return when the thread has ended."""
        self._is_unwanted = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stopped.set)
        if self._thread.ident is not None:
            await asyncio.shield(self._ended)

    # ── as a ward ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_working(self) -> bool:
        return True

    def held(self) -> Held:
        return self._recorder.flight().held

    def beaten(self, answer: Beaten, held: Held) -> None:
        def pass_on() -> None:
            if not answer.is_alive:
                self._station.is_declared_dead.set()
            self._station.drop({id: held.jobs[id] for id in answer.taken})
            self._station.cancel(answer.cancelled)
            if answer.is_quiet:
                self._station.quiet()

        if not answer.is_alive or answer.taken or answer.cancelled or answer.is_quiet:
            self._at_home(pass_on)

    # ── the thread's side ────────────────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        try:
            asyncio.run(self._keep())
        except BaseException as error:
            self._answer(self._started, error)
        finally:
            # Only now has this loop closed its connections: whoever closes the store next meets nobody half-way.
            self._answer(self._ended, None)

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._is_unwanted:
            return  # whoever wanted it did not know this loop yet
        store = self._engine.store
        host = socket.gethostname()
        name, tasks = f"{host}:{os.getpid()}/embedded", tuple(sorted(self._engine.tasks))
        await store.register(NewWorker(self.worker, name, host, os.getpid(), self._queues, tasks))
        self._answer(self._started, None)
        services = [asyncio.create_task(work) for work in self._services(lambda: store)]
        try:
            await self._stopped.wait()
        finally:
            for service in services:
                service.cancel()
            await asyncio.gather(*services, return_exceptions=True)
            with contextlib.suppress(HoldfastError):
                await store.depart(self.worker)

    def _services(self, store: Callable[[], Store]) -> list[Coroutine[Any, Any, None]]:
        engine = self._engine
        return [
            Heartbeat(store, lambda: [self]).run(),
            Rescuer(store, self._engine.clock).run(),
            Ticker(store).run(),
            Scheduler(store, engine.clock, engine.chance).run(),
            Herald(store, engine.clock, lambda: [(engine.plans(), engine.code_since)]).run(),
            Undertaker(store).run(),
            Pruner(store).run(),
            self._watch(),
        ]

    async def _watch(self) -> None:
        """Say so when the app's loop is blocked. Nothing more can be done about it from here."""
        is_told = False
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            flight, now = self._recorder.flight(), time.monotonic()
            if not guilt.is_blocked(flight, now):
                is_told = False
            elif now - flight.turned_at > _TELL_BLOCKED_AFTER and not is_told:
                is_told = True
                culprit = guilt.culprit(flight)
                log.warning("the event loop has been blocked for %.0f s by %s", now - flight.turned_at, culprit)

    def _answer(self, future: asyncio.Future[None], error: BaseException | None) -> None:
        def answer() -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        self._at_home(answer)

    def _at_home(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the app's loop is closed
            self._home.call_soon_threadsafe(call)
