"""Why a job waits: every reason that holds is named, the decisive first, in a sentence for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.breaker import BreakerPolicy, BreakerRecord, BreakerState
from holdfast.explain import explain
from holdfast.explanation import Explanation, ReasonKind, about, jobs, quoted
from holdfast.gates import Gate, GateKind, GateRule, LineRule, made, room, taken
from holdfast.job import FINAL, WAITING, Delivery, JobRecord, JobState, Stage
from holdfast.limits import LimitDefinition
from holdfast.moment import to_microseconds
from holdfast.store import (
    MOST_AHEAD,
    Circumstances,
    Progress,
    PublishedTask,
    TaskDefinition,
    WorkerRecord,
)
from holdfast.turns import Line, LineState, line_of

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def open_breaker(name: str, reset_at: datetime | None = None) -> BreakerRecord:
    return BreakerRecord(name, BreakerPolicy(), BreakerState.OPEN, reset_at=reset_at)


JOB, OTHER, WORKER = UUID(int=1), UUID(int=2), UUID(int=3)


def job(stage: Stage = Stage.READY, **fields: Any) -> JobRecord:
    plain: dict[str, Any] = {
        "id": JOB,
        "task": "charge",
        "queue": "billing",
        "priority": 5,
        "stage": stage,
        "args_json": "{}",
        "max_attempts": 5,
        "delivery": Delivery.AT_LEAST_ONCE,
        "created_at": NOW - MINUTE,
        "due_at": NOW - MINUTE,
    }
    return JobRecord(**(plain | fields))


def worker(**fields: Any) -> WorkerRecord:
    plain: dict[str, Any] = {"id": WORKER, "name": "box:47/1", "host": "box", "pid": 47, "queues": ()}
    return WorkerRecord(**(plain | {"started_at": NOW - MINUTE, "beat_at": NOW - SECOND, "beat": 3} | fields))


def published(*limits: LimitDefinition, name: str = "charge") -> PublishedTask:
    return PublishedTask(TaskDefinition(name=name, limits=limits), 1, NOW)


def lined(*gates: Gate, state: LineState = LineState.PARKED) -> dict[str, Any]:
    rule = LineRule(tuple(GateRule(gate.kind, gate.name, gate.key) for gate in gates))
    return {"line": replace(line_of(rule, "billing", 5), state=state), "gates": gates}


def told(record: JobRecord | None = None, **fields: Any) -> Explanation:
    line: Line | None = fields.get("line")
    standing = replace(record or job(), line=None if line is None else line.id)
    plain: dict[str, Any] = {"now": NOW, "job": standing, "workers": (worker(),)}
    return explain(Circumstances(**(plain | fields)))


LIMIT = replace(made(GateRule(GateKind.LIMIT, "charge", "acme", 4)), held=4)
RATE = taken(
    made(GateRule(GateKind.RATE, "charge", "acme", 1, 60_000_000)), [OTHER], to_microseconds(NOW - 49 * SECOND)
)
ORDER = replace(made(GateRule(GateKind.ORDER, "charge", "o1")), holder=OTHER)
FAIR = made(GateRule(GateKind.FAIR, "", "acme"))
BY_TENANT = LimitDefinition(GateKind.LIMIT, "charge", "{tenant}", 4)


# ── sentences ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("explanation", "text"),
    [
        (told(), "waiting: it is the next in queue 'billing'"),
        (told(ahead=1), "waiting: 1 job before it in queue 'billing'"),
        (told(ahead=MOST_AHEAD), "waiting: 10,000+ jobs before it in queue 'billing'"),
        (told(paused_at=NOW), "waiting: queue 'billing' is paused; it is the next in queue 'billing'"),
        (
            told(job(Stage.SCHEDULED, due_at=NOW + 35 * MINUTE)),
            "waiting: scheduled for 2026-11-17 12:35:00Z, in ~35 min",
        ),
        (
            told(job(Stage.SCHEDULED, due_at=NOW - SECOND)),
            "waiting: scheduled for 2026-11-17 11:59:59Z, so the next tick makes it ready",
        ),
        (
            told(job(Stage.SCHEDULED, due_at=NOW + 12 * SECOND, attempt=2, runs=2, error_type="ConnectionError")),
            "waiting: attempt 3 of 5 in ~12 s, after ConnectionError",
        ),
        (
            told(job(Stage.SCHEDULED, due_at=NOW + 12 * SECOND, runs=2, waits=2)),
            "waiting: it was put off, and goes on in ~12 s",
        ),
        (
            told(job(expires_at=NOW - 3 * SECOND)),
            "waiting: it expired ~3 s ago, and goes to the dead letters; it is the next in queue 'billing'",
        ),
        (
            told(**lined(LIMIT), task=published(BY_TENANT)),
            "waiting: limit tenant=acme 4/4; it is the next in its line",
        ),
        (
            told(**lined(RATE), task=published(LimitDefinition(GateKind.RATE, "charge", "{tenant}"))),
            "waiting: rate tenant=acme 1/1 per 1m, ~12 s; it is the next in its line",
        ),
        (
            told(**lined(ORDER), holders={OTHER: JobState.ACTIVE}),
            f"waiting: order o1: behind job {OTHER}, which is active; it is the next in its line",
        ),
        (
            told(**lined(replace(ORDER, holder=None, held=3))),
            "waiting: order o1: behind jobs of another line, which are active; it is the next in its line",
        ),
        (
            told(**lined(ORDER), holders={OTHER: JobState.DEAD}, ahead=2),
            (
                f"waiting: order o1: behind job {OTHER}, which is dead, until somebody retries or discards that; "
                "2 jobs before it in its line"
            ),
        ),
        (
            told(**lined(FAIR, state=LineState.OPEN), lines_ahead=3),
            "waiting: the turn of 3 other lines comes before that of acme; it is the next in its line",
        ),
        (
            told(breaker=open_breaker("stripe", NOW + 12 * SECOND)),
            "waiting: breaker stripe is open, ~12 s; it is the next in queue 'billing'",
        ),
        (
            told(
                job(Stage.SCHEDULED, due_at=NOW + 14 * SECOND, runs=1, waits=1, breaker="stripe"),
                breaker=open_breaker("stripe", NOW + 12 * SECOND),
            ),
            "waiting: breaker stripe is open, ~12 s; it was put off, and goes on in ~14 s",
        ),
        (
            told(job(Stage.SCHEDULED, due_at=NOW + 14 * SECOND, runs=1, waits=1), breaker=open_breaker("stripe")),
            "waiting: it was put off, and goes on in ~14 s",
        ),
        (told(workers=()), "waiting: no worker is alive; it is the next in queue 'billing'"),
        (
            told(workers=(worker(queues=("mail",)),)),
            "waiting: no live worker serves queue 'billing'; it is the next in queue 'billing'",
        ),
        (
            told(workers=(worker(is_quiet=True),)),
            (
                "waiting: the workers of queue 'billing' are quiet: they claim nothing more; "
                "it is the next in queue 'billing'"
            ),
        ),
        (
            told(workers=(worker(tasks=("refund",)),), task=published()),
            "waiting: no live worker of queue 'billing' knows the task 'charge'; it is the next in queue 'billing'",
        ),
        (
            told(job(Stage.ACTIVE, started_at=NOW - 12 * SECOND, attempt=2, worker=WORKER)),
            "running: for ~12 s on box:47/1, attempt 2 of 5",
        ),
        (
            told(
                job(Stage.ACTIVE, started_at=NOW - 12 * SECOND, attempt=1, worker=WORKER),
                progress=Progress(3, 10, "scaling", NOW),
            ),
            "running: for ~12 s on box:47/1, attempt 1 of 5, 3 of 10 done, scaling",
        ),
        (
            told(
                job(Stage.ACTIVE, started_at=NOW, attempt=1, worker=WORKER),
                **lined(ORDER),
                holders={OTHER: JobState.ACTIVE},
            ),
            f"waiting: order o1: behind job {OTHER}, which is active; claimed by box:47/1",
        ),
        (
            told(
                job(
                    Stage.ACTIVE,
                    started_at=NOW - 12 * SECOND,
                    attempt=1,
                    worker=WORKER,
                    cancel_requested_at=NOW - 3 * SECOND,
                    cancel_reason="duplicate order",
                )
            ),
            "running: it was asked to stop ~3 s ago: duplicate order; for ~12 s on box:47/1, attempt 1 of 5",
        ),
        (
            told(
                job(Stage.ACTIVE, started_at=NOW - MINUTE, attempt=1, worker=WORKER),
                workers=(worker(beat_at=NOW - 45 * SECOND),),
            ),
            (
                "running: worker box:47/1 is lost, last heard of ~45 s ago: others take it over; "
                "for ~60 s on box:47/1, attempt 1 of 5"
            ),
        ),
        (
            told(job(Stage.COMPLETED, started_at=NOW - 9 * SECOND, finished_at=NOW - 5 * SECOND, attempt=1)),
            "completed: ~5 s ago, after ~4 s, on attempt 1 of 5",
        ),
        (
            told(job(Stage.CANCELLED, finished_at=NOW - 3 * MINUTE, cancel_reason="not wanted")),
            "cancelled: ~3 min ago: not wanted",
        ),
        (
            told(
                job(
                    Stage.DEAD,
                    finished_at=NOW - timedelta(days=3),
                    attempt=5,
                    error_type="shop.NoRoute",
                    error_message="no route\nto host",
                )
            ),
            "dead: ~3 days ago, on attempt 5 of 5: shop.NoRoute: no route to host",
        ),
    ],
)
def test_it_reads_like_a_sentence(explanation: Explanation, text: str) -> None:
    assert str(explanation) == explanation.text == text


# ── the decisive first ───────────────────────────────────────────────────────────────────────────────────────────────


def test_all_that_holds_is_told_the_decisive_first() -> None:
    explanation = told(
        job(expires_at=NOW),
        paused_at=NOW - MINUTE,
        **lined(RATE, LIMIT, ORDER, FAIR, state=LineState.OPEN),
        breaker=open_breaker("stripe"),
        workers=(),
        lines_ahead=1,
        ahead=4,
    )
    assert explanation.kinds == (
        ReasonKind.EXPIRED,
        ReasonKind.PAUSED,
        ReasonKind.NO_WORKER,
        ReasonKind.BREAKER,
        ReasonKind.ORDER,
        ReasonKind.LIMIT,
        ReasonKind.RATE,
        ReasonKind.TURN,
        ReasonKind.POSITION,
    )


def test_what_is_not_due_yet_is_not_held_up_by_others() -> None:
    later = job(Stage.SCHEDULED, due_at=NOW + MINUTE)
    assert told(later, **lined(LIMIT, RATE, ORDER), workers=()).kinds == (ReasonKind.SCHEDULED, ReasonKind.NO_WORKER)


def test_when_it_ends_is_told_where_that_is_known() -> None:
    assert told(job(Stage.SCHEDULED, due_at=NOW + MINUTE)).reasons[0].until == NOW + MINUTE
    until = told(**lined(RATE)).reasons[0].until
    assert until is not None
    assert timedelta(seconds=11) <= until - NOW <= timedelta(seconds=12)
    assert told(**lined(LIMIT)).reasons[0].until is None


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_worker_that_can_run_it_is_enough() -> None:
    able = worker(queues=("mail", "billing"), tasks=("refund", "charge"))
    others = (worker(queues=("mail",)), worker(dead_at=NOW), worker(is_quiet=True), worker(tasks=("refund",)))
    assert told(workers=(*others, able)).kinds == (ReasonKind.POSITION,)


def test_a_worker_that_does_not_say_what_it_knows_may_know_the_task() -> None:
    assert told(workers=(worker(tasks=("refund",)), worker(tasks=()))).kinds == (ReasonKind.POSITION,)


def test_a_worker_that_knows_the_task_does_not_count_if_it_is_quiet_or_serves_other_queues() -> None:
    ignorant = worker(tasks=("refund",))
    for other in (worker(queues=("mail",), tasks=("charge",)), worker(is_quiet=True, tasks=("charge",))):
        assert told(workers=(ignorant, other)).kinds[0] is ReasonKind.UNKNOWN_TASK


def test_a_task_that_nobody_has_published_is_told_apart() -> None:
    unknown = told(workers=(worker(tasks=("refund",)),))
    assert "nobody has published" in unknown.text
    assert unknown.reasons[0].details["is_published"] is False


def test_a_worker_that_is_silent_for_long_is_not_alive() -> None:
    assert told(workers=(worker(beat_at=NOW - 29 * SECOND),)).kinds == (ReasonKind.POSITION,)
    assert told(workers=(worker(beat_at=NOW - 30 * SECOND),)).kinds[0] is ReasonKind.NO_WORKER


# ── gates ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_gate_with_room_is_no_reason() -> None:
    roomy = replace(LIMIT, override=5)
    assert told(**lined(roomy, state=LineState.OPEN)).kinds == (ReasonKind.POSITION,)


@pytest.mark.parametrize("stage", [Stage.ACTIVE, Stage.SCHEDULED, *FINAL])
def test_whoever_has_an_order_or_has_left_it_is_not_behind_others(stage: Stage) -> None:
    held = replace(ORDER, holder=OTHER if stage in FINAL else JOB)
    assert ReasonKind.ORDER not in told(job(stage, finished_at=NOW), **lined(held)).kinds


def test_the_holder_of_an_order_does_not_wait_for_itself() -> None:
    assert told(**lined(replace(ORDER, holder=JOB), state=LineState.OPEN)).kinds == (ReasonKind.POSITION,)


@pytest.mark.parametrize(
    ("gate", "definition", "label"),
    [
        (LIMIT, BY_TENANT, "tenant=acme"),
        (LIMIT, LimitDefinition(GateKind.LIMIT, "charge", "{tenant}:{card}"), "acme"),
        (LIMIT, LimitDefinition(GateKind.RATE, "charge", "{tenant}"), "acme"),
        (replace(LIMIT, key=""), LimitDefinition(GateKind.LIMIT, "charge", None), "charge"),
        (replace(LIMIT, name="stripe"), LimitDefinition(GateKind.LIMIT, "stripe", "{tenant}"), "stripe tenant=acme"),
        (replace(LIMIT, name="stripe", key=""), LimitDefinition(GateKind.LIMIT, "stripe", None), "stripe"),
    ],
)
def test_a_limit_is_called_as_the_user_knows_it(gate: Gate, definition: LimitDefinition, label: str) -> None:
    assert told(**lined(gate), task=published(definition)).reasons[0].text == f"limit {label} 4/4"


def test_a_line_that_is_parked_does_not_wait_for_its_turn() -> None:
    assert told(**lined(LIMIT, state=LineState.PARKED), lines_ahead=3).kinds == (ReasonKind.LIMIT, ReasonKind.POSITION)


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<1 s"),
        (0.2, "<1 s"),
        (12, "~12 s"),
        (119, "~119 s"),
        (120, "~2 min"),
        (7200, "~2 h"),
        (200_000, "~2 days"),
    ],
)
def test_spans_are_told_as_people_say_them(seconds: float, text: str) -> None:
    assert about(timedelta(seconds=seconds)) == text


def test_what_others_wrote_stays_on_one_line() -> None:
    assert quoted("a\n\tb\x00\x1b[31mc") == "a b [31mc"
    assert len(quoted("x" * 5000)) == 120


def test_jobs_are_counted_in_words() -> None:
    assert [jobs(number, 10) for number in (1, 2, 10)] == ["1 job", "2 jobs", "10+ jobs"]


# ── whatever the circumstances ───────────────────────────────────────────────────────────────────────────────────────

times = st.one_of(st.none(), st.integers(-100_000, 100_000).map(lambda seconds: NOW + seconds * SECOND))
names = st.sampled_from(["charge", "refund", "billing", "mail"])
texts = st.one_of(st.none(), st.text(max_size=200))
records = st.builds(
    job,
    st.sampled_from(Stage),
    due_at=times.map(lambda time: time or NOW),
    expires_at=times,
    started_at=times,
    finished_at=times,
    cancel_requested_at=times,
    cancel_reason=texts,
    error_type=texts,
    error_message=texts,
    attempt=st.integers(0, 5),
    runs=st.integers(0, 9),
    worker=st.sampled_from([None, WORKER, OTHER]),
    breaker=st.none() | names,
)
workers = st.builds(
    worker,
    id=st.sampled_from([WORKER, OTHER]),
    queues=st.lists(names, max_size=2).map(tuple),
    tasks=st.lists(names, max_size=2).map(tuple),
    beat_at=times.map(lambda time: time or NOW),
    dead_at=times,
    is_quiet=st.booleans(),
)
gates = st.builds(
    Gate,
    id=st.uuids(),
    kind=st.sampled_from(GateKind),
    name=names,
    key=st.text(max_size=80),
    declared=st.integers(1, 3),
    override=st.one_of(st.none(), st.integers(1, 3)),
    per=st.just(60_000_000),
    held=st.integers(0, 4),
    holder=st.sampled_from([None, JOB, OTHER]),
    log=st.lists(
        st.tuples(st.integers(-90, 0).map(lambda back: to_microseconds(NOW + back * SECOND)), st.integers(1, 3)),
        max_size=3,
    ).map(lambda log: tuple(sorted(log))),
)
lines = st.builds(Line, st.uuids(), names, st.just(5), st.just(()), st.sampled_from(LineState))
situations = st.builds(
    Circumstances,
    now=st.just(NOW),
    job=records,
    paused_at=times,
    ahead=st.integers(0, MOST_AHEAD),
    lines_ahead=st.integers(0, MOST_AHEAD),
    line=st.one_of(st.none(), lines),
    gates=st.lists(gates, max_size=4, unique_by=lambda gate: gate.kind).map(tuple),
    holders=st.dictionaries(st.just(OTHER), st.sampled_from(JobState)),
    workers=st.lists(workers, max_size=3).map(tuple),
    task=st.one_of(st.none(), st.just(published(BY_TENANT))),
    progress=st.one_of(st.none(), st.just(Progress(1, None, "x", NOW))),
    breaker=st.one_of(st.none(), st.builds(open_breaker, names, times)),
)

ENDS = {ReasonKind.COMPLETED, ReasonKind.CANCELLED, ReasonKind.DEAD, ReasonKind.EXPIRED}
RUNS = {ReasonKind.CANCELLING, ReasonKind.LOST, ReasonKind.RUNNING}


@given(situations)
def test_there_is_always_a_reason_and_it_fits_the_state(it: Circumstances) -> None:
    explanation = explain(it)
    kinds = explanation.kinds
    assert len(set(kinds)) == len(kinds) >= 1
    assert (explanation.id, explanation.state, explanation.at) == (it.job.id, it.job.state, NOW)
    if it.job.stage in FINAL:
        assert set(kinds) <= ENDS
    elif it.job.stage is Stage.ACTIVE:
        # One that was claimed behind another of its order does not run yet.
        assert (kinds[-1] is ReasonKind.RUNNING) == (ReasonKind.ORDER not in kinds)
        assert set(kinds) <= RUNS | {ReasonKind.ORDER}
    else:
        assert not set(kinds) & (RUNS | ENDS - {ReasonKind.EXPIRED})
    order = list(ReasonKind)
    if it.job.stage is Stage.SCHEDULED:
        # It was put off because of its breaker, so that comes before until when.
        order.remove(ReasonKind.BREAKER)
        order.insert(order.index(ReasonKind.SCHEDULED), ReasonKind.BREAKER)
    assert [order.index(kind) for kind in kinds] == sorted(map(order.index, kinds))


@given(situations)
def test_it_is_one_line_that_names_every_reason(it: Circumstances) -> None:
    explanation = explain(it)
    assert explanation.text.isprintable()
    assert len(explanation.text) < 2500
    assert all(reason.text in explanation.text for reason in explanation.reasons)


@given(situations)
def test_what_holds_a_job_up_is_named_if_and_only_if_it_does(it: Circumstances) -> None:
    kinds = set(explain(it).kinds)
    now = to_microseconds(NOW)
    is_ready = it.job.stage is Stage.READY
    may_wait = is_ready or it.job.stage is Stage.ACTIVE
    by_kind = {gate.kind: gate for gate in it.gates}
    for kind, reason in ((GateKind.LIMIT, ReasonKind.LIMIT), (GateKind.RATE, ReasonKind.RATE)):
        is_full = kind in by_kind and not room(by_kind[kind], now)
        assert (reason in kinds) == (is_ready and is_full)
    its_order = by_kind.get(GateKind.ORDER)
    is_behind = its_order is not None and (its_order.held > 0 if its_order.holder is None else its_order.holder != JOB)
    assert (ReasonKind.ORDER in kinds) == (may_wait and is_behind)
    assert (ReasonKind.PAUSED in kinds) == (it.job.stage in WAITING and it.paused_at is not None)
    waits_for_it = it.breaker is not None and it.job.stage is Stage.SCHEDULED and it.job.breaker == it.breaker.name
    assert (ReasonKind.BREAKER in kinds) == ((is_ready and it.breaker is not None) or waits_for_it)
    assert (ReasonKind.POSITION in kinds) == is_ready


@given(situations)
def test_it_can_be_sent_as_json(it: Circumstances) -> None:
    explanation = explain(it)
    data = msgspec.json.decode(msgspec.json.encode(explanation))
    assert data["text"] == explanation.text
    assert JobState(data["state"]) is explanation.state
    assert [reason["kind"] for reason in data["reasons"]] == list(explanation.kinds)
