"""The SQL of the verbs, from the files named after them."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)

# Read at import: later there may be no file handle left.
_TEXTS = {
    file.name.removesuffix(".sql"): _COMMENT.sub("", file.read_text("utf-8")).strip()
    for file in resources.files("holdfast.stores.postgres").joinpath("sql").iterdir()
    if file.name.endswith(".sql")
}


_ABOUT_A_JOB = frozenset(name for name, text in _TEXTS.items() if "{job}" in text)
_TEXTS["start"] = _TEXTS["start"].replace(
    "{traffic}", _TEXTS["save_traffic"].removesuffix("select queues from room").strip()
)


def statement(name: str) -> str:
    """A statement. Where it says {job} stands one that gives a job, as `rows.record` reads it."""
    if name in _ABOUT_A_JOB:
        return _TEXTS[name].replace("{job}", records_statement("select_by_id"))
    return _TEXTS[name]


def names() -> list[str]:
    return sorted(_TEXTS)


@cache
def records_statement(selection: str) -> str:
    """A selection of jobs, as `rows.record` reads them."""
    return records_of(_TEXTS[selection])


def records_of(selection: str) -> str:
    return _TEXTS["records"].replace("{jobs}", selection)
