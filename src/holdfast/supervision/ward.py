"""A child process, as its supervisor sees it."""

from __future__ import annotations

import asyncio
import logging
import math
import mmap
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.store import Beaten, Held
from holdfast.supervision.child import Settings
from holdfast.worker.messages import (
    Cancelled,
    Failed,
    Go,
    Hello,
    Line,
    Lost,
    Quiet,
    Ready,
    Stop,
    Taken,
    ToSupervisor,
    heard_by_supervisor,
)
from holdfast.worker.processes import kill_group
from holdfast.worker.recorder import Entry, Flight, read_flight, read_overdue, size_for
from holdfast.worker.slots import Slots
from holdfast.worker.station import slots_for

log = logging.getLogger("holdfast.worker")

_NO_WORKER: Final = UUID(int=0)
_LAST_LINES: Final = 0.5
"""Seconds for what a child has said before it died."""


class Stage(StrEnum):
    """How far a child has come."""

    STARTING = "starting"
    SPARE = "spare"
    """It has imported the app, and waits."""
    WORKING = "working"
    RETIRING = "retiring"
    """It claims nothing more, and what runs may take as long as it likes."""
    STOPPING = "stopping"
    GONE = "gone"


class Sentence(StrEnum):
    """Why a child was killed by its supervisor."""

    OVERDUE = "overdue"
    STUCK = "stuck"
    """Its event loop was blocked, and others waited."""
    LOST = "lost"
    """The store had taken it for dead."""
    HUNG = "hung"
    """It has never begun to work."""
    STOPPED = "stopped"
    """It had to go, for no fault of its jobs."""


