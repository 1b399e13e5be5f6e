"""An app whose tasks write a ledger in their own transactions, for workers that are killed while they do."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time

from holdfast import Context, Holdfast
from tests.worker.history import here

_BEFORE = 0.4
_INSIDE = 0.02


def make_app(url: str | None = None) -> Holdfast:
    """The tasks, on any database."""
    hf = Holdfast(url)

    @hf.task(bind=True, delivery="transactional")
    async def follow(ctx: Context, entry: str) -> None:
        await ctx.tx.aexecute("insert into ledger values ($1)", entry)

    @hf.task(bind=True, delivery="transactional")
    async def write(ctx: Context, entry: str) -> None:
        await asyncio.sleep(random.uniform(0, _BEFORE))
        await ctx.tx.aexecute("insert into ledger values ($1)", entry)
        await follow.aenqueue(f"{entry} followed")
        await asyncio.sleep(random.uniform(0, _INSIDE))

    @hf.task(bind=True, delivery="transactional")
    def write_in_a_thread(ctx: Context, entry: str) -> None:
        time.sleep(random.uniform(0, _BEFORE))
        ctx.tx.execute("insert into ledger values ($1)", entry)
        follow.enqueue(f"{entry} followed")
        time.sleep(random.uniform(0, _INSIDE))

    @hf.task(bind=True, delivery="transactional")
    async def write_and_crash(ctx: Context, entry: str) -> None:
        """Kills its process, twice, when all is written and nothing is committed."""
        here().write("start", job=ctx.job_id)
        await ctx.tx.aexecute("insert into ledger values ($1)", entry)
        await follow.aenqueue(f"{entry} followed")
        if len(here().read("start", ctx.job_id)) <= 2:
            os.kill(os.getpid(), signal.SIGKILL)

    @hf.task(bind=True, delivery="transactional")
    def write_in_a_thread_and_crash(ctx: Context, entry: str) -> None:
        here().write("start", job=ctx.job_id)
        ctx.tx.execute("insert into ledger values ($1)", entry)
        follow.enqueue(f"{entry} followed")
        if len(here().read("start", ctx.job_id)) <= 2:
            os.kill(os.getpid(), signal.SIGKILL)

    return hf


hf = make_app()
