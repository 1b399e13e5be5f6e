"""The app that the real workers under test run. Its tasks write down what they do; see history.py."""

# ruff: noqa: ASYNC251  # tasks that misbehave are what is tested

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from holdfast import (
    Cancel,
    Context,
    GiveUp,
    Holdfast,
    Retry,
    Snooze,
    SoftTimeout,
    State,
    TaskDefaults,
    TryAgain,
)
from tests.worker.history import here

NEVER = 3600.0
log = logging.getLogger("app")
hoarded: list[Any] = []


@contextlib.contextmanager
def told(ctx: Context) -> Iterator[str]:
    """Write down that a job starts, and that it ends, and with what. Yields a signature of this run alone."""
    facts: dict[str, Any] = {"job": ctx.job_id, "task": ctx.task, "attempt": ctx.attempt}
    signature = uuid4().hex
    here().write("start", note=signature, **facts)
    try:
        yield signature
    except BaseException as error:
        here().write("end", note=type(error).__name__, **facts)
        raise
    here().write("end", **facts)


def make_app(url: str | None = None) -> Holdfast:
    """All tasks, on any database."""
    hf = Holdfast(url, defaults=TaskDefaults(timeout="2h"))
    soon = Retry(3, base="10ms", cap="10ms")
    once = Retry(1)

    # ── on the loop ──────────────────────────────────────────────────────────────────────────────────────────────────

    @hf.task(bind=True)
    async def quick(ctx: Context, number: int = 0) -> int:
        with told(ctx):
            return number

    @hf.task(bind=True)
    async def sleep(ctx: Context, seconds: float) -> str:
        with told(ctx):
            await asyncio.sleep(seconds)
            return "slept"

    @hf.task(bind=True)
    async def sign(ctx: Context, seconds: float) -> str:
        """Its result tells which run it is of."""
        with told(ctx) as signature:
            await asyncio.sleep(seconds)
            return signature

    @hf.task(bind=True)
    async def stick(ctx: Context) -> str:
        """Ends only when it is run again."""
        with told(ctx):
            await asyncio.sleep(_long_at_first(ctx))
            return "unstuck"

    @hf.task(bind=True)
    async def starve(ctx: Context) -> str:
        """Leaves the event loop without memory for something, at first."""
        with told(ctx):
            if seconds := _long_at_first(ctx):
                asyncio.get_running_loop().call_soon(_find_no_memory)
            await asyncio.sleep(seconds)
            return "fed"

    @hf.task(bind=True, timeout="1s", retry=once)
    async def block(ctx: Context, seconds: float = NEVER) -> str:
        """Blocks the event loop, and with it all its neighbours."""
        with told(ctx):
            time.sleep(seconds)
            return "went on"

    @hf.task(bind=True)
    async def block_for_long(ctx: Context, seconds: float = NEVER) -> str:
        """The same, with a timeout that is far away."""
        with told(ctx):
            time.sleep(seconds)
            return "went on"

    @hf.task(bind=True, timeout="6s", retry=once)
    async def block_beside(ctx: Context, job: str, seconds: float = NEVER) -> str:
        """The same, from when another job runs."""
        while not here().read("start", UUID(job)):  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(0.01)
        with told(ctx):
            time.sleep(seconds)
            return "went on"

    @hf.task(bind=True)
    async def deaf(ctx: Context) -> None:
        with told(ctx):
            while True:
                with contextlib.suppress(BaseException):
                    await asyncio.sleep(0.01)

    @hf.task(bind=True, soft_timeout="999ms", timeout="1s", retry=once)
    async def nearly_late(ctx: Context) -> str:
        """Ends as soon as it can after 900 ms, and shortly before its time is over."""
        with told(ctx):
            await asyncio.sleep(0.9)
            return "in time"

    @hf.task(bind=True, timeout="1s", retry=once)
    async def swallow(ctx: Context) -> None:
        with told(ctx):
            while True:
                try:
                    await asyncio.sleep(0.01)
                except BaseException:
                    continue

    @hf.task(bind=True, soft_timeout="300ms", timeout="60s", retry=once)
    async def soft(ctx: Context) -> str:
        with told(ctx):
            try:
                async with asyncio.timeout(NEVER):
                    await asyncio.sleep(NEVER)
            except SoftTimeout:
                here().write("clean-up", job=ctx.job_id)
                raise
            return "never"

    @hf.task(bind=True, retry=soon)
    async def fail(ctx: Context, kind: str) -> Any:
        with told(ctx):
            return await _fail(ctx, kind)

    @hf.task(bind=True)
    async def answer(ctx: Context, kind: str) -> Any:
        with told(ctx):
            return {"object": object(), "huge": "x" * 10_000_000, "set": {1, 2}, "cycle": _cycle()}[kind]

    @hf.task
    async def hoard(megabytes: int) -> int:
        """Keeps memory for good, as a leak would."""
        hoarded.append(bytearray(megabytes * 1_000_000))
        return len(hoarded)

    @hf.task(bind=True)
    async def facts(ctx: Context) -> dict[str, Any]:
        log.warning("in the task")
        ctx.log.warning("through the context")
        return {
            "job_id": str(ctx.job_id),
            "task": ctx.task,
            "queue": ctx.queue,
            "attempt": ctx.attempt,
            "max_attempts": ctx.max_attempts,
            "idempotency_key": ctx.idempotency_key,
            "context": ctx.context,
            "state": ctx.state.made,
            "deadline": ctx.deadline is not None,
            "is_cancelled": ctx.is_cancelled,
            "pid": os.getpid(),
        }

    @hf.task(bind=True)
    async def heed(ctx: Context) -> None:
        """Stops only because its context says so."""
        with told(ctx):
            _note_cancellation(ctx)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(NEVER)
            _note_cancellation(ctx)
            ctx.raise_if_cancelled()

    @hf.task(bind=True, soft_timeout="1000s", timeout="2000s")
    async def time_left(ctx: Context) -> float:
        return _time_left(ctx)

    @hf.task(bind=True, retry=once)
    async def sour(ctx: Context) -> None:
        """Stops when it is told to, with another exception than the one that told it."""
        with told(ctx):
            await _raise_instead(asyncio.sleep(NEVER))

    # ── in a thread ──────────────────────────────────────────────────────────────────────────────────────────────────

    @hf.task(bind=True)
    def thread_sleep(ctx: Context, seconds: float) -> str:
        with told(ctx):
            _nap(seconds)
            return "slept"

    @hf.task(bind=True)
    def thread_sign(ctx: Context, seconds: float) -> str:
        with told(ctx) as signature:
            _nap(seconds)
            return signature

    @hf.task(bind=True)
    def thread_stick(ctx: Context) -> str:
        with told(ctx):
            _nap(_long_at_first(ctx))
            return "unstuck"

    @hf.task(bind=True, timeout="1s", retry=once)
    def thread_hang(ctx: Context) -> None:
        with told(ctx):
            while True:
                try:
                    _nap(NEVER)
                except BaseException:
                    continue

    @hf.task(bind=True, timeout="1s", retry=once)
    def hold_interpreter(ctx: Context) -> int:
        """One call of C code that never lets another thread run Python."""
        with told(ctx):
            return sum(range(10**15))

    @hf.task(bind=True)
    def thread_deaf(ctx: Context) -> None:
        with told(ctx):
            while True:
                with contextlib.suppress(BaseException):
                    _nap(NEVER)

    @hf.task(bind=True, timeout="2s", retry=once)
    def thread_in_time(ctx: Context) -> str:
        """Ends as soon as the event loop is blocked."""
        with told(ctx):
            return _when_blocked()

    @hf.task
    def thread_program() -> list[int]:
        return _end_programs()

    @hf.task(isolation="process")
    def alone_program() -> list[int]:
        return _end_programs()

    @hf.task(bind=True, soft_timeout="300ms", timeout="60s", retry=once)
    def thread_soft(ctx: Context) -> str:
        with told(ctx):
            try:
                _nap(NEVER)
            except SoftTimeout:
                here().write("clean-up", job=ctx.job_id)
                raise
            return "never"

    @hf.task(bind=True)
    def thread_facts(ctx: Context) -> dict[str, Any]:
        log.warning("in the thread")
        return {"job_id": str(ctx.job_id), "state": ctx.state.made, "thread": threading.current_thread().name}

    @hf.task(bind=True)
    def thread_heed(ctx: Context) -> None:
        with told(ctx):
            _note_cancellation(ctx)
            with contextlib.suppress(asyncio.CancelledError):
                _nap(NEVER)
            _note_cancellation(ctx)
            ctx.raise_if_cancelled()

    @hf.task(bind=True, soft_timeout="1000s", timeout="2000s")
    def thread_time_left(ctx: Context) -> float:
        return _time_left(ctx)

    @hf.task(bind=True, retry=once)
    def thread_sour(ctx: Context) -> None:
        with told(ctx):
            try:
                _nap(NEVER)
            except BaseException as cancelled:
                raise ConnectionError("lost in the middle of it") from cancelled

    @hf.task(bind=True, retry=soon)
    def devour_beside(ctx: Context, keeps: bool) -> None:
        """Takes all the memory that its process may have, and may keep it for good."""
        with told(ctx):
            hoard: list[Any] = []
            _, most = resource.getrlimit(resource.RLIMIT_AS)
            limit = _address_space() + (64 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (limit, most))
            if keeps:
                hoarded.append(hoard)
            size = 1 << 24
            while size > 16:
                try:
                    hoard.append(bytearray(size))
                except MemoryError:
                    size //= 2
            raise MemoryError

    # ── alone in a process ───────────────────────────────────────────────────────────────────────────────────────────

    @hf.task(bind=True, isolation="process")
    def alone_sleep(ctx: Context, seconds: float) -> str:
        with told(ctx):
            time.sleep(seconds)
            return "slept"

    @hf.task(bind=True, isolation="process", timeout="2s", retry=once)
    def alone_in_time(ctx: Context) -> str:
        with told(ctx):
            return _when_blocked()

    @hf.task(bind=True, delivery="at_most_once", timeout="2s")
    def once_in_time(ctx: Context) -> str:
        with told(ctx):
            return _when_blocked()

    @hf.task(isolation="process")
    def alone_enqueues() -> str:
        """Blocks, as `def` tasks may."""
        return str(hf.send("sleep", {"seconds": 0.01}).id)

    @hf.task(bind=True, isolation="process")
    def alone_sign(ctx: Context, seconds: float) -> str:
        with told(ctx) as signature:
            time.sleep(seconds)
            return signature

    @hf.task(bind=True, isolation="process")
    def alone_stick(ctx: Context) -> str:
        with told(ctx):
            time.sleep(_long_at_first(ctx))
            return "unstuck"

    @hf.task(bind=True, isolation="process")
    async def alone_async(ctx: Context, seconds: float) -> str:
        with told(ctx):
            await asyncio.sleep(seconds)
            return "slept"

    @hf.task(bind=True, isolation="process", timeout="1s", retry=once)
    def alone_hang(ctx: Context) -> None:
        with told(ctx):
            while True:
                try:
                    time.sleep(NEVER)
                except BaseException:
                    continue

    @hf.task(bind=True, isolation="process", timeout="1s", retry=once)
    def alone_family(ctx: Context) -> None:
        """Starts a program and waits for it, deaf to everything."""
        child = subprocess.Popen(["sleep", str(NEVER)])
        here().write("child", job=ctx.job_id, pid=child.pid)
        with told(ctx):
            while True:
                with contextlib.suppress(BaseException):
                    child.wait()

    @hf.task(bind=True, isolation="process", soft_timeout="300ms", timeout="60s", retry=once)
    def alone_soft(ctx: Context) -> str:
        with told(ctx):
            try:
                time.sleep(NEVER)
            except SoftTimeout:
                here().write("clean-up", job=ctx.job_id)
                raise
            return "never"

    @hf.task(bind=True, isolation="process", soft_timeout="300ms", timeout="60s", retry=once)
    async def alone_async_soft(ctx: Context) -> str:
        with told(ctx):
            try:
                await asyncio.sleep(NEVER)
            except SoftTimeout:
                here().write("clean-up", job=ctx.job_id)
                raise
            return "never"

    @hf.task(bind=True, isolation="process", retry=once)
    async def alone_sour(ctx: Context) -> None:
        with told(ctx):
            await _raise_instead(asyncio.sleep(NEVER))

    @hf.task(isolation="process")
    def alone_hoard(megabytes: int) -> int:
        hoarded.append(bytearray(megabytes * 1_000_000))
        return os.getpid()

    @hf.task(bind=True, isolation="process")
    def alone_facts(ctx: Context) -> dict[str, Any]:
        log.warning("alone")
        return {
            "job_id": str(ctx.job_id),
            "state": ctx.state.made,
            "deadline": ctx.deadline is not None,
            "pid": os.getpid(),
        }

    @hf.task(bind=True, isolation="process", retry=soon)
    def alone_fail(ctx: Context, kind: str) -> Any:
        with told(ctx):
            return asyncio.run(_fail(ctx, kind))

    @hf.task(bind=True, isolation="process", retry=soon)
    def devour(ctx: Context) -> int:
        """Uses more memory than it may."""
        with told(ctx):
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            hoard = []
            while True:
                hoard.append(bytearray(1 << 24))

    @hf.task(bind=True, delivery="at_most_once")
    def once_only(ctx: Context, seconds: float) -> str:
        with told(ctx):
            time.sleep(seconds)
            return "slept"

    @hf.task(bind=True, isolation="process")
    def alone_heed(ctx: Context) -> None:
        with told(ctx):
            _note_cancellation(ctx)
            with contextlib.suppress(asyncio.CancelledError):
                time.sleep(NEVER)
            _note_cancellation(ctx)
            ctx.raise_if_cancelled()

    @hf.task(bind=True, isolation="process", soft_timeout="1000s", timeout="2000s")
    def alone_time_left(ctx: Context) -> float:
        return _time_left(ctx)

    @hf.task(bind=True, isolation="process")
    def alone_progress(ctx: Context) -> None:
        for number in range(1, 11):
            ctx.progress(number, 10, f"step {number}")

    @hf.task(bind=True, isolation="process")
    def alone_flood(ctx: Context, reports: int, end: str) -> float:
        """Ends when there is such a file, and returns how many seconds that took."""
        began = time.monotonic()
        for number in range(reports):
            ctx.progress(number + 1)
        while not os.path.exists(end):
            time.sleep(0.01)
        return time.monotonic() - began

    # ── crashes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @hf.task(bind=True, retry=Retry(4, base="10ms", cap="10ms"))
    async def crash(ctx: Context, how: str) -> None:
        with told(ctx):
            await asyncio.sleep(0)
            _crash(how)
            await asyncio.sleep(NEVER)

    @hf.task(bind=True, isolation="process", retry=Retry(4, base="10ms", cap="10ms"))
    def alone_crash(ctx: Context, how: str) -> None:
        with told(ctx):
            _crash(how)

    # ── around the jobs ──────────────────────────────────────────────────────────────────────────────────────────────

    @hf.on_startup
    async def first(state: State) -> None:
        here().write("startup", note="first")
        state.made = "by the first hook"

    @hf.on_startup
    def second(state: State) -> None:
        here().write("startup", note=f"second after {state.made}")

    @hf.on_shutdown
    async def last(state: State) -> None:
        here().write("shutdown", note="registered first")

    @hf.on_shutdown
    def before(state: State) -> None:
        here().write("shutdown", note="registered last")

    return hf


