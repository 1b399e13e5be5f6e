"""Holdfast: the composition root. The only module that picks concrete drivers."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload
from urllib.parse import unquote, urlsplit
from uuid import UUID

from holdfast.breaker import check_policy
from holdfast.breakers import Breakers
from holdfast.clock import Clock, SystemClock
from holdfast.codec import PayloadLimits
from holdfast.dead import ANNOUNCEMENT_LIMITS, DeadJob
from holdfast.engine import Engine
from holdfast.errors import InvalidOption, InvalidTask, InvalidURL, MissingDriver
from holdfast.guard import Breaker
from holdfast.handle import Job, untyped
from holdfast.hooks import Middleware, StateHook, check_hook, check_middleware
from holdfast.ids import check_id
from holdfast.installation import Installation
from holdfast.job import NewJob
from holdfast.limiting import Limits
from holdfast.namespaces import Dead, Jobs, Queues, Workers
from holdfast.options import (
    JobOptions,
    TaskDefaults,
    TaskOptions,
    check_job_options,
    check_task_options,
    check_texts,
    refuse_unknown,
)
from holdfast.passage import Doorkeeper
from holdfast.planning import CronOptions, EveryOptions, check_interval
from holdfast.portal import refuse_on_a_loop
from holdfast.schedules import Schedules
from holdfast.sending import prepare
from holdfast.signature import Signature
from holdfast.span import Span, format_span, parse_span
from holdfast.store import LARGEST_BATCH, Enqueued, Queue, Retention, Store, check_batch, check_name
from holdfast.stores.memory import MemoryStore
from holdfast.task import AsyncTask, BoundTaskDecorator, Call, SyncTask, Task, TaskDecorator, add_dead_handler
from holdfast.timetable import ScheduleDecorator, Timetable
from holdfast.worker.locating import locate
from holdfast.worker.slots import DEFAULT_CONCURRENCY

# Databases and the embedded worker are imported when they are used: processes are started for single jobs.
if TYPE_CHECKING:
    from holdfast.stores.postgres.address import Address
    from holdfast.testing.rehearsal import Rehearsal
    from holdfast.worker.embedded import EmbeddedWorker

P = ParamSpec("P")
T = TypeVar("T")
StateHookT = TypeVar("StateHookT", bound=StateHook)
MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)

DEFAULT_URL = "sqlite:///holdfast.db"
_SHORTEST_WORK = timedelta(milliseconds=10)
_LONGEST_WORK = timedelta(seconds=5)
"""Those who wait for the write lock give up after 10 s."""


class Holdfast:
    """An app: its tasks, and the database that keeps their jobs.

    Making one opens nothing and starts nothing; the database is opened, and its tables made, on first use. It can be
    used from any thread, any event loop, and after a fork. The URL is the argument, else `HOLDFAST_URL`, else a
    SQLite file `holdfast.db` in the current folder.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        imports: Sequence[str] = (),
        queues: Sequence[Queue] = (),
        defaults: TaskDefaults | None = None,
        retention: Retention | None = None,
        work_limit: Span = "1s",
    ) -> None:
        """`work_limit` is how long the transaction of a task, `ctx.tx`, may have the write lock of a SQLite file."""
        self.url, where = _chosen_url(url)
        self.imports = check_texts(imports, "imports")
        self._defaults = _checked(defaults, TaskDefaults, "defaults") or TaskDefaults()
        self.retention = _checked(retention, Retention, "retention") or Retention()
        self._work_limit = _checked_work_limit(work_limit)
        declared = _checked_queues(queues)
        make_store = _store_maker(self.url, where, self.retention, declared, work_limit=self._work_limit)
        self._engine = Engine(make_store, SystemClock(), queues=declared)
        self._engine.hooks.make_handler = lambda function: self._make_task(function, False, {}, ANNOUNCEMENT_LIMITS)
        self.jobs = Jobs(self._engine)
        self.dead = Dead(self._engine)
        self.queues = Queues(self._engine)
        self.workers = Workers(self._engine)
        self.schedules = Schedules(self._engine)
        self.limits = Limits(self._engine)
        self.breakers = Breakers(self._engine)

    def __repr__(self) -> str:
        return f"<Holdfast {without_secrets(self.url)}>"

    @property
    def place(self) -> str:
        """Where its jobs are kept, without secrets; a file with its whole path."""
        if self.url.startswith("sqlite:"):
            return str(_sqlite_path(self.url, ""))
        return without_secrets(self.url)

    @property
    def engine(self) -> Engine:
        """The machinery, for Holdfast's own parts."""
        return self._engine

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncTask[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[P, T], /) -> SyncTask[P, T]: ...
    @overload
    def task(self, *, bind: Literal[True], **options: Unpack[TaskOptions]) -> BoundTaskDecorator: ...
    @overload
    def task(self, *, bind: Literal[False] = False, **options: Unpack[TaskOptions]) -> TaskDecorator: ...

    def task(  # type: ignore[misc]  # mypy does not match **options with an unpacked TypedDict
        self, function: Callable[..., Any] | None = None, /, *, bind: bool = False, **options: Any
    ) -> Any:
        """Make a function a task: `@hf.task`, or `@hf.task(queue="billing", …)`."""

        def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
            return self._make_task(function, bind, cast("TaskOptions", options))

        return decorate if function is None else decorate(function)

    def _make_task(
        self,
        function: Callable[..., Any],
        bind: bool,
        options: TaskOptions,
        limits: PayloadLimits = PayloadLimits(),
    ) -> Task[Any, Any]:
        if isinstance(function, Task):
            raise InvalidTask(f"{function.name} is a task already. Use @hf.task once.")
        name = options["name"] if "name" in options else str(getattr(function, "__name__", ""))
        signature = Signature(function, task=name or "<unnamed>", bind=bind, limits=limits)
        settings = check_task_options(options, name, self._defaults)
        keys = (settings.idempotency_key, settings.unique.key if settings.unique else None, *settings.limits.templates)
        for template in keys:
            if template is not None:
                template.check(signature.parameters, extra=signature.accepts_extra)
        unknown = set(settings.redact) - set(signature.parameters)
        if unknown and not signature.accepts_extra:
            raise InvalidOption(f"task {name!r}: redact= names {min(unknown)!r}, which is not one of its arguments.")
        breaker = settings.breaker
        if breaker is not None and self._engine.breakers.get(breaker.name) is not breaker:
            raise InvalidOption(
                f"task {name!r}: breaker= is a breaker of another app. Make one with this app's breaker()."
            )
        kind = AsyncTask if iscoroutinefunction(function) else SyncTask
        task: Task[Any, Any] = kind(self._engine, function, settings, signature, is_bound=bind)
        self._engine.register(task)
        return task

    # ── breakers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def breaker(
        self,
        name: str,
        *,
        failures: int = 5,
        reset: Span = "60s",
        probes: int = 1,
        on: Sequence[type[Exception]] = (),
        ignore: Sequence[type[Exception]] = (),
    ) -> Breaker:
        """Leave alone what keeps failing: `stripe = hf.breaker("stripe")`; for tasks, and for `async with stripe:`.

        After so many `failures` in a row it is open for `reset`, for all processes; then at most `probes` try at once.
        Of the exceptions only those `on` the list count, by default all that would be retried; never those to `ignore`.
        """
        policy = check_policy(failures, reset, probes)
        breaker = Breaker(check_name(name, "breaker(name)"), policy, on, ignore, Doorkeeper(self._engine))
        self._engine.register_breaker(breaker)
        return breaker

    # ── schedules ────────────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    def cron(
        self, expression: str, /, *, bind: Literal[True], **options: Unpack[CronOptions]
    ) -> BoundTaskDecorator: ...
    @overload
    def cron(
        self, expression: str, /, *, bind: Literal[False] = False, **options: Unpack[CronOptions]
    ) -> ScheduleDecorator: ...

    def cron(self, expression: str, /, *, bind: bool = False, **options: Any) -> Any:
        """Enqueue a task by the clock: `@hf.cron("0 9 * * mon-fri", tz="Europe/Paris")`, or `"@daily"`.

        It makes a function a task, and takes its options too; or it schedules a task that is there, and then `name`,
        `queue` and `priority` are the schedule's. `args` are the arguments, unless all have defaults.
        """
        refuse_unknown(options, CronOptions, "cron()")
        return self._scheduled({"cron": expression}, bind, options)

    @overload
    def every(
        self, interval: Span | None = None, /, *, bind: Literal[True], **options: Unpack[EveryOptions]
    ) -> BoundTaskDecorator: ...
    @overload
    def every(
        self, interval: Span | None = None, /, *, bind: Literal[False] = False, **options: Unpack[EveryOptions]
    ) -> ScheduleDecorator: ...

    def every(self, interval: Span | None = None, /, *, bind: bool = False, **options: Any) -> Any:
        """Enqueue a task at an interval, `@hf.every("5m")` or `@hf.every(minutes=5)`: whenever it divides the time
        since 1970 in UTC. The rest is as with `cron`.
        """
        refuse_unknown(options, EveryOptions, "every()")
        timing = {"every": check_interval(interval, options)}
        parts = ("days", "hours", "minutes", "seconds")
        return self._scheduled(timing, bind, {name: options[name] for name in options if name not in parts})

    @overload
    def at(
        self, moment: datetime | str, /, *, bind: Literal[True], **options: Unpack[CronOptions]
    ) -> BoundTaskDecorator: ...
    @overload
    def at(
        self, moment: datetime | str, /, *, bind: Literal[False] = False, **options: Unpack[CronOptions]
    ) -> ScheduleDecorator: ...

    def at(self, moment: datetime | str, /, *, bind: bool = False, **options: Any) -> Any:
        """Enqueue a task once: `@hf.at("2026-12-31 23:59:59", tz="Europe/Paris")`. The rest is as with `cron`."""
        refuse_unknown(options, CronOptions, "at()")
        return self._scheduled({"at": moment}, bind, options)

    def _scheduled(self, timing: Mapping[str, Any], bind: bool, options: Mapping[str, Any]) -> Any:
        timetable = Timetable(timing, options)

        def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
            if isinstance(function, Task):
                timetable.declare_further(self._engine, function)
                return function
            task = self._make_task(function, bind, timetable.task_options)
            timetable.declare(self._engine, task)
            return task

        return decorate

    # ── working ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def worker(
        self,
        queues: Mapping[str, int | None] | Sequence[str] | None = None,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        grace: Span = "30s",
    ) -> EmbeddedWorker:
        """Run jobs in this process and event loop: `async with hf.worker(queues={"default": 10}): …`.

        `queues` gives queues slots of their own; those with None share `concurrency`; without it all queues are served.
        """
        from holdfast.worker.embedded import EmbeddedWorker

        return EmbeddedWorker(self._engine, lambda: locate(self), queues, concurrency, grace)

    def testing(self, url: str | None = None, *, inline: bool = False) -> Rehearsal:
        """Test what the app does with jobs: `with hf.testing() as t: …`, or `async with`.

        Inside, jobs go to a store in memory, or to the database of `url`; time stands until `t.advance("1h")`; and
        they run when `t.run_all()` says so, or with `inline`, as soon as they are enqueued. The app's own store is not
        touched.
        """
        from holdfast.testing.clock import ManualClock
        from holdfast.testing.rehearsal import Rehearsal

        clock = ManualClock(SystemClock().now())
        chosen, _ = _chosen_url("memory://" if url is None else url)
        make_store = _store_maker(chosen, "", self.retention, self._engine.queues, clock, self._work_limit)
        return Rehearsal(self._engine, make_store, clock, inline=inline, is_remote=url is not None)

    # ── around the jobs ──────────────────────────────────────────────────────────────────────────────────────────────

    def on_startup(self, hook: StateHookT) -> StateHookT:
        """Call this once in each worker process, before its first job: `async def connect(state): state.db = …`."""
        check_hook(hook, "on_startup")
        self._engine.hooks.startup.append(hook)
        return hook

    def on_shutdown(self, hook: StateHookT) -> StateHookT:
        """Call this in each worker process after its last job. The last one registered goes first."""
        check_hook(hook, "on_shutdown")
        self._engine.hooks.shutdown.append(hook)
        return hook

    def on_dead(self, function: Callable[[DeadJob], Any], /) -> Task[[DeadJob], Any]:
        """Call this function, as a job of its own, for the dead letters of all tasks. `@task.on_dead`: of one task."""
        return add_dead_handler(self._engine, None, function)

    def middleware(self, manager: MiddlewareT) -> MiddlewareT:
        """Run each job inside this: a function that takes the Context and returns an async context manager.

        The first one registered is outermost. What it raises is what came of the job.
        """
        check_middleware(manager)
        self._engine.hooks.middleware.append(manager)
        return manager

    # ── tasks for others ─────────────────────────────────────────────────────────────────────────────────────────────

    async def apublish_tasks(self) -> None:
        """Store the definitions of this app's tasks, so that other services can `send` them by name."""
        await self._engine.publish_tasks()

    def publish_tasks(self) -> None:
        """`apublish_tasks` for synchronous code."""
        self._engine.wait(self.apublish_tasks(), "hf.apublish_tasks")

    # ── producing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def aenqueue_many(
        self, calls: Iterable[Call[T]], *, tx: object | None = None, wait: Span = "5s"
    ) -> list[Job[T]]:
        """Enqueue calls, made by `task.call(…)`, all or none, in one transaction. Tasks may be mixed."""
        prepared = _checked_calls(calls)
        jobs = self._new_jobs(prepared)
        return _handles(prepared, await self._engine.enqueue(jobs, parse_span(wait, "wait"), tx) if jobs else [])

    def enqueue_many(self, calls: Iterable[Call[T]], *, tx: object | None = None, wait: Span = "5s") -> list[Job[T]]:
        """`aenqueue_many` for synchronous code. With `tx`, the inserts run in this thread on that connection."""
        instead = "hf.aenqueue_many"
        refuse_on_a_loop(instead)
        prepared = _checked_calls(calls)
        jobs, patience = self._new_jobs(prepared), parse_span(wait, "wait")
        if not jobs:
            return []
        if tx is None:
            return _handles(prepared, self._engine.wait(self._engine.enqueue(jobs, patience), instead))
        return _handles(prepared, self._engine.enqueue_in(tx, jobs, instead))

    def _new_jobs(self, calls: Sequence[Call[Any]]) -> list[NewJob]:
        if any(prepared.engine is not self._engine for prepared in {call.prepared for call in calls}):
            raise InvalidOption("enqueue_many() got a call of another app's task. Each app enqueues its own.")
        return [call.new_job(id) for call, id in zip(calls, self._engine.ids.make_many(len(calls)), strict=True)]

    async def asend(self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]) -> Job[Any]:
        """Enqueue a task by name, also from a service without its code; UnknownTask if nobody has published it."""
        settings = check_job_options(options)
        sending = await prepare(self._engine, task, {} if args is None else args, settings)
        return sending.handle(self._engine, await self._engine.enqueue([sending.new], settings.wait, settings.tx))

    def send(self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]) -> Job[Any]:
        """`asend` for synchronous code. With `tx`, the insert runs in this thread on that connection."""
        settings = check_job_options(options)
        if settings.tx is None:
            return self._engine.wait(self.asend(task, args, **options), "hf.asend")
        sending = self._engine.wait(prepare(self._engine, task, args or {}, settings), "hf.asend")
        return sending.handle(self._engine, self._engine.enqueue_in(settings.tx, [sending.new], "hf.asend"))

    def job(self, id: UUID | str) -> Job[Any]:
        """A handle on any job, from its id. `task.job(id)` gives a typed one."""
        return untyped(self._engine, check_id(id))

    # ── lifetime ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def aclose(self) -> None:
        """Finish what is under way and close the database. The app opens it again when it is used again."""
        await self._engine.close()

    def close(self) -> None:
        """`aclose` for synchronous code."""
        self._engine.wait(self.aclose(), "hf.aclose")
        self._engine.close_portal()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self._engine.ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


# ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _checked(value: Any, kind: type[T], name: str) -> T | None:
    if value is not None and not isinstance(value, kind):
        raise InvalidOption(f"{name}= takes {kind.__name__}(…).")
    return value


def _checked_queues(queues: Sequence[Queue]) -> Sequence[Queue]:
    if not isinstance(queues, Sequence) or not all(isinstance(queue, Queue) for queue in queues):
        raise InvalidOption("queues= takes a list of queues, such as [Queue('email', bound=50_000)].")
    names = [queue.name for queue in queues]
    for name in names:
        if names.count(name) > 1:
            raise InvalidOption(f"queues= names {name!r} twice. Leave one out.")
    return tuple(queues)


def _checked_work_limit(work_limit: Span) -> timedelta:
    limit = parse_span(work_limit, "work_limit")
    if not _SHORTEST_WORK <= limit <= _LONGEST_WORK:
        least, most = format_span(_SHORTEST_WORK), format_span(_LONGEST_WORK)
        raise InvalidOption(
            f"work_limit={format_span(limit)} is not from {least} to {most}. "
            "While a task's transaction is open, nobody else can write to the file: keep it short, and do what is slow "
            "before its first statement."
        )
    return limit


def _checked_calls(calls: Iterable[Call[T]]) -> list[Call[T]]:
    """Calls, and not what they are made of."""
    advice = "enqueue_many() takes calls, such as [task.call(1), task.call(2)]."
    if isinstance(calls, Call) or not isinstance(calls, Iterable):
        raise InvalidOption(advice)
    prepared = list(islice(calls, LARGEST_BATCH + 1))
    if not all(isinstance(call, Call) for call in prepared):
        raise InvalidOption(advice)
    check_batch(len(prepared))
    return prepared


