"""The app of workers whose event loops are watched, once its hooks have run: what is imported before is not meant."""

from __future__ import annotations

import time

from holdfast import Context, Holdfast, State
from tests.worker import tasks
from tests.worker.watch import TOO_LONG, watch


def make_app(url: str | None = None) -> Holdfast:
    hf = tasks.make_app(url)

    @hf.on_startup
    def look(state: State) -> None:
        watch()

    @hf.task(bind=True, delivery="transactional")
    async def in_a_transaction(ctx: Context) -> None:
        await ctx.tx.afetch("select 1")

    @hf.task(bind=True, delivery="transactional")
    def in_a_transaction_of_a_thread(ctx: Context) -> None:
        ctx.tx.fetch("select 1")

    @hf.task
    async def compute() -> None:
        end = time.thread_time() + 1.1 * TOO_LONG
        while time.thread_time() < end:
            pass

    return hf


hf = make_app()
