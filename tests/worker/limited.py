"""The app of workers whose limits are tested. Its tasks write down what they do; see history.py."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast import Context, Holdfast, Limit, Order, Rate, Retry, State, TaskDefaults
from tests.worker.history import here
from tests.worker.tasks import NEVER, told

MOST: Final = 3
"""Of each key, at once."""
RATE: Final = 20
PER: Final = 2.0
"""Of each key, so many starts in so many seconds."""
SHORT: Final = 0.5
"""Seconds of the shortest window of which nearly all is used."""


def make_app(url: str | None = None) -> Holdfast:
    hf = Holdfast(url, defaults=TaskDefaults(timeout="2h", retry=Retry(4, base="10ms", cap="10ms")))

    @hf.task(bind=True, limit=Limit(MOST, "{key}"))
    async def limited(ctx: Context, key: str, seconds: float = 0.0) -> None:
        with told(ctx):
            await asyncio.sleep(seconds)

    @hf.task(bind=True, limit=Limit(MOST, "{key}", name="limited"))
    async def limited_stick(ctx: Context, key: str) -> None:
        """Ends only when it is run again. It shares the places of the other one."""
        await stick(ctx)

    @hf.task(bind=True, rate=Rate(RATE, PER, "{key}"))
    async def rated(ctx: Context, key: str) -> None:
        with told(ctx):
            await asyncio.sleep(0)

    @hf.task(bind=True, rate=Rate(RATE, SHORT, "{key}"))
    async def rated_shortly(ctx: Context, key: str) -> None:
        with told(ctx):
            await asyncio.sleep(0)

    @hf.task(bind=True, order="{key}")
    async def ordered(ctx: Context, key: str, failures: int = 0) -> None:
        """Fails at first, so many times."""
        with told(ctx):
            await asyncio.sleep(0.001)
            if ctx.attempt <= failures:
                raise ValueError("planned")

    @hf.task(bind=True, order=Order("{key}", name="ordered"))
    async def ordered_stick(ctx: Context, key: str) -> None:
        """Ends only when it is run again. It stands in the same order as the other one."""
        await stick(ctx)

    @hf.task(bind=True, fair="{tenant}")
    async def fair(ctx: Context, tenant: str) -> None:
        with told(ctx):
            await asyncio.sleep(0.001)

    @hf.task(bind=True, limit=Limit(MOST, "{tenant}"), order="{tenant} {key}", fair="{tenant}")
    async def combined(ctx: Context, tenant: str, key: str, failures: int = 0) -> None:
        with told(ctx):
            await asyncio.sleep(0.01)
            if ctx.attempt <= failures:
                raise ValueError("planned")

    @hf.on_startup
    async def born(state: State) -> None:
        here().write("startup")

    return hf


async def stick(ctx: Context) -> None:
    with told(ctx):
        is_first = len(here().read("start", ctx.job_id)) == 1
        await asyncio.sleep(NEVER if is_first else 0.0)


hf = make_app()
