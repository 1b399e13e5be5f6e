"""Driving a coroutine: what is thrown appears at its await, however it waits, and leaves no trace behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from holdfast.context import SoftTimeout
from holdfast.worker.driver import Driven

SLOT = 7
Waits = Callable[[], Awaitable[Any]]


class Drive:
    """A coroutine that is driven in a task of its own, as the executor does it."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.on_cpu = memoryview(bytearray(4)).cast("i")
        self.on_cpu[0] = -1
        self.driven: Driven[Any] | None = None
        self.left = -1
        """How many cancellations the task still counts at the end."""
        self._coroutine = coroutine
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self.driven = Driven(self._coroutine, self.on_cpu, SLOT, task)
        try:
            return await self.driven
        finally:
            self.left = task.cancelling()

    def throw(self, error: BaseException) -> None:
        assert self.driven is not None
        self.driven.throw(error)

    async def end(self) -> Any:
        async with asyncio.timeout(10):
            return await self.task


async def _settle() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


# ── ways to wait ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def plain() -> None:
    await asyncio.Event().wait()


async def nested() -> None:
    await asyncio.create_task(asyncio.Event().wait())


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(plain())
        group.create_task(plain())


async def in_the_body_of_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(plain())
        await plain()


async def in_a_group_that_fails() -> None:
    async def fail() -> None:
        raise ValueError("planned")

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        await plain()


async def within_a_timeout() -> None:
    async with asyncio.timeout(1000):
        await plain()


async def gathered() -> None:
    await asyncio.gather(plain(), plain())


async def shielded() -> None:
    await asyncio.shield(asyncio.create_task(asyncio.sleep(0.2)))


async def waiting_for_one_of_two() -> None:
    await asyncio.wait([asyncio.create_task(asyncio.sleep(0.2))], return_when=asyncio.FIRST_COMPLETED)


async def in_a_thread() -> None:
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    await plain()


WAYS: list[Waits] = [
    plain,
    nested,
    in_a_group,
    within_a_timeout,
    gathered,
    shielded,
    waiting_for_one_of_two,
    in_a_thread,
]


@pytest.mark.parametrize("wait", WAYS)
async def test_a_soft_timeout_appears_however_the_task_waits(wait: Waits) -> None:
    seen: list[BaseException] = []

    async def work() -> None:
        try:
            await wait()
        except BaseException as error:
            seen.append(error)
            raise

    drive = Drive(work())
    await _settle()
    thrown = SoftTimeout("over")
    drive.throw(thrown)
    with pytest.raises(SoftTimeout):
        await drive.end()
    assert seen == [thrown]
    assert drive.left == 0
    await asyncio.sleep(0.2)  # what was shielded ends


@pytest.mark.parametrize("wait", WAYS)
async def test_a_cancellation_of_the_task_passes_as_itself(wait: Waits) -> None:
    seen: list[type[BaseException]] = []

    async def work() -> None:
        try:
            await wait()
        except BaseException as error:
            seen.append(type(error))
            raise

    drive = Drive(work())
    await _settle()
    drive.task.cancel("by somebody")
    with pytest.raises(asyncio.CancelledError):
        await drive.end()
    assert seen == [asyncio.CancelledError]
    assert drive.task.cancelled()
    await asyncio.sleep(0.2)


async def test_in_the_body_of_a_group_it_may_come_wrapped_in_a_group() -> None:
    """Python 3.11 lets nothing but CancelledError itself pass as a cancellation, and no class derived from it."""
    drive = Drive(in_the_body_of_a_group())
    await _settle()
    drive.throw(SoftTimeout())
    seen: list[BaseException] = []
    try:
        await drive.end()
    except* SoftTimeout as group:
        seen.extend(group.exceptions)
    assert [type(error) for error in seen] == [SoftTimeout]
    assert drive.left == 0


async def test_neighbours_in_a_group_are_cleaned_up() -> None:
    cleaned: list[str] = []

    async def part(name: str) -> None:
        try:
            await plain()
        finally:
            await asyncio.sleep(0)
            cleaned.append(name)

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(part("a"))
            group.create_task(part("b"))

    drive = Drive(work())
    await _settle()
    drive.throw(SoftTimeout())
    with pytest.raises(SoftTimeout):
        await drive.end()
    assert sorted(cleaned) == ["a", "b"]


# ── afterwards ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_who_swallows_a_soft_timeout_goes_on_as_if_nothing_had_happened() -> None:
    async def work() -> str:
        try:
            await plain()
        except SoftTimeout:
            pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await plain()
        with pytest.raises(ExceptionGroup):
            await in_a_group_that_fails()
        return "went on"

    drive = Drive(work())
    await _settle()
    drive.throw(SoftTimeout())
    assert await drive.end() == "went on"
    assert drive.left == 0