def _handles(calls: Sequence[Call[T]], answers: Sequence[Enqueued]) -> list[Job[T]]:
    return [call.handle(answer.id, answer.is_existing) for call, answer in zip(calls, answers, strict=True)]


# ── stores by URL ────────────────────────────────────────────────────────────────────────────────────────────────────


def _chosen_url(given: str | None) -> tuple[str, str]:
    """The URL, and where it comes from, for messages."""
    if given is not None:
        if not isinstance(given, str) or not given:
            raise InvalidURL("The URL must be a text, such as Holdfast('sqlite:///jobs.db').")
        return given, ""
    from_environment = os.environ.get("HOLDFAST_URL")
    return (from_environment, "HOLDFAST_URL: ") if from_environment else (DEFAULT_URL, "")


def _store_maker(
    url: str,
    where: str,
    retention: Retention,
    queues: Sequence[Queue],
    clock: Clock | None = None,
    work_limit: Span = "1s",
) -> Callable[[], Store]:
    """What opens the database of a URL. Everything that can be wrong with the URL is found here, without opening it.

    Without a clock, the store tells time by its own. Only SQLite needs a limit for the work of tasks.
    """
    match _scheme(url, where):
        case "sqlite":
            return _sqlite_maker(_sqlite_path(url, where), retention, queues, clock, work_limit)
        case "memory":
            store = MemoryStore(clock, retention)
            return lambda: store
        case "postgresql" | "postgres":
            return _postgres_maker(url, where, retention, queues, clock)
        case _:
            raise _unknown(url, where)


