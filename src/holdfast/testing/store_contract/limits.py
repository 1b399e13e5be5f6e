"""Limits: what holds a job up is told, all of it is shown, and what is set at run time holds at once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.explanation import ReasonKind
from holdfast.gates import GateKind, GateRule
from holdfast.job import JobState
from holdfast.lifecycle import Bury, Complete
from holdfast.store import Held, HintKind, Settlement
from holdfast.testing.store_contract.changes import await_hint, listening
from holdfast.testing.store_contract.explaining import circumstances, explained
from holdfast.testing.store_contract.harness import FAILURE, Harness, ids_of
from holdfast.testing.store_contract.lines import MINUTE, RETRY, limit, order, rate, tenant, together

NOTHING = Held({})
LIMIT = GateRule(GateKind.LIMIT, "task", "", 2)
RATE = GateRule(GateKind.RATE, "task", "", 2, MINUTE // timedelta(microseconds=1))


class LimitContract:
    # ── why jobs in lines wait ───────────────────────────────────────────────────────────────────────────────────────

    async def test_a_job_s_line_and_its_gates_are_told(self, harness: Harness) -> None:
        rule = together(limit(2), rate(3), order("k"), tenant("t"))
        _, id = await harness.enqueue_many(2, line=rule)
        await harness.claim()  # until then nobody needs to have looked at the line
        found = await circumstances(harness, id)
        assert found.line is not None
        assert found.line.id == rule.id_for("default", 5)
        assert {gate.id for gate in found.gates} == {gate.id for gate in rule.gates_in("default")}
        plain = await circumstances(harness, await harness.enqueue())
        assert (plain.line, plain.gates) == (None, ())

    async def test_what_is_full_is_the_reason(self, harness: Harness) -> None:
        await harness.enqueue_many(3, line=together(limit(2), rate(2)))
        worker = await harness.worker()
        claimed = await harness.claim(worker, demand=5)
        waiting = (await harness.everything())[0]
        assert waiting.state is JobState.PENDING
        explanation = await explained(harness, waiting.id)
        assert explanation.kinds == (ReasonKind.LIMIT, ReasonKind.RATE, ReasonKind.POSITION)
        assert explanation.reasons[0].details["used"] == explanation.reasons[0].details["most"] == 2
        await harness.store.settle([Settlement(job.id, job.token, Complete()) for job in claimed])
        explanation = await explained(harness, waiting.id)
        assert explanation.kinds == (ReasonKind.RATE, ReasonKind.POSITION)
        until = explanation.reasons[0].until
        assert until is not None
        assert MINUTE <= until - harness.clock.now() <= 1.03 * MINUTE
        harness.clock.advance(until - harness.clock.now())
        await harness.store.beat(worker, NOTHING)
        await harness.store.tick()
        assert (await explained(harness, waiting.id)).kinds == (ReasonKind.POSITION,)
        assert ids_of(await harness.claim(worker)) == [waiting.id]

    async def test_behind_which_job_an_order_waits_is_told(self, harness: Harness) -> None:
        first, second, third = await harness.enqueue_many(3, line=order("k", is_blocking=True))
        worker = await harness.worker()
        [claimed] = await harness.claim(worker, demand=5)
        explanation = await explained(harness, second)
        assert explanation.kinds == (ReasonKind.ORDER, ReasonKind.POSITION)
        assert explanation.reasons[0].details["job"] == first
        assert explanation.reasons[0].details["state"] is JobState.ACTIVE
        assert [(await circumstances(harness, id)).ahead for id in (second, third)] == [0, 1]
        await harness.settle(claimed, RETRY)
        assert (await explained(harness, second)).reasons[0].details["state"] is JobState.RETRYING
        assert (await explained(harness, first)).kinds == (ReasonKind.RETRY,)
        await harness.pass_time("61s")
        await harness.store.beat(worker, NOTHING)
        assert (await explained(harness, first)).kinds == (ReasonKind.POSITION,), "it has the order itself"
        [claimed] = await harness.claim(worker, demand=5)
        await harness.settle(claimed, Bury(FAILURE))
        reason = (await explained(harness, second)).reasons[0]
        assert (reason.kind, reason.details["job"], reason.details["blocked"]) == (ReasonKind.ORDER, first, True)
        await harness.store.discard([first])
        assert (await explained(harness, second)).kinds == (ReasonKind.POSITION,)

    async def test_whose_turn_comes_before_is_counted(self, harness: Harness) -> None:
        await harness.worker()
        mine = [await harness.enqueue(line=tenant("mine")) for _ in range(3)]
        others = [await harness.enqueue(line=tenant(f"t{number}")) for number in range(4)]
        high = await harness.enqueue(line=tenant("high"), priority=9)
        [claimed] = await harness.claim()
        assert claimed.id == high
        turns = {(await circumstances(harness, id)).lines_ahead: id for id in (mine[0], *others)}
        assert sorted(turns) == [0, 1, 2, 3, 4]
        assert (await explained(harness, turns[4])).kinds == (ReasonKind.TURN, ReasonKind.POSITION)
        assert (await explained(harness, turns[0])).kinds == (ReasonKind.POSITION,)
        taken = [id for _ in turns for id in ids_of(await harness.claim())]
        assert taken == [turns[number] for number in range(5)], "they are claimed in this very order"
        assert (await circumstances(harness, mine[1])).lines_ahead == 0

    async def test_lines_that_are_more_important_come_before_a_job_beside_them(self, harness: Harness) -> None:
        await harness.enqueue_many(2, line=tenant("a"), priority=8)
        await harness.enqueue(line=tenant("b"), priority=5)
        await harness.enqueue_many(2, line=tenant("c"), priority=8, queue="other")
        await harness.claim()
        await harness.claim(queue="other")
        assert (await circumstances(harness, await harness.enqueue())).lines_ahead == 1
        assert (await circumstances(harness, await harness.enqueue(priority=9))).lines_ahead == 0

    # ── looking at limits ────────────────────────────────────────────────────────────────────────────────────────────

    async def test_limits_are_shown_with_what_is_used_and_who_waits(self, harness: Harness) -> None:
        assert await harness.store.limits() == []
        await harness.enqueue_many(5, line=together(limit(2), rate(10), order("k"), tenant("t")), queue="a")
        await harness.enqueue_many(5, line=limit(3, "key"))
        [running] = await harness.claim(demand=5, queue="a")
        assert await harness.claim(demand=5, queue="a") == []
        await harness.claim(demand=2)
        found = await harness.store.limits()
        assert [(each.kind, each.name, each.key) for each in found] == [
            ("order", "task", "k"),
            ("fair", "a", "t"),
            ("limit", "task", ""),
            ("limit", "task", "key"),
            ("rate", "task", ""),
        ]
        waiting, fair, plain, keyed, per_minute = found
        assert (waiting.waiting, waiting.used, waiting.most, waiting.holder) == (4, 1, 1, running.id)
        assert (fair.used, fair.most, fair.waiting) == (0, None, 0)
        assert (plain.used, plain.most, plain.declared, plain.override, plain.per) == (1, 2, 2, None, None)
        assert (keyed.used, keyed.most, keyed.waiting) == (2, 3, 0)
        assert (per_minute.used, per_minute.most, per_minute.per, per_minute.next_at) == (1, 10, MINUTE, None)

    async def test_limits_are_found_by_name_kind_and_key(self, harness: Harness) -> None:
        for key in "cab":
            await harness.enqueue(line=together(limit(2, key), rate(10, key=key)))
        await harness.enqueue(line=tenant("a"))
        await harness.claim(demand=9)
        store = harness.store
        assert [(each.kind, each.key) for each in await store.limits("task", limit=3)] == [
            ("limit", "a"),
            ("limit", "b"),
            ("limit", "c"),
        ]
        assert [each.key for each in await store.limits(kind=GateKind.RATE)] == ["a", "b", "c"]
        assert [each.kind for each in await store.limits(key="a")] == ["fair", "limit", "rate"]
        assert [each.kind for each in await store.limits("default")] == ["fair"], "tenants are those of a queue"
        assert await store.limits("nobody") == []

    async def test_a_rate_that_is_used_up_tells_when_it_has_room(self, harness: Harness) -> None:
        await harness.enqueue_many(5, line=rate(2))
        await harness.claim(demand=5)
        [found] = await harness.store.limits()
        assert found.next_at is not None
        assert (found.used, found.waiting) == (2, 3)
        assert MINUTE <= found.next_at - harness.clock.now() <= 1.03 * MINUTE

    # ── setting them ─────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize(("rule", "line"), [(LIMIT, limit(2)), (RATE, rate(2))], ids=["limit", "rate"])
    async def test_what_is_raised_lets_more_through_at_once(
        self, harness: Harness, rule: GateRule, line: object
    ) -> None:
        await harness.enqueue_many(9, line=line)
        assert len(await harness.claim(demand=9)) == 2
        assert await harness.claim(demand=9) == []
        async with listening(harness.hearers(), [HintKind.WORK]) as listeners:
            after = await harness.store.override_limit(rule, 5)
            for hints in listeners:
                await await_hint(hints, HintKind.WORK, "default")
        assert after is not None
        assert (after.most, after.declared, after.override, after.used) == (5, 2, 5, 2)
        assert len(await harness.claim(demand=9)) == 3
        assert await harness.claim(demand=9) == []

    @pytest.mark.parametrize(("rule", "line"), [(LIMIT, limit(2)), (RATE, rate(2))], ids=["limit", "rate"])
    async def test_what_is_lowered_lets_nobody_more_through(
        self, harness: Harness, rule: GateRule, line: object
    ) -> None:
        await harness.enqueue_many(9, line=line)
        [first] = await harness.claim()
        await harness.store.override_limit(rule, 1)
        assert await harness.claim(demand=9) == []
        await harness.settle(first, Complete())
        await harness.pass_time("62s")
        assert len(await harness.claim(demand=9)) == 1
        [shown] = await harness.store.limits()
        assert (shown.used, shown.most) == (1, 1)

    async def test_what_was_set_outlives_what_the_code_says_until_it_is_reset(self, harness: Harness) -> None:
        await harness.enqueue_many(4, line=limit(2))
        await harness.store.override_limit(LIMIT, 1)
        await harness.enqueue_many(4, line=limit(3))
        assert len(await harness.claim(demand=9)) == 1
        assert await harness.claim(demand=9) == []
        after = await harness.store.override_limit(LIMIT, None)
        assert after is not None
        assert (after.most, after.declared, after.override) == (3, 3, None)
        assert len(await harness.claim(demand=9)) == 2

    async def test_a_limit_can_be_set_before_there_is_a_job_and_stays(self, harness: Harness) -> None:
        made = await harness.store.override_limit(LIMIT, 1)
        assert made is not None
        assert (made.most, made.declared, made.used, made.waiting) == (1, 2, 0, 0)
        await harness.pass_time(timedelta(days=2))
        while not (await harness.store.prune()).is_done:
            pass
        await harness.enqueue_many(4, line=limit(2))
        assert len(await harness.claim(demand=9)) == 1

    async def test_what_is_not_there_is_not_made_unless_that_is_wanted(self, harness: Harness) -> None:
        assert await harness.store.override_limit(LIMIT, None, makes=False) is None
        assert await harness.store.limits() == []

    async def test_another_key_keeps_its_own_limit(self, harness: Harness) -> None:
        await harness.enqueue_many(4, line=limit(2, "a"))
        await harness.enqueue_many(4, line=limit(2, "b"))
        await harness.store.override_limit(GateRule(GateKind.LIMIT, "task", "a", 2), 3)
        assert len(await harness.claim(demand=9)) == 5
