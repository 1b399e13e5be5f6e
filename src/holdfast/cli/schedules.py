"""`holdfast schedules`: what is enqueued again and again."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli.asking import ask
from holdfast.cli.target import App, Url
from holdfast.cli.terminal import AsJson, show, show_json, show_table, shown_time
from holdfast.cli.typed import typed_span
from holdfast.clock import SystemClock
from holdfast.planning import PlanOptions
from holdfast.schedule import Plan, ScheduleRecord
from holdfast.timing import find_zone

commands = typer.Typer(help="Look at schedules, add them, and steer them.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]
Cron = Annotated[str | None, typer.Option("--cron", metavar="FIELDS", help="'0 9 * * mon-fri', or @daily.")]
Every = Annotated[str | None, typer.Option("--every", metavar="SPAN", help="An interval: 5m.")]
At = Annotated[str | None, typer.Option("--at", metavar="TIME", help="Once: '2026-12-31 23:59:59'.")]
CatchUp = Annotated[str | None, typer.Option("--catchup", help="Missed ticks: skip, once or all.")]
Overlap = Annotated[str | None, typer.Option("--overlap", help="Unfinished jobs: skip or queue.")]
Jitter = Annotated[str | None, typer.Option("--jitter", metavar="SPAN", help="Delay jobs by a part of it.")]
Arguments = Annotated[str | None, typer.Option("--args", metavar="JSON", help='The arguments: {"tenant": "a"}.')]
Queue = Annotated[str | None, typer.Option("--queue", help="Another queue than the task's.")]
Priority = Annotated[str | None, typer.Option("--priority", help="Another priority: 0 to 9, high or low.")]

_STYLES = {"active": "green", "paused": "yellow", "removed": "red", "orphaned": "yellow", "over": "dim"}


@commands.command()
def ls(app: App = None, url: Url = None, as_json: AsJson = False) -> None:
    """List all schedules: when they fire, what they enqueue, and how they stand.

    One that is "changed" does not do what the code says; one that is "orphaned" is in no running worker's code.
    """
    records = ask(app, url, lambda hf: hf.schedules.aall())
    if as_json:
        show_json([_as_data(record) for record in records])
        return
    show_table(
        ("NAME", "WHEN", "TASK", "STATE", "NEXT", "LAST"),
        [
            (
                record.name,
                record.plan.in_words,
                record.plan.task,
                _state(record) + (", changed" if _is_changed(record) else ""),
                shown_time(record.next_tick),
                shown_time(record.last_tick),
            )
            for record in records
        ],
    )


@commands.command()
def next(
    name: Name,
    number: Annotated[int, typer.Option("--number", "-n", min=1, max=1000, help="How many.")] = 5,
    app: App = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print when a schedule fires next, in UTC and in its own time zone."""
    record = ask(app, url, lambda hf: hf.schedules.aget(name))
    ticks = record.next_ticks(number)
    if as_json:
        show_json(ticks)
        return
    zone = find_zone(record.plan.tz)
    for tick in ticks:
        local = "" if record.plan.tz == "UTC" else f"  {tick.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"
        show(shown_time(tick), (local, "dim"))


@commands.command()
def add(
    name: Name,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task, by name.")],
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    tz: Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="Europe/Paris; UTC by default.")] = None,
    catchup: CatchUp = None,
    overlap: Overlap = None,
    jitter: Jitter = None,
    args: Arguments = None,
    queue: Queue = None,
    priority: Priority = None,
    app: App = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Schedule a task that some worker has published. It fires from now on, never for the past."""
    options = _options(cron, every, at, tz, catchup, overlap, jitter, args, queue, priority)
    _tell(ask(app, url, lambda hf: hf.schedules.aadd(name, task, **options)), as_json)


@commands.command()
def change(
    name: Name,
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    tz: Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="Europe/Paris; as before by default.")] = None,
    catchup: CatchUp = None,
    overlap: Overlap = None,
    jitter: Jitter = None,
    args: Arguments = None,
    queue: Queue = None,
    priority: Priority = None,
    app: App = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Change some of a schedule, over what the code says. If that is when it fires, it counts from now."""
    options = _options(cron, every, at, tz, catchup, overlap, jitter, args, queue, priority)
    if not options:
        raise typer.BadParameter("Say what to change, as in --cron '0 9 * * *'.", param_hint="OPTIONS")
    _tell(ask(app, url, lambda hf: hf.schedules.achange(name, **options)), as_json)


