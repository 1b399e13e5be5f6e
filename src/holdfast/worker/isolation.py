"""Jobs that are alone in a process: those that ask for it, those that may run only once, and those under suspicion.

A process runs one job at a time and is used again for the next, so that guilt is certain: whatever happens to it while
a job runs was that job's doing. What it is asked and answers goes over a pair of sockets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import msgspec

from holdfast.context import SoftTimeout, Surroundings
from holdfast.job import ClaimedJob, Failure, FailureKind
from holdfast.outcome import Completed, Crashed, Interrupted, Outcome, Raised, Unstarted, Verdict, Withdrawn
from holdfast.worker import guilt
from holdfast.worker.messages import Line
from holdfast.worker.processes import how_it_ended, kill_group, resident_memory
from holdfast.worker.recorder import Recorder
from holdfast.worker.runs import Run

log = logging.getLogger("holdfast.worker")

_MOST_STARTING: Final = max(2, os.cpu_count() or 1)
"""Processes at once."""
_IDLE_FOR: Final = 30.0
"""Seconds after which a process without a job is ended."""
_LONGEST_END: Final = 30.0
"""Seconds for the hooks of a process that ends because it has nothing to do."""
_KILL_AFTER: Final = 0.05
"""Seconds past the hard timeout."""
_LONGEST_START: Final = 60.0
"""Seconds for importing the app and for its hooks."""
_LAST_LINES: Final = 0.5
"""Seconds for what a process has said before it died."""

# ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Begin(msgspec.Struct, tag="begin", frozen=True):
    """Run this."""

    job: ClaimedJob
    phase_at: int
    """Where to write down in the flight recorder that it has ended, before that is said."""


class Throw(msgspec.Struct, tag="throw", frozen=True):
    """Make this appear in the task."""

    is_timeout: bool


class Leave(msgspec.Struct, tag="leave", frozen=True):
    """Run the app's shutdown hooks, for so many seconds at most, and end."""

    patience: float


class Up(msgspec.Struct, tag="up", frozen=True):
    """The app is imported, its hooks have run: jobs may come."""


class Down(msgspec.Struct, tag="down", frozen=True):
    """It can't start."""

    reason: str


class Unknown(msgspec.Struct, tag="unknown", frozen=True):
    """There is no such task here: the files have changed since the worker has read them. The job has not begun."""


class Begun(msgspec.Struct, tag="begun", frozen=True):
    """The job begins. Whatever happens to the process before this is not its doing."""


class Done(msgspec.Struct, tag="done", frozen=True):
    result_json: str | None = None


class Committed(msgspec.Struct, tag="committed", frozen=True):
    """It was settled by its own transaction, or is not ours any more."""


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """The task raised."""

    verdict: Verdict
    failure: Failure
    delay: timedelta | None = None
    is_outage: bool = False
    breaker: str | None = None


class Stopped(msgspec.Struct, tag="stopped", frozen=True):
    """It did as it was told."""


class Progress(msgspec.Struct, tag="progress", frozen=True):
    done: float
    total: float | None
    note: str


ToProcess = Begin | Throw | Leave
FromProcess = Up | Down | Unknown | Begun | Done | Committed | Ended | Stopped | Progress
_to_process: Final = msgspec.json.Decoder(ToProcess)
_from_process: Final = msgspec.json.Decoder(FromProcess)


def heard_by_process(text: bytes) -> ToProcess:
    message: ToProcess = _to_process.decode(text)
    return message


def heard_from_process(text: bytes) -> FromProcess:
    message: FromProcess = _from_process.decode(text)
    return message


class Settings(msgspec.Struct, frozen=True):
    """What such a process is started with."""

    app: str
    line: int
    recorder: int | None
    """The flight recorder's file, if it has one."""
    parent: int
    log_level: str


# ── the side of the worker ───────────────────────────────────────────────────────────────────────────────────────────


