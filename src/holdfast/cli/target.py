"""Which database a command is about: that of an app, or that of a URL."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from holdfast.app import Holdfast, find_installation
from holdfast.errors import StoreUnavailable
from holdfast.installation import Installation
from holdfast.loading import load_app

App = Annotated[
    str | None, typer.Option("--app", metavar="MODULE[:NAME]", help="The app whose database it is. [HOLDFAST_APP]")
]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="The database itself. [HOLDFAST_URL]")]


def chosen_url(app: str | None, url: str | None) -> str | None:
    """The URL that was named, or that the named app has; None if nothing was named.

    An app without a URL of its own looks for HOLDFAST_URL by itself, so HOLDFAST_APP goes first.
    """
    if app is not None and url is not None:
        raise typer.BadParameter("Name an app or a URL, not both.", param_hint="--app / --url")
    if url is not None:
        return url
    app = app or os.environ.get("HOLDFAST_APP")
    if app:
        return load_app(app).url
    return os.environ.get("HOLDFAST_URL")


def chosen_app(app: str | None, url: str | None) -> Holdfast:
    """The app that was named; or one without tasks, on the database that was named."""
    named = app or (os.environ.get("HOLDFAST_APP") if url is None else None)
    if named and url is None:
        return load_app(named)
    return Holdfast(chosen_url(app, url))


async def refuse_without_tables(app: Holdfast) -> None:
    """StoreUnavailable if there is nothing in its database yet: whoever asks a question does not want it created."""
    installation = find_installation(app.url)
    if not await installation.schema():
        raise StoreUnavailable(
            f"There is nothing of Holdfast's at {installation.place}. Start a worker, or run `holdfast db migrate`; or "
            "name another database."
        )


def chosen_installation(app: str | None, url: str | None) -> Installation:
    """The tables of that database; by default, of the file that an app without a URL uses."""
    return find_installation(chosen_url(app, url))
