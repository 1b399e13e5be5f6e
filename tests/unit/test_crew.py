"""Threads that run calls: what is thrown appears in the call it was meant for, and never in another one."""

# ruff: noqa: ASYNC251  # it is the threads that sleep

from __future__ import annotations

import asyncio
import contextvars
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from holdfast.context import SoftTimeout
from holdfast.outcome import Snooze
from holdfast.worker.crew import Crew, Member, Work, nothing
from tests.crash.rounds import rounds

NEVER = float("inf")
PATIENCE = 20.0

name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


class Desk:
    """Gives work to a crew, and waits for what comes of it."""

    def __init__(self) -> None:
        self.crew = Crew(asyncio.get_running_loop())

    def start(
        self, call: Callable[[], Any], soft: float = NEVER, ended: Callable[[], None] = nothing
    ) -> tuple[Work, asyncio.Future[Any]]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answer(value: Any, error: BaseException | None) -> None:
            assert not future.done(), "it was answered twice"
            future.set_result((value, error))

        return self.crew.start(call, contextvars.copy_context(), answer, time.monotonic() + soft, ended), future

    async def run(self, call: Callable[[], Any], soft: float = NEVER) -> tuple[Any, BaseException | None]:
        _, future = self.start(call, soft)
        async with asyncio.timeout(PATIENCE):
            value, error = await future
            return value, error


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    desk.crew.close()


def spin_until(done: Callable[[], bool]) -> None:
    """Wait in Python, where an exception can appear."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def spin() -> None:
    spin_until(lambda: False)


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_a_call_returns_or_raises_comes_back(desk: Desk) -> None:
    assert await desk.run(lambda: 3) == (3, None)
    error = ValueError("planned")

    def fail() -> None:
        raise error

    assert await desk.run(fail) == (None, error)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit])
async def test_no_exception_ends_a_thread(desk: Desk, kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind

    before, _ = await desk.run(threading.get_ident)
    _, error = await desk.run(fail)
    assert type(error) is kind
    assert await desk.run(threading.get_ident) == (before, None)


async def test_calls_have_the_context_of_who_started_them(desk: Desk) -> None:
    name.set("somebody")
    assert await desk.run(name.get) == ("somebody", None)

    def change() -> None:
        name.set("somebody else")

    await desk.run(change)
    assert name.get() == "somebody"
    assert await desk.run(name.get) == ("somebody", None)


async def test_there_are_as_many_threads_as_there_was_work_at_once(desk: Desk) -> None:
    gate = threading.Barrier(5)

    def hold() -> int:
        gate.wait(PATIENCE)
        return threading.get_ident()

    futures = [desk.start(hold)[1] for _ in range(5)]
    threads = {(await future)[0] for future in futures}
    assert len(threads) == 5
    again = {(await desk.run(threading.get_ident))[0] for _ in range(20)}
    assert again <= threads


async def test_a_call_for_which_there_is_no_thread_has_to_wait_and_others_go_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, has_begun, may_end = threading.Thread.start, threading.Event(), threading.Event()

    def hold() -> str:
        has_begun.set()
        may_end.wait(PATIENCE)
        return "held"

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    _, error = await desk.run(lambda: 1)
    assert isinstance(error, Snooze), "not even the prompter could be started"

    monkeypatch.setattr(threading.Thread, "start", first)
    _, held = desk.start(hold)
    await asyncio.to_thread(has_begun.wait, PATIENCE)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    caplog.clear()
    for _ in range(3):
        work, refused = desk.start(lambda: 2)
        _, error = await refused
        assert isinstance(error, Snooze)
        assert "can't start new thread" in str(error)
        desk.crew.write_off(work)
    assert caplog.text.count("no thread can be started") == 1, "it is told once"
    may_end.set()
    assert await held == ("held", None)
    assert await desk.run(lambda: 3) == (3, None), "by the thread that there is"
    monkeypatch.setattr(threading.Thread, "start", first)
    gate = threading.Barrier(2)
    both = [desk.start(lambda: gate.wait(PATIENCE))[1] for _ in range(2)]
    assert sorted([(await each)[0] for each in both]) == [0, 1]


async def test_the_end_of_a_call_is_told_by_its_thread_although_the_event_loop_is_blocked(desk: Desk) -> None:
    order: list[str] = []
    has_ended = threading.Event()

    def ended() -> None:
        order.append("ended")
        has_ended.set()

    _, future = desk.start(lambda: order.append("called"), ended=ended)
    assert has_ended.wait(PATIENCE)
    assert not future.done()
    await future
    assert order == ["called", "ended"]


@pytest.mark.parametrize("what", ["_done", "_loop"])
async def test_a_call_that_ends_while_there_is_no_memory_to_tell_is_answered_when_there_is_some(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    short = Short(getattr(desk.crew, what))
    monkeypatch.setattr(desk.crew, what, short)
    assert await desk.run(lambda: 1) == (1, None)
    assert short.tries == 0
    assert await desk.run(lambda: 2) == (2, None), "and so is the next one"


class Short:
    """Says several times that there is no memory, when something is to be put into it or to be called there."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.tries = 3

    def __getattr__(self, name: str) -> Any:
        if name in ("append", "call_soon_threadsafe") and self.tries:
            self.tries -= 1
            raise MemoryError
        return getattr(self._real, name)

    def __len__(self) -> int:
        return len(self._real)


