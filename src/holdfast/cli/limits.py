"""`holdfast limits`: how much of them is used, who waits, and how many they let through."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli.asking import ask
from holdfast.cli.target import App, Url
from holdfast.cli.terminal import AsJson, show, show_json, show_table, shown_time
from holdfast.limits import LimitRecord
from holdfast.span import format_span
from holdfast.store import MOST_WAITING

commands = typer.Typer(help="Look at limits and rates, and set them.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The task's, or the limit's own if it has one.")]
Kind = Annotated[str, typer.Option("--kind", help="limit or rate.")]
Key = Annotated[str, typer.Option("--key", help="Which one, if it has a key: acme. One at a time.")]


@commands.command()
def ls(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only those of this name.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="limit, rate, order or fair.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only those of this key.")] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, max=1000, help="How many at most.")] = 100,
    app: App = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List limits, rates, orders and fairness with what is used; those that jobs wait for first.

    What the code says is shown beside what was set.
    """
    records = ask(app, url, lambda hf: hf.limits.alist(name, kind=kind, key=key, limit=number))  # type: ignore[arg-type]
    if as_json:
        show_json([_as_data(record) for record in records])
        return
    show_table(
        ("KIND", "NAME", "KEY", "USED", "PER", "WAITING", "ROOM AT"),
        [
            (
                record.kind,
                record.name or "-",
                record.key or "-",
                _used(record),
                "-" if record.per is None else format_span(record.per),
                f"{record.waiting:,}{'+' if record.waiting >= MOST_WAITING else ''}",
                shown_time(record.next_at),
            )
            for record in records
        ],
    )


@commands.command()
def set(
    name: Name,
    most: Annotated[int, typer.Argument(metavar="MOST", help="How many to let through.")],
    kind: Kind = "limit",
    key: Key = "",
    app: App = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Let so many through, over what the code says: at once, for all workers, until it is reset.

    A limit that has a key is set for one key at a time; for all of them, change the code.
    """
    _tell(ask(app, url, lambda hf: hf.limits.aset(name, most, kind=kind, key=key)), as_json)  # type: ignore[arg-type]


@commands.command()
def reset(
    name: Name, kind: Kind = "limit", key: Key = "", app: App = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Back to what the code says."""
    _tell(ask(app, url, lambda hf: hf.limits.areset(name, kind=kind, key=key)), as_json)  # type: ignore[arg-type]


# ── telling ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tell(record: LimitRecord, as_json: bool) -> None:
    if as_json:
        show_json(_as_data(record))
        return
    key = f" {record.key}" if record.key else ""
    per = f" per {format_span(record.per)}" if record.per else ""
    show((f"{record.name}{key}", "bold"), f": {record.kind} {_used(record)}{per}")


def _used(record: LimitRecord) -> str:
    if record.most is None:
        return "-"
    is_set = "" if record.override is None else f" (code: {record.declared})"
    return f"{record.used}/{record.most}{is_set}"


def _as_data(record: LimitRecord) -> dict[str, Any]:
    data = msgspec.structs.asdict(record) | {"most": record.most}
    return data | {"per": None if record.per is None else record.per.total_seconds()}
