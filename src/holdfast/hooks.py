"""What an app wants done around its jobs: when a process starts and stops, around each run, and when a job is dead."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any

from holdfast.context import Context
from holdfast.errors import InvalidOption

Middleware = Callable[[Context], AbstractAsyncContextManager[Any]]
StateHook = Callable[..., Awaitable[None] | None]


class State(SimpleNamespace):
    """What `on_startup` has made, such as connection pools: one for each process, `ctx.state` in its tasks."""


class Hooks:
    """Registered by decorators, in the order of the code."""

    def __init__(self) -> None:
        self.startup: list[StateHook] = []
        self.shutdown: list[StateHook] = []
        self.middleware: list[Middleware] = []
        self.dead: list[tuple[str | None, str]] = []
        """Which task's dead letters, or everybody's, are told to which handler, by name."""
        self.make_handler: Callable[[Callable[..., Any]], Any] | None = None
        """Makes a task of a function; set by the app."""

    def is_handler(self, task: str) -> bool:
        """Whether this task is told of the dead letters of others."""
        return any(handler == task for _, handler in self.dead)

    def handlers_of(self, task: str) -> tuple[str, ...]:
        """Who is told of a task's dead letters. A handler's own are told to nobody, or they would go round."""
        if self.is_handler(task):
            return ()
        return tuple(handler for about, handler in self.dead if about in (None, task))

    async def start(self, state: State) -> None:
        for hook in self.startup:
            await _call(hook, state)

    async def stop(self, state: State) -> None:
        """In reverse. All of them are called; the first error is raised at the end."""
        errors: list[Exception] = []
        for hook in reversed(self.shutdown):
            try:
                await _call(hook, state)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def check_hook(hook: object, name: str) -> None:
    """A function that takes the state."""
    if not callable(hook):
        raise InvalidOption(f"@hf.{name} goes on a function that takes the state, such as `async def connect(state)`.")
    try:
        inspect.signature(hook).bind(State())
    except TypeError:
        raise InvalidOption(
            f"@hf.{name}: {getattr(hook, '__name__', hook)!s} must take one argument, the state."
        ) from None


def check_middleware(manager: object) -> None:
    if not callable(manager) or inspect.iscoroutinefunction(manager):
        raise InvalidOption(
            "@hf.middleware goes on a function that takes the Context and returns an async context manager. "
            "Put @contextlib.asynccontextmanager between the two."
        )


async def _call(hook: StateHook, state: State) -> None:
    answer = hook(state)
    if inspect.isawaitable(answer):
        await answer
