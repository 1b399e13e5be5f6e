"""An app that takes its time to be imported, and then in its hook: a test may do something meanwhile."""

from __future__ import annotations

import asyncio
import time

from holdfast import Holdfast, State
from tests.worker.history import here

here().write("import")
time.sleep(1)
hf = Holdfast()


@hf.on_startup
async def connect(state: State) -> None:
    here().write("hook")
    await asyncio.sleep(1)


@hf.task
def nothing() -> None: ...
