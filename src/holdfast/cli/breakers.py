"""`holdfast breakers`: what is left alone because it kept failing."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.breaker import BreakerRecord, BreakerState
from holdfast.cli.asking import ask
from holdfast.cli.target import App, Url
from holdfast.cli.terminal import AsJson, show, show_json, show_table, shown_time
from holdfast.cli.typed import typed_span
from holdfast.span import format_span

commands = typer.Typer(help="Look at circuit breakers, and steer them.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The breaker.")]

_STYLES = {BreakerState.CLOSED: "green", BreakerState.OPEN: "red", BreakerState.HALF_OPEN: "yellow"}


@commands.command()
def ls(app: App = None, url: Url = None, as_json: AsJson = False) -> None:
    """List all breakers: how they stand, how often in a row they saw a failure, and when they are tried again."""
    records = ask(app, url, lambda hf: hf.breakers.alist())
    if as_json:
        show_json([_as_data(record) for record in records])
        return
    show_table(
        ("NAME", "STATE", "FAILURES", "LAST", "OPENED", "RESET", "PROBES"),
        [
            (
                record.name,
                record.state,
                f"{record.failures}/{record.policy.failures}",
                record.last_error or "-",
                shown_time(record.opened_at),
                shown_time(record.reset_at) if record.reset_at else f"after {format_span(record.policy.reset)}",
                f"{record.probes}/{record.policy.probes}",
            )
            for record in records
        ],
    )


@commands.command()
def reset(name: Name, app: App = None, url: Url = None, as_json: AsJson = False) -> None:
    """Close a breaker at once, and forget its failures. Jobs that wait for it go on."""
    _tell(ask(app, url, lambda hf: hf.breakers.areset(name)), as_json)


@commands.command()
def open(
    name: Name,
    span: Annotated[
        str | None, typer.Option("--for", metavar="SPAN", help="How long: 2h. Its reset time by default.")
    ] = None,
    app: App = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Open a breaker at once, because what is behind it is known to be away."""
    _tell(ask(app, url, lambda hf: hf.breakers.aopen(name, None if span is None else typed_span(span))), as_json)


def _tell(record: BreakerRecord, as_json: bool) -> None:
    if as_json:
        show_json(_as_data(record))
        return
    until = f" until {shown_time(record.reset_at)}" if record.reset_at else ""
    show((record.name, "bold"), ": ", (str(record.state), _STYLES[record.state]), until)


def _as_data(record: BreakerRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "state": record.state,
        "failures": record.failures,
        "opened_at": record.opened_at,
        "reset_at": record.reset_at,
        "reset_in": None if record.reset_in is None else record.reset_in.total_seconds(),
        "probes": record.probes,
        "openings": record.openings,
        "last_error": record.last_error,
        "policy": {
            "failures": record.policy.failures,
            "reset": record.policy.reset.total_seconds(),
            "probes": record.policy.probes,
        },
    }
