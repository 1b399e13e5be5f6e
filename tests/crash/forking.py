"""Processes that fork while their writer is in the middle of a transaction."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Final

from holdfast import Holdfast
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.session import Operation
from holdfast.stores.sqlite.transaction import Transaction
from tests.crash.audit import QUEUE, TASK, ids, new_job
from tests.crash.journal import Journal
from tests.crash.line import Line, pair

_LONGEST_LIFE: Final = 300
_LONGEST_EXIT: Final = 5
_LONGEST_TRANSACTION: Final = 1.0
"""A fork may happen in the middle of it, or wait for its end: both are right."""


def fork_in_transaction(line: Line, path: str, child: str) -> None:
    """Fork in the middle of a transaction; the child stays, exits, or uses Holdfast itself."""
    app = Holdfast(f"sqlite:///{path}")

    @app.task(name=TASK, queue=QUEUE)
    def crash(key: str) -> None: ...

    crash.enqueue(ids.make().hex)
    store = app._engine.store
    assert isinstance(store, SqliteStore)
    reached, may_go_on = threading.Event(), threading.Event()

    def dawdle(it: Transaction) -> None:
        it.enqueue([new_job()])
        it.flush()
        reached.set()
        may_go_on.wait(_LONGEST_TRANSACTION)

    writing = threading.Thread(target=lambda: asyncio.run(store._writer.run(Operation(dawdle))))
    writing.start()
    reached.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(_LONGEST_LIFE)
        match child:
            case "stays":
                signal.pause()
            case "exits":
                sys.exit(0)  # with everything that Python does at its end
            case _:
                crash.enqueue(ids.make().hex)
                app.close()
                os._exit(0)
    line.say("forked", pid=pid)
    if child == "exits":
        # While the transaction is open: what the child does at its end must not reach it.
        line.say("child ended", status=os.waitpid(pid, 0)[1])
    line.hear("go")
    may_go_on.set()
    writing.join()
    if child == "enqueues":
        line.say("child ended", status=os.waitpid(pid, 0)[1])
    crash.enqueue(ids.make().hex)
    line.say("done")
    app.close()


def fork_when_idle(line: Line, path: str) -> None:
    """Enqueue, fork, let the child enqueue, close the parent's side, and let the child enqueue again."""
    app = Holdfast(f"sqlite:///{path}")

    @app.task(name=TASK, queue=QUEUE)
    def crash(key: str) -> None: ...

    crash.enqueue(ids.make().hex)
    ours, theirs = (Line(end) for end in pair())
    pid = os.fork()
    if pid == 0:
        signal.alarm(_LONGEST_LIFE)
        for _ in range(2):
            theirs.hear("go")
            crash.enqueue(ids.make().hex)
            theirs.say("done")
        os._exit(0)
    ours.say("go")
    ours.hear("done")
    app.close()
    ours.say("go")
    ours.hear("done")
    line.say("done", status=os.waitpid(pid, 0)[1])


def fork_while_busy(line: Line, path: str, journal: str, forks: int) -> None:
    """Fork again and again while threads enqueue; the children end as Python programs do."""
    app = Holdfast(f"sqlite:///{path}")

    @app.task(name=TASK, queue=QUEUE)
    def crash(key: str) -> None: ...

    is_over, log = threading.Event(), Journal(journal)

    def enqueue() -> None:
        key = ids.make().hex
        log.intend([key])
        crash.enqueue(key)
        log.ack([key])

    def enqueue_on() -> None:
        while not is_over.is_set():
            enqueue()

    threads = [threading.Thread(target=enqueue_on) for _ in range(3)]
    enqueue()
    for thread in threads:
        thread.start()
    statuses = []
    for _ in range(forks):
        pid = os.fork()
        if pid == 0:
            signal.alarm(_LONGEST_EXIT)
            sys.exit(0)
        statuses.append(os.waitpid(pid, 0)[1])
    is_over.set()
    for thread in threads:
        thread.join()
    line.say("done", statuses=statuses)
    app.close()
