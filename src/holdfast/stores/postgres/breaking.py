"""Breakers in PostgreSQL: what the verbs do in one transaction, with the rows of the breakers locked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from holdfast import breaker
from holdfast.breaker import Admission, BreakerPolicy, BreakerRecord, BreakerReport, BreakerState, Circuit
from holdfast.errors import BreakerNotFound
from holdfast.job import JobRecord
from holdfast.moment import from_microseconds
from holdfast.store import BreakerChange, HintKind
from holdfast.stores.postgres.connection import Record
from holdfast.stores.postgres.transaction import Transaction

_circuit = msgspec.json.Decoder(Circuit)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def declare(
    it: Transaction, policies: Mapping[str, BreakerPolicy], code_age: timedelta | None
) -> list[BreakerRecord]:
    ((microseconds,),) = await it.fetch("arrange_breakers", it.given_now)
    now = from_microseconds(microseconds)
    there, _ = await _lock(it, policies)
    code_from = now - (code_age or timedelta(0))
    after = {name: breaker.declare(there.get(name), name, policy, code_from) for name, policy in policies.items()}
    return await _save(it, there, after, now)


async def enter(it: Transaction, name: str, id: UUID) -> Admission:
    there, now = await _lock_one(it, name)
    after, admission = breaker.admit(there[name], id, now)
    await _save(it, there, {name: after}, now)
    return admission


async def report(it: Transaction, reports: Sequence[BreakerReport]) -> list[BreakerRecord]:
    there, now = await _lock(it, (report.breaker for report in reports))
    if now is None:
        return []
    return await _save(it, there, breaker.note_all(there, reports, now), now)


async def change(it: Transaction, name: str, make: BreakerChange) -> BreakerRecord:
    there, now = await _lock_one(it, name)
    [record] = await _save(it, there, {name: make(there[name], now)}, now)
    return record


async def behind(it: Transaction, name: str, most: int) -> list[JobRecord]:
    """Jobs that wait for a breaker which is closed, locked."""
    found = records(await it.fetch("breakers", [name], it.given_now))
    if not any(record.state is BreakerState.CLOSED for record in found):
        return []
    return await it.records("lock_behind_breaker", name, most)


async def _lock_one(it: Transaction, name: str) -> tuple[dict[str, Circuit], datetime]:
    there, now = await _lock(it, [name])
    if now is None:
        raise BreakerNotFound
    return there, now


async def _lock(it: Transaction, names: Iterable[str]) -> tuple[dict[str, Circuit], datetime | None]:
    """Those that there are, and what the time was when they were locked; None if there is none."""
    found = await it.fetch("lock_breakers", sorted(set(names)), it.given_now)
    circuits = [_circuit.decode(row["record"]) for row in found]
    now = max((row["now"] for row in found), default=None)
    return {each.name: each for each in circuits}, None if now is None else from_microseconds(now)


async def _save(
    it: Transaction, before: Mapping[str, Circuit], after: Mapping[str, Circuit], now: datetime
) -> list[BreakerRecord]:
    """Keep what has changed, tell whoever must know, and return how they stand, by name."""
    changed = [circuit for name, circuit in after.items() if circuit is not before.get(name)]
    if changed:
        names, texts = zip(*((each.name, msgspec.json.encode(each).decode()) for each in changed), strict=True)
        await it.fetch("save_breakers", list(names), list(texts))
    if any(each.name not in before or breaker.is_news(before[each.name], each) for each in changed):
        it.hint(HintKind.BREAKERS)
    return [breaker.seen(after[name], now) for name in sorted(after)]


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def records(rows: Iterable[Record]) -> list[BreakerRecord]:
    return [breaker.seen(_circuit.decode(row["record"]), from_microseconds(row["now"])) for row in rows]
