"""A run: one attempt of a job in this process, and what came of it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from holdfast.breaker import Permit
from holdfast.context import Context, SoftTimeout, TransactionalContext
from holdfast.engine import Engine
from holdfast.errors import InvalidPayload
from holdfast.guard import causes
from holdfast.job import LONGEST_MESSAGE, ClaimedJob, Delivery, Failure, FailureKind
from holdfast.outcome import BreakerOpen, Interrupted, Outcome, Raised, Verdict, Withdrawn
from holdfast.retry import Retry, classify
from holdfast.signature import Signature
from holdfast.span import parse_span
from holdfast.store import LONGEST_NAME
from holdfast.task import Task
from holdfast.worker import guilt
from holdfast.worker.crew import Work
from holdfast.worker.driver import Driven
from holdfast.worker.recorder import NEVER, Place, describe_task

log = logging.getLogger("holdfast.worker")

_MOST_FRAMES: Final = 50
_FEW_FRAMES: Final = 20
_MOST_KNOWN_FRAMES: Final = 1000
_HEADING: Final = "Traceback (most recent call last):\n"
_frames: Final[dict[tuple[str, int, str, int], str]] = {}
"""Places in the code, as tracebacks show them."""
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_MACHINERY: Final = tuple(os.path.join(_PACKAGE, part, "") for part in ("worker", "supervision"))
"""Files whose frames say nothing about a task."""
_NO_TURN: Final = (
    "Its soft timeout was over while it waited for others to leave ctx.tx room to open. Keep the transactions of tasks "
    "short: do what is slow before the first statement."
)
_NO_POLICY: Final = Retry()
_DECISIONS: Final = (Verdict.PERMANENT, Verdict.CANCEL, Verdict.SNOOZE, Verdict.THROTTLED, Verdict.BREAKER)
_UNTIL_ANOTHER_TRY: Final = timedelta(seconds=1)
ALONE_AFTER: Final = 2
"""Crashes after which a job is a suspect that runs alone."""


class Plan:
    """How the jobs of one task are run, worked out once."""

    __slots__ = (
        "_may_return_none",
        "alone",
        "breaker",
        "described",
        "function",
        "hard",
        "is_bound",
        "is_ordered",
        "is_transactional",
        "is_urgent",
        "name",
        "place",
        "retry",
        "signature",
        "soft",
        "start_within",
        "task",
    )

    def __init__(self, task: Task[Any, Any], fuse: int = 0) -> None:
        """`fuse`: the number of its breaker among those of the app, from 1."""
        settings = task.settings
        self.task = task
        self.name = task.name
        self.function: Callable[..., Any] = task.function
        self.is_bound = task.is_bound
        self.is_ordered = settings.limits.order is not None
        self.is_urgent = settings.limits.has_short_rate
        self.is_transactional = settings.delivery is Delivery.TRANSACTIONAL
        self.signature: Signature = task.signature
        self.retry = settings.retry
        self.breaker = settings.breaker
        self.soft = settings.soft_timeout.total_seconds()
        self.hard = settings.timeout.total_seconds()
        self.start_within = NEVER if settings.limits.rate is None else settings.limits.rate.slack.total_seconds()
        """Seconds from a claim to the start of the task, if a rate has let it through."""
        self.place = _place_of(task)
        self.described = describe_task(task.name, self.place, settings.retry, fuse)
        self.alone = describe_task(task.name, Place.PROCESS, settings.retry, fuse)
        self._may_return_none = False

    def place_of(self, job: ClaimedJob) -> Place:
        """Where this job runs: a suspect of crashes is alone in a process, where guilt is certain."""
        if job.crashes >= ALONE_AFTER:
            return Place.PROCESS
        return self.place

    def encode_result(self, value: Any) -> str | None:
        """What the task returned, as JSON; InvalidPayload if that can't be stored, or is not what it promised."""
        if value is None:
            if not self._may_return_none:
                self.signature.encode_result(None)
                self._may_return_none = True
            return None
        return self.signature.encode_result(value)


def _place_of(task: Task[Any, Any]) -> Place:
    if task.settings.isolation == "process" or task.settings.delivery is Delivery.AT_MOST_ONCE:
        return Place.PROCESS
    return Place.LOOP if inspect.iscoroutinefunction(task.function) else Place.THREAD