def _when_blocked() -> str:
    while not [event for event in here().read("start") if event.task == "block_beside"]:
        time.sleep(0.01)
    return "in time"


def _note_cancellation(ctx: Context) -> None:
    here().write("is cancelled", job=ctx.job_id, note=str(ctx.is_cancelled))


def _find_no_memory() -> None:
    raise MemoryError


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _time_left(ctx: Context) -> float:
    assert ctx.deadline is not None
    return (ctx.deadline - datetime.now(UTC)).total_seconds()


async def _fail(ctx: Context, kind: str) -> Any:
    match kind:
        case "error":
            raise ValueError("planned")
        case "evil":
            raise _Evil
        case "liar":
            raise _Liar
        case "exit":
            sys.exit("not today")
        case "interrupt":
            raise KeyboardInterrupt
        case "cancelled":
            raise asyncio.CancelledError("by itself")
        case "give up":
            raise GiveUp("no use")
        case "cancel":
            raise Cancel("not wanted")
        case "snooze":
            if len(here().read("start", ctx.job_id)) < 4:
                raise Snooze("50ms")
        case "again":
            if ctx.attempt < 3:
                raise TryAgain("10ms")
        case "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(_raise(ValueError("one")))
                group.create_task(_raise(LookupError("two")))
        case _:
            raise AssertionError(kind)
    return ctx.attempt