async def test_an_answer_that_fails_keeps_no_other_from_being_given(desk: Desk) -> None:
    told: list[str] = []
    reached = asyncio.Event()

    def fail(value: Any, error: BaseException | None) -> None:
        told.append("first")
        raise MemoryError

    def note(value: Any, error: BaseException | None) -> None:
        told.append("second")
        reached.set()

    failures: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, about: failures.append(about["exception"]))
    for answer in (fail, note):
        ended = threading.Event()
        desk.crew.start(lambda: None, contextvars.copy_context(), answer, NEVER, ended.set)
        assert ended.wait(PATIENCE), "while this loop waits, so both are told of together"
    async with asyncio.timeout(PATIENCE):
        await reached.wait()
    assert told == ["first", "second"]
    assert [type(failure) for failure in failures] == [MemoryError]


# ── soft timeouts ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_soft_timeout_appears_in_the_call(desk: Desk) -> None:
    cleaned: list[str] = []

    def work() -> None:
        try:
            spin()
        finally:
            cleaned.append("up")

    started = time.monotonic()
    _, error = await desk.run(work, 0.25)
    assert isinstance(error, SoftTimeout)
    assert cleaned == ["up"]
    assert 0.25 <= time.monotonic() - started < 5


async def test_who_swallows_it_goes_on(desk: Desk) -> None:
    def work() -> str:
        try:
            spin()
        except SoftTimeout:
            return "went on"
        return "never"

    assert await desk.run(work, 0.25) == ("went on", None)


async def test_the_earliest_comes_first_whatever_the_order_of_starting(desk: Desk) -> None:
    order: list[float] = []

    def wait(soft: float) -> Callable[[], None]:
        def work() -> None:
            try:
                spin()
            except SoftTimeout:
                order.append(soft)

        return work

    await asyncio.gather(*(desk.run(wait(soft), soft) for soft in (0.3, 0.1, 0.2)))
    assert order == [0.1, 0.2, 0.3]


async def test_it_comes_although_the_event_loop_is_blocked(desk: Desk) -> None:
    ended: list[float] = []

    def work() -> None:
        try:
            spin()
        except SoftTimeout:
            ended.append(time.monotonic())

    started = time.monotonic()
    _, future = desk.start(work, 0.25)
    time.sleep(1.0)
    await future
    assert ended[0] - started < 0.9


@pytest.mark.parametrize("thrown", [SoftTimeout("over"), asyncio.CancelledError("stop")])
async def test_what_was_thrown_before_the_call_began_appears_in_its_place(desk: Desk, thrown: BaseException) -> None:
    ran: list[int] = []
    work = Work(lambda: ran.append(1), contextvars.copy_context(), lambda value, error: None, NEVER)
    work.throw(thrown)
    Member(desk.crew).perform(work)
    assert (work.error, ran) == (thrown, [])


