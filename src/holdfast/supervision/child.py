"""A child process of `holdfast worker`: it imports the app, waits for its turn, and works until it is told to stop.

    python -m holdfast.supervision.child APP

It never outlives its supervisor: the kernel kills it when that dies, and where the kernel can't, the end of the line
tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import logging
import mmap
import os
import signal
import socket
import sys
import time
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError, StoreError
from holdfast.hooks import State
from holdfast.loading import CantLoad, load_app
from holdfast.worker import findings, processes
from holdfast.worker.executor import Executor
from holdfast.worker.isolation import Isolation
from holdfast.worker.messages import Cancelled, Failed, Go, Hello, Line, Lost, Quiet, Ready, Stop, Taken, heard_by_child
from holdfast.worker.recorder import Recorder
from holdfast.worker.reporting import Reporting
from holdfast.worker.slots import Slots
from holdfast.worker.station import Station, finish
from holdfast.worker.telling import set_up_logging, tell_handlers_of_jobs, tell_the_rest

log = logging.getLogger("holdfast.worker")

CRASHED: Final = 70
"""The status of a child that was ended from within."""
TRY_AGAIN: Final = 75
"""The status of a child that found no database."""
CANT_START: Final = 78
"""The status of a child that could not import its app, or whose hooks failed: another one would fare no better."""


_LEAST_PATIENCE: Final = 1.0
"""Seconds for the shutdown hooks of isolated processes, however little of the grace time is left."""


class Settings(msgspec.Struct, frozen=True):
    """What a child is started with."""

    app: str
    slots: Slots
    recorder_slots: int
    line: int
    recorder: int
    number: int
    supervisor: int
    max_memory: int | None = None
    """Of the processes of its isolated jobs. The supervisor looks at its own."""
    log_level: str = "INFO"


def main(text: str) -> int:
    settings = msgspec.json.decode(text, type=Settings)
    processes.die_with_parent(settings.supervisor)
    processes.name_process(f"holdfast: worker {settings.app} [{settings.number}] starting")
    set_up_logging(settings.log_level, f"child {settings.number}")
    # The terminal's Ctrl-C is the supervisor's business, and so is a SIGTERM that a service manager sends to all.
    # Handled by doing nothing: if they were ignored, so would the programs be deaf to them that tasks start.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)
    # It is not closed: that would wait for tasks that don't let themselves be cancelled; and after a crash the flight
    # recorder must tell who ran.
    runner = asyncio.Runner(loop_factory=processes.new_event_loop)
    try:
        return runner.run(Child(settings).live())
    except (SystemExit, KeyboardInterrupt) as end:
        log.error("something that a task has started beside itself has ended the process: %r", end)
        return CRASHED


class Child:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._state = State()
        self._stop_by = 0.0

    async def live(self) -> int:
        settings = self._settings
        line = await Line.open(socket.socket(fileno=settings.line))
        try:
            app = load_app(settings.app)
        except CantLoad as error:
            line.say(Failed(error.told))
            await line.flush()
            return CANT_START
        except SystemExit as end:
            line.say(
                Failed(
                    f"{settings.app} has ended the process while it was imported, with {end!r}. "
                    'Put what is to run as a program below `if __name__ == "__main__":`.'
                )
            )
            await line.flush()
            return CANT_START
        try:
            plans = app.engine.plans()
            declared = (app.engine.definitions(), plans, app.engine.policies())
            said = msgspec.json.encode(declared, order="deterministic")
            _ = app.engine.store  # its modules are imported now, not while jobs of a dead child wait for this one
        except Exception as error:
            return await self._give_up(line, error)
        code = hashlib.sha256(said).hexdigest()
        fuses = findings.fuses(app.engine.breakers.values())
        line.say(Hello(app.url, _shown_place(app), sorted(app.engine.tasks), app.retention, plans, code, fuses))
        processes.name_process(f"holdfast: worker {settings.app} [{settings.number}] spare")
        go = await self._wait_for_go(line)
        if go is None:
            return 0
        processes.name_process(f"holdfast: worker {settings.app} [{settings.number}] starting")
        try:
            await app.engine.declared()
            await app.engine.publish_tasks(go.code_since)
            await app.engine.hooks.start(self._state)
            tell_handlers_of_jobs()
        except StoreError as error:
            log.warning("the database can't be used, trying again: %s", error)
            return TRY_AGAIN
        except Exception as error:
            return await self._give_up(line, error)
        return await self._work(app, go.worker, line)

    async def _give_up(self, line: Line, error: Exception) -> int:
        line.say(Failed(f"The app can't start: {type(error).__name__}: {error}"))
        await line.flush()
        log.error("the app can't start", exc_info=error)
        return CANT_START

    async def _wait_for_go(self, line: Line) -> Go | None:
        while (text := await line.hear()) is not None:
            match heard_by_child(text):
                case Go() as go:
                    return go
                case Stop():
                    return None
                case _:
                    pass
        return None

    async def _work(self, app: Holdfast, worker: UUID, line: Line) -> int:
        settings = self._settings
        memory = mmap.mmap(settings.recorder, 0)
        recorder = Recorder(memory, settings.recorder_slots, settings.recorder)
        reporting = Reporting(app.engine)
        isolation = Isolation(lambda: settings.app, recorder, reporting, settings.max_memory)
        executor = Executor(app.engine, recorder, app.engine.hooks, self._state, isolation, reporting)
        station = Station(app.engine, worker, settings.slots, recorder, executor)
        reporting.attach(station)
        processes.name_process(f"holdfast: worker {settings.app} [{settings.number}]")
        # What is there now stays. What jobs leave behind is looked through less often than by default.
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        _end_without_memory(asyncio.get_running_loop())
        working = asyncio.create_task(station.run())
        reports = asyncio.create_task(reporting.run())
        line.say(Ready())
        try:
            return await self._obey(line, station, working)
        finally:
            working.cancel()
            reports.cancel()
            await asyncio.gather(working, reports, return_exceptions=True)
            patience = max(self._stop_by - time.monotonic(), _LEAST_PATIENCE)
            await asyncio.gather(isolation.close(patience), self._shut_down(app))

    async def _shut_down(self, app: Holdfast) -> None:
        try:
            await app.engine.hooks.stop(self._state)
            await app.aclose()
        except Exception:
            log.exception("the app could not be shut down in good order")

    async def _obey(self, line: Line, station: Station, working: asyncio.Task[None]) -> int:
        lost = asyncio.create_task(station.is_declared_dead.wait())
        while True:
            heard = asyncio.create_task(line.hear())
            await asyncio.wait([heard, lost, working], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()  # it never ends by itself, except with an error
            if lost.done():
                line.say(Lost())
                await line.flush()
                return 1
            text = await heard
            if text is None:
                os._exit(1)  # the supervisor is gone, and others will take over what we hold
            match heard_by_child(text):
                case Cancelled(ids):
                    station.cancel(ids)
                case Taken(claims):
                    station.drop(claims)
                case Quiet():
                    station.quiet()
                case Stop(grace):
                    lost.cancel()
                    self._stop_by = time.monotonic() + grace
                    await finish(station, grace)
                    return 0
                case Go():
                    pass


def _end_without_memory(loop: asyncio.AbstractEventLoop) -> None:
    """A callback of the loop that found no memory may have been the last hope of a job, or of all of them.

    Nobody would notice: whatever it was to wake sleeps on. So the process ends, and all that it held runs again.
    """
    usual = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        if "handle" in about and isinstance(about.get("exception"), MemoryError):
            with contextlib.suppress(BaseException):
                log.critical("there is no memory left to go on: this child ends")
                tell_the_rest()
            os._exit(CRASHED)
        if usual is None:
            loop.default_exception_handler(about)
        else:
            usual(loop, about)

    loop.set_exception_handler(handle)


def _shown_place(app: Holdfast) -> str:
    """Where the jobs are, for people. A file that is not there yet is made when the supervisor opens it."""
    is_new = app.url.startswith("sqlite:") and not os.path.exists(app.place)
    return f"{app.place} (created)" if is_new else app.place


if __name__ == "__main__":
    try:
        status = main(sys.argv[1])
    except HoldfastError as error:
        log.error("%s", error)
        status = 1
    except Exception:
        log.exception("this child has failed")
        status = CRASHED
    sys.stdout.flush()
    sys.stderr.flush()
    tell_the_rest()
    os._exit(status)  # threads that are stuck in a task must not keep the process
