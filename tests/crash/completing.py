"""Processes that complete a job in a transaction of its task's own."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from holdfast.errors import HoldfastError
from holdfast.lifecycle import Complete, GiveBack
from holdfast.store import NewWorker, Settlement
from holdfast.stores.sqlite import SqliteStore
from tests.crash.audit import QUEUE, new_job
from tests.crash.line import Line


async def complete_when_told(line: Line, path: str) -> None:
    """Write an entry and enqueue a job, complete when told, and say how that went.

    If it went wrong, the job is given back under the same token when told again, as a worker does.
    """
    store, worker, token = SqliteStore(path, work_limit="60s"), uuid4(), uuid4()
    await store.register(NewWorker(worker, "complete"))
    (job,) = await store.claim(worker, token, {QUEUE: 1})
    work = await store.open_work(job.id, timedelta(seconds=60))
    await work.execute("insert into ledger values ($1)", [job.id.hex])
    await work.enqueue([new_job(queue="followers")])
    line.say("ready")
    line.hear("go")
    try:
        answer = await work.complete(Settlement(job.id, token, Complete()))
    except HoldfastError as error:
        line.say("done", error=type(error).__name__, answer=None)
    else:
        line.say("done", error=None, answer=answer.value)
    line.hear("give back")
    (answer,) = await store.settle([Settlement(job.id, token, GiveBack())])
    line.say("given back", answer=answer.value)
    line.hear("nothing more")