def open_store(url: str, retention: Retention) -> Store:
    """The store behind a URL, for those who have no app: what happens beside the jobs needs none."""
    return _store_maker(url, "", retention, ())()


def find_installation(url: str | None = None) -> Installation:
    """The tables behind a URL, for their owner. Without one: behind `HOLDFAST_URL`, else in the default file."""
    url, where = _chosen_url(url)
    match _scheme(url, where):
        case "sqlite":
            from holdfast.stores.sqlite.installation import SqliteInstallation

            return SqliteInstallation(_sqlite_path(url, where))
        case "memory":
            raise InvalidURL(f"{where}memory:// keeps jobs in one process only, and has no tables to look after.")
        case "postgresql" | "postgres":
            address = _address(url, where)
            from holdfast.stores.postgres.installation import PostgresInstallation

            return PostgresInstallation(address, without_secrets(url))
        case _:
            raise _unknown(url, where)


def _scheme(url: str, where: str) -> str:
    try:
        return urlsplit(url).scheme
    except ValueError:
        # What Python says may have the password in it.
        raise InvalidURL(
            f"{where}This is not a URL. Use sqlite:///path or postgresql://…, and write what is special in a password "
            "with %, such as %40 for @."
        ) from None


def _unknown(url: str, where: str) -> InvalidURL:
    return InvalidURL(
        f"{where}{without_secrets(url)!r} is not the URL of a database that Holdfast knows. "
        "Use sqlite:///path (four slashes for an absolute path), postgresql://… or memory://."
    )


