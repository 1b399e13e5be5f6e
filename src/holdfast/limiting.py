"""Steering limits: `hf.limits`."""

from __future__ import annotations

import difflib
from typing import Literal

from holdfast.errors import InvalidOption, LimitNotFound
from holdfast.gates import GateKind, GateRule
from holdfast.limits import LimitDefinition, LimitKind, LimitRecord, check_most, gate_kind
from holdfast.namespaces import Namespace
from holdfast.store import Store, check_limit, check_name

_LONGEST_KEY = 512
_SETTABLE = (GateKind.LIMIT, GateKind.RATE)


class Limits(Namespace):
    """Limits, rates, orders and fairness as they stand, each key by itself; and how many they let through.

    What is set here overrides what the code says, for all workers and at once, until it is reset; a record shows both.
    """

    async def alist(
        self, name: str | None = None, *, kind: LimitKind | None = None, key: str | None = None, limit: int = 100
    ) -> list[LimitRecord]:
        """Those that are used, or were lately: first those that jobs wait for, then by name and key."""
        wanted = None if kind is None else gate_kind(kind)
        store = await self._engine.ready()
        return await store.limits(_check_name(name), wanted, _check_key(key), check_limit(limit))

    def list(
        self, name: str | None = None, *, kind: LimitKind | None = None, key: str | None = None, limit: int = 100
    ) -> list[LimitRecord]:
        """`alist` for synchronous code."""
        return self._engine.wait(self.alist(name, kind=kind, key=key, limit=limit), "hf.limits.alist")

    async def aset(
        self, name: str, most: int, *, kind: Literal["limit", "rate"] = "limit", key: str = ""
    ) -> LimitRecord:
        """Let so many through, over what the code says. `name` is the task's, unless the limit has one of its own.

        If it has a key, `key` says which one: it is set for one key at a time, and the others stay as they are. What
        runs goes on.
        """
        check_most(most, "most")
        store = await self._engine.ready()
        rule, is_declared = await _find(store, name, kind, key)
        record = await store.override_limit(rule, most, makes=is_declared)
        if record is None:
            raise LimitNotFound(await _unknown(store, rule))
        return record

    def set(self, name: str, most: int, *, kind: Literal["limit", "rate"] = "limit", key: str = "") -> LimitRecord:
        """`aset` for synchronous code."""
        return self._engine.wait(self.aset(name, most, kind=kind, key=key), "hf.limits.aset")

    async def areset(self, name: str, *, kind: Literal["limit", "rate"] = "limit", key: str = "") -> LimitRecord:
        """Back to what the code says."""
        store = await self._engine.ready()
        rule, _ = await _find(store, name, kind, key)
        record = await store.override_limit(rule, None, makes=False)
        if record is None:
            raise LimitNotFound(await _unknown(store, rule))
        return record

    def reset(self, name: str, *, kind: Literal["limit", "rate"] = "limit", key: str = "") -> LimitRecord:
        """`areset` for synchronous code."""
        return self._engine.wait(self.areset(name, kind=kind, key=key), "hf.limits.areset")


async def _find(store: Store, name: str, kind: str, key: str) -> tuple[GateRule, bool]:
    """The gate that somebody means, and whether a task that is published has such a limit."""
    wanted = gate_kind(kind)
    if wanted not in _SETTABLE:
        raise InvalidOption("Only a limit and a rate can be set: an order lets one through, and fairness all.")
    check_name(name, "name")
    _check_key(key)
    for definition in await _definitions(store):
        if (definition.kind, definition.name) == (wanted, name):
            _compare(definition, key)
            return GateRule(wanted, name, key, definition.most, definition.per, definition.is_blocking), True
    return GateRule(wanted, name, key), False


def _compare(definition: LimitDefinition, key: str) -> None:
    """A limit without its key would be another one, which nobody uses."""
    if definition.key is None and key:
        raise InvalidOption(f"The {definition.kind.name.lower()} {definition.name!r} has no key. Leave key= out.")
    if definition.key is not None and not key:
        what = f"{definition.kind.name.lower()} {definition.name!r}"
        raise InvalidOption(
            f"The {what} has a key, {definition.key}, and is set for one key at a time. Say which one: key='acme'. "
            "To change it for all of them, change the code."
        )


async def _definitions(store: Store) -> list[LimitDefinition]:
    return [definition for task in await store.tasks() for definition in task.definition.limits]


async def _unknown(store: Store, rule: GateRule) -> str:
    kind = rule.kind.name.lower()
    names = sorted({each.name for each in await _definitions(store) if each.kind is rule.kind})
    near = difflib.get_close_matches(rule.name, names, 1)
    if rule.name in names:
        return f"Nothing is set or used for the {kind} {rule.name!r} {rule.key!r}. Look at hf.limits.list()."
    hint = f"Did you mean {near[0]!r}?" if near else "Look for its name among hf.limits.list()."
    return f"There is no {kind} {rule.name!r}. {hint}"


def _check_name(name: object) -> str | None:
    return "" if name == "" else None if name is None else check_name(name, "name")


def _check_key(key: object) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str) or len(key) > _LONGEST_KEY or not (key == "" or key.isprintable()):
        raise InvalidOption(f"key must be at most {_LONGEST_KEY} printable characters, as hf.limits.list() has it.")
    return key