class Plans:
    """The plans of an app's tasks, by name."""

    def __init__(self, engine: Engine) -> None:
        self._tasks = engine.tasks
        self._breakers = engine.breakers
        self._known: dict[str, Plan] = {}
        self._tasks_seen = -1
        self._are_some_urgent = False

    def of(self, name: str) -> Plan | None:
        """None if there is no such task here."""
        plan = self._known.get(name)
        if plan is None:
            task = self._tasks.get(name)
            if not isinstance(task, Task):
                return None
            plan = self._known[name] = Plan(task, self._fuse_of(task))
        return plan

    @property
    def are_some_urgent(self) -> bool:
        """Whether there are tasks whose jobs must start when they are claimed."""
        if len(self._tasks) != self._tasks_seen:
            self._tasks_seen = len(self._tasks)
            self._are_some_urgent = any(
                isinstance(task, Task) and task.settings.limits.has_short_rate for task in self._tasks.values()
            )
        return self._are_some_urgent

    def _fuse_of(self, task: Task[Any, Any]) -> int:
        breakers = list(self._breakers.values())
        return breakers.index(task.settings.breaker) + 1 if task.settings.breaker in breakers else 0


class Run:
    """One attempt. What it usually does not have stands in the class: tens of thousands are made in a second."""

    started_at = NEVER
    """Until it begins, its time is not counted: it may wait for its breaker, or for the start of a process."""
    soft_at = NEVER
    context: Context | None = None
    handle: asyncio.Task[None] | None = None
    driven: Driven[Any] | None = None
    work: Work | None = None
    stopper: Callable[[BaseException], None] | None = None
    """Makes an exception appear in it, if it runs elsewhere than on the loop."""
    stop: type[Outcome] | None = None
    """Why it was asked to stop, if it was: what will be said to have come of it."""
    stop_reason = ""
    is_written_off = False
    """What came of it was decided without waiting for it."""
    is_left = False
    """Its thread may go on without anybody who waits for it."""
    permit: Permit | None = None
    """If it is a probe of its task's breaker."""
    fetched_at = 0.0
    """When it was fetched ahead, if there was no slot for it."""
    start_by = NEVER
    """When its rate expects it to have begun, if it has one."""
    is_follower = False
    """It had to wait for another one of its order, which is completed."""
    is_taken = False
    """The job is not ours any more: nobody wants to know what comes of this."""
    is_committed = False
    """Its own transaction has completed it."""

    def __init__(self, job: ClaimedJob, plan: Plan, place: Place, slot: int, pool: int) -> None:
        self.job = job
        self.plan = plan
        self.place = place
        self.slot = slot
        self.pool = pool

    def begin_at(self, now: float) -> None:
        """Its time is counted from now on."""
        self.started_at = now
        self.soft_at = now + self.plan.soft

    def throw(self, error: BaseException) -> None:
        """Make an exception appear inside the task, wherever it runs."""
        if self.driven is not None:
            self.driven.throw(error)
        elif self.stopper is not None:
            self.stopper(error)

    def refuse_if_stopped(self) -> None:
        """It was asked to stop before it began."""
        if self.stop is not None:
            raise asyncio.CancelledError

    def cancel(self, reason: str) -> None:
        """Somebody has cancelled the job."""
        if self.stop is None:
            self.stop, self.stop_reason = Withdrawn, reason
            self.throw(asyncio.CancelledError("the job was cancelled"))

    def interrupt(self) -> None:
        """The worker must stop."""
        if self.stop is None:
            self.stop = Interrupted
            self.throw(asyncio.CancelledError("the worker stops"))

    def overrun(self) -> None:
        """The hard timeout is over, and nobody can kill it."""
        self.stop = Raised
        self.throw(asyncio.CancelledError("the timeout is over"))

    def outcome_of_stop(self) -> Outcome:
        """What is said to have come of it, now that it has stopped as it was asked to."""
        if self.stop is Withdrawn:
            return Withdrawn(self.stop_reason)
        if self.stop is Raised:
            return guilt.hard_timeout(time.monotonic() - self.started_at, self.plan.hard)
        return Interrupted()

    def time_out(self) -> None:
        """The soft timeout is over. While a thread has it, that is told by its own crew."""
        if self.place is not Place.THREAD or self.driven is not None:
            self.throw(SoftTimeout(f"the soft timeout of {self.plan.soft:g} s is over"))


# ── what came of it ──────────────────────────────────────────────────────────────────────────────────────────────────


def outcome_of(run: Run, error: BaseException, now: datetime) -> Outcome:
    """What an exception that left the task means. Never raises, whatever the exception does when it is looked at.

    Of a run that was asked to stop it means that it has stopped, whatever it is: drivers and task groups make others of
    a cancellation. Only if it was interrupted, and the task says in so many words what is to become of its job, that
    counts: whoever asked wanted it to run again, and the task knows better. Against a person's cancellation, and after
    the end of its time, it has no say.
    """
    try:
        if run.stop is not None and not (run.stop is Interrupted and _decides_about_its_job(error, now)):
            if not issubclass(type(error), asyncio.CancelledError):
                log.warning("%s %s was to stop, and raised %s", run.job.task, run.job.id, _name_of(error))
            return run.outcome_of_stop()
        return _outcome_of(run, error, now)
    except BaseException as evil:
        if run.stop is not None:
            return run.outcome_of_stop()
        message = f"(what it raised can't be looked at: {_name_of(evil)})"
        return Raised(Verdict.TRANSIENT, Failure(FailureKind.ERROR, "Exception", message))


