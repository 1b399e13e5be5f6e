"""Real workers share their breakers through the database, whatever becomes of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import BreakerRecord, BreakerState, Holdfast, Job, JobState
from tests.servers.databases import Databases
from tests.worker.history import VARIABLE, History
from tests.worker.program import PATIENCE, Program, until

APP = """
import asyncio
import os
import time
from pathlib import Path
from holdfast import Context, Holdfast, Retry
from tests.worker.history import here

hf = Holdfast()
stripe = hf.breaker("stripe", failures=3, reset="1s")
bank = hf.breaker("bank", failures=1, reset="1s")
down, stuck = Path(os.environ["PROVIDER_DOWN"]), Path(os.environ["PROVIDER_STUCK"])

def call(ctx: Context) -> str:
    here().write("called", ctx.job_id, note=ctx.queue)
    if down.exists():
        raise ConnectionError("the provider is down")
    return "charged"

@hf.task(bind=True, breaker=stripe, retry=Retry(5, base="100ms", jitter=False))
async def charge(ctx: Context) -> str:
    answer = call(ctx)
    while stuck.exists():
        await asyncio.sleep(0.01)
    return answer

@hf.task(bind=True, breaker=stripe, timeout="1s", retry=Retry(5, base="100ms", jitter=False))
async def block(ctx: Context) -> str:
    answer = call(ctx)
    while stuck.exists():
        time.sleep(0.01)
    return answer

@hf.task(bind=True, breaker=hf.breaker("lax", failures=1, on=[ConnectionError]), timeout="1s", retry=Retry(2, base=0))
def block_laxly(ctx: Context) -> str:
    answer = call(ctx)
    while stuck.exists():
        try:
            time.sleep(0.01)
        except BaseException:
            pass
    return answer

@hf.task(bind=True, breaker=bank, isolation="process", retry=Retry(5, base="100ms", jitter=False))
def transfer(ctx: Context) -> str:
    with bank:
        return call(ctx)

@hf.task(bind=True, isolation="process", retry=Retry(5, base="100ms", jitter=False))
def audit(ctx: Context) -> str:
    with bank:
        return call(ctx)
