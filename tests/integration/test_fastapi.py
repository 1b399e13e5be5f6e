"""Holdfast inside FastAPI: its errors are answered as HTTP has them, and lifespans are kept in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from holdfast import (
    Holdfast,
    HoldfastError,
    IdempotencyConflict,
    InvalidPayload,
    JobNotFound,
    OutcomeUnknown,
    Queue,
    StoreUnavailable,
)
from holdfast.contrib.fastapi import answer_errors, lifespan
from holdfast.ids import Ids


@pytest.fixture
def hf(tmp_path: Path) -> Holdfast:
    return Holdfast(f"sqlite:///{tmp_path}/jobs.db", queues=[Queue("small", bound=1)])


def test_a_full_queue_is_503_with_the_time_to_come_back(hf: Holdfast) -> None:
    @hf.task(queue="small")
    async def task() -> None: ...

    web = FastAPI(lifespan=lifespan(hf, worker=False))
    answer_errors(web)

    @web.post("/")
    async def enqueue() -> None:
        await task.options(wait=0).aenqueue()

    with TestClient(web) as client:
        assert client.post("/").status_code == 200
        refused = client.post("/")
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert "is full" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(InvalidPayload(), 422), (IdempotencyConflict(), 409), (JobNotFound(), 404), (StoreUnavailable(), 503)],
)
def test_each_error_has_its_status(hf: Holdfast, error: HoldfastError, status: int) -> None:
    web = FastAPI(lifespan=lifespan(hf, worker=False))
    answer_errors(web)

    @web.get("/")
    async def fail() -> None:
        raise error

    with TestClient(web) as client:
        answer = client.get("/")
    assert (answer.status_code, answer.json()["title"]) == (status, type(error).__name__)


def test_an_unknown_outcome_is_503_and_says_with_which_ids_to_repeat(hf: Holdfast) -> None:
    ids = [Ids().make() for _ in range(12)]
    web = FastAPI(lifespan=lifespan(hf, worker=False))
    answer_errors(web)

    @web.post("/")
    async def enqueue() -> None:
        raise OutcomeUnknown("The connection was lost.", ids=ids)

    with TestClient(web) as client:
        answer = client.post("/")
    problem = answer.json()
    assert (answer.status_code, problem["title"]) == (503, "OutcomeUnknown")
    assert problem["ids"] == [str(id) for id in ids]
    assert problem["detail"].startswith("The connection was lost. ")
    assert f"repeated with the same ids: {ids[0]}, " in problem["detail"]
    assert problem["detail"].endswith(f"{ids[9]} and 2 more.")
    assert "Retry-After" not in answer.headers, "a request that is repeated as it was would have other ids"


def test_the_user_s_own_lifespan_is_around_the_worker(hf: Holdfast) -> None:
    happened: list[str] = []

    @asynccontextmanager
    async def own(_: FastAPI) -> AsyncIterator[dict[str, int]]:
        happened.append("opened")
        yield {"answer": 42}
        happened.append("closed")

    @hf.on_startup
    async def start(state: object) -> None:
        happened.append("worker started")

    @hf.on_shutdown
    async def stop(state: object) -> None:
        happened.append("worker stopped")

    with TestClient(FastAPI(lifespan=lifespan(hf, inside=own))):
        assert happened == ["opened", "worker started"]
    assert happened == ["opened", "worker started", "worker stopped", "closed"]
