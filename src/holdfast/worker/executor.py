"""The executor: runs a task wherever it belongs, and reports what came of it. Exactly once for each run it is given."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Protocol

from holdfast.context import Context, Surroundings, current
from holdfast.engine import Engine
from holdfast.hooks import Hooks, State
from holdfast.outcome import Completed, Outcome
from holdfast.transaction import TaskTransaction
from holdfast.worker.conclusion import conclude, opened_by, transactional_context
from holdfast.worker.crew import Crew
from holdfast.worker.driver import Driven
from holdfast.worker.recorder import Place, Recorder
from holdfast.worker.runs import Run, outcome_of


class Solitude(Protocol):
    """Where a job is alone in a process."""

    async def run(self, run: Run) -> Outcome:
        """Run it there. Never raises; the process is gone or at rest when this returns."""
        ...


class Executor:
    """One event loop's executor."""

    def __init__(
        self,
        engine: Engine,
        recorder: Recorder,
        hooks: Hooks,
        state: State,
        solitude: Solitude,
        surroundings: Surroundings,
    ) -> None:
        self._engine = engine
        self._recorder = recorder
        self._on_cpu = recorder.on_cpu
        self._hooks = hooks
        self._state = state
        self._solitude = solitude
        self._surroundings = surroundings
        self._loop = asyncio.get_running_loop()
        self._variables = contextvars.copy_context()
        """Each job has a copy, with what the hooks of on_startup have set. It is mostly started where another one has
        just ended, whose variables are none of its business."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.crew = Crew(self._loop)
        self.on_finish: Callable[[Run, Outcome], None] = lambda run, outcome: None
        self.on_failure: Callable[[BaseException], None] = lambda failure: None
        """What came of a run could not be passed on, for want of memory for example: nobody will ever hear of it."""

    def start(self, run: Run) -> None:
        if run.place is Place.LOOP:
            run.handle = self._loop.create_task(self._on_loop(run), context=self._variables.copy())
        elif run.place is Place.PROCESS:
            run.handle = self._loop.create_task(self._alone(run), context=self._variables.copy())
        elif self._hooks.middleware:
            self._recorder.moved(run.slot, Place.LOOP)  # until it comes to the task
            run.handle = self._loop.create_task(self._in_a_thread_within(run), context=self._variables.copy())
        else:
            self._in_a_thread(run, functools.partial(self._report, run), self._variables.copy())

    def write_off(self, run: Run, outcome: Outcome) -> None:
        """It does not end. Say what came of it without waiting any longer."""
        run.is_written_off = run.is_left = True
        if run.place is Place.THREAD and run.work is not None:
            self.crew.write_off(run.work)
        if run.plan.is_transactional and (transaction := opened_by(run)) is not None:
            self._background(transaction.roll_back())
        self.on_finish(run, outcome)

    def leave(self, run: Run) -> None:
        """Its thread must keep nobody: from now on a cancellation leaves middleware although that goes on."""
        run.is_left = True
        if run.handle is not None and run.handle.cancelling():
            run.handle.cancel()  # that one was kept waiting

    def _report(self, run: Run, value: Any, error: BaseException | None) -> None:
        """What came of it is known: the value that the task returned, or the exception that left it."""
        try:
            if run.is_written_off:
                return
            if run.plan.is_transactional and (transaction := opened_by(run)) is not None:
                run.driven = run.stopper = None  # it is over: a timeout or a cancellation comes too late
                run.handle = self._background(self._conclude(run, transaction, value, error))
                return
            if error is None:
                try:
                    outcome: Outcome = Completed(run.plan.encode_result(value))
                except BaseException as refusal:
                    outcome = outcome_of(run, refusal, self._engine.clock.now())
            else:
                outcome = outcome_of(run, error, self._engine.clock.now())
            run.driven = run.stopper = run.handle = None
            self.on_finish(run, outcome)
        except BaseException as failure:
            self.on_failure(failure)
            raise

    async def _conclude(self, run: Run, transaction: TaskTransaction, value: Any, error: BaseException | None) -> None:
        outcome = await conclude(run, transaction, value, error, self._engine.clock.now())
        if not run.is_written_off:
            run.handle = None
            self._finish(run, outcome)

    def _finish(self, run: Run, outcome: Outcome) -> None:
        try:
            self.on_finish(run, outcome)
        except BaseException as failure:
            self.on_failure(failure)
            raise

    def _background(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ── on the loop ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _on_loop(self, run: Run) -> None:
        value: Any = None
        failure: BaseException | None = None
        try:
            run.refuse_if_stopped()
            plan = run.plan
            arguments = plan.signature.decode(run.job.args_json)
            current.set(context := self._context(run))
            coroutine = plan.function(context, **arguments) if plan.is_bound else plan.function(**arguments)
            if self._hooks.middleware:
                coroutine = self._within(run, coroutine)
            run.driven = driven = Driven(coroutine, self._on_cpu, run.slot, run.handle)
            value = await driven
        except BaseException as error:  # also SystemExit: a task may end itself, but not the worker
            failure = error
        self._report(run, value, failure)

    async def _within(self, run: Run, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Middleware goes around the task, the first registered outermost."""
        try:
            async with AsyncExitStack() as stack:
                for middleware in self._hooks.middleware:
                    await stack.enter_async_context(middleware(self._context(run)))
                return await coroutine
        finally:
            coroutine.close()

    # ── in a thread ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _in_a_thread(
        self, run: Run, answer: Callable[[Any, BaseException | None], None], variables: contextvars.Context
    ) -> None:
        try:
            run.refuse_if_stopped()
            plan, context = run.plan, self._context(run)
            arguments = plan.signature.decode(run.job.args_json)
        except BaseException as error:
            # Not here and now: whoever is answered may start the next one, and that one may fail as well.
            self._loop.call_soon(answer, None, error)
            return
        call = functools.partial(plan.function, *([context] if plan.is_bound else []), **arguments)
        variables.run(current.set, context)
        run.work = self.crew.start(call, variables, answer, run.soft_at, self._end_of_thread(run))
        run.stopper = run.work.throw

    def _end_of_thread(self, run: Run) -> Callable[[], None]:
        """What the thread itself writes down at its end: the loop may be blocked, and that is not this job's fault."""
        if self._hooks.middleware or run.plan.is_transactional:
            return functools.partial(self._recorder.moved, run.slot, Place.LOOP)  # there is more to do
        return functools.partial(self._recorder.finished, run.slot)

    async def _in_a_thread_within(self, run: Run) -> None:
        """Middleware runs on the loop, so what is thrown at the run appears there, except while the thread has it.

        So does a cancellation by middleware, such as that of asyncio.timeout: it appears in the thread, and middleware
        is not left before that has ended.
        """
        value: Any = None
        failure: BaseException | None = None

        async def wait() -> Any:
            future: asyncio.Future[Any] = self._loop.create_future()

            def answer(value: Any, error: BaseException | None) -> None:
                if future.cancelled():
                    return
                if error is None:
                    future.set_result((value, None))
                else:
                    future.set_result((None, error))  # as a value: a future takes no StopIteration

            driven, run.driven = run.driven, None
            self._recorder.moved(run.slot, Place.THREAD)
            try:
                self._in_a_thread(run, answer, contextvars.copy_context())
                value, error = await _end_of(run, future)
            finally:
                run.driven, run.stopper, run.work = driven, None, None
            if error is not None:
                raise error
            return value

        alarm = self._loop.call_later(run.soft_at - time.monotonic(), run.time_out)
        try:
            run.refuse_if_stopped()
            run.driven = driven = Driven(self._within(run, wait()), self._on_cpu, run.slot, run.handle)
            value = await driven
        except BaseException as error:
            failure = error
        alarm.cancel()
        self._report(run, value, failure)

    # ── alone ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _alone(self, run: Run) -> None:
        try:
            outcome = await self._solitude.run(run)
        except BaseException as error:
            outcome = outcome_of(run, error, self._engine.clock.now())
        run.driven = run.stopper = run.handle = None
        if not run.is_written_off:
            self._finish(run, outcome)

    def _context(self, run: Run) -> Context:
        if run.context is None:
            if run.plan.is_transactional:
                run.context = transactional_context(run, self._engine, self._state, self._surroundings)
            else:
                run.context = Context(run.plan.name, run.job, self._state, self._surroundings)
        return run.context


async def _end_of(run: Run, future: asyncio.Future[Any]) -> Any:
    """What its thread answers. It goes on whoever is cancelled, and must not do so with nobody to watch its time."""
    while True:
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError as cancellation:
            if run.is_left:
                raise
            if run.stopper is not None:
                run.stopper(cancellation)
