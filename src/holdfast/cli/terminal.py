"""Data goes to the standard output, as text or as JSON; talk goes to the standard error."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# Lines are never broken here: whoever reads them may be a program, and a terminal breaks them by itself.
_out = Console(soft_wrap=True, highlight=False)
_err = Console(soft_wrap=True, highlight=False, stderr=True)


def show(*parts: str | tuple[str, str]) -> None:
    """Print a line of data; parts may have a style."""
    _out.print(Text.assemble(*parts))


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
    _err.print(Text(message, style="dim"))


def complain(message: str) -> None:
    _err.print(Text.assemble(("Error: ", "bold red"), message))
