"""Data goes to the standard output, as text or as JSON; talk goes to the standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

if TYPE_CHECKING:
    # Imported by whoever prints in colours: it takes as long as half of Holdfast, and a worker under a service manager
    # starts without.
    from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@cache
def _console(*, is_for_data: bool) -> Console:
    """Lines are never broken here: whoever reads them may be a program, and a terminal breaks them by itself."""
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, stderr=not is_for_data)


def show(*parts: str | tuple[str, str]) -> None:
    """Print a line of data; parts may have a style."""
    from rich.text import Text

    _console(is_for_data=True).print(Text.assemble(*parts))


def show_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of data in columns."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for index, row in enumerate((titles, *rows)):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        show((line, "bold" if index == 0 else ""))


def show_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def shown_time(time: datetime | None) -> str:
    return "-" if time is None else f"{time:%Y-%m-%d %H:%M:%SZ}"


def tell(message: str) -> None:
    """Say something that is not the answer."""
    _say((message, "dim"))


def complain(message: str) -> None:
    _say(("Error: ", "bold red"), message)


def _say(*parts: str | tuple[str, str]) -> None:
    if not _may_have_styles():
        text = "".join(part if isinstance(part, str) else part[0] for part in parts)
        # As Rich does it: what others have written somewhere must not steer a terminal that shows this later.
        sys.stderr.write("".join(each for each in text if each.isprintable() or each in "\n\t") + "\n")
        sys.stderr.flush()
        return
    from rich.text import Text

    _console(is_for_data=False).print(Text.assemble(*parts))


def _may_have_styles() -> bool:
    """Whether somebody looks, or wants it to be as if: then Rich decides."""
    return sys.stderr.isatty() or bool(os.environ.keys() & {"FORCE_COLOR", "TTY_COMPATIBLE"})