async def test_a_cancellation_appears_as_one(desk: Desk) -> None:
    begun = threading.Event()

    def work() -> None:
        begun.set()
        spin()

    job, future = desk.start(work)
    await asyncio.to_thread(begun.wait, PATIENCE)
    job.throw(asyncio.CancelledError("stop"))
    _, error = await future
    assert type(error) is asyncio.CancelledError


async def test_throwing_at_a_call_that_is_over_does_nothing(desk: Desk) -> None:
    job, future = desk.start(lambda: 1)
    assert await future == (1, None)
    for _ in range(3):
        job.throw(SoftTimeout())
        assert await desk.run(lambda: 2) == (2, None)


# ── never in another call ────────────────────────────────────────────────────────────────────────────────────────────


def _short(seconds: float) -> Callable[[], str]:
    def work() -> str:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            pass
        return "done"

    return work


@pytest.fixture
def _restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("_restless")
async def test_an_exception_never_leaks_into_the_next_call_of_the_same_thread(desk: Desk) -> None:
    """Thousands of exceptions that are thrown at about the moment at which the call returns anyway."""
    chance = random.Random("leak")
    thrown, survived = 0, 0
    for _ in range(rounds(1500)):
        work, future = desk.start(_short(chance.uniform(0, 0.0004)))
        time.sleep(chance.uniform(0, 0.0004))
        work.throw(SoftTimeout() if chance.random() < 0.7 else asyncio.CancelledError())
        value, error = await future
        assert (error is None and value == "done") or isinstance(error, asyncio.CancelledError)
        thrown += error is not None
        survived += error is None
        value, error = await desk.run(_short(0.00005))
        assert (value, error) == ("done", None)
    assert thrown > 20
    assert survived > 20
    assert len(desk.crew._members) == 1, "no thread has died of it"


_TRACED = """
import asyncio, contextvars, sys, time
from holdfast.worker.crew import Crew

async def main():
    loop = asyncio.get_running_loop()
    crew = Crew(loop)
    for number in range(20):
        future = loop.create_future()
        soft_at = time.monotonic() + (0.001 if number % 2 else 1000)
        call = lambda: time.sleep(0.002)
        crew.start(call, contextvars.copy_context(), lambda *answer: future.set_result(None), soft_at)
        await future
    crew.close()

asyncio.run(main())
sys.settrace(lambda *_: None)
print(sum(each for each in (1, 2)))
"""


async def test_threads_leave_nothing_behind_that_python_would_look_for_ever_after() -> None:
    """A debugger or a coverage tool beside them would hang in Python 3.11, with the lock in its hands."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _TRACED, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(PATIENCE):
            told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert told == b"3\n"


async def test_soft_timeouts_of_many_calls_at_once_reach_their_own(desk: Desk) -> None:
    """Each call that is to time out spins, each that is not ends before; nobody gets what was meant for another."""
    chance = random.Random("own")

    async def one(number: int) -> None:
        is_late = chance.random() < 0.5
        value, error = await desk.run(spin if is_late else _short(0.001), 0.02 if is_late else 30.0)
        if is_late:
            assert isinstance(error, SoftTimeout), number
        else:
            assert (value, error) == ("done", None), number

    for _ in range(rounds(10)):
        await asyncio.gather(*(one(number) for number in range(20)))


# ── threads that never come back ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_thread_that_is_written_off_is_replaced_and_its_answer_is_not_wanted(desk: Desk) -> None:
    gate, begun = threading.Event(), threading.Event()
    ended: list[int] = []

    def hold() -> int:
        begun.set()
        gate.wait(PATIENCE)
        return threading.get_ident()

    work, future = desk.start(hold, ended=lambda: ended.append(1))
    await asyncio.to_thread(begun.wait, PATIENCE)
    desk.crew.write_off(work)
    desk.crew.write_off(work)
    other, _ = await desk.run(threading.get_ident)
    gate.set()
    assert work.member is not None
    await asyncio.to_thread(work.member.thread.join, PATIENCE)
    assert not work.member.thread.is_alive(), "it ends once its call has ended"
    assert await desk.run(threading.get_ident) == (other, None)
    assert not future.done()
    assert ended == [], "what would be told is about another job by now"
    assert desk.crew._busy == 0
