"""What stands in the schema holdfast, compared with what this version expects there.

What is expected is written down in expected.json, from a database that was migrated: see CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from holdfast.installation import Finding, Severity

if TYPE_CHECKING:
    from holdfast.stores.postgres.migrate import Raw

_FILES = resources.files(__name__)
_MOST_RIGHTS = 6


class Thing(msgspec.Struct, frozen=True, array_like=True):
    """A table, or what belongs to one; a type, a sequence, a function."""

    kind: str
    owner: str
    """The table that it belongs to, or its own name."""
    name: str
    definition: str
    is_usable: bool = True

    def __str__(self) -> str:
        return f"The {self.kind} {self.name}{f' of {self.owner}' if self.is_part else ''}"

    @property
    def is_part(self) -> bool:
        """Whether it belongs to a table."""
        return self.kind in ("column", "constraint", "index", "trigger")

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.owner, self.name


class Catalog(msgspec.Struct, frozen=True):
    """All of them, for one schema number."""

    schema: int
    things: list[Thing]


@cache
def expected() -> Catalog:
    return msgspec.json.decode(_FILES.joinpath("expected.json").read_bytes(), type=Catalog)


def question(name: str) -> str:
    return _FILES.joinpath(f"{name}.sql").read_text("utf-8")


async def read(connection: Raw) -> list[Thing]:
    """What is there. In a transaction, where names are written out in full."""
    await connection.execute("set local search_path = pg_catalog")
    return sorted((Thing(*row) for row in await connection.fetch(question("objects"))), key=lambda thing: thing.key)


def compare(wanted: Iterable[Thing], found: Iterable[Thing]) -> list[Finding]:
    """Every difference. Of a table that is missing, its columns and indexes are not mentioned."""
    needed = {thing.key: thing for thing in wanted}
    there = {thing.key: thing for thing in found}
    old, new = _tables(needed), _tables(there)
    findings = []
    for key, thing in needed.items():
        twin = there.get(key)
        if twin is None:
            if not thing.is_part or thing.owner in new:
                findings.append(Finding(Severity.WRONG, f"{thing} is missing.", _put_back(thing)))
        elif twin.definition != thing.definition:
            findings.append(_changed(thing, twin))
        elif not twin.is_usable:
            findings.append(_unusable(twin))
    for key, thing in there.items():
        if key not in needed and not (thing.is_part and thing.owner in new - old):
            findings.append(_extra(thing))
    return findings


def _tables(keys: Iterable[tuple[str, str, str]]) -> set[str]:
    return {name for kind, _, name in keys if kind == "table"}


def _put_back(thing: Thing) -> str:
    match thing.kind:
        case "table":
            return "Restore it from a backup. Empty, it is made as `holdfast db sql` prints it."
        case "column":
            return f"Run: alter table holdfast.{thing.owner} add column {thing.name} {thing.definition};"
        case "constraint":
            return f"Run: alter table holdfast.{thing.owner} add constraint {thing.name} {thing.definition};"
        case "index":
            return f"Run: {_concurrently(thing)};"
        case _:
            return f"Run what `holdfast db sql` prints for holdfast.{thing.owner}."


def _changed(thing: Thing, twin: Thing) -> Finding:
    match thing.kind:
        case "function":
            problem = f"{thing} is not the one that Holdfast made."
            advice = f"Run what `holdfast db sql` prints for holdfast.{thing.owner}, as create or replace function."
        case "index":
            problem = f"{thing} is another one: {twin.definition}."
            advice = f"Run: drop index concurrently holdfast.{thing.name}; {_concurrently(thing)};"
        case _:
            problem = f"{thing} is not as it was: {twin.definition}, instead of {thing.definition}."
            advice = "Change it back."
    return Finding(Severity.WRONG, problem, advice)


def _concurrently(index: Thing) -> str:
    return index.definition.replace(" INDEX ", " INDEX CONCURRENTLY ", 1)


def _unusable(thing: Thing) -> Finding:
    if thing.kind == "index":
        return Finding(
            Severity.WRONG,
            f"{thing} is INVALID: its building was interrupted, and it is never used.",
            f"Run: reindex index concurrently holdfast.{thing.name};",
        )
    return Finding(
        Severity.WRONG,
        f"{thing} is not validated.",
        f"Run: alter table holdfast.{thing.owner} validate constraint {thing.name};",
    )


def _extra(thing: Thing) -> Finding:
    if thing.kind == "column" and "not null" in thing.definition and "default" not in thing.definition:
        return Finding(
            Severity.WRONG,
            f"{thing} is not Holdfast's, and must be filled: no row can be inserted.",
            f"Run: alter table holdfast.{thing.owner} drop column {thing.name};",
        )
    if thing.kind == "index" and not thing.is_usable:
        return Finding(
            Severity.WARNING,
            f"{thing} is not Holdfast's, and INVALID: its building was interrupted, but every write pays for it.",
            f"Run: drop index concurrently holdfast.{thing.name};",
        )
    return Finding(
        Severity.WARNING,
        f"{thing} is not Holdfast's.",
        "It may be in the way of a migration. What is yours has a better place outside of the schema holdfast.",
    )


def lacking_rights(lacking: Sequence[str], role: str) -> Finding:
    """`role` is quoted as SQL needs it."""
    more = f" and {len(lacking) - _MOST_RIGHTS} more" if len(lacking) > _MOST_RIGHTS else ""
    return Finding(
        Severity.WRONG,
        f"The role {role} lacks rights: {', '.join(lacking[:_MOST_RIGHTS])}{more}.",
        f"Let the owner of the schema run: grant usage on schema holdfast to {role}; "
        f"grant select, insert, update, delete on all tables in schema holdfast to {role}; "
        f"grant usage on all sequences in schema holdfast to {role}; "
        f"grant execute on all functions in schema holdfast to {role};",
    )
