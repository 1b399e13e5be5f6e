"""`holdfast`: all groups of commands, and what happens when one fails."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from holdfast.cli import breakers, db, jobs, limits, schedules, worker
from holdfast.cli.status import status_of
from holdfast.cli.terminal import complain, tell
from holdfast.errors import HoldfastError
from holdfast.loading import CantLoad

commands = typer.Typer(
    name="holdfast",
    help="Background jobs that survive the crash.",
    no_args_is_help=True,
    rich_markup_mode=None,
    # A traceback with the values of variables would show passwords.
    pretty_exceptions_enable=False,
)
commands.add_typer(breakers.commands, name="breakers")
commands.add_typer(db.commands, name="db")
commands.add_typer(jobs.commands, name="jobs")
commands.add_typer(schedules.commands, name="schedules")
commands.add_typer(limits.commands, name="limits")
commands.command()(worker.worker)


def main() -> None:
    """Run a command, and end the process with its status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not know every character
    try:
        commands(prog_name="holdfast")
    except HoldfastError as error:
        if isinstance(error, CantLoad) and error.trace:
            tell(error.trace)
        complain(str(error))
        sys.exit(status_of(error))


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        import importlib.metadata

        typer.echo(f"holdfast {importlib.metadata.version('holdfast')}")
        raise typer.Exit


@commands.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version, and end.")
    ] = False,
) -> None:
    pass
