"""Holdfast: the composition root. The only module that picks concrete drivers."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from inspect import iscoroutinefunction
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload
from urllib.parse import unquote, urlsplit
from uuid import UUID

from holdfast.clock import SystemClock
from holdfast.engine import Engine
from holdfast.errors import InvalidOption, InvalidTask, InvalidURL, MissingDriver
from holdfast.handle import Job, untyped
from holdfast.ids import check_id
from holdfast.namespaces import Dead, Jobs, Queues, Workers
from holdfast.options import JobOptions, TaskDefaults, TaskOptions, check_task_options
from holdfast.sending import send
from holdfast.signature import Signature
from holdfast.span import Span, parse_span
from holdfast.store import Queue, Retention, Store, check_batch
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.task import AsyncTask, BoundTaskDecorator, Call, SyncTask, Task, TaskDecorator

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_URL = "sqlite:///holdfast.db"


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
    ) -> None:
        self.url = url or os.environ.get("HOLDFAST_URL") or DEFAULT_URL
        self.imports = tuple(imports)
        self._defaults = defaults or TaskDefaults()
        self._engine = Engine(_store_maker(self.url, retention or Retention()), SystemClock(), queues=queues)
        self.jobs = Jobs(self._engine)
        self.dead = Dead(self._engine)
        self.queues = Queues(self._engine)
        self.workers = Workers(self._engine)

    def __repr__(self) -> str:
        return f"<Holdfast {_without_password(self.url)}>"

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

    def _make_task(self, function: Callable[..., Any], bind: bool, options: TaskOptions) -> Task[Any, Any]:
        if isinstance(function, Task):
            raise InvalidTask(f"{function.name} is a task already. Use @hf.task once.")
        name = options["name"] if "name" in options else str(getattr(function, "__name__", ""))
        signature = Signature(function, task=name or "<unnamed>", bind=bind)
        settings = check_task_options(options, name, self._defaults)
        for template in (settings.idempotency_key, settings.unique.key if settings.unique else None):
            if template is not None:
                template.check(signature.parameters, extra=signature.accepts_extra)
        unknown = set(settings.redact) - set(signature.parameters)
        if unknown and not signature.accepts_extra:
            raise InvalidOption(f"task {name!r}: redact= names {min(unknown)!r}, which is not one of its arguments.")
        kind = AsyncTask if iscoroutinefunction(function) else SyncTask
        task: Task[Any, Any] = kind(self._engine, function, settings, signature, is_bound=bind)
        self._engine.register(task)
        return task

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
        prepared = list(calls)
        if not prepared:
            return []
        check_batch(len(prepared))
        jobs = [call.new_job(id) for call, id in zip(prepared, self._engine.ids.make_many(len(prepared)), strict=True)]
        answers = await self._engine.enqueue(jobs, parse_span(wait, "wait"), tx)
        return [call.handle(answer.id, answer.is_existing) for call, answer in zip(prepared, answers, strict=True)]

    def enqueue_many(self, calls: Iterable[Call[T]], *, tx: object | None = None, wait: Span = "5s") -> list[Job[T]]:
        """`aenqueue_many` for synchronous code. With `tx`, the inserts run in this thread on that connection."""
        if tx is None:
            return self._engine.wait(self.aenqueue_many(calls, wait=wait), "hf.aenqueue_many")
        prepared = list(calls)
        jobs = [call.new_job(self._engine.ids.make()) for call in prepared]
        answers = self._engine.enqueue_in(tx, jobs, "hf.aenqueue_many") if jobs else []
        return [call.handle(answer.id, answer.is_existing) for call, answer in zip(prepared, answers, strict=True)]

    async def asend(self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]) -> Job[Any]:
        """Enqueue a task by name, also from a service without its code; UnknownTask if nobody has published it."""
        return await send(self._engine, task, args or {}, options)

    def send(self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]) -> Job[Any]:
        """`asend` for synchronous code."""
        return self._engine.wait(self.asend(task, args, **options), "hf.asend")

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

    async def __aenter__(self) -> Self:
        await self._engine.ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


# ── stores by URL ────────────────────────────────────────────────────────────────────────────────────────────────────


def _store_maker(url: str, retention: Retention) -> Callable[[], Store]:
    """What opens the database of a URL. Everything that can be wrong with the URL is found here, without opening it."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidURL(
            f"{_without_password(url)!r} is not a URL: {error}. Use sqlite:///path or memory://."
        ) from None
    match parts.scheme:
        case "sqlite":
            path = _sqlite_path(url)
            return lambda: SqliteStore(path, retention=retention)
        case "memory":
            store = MemoryStore(retention=retention)
            return lambda: store
        case "postgresql" | "postgres":
            if importlib.util.find_spec("asyncpg") is None:
                raise MissingDriver("PostgreSQL needs its driver: pip install 'holdfast[postgres]'.")
            raise InvalidURL("This version of Holdfast has no PostgreSQL store yet. Use sqlite:///path.")
        case _:
            raise InvalidURL(
                f"{_without_password(url)!r} is not the URL of a database that Holdfast knows. "
                "Use sqlite:///path (four slashes for an absolute path) or memory://."
            )


def _sqlite_path(url: str) -> Path:
    """sqlite:///relative.db and sqlite:////absolute.db, as everywhere. Relative means: to the folder of now."""
    path = unquote(url.removeprefix("sqlite:///"))
    if not url.startswith("sqlite:///") or not path or "\0" in path or "?" in url or "#" in url:
        raise InvalidURL(
            f"{url!r} does not name a file. Write sqlite:///jobs.db for a file in this folder, "
            "or sqlite:////var/lib/app/jobs.db."
        )
    if path == ":memory:":
        raise InvalidURL("A SQLite database in memory would not survive anything. Use memory:// for tests.")
    return Path(path).expanduser().absolute()


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
        if parts.password is None:
            return url
        return url.replace(f":{parts.password}@", ":***@")
    except ValueError:
        return url.rsplit("@", maxsplit=1)[-1]
