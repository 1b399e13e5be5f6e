"""Nothing of a test gets out of its block, and nothing else gets in."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
import time_machine

from holdfast import ConfigurationError, Holdfast, InvalidURL, JobNotFound, State


def snapshot(hf: Holdfast) -> dict[str, object]:
    return dict(vars(hf.engine))


@pytest.fixture
def used(tmp_path: Path) -> Holdfast:
    """An app that has been used before, and has a job."""
    hf = Holdfast(f"sqlite:///{tmp_path / 'used.db'}")

    @hf.task
    def work() -> str:
        return "done"

    work.enqueue()
    hf.close()
    return hf


def test_afterwards_the_app_is_as_before(used: Holdfast) -> None:
    before = snapshot(used)
    with used.testing() as t:
        used.send("work")
        used.send("work")
        t.advance("1h")
        t.crash_worker("before_settle")
        t.run_all()
        assert used.jobs.count() == 2
        assert vars(used.engine).keys() == before.keys()
    assert snapshot(used) == before
    assert used.jobs.count(state="pending") == 1
    used.close()


@pytest.mark.parametrize("inline", [False, True])
def test_afterwards_the_app_is_as_before_also_after_an_exception(used: Holdfast, inline: bool) -> None:
    def fail() -> None:
        with used.testing(inline=inline) as t:
            used.send("work")
            t.run_all()
            raise ZeroDivisionError

    before = snapshot(used)
    with pytest.raises(ZeroDivisionError):
        fail()
    assert snapshot(used) == before


async def test_afterwards_the_app_is_as_before_in_async_code(used: Holdfast) -> None:
    async def fail() -> None:
        async with used.testing() as t:
            await used.asend("work")
            await t.arun_all()
            raise ZeroDivisionError

    before = snapshot(used)
    with pytest.raises(ZeroDivisionError):
        await fail()
    assert snapshot(used) == before


def test_afterwards_no_thread_is_left(hf: Holdfast) -> None:
    @hf.task
    def work() -> None: ...

    async def run_in_threads() -> None:
        await work.aenqueue()
        await t.arun_all()

    before = set(threading.enumerate())
    with hf.testing() as t:
        work.enqueue()
        t.run_all()
        asyncio.run(run_in_threads())
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
    assert set(threading.enumerate()) <= before


def test_a_job_of_the_block_is_gone_afterwards() -> None:
    hf = Holdfast("memory://")

    @hf.task
    def work() -> None: ...

    with hf.testing():
        job = work.enqueue()
    with pytest.raises(JobNotFound):
        job.state()


def test_each_block_begins_with_nothing(hf: Holdfast) -> None:
    @hf.task(idempotency_key="always")
    def work() -> None: ...

    for _ in range(2):
        with hf.testing() as t:
            t.assert_nothing_enqueued()
            assert not work.enqueue().existing


def test_tasks_that_are_imported_in_the_block_stay(hf: Holdfast) -> None:
    with hf.testing() as t:

        @hf.task
        def late() -> None: ...

        late.enqueue()
        assert t.run_all() == 1
    with hf.testing() as t:
        late.enqueue()
        assert t.run_all() == 1


def test_the_clock_begins_with_that_of_the_machine(hf: Holdfast) -> None:
    with time_machine.travel(datetime(2031, 3, 4, 5, 6, tzinfo=UTC), tick=False), hf.testing() as t:
        assert t.now == datetime(2031, 3, 4, 5, 6, tzinfo=UTC)
        assert "2031-03-04T05:06" in repr(t)


# ── one at a time ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_blocks_of_one_app_are_not_nested(hf: Holdfast) -> None:
    @hf.task
    def work() -> None: ...

    with hf.testing() as t:
        with pytest.raises(ConfigurationError, match=r"in use for this app already.* Leave that block first"):
            hf.testing().__enter__()
        work.enqueue()
        assert t.run_all() == 1
    with hf.testing():
        pass


def test_another_thread_is_refused_too(hf: Holdfast) -> None:
    refusals: list[str] = []

    def enter() -> None:
        try:
            with hf.testing():
                pass
        except ConfigurationError as error:
            refusals.append(str(error))

    with hf.testing():
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert len(refusals) == 1


def test_two_apps_are_tested_together(hf: Holdfast) -> None:
    other = Holdfast("memory://")

    @hf.task
    def here() -> None:
        there.enqueue()

    @other.task
    def there() -> None: ...

    with hf.testing() as t, other.testing() as u:
        here.enqueue()
        assert (t.run_all(), u.run_all()) == (1, 1)
        u.assert_enqueued(there)


def test_a_block_is_entered_once(hf: Holdfast) -> None:
    t = hf.testing()
    with t:
        pass
    with pytest.raises(ConfigurationError, match=r"Call hf\.testing\(\) anew"):
        t.__enter__()


async def test_an_app_whose_embedded_worker_works_is_not_tested() -> None:
    hf = Holdfast("memory://")
    async with hf.worker():
        with pytest.raises(ConfigurationError, match=r"hf\.worker\(\) is at work"):
            hf.testing().__enter__()
    with hf.testing():
        pass


def test_a_url_that_is_none_is_refused_at_once(hf: Holdfast) -> None:
    with pytest.raises(InvalidURL):
        hf.testing("redis://nowhere")
    with pytest.raises(InvalidURL):
        hf.testing("")


def test_hooks_may_use_the_app(hf: Holdfast) -> None:
    @hf.on_startup
    async def prepare(state: State) -> None:
        await hf.queues.apause("slow")

    @hf.task
    def work() -> None: ...

    with hf.testing() as t:
        work.options(queue="slow").enqueue()
        assert t.run_all() == 0