def _end_programs() -> list[int]:
    """Start programs, end them with signals, and tell how they ended."""
    ends = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with subprocess.Popen(["sleep", "30"]) as program:
            program.send_signal(number)
            ends.append(program.wait())
    return ends


def _long_at_first(ctx: Context) -> float:
    return NEVER if len(here().read("start", ctx.job_id)) == 1 else 0.0


async def _raise_instead(waiting: Coroutine[Any, Any, None]) -> None:
    """As drivers and task groups do."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise_instead_in_a_group(waiting))


async def _raise_instead_in_a_group(waiting: Coroutine[Any, Any, None]) -> None:
    try:
        await waiting
    except asyncio.CancelledError as cancelled:
        raise ConnectionError("lost in the middle of it") from cancelled


async def _raise(error: Exception) -> None:
    raise error


class _Evil(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    def __repr__(self) -> str:
        raise SystemExit("nor this")


class _Liar(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise SystemExit("whoever asks")


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


def _crash(how: str) -> None:
    match how:
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit 0":
            os._exit(0)
        case "exit 3":
            os._exit(3)
        case "exit behind":
            asyncio.get_running_loop().call_soon(os._exit, 3)  # when it has ended, and before that is written down
        case "exit in a task":
            asyncio.get_running_loop().create_task(_exit())
        case _:
            raise AssertionError(how)


async def _exit() -> None:
    sys.exit(0)


def _nap(seconds: float) -> None:
    """Sleep in a way that an exception can reach."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)


@contextlib.asynccontextmanager
async def around(ctx: Context, name: str) -> AsyncIterator[None]:
    """A middleware that writes down when it is entered and left."""
    here().write(f"enter {name}", job=ctx.job_id)
    try:
        yield
    finally:
        here().write(f"leave {name}", job=ctx.job_id)


def with_middleware(hf: Holdfast) -> Holdfast:
    @hf.middleware
    def outer(ctx: Context) -> contextlib.AbstractAsyncContextManager[None]:
        return around(ctx, "outer")

    @hf.middleware
    def inner(ctx: Context) -> contextlib.AbstractAsyncContextManager[None]:
        return around(ctx, "inner")

    return hf


def with_haste(hf: Holdfast) -> Holdfast:
    """Its middleware has less patience than the worker."""

    @hf.middleware
    @contextlib.asynccontextmanager
    async def hurry(ctx: Context) -> AsyncIterator[None]:
        async with asyncio.timeout(0.1):
            yield

    return hf


hf = make_app()
hasty = with_haste(make_app())
wrapped = with_middleware(make_app())
