"""Why jobs wait, and for which limits, in PostgreSQL: each answer is one statement, and so as of one moment."""

from __future__ import annotations

from uuid import UUID

import msgspec

from holdfast import traffic
from holdfast.gates import GateRule
from holdfast.job import JobState, Stage, state_of
from holdfast.limits import LimitRecord, limit_record
from holdfast.moment import from_microseconds
from holdfast.store import MOST_WAITING, Circumstances, HintKind, Progress
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.connection import Record
from holdfast.stores.postgres.ledger import PostgresLedger
from holdfast.stores.postgres.transaction import Transaction

_Names = tuple[str, ...]
_Worker = tuple[UUID, str, str, int, _Names, int, int, int, int | None, int, bool, _Names]
_Line = tuple[UUID, str, int, tuple[UUID, ...], int, UUID | None, int, UUID | None]
_Gate = tuple[
    UUID, int, str, str, int, int | None, int, bool, int, UUID | None, str, int | None, int, int
]  # as select_gates.sql has it

_workers = msgspec.json.Decoder(list[_Worker])
_line = msgspec.json.Decoder(_Line)
_gates = msgspec.json.Decoder(list[_Gate])
_holders = msgspec.json.Decoder(list[tuple[UUID, Stage, int]])
_published = msgspec.json.Decoder(tuple[str, int, int])


# ── why jobs wait ────────────────────────────────────────────────────────────────────────────────────────────────────


def circumstances(row: Record) -> Circumstances:
    """What circumstances.sql answers."""
    paused_at, line, published = row["paused_at"], row["its_line"], row["published"]
    return Circumstances(
        now=from_microseconds(row["moment"]),
        job=rows.record(row),
        paused_at=None if paused_at is None else from_microseconds(paused_at),
        ahead=row["ahead"],
        lines_ahead=row["lines_ahead"],
        line=None if line is None else rows.line(_line.decode(line)),
        gates=tuple(rows.gate(gate) for gate in _gates.decode(row["gates"] or "[]")),
        holders=_states(row["holders"] or "[]"),
        workers=tuple(rows.worker(worker) for worker in _workers.decode(row["workers"] or "[]")),
        task=None if published is None else rows.task(_published.decode(published)),
        progress=_progress(row),
    )


def _states(text: str) -> dict[UUID, JobState]:
    return {id: state_of(stage, attempt) for id, stage, attempt in _holders.decode(text)}


def _progress(row: Record) -> Progress | None:
    at = row["at"]
    return None if at is None else Progress(row["done"], row["total"], row["note"], from_microseconds(at))


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def limits(found: list[Record]) -> list[LimitRecord]:
    """What limits.sql answers."""
    return [limit_record(rows.gate(row), row["waiting"], from_microseconds(row["moment"])) for row in found]


async def override(it: Transaction, rule: GateRule, most: int | None, *, makes: bool) -> LimitRecord | None:
    if makes:
        await it.fetch("make_gates", *rows.new_gates({rule.id: rule}))
    this = rule.name, int(rule.kind), rule.key, 1, MOST_WAITING
    found = await it.fetch("limits", *this, it.given_now)
    if not found:
        return None
    now = found[0]["moment"]
    ledger = PostgresLedger(it, now)
    await traffic.override(ledger, rule, most, now, makes=False)
    if queues := await ledger.flush():
        it.hint(HintKind.WORK, queues)
    (record,) = limits(await it.fetch("limits", *this, now))
    return record
