"""Log records made inside a task carry its job, whoever has set up logging, and whatever they carry already."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from holdfast import Context, Holdfast


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(params=[None, "shop"], ids=["root", "logger"])
def handler(request: pytest.FixtureRequest) -> Iterator[_Kept]:
    """A handler that an app has set up, on the root or on a logger of its own."""
    kept, logger = _Kept(), logging.getLogger(request.param)
    logger.addHandler(kept)
    yield kept
    logger.removeHandler(kept)


async def test_handlers_of_an_app_with_a_worker_in_it_have_the_job_in_their_records(handler: _Kept) -> None:
    hf, log = Holdfast("memory://"), logging.getLogger("shop")

    @hf.task(bind=True)
    async def on_the_loop(ctx: Context) -> None:
        log.warning("from a task")

    @hf.task(bind=True)
    def in_a_thread(ctx: Context) -> None:
        log.warning("from a task", extra={"task": "mine", "attempt": "second"})

    async with asyncio.timeout(60), hf, hf.worker(), hf.worker():
        first, second = await on_the_loop.aenqueue(), await in_a_thread.aenqueue()
        await first.aresult()
        await second.aresult()
        log.warning("from elsewhere")
    by_job = {getattr(record, "job_id", None): record for record in handler.records if record.name == "shop"}
    assert by_job.keys() == {str(first.id), str(second.id), None}
    assert vars(by_job[str(first.id)])["task"] == "on_the_loop"
    assert vars(by_job[str(first.id)])["attempt"] == 1
    assert (vars(by_job[str(second.id)])["task"], vars(by_job[str(second.id)])["attempt"]) == ("mine", "second")