def _sqlite_maker(
    path: Path, retention: Retention, queues: Sequence[Queue], clock: Clock | None, work_limit: Span
) -> Callable[[], Store]:
    def make() -> Store:
        from holdfast.stores.sqlite import SqliteStore

        return SqliteStore(path, clock=clock, retention=retention, queues=queues, work_limit=work_limit)

    return make


def _postgres_maker(
    url: str, where: str, retention: Retention, queues: Sequence[Queue], clock: Clock | None
) -> Callable[[], Store]:
    address = _address(url, where)
    from holdfast.stores.postgres import PostgresStore

    return lambda: PostgresStore(address, clock=clock, retention=retention, queues=queues)


def _address(url: str, where: str) -> Address:
    if importlib.util.find_spec("asyncpg") is None:
        raise MissingDriver(f"{where}PostgreSQL needs its driver: pip install 'holdfast[postgres]'.")
    from holdfast.stores.postgres.address import Address

    try:
        return Address.parse(url)
    except InvalidURL as error:
        raise InvalidURL(f"{where}{error}") from None


def _sqlite_path(url: str, where: str) -> Path:
    """sqlite:///relative.db and sqlite:////absolute.db, as everywhere. Relative means: to the folder of now."""
    path = unquote(url.removeprefix("sqlite:///"))
    if not url.startswith("sqlite:///") or not path or "\0" in path or "?" in url or "#" in url:
        raise InvalidURL(
            f"{where}{without_secrets(url)!r} does not name a file. Write sqlite:///jobs.db for a file in this folder, "
            "or sqlite:////var/lib/app/jobs.db."
        )
    if path == ":memory:":
        raise InvalidURL(f"{where}A SQLite database in memory would not survive anything. Use memory:// for tests.")
    return Path("/" + path.lstrip("/") if path.startswith("/") else path).expanduser().absolute()


def without_secrets(url: str) -> str:
    """A URL without its password and its parameters, for messages.

    A password may have any character in it that ought to have been written with %, so it ends at the last @.
    """
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    user, at, place = rest.rpartition("@")
    place = place.split("?", maxsplit=1)[0].split("#", maxsplit=1)[0]
    return f"{scheme}{separator}{user.split(':')[0]}{':***' if ':' in user else ''}{at}{place}"
