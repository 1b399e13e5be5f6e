"""Breakers: what the code declares, what failures and probes make of it, and the same for whoever asks."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from holdfast import breaker, lifecycle
from holdfast.breaker import (
    LEAST_LEASE,
    Admission,
    BreakerPolicy,
    BreakerRecord,
    BreakerReport,
    BreakerState,
    Circuit,
    Finding,
    Permit,
)
from holdfast.errors import BreakerNotFound, InvalidOption
from holdfast.gates import GateKind, GateRule, LineRule
from holdfast.job import Stage
from holdfast.lifecycle import Complete, GiveBack
from holdfast.store import LARGEST_BATCH, LARGEST_PAGE, HintKind, Store
from holdfast.testing.store_contract.harness import FAILURE, Harness, ids_of, placeless

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
STRIPE = BreakerPolicy(failures=3, reset=MINUTE, probes=2)
PATIENCE = 3.0


async def declare(harness: Harness, policy: BreakerPolicy = STRIPE, name: str = "stripe") -> BreakerRecord:
    [record] = await harness.store.declare_breakers({name: policy})
    return record


async def find(harness: Harness, name: str = "stripe") -> BreakerRecord:
    [record] = await harness.store.breakers([name])
    return record


async def report(
    harness: Harness, finding: Finding, permit: Permit | None = None, number: int = 1, store: Store | None = None
) -> BreakerRecord:
    error_type = "ConnectionError" if finding is Finding.FAILED else None
    said = BreakerReport("stripe", finding, permit, number, error_type)
    [record] = await (store or harness.store).report_breakers([said])
    return record


async def half_open(harness: Harness, policy: BreakerPolicy = STRIPE) -> None:
    await declare(harness, policy)
    await report(harness, Finding.FAILED, number=policy.failures)
    harness.clock.advance(policy.reset)


async def enter(harness: Harness, store: Store | None = None, id: UUID | None = None) -> Admission:
    return await (store or harness.store).enter_breaker("stripe", id or uuid4())


async def probe(harness: Harness) -> Permit:
    admission = await enter(harness)
    assert admission.is_admitted
    assert admission.permit is not None, "it is not half-open"
    return admission.permit


class BreakerContract:
    # ── what the code declares ───────────────────────────────────────────────────────────────────────────────────

    async def test_a_declared_breaker_is_closed(self, harness: Harness) -> None:
        answer = await harness.store.declare_breakers({"stripe": STRIPE, "é 中": BreakerPolicy()})
        assert answer == [BreakerRecord("stripe", STRIPE), BreakerRecord("é 中", BreakerPolicy())]
        assert await harness.store.breakers() == answer
        assert await harness.store.breakers(["stripe"]) == answer[:1]
        assert await harness.store.breakers(["nobody"]) == []

    async def test_no_breaker_to_declare_is_nothing_to_do(self, harness: Harness) -> None:
        assert await harness.store.declare_breakers({}) == []
        assert await harness.store.report_breakers([]) == []
        assert await harness.store.breakers() == []

    async def test_a_breaker_declared_anew_stands_as_it_stood(self, harness: Harness) -> None:
        await declare(harness)
        await report(harness, Finding.FAILED, number=3)
        record = await declare(harness, BreakerPolicy(failures=9, reset=HOUR))
        assert (record.policy.failures, record.state, record.failures) == (9, BreakerState.OPEN, 3)
        assert record.reset_in == MINUTE, "it opened under the old policy"

    async def test_the_policy_of_younger_code_stays(self, harness: Harness) -> None:
        await harness.store.declare_breakers({"stripe": STRIPE}, MINUTE)
        await harness.store.declare_breakers({"stripe": BreakerPolicy(failures=8)}, HOUR)
        assert (await find(harness)).policy == STRIPE
        await harness.store.declare_breakers({"stripe": BreakerPolicy(failures=9)}, SECOND)
        assert (await find(harness)).policy.failures == 9

    async def test_breakers_declared_by_many_at_once_are_all_there(self, harness: Harness) -> None:
        stores = harness.pair()
        names = [f"breaker {number}" for number in range(20)]
        await asyncio.gather(
            *(
                stores[number % 2].declare_breakers({name: STRIPE, "stripe": STRIPE})
                for number, name in enumerate(names)
            )
        )
        assert [record.name for record in await harness.store.breakers()] == sorted([*names, "stripe"])

    # ── closed and open ──────────────────────────────────────────────────────────────────────────────────────────

    async def test_failures_in_a_row_open_a_breaker(self, harness: Harness) -> None:
        await declare(harness)
        assert (await report(harness, Finding.FAILED)).failures == 1
        assert (await report(harness, Finding.FAILED)).state is BreakerState.CLOSED
        now = harness.clock.now()
        opened = await report(harness, Finding.FAILED)
        assert opened == await find(harness)
        assert opened == BreakerRecord(
            "stripe", STRIPE, BreakerState.OPEN, 3, 1, now, now + MINUTE, MINUTE, 0, "ConnectionError"
        )

    async def test_a_success_in_between_starts_the_row_anew(self, harness: Harness) -> None:
        await declare(harness)
        said = [
            BreakerReport("stripe", finding, number=number)
            for finding, number in ((Finding.FAILED, 2), (Finding.SUCCEEDED, 1), (Finding.FAILED, 2))
        ]
        [record] = await harness.store.report_breakers(said)
        assert (record.state, record.failures) == (BreakerState.CLOSED, 2)

    async def test_everybody_passes_a_closed_breaker_without_a_permit(self, harness: Harness) -> None:
        await declare(harness)
        for _ in range(3):
            admission = await enter(harness)
            assert (admission.is_admitted, admission.permit) == (True, None)
        assert (await find(harness)).probes == 0

    async def test_nobody_passes_an_open_one_before_its_reset_time(self, harness: Harness) -> None:
        await declare(harness)
        await report(harness, Finding.FAILED, number=3)
        harness.clock.advance(MINUTE - SECOND)
        admission = await enter(harness)
        assert (admission.is_admitted, admission.record.state) == (False, BreakerState.OPEN)
        assert admission.record.reset_in == SECOND

    async def test_what_began_before_it_opened_says_nothing_about_an_open_breaker(self, harness: Harness) -> None:
        await declare(harness)
        opened = await report(harness, Finding.FAILED, number=3)
        harness.clock.advance(SECOND)
        for finding in (Finding.FAILED, Finding.SUCCEEDED, Finding.NOTHING):
            record = await report(harness, finding)
            assert (record.state, record.reset_at) == (BreakerState.OPEN, opened.reset_at)
        harness.clock.advance(MINUTE)
        for finding in (Finding.FAILED, Finding.SUCCEEDED, Finding.NOTHING):
            assert (await report(harness, finding)).state is BreakerState.HALF_OPEN

    # ── probes ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_after_its_reset_time_as_many_pass_as_there_are_probes(self, harness: Harness) -> None:
        await half_open(harness)
        assert (await find(harness)).state is BreakerState.HALF_OPEN
        first, second = await enter(harness), await enter(harness)
        assert first.permit is not None
        assert second.permit is not None
        refused = await enter(harness)
        assert (refused.is_admitted, refused.permit) == (False, None)
        assert (refused.record.state, refused.record.probes) == (BreakerState.HALF_OPEN, 2)

    async def test_asking_again_with_the_same_id_gives_the_same_permit(self, harness: Harness) -> None:
        await half_open(harness)
        id = uuid4()
        first = await enter(harness, id=id)
        assert await enter(harness, id=id) == first
        assert (await find(harness)).probes == 1

    async def test_a_probe_that_succeeds_closes_it(self, harness: Harness) -> None:
        await half_open(harness)
        permit = await probe(harness)
        record = await report(harness, Finding.SUCCEEDED, permit)
        assert record == BreakerRecord("stripe", STRIPE, openings=1)
        assert (await enter(harness)).is_admitted

    async def test_a_probe_that_fails_opens_it_for_another_reset_time(self, harness: Harness) -> None:
        await half_open(harness)
        permit, other = await probe(harness), await probe(harness)
        now = harness.clock.now()
        record = await report(harness, Finding.FAILED, permit)
        assert (record.state, record.openings, record.reset_at) == (BreakerState.OPEN, 2, now + MINUTE)
        assert (await report(harness, Finding.SUCCEEDED, other)).state is BreakerState.OPEN, "it tried another opening"
        assert not (await enter(harness)).is_admitted

    async def test_a_probe_that_says_nothing_makes_room_for_another(self, harness: Harness) -> None:
        await half_open(harness)
        permit, _ = await probe(harness), await probe(harness)
        record = await report(harness, Finding.NOTHING, permit)
        assert (record.state, record.probes) == (BreakerState.HALF_OPEN, 1)
        assert (await enter(harness)).permit is not None

    async def test_a_probe_of_which_nobody_hears_is_replaced_when_its_lease_ends(self, harness: Harness) -> None:
        await half_open(harness)
        permits = [await probe(harness), await probe(harness)]
        harness.clock.advance(STRIPE.lease - SECOND)
        assert not (await enter(harness)).is_admitted
        await report(harness, Finding.UNDER_WAY, permits[0])
        harness.clock.advance(SECOND)
        assert (await find(harness)).probes == 1, "one of them has renewed its lease"
        assert (await enter(harness)).is_admitted
        assert not (await enter(harness)).is_admitted
        assert (await report(harness, Finding.SUCCEEDED, permits[1])).state is BreakerState.CLOSED, "late, but it is so"

    async def test_the_lease_of_a_probe_is_never_very_short(self, harness: Harness) -> None:
        await half_open(harness, BreakerPolicy(failures=1, reset=SECOND, probes=1))
        await probe(harness)
        harness.clock.advance(LEAST_LEASE - SECOND)
        assert not (await enter(harness)).is_admitted
        harness.clock.advance(SECOND)
        assert (await enter(harness)).is_admitted

    # ── races ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_racing_failures_are_all_counted(self, harness: Harness) -> None:
        await declare(harness, BreakerPolicy(failures=1_000))
        stores = harness.pair()
        await asyncio.gather(*(report(harness, Finding.FAILED, store=stores[number % 2]) for number in range(100)))
        assert (await find(harness)).failures == 100

    async def test_racing_failures_open_it_once(self, harness: Harness) -> None:
        await declare(harness)
        stores = harness.pair()
        await asyncio.gather(*(report(harness, Finding.FAILED, store=stores[number % 2]) for number in range(100)))
        record = await find(harness)
        assert (record.state, record.openings, record.failures) == (BreakerState.OPEN, 1, 3)

    async def test_racing_probes_get_no_more_permits_than_there_are(self, harness: Harness) -> None:
        await half_open(harness)
        stores = harness.pair()
        answers = await asyncio.gather(*(enter(harness, stores[number % 2]) for number in range(50)))
        assert sum(answer.is_admitted for answer in answers) == 2
        assert len({answer.permit for answer in answers if answer.permit is not None}) == 2

    # ── what people change ───────────────────────────────────────────────────────────────────────────────────────

    async def test_a_breaker_that_is_reset_is_closed_at_once(self, harness: Harness) -> None:
        await declare(harness)
        await report(harness, Finding.FAILED, number=3)
        record = await harness.store.change_breaker("stripe", _reset)
        assert record == await find(harness) == BreakerRecord("stripe", STRIPE, openings=1)

    async def test_a_breaker_can_be_opened_by_hand_for_any_span(self, harness: Harness) -> None:
        await declare(harness)
        now = harness.clock.now()
        record = await harness.store.change_breaker("stripe", lambda circuit, now: breaker.trip(circuit, now, HOUR))
        assert record == await find(harness)
        assert (record.state, record.opened_at, record.reset_in) == (BreakerState.OPEN, now, HOUR)

    async def test_a_breaker_that_nobody_has_declared_is_not_found(self, harness: Harness) -> None:
        with pytest.raises(BreakerNotFound):
            await harness.store.change_breaker("stripe", _reset)
        with pytest.raises(BreakerNotFound):
            await enter(harness)
        said = [BreakerReport("stripe", Finding.FAILED), BreakerReport("known", Finding.FAILED)]
        await declare(harness, name="known")
        assert [record.name for record in await harness.store.report_breakers(said)] == ["known"]

    async def test_too_many_reports_at_once_are_refused(self, harness: Harness) -> None:
        with pytest.raises(InvalidOption):
            await harness.store.report_breakers([BreakerReport("stripe", Finding.FAILED)] * (LARGEST_BATCH + 1))

    # ── those that wait for it ───────────────────────────────────────────────────────────────────────────────────

    async def test_jobs_that_wait_for_a_breaker_are_let_pass_once_it_is_closed(self, harness: Harness) -> None:
        await declare(harness)
        await harness.store.change_breaker("stripe", _trip)
        id = await harness.ended(_waiting(HOUR), queue="default")
        assert (await harness.record(id)).breaker == "stripe"
        assert await harness.store.let_pass("stripe", 10) == 0, "it is open"
        harness.clock.advance(MINUTE)
        assert await harness.store.let_pass("stripe", 10) == 0, "it is half-open"
        assert (await harness.record(id)).stage is Stage.SCHEDULED
        await harness.store.change_breaker("stripe", _reset)
        before = await harness.record(id)
        assert await harness.store.let_pass("stripe", 10) == 1
        after = await harness.record(id)
        assert placeless(after) == placeless(lifecycle.run_now(before, harness.clock.now()) or before)
        assert (after.stage, after.breaker, after.attempt, after.waits) == (Stage.READY, None, 0, 1)
        assert await harness.store.let_pass("stripe", 10) == 0
        await harness.check_counters()
        assert ids_of(await harness.claim()) == [id]

    async def test_only_those_are_let_pass_that_wait_for_this_very_breaker(self, harness: Harness) -> None:
        await harness.store.declare_breakers({"stripe": STRIPE, "bank": STRIPE})
        kept = [
            await harness.enqueue(delay=HOUR),
            await harness.ended(GiveBack(HOUR, is_charged=True, failure=FAILURE)),
            await harness.ended(GiveBack(HOUR, has_waited=True)),
            await harness.ended(_waiting(HOUR, "bank")),
            await harness.ended(_waiting(HOUR, "nobody's")),
        ]
        mine = await harness.ended(_waiting(HOUR))
        before = await harness.snapshot(kept)
        assert await harness.store.let_pass("stripe", 10) == 1
        assert await harness.store.let_pass("nobody's", 10) == 0
        assert (await harness.snapshot(kept))[:2] == before[:2]
        assert (await harness.record(mine)).stage is Stage.READY

    async def test_as_many_are_let_pass_as_was_asked_for_in_the_order_of_their_times(self, harness: Harness) -> None:
        await declare(harness)
        ids = {minutes: await harness.ended(_waiting(minutes * MINUTE), queue="default") for minutes in (3, 1, 4, 2, 5)}
        assert [await harness.store.let_pass("stripe", 3) for _ in range(3)] == [3, 2, 0]
        assert ids_of(await harness.claim(demand=5)) == [ids[minutes] for minutes in (1, 2, 3, 4, 5)]

    async def test_a_job_that_went_on_by_itself_waits_for_no_breaker_any_more(self, harness: Harness) -> None:
        await declare(harness)
        ripe = await harness.ended(_waiting(MINUTE), queue="default")
        cancelled = await harness.ended(_waiting(MINUTE), queue="default")
        expired = await harness.ended(_waiting(HOUR), queue="default", expires_in=MINUTE)
        called = await harness.ended(_waiting(MINUTE), queue="default")
        await harness.store.run_now([called])
        await harness.store.cancel([cancelled], "")
        await harness.pass_time(MINUTE)
        assert {(await harness.record(id)).breaker for id in (ripe, called, cancelled, expired)} == {None}
        [first, second] = await harness.claim(demand=2)
        await harness.settle(first, GiveBack(HOUR, has_waited=True))
        await harness.settle(second, GiveBack(breaker="stripe", has_waited=True))
        assert (await harness.record(second.id)).breaker is None, "it does not wait at all"
        assert await harness.store.let_pass("stripe", 10) == 0

    async def test_a_job_that_is_let_pass_still_waits_for_its_limits(self, harness: Harness) -> None:
        await declare(harness)
        rule = LineRule((GateRule(GateKind.LIMIT, "task", "", 1),))
        ids = [await harness.ended(_waiting(HOUR), line=rule, queue="default") for _ in range(2)]
        assert await harness.claim(demand=2) == []
        assert await harness.store.let_pass("stripe", 10) == 2
        [first] = await harness.claim(demand=2)
        await harness.settle(first, Complete())
        [second] = await harness.claim(demand=2)
        assert [first.id, second.id] == ids

    async def test_racing_calls_let_each_job_pass_once(self, harness: Harness) -> None:
        await declare(harness)
        for _ in range(20):
            await harness.ended(_waiting(HOUR), queue="default")
        stores = harness.pair()
        passed = await asyncio.gather(*(stores[number % 2].let_pass("stripe", 5) for number in range(8)))
        while number := await harness.store.let_pass("stripe", 5):
            passed.append(number)
        assert sum(passed) == len(await harness.claim(demand=30)) == 20

    async def test_those_who_wait_for_work_hear_of_jobs_that_are_let_pass(self, harness: Harness) -> None:
        store, other = harness.hearers()
        await declare(harness)
        id = await harness.ended(_waiting(HOUR))
        queue = (await harness.record(id)).queue
        async with other.changes([HintKind.WORK]) as hints, asyncio.timeout(PATIENCE):
            await store.let_pass("stripe", 10)
            hint = await anext(hints)
            assert not hint.queues or queue in hint.queues

    @pytest.mark.parametrize("limit", [0, LARGEST_PAGE + 1])
    async def test_no_more_than_a_page_is_let_pass_at_once(self, harness: Harness, limit: int) -> None:
        with pytest.raises(InvalidOption):
            await harness.store.let_pass("stripe", limit)

    # ── telling others ───────────────────────────────────────────────────────────────────────────────────────────

    async def test_others_hear_of_what_happens_to_breakers(self, harness: Harness) -> None:
        store, other = harness.hearers()
        async with other.changes([HintKind.BREAKERS]) as hints, asyncio.timeout(PATIENCE):
            await store.declare_breakers({"stripe": STRIPE})
            assert (await anext(hints)).kind is HintKind.BREAKERS
            await report(harness, Finding.FAILED, store=store)
            await anext(hints)
            await report(harness, Finding.FAILED, number=2, store=store)
            await anext(hints)
            await store.change_breaker("stripe", _reset)
            await anext(hints)


def _waiting(delay: timedelta, name: str = "stripe") -> GiveBack:
    return GiveBack(delay, has_waited=True, breaker=name)


def _trip(circuit: Circuit, now: datetime) -> Circuit:
    return breaker.trip(circuit, now)


def _reset(circuit: Circuit, now: object) -> Circuit:
    return breaker.reset(circuit)
