"""The process of isolated jobs: runs one at a time, in its main thread.

python -m holdfast.supervision.isolated SETTINGS
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.app import Holdfast
from holdfast.context import Context, SoftTimeout, current
from holdfast.hooks import State
from holdfast.job import ClaimedJob
from holdfast.loading import CantLoad, load_app
from holdfast.outcome import Completed, Interrupted, Outcome, Raised
from holdfast.supervision.bulletin import Bulletin
from holdfast.worker import processes
from holdfast.worker.conclusion import conclude, opened_by, transactional_context
from holdfast.worker.driver import Driven
from holdfast.worker.isolation import (
    Begin,
    Begun,
    Committed,
    Done,
    Down,
    Ended,
    Leave,
    Progress,
    Settings,
    Stopped,
    Throw,
    Unknown,
    Up,
    heard_by_process,
)
from holdfast.worker.locating import mark_as_isolated
from holdfast.worker.recorder import Outpost, Place
from holdfast.worker.runs import Plan, Plans, Run, outcome_of
from holdfast.worker.telling import set_up_logging, tell_handlers_of_jobs, tell_the_rest

log = logging.getLogger("holdfast.worker")

_SIGNAL: Final = signal.SIGXCPU
"""Wakes the main thread out of a blocking call, so that what was thrown appears there."""


def main(text: str) -> int:
    settings = msgspec.json.decode(text, type=Settings)
    mark_as_isolated()
    processes.die_with_parent(settings.parent)
    processes.name_process("holdfast: isolated job")
    set_up_logging(settings.log_level, f"alone {os.getpid()}")
    # Handled by doing nothing: if they were ignored, so would the programs be deaf to them that the task starts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)
    line = socket.socket(fileno=settings.line)
    with asyncio.Runner() as runner:
        state = State()
        try:
            app = load_app(settings.app)
            variables = contextvars.copy_context()
            runner.run(app.engine.hooks.start(state), context=variables)
            tell_handlers_of_jobs()
        except CantLoad as error:
            _say(line, Down(str(error)))
            return 1
        except Exception as error:
            log.exception("the app can't start")
            _say(line, Down(f"{type(error).__name__}: {error}"))
            return 1
        return Cell(app, state, runner, variables, line, settings.recorder).serve()


class Cell:
    """The surroundings of the one job that runs here."""

    def __init__(
        self,
        app: Holdfast,
        state: State,
        runner: asyncio.Runner,
        variables: contextvars.Context,
        line: socket.socket,
        recorder: int | None,
    ) -> None:
        """`variables`: as the start hooks have left them. Each job has a copy, so none sees what another has set."""
        self._app = app
        self._state = state
        self._runner = runner
        self._variables = variables
        self._line = line
        self._recorder = None if recorder is None else Outpost(recorder)
        self._plans = Plans(app.engine)
        self._bulletin = Bulletin(functools.partial(_say, line))
        self._inbox: queue.SimpleQueue[Begin | Leave] = queue.SimpleQueue()
        self._run: Run | None = None
        self._thrown: BaseException | None = None
        """What is to appear in the task, and has not yet."""
        self._is_in_call = False
        """The main thread is in a call of a `def` task, where a signal may raise."""
        self._deadline: datetime | None = None
        self._is_stopped = False
        self._is_spent = False
        """The task wanted the process to end, and may have left its loop in disorder."""

    def serve(self) -> int:
        signal.signal(_SIGNAL, self._on_signal)
        threading.Thread(target=self._listen, daemon=True).start()
        self._bulletin.start()
        _say(self._line, Up())
        while True:
            asked = self._inbox.get()
            if isinstance(asked, Leave):
                self._leave(asked.patience)
                return 0
            plan = self._plans.of(asked.job.task)
            if plan is None:
                _say(self._line, Unknown())
                continue
            _say(self._line, Begun())
            answer = self._perform(asked.job, plan)
            if self._recorder is not None:
                self._recorder.finished(asked.phase_at)
            sys.stdout.flush()
            sys.stderr.flush()
            self._bulletin.flush()
            _say(self._line, answer)
            if self._is_spent:
                return 0

    def _listen(self) -> None:
        with self._line.makefile("rb") as lines:
            for text in lines:
                match heard_by_process(text):
                    case Begin() as begin:
                        self._is_stopped, self._thrown = False, None
                        self._inbox.put(begin)
                    case Leave() as leave:
                        self._inbox.put(leave)
                    case Throw(is_timeout):
                        self._is_stopped = self._is_stopped or not is_timeout
                        self._throw(SoftTimeout() if is_timeout else asyncio.CancelledError("the job is to stop"))
        os._exit(1)  # the worker is gone

    def _leave(self, patience: float) -> None:
        """In good order. Whoever has asked for it kills what takes longer, also if a hook blocks."""

        async def shut_down() -> None:
            async with asyncio.timeout(patience):
                await self._app.engine.hooks.stop(self._state)
                await self._app.aclose()

        try:
            self._runner.run(shut_down(), context=self._variables)
        except BaseException:
            log.exception("the app could not be shut down in good order")
        sys.stdout.flush()
        sys.stderr.flush()

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _throw(self, error: BaseException) -> None:
        """In the listener's thread. It appears wherever the task is: in a call, at an await, or about to begin."""
        self._thrown = error
        run = self._run
        if run is not None:
            if run.driven is not None:
                self._runner.get_loop().call_soon_threadsafe(self._throw_at_await)
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)

    def _throw_at_await(self) -> None:
        """On the loop, which may have stopped meanwhile: then whoever comes next there, or the call, has it appear."""
        if self._run is not None and self._run.driven is not None and self._thrown is not None:
            thrown, self._thrown = self._thrown, None
            self._run.driven.throw(thrown)

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._is_in_call:
            self._raise_thrown()

    def _raise_thrown(self) -> None:
        thrown, self._thrown = self._thrown, None
        if thrown is not None:
            raise thrown

    def _in_call(self, call: Callable[[], Any]) -> Any:
        self._is_in_call = True
        try:
            self._raise_thrown()
            return call()
        finally:
            self._is_in_call = False

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _perform(self, job: ClaimedJob, plan: Plan) -> Done | Ended | Stopped | Committed:
        run = Run(job, plan, Place.PROCESS, 0, 0)
        variables = self._variables.copy()
        value, encoded, raised = None, None, None
        try:
            try:
                value = self._call(run, variables)
            finally:
                self._run = None
            encoded = plan.encode_result(value)
        except BaseException as error:
            raised = error
            self._is_spent = issubclass(type(error), SystemExit | KeyboardInterrupt)  # it may lie about its class
        if raised is not None and self._is_stopped:
            run.stop = Interrupted
        now = self._app.engine.clock.now()
        outcome: Outcome
        if plan.is_transactional and (transaction := opened_by(run)) is not None:
            outcome = self._runner.run(conclude(run, transaction, value, raised, now), context=variables)
            if run.is_taken:
                return Committed()
        else:
            outcome = Completed(encoded) if raised is None else outcome_of(run, raised, now)
        match outcome:
            case Completed(result_json):
                return Done(result_json)
            case Raised(verdict, failure, delay, is_outage, breaker):
                return Ended(verdict, failure, delay, is_outage, breaker)
            case _:
                return Stopped()

    def _call(self, run: Run, variables: contextvars.Context) -> Any:
        plan = run.plan
        arguments = plan.signature.decode(run.job.args_json)
        if plan.is_transactional:  # a suspect of crashes: whoever asks for a process can't be
            context = transactional_context(run, self._app.engine, self._state, self)
        else:
            context = Context(plan.name, run.job, self._state, self)
        run.context = context
        variables.run(current.set, context)
        call = functools.partial(plan.function, *([context] if plan.is_bound else []), **arguments)
        self._deadline = self._app.engine.clock.now() + plan.task.settings.soft_timeout
        self._run = run
        if inspect.iscoroutinefunction(plan.function):
            return self._runner.run(self._drive(run, self._await_within(context, call)), context=variables)
        if self._app.engine.hooks.middleware:
            return self._call_within(run, context, call, variables)
        return variables.run(self._in_call, call)

    def _call_within(self, run: Run, context: Context, call: Callable[[], Any], variables: contextvars.Context) -> Any:
        """Middleware goes in and out on the loop; the task itself runs outside of it, where it may block."""
        stack = AsyncExitStack()

        def on_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
            return self._runner.run(self._drive(run, coroutine), context=variables)

        async def leave(error: BaseException | None) -> bool | None:
            return await stack.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)

        value: Any = None
        try:
            on_loop(self._enter(stack, context))
            value = variables.run(self._in_call, call)
        except BaseException as error:
            if not on_loop(leave(error)):
                raise
        else:
            on_loop(leave(None))
        return value

    async def _await_within(self, context: Context, call: Callable[[], Any]) -> Any:
        async with AsyncExitStack() as stack:
            await self._enter(stack, context)
            return await call()

    async def _enter(self, stack: AsyncExitStack, context: Context) -> None:
        for middleware in self._app.engine.hooks.middleware:
            await stack.enter_async_context(middleware(context))

    async def _drive(self, run: Run, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await it. What is thrown meanwhile, or was and has not appeared yet, appears at its await."""
        run.driven = Driven(coroutine, memoryview(bytearray(4)).cast("i"), 0, asyncio.current_task())
        try:
            if self._thrown is not None:
                asyncio.get_running_loop().call_soon(self._throw_at_await)
            return await run.driven
        finally:
            run.driven = None

    # ── what the task says and asks ──────────────────────────────────────────────────────────────────────────────────

    def is_cancelled(self, job: UUID) -> bool:
        return self._is_stopped

    def deadline(self, job: UUID) -> datetime | None:
        return self._deadline

    def report_progress(self, job: ClaimedJob, done: float, total: float | None, note: str) -> None:
        run = self._run
        if run is None or run.job is not job:
            return  # said by a thread that a job before has left behind
        is_main = threading.current_thread() is threading.main_thread()
        held = is_main and self._is_in_call
        if held:
            self._is_in_call = False  # a signal that cut this short could leave a lock behind
        try:
            self._bulletin.report(Progress(done, total, note))
        finally:
            if held:
                self._is_in_call = True
        if held:
            self._raise_thrown()


_sending = threading.Lock()


def _say(line: socket.socket, message: Any) -> None:
    with _sending:
        line.sendall(msgspec.json.encode(message) + b"\n")


if __name__ == "__main__":
    try:
        status = main(sys.argv[1])
    except ConnectionError:
        status = 1  # the worker is gone, and so is whoever would read about it
    tell_the_rest()
    os._exit(status)