async def test_what_is_thrown_twice_before_the_task_could_run_appears_once_and_leaves_nothing() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await plain()
        except asyncio.CancelledError as error:
            seen.append(str(error))
        # Counts of cancellations that are left over would make a group believe that it is cancelled from outside.
        with pytest.raises(ExceptionGroup):
            await in_a_group_that_fails()

    drive = Drive(work())
    await _settle()
    drive.throw(SoftTimeout("first"))
    drive.throw(asyncio.CancelledError("second"))
    await drive.end()
    assert seen == ["second"]
    assert drive.left == 0


async def test_what_was_swallowed_by_what_the_task_waits_for_appears_all_the_same() -> None:
    async def stubborn() -> str:
        try:
            await plain()
        except asyncio.CancelledError:
            return "swallowed"
        return "never"

    async def work() -> None:
        await asyncio.create_task(stubborn())

    drive = Drive(work())
    await _settle()
    drive.throw(SoftTimeout())
    with pytest.raises(SoftTimeout):
        await drive.end()
    assert drive.left == 0


async def test_a_failure_while_cleaning_up_is_kept_as_the_context() -> None:
    async def clumsy() -> None:
        try:
            await plain()
        finally:
            raise ValueError("while cleaning up")

    async def work() -> None:
        await asyncio.create_task(clumsy())

    drive = Drive(work())
    await _settle()
    drive.throw(SoftTimeout())
    with pytest.raises(SoftTimeout) as caught:
        await drive.end()
    assert isinstance(caught.value.__context__, ValueError)
    assert drive.left == 0


async def test_a_later_cancellation_of_something_else_is_not_taken_for_a_soft_timeout() -> None:
    async def work() -> str:
        try:
            await plain()
        except SoftTimeout:
            other = asyncio.create_task(plain())
            await asyncio.sleep(0)
            other.cancel()
            try:
                await other
            except asyncio.CancelledError as error:
                return type(error).__name__
        return "nothing"

    drive = Drive(work())
    await _settle()
    drive.throw(SoftTimeout())
    assert await drive.end() == "CancelledError"


async def test_throwing_at_a_coroutine_that_has_ended_does_nothing() -> None:
    async def work() -> int:
        return 3

    drive = Drive(work())
    assert await drive.end() == 3
    drive.throw(SoftTimeout())
    assert drive.left == 0


async def test_it_can_be_thrown_at_again_and_again() -> None:
    async def work() -> int:
        met = 0
        while met < 5:
            try:
                await plain()
            except SoftTimeout:
                met += 1
        return met

    drive = Drive(work())
    for _ in range(5):
        await _settle()
        drive.throw(SoftTimeout())
    assert await drive.end() == 5
    assert drive.left == 0


async def test_a_timeout_of_the_tasks_own_and_a_soft_timeout_at_once() -> None:
    """Whichever appears, one of them does, and the other leaves nothing behind."""

    async def work() -> None:
        async with asyncio.timeout(0.01):
            await plain()

    drive = Drive(work())
    await _settle()
    await asyncio.to_thread(lambda: None)
    loop = asyncio.get_running_loop()
    loop.call_at(loop.time() + 0.01, drive.throw, SoftTimeout())
    with pytest.raises((SoftTimeout, TimeoutError)):
        await drive.end()
    assert drive.left == 0


# ── results and the CPU ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), StopAsyncIteration(), GeneratorExit()])
async def test_exceptions_leave_as_they_are(error: BaseException) -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)) as caught:
        await _drive_here(work())
    assert caught.value is error


async def _drive_here(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Not in a task of its own, in which a SystemExit would end the loop."""
    on_cpu = memoryview(bytearray(4)).cast("i")
    try:
        return await Driven(coroutine, on_cpu, SLOT, asyncio.current_task())
    finally:
        assert on_cpu[0] == -1


async def test_the_slot_is_on_the_cpu_exactly_while_the_coroutine_runs() -> None:
    seen: list[int] = []
    gates = [asyncio.Event() for _ in range(3)]

    async def work() -> str:
        seen.append(drive.on_cpu[0])
        for gate in gates:
            await gate.wait()
            seen.append(drive.on_cpu[0])
        try:
            await plain()
        except SoftTimeout:
            seen.append(drive.on_cpu[0])
        await asyncio.gather(beside(), beside())
        return "done"

    async def beside() -> None:
        assert drive.on_cpu[0] == -1, "a task of its own is not this coroutine"

    drive = Drive(work())
    for gate in gates:
        await _settle()
        assert drive.on_cpu[0] == -1
        gate.set()
    await _settle()
    assert drive.on_cpu[0] == -1
    drive.throw(SoftTimeout())
    assert await drive.end() == "done"
    assert drive.on_cpu[0] == -1
    assert seen == [SLOT] * 5
