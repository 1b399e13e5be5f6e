"""What processes do that the tests start, stop and kill: `python -m tests.postgres.actor URL VERB …`.

Each says a line when it is ready, and then waits until its standard input is closed, or it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from uuid import UUID, uuid4

import time_machine

from holdfast.lifecycle import GiveBack
from holdfast.store import Held, NewWorker, Settlement
from holdfast.stores.postgres import PostgresStore
from tests.postgres.jobs import FAILURE, QUEUE, new


def say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts, default=str) + "\n")
    sys.stdout.flush()


async def work(store: PostgresStore, worker: str) -> None:
    """Register, claim what there is, and hold it."""
    await store.register(NewWorker(UUID(worker), "actor"))
    claimed = await store.claim(UUID(worker), uuid4(), {QUEUE: 10})
    say(claimed=[job.id for job in claimed])
    await _closed()


async def claim(store: PostgresStore, worker: str) -> None:
    """Claim for a worker that another process has registered."""
    say(ready=True)
    claimed = await store.claim(UUID(worker), uuid4(), {QUEUE: 10})
    say(claimed=[job.id for job in claimed])
    await _closed()


async def live(store: PostgresStore, worker: str, hours: str) -> None:
    """A day in the life of a worker whose clock is wrong by so many hours."""
    del hours
    await store.register(NewWorker(UUID(worker), "actor"))
    due, later, expiring, failing = (
        new(queue="due"),
        new(queue="later", delay=timedelta(minutes=30)),
        new(queue="expiring", expires_in=timedelta(minutes=30)),
        new(queue="failing"),
    )
    await store.enqueue([due, later, expiring, failing])
    tick = await store.tick()
    claimed = await store.claim(UUID(worker), uuid4(), {"due": 1, "later": 1, "expiring": 1, "failing": 1})
    (failed,) = [job for job in claimed if job.id == failing.id]
    back = GiveBack(timedelta(minutes=30), is_charged=True, failure=FAILURE)
    await store.settle([Settlement(failed.id, failed.token, back)])
    await store.beat(UUID(worker), Held({job.id: job.token for job in claimed if job.id != failed.id}))
    pruned = await store.prune()
    say(
        claimed=[job.queue for job in claimed],
        next_in=tick.next_in.total_seconds() if tick.next_in else None,
        expired=tick.expired,
        pruned=[pruned.jobs, pruned.keys, pruned.workers],
        ages=[sighting.age.total_seconds() for sighting in await store.sightings()],
    )
    await _closed()


async def _closed() -> None:
    await asyncio.to_thread(sys.stdin.read)


def main(url: str, verb: str, *values: str) -> None:
    act = {"work": work, "claim": claim, "live": live}[verb]
    hours = float(values[-1]) if verb == "live" else 0.0
    with time_machine.travel(timedelta(hours=hours), tick=True):
        asyncio.run(act(PostgresStore(url), *values))  # type: ignore[operator]


if __name__ == "__main__":
    main(*sys.argv[1:])