@commands.command()
def rm(name: Name, app: App = None, url: Url = None, as_json: AsJson = False) -> None:
    """Remove a schedule. One of the code's stays away until it is reset, whatever workers start."""
    ask(app, url, lambda hf: hf.schedules.aremove(name))
    if as_json:
        show_json({"name": name, "state": "removed"})
    else:
        show("removed ", (name, "bold"))


@commands.command()
def run(name: Name, app: App = None, url: Url = None, as_json: AsJson = False) -> None:
    """Enqueue a job of a schedule now, beside its ticks, and print its id."""
    job = ask(app, url, lambda hf: hf.schedules.arun(name))
    if as_json:
        show_json({"id": job.id, "schedule": name})
    else:
        show(str(job.id))


@commands.command()
def pause(name: Name, app: App = None, url: Url = None, as_json: AsJson = False) -> None:
    """Let a schedule make no more jobs. Ticks that pass meanwhile are not missed."""
    _tell(ask(app, url, lambda hf: hf.schedules.apause(name)), as_json)


@commands.command()
def resume(name: Name, app: App = None, url: Url = None, as_json: AsJson = False) -> None:
    """Let a schedule go on, with its first tick from now."""
    _tell(ask(app, url, lambda hf: hf.schedules.aresume(name)), as_json)


@commands.command()
def reset(name: Name, app: App = None, url: Url = None, as_json: AsJson = False) -> None:
    """Back to what the code says: neither changed, nor paused, nor removed."""
    _tell(ask(app, url, lambda hf: hf.schedules.areset(name)), as_json)


# ── arguments ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _options(
    cron: str | None,
    every: str | None,
    at: str | None,
    tz: str | None,
    catchup: str | None,
    overlap: str | None,
    jitter: str | None,
    args: str | None,
    queue: str | None,
    priority: str | None,
) -> PlanOptions:
    """Those that were given."""
    given = {
        "cron": cron,
        "every": None if every is None else typed_span(every),
        "at": at,
        "tz": tz,
        "catchup": catchup,
        "overlap": overlap,
        "jitter": None if jitter is None else typed_span(jitter),
        "args": None if args is None else _arguments(args),
        "queue": queue,
        "priority": int(priority) if priority is not None and priority.isdecimal() else priority,
    }
    return {name: value for name, value in given.items() if value is not None}  # type: ignore[return-value]


def _arguments(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"This is not JSON: {error}.", param_hint="--args") from None


# ── telling ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tell(record: ScheduleRecord, as_json: bool) -> None:
    if as_json:
        show_json(_as_data(record))
        return
    state = _state(record)
    coming = f", next {shown_time(record.next_tick)}" if record.next_tick else ""
    show((record.name, "bold"), f": {record.plan.in_words}, ", (state, _STYLES[state]), coming)


def _state(record: ScheduleRecord) -> str:
    if record.is_removed:
        return "removed"
    if record.is_paused:
        return "paused"
    if record.is_orphaned(SystemClock().now()):
        return "orphaned"
    return "over" if record.next_tick is None else "active"


def _is_changed(record: ScheduleRecord) -> bool:
    return record.declared is not None and record.override is not None


def _as_data(record: ScheduleRecord) -> dict[str, Any]:
    """All but the arguments, which may be secret."""
    return {
        "name": record.name,
        "state": _state(record),
        "source": record.source,
        "is_changed": _is_changed(record),
        "when": record.plan.in_words,
        "plan": _plan_data(record.plan),
        "declared": None if record.declared is None else _plan_data(record.declared),
        "next": record.next_ticks(5),
        "last_tick": record.last_tick,
        "last_job": record.last_job,
        "fired": record.fired,
        "skipped": record.skipped,
        "last_skipped": record.last_skipped,
    }


def _plan_data(plan: Plan) -> dict[str, Any]:
    data = {name: value for name, value in msgspec.structs.asdict(plan).items() if name != "args_json"}
    return {name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in data.items()}
