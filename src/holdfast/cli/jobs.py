"""`holdfast jobs`: single jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.asking import ask
from holdfast.cli.target import App, Url
from holdfast.cli.terminal import AsJson, show, show_json

commands = typer.Typer(help="Look at jobs.", no_args_is_help=True, rich_markup_mode=None)

Id = Annotated[str, typer.Argument(metavar="ID", help="The job, by its id.")]


@commands.callback()
def _group() -> None:
    """Makes it a group also while it has one command."""


@commands.command()
def explain(id: Id, app: App = None, url: Url = None, as_json: AsJson = False) -> None:
    """Say why a job does not run, or what it does: all reasons that hold, the decisive one first."""
    explanation = ask(app, url, lambda hf: hf.jobs.aexplain(id))
    if as_json:
        show_json(explanation)
    else:
        show(str(explanation))