class Isolation:
    """The processes of one worker. Bounded by its slots.

    `locate` names the app for them. One that uses more than `max_memory` bytes when its job is done gets no other one.
    """

    def __init__(
        self,
        locate: Callable[[], str],
        recorder: Recorder,
        surroundings: Surroundings,
        max_memory: int | None = None,
        idle_for: float = _IDLE_FOR,
    ) -> None:
        self._locate = locate
        self._recorder = recorder
        self._surroundings = surroundings
        self._max_memory = max_memory
        self._idle_for = idle_for
        self._idle: list[Cell] = []
        self._leaving: dict[Cell, asyncio.Task[None]] = {}
        self._all: set[Cell] = set()
        self._starting = 0
        self._freed = asyncio.Event()
        """A process is ready that was not, or another one may be started."""

    async def run(self, run: Run) -> Outcome:
        try:
            outcome: Outcome | None = None
            while outcome is None:
                has_waited = await self._may_have_one(run)
                if run.stop is not None:
                    return _never_begun(run)
                cell, is_new = await self._free_cell()
                try:
                    if run.stop is not None:
                        outcome = _never_begun(run)
                    elif (has_waited or is_new) and time.monotonic() > run.start_by:
                        # Its rate may let others through before long. Claimed anew, it begins at once.
                        outcome = Interrupted(has_started=False)
                    else:
                        outcome = await self._run_in(cell, run)
                finally:
                    self._put_away(cell)
                if outcome is None and is_new:
                    raise CantStart("it ended before the job began")
            return outcome
        except CantStart as error:
            if run.stop is not None:
                return _never_begun(run)
            message = f"A process for this job could not be started: {error}"
            return Unstarted(Failure(FailureKind.WAITED, "CantStart", message))
        except asyncio.CancelledError:
            return Interrupted()

    async def close(self, patience: float) -> None:
        """End all of them. Jobs that still run in them are lost to whoever gives them back.

        Those that are at rest run the app's shutdown hooks first, for so many seconds at most; the others are killed.
        """
        cells, self._all = self._all, set()
        resting, self._idle = {*self._idle, *self._leaving}, []
        for cell in cells - resting:
            cell.kill()
        await asyncio.gather(
            *(cell.wait() for cell in cells - resting),
            *(cell.leave(patience) for cell in cells & resting),
            return_exceptions=True,
        )

    async def _may_have_one(self, run: Run) -> bool:
        """Wait while as many are being started as there are cores, and none is ready; or until this one is to stop.

        Whether it had to.

        After a crash many jobs may have to be alone at once. If a process were started for each, they would keep the
        event loop waiting, and everybody for whom it has something in its hands, such as the lock of a SQLite file.
        """
        has_waited = False
        while not self._idle and self._starting >= _MOST_STARTING and run.stop is None:
            has_waited = True
            self._freed.clear()
            await self._freed.wait()
        return has_waited

    async def _free_cell(self) -> tuple[Cell, bool]:
        """One that is ready, and whether it is new."""
        while self._idle:
            cell = self._idle.pop()
            if cell.is_alive:
                return cell, False
            self._all.discard(cell)
        self._starting += 1
        try:
            return await self._new_cell(), True
        finally:
            self._starting -= 1
            self._freed.set()

    async def _new_cell(self) -> Cell:
        cell = Cell()
        self._all.add(cell)
        try:
            await cell.start(self._locate(), self._recorder.file)
        except BaseException as error:
            cell.kill()
            self._all.discard(cell)
            if isinstance(error, OSError):  # no more processes, no more files
                raise CantStart(str(error)) from error
            raise
        return cell

    def _put_away(self, cell: Cell) -> None:
        if not cell.is_alive or cell.is_busy:
            cell.kill()
            self._all.discard(cell)
        elif cell.is_outdated or (cell.has_worked and self._is_too_large(cell)):
            self._end(cell)
        else:
            self._idle.append(cell)
            self._freed.set()
            cell.idle_since = time.monotonic()
            asyncio.get_running_loop().call_later(self._idle_for, self._end_if_idle, cell)

    def _is_too_large(self, cell: Cell) -> bool:
        if self._max_memory is None or (used := resident_memory(cell.pid)) <= self._max_memory:
            return False
        log.warning("process %d of isolated jobs uses %d MB and is replaced", cell.pid, used // 1_000_000)
        return True

    def _end_if_idle(self, cell: Cell) -> None:
        if cell in self._idle and time.monotonic() - cell.idle_since >= self._idle_for * 0.9:
            self._idle.remove(cell)
            self._end(cell)

    def _end(self, cell: Cell) -> None:
        """In good order."""
        self._leaving[cell] = task = asyncio.create_task(cell.leave(_LONGEST_END))
        task.add_done_callback(lambda _: self._has_left(cell))

    def _has_left(self, cell: Cell) -> None:
        del self._leaving[cell]
        self._all.discard(cell)

    async def _run_in(self, cell: Cell, run: Run) -> Outcome | None:
        """None if the process died before the job began, as one may that has been idle for a while."""
        # Its time begins now: starting a process is not the task's doing.
        now = time.monotonic()
        run.begin_at(now)
        self._recorder.started(run.slot, now, now + run.plan.hard, cell.pid)
        reminder = asyncio.get_running_loop().call_at(run.soft_at, run.time_out)
        killer = asyncio.get_running_loop().call_at(now + run.plan.hard + _KILL_AFTER, cell.kill)

        def throw(error: BaseException) -> None:
            cell.say(Throw(isinstance(error, SoftTimeout)))

        run.stopper = throw
        cell.is_busy = cell.has_worked = True
        has_begun = False
        cell.say(Begin(run.job, self._recorder.phase_of(run.slot)))
        try:
            while (text := await cell.hear()) is not None:
                match heard_from_process(text):
                    case Unknown():
                        cell.is_busy = False
                        cell.is_outdated = True
                        message = f"The code on disk has no task {run.job.task!r}."
                        return Unstarted(Failure(FailureKind.WAITED, "UnknownTask", message), is_unknown=True)
                    case Begun():
                        has_begun = True
                    case Progress(done, total, note):
                        self._surroundings.report_progress(run.job, done, total, note)
                    case Done(result_json):
                        cell.is_busy = False
                        return Completed(result_json)
                    case Committed():
                        cell.is_busy = False
                        run.is_taken = True
                        return Completed()
                    case Ended(verdict, failure, delay, is_outage, breaker):
                        cell.is_busy = False
                        if run.stop is Withdrawn or run.stop is Raised:  # it knows only that it was to stop
                            return run.outcome_of_stop()
                        return Raised(verdict, failure, delay, is_outage, breaker)
                    case Stopped():
                        cell.is_busy = False
                        return run.outcome_of_stop()
                    case Up() | Down():
                        pass
            if not has_begun:
                return None
            return await self._outcome_of_death(cell, run, time.monotonic() - now)
        finally:
            run.stopper = None
            reminder.cancel()
            killer.cancel()

    async def _outcome_of_death(self, cell: Cell, run: Run, ran: float) -> Outcome:
        status = await cell.wait()
        if ran >= run.plan.hard:
            return guilt.hard_timeout(ran, run.plan.hard)
        message = f"Its process {how_it_ended(status)}, and nothing else ran in it."
        return Crashed(Failure(FailureKind.CRASH, "ProcessCrashed", message), is_guilty=True)


def _never_begun(run: Run) -> Outcome:
    """It was stopped while its process was being started."""
    return Withdrawn(run.stop_reason) if run.stop is Withdrawn else Interrupted(has_started=False)


class CantStart(Exception):
    """A process for a job could not be started."""


class Cell:
    """One process."""

    def __init__(self) -> None:
        self._line: Line | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self.is_busy = False
        self.has_worked = False
        self.is_outdated = False
        """It has other code than its worker. The next one reads the files anew."""
        self.idle_since = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, app: str, recorder: int | None) -> None:
        ours, theirs = socket.socketpair()
        level = logging.getLevelName(logging.getLogger().level)
        settings = Settings(app, theirs.fileno(), recorder, os.getpid(), level)
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "holdfast.supervision.isolated",
                msgspec.json.encode(settings).decode(),
                pass_fds=(theirs.fileno(),) if recorder is None else (theirs.fileno(), recorder),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._line = await Line.open(ours)
        self._watch = asyncio.create_task(self._clear_up(self._process, self._line))
        try:
            async with asyncio.timeout(_LONGEST_START):
                text = await self._line.hear()
        except TimeoutError:
            raise CantStart(f"it was not ready after {_LONGEST_START:g} s") from None
        match None if text is None else heard_from_process(text):
            case Up():
                return
            case Down(reason):
                raise CantStart(reason)
            case _:
                raise CantStart(f"it {how_it_ended(await self.wait())}")

    def say(self, message: ToProcess) -> None:
        if self._line is not None:
            self._line.say(message)

    async def hear(self) -> bytes | None:
        return await self._line.hear() if self._line is not None else None

    def kill(self) -> None:
        if self.is_alive:
            kill_group(self.pid)

    async def leave(self, patience: float) -> None:
        """Let it end in good order; kill it if that takes too long."""
        self.say(Leave(patience))
        try:
            async with asyncio.timeout(patience):
                await self.wait()
        except TimeoutError:
            log.warning("the shutdown hooks of an isolated process took longer than %g s: it is killed", patience)
        finally:
            self.kill()
        await self.wait()

    async def _clear_up(self, process: asyncio.subprocess.Process, line: Line) -> None:
        """Once it has ended: end what it has started, and the line, which that may still have in hand."""
        try:
            await process.wait()
            kill_group(process.pid)
            await asyncio.sleep(_LAST_LINES)
        finally:
            line.close()  # also if this loop ends first

    async def wait(self) -> int:
        assert self._process is not None
        return await self._process.wait()
