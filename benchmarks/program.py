"""The limit program: the barest loop that claims, runs a no-op coroutine and settles, on the shipped statements.

python -m benchmarks.program URL
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from benchmarks.limit import Limit
from benchmarks.limits.postgres import PostgresLimit
from benchmarks.limits.sqlite import SqliteLimit
from benchmarks.loop import run

_BATCH = 1_000
_ARGUMENTS = 5
"""The column of claim.sql."""
_decoder = msgspec.json.Decoder(dict[str, int])


async def noop(number: int) -> None:
    """What a job does."""


async def work(url: str) -> None:
    limit = await open_limit(url)
    loop = asyncio.get_running_loop()
    while True:
        claim = await limit.claim(_BATCH)
        if not claim.jobs:
            await asyncio.sleep(0.05)
            continue
        timers = [loop.call_later(300, lambda: None) for _ in claim.jobs]
        results = await asyncio.gather(*(noop(**_decoder.decode(job[_ARGUMENTS])) for job in claim.jobs))
        for timer in timers:
            timer.cancel()
        msgspec.json.encode(results)
        await limit.settle(claim)


async def open_limit(url: str) -> Limit:
    if url.startswith("sqlite:"):
        return SqliteLimit(Path(url.removeprefix("sqlite:///")))
    return await PostgresLimit.open(url)


if __name__ == "__main__":
    run(work(sys.argv[1]))
