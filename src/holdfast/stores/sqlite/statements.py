"""The SQL of the verbs, from the files named after them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any, Protocol

Parameters = Sequence[Any]

_LARGEST_CHUNK = 512
_ROWS = re.compile(r"/\*rows\*/(.*?)/\*rows\*/", re.DOTALL)
_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)


# Read at import: later, in the middle of a transaction, there may be no file handle left.
_TEXTS = {
    file.name.removesuffix(".sql"): _COMMENT.sub("", file.read_text("utf-8")).strip()
    for file in resources.files("holdfast.stores.sqlite").joinpath("sql").iterdir()
    if file.name.endswith(".sql")
}


class Executor(Protocol):
    """What can execute them: a connection of ours, or the caller's own."""

    def execute(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """The rows that a statement answers with."""
        ...

    def change(self, sql: str, parameters: Parameters = ()) -> int:
        """How many rows a statement has changed."""
        ...


def names() -> list[str]:
    return sorted(_TEXTS)


@cache
def statement(name: str, rows: int = 1) -> str:
    """A statement, with the part between its /*rows*/ marks repeated for so many rows.

    Each size is a text of its own, which SQLite compiles once and the driver keeps.
    """
    return _ROWS.sub(lambda match: ", ".join([match[1]] * rows), _TEXTS[name])


@cache
def records_statement(selection: str, rows: int = 1) -> str:
    """A selection of jobs, read as one row of JSON."""
    return statement("records").replace("{jobs}", statement(selection, rows))


def chunks(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Cut rows into chunks whose sizes are powers of two: ten statements serve every number of rows."""
    start, left = 0, len(rows)
    while left:
        size = min(_LARGEST_CHUNK, 1 << (left.bit_length() - 1))
        yield rows[start : start + size]
        start, left = start + size, left - size
