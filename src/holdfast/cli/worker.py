"""`holdfast worker`: run jobs."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
from typing import Annotated

import typer

from holdfast.cli.terminal import complain, tell
from holdfast.cli.typed import typed_span
from holdfast.errors import InvalidOption, MissingDriver
from holdfast.span import parse_span
from holdfast.supervision.supervisor import Options, Supervisor
from holdfast.worker.slots import DEFAULT_CONCURRENCY, make_slots, parse_queues
from holdfast.worker.telling import set_up_logging

_LARGEST_MEMORY = 1 << 50


def worker(
    app: Annotated[
        str | None, typer.Argument(metavar="MODULE[:NAME]", help="The app, such as shop:hf. [HOLDFAST_APP]")
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", "-q", metavar="NAME[=SLOTS]", help="A queue to serve, with slots of its own. All by default."
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", "-p", min=1, max=1000, help="Child processes; one per core by default.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, max=10_000, help="Jobs at once in each process.")
    ] = DEFAULT_CONCURRENCY,
    grace: Annotated[
        str, typer.Option("--grace", metavar="SPAN", help="How long jobs may go on after a signal to stop.")
    ] = "30s",
    max_jobs: Annotated[
        int | None, typer.Option("--max-jobs", min=1, help="Replace a process after so many jobs.")
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option("--max-memory", metavar="SIZE", help="Replace a process that uses more: 512MB."),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start anew when the code changes. For development.")
    ] = False,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR.")
    ] = "INFO",
) -> None:
    """Run the jobs of an app, in child processes that may be killed at any time.

    SIGTERM or Ctrl-C stops it in good order, twice at once; SIGQUIT shows what runs.
    """
    chosen = app or os.environ.get("HOLDFAST_APP")
    if not chosen:
        raise typer.BadParameter("Name the app, such as `holdfast worker shop:hf`.", param_hint="MODULE[:NAME]")
    level = log_level.upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise typer.BadParameter(f"{log_level!r} is not a level.", param_hint="--log-level")
    options = Options(
        app=chosen,
        slots=make_slots(parse_queues(queue or ()), concurrency),
        processes=processes or _cores(),
        grace=parse_span(typed_span(grace), "--grace").total_seconds(),
        max_jobs=max_jobs,
        max_memory=None if max_memory is None else parse_size(max_memory),
        log_level=level,
        reloads=reload,
    )
    if reload and importlib.util.find_spec("watchfiles") is None:
        raise MissingDriver("--reload needs a package that watches files: pip install 'holdfast[reload]'.")
    set_up_logging(level, "holdfast")
    supervisor = Supervisor(options, show_banner)
    status = asyncio.run(supervisor.run())
    if supervisor.failure:
        complain(f"{chosen} can't be run: see above.")
    raise typer.Exit(status)


def show_banner(supervisor: Supervisor) -> None:
    """What is run, where its jobs are, and with how many hands."""
    options = supervisor.options
    version = importlib.metadata.version("holdfast")
    total = options.processes * options.slots.total
    tell(f"holdfast {version}  {options.app}  {supervisor.place}")
    number = len(supervisor.tasks)
    tell(f"  {number} {'task' if number == 1 else 'tasks'}: {_listed(supervisor.tasks)}")
    if options.processes == 1:
        tell(f"  {options.slots}; {total} jobs at once in one process")
    else:
        tell(f"  {options.slots}; in each of {options.processes} processes, so {total} jobs at once")
    tell(f"  pid {os.getpid()}; Ctrl-C stops, twice at once; SIGQUIT shows what runs")


def _listed(names: list[str], most: int = 8) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "none"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_size(text: str) -> int:
    """`512MB`, `1.5GiB`, in bytes."""
    number = text.strip().upper()
    unit = number.lstrip("0123456789.")
    try:
        size = round(float(number[: len(number) - len(unit)]) * _UNITS[unit.strip()])
    except (KeyError, ValueError):
        raise InvalidOption(f"{text!r} is not a size. Write 512MB or 1GiB.") from None
    if not 1 <= size <= _LARGEST_MEMORY:
        raise InvalidOption(f"{text!r} is not a size that a process can have. Write 512MB or 1GiB.")
    return size
