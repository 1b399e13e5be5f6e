"""Processes that enqueue, and keep a journal of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from holdfast import Holdfast
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.job import NewJob
from holdfast.stores.sqlite import SqliteStore
from tests.crash.audit import QUEUE, TASK, ids, key_of, new_job
from tests.crash.journal import Journal
from tests.crash.line import Line

Outcome = dict[str, Any]

CROWD = 100
SMALL_CROWD = 20
BULK = 100


class StoreProducer:
    """Enqueues into the store, one transaction or a hundred callers at a time."""

    def __init__(self, path: str, journal: Journal, kind: str) -> None:
        self.store = SqliteStore(path)
        self._journal = journal
        self._kind = kind
        self._runner = asyncio.Runner()
        self._calls: list[list[NewJob]] = []

    def open(self) -> None:
        self._runner.run(self.store.queues())  # with a reader beside the writer, as in any real process

    def send(self) -> list[Outcome]:
        match self._kind:
            case "one":
                self._calls = [[new_job()]]
            case "crowd":
                self._calls = [[new_job()] for _ in range(CROWD)]
            case "small crowd":
                self._calls = [[new_job()] for _ in range(SMALL_CROWD)]
            case _:
                self._calls = [[new_job(id) for id in ids.make_many(BULK)]]
        return self._runner.run(self._send_all(self._calls))

    def repeat(self) -> list[Outcome]:
        """The same jobs under the same ids, also those that went well."""
        repeated = [[new_job(job.id, is_repeat=True) for job in jobs] for jobs in self._calls]
        return self._runner.run(self._send_all(repeated))

    async def _send_all(self, calls: Sequence[Sequence[NewJob]]) -> list[Outcome]:
        return await asyncio.gather(*(self._send(jobs) for jobs in calls))

    async def _send(self, jobs: Sequence[NewJob]) -> Outcome:
        keys = [key_of(job) for job in jobs]
        self._journal.intend(keys)
        try:
            await self.store.enqueue(jobs)
        except HoldfastError as error:
            return _outcome(keys, error)
        self._journal.ack(keys)
        return _outcome(keys)


class AppProducer:
    """Enqueues as users do: with the synchronous API, ids unseen."""

    def __init__(self, path: str, journal: Journal, kind: str) -> None:
        self._app = Holdfast(f"sqlite:///{path}")
        self._journal = journal
        self._kind = kind
        self._failed: list[tuple[list[str], list[UUID]]] = []

        @self._app.task(name=TASK, queue=QUEUE)
        def crash(key: str) -> None: ...

        self._task = crash

    def open(self) -> None:
        self._app.queues.list()

    def send(self) -> list[Outcome]:
        count = BULK if self._kind == "app bulk" else 1
        return [self._send([id.hex for id in ids.make_many(count)], [])]

    def repeat(self) -> list[Outcome]:
        """As the errors say: with the ids they carry, or anew when nothing was written."""
        failed, self._failed = self._failed, []
        return [self._send(keys, known) for keys, known in failed]

    def _send(self, keys: list[str], known: list[UUID]) -> Outcome:
        self._journal.intend(keys)
        tasks = [self._task.options(id=id) for id in known] or [self._task.options()] * len(keys)
        try:
            if self._kind == "app bulk":
                self._app.enqueue_many([task.call(key) for task, key in zip(tasks, keys, strict=True)])
            else:
                tasks[0].enqueue(keys[0])
        except HoldfastError as error:
            self._failed.append((keys, error.ids if isinstance(error, OutcomeUnknown) else []))
            return _outcome(keys, error)
        self._journal.ack(keys)
        return _outcome(keys)


def _outcome(keys: list[str], error: HoldfastError | None = None) -> Outcome:
    if error is None:
        return {"keys": keys, "error": None}
    unknown = [id.hex for id in error.ids] if isinstance(error, OutcomeUnknown) else []
    return {"keys": keys, "error": type(error).__name__, "message": str(error), "ids": unknown}


def _producer(path: str, journal: str, kind: str) -> StoreProducer | AppProducer:
    return (AppProducer if kind.startswith("app") else StoreProducer)(path, Journal(journal), kind)


def produce(line: Line, path: str, journal: str, kind: str) -> None:
    """Enqueue until killed. Says when it begins, and when the first jobs were acknowledged."""
    producer = _producer(path, journal, kind)
    line.say("ready")
    word: str | None = "acked"
    while True:
        failed = [outcome for outcome in producer.send() if outcome["error"]]
        assert not failed, failed
        if word:
            line.say(word)
            word = None


def produce_once(
    line: Line, path: str, journal: str, kind: str, times: int = 1, is_open: bool = True, is_warm: bool = False
) -> None:
    """Enqueue when told to, and say how it went; then again, as often as told."""
    producer = _producer(path, journal, kind)
    if is_open:
        producer.open()
    if is_warm:
        producer.send()
    line.say("ready")
    line.hear("go")
    line.say("done", outcomes=[outcome for _ in range(times) for outcome in producer.send()])
    while True:
        line.hear("repeat")
        line.say("done", outcomes=producer.repeat())