"""


class Shop:
    """A client that has no code, and the switches of the provider."""

    def __init__(self, url: str, folder: Path, history: History) -> None:
        self.hf = Holdfast(url)
        self.history = history
        self.down = folder / "down"
        self.stuck = folder / "stuck"

    def worker(self, *options: str) -> Program:
        return Program(self.hf.url, self.history, "-p", "1", *options, app="breaking_shop:hf")

    def breaker(self, name: str = "stripe") -> BreakerRecord | None:
        return next((record for record in self.hf.breakers.list() if record.name == name), None)

    def is_open(self, name: str = "stripe") -> bool:
        record = self.breaker(name)
        return record is not None and record.state is not BreakerState.CLOSED

    def opened(self, times: int, name: str = "stripe") -> bool:
        record = self.breaker(name)
        return record is not None and record.openings >= times

    def enqueue(self, task: str, queue: str = "default", number: int = 1) -> list[Job[object]]:
        return [self.hf.send(task, {}, queue=queue) for _ in range(number)]

    def calls(self, queue: str | None = None) -> int:
        return sum(queue in (None, event.note) for event in self.history.read("called"))


@pytest.fixture(params=["sqlite", "postgres"])
def shop(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres: Databases,
    history: History,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shop]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if is_sqlite else postgres.create_migrated_database()
    shop = Shop(url, tmp_path, history)
    (tmp_path / "breaking_shop.py").write_text(APP)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("PROVIDER_DOWN", str(shop.down))
    monkeypatch.setenv("PROVIDER_STUCK", str(shop.stuck))
    monkeypatch.setenv(VARIABLE, str(history.path))
    yield shop
    shop.hf.close()
    if not is_sqlite:
        postgres.drop_database(url)


def test_what_one_worker_sees_fail_stops_the_other_and_only_probes_pass(shop: Shop) -> None:
    shop.down.touch()
    with shop.worker("--queue", "one=4") as one, shop.worker("--queue", "other=4") as other:
        one.says("SIGQUIT shows")
        other.says("SIGQUIT shows")
        until(lambda: shop.breaker() is not None, "the declaration")
        [first] = shop.enqueue("charge", "one")
        other.says("the breaker stripe is open after 3 failures, the last one ConnectionError")
        jobs = [*shop.enqueue("charge", "one", 10), *shop.enqueue("charge", "other", 10)]
        until(lambda: shop.opened(3), "two probes that fail")
        shop.down.unlink()
        assert [job.result(timeout=PATIENCE) for job in (first, *jobs)] == ["charged"] * 21
        record = shop.breaker()
        assert record is not None
        assert record.state is BreakerState.CLOSED
        assert shop.calls() == 3 + (record.openings - 1) + 21, "three failures, failed probes, and each job once"
        assert one.stop() == other.stop() == 0
    attempts = [job.record().attempt for job in (first, *jobs)]
    assert attempts == [4] + [1] * 20, "neither a wait nor a failed probe costs an attempt"


def test_a_worker_that_starts_while_a_breaker_is_open_runs_none_of_its_jobs(shop: Shop) -> None:
    with shop.worker() as first:
        until(lambda: shop.breaker() is not None, "the declaration")
        assert first.stop() == 0
    shop.hf.breakers.open("stripe", "1h")
    jobs = shop.enqueue("charge", number=20)
    with shop.worker():
        until(lambda: all(job.record().waits == 1 for job in jobs), "all of them to wait")
    assert shop.calls() == 0
    assert {(job.state(), job.record().attempt) for job in jobs} == {(JobState.PENDING, 0)}


def test_a_probe_that_is_killed_does_not_block_the_others(shop: Shop) -> None:
    shop.down.touch()
    with shop.worker() as worker:
        until(lambda: shop.breaker() is not None, "the declaration")
        [first] = shop.enqueue("charge")
        until(shop.is_open, "the failures")
        shop.stuck.touch()
        shop.down.unlink()
        until(lambda: shop.calls() >= 4, "a probe")
        record = shop.breaker()
        assert record is not None
        assert (record.state, record.probes) == (BreakerState.HALF_OPEN, 1)
        [prober] = {event.pid for event in shop.history.read("called")[3:]}
        shop.stuck.unlink()
        os.kill(prober, signal.SIGKILL)
        worker.says("killed by SIGKILL")
        record = until(lambda: _without_probes(shop.breaker()), "its permit to be free again")
        assert record.openings == 1, "nobody knows why it was killed, so that is no failure"
        jobs = [first, *shop.enqueue("charge", number=3)]
        assert [job.result(timeout=PATIENCE) for job in jobs] == ["charged"] * 4
        until(lambda: not shop.is_open(), "the breaker to close")  # which is told beside what became of the job


def _without_probes(record: BreakerRecord | None) -> BreakerRecord | None:
    return record if record is not None and not record.probes else None


def test_those_that_are_killed_because_their_time_is_over_count_as_failures(shop: Shop) -> None:
    shop.stuck.touch()
    with shop.worker() as worker:
        until(lambda: shop.breaker() is not None, "the declaration")
        [job] = shop.enqueue("block")
        worker.says("the breaker stripe is open after 3 failures, the last one HardTimeout")
        assert job.record().attempt == shop.calls() == 3
        until(lambda: shop.opened(2), "a probe that is killed too")
        record = until(lambda: _without_probes(shop.breaker()), "its permit to be free again")
        assert (record.failures, record.last_error) == (4, "HardTimeout")
        shop.stuck.unlink()
        assert job.result(timeout=PATIENCE) == "charged"
        assert job.record().attempt == 4, "what a probe has told is not charged to its job"
        until(lambda: not shop.is_open(), "the breaker to close")  # which is told beside what became of the job


def test_a_breaker_that_does_not_count_timeouts_hears_of_no_kills(shop: Shop) -> None:
    shop.stuck.touch()
    with shop.worker():
        until(lambda: shop.breaker("lax") is not None, "the declaration")
        [job] = shop.enqueue("block_laxly")
        until(lambda: job.state() is JobState.DEAD, "its second attempt")
        assert [attempt.failure.error_type for attempt in job.attempts() if attempt.failure] == ["HardTimeout"] * 2
        assert shop.opened(0, "lax")
        assert not shop.opened(1, "lax")


def test_a_reset_lets_go_on_at_once_what_waits(shop: Shop) -> None:
    with shop.worker():
        until(lambda: shop.breaker() is not None, "the declaration")
        shop.hf.breakers.open("stripe", "1h")
        jobs = shop.enqueue("charge", number=20)
        until(lambda: all(job.record().waits for job in jobs), "all of them to wait")
        assert shop.calls() == 0
        shop.hf.breakers.reset("stripe")
        assert [job.result(timeout=PATIENCE) for job in jobs] == ["charged"] * 20


def test_isolated_processes_share_breakers_too(shop: Shop) -> None:
    shop.down.touch()
    with shop.worker() as worker:
        until(lambda: shop.breaker() is not None, "the declaration")
        [transfer] = shop.enqueue("transfer")
        until(lambda: shop.is_open("bank"), "the failure of a task's own breaker")
        assert shop.calls() == 1
        [audit] = shop.enqueue("audit")
        until(lambda: shop.opened(2, "bank"), "a probe that fails")
        shop.down.unlink()
        assert [job.result(timeout=PATIENCE) for job in (transfer, audit)] == ["charged"] * 2
        assert not shop.is_open("bank")
        assert worker.stop() == 0
