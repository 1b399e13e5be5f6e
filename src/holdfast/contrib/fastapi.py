"""Holdfast in a FastAPI app: jobs run beside its requests, and a full queue is answered as HTTP has it.

    hf = Holdfast()
    web = FastAPI(lifespan=lifespan(hf))
    answer_errors(web)

Give the worker a process of its own (`holdfast worker shop:hf`, and `lifespan(hf, worker=False)` here) once tasks are
heavy: an embedded worker shares the event loop with the requests.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from holdfast.app import Holdfast
from holdfast.errors import (
    HoldfastError,
    IdempotencyConflict,
    InvalidPayload,
    JobNotFound,
    NotAllowedInState,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    StoreUnavailable,
    UnknownTask,
)
from holdfast.span import Span
from holdfast.worker.slots import DEFAULT_CONCURRENCY

_MOST_LISTED: Final = 10

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]


def lifespan(
    hf: Holdfast,
    *,
    worker: bool = True,
    queues: Mapping[str, int | None] | Sequence[str] | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    grace: Span = "30s",
    inside: Lifespan | None = None,
) -> Lifespan:
    """A lifespan that opens the database, runs an embedded worker, and closes both in good order.

    `inside` is a lifespan of your own: it is entered first and left last, so tasks can use what it has set up.
    """

    @asynccontextmanager
    async def whole(web: FastAPI) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            state = await stack.enter_async_context(inside(web)) if inside is not None else None
            await stack.enter_async_context(hf)
            if worker:
                await stack.enter_async_context(hf.worker(queues, concurrency=concurrency, grace=grace))
            yield state

    return whole


_STATUS: tuple[tuple[type[HoldfastError], int], ...] = (
    (QueueFull, 503),
    (StoreUnavailable, 503),
    (OutcomeUnknown, 503),
    (PayloadTooLarge, 413),
    (InvalidPayload, 422),
    (UnknownTask, 422),
    (IdempotencyConflict, 409),
    (NotAllowedInState, 409),
    (JobNotFound, 404),
)


def answer_errors(web: FastAPI) -> None:
    """Answer Holdfast's errors with the status that says it: a full queue is 503 with Retry-After, and so on."""
    for kind, status in _STATUS:
        web.add_exception_handler(kind, _answer(status))


def _answer(status: int) -> Callable[[Request, Exception], JSONResponse]:
    def answer(_: Request, error: Exception) -> JSONResponse:
        headers = {}
        problem: dict[str, Any] = {"type": "about:blank", "title": type(error).__name__}
        problem |= {"status": status, "detail": str(error)}
        if isinstance(error, OutcomeUnknown):
            # No Retry-After: whoever repeats the request as it was may enqueue the jobs a second time, under new ids.
            problem |= {"detail": _with_ids(error), "ids": [str(id) for id in error.ids]}
        elif status == 503:
            headers["Retry-After"] = str(max(1, math.ceil(getattr(error, "retry_after", 1.0))))
        return JSONResponse(problem, status, headers, media_type="application/problem+json")

    return answer


def _with_ids(error: OutcomeUnknown) -> str:
    """What happened, and how to repeat it without doing it twice."""
    if not error.ids:
        return str(error)
    listed = ", ".join(str(id) for id in error.ids[:_MOST_LISTED])
    more = f" and {len(error.ids) - _MOST_LISTED:,} more" if len(error.ids) > _MOST_LISTED else ""
    return f"{error} What is there already is found, not doubled, if it is repeated with the same ids: {listed}{more}."
