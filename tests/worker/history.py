"""What tasks did, in the order in which they did it: an append-only file that survives the kill of whoever writes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from uuid import UUID

import msgspec

VARIABLE = "HOLDFAST_TEST_HISTORY"
"""Names the file, for the processes of a worker."""
KILL = "kill"
"""What a test writes down with the pid of a process that it is about to kill, and with its fate."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened. `at` is of the machine's monotonic clock, the same for all processes."""

    what: str
    job: UUID | None = None
    task: str = ""
    attempt: int = 0
    note: str = ""
    pid: int = 0
    at: float = 0.0
    time: float = 0.0


class History:
    """One file, any number of writers."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.touch()

    def write(
        self, what: str, job: UUID | None = None, task: str = "", attempt: int = 0, note: str = "", pid: int = 0
    ) -> None:
        event = Event(what, job, task, attempt, note, pid or os.getpid(), time.monotonic(), time.time())
        # One write: a kill leaves a line whole or away, and lines of several writers don't mix.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.write(file, msgspec.json.encode(event) + b"\n")
        finally:
            os.close(file)

    def read(self, what: str | None = None, job: UUID | None = None) -> list[Event]:
        whole, _, _ = self.path.read_bytes().rpartition(b"\n")  # the last line may be on its way
        events = [msgspec.json.decode(line, type=Event) for line in whole.splitlines()]
        return [event for event in events if what in (None, event.what) and job in (None, event.job)]


def here() -> History:
    """That of this process."""
    return History(os.environ[VARIABLE])
