"""Task: a function that can be enqueued."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import fields
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload
from uuid import UUID

import msgspec

from holdfast.context import Context
from holdfast.dead import DeadJob
from holdfast.engine import Engine
from holdfast.errors import InvalidOption, InvalidTask
from holdfast.handle import Job
from holdfast.ids import check_id
from holdfast.job import NewJob
from holdfast.limits import Limits
from holdfast.options import PLAIN, JobOptions, JobSettings, TaskSettings, check_job_options
from holdfast.recipe import Recipe, recipe_of
from holdfast.signature import Signature
from holdfast.store import TaskDefinition

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Task(Generic[P, R_co]):
    """A function with a name, under which its jobs are stored and found again by any worker.

    Calling it runs the function here and now; `enqueue` and `aenqueue` run it on a worker.
    """

    def __init__(
        self,
        engine: Engine,
        function: Callable[..., Any],
        settings: TaskSettings,
        signature: Signature,
        *,
        is_bound: bool,
    ) -> None:
        self._engine = engine
        self._plain: Prepared[P, R_co] = Prepared(self, PLAIN)
        self._is_simple = (
            settings.idempotency_key is None
            and settings.unique is None
            and settings.expires is None
            and settings.limits == Limits()
        )
        self._kind = (settings.priority, settings.max_attempts, settings.delivery)
        self._recipe = recipe_of(settings, signature.defaults)
        self.function = function
        self.settings = settings
        self.signature = signature
        self.is_bound = is_bound
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Task {self.name} queue={self.settings.queue}>"

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.settings.aliases

    @property
    def redact(self) -> tuple[str, ...]:
        """Those of its arguments that are shown to nobody.

        A handler is told the arguments of others: it hides what it is told if one of these hides anything.
        """
        engine = self._engine
        if engine.hooks.is_handler(self.name):
            tasks = [task for task in engine.tasks.values() if isinstance(task, Task)]
            told = [task for task in tasks if self.name in engine.hooks.handlers_of(task.name)]
            return self.signature.parameters if any(task.settings.redact for task in told) else ()
        return self.settings.redact

    @property
    def place(self) -> str:
        """Where its function is written, for messages."""
        code = getattr(self.function, "__code__", None)
        line = f":{code.co_firstlineno}" if code else ""
        return f"{getattr(code, 'co_filename', self.__module__)}{line}"

    def on_dead(self, function: Callable[[DeadJob], Any], /) -> Task[[DeadJob], Any]:
        """Call this function, as a job of its own, for each of the task's dead letters."""
        return add_dead_handler(self._engine, self.name, function)

    # ── producing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Job[R_co]]:
        """Hand a job over. When this returns it is on disk, and will run."""
        return self._plain.aenqueue(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """`aenqueue` for synchronous code."""
        return self._plain.enqueue(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """A call to be enqueued together with others by `enqueue_many`. Its arguments are checked here."""
        return Call(self._plain, self.signature.encode(args, kwargs))

    def options(self, **options: Unpack[JobOptions]) -> Prepared[P, R_co]:
        """The same task with options for single jobs: tx, queue, priority, delay, at, expires, …"""
        return Prepared(self, check_job_options(options))

    def job(self, id: UUID | str) -> Job[R_co]:
        """A typed handle on a job of this task, from its id."""
        return Job(self._engine, check_id(id), self)

    def read_result(self, payload: str | None) -> R_co:
        """What the task returned, from the JSON that was stored."""
        return self.signature.decode_result(payload)  # type: ignore[no-any-return]

    async def check_arguments(self, engine: Engine, task: str, payload: str) -> None:
        """Refuse arguments that the task does not accept."""
        self.signature.decode(payload)

    async def recipe(self, engine: Engine, task: str) -> Recipe:
        """How its calls become jobs."""
        return self._recipe

    def definition(self) -> TaskDefinition:
        """What others must know to enqueue it without its code."""
        settings = self.settings
        unique = settings.unique
        return TaskDefinition(
            name=settings.name,
            queue=settings.queue,
            priority=settings.priority,
            max_attempts=settings.max_attempts,
            delivery=settings.delivery.value,
            soft_timeout=settings.soft_timeout.total_seconds(),
            timeout=settings.timeout.total_seconds(),
            expires=None if settings.expires is None else settings.expires.total_seconds(),
            idempotency_key=None if settings.idempotency_key is None else settings.idempotency_key.text,
            unique=None if unique is None else unique.key.text,
            unique_window=None if unique is None or unique.window is None else unique.window.total_seconds(),
            limits=settings.limits.definitions(settings.name, settings.delivery),
            breaker=None if settings.breaker is None else settings.breaker.name,
            redact=self.redact,
            aliases=settings.aliases,
            on_dead=self._engine.hooks.handlers_of(settings.name),
            schema=self.signature.schema(),
        )


class AsyncTask(Task[P, R_co]):
    """A task written with `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Run it here and now, not as a job."""
        return _call(self, args, kwargs)  # type: ignore[no-any-return]


class SyncTask(Task[P, R_co]):
    """A task written with `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it here and now, not as a job."""
        return _call(self, args, kwargs)  # type: ignore[no-any-return]


def add_dead_handler(engine: Engine, about: str | None, function: Callable[[DeadJob], Any]) -> Task[[DeadJob], Any]:
    """Make a function the handler of a task's dead letters, or of everybody's."""
    assert engine.hooks.make_handler is not None
    handler: Task[[DeadJob], Any] = engine.hooks.make_handler(function)
    if len(handler.signature.parameters) != 1:
        raise InvalidTask(f"{handler.name}: a handler of dead letters takes one argument, `job: DeadJob`.")
    engine.hooks.dead.append((about, handler.name))
    return handler


def _call(task: Task[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if task.is_bound:
        return task.function(Context(task.name), *args, **kwargs)
    return task.function(*args, **kwargs)


class Prepared(Generic[P, R_co]):
    """A task with the options of the jobs to come."""

    __slots__ = ("_settings", "_task")

    def __init__(self, task: Task[P, R_co], settings: JobSettings) -> None:
        self._task = task
        self._settings = settings

    @property
    def engine(self) -> Engine:
        """Of the app that it belongs to."""
        return self._task._engine

    def __repr__(self) -> str:
        given = (field for field in fields(self._settings) if getattr(self._settings, field.name) != field.default)
        return f"<{self._task.name}.options({', '.join(f'{field.name}=…' for field in given)})>"

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Hand a job over. When this returns it is on disk, and will run; with `tx`, as soon as that commits."""
        task, settings = self._task, self._settings
        new = self._new(args, kwargs)
        (answer,) = await task._engine.enqueue([new], settings.wait, settings.tx)
        return Job(task._engine, answer.id, task, answer.is_existing)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """`aenqueue` for synchronous code. With `tx`, the insert runs in this thread on that connection."""
        task, settings = self._task, self._settings
        engine, instead = task._engine, f"{task.__name__}.aenqueue"
        new = self._new(args, kwargs)
        if settings.tx is None:
            (answer,) = engine.wait(engine.enqueue([new], settings.wait), instead)
        else:
            (answer,) = engine.enqueue_in(settings.tx, [new], instead)
        return Job(engine, answer.id, task, answer.is_existing)

    def _new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        task = self._task
        return self.new_job(task.signature.encode(args, kwargs), self._settings.id or task._engine.ids.make())

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """A call to be enqueued together with others by `enqueue_many`. Its arguments are checked here."""
        if self._settings.wait != PLAIN.wait:
            raise InvalidOption(
                "wait= of a single call can't be honoured in enqueue_many. Give it to enqueue_many itself."
            )
        if self._settings.tx is not None:
            raise InvalidOption(
                "tx= of a single call can't be honoured in enqueue_many. Give it to enqueue_many itself."
            )
        return Call(self, self._task.signature.encode(args, kwargs))

    def new_job(self, payload: str, id: UUID) -> NewJob:
        """The job that a call with this payload becomes."""
        settings, given = self._task.settings, self._settings
        if given is PLAIN and self._task._is_simple:
            return NewJob(id, settings.name, settings.queue, payload, *self._task._kind)
        return self._task._recipe.make(payload, given, id)


class Call(msgspec.Struct, Generic[R_co], frozen=True, eq=False, gc=False):
    """A call of a task whose arguments were checked, ready to be enqueued."""

    prepared: Prepared[Any, R_co]
    payload: str

    def __repr__(self) -> str:
        return f"<{self.prepared._task.name}.call(…)>"  # arguments may be secret

    def new_job(self, id: UUID) -> NewJob:
        """The job that it becomes, under its own id if it was given one."""
        prepared = self.prepared
        task = prepared._task
        if prepared is task._plain and task._is_simple:
            settings = task.settings
            return NewJob(id, settings.name, settings.queue, self.payload, *task._kind)
        return prepared.new_job(self.payload, prepared._settings.id or id)

    def handle(self, id: UUID, existing: bool) -> Job[R_co]:
        """The handle on that job."""
        task = self.prepared._task
        return Job(task._engine, id, task, existing)


T = TypeVar("T")


class TaskDecorator(Protocol):
    """`@hf.task(…)`: keeps the parameters and the result of the function it decorates."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncTask[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, T], /) -> SyncTask[P, T]: ...


class BoundTaskDecorator(Protocol):
    """`@hf.task(bind=True, …)`: the worker passes the context, so callers don't."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /) -> AsyncTask[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], T], /) -> SyncTask[P, T]: ...
