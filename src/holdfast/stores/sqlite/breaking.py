"""Breakers in a SQLite file. All that the verbs write in one transaction, in the writer's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from holdfast import breaker
from holdfast.breaker import Admission, BreakerPolicy, BreakerRecord, BreakerReport, BreakerState, Circuit
from holdfast.errors import BreakerNotFound
from holdfast.job import JobRecord
from holdfast.store import BreakerChange, HintKind
from holdfast.stores.sqlite.connection import Connection
from holdfast.stores.sqlite.statements import chunks, statement
from holdfast.stores.sqlite.transaction import Transaction

_circuits = msgspec.json.Decoder(list[Circuit])


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def declare(it: Transaction, policies: Mapping[str, BreakerPolicy], code_age: timedelta | None) -> list[BreakerRecord]:
    there = _load(it, policies)
    code_from = it.now - (code_age or timedelta(0))
    after = {name: breaker.declare(there.get(name), name, policy, code_from) for name, policy in policies.items()}
    return _save(it, there, after)


def enter(it: Transaction, name: str, id: UUID) -> Admission:
    there = _load(it, [name])
    after, admission = breaker.admit(_one(there, name), id, it.now)
    _save(it, there, {name: after})
    return admission


def report(it: Transaction, reports: Sequence[BreakerReport]) -> list[BreakerRecord]:
    there = _load(it, (report.breaker for report in reports))
    return _save(it, there, breaker.note_all(there, reports, it.now))


def change(it: Transaction, name: str, make: BreakerChange) -> BreakerRecord:
    there = _load(it, [name])
    [record] = _save(it, there, {name: make(_one(there, name), it.now)})
    return record


def behind(it: Transaction, name: str, most: int) -> list[JobRecord]:
    """Jobs that wait for a breaker which is closed."""
    circuit = _load(it, [name]).get(name)
    if circuit is None or breaker.state_of(circuit, it.now) is not BreakerState.CLOSED:
        return []
    return it.records("select_behind_breaker", (name, most))


def _one(there: Mapping[str, Circuit], name: str) -> Circuit:
    if name not in there:
        raise BreakerNotFound
    return there[name]


def _load(it: Transaction, names: Iterable[str]) -> dict[str, Circuit]:
    return _found(names, lambda chunk: it.answer("breakers_by_name", chunk, len(chunk)))


def _save(it: Transaction, before: Mapping[str, Circuit], after: Mapping[str, Circuit]) -> list[BreakerRecord]:
    """Keep what has changed, tell whoever must know, and return how they stand, by name."""
    changed = [circuit for name, circuit in after.items() if circuit is not before.get(name)]
    if changed:
        it.change_many("save_breakers", [(each.name, msgspec.json.encode(each).decode()) for each in changed])
    if any(each.name not in before or breaker.is_news(before[each.name], each) for each in changed):
        it.hint(HintKind.BREAKERS)
    return [breaker.seen(after[name], it.now) for name in sorted(after)]


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def breakers(connection: Connection, names: Sequence[str] | None, now: datetime) -> list[BreakerRecord]:
    if names is None:
        ((text,),) = connection.execute(statement("breakers"))
        return [breaker.seen(circuit, now) for circuit in _circuits.decode(text)]

    def ask(chunk: Sequence[str]) -> str:
        ((text,),) = connection.execute(statement("breakers_by_name", len(chunk)), chunk)
        return str(text)

    found = _found(names, ask)
    return [breaker.seen(found[name], now) for name in sorted(found)]


def _found(names: Iterable[str], ask: Callable[[Sequence[str]], str]) -> dict[str, Circuit]:
    wanted = sorted(set(names))
    return {circuit.name: circuit for chunk in chunks(wanted) for circuit in _circuits.decode(ask(chunk))}
