"""Limits as tasks declare them: checked at import, published, and kept by whoever runs the jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from holdfast import Holdfast, InvalidOption, InvalidPayload, Limit, Order, Rate
from holdfast.gates import LONGEST_TRAIN, GateKind, GateRule, LineRule, made, taken
from holdfast.job import Delivery
from holdfast.limits import Limits, gate_kind, limit_record
from holdfast.moment import to_microseconds


@pytest.fixture
def hf() -> Holdfast:
    return Holdfast("memory://")


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: Rate(0, "1m"), "from 1 to 1,000,000"),
        (lambda: Rate(True, "1m"), "whole number"),
        (lambda: Rate(10, "10ms"), "from 100 ms to 31 days"),
        (lambda: Rate(10, "40d"), "from 100 ms to 31 days"),
        (lambda: Limit(2_000_000), "from 1 to 1,000,000"),
        (lambda: Limit(1, name=""), "printable"),
        (lambda: Order("{a}", on_dead="stop"), "'go_on' or 'block'"),  # type: ignore[arg-type]
        (lambda: Order("{a"), "braces"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(make: Any, advice: str) -> None:
    with pytest.raises(InvalidOption, match=advice):
        make()


@pytest.mark.parametrize(
    "options",
    [{"rate": 10}, {"limit": 4}, {"order": 7}, {"fair": Limit(1)}, {"order": "{nobody}"}, {"fair": "{nobody}"}],
    ids=str,
)
def test_a_task_says_at_import_what_its_limits_must_be(hf: Holdfast, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):

        @hf.task(**options)
        async def charge(tenant: str) -> None: ...


def test_a_job_stands_in_the_line_of_its_arguments(hf: Holdfast) -> None:
    @hf.task(
        rate=Rate(100, "1m", key="{tenant}"),
        limit=Limit(4, key="{tenant}", name="provider"),
        order=Order("{account}", on_dead="block"),
        fair="{tenant}",
    )
    async def charge(tenant: str, account: int = 7) -> None: ...

    expected = LineRule(
        (
            GateRule(GateKind.LIMIT, "provider", "acme", 4),
            GateRule(GateKind.RATE, "charge", "acme", 100, 60_000_000),
            GateRule(GateKind.ORDER, "charge", "7", is_blocking=True),
            GateRule(GateKind.FAIR, "", "acme"),
        )
    )
    with hf.testing():
        record = charge.enqueue("acme").record()
    assert record.line == expected.id_for("default", 5)


def test_who_enqueues_by_name_is_held_to_the_same_limits(hf: Holdfast) -> None:
    @hf.task(limit=Limit(4, key="{tenant}"), order="{tenant}")
    async def charge(tenant: str) -> None: ...

    with hf.testing():
        hf.publish_tasks()
        with_code = charge.enqueue("acme").record().line
        assert with_code is not None
        assert hf.send("charge", {"tenant": "acme"}).record().line == with_code
        assert hf.send("charge", {"tenant": "other"}).record().line != with_code


def test_a_key_that_the_arguments_don_t_give_is_an_error_when_it_is_enqueued(hf: Holdfast) -> None:
    @hf.task(fair="{tenant}")
    async def charge(tenant: str | None) -> None: ...

    with hf.testing(), pytest.raises(InvalidPayload, match="tenant"):
        charge.enqueue(None)


def test_jobs_under_limits_run(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.task(order="{key}", rate=Rate(2, "1m", name="all"))
    async def note(key: str, number: int) -> None:
        seen.append(number)

    with hf.testing() as t:
        for number in range(5):
            note.enqueue("a", number)
        t.run_all()
        assert seen == [0, 1]
        t.advance(timedelta(seconds=62))
        t.run_all()
        assert seen == [0, 1, 2, 3]
        t.advance(timedelta(seconds=62))
        t.run_all()
        assert seen == [0, 1, 2, 3, 4]


# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────

NOW = datetime(2026, 11, 17, tzinfo=UTC)


def test_a_record_shows_what_was_set_beside_what_the_code_says() -> None:
    gate = made(GateRule(GateKind.RATE, "charge", "acme", 2, 60_000_000))
    record = limit_record(taken(gate, [UUID(int=1), UUID(int=2)], to_microseconds(NOW)), 7, NOW)
    assert (record.kind, record.name, record.key, record.per) == ("rate", "charge", "acme", timedelta(minutes=1))
    assert (record.used, record.most, record.declared, record.override, record.waiting) == (2, 2, 2, None, 7)
    assert record.next_at is not None
    assert timedelta(0) < record.next_at - NOW < timedelta(seconds=62)
    raised = limit_record(replace(gate, override=9), 0, NOW)
    assert (raised.most, raised.declared, raised.next_at) == (9, 2, None)


def test_what_has_no_bound_says_so() -> None:
    record = limit_record(made(GateRule(GateKind.FAIR, "", "acme")), 0, NOW)
    assert (record.kind, record.most, record.per) == ("fair", None, None)


def test_kinds_are_called_as_the_options_are() -> None:
    assert [gate_kind(name) for name in ("limit", "rate", "order", "fair")] == list(GateKind)
    for nonsense in ("speed", 1, None, ["limit"]):
        with pytest.raises(InvalidOption, match="limit, rate, order, fair"):
            gate_kind(nonsense)


@pytest.mark.parametrize(
    ("delivery", "longest"),
    [(Delivery.AT_LEAST_ONCE, LONGEST_TRAIN), (Delivery.TRANSACTIONAL, LONGEST_TRAIN), (Delivery.AT_MOST_ONCE, 1)],
)
def test_what_may_run_only_once_is_never_claimed_behind_another(delivery: Delivery, longest: int) -> None:
    [definition] = Limits(order=Order("{key}")).definitions("task", delivery)
    assert definition.most == longest
