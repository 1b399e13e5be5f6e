"""Passing a breaker in code that is not a task's own beginning and end: a block in a task, a script, a web handler."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from holdfast.breaker import BreakerReport, Finding, Pass, Permit, Wait
from holdfast.context import current
from holdfast.engine import Engine
from holdfast.errors import RunningLoop
from holdfast.guard import Breaker
from holdfast.retry import Retry, classify
from holdfast.task import Task

Result = TypeVar("Result")

_ANY_FAILURE: Final = Retry()


class Doorkeeper:
    """Knows how the app's breakers stand, by its panel and its store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def is_around(self, breaker: Breaker) -> bool:
        context = current.get()
        task = None if context is None else self._engine.tasks.get(context.task)
        return isinstance(task, Task) and task.settings.breaker is breaker

    def look(self, breaker: Breaker) -> Pass | Wait | None:
        return self._engine.panel.look(breaker.name)

    async def enter(self, breaker: Breaker) -> Pass | Wait:
        return await self._engine.panel.enter(self._engine.store, breaker.name)

    def leave(self, breaker: Breaker, permit: Permit | None, error: BaseException | None) -> bool:
        panel = self._engine.panel
        finding = self._find(breaker, error)
        if permit is None and (
            finding is Finding.NOTHING or (finding is Finding.SUCCEEDED and not panel.is_doubtful(breaker.name))
        ):
            return False
        error_type = type(error).__name__ if finding is Finding.FAILED else None
        return panel.note(BreakerReport(breaker.name, finding, permit, error_type=error_type))

    def _find(self, breaker: Breaker, error: BaseException | None) -> Finding:
        if error is None:
            return Finding.SUCCEEDED
        verdict, _ = classify(error, _ANY_FAILURE, self._engine.clock.now())
        return Finding.FAILED if breaker.counts(error, verdict) else Finding.NOTHING

    async def flush(self) -> None:
        await self._engine.panel.flush(self._engine.store)

    def wait(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self._engine.wait(coroutine, "async with")

    def refuse_on_a_loop(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise RunningLoop("This block would block the running event loop. Write `async with` here.")
