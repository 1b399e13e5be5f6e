"""Processes that claim and settle, and keep a journal of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from typing import Final
from uuid import UUID, uuid4

from holdfast.errors import StoreError
from holdfast.job import Failure, FailureKind, JobState
from holdfast.lifecycle import Bury, Complete, GiveBack, Transition
from holdfast.store import Filter, HintKind, NewWorker, Settled, Settlement
from holdfast.stores.sqlite import SqliteStore
from tests.crash.audit import QUEUE, key_of, new_job
from tests.crash.journal import Journal
from tests.crash.line import Line, pair

_LONGEST_LIFE: Final = 300
_FAILURE = Failure(FailureKind.ERROR, "Planned", "This was to fail.")


def entry(id: UUID, token: UUID, kind: str) -> str:
    return f"{id.hex}:{token.hex}:{kind}"


async def work(line: Line, path: str, journal: str, worker: str, seed: str) -> None:
    """Claim and settle until killed or until nothing is left. Says when the first settlement was acknowledged."""
    store, log, chance = SqliteStore(path), Journal(journal), random.Random(seed)
    await store.register(NewWorker(UUID(worker), "work"))
    line.say("ready")
    has_said = False
    while True:
        token = uuid4()
        claimed = await store.claim(UUID(worker), token, {QUEUE: chance.randint(1, 8)})
        if not claimed:
            break
        settlements = [Settlement(job.id, token, _end(chance, token)) for job in claimed]
        entries = [entry(each.id, token, type(each.transition).__name__) for each in settlements]
        log.intend(entries)
        answers = await store.settle(settlements)
        assert answers == [Settled.APPLIED] * len(answers), answers
        log.ack(entries)
        if not has_said:
            line.say("acked")
            has_said = True
    line.hear("nothing more")


def _end(chance: random.Random, token: UUID) -> Transition:
    number = chance.random()
    if number < 0.7:
        return Complete(f'"{token.hex}"')
    return GiveBack(is_charged=True, failure=_FAILURE) if number < 0.85 else Bury(_FAILURE)


async def mingle(line: Line, path: str, mine: int, total: int) -> None:
    """Enqueue some jobs, and complete whatever is there, until all jobs of all processes are completed."""
    store, worker = SqliteStore(path), uuid4()
    line.say("ready")
    line.hear("go")
    await store.register(NewWorker(worker, "mingle"))
    completed: list[str] = []
    async with asyncio.TaskGroup() as group:
        producing = group.create_task(_enqueue_some(store, mine))
        for _ in range(3):
            group.create_task(_complete_all(store, worker, total, completed))
    await store.depart(worker)
    await store.close()
    line.say("finished", enqueued=producing.result(), completed=completed)


async def _enqueue_some(store: SqliteStore, mine: int) -> list[str]:
    jobs = [new_job() for _ in range(mine)]
    cut = mine // 3
    for job in jobs[:cut]:
        await store.enqueue([job])
    await asyncio.gather(*(store.enqueue([job]) for job in jobs[cut : 2 * cut]))
    await store.enqueue(jobs[2 * cut :])
    return [key_of(job) for job in jobs]


async def _complete_all(store: SqliteStore, worker: UUID, total: int, completed: list[str]) -> None:
    async with store.changes([HintKind.WORK, HintKind.FINISHED]) as hints:
        while True:
            token = uuid4()
            claimed = await store.claim(worker, token, {QUEUE: 5})
            if claimed:
                answers = await store.settle([Settlement(job.id, token, Complete()) for job in claimed])
                assert answers == [Settled.APPLIED] * len(claimed), answers
                completed.extend(job.id.hex for job in claimed)
            elif await store.count(Filter(queue=QUEUE, states=frozenset({JobState.COMPLETED}))) >= total:
                return
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await anext(hints)


async def settle_when_told(line: Line, path: str, id: str, result: str) -> None:
    """Claim the one job there is; settle it when told."""
    store, worker, token = SqliteStore(path), uuid4(), uuid4()
    await store.register(NewWorker(worker, "settle"))
    (claimed,) = await store.claim(worker, token, {QUEUE: 1})
    assert claimed.id == UUID(id)
    line.say("ready")
    line.hear("go")
    assert await store.settle([Settlement(claimed.id, token, Complete(result))]) == [Settled.APPLIED]
    line.say("settled")
    line.hear("nothing more")


async def keep_ringing(line: Line, path: str, queue: str) -> None:
    """Enqueue to a queue several times a second, so that the bells of the others never stay silent for long."""
    store = SqliteStore(path)
    await store.open()
    line.say("ready")
    while True:
        await store.enqueue([new_job(queue=queue)])
        await asyncio.sleep(0.1)


def facts_of(text: str) -> tuple[UUID, UUID, str]:
    id, token, kind = text.split(":")
    return UUID(id), UUID(token), kind


async def mix(line: Line, path: str, journal: str) -> None:
    """Enqueue, claim and settle by turns: what must be on the disk at once, and what need not be."""
    store, log, worker = SqliteStore(path), Journal(journal), uuid4()
    await store.register(NewWorker(worker, "mix"))
    await store.queues()  # with a reader beside the writer, as in any real process
    line.say("ready")
    line.hear("go")
    for number in range(12):
        for size in (1, 20):
            jobs = [new_job() for _ in range(size)]
            keys = [key_of(job) for job in jobs]
            log.intend(keys)
            try:
                await store.enqueue(jobs)
            except StoreError:
                continue
            log.ack(keys)
            token = uuid4()
            claimed = await store.claim(worker, token, {QUEUE: 5})
            if number % 3 == 0:
                await store.settle([Settlement(job.id, token, Complete()) for job in claimed])
    line.say("done")
    line.hear("nothing more")


def _fork_sleeper() -> int:
    """A process that is a copy of this one, and has come to itself."""
    ours, theirs = pair()
    pid = os.fork()
    if pid == 0:
        signal.alarm(_LONGEST_LIFE)
        Line(theirs).say("forked")
        signal.pause()
    Line(ours).hear("forked")
    return pid


def _spawn_sleeper() -> int:
    """A process of another program, with all files that it may inherit."""
    return os.posix_spawn("/bin/sleep", ["sleep", str(_LONGEST_LIFE)], os.environ)


async def live(line: Line, path: str, worker: str, child: str = "") -> None:
    """Register a worker and live on; a child process, forked or spawned, lives beside it."""
    store = SqliteStore(path)
    await store.register(NewWorker(UUID(worker), "live"))
    pid = _fork_sleeper() if child == "forked" else _spawn_sleeper() if child == "spawned" else 0
    line.say("ready", child=pid)
    line.hear("depart")
    await store.depart(UUID(worker))
    line.say("departed")
    line.hear("nothing more")
