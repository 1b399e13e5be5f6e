"""A real `holdfast worker`, as a subprocess, that a test starts, listens to, and kills."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from holdfast import Holdfast, Job
from holdfast.job import JobRecord, JobState
from holdfast.store import Store, WorkerRecord
from tests.worker.history import VARIABLE, History
from tests.worker.tasks import make_app

PATIENCE = 60.0
"""No wait in these tests lasts longer. It is a limit for hangs, not a measure of speed."""

_AT_ONCE = 5_000
_PROJECT = Path(__file__).parents[2]

Found = TypeVar("Found")


def until(look: Callable[[], Found | None], what: str, patience: float = PATIENCE) -> Found:
    """Look again and again until there is something, and return it."""
    deadline = time.monotonic() + patience
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


class Program:
    """Leaving its `with` block kills it, and everything that it has started."""

    def __init__(
        self,
        url: str,
        history: History,
        *options: str,
        app: str = "tests.worker.tasks:hf",
        folder: Path = _PROJECT,
        prelude: str = "",
        is_heard: bool = True,
    ) -> None:
        """`prelude` is run in the supervisor before its command. `is_heard`: somebody reads what it says."""
        environment = os.environ | {"HOLDFAST_URL": url, VARIABLE: str(history.path), "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{prelude}\nfrom holdfast.cli import main\nmain()", "worker", app, *options]
            if prelude
            else [sys.executable, "-m", "holdfast", "worker", app, *options],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        if is_heard:
            self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        family = self.family()
        self._process.kill()
        self._process.wait(PATIENCE)
        send(signal.SIGKILL, family)
        if self._reader.ident is None and self._process.stdout is not None:
            self._process.stdout.close()
        if error is not None:
            sys.stderr.write(f"── the worker said ──\n{self.output}\n")

    # ── what it says ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._news:
                    self._lines.append(line)
                    self._news.notify_all()

    @property
    def output(self) -> str:
        with self._news:
            return "".join(self._lines)

    def says(self, pattern: str, patience: float = PATIENCE) -> re.Match[str]:
        """Wait until it has said something, and return that."""
        deadline = time.monotonic() + patience
        with self._news:
            while (match := re.search(pattern, "".join(self._lines))) is None:
                assert self._news.wait(deadline - time.monotonic()), (
                    f"it did not say {pattern!r}, but:\n{''.join(self._lines[-100:])}"
                )
        return match

    # ── its end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def is_listening(self) -> None:
        """Wait until signals don't end it any more, but stop it in good order."""
        self.says("SIGQUIT shows what runs")

    def wait(self, patience: float = PATIENCE) -> int:
        """Its status, once it has ended and all that it said is read."""
        status = self._process.wait(patience)
        if self._reader.ident is not None:
            self._reader.join(5)
        return status

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        return self.wait()

    # ── its processes ────────────────────────────────────────────────────────────────────────────────────────────────

    def children(self) -> list[int]:
        return children_of(self.pid)

    def family(self) -> list[int]:
        """All its descendants."""
        return descendants_of(self.pid)


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    """To all of them that are still there: those before may have ended the others."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def descendants_of(pid: int) -> list[int]:
    found = []
    for child in children_of(pid):
        found += [child, *descendants_of(child)]
    return found


def is_alive(pid: int) -> bool:
    """A zombie, which only waits to be reaped, is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


class Client:
    """A producer beside the worker: enqueues, and looks."""

    def __init__(self, url: str, history: History, make: Callable[[str], Holdfast] = make_app) -> None:
        self.app: Holdfast = make(url)
        self.url = url
        self.history = history

    @property
    def store(self) -> Store:
        return self.app.engine.store

    def ask(self, coroutine: Any) -> Any:
        return self.app.engine.wait(coroutine, "await")

    def enqueue(self, task: str, options: dict[str, Any] | None = None, **arguments: Any) -> Job[Any]:
        found: Any = self.app.engine.tasks[task]
        job: Job[Any] = found.options(**options or {}).enqueue(**arguments)
        return job

    def enqueue_many(self, task: str, count: int, **arguments: Any) -> list[Job[Any]]:
        found: Any = self.app.engine.tasks[task]
        return self.app.enqueue_many(found.call(**arguments) for _ in range(count))

    def record(self, job: Job[Any] | UUID) -> JobRecord:
        return self.app.jobs.get(job if isinstance(job, UUID) else job.id)

    def records(self, jobs: Iterable[Job[Any]]) -> list[JobRecord]:
        """Of any number of jobs, of which a store is asked for some at a time."""
        found: list[JobRecord] = []
        ids = [job.id for job in jobs]
        for start in range(0, len(ids), _AT_ONCE):
            found += self.ask(self.store.get(ids[start : start + _AT_ONCE]))
        return found

    def ends_of(self, jobs: Sequence[Job[Any]], patience: float = PATIENCE) -> list[JobRecord]:
        """Their records, once all of them have ended."""
        left = list(jobs)

        def look() -> bool:
            left[:] = [job for job, record in zip(left, self.records(left), strict=True) if not record.state.is_final]
            return not left

        until(look, "the end of all jobs", patience)
        return self.records(jobs)

    def end_of(self, job: Job[Any], patience: float = PATIENCE) -> JobRecord:
        """Its record, once it has ended."""

        def look() -> JobRecord | None:
            record = job.record()
            return record if record.state.is_final else None

        return until(look, f"the end of {job}", patience)

    def started(self, job: Job[Any], times: int = 1, patience: float = PATIENCE) -> None:
        """Wait until its task has begun, so many times."""
        until(lambda: len(self.history.read("start", job.id)) >= times, f"start {times} of {job}", patience)

    def kinds(self, job: Job[Any]) -> list[str]:
        """Of the failures in its history."""
        return [attempt.failure.kind.value for attempt in job.attempts() if attempt.failure is not None]

    def workers(self) -> list[WorkerRecord]:
        """Those that are alive."""
        return [worker for worker in self.app.workers.list() if worker.dead_at is None]

    def working(self, number: int = 1) -> list[WorkerRecord]:
        """Wait until so many children are registered."""
        return until(lambda: found if len(found := self.workers()) >= number else [], f"{number} workers")

    def count(self, *states: JobState) -> int:
        return self.app.jobs.count(state=states) if states else self.app.jobs.count()

    def close(self) -> None:
        self.app.close()


@contextmanager
def client_of(url: str, history: History, make: Callable[[str], Holdfast] = make_app) -> Iterator[Client]:
    client = Client(url, history, make)
    yield client
    client.close()