class Ward:
    """One child, its line, and its flight recorder."""

    def __init__(self, app: str, slots: Slots, number: int, log_level: str, max_memory: int | None = None) -> None:
        self._app = app
        self._slots = slots
        self._log_level = log_level
        self._max_memory = max_memory
        self._memory: mmap.mmap | None = None
        self._line: Line | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._is_quiet = False
        self.number = number
        self.worker = _NO_WORKER
        self.stage = Stage.STARTING
        self.hello: Hello | None = None
        self.failure: str | None = None
        self.sentence: Sentence | None = None
        self.sentenced_at = 0.0
        self.stop_by = math.inf
        """It was told to be gone by then."""
        self.started_at = time.monotonic()
        self.put_to_work_at = 0.0
        self.working_since = 0.0
        self.warned_at = 0.0
        self.late_since: dict[Entry, float] = {}
        """Jobs that are overdue, and when that was first seen."""
        self.on_change: Callable[[], None] = lambda: None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def is_working(self) -> bool:
        return self.stage in (Stage.WORKING, Stage.RETIRING, Stage.STOPPING)

    @property
    def is_starting(self) -> bool:
        """It imports the app, or runs its hooks. What is on its way to be heard counts: it may have begun meanwhile."""
        if self.stage is Stage.STARTING:
            return True
        return self.stage is Stage.WORKING and not self.working_since and not self.flight().turned_at

    @property
    def was_told_to_stop(self) -> bool:
        return self.stop_by < math.inf

    # ── its life ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def live(self) -> int:
        """Start it, listen to it, and return its status once it has ended; OSError if it can't be started."""
        ours, theirs = socket.socketpair()
        recorder = _open_memory(size_for(slots_for(self._slots)))
        try:
            self._memory = mmap.mmap(recorder, 0)
            settings = Settings(
                app=self._app,
                slots=self._slots,
                recorder_slots=slots_for(self._slots),
                line=theirs.fileno(),
                recorder=recorder,
                number=self.number,
                supervisor=os.getpid(),
                max_memory=self._max_memory,
                log_level=self._log_level,
            )
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "holdfast.supervision.child",
                msgspec.json.encode(settings).decode(),
                pass_fds=(theirs.fileno(), recorder),
                stdin=asyncio.subprocess.DEVNULL,
                process_group=0,
            )
        except BaseException:
            self.stage = Stage.GONE
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(recorder)
        if self.sentence is not None:
            kill_group(self.pid)  # it was to go before it had come
        self._line = await Line.open(ours)
        listening = asyncio.create_task(self._listen(self._line))
        try:
            return await self._process.wait()
        finally:
            # What it has started must not outlive it: processes of isolated jobs, and what tasks ran by themselves.
            kill_group(self.pid)
            for entry in self.flight().running:
                if entry.pid:
                    kill_group(entry.pid)
            await asyncio.wait([listening], timeout=_LAST_LINES)
            self.stage = Stage.GONE
            listening.cancel()
            self._line.close()

    async def _listen(self, line: Line) -> None:
        while (text := await line.hear()) is not None:
            self._take(heard_by_supervisor(text))
            self.on_change()

    def _take(self, message: ToSupervisor) -> None:
        match message:
            case Hello():
                self.hello = message
                if self.stage is Stage.STARTING:
                    self.stage = Stage.SPARE
            case Ready():
                self.working_since = time.monotonic()
            case Lost():
                self._replace_as_lost()
            case Failed(reason):
                self.failure = reason

    # ── what it is told ──────────────────────────────────────────────────────────────────────────────────────────────

    def go(self, worker: UUID, code_since: float) -> None:
        self.worker = worker
        self.stage = Stage.WORKING
        self.put_to_work_at = time.monotonic()
        self._say(Go(worker, code_since))

    def retire(self) -> None:
        """Let it finish what it has, however long that takes."""
        if self.stage is Stage.WORKING:
            self.stage = Stage.RETIRING
            self._is_quiet = True
            self._say(Quiet())

    def stop(self, grace: float) -> None:
        """Let it finish. Nothing is lost if it does not."""
        if self.stage in (Stage.WORKING, Stage.RETIRING, Stage.SPARE):
            self.stage = Stage.SPARE if self.stage is Stage.SPARE else Stage.STOPPING
            self._is_quiet = True  # it says so to the store by itself, which is no request of anybody's
            self.stop_by = time.monotonic() + grace
            self._say(Stop(grace))
        elif self.stage is Stage.STARTING:
            self.kill(Sentence.STOPPED)

    def _replace_as_lost(self) -> None:
        log.warning("child %d was taken for dead: its jobs run elsewhere by now, so it is replaced", self.number)
        self.kill(Sentence.LOST)

    def kill(self, sentence: Sentence) -> None:
        """Now. The reason decides about its jobs."""
        if self.sentence is None and self.stage is not Stage.GONE:
            self.sentence = sentence
            self.sentenced_at = time.monotonic()
            if self._process is not None:
                kill_group(self.pid)

    def _say(self, message: Any) -> None:
        if self._line is not None:
            self._line.say(message)

    # ── what is known of it ──────────────────────────────────────────────────────────────────────────────────────────

    def flight(self) -> Flight:
        assert self._memory is not None
        return read_flight(self._memory)

    def may_be_overdue(self, now: float) -> bool:
        """Whether it is worth a closer look."""
        return self._memory is not None and self.is_working and read_overdue(self._memory) <= now

    # ── heartbeats ───────────────────────────────────────────────────────────────────────────────────────────────────

    def held(self) -> Held:
        return self.flight().held

    def beaten(self, answer: Beaten, held: Held) -> None:
        if not self.is_working:
            return
        if not answer.is_alive:
            self._replace_as_lost()
            return
        if answer.taken:
            self._say(Taken({id: held.jobs[id] for id in answer.taken}))
        if answer.cancelled:
            self._say(Cancelled(answer.cancelled))
        if answer.is_quiet and not self._is_quiet:
            self._is_quiet = True
            log.info("child %d was asked to be quiet: it claims nothing more", self.number)
            self._say(Quiet())

    def close(self) -> None:
        """Nobody reads its recorder any more."""
        if self._memory is not None:
            self._memory.close()


def _open_memory(size: int) -> int:
    """A file without a name, for memory that two processes share."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("holdfast-recorder", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, size)
    return file