def _outcome_of(run: Run, error: BaseException, now: datetime) -> Outcome:
    if _is_soft_timeout(error):
        if _awaits_its_transaction(run):
            return Raised(Verdict.SNOOZE, failure_of(error, FailureKind.WAITED, _NO_TURN), _UNTIL_ANOTHER_TRY)
        message = f"Its soft timeout of {run.plan.soft:g} s was over."
        failure = failure_of(error, FailureKind.TIMEOUT, message)
        # It is called the same whatever it was wrapped in.
        return Raised(Verdict.TRANSIENT, replace(failure, error_type=SoftTimeout.__name__))
    verdict, delay = classify(error, run.plan.retry, now)
    if verdict in (Verdict.SNOOZE, Verdict.THROTTLED, Verdict.BREAKER):
        kind = FailureKind.WAITED
    elif isinstance(error, InvalidPayload):
        kind = FailureKind.INVALID
    elif verdict is Verdict.PERMANENT and type(error).__module__ == "holdfast.outcome":
        kind = FailureKind.GAVE_UP
    else:
        kind = FailureKind.ERROR
    breaker = run.plan.breaker
    is_outage = breaker is not None and breaker.counts(error, verdict)
    waits_for = _breaker_of(error) if verdict is Verdict.BREAKER else None
    return Raised(verdict, failure_of(error, kind), None if delay is None else parse_span(delay), is_outage, waits_for)


def _decides_about_its_job(error: BaseException, now: datetime) -> bool:
    """Whether it says what is to become of its job, and not only that this attempt has failed. No policy has a say."""
    return classify(error, _NO_POLICY, now)[0] in _DECISIONS


def _awaits_its_transaction(run: Run) -> bool:
    """Its time is over because others have what it needs to begin with its transaction. That is no fault of its own."""
    return isinstance(run.context, TransactionalContext) and run.context.tx.is_awaited


def _breaker_of(error: BaseException) -> str | None:
    """The breaker that a task has met, so that its job goes on when that is closed; of several the one for longest."""
    met = [each for each in causes(error) if isinstance(each, BreakerOpen)]
    name: object = max(met, key=lambda each: each.delay).breaker if met else None
    # Anybody can raise it, with any name.
    return name if isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable() else None


def _is_soft_timeout(error: BaseException) -> bool:
    """Itself, or as a task group of Python 3.11 passes it on."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(SoftTimeout)[1] is None
    return isinstance(error, SoftTimeout)


def failure_of(error: BaseException, kind: FailureKind, message: str | None = None) -> Failure:
    """An exception as text, whatever it does when it is asked for one."""
    text = message or _text_of(error)
    return Failure(kind, _name_of(error), text, None if kind is FailureKind.WAITED else _trace_of(error))


def _name_of(error: BaseException) -> str:
    """The name of its class, past whatever a metaclass says."""
    return str(type.__dict__["__qualname__"].__get__(type(error)))


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:LONGEST_MESSAGE]
    except BaseException as evil:
        return f"(its message can't be read: {_name_of(evil)})"


def _trace_of(error: BaseException) -> str:
    """The traceback, from the task's own first line on."""
    try:
        if _is_plain(error) and (frames := _own_frames(error)) is not None:
            return "".join([_HEADING, *frames, *traceback.format_exception_only(error)])
        trace = traceback.TracebackException.from_exception(error, limit=-_MOST_FRAMES, max_group_depth=5)
        own = [frame for frame in trace.stack if not frame.filename.startswith(_MACHINERY)]
        trace.stack = traceback.StackSummary.from_list(own)
        return "".join(trace.format())
    except BaseException as evil:
        return f"(its traceback can't be shown: {_name_of(evil)})"


def _is_plain(error: BaseException) -> bool:
    """Whether there is nothing to tell but where it was raised."""
    return (
        error.__cause__ is None
        and error.__context__ is None
        and not isinstance(error, BaseExceptionGroup | SyntaxError)
    )


def _own_frames(error: BaseException) -> list[str] | None:
    """The frames of a short traceback as text; None if it is not short.

    When something is down, jobs fail by the thousand at the same line, and to look that up and to mark its part takes
    as long as running a hundred jobs: so it is done once.
    """
    frames: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_MACHINERY):
            if len(frames) == _FEW_FRAMES:
                return None
            place = code.co_filename, code.co_firstlineno, code.co_name, trace.tb_lasti
            text = _frames.get(place)
            if text is None:
                if len(_frames) >= _MOST_KNOWN_FRAMES:
                    _frames.clear()
                (text,) = traceback.extract_tb(trace, limit=1).format()
                _frames[place] = text
            frames.append(text)
        trace = trace.tb_next
    return frames or None
