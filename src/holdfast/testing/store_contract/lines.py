"""Lines: limits, rates, orders and fairness hold whoever claims, and nothing that ends keeps others waiting."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from holdfast.gates import GateKind, GateRule, LineRule
from holdfast.job import ClaimedJob, JobState
from holdfast.lifecycle import NOT_STARTED, Bury, Complete, GiveBack, Transition
from holdfast.store import Held, HintKind, Settlement
from holdfast.testing.store_contract.harness import FAILURE, SECOND, Harness, ids_of

MINUTE = timedelta(minutes=1)
PATIENCE = 20.0
RETRY = GiveBack(MINUTE, is_charged=True, failure=FAILURE)


def limit(most: int, key: str = "") -> LineRule:
    return LineRule((GateRule(GateKind.LIMIT, "task", key, most),))


def rate(most: int, per: timedelta = MINUTE, key: str = "") -> LineRule:
    return LineRule((GateRule(GateKind.RATE, "task", key, most, per // timedelta(microseconds=1)),))


def order(key: str = "", *, is_blocking: bool = False) -> LineRule:
    return LineRule((GateRule(GateKind.ORDER, "task", key, is_blocking=is_blocking),))


def tenant(key: str) -> LineRule:
    return LineRule((GateRule(GateKind.FAIR, "", key),))


def together(*rules: LineRule) -> LineRule:
    return LineRule(tuple(gate for rule in rules for gate in rule.gates))


class LineContract:
    # ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_no_more_run_at_once_than_the_limit_of_their_key(self, harness: Harness) -> None:
        await harness.enqueue_many(5, line=limit(2, "a"))
        await harness.enqueue_many(5, line=limit(2, "b"))
        claimed = await harness.claim(demand=10)
        keys = Counter(record.line for record in await harness.store.get(ids_of(claimed)))
        assert sorted(keys.values()) == [2, 2]
        assert await harness.claim(demand=10) == []

    async def test_jobs_of_one_line_are_claimed_in_their_order(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(5, line=limit(5))
        assert ids_of(await harness.claim(demand=3)) == ids[:3]
        assert ids_of(await harness.claim(demand=3)) == ids[3:]

    async def test_a_claim_says_that_its_job_stands_in_a_line(self, harness: Harness) -> None:
        await harness.enqueue(line=limit(1))
        [lined] = await harness.claim()
        await harness.enqueue()
        [plain] = await harness.claim()
        assert (lined.is_lined, plain.is_lined) == (True, False)

    @pytest.mark.parametrize(
        "transition", [Complete(), Bury(FAILURE), GiveBack(MINUTE), RETRY], ids=["done", "dead", "snooze", "retry"]
    )
    async def test_whatever_comes_of_a_job_its_place_is_free(self, harness: Harness, transition: Transition) -> None:
        first, second = await harness.enqueue_many(2, line=limit(1))
        [claimed] = await harness.claim(demand=5)
        assert claimed.id == first
        assert await harness.claim(demand=5) == []
        await harness.settle(claimed, transition)
        assert ids_of(await harness.claim(demand=5)) == [second]

    async def test_what_is_given_back_at_once_comes_first(self, harness: Harness) -> None:
        first, second = await harness.enqueue_many(2, line=limit(1))
        [claimed] = await harness.claim(demand=5)
        await harness.settle(claimed, GiveBack())
        [again] = await harness.claim(demand=5)
        assert again.id == first
        await harness.settle(again, Complete())
        assert ids_of(await harness.claim(demand=5)) == [second]

    @pytest.mark.parametrize("end", ["rescue", "bury", "depart", "register"])
    async def test_a_worker_that_is_gone_holds_nothing(self, harness: Harness, end: str) -> None:
        await harness.enqueue_many(3, line=limit(2))
        worker = await harness.worker()
        assert len(await harness.claim(worker, demand=5)) == 2
        match end:
            case "rescue":
                [sighting] = await harness.store.sightings()
                await harness.store.rescue({worker: sighting.beat})
            case "bury":
                await harness.store.bury_worker(worker)
            case "depart":
                await harness.store.depart(worker)
            case _:
                await harness.worker_again(worker)
        assert len(await harness.claim(demand=5)) == 2

    async def test_cancelled_jobs_make_room(self, harness: Harness) -> None:
        first, second, third = await harness.enqueue_many(3, line=limit(1))
        [running] = await harness.claim()
        await harness.store.cancel([second], "not wanted")
        await harness.settle(running, Complete())
        assert ids_of(await harness.claim(demand=5)) == [third]
        assert await harness.state(first) is JobState.COMPLETED

    async def test_a_cancelled_job_that_waits_frees_no_place(self, harness: Harness) -> None:
        _, second, _ = await harness.enqueue_many(3, line=limit(1))
        await harness.claim()
        await harness.store.cancel([second], "not wanted")
        assert await harness.claim(demand=5) == []

    async def test_a_limit_that_the_code_has_raised_counts_from_the_next_job_on(self, harness: Harness) -> None:
        await harness.enqueue_many(3, line=limit(1))
        assert len(await harness.claim(demand=5)) == 1
        await harness.enqueue(line=limit(3))
        assert len(await harness.claim(demand=5)) == 2

    async def test_lines_may_share_a_gate(self, harness: Harness) -> None:
        shared = limit(3, "shared")
        for name in "abc":
            await harness.enqueue_many(3, line=together(shared, tenant(name)))
        claimed = await harness.claim(demand=10)
        assert len(claimed) == 3
        lines = {record.line for record in await harness.store.get(ids_of(claimed))}
        assert len(lines) == 3, "each tenant gets one"
        await harness.settle(claimed[0], Complete())
        assert len(await harness.claim(demand=10)) == 1

    async def test_racing_claimers_never_pass_a_limit(self, harness: Harness) -> None:
        await harness.enqueue_many(60, line=limit(7))
        worker = await harness.worker()
        stores = harness.pair()
        for _ in range(4):
            claims = await asyncio.gather(
                *(stores[number % 2].claim(worker, uuid4(), {"default": 5}) for number in range(6))
            )
            claimed = [job for jobs in claims for job in jobs]
            assert len(claimed) <= 7
            more = await harness.claim(worker, demand=10)
            assert len(claimed) + len(more) == 7
            await harness.store.settle([Settlement(job.id, job.token, Complete()) for job in [*claimed, *more]])

    # ── rates ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_no_more_start_in_a_window_than_the_rate(self, harness: Harness) -> None:
        await harness.enqueue_many(10, line=rate(3))
        first = await harness.claim(demand=10)
        assert len(first) == 3
        await harness.store.settle([Settlement(job.id, job.token, Complete()) for job in first])
        assert await harness.claim(demand=10) == [], "a rate counts starts, not what runs"
        await harness.pass_time("59s")
        assert await harness.claim(demand=10) == []
        await harness.pass_time("2s")
        assert len(await harness.claim(demand=10)) == 3

    async def test_a_rate_counts_in_any_window_and_not_by_the_minutes_of_the_clock(self, harness: Harness) -> None:
        await harness.enqueue_many(10, line=rate(3))
        for pause in ("50s", "40s"):
            await harness.pass_time(pause)
            assert len(await harness.claim(demand=1)) == 1
        await harness.pass_time("15s")
        assert len(await harness.claim(demand=10)) == 1, "two of the last minute count"
        await harness.pass_time("10s")
        assert len(await harness.claim(demand=10)) == 1, "the first one is over"
        assert await harness.claim(demand=10) == []

    async def test_a_rate_is_remembered_longer_than_its_jobs(self, harness: Harness) -> None:
        await harness.enqueue(line=rate(1, timedelta(days=1)))
        [claimed] = await harness.claim()
        await harness.settle(claimed, Complete())
        assert await harness.claim() == []
        await harness.pass_time("12h")
        for _ in range(3):
            await harness.store.prune()
        assert await harness.store.get([claimed.id]) == []
        await harness.enqueue(line=rate(1, timedelta(days=1)))
        assert await harness.claim() == []
        await harness.pass_time("13h")
        assert len(await harness.claim()) == 1

    async def test_what_was_not_started_after_all_does_not_count(self, harness: Harness) -> None:
        await harness.enqueue_many(4, line=rate(2))
        first, second = await harness.claim(demand=5)
        await harness.pass_time("10s")
        await harness.settle(first, NOT_STARTED)
        [again] = await harness.claim(demand=5)
        assert again.id == first.id, "without waiting for any time"
        await harness.settle(second, GiveBack())
        await harness.settle(again, Complete())
        await harness.pass_time("49s")
        assert await harness.claim(demand=5) == [], "these have been at work"
        await harness.pass_time("3s")
        assert len(await harness.claim(demand=5)) == 1
        await harness.pass_time("10s")
        assert len(await harness.claim(demand=5)) == 1

    async def test_what_waits_and_was_not_started_does_not_count(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(3, line=rate(1))
        [first] = await harness.claim(demand=5)
        await harness.settle(first, GiveBack(SECOND, has_waited=True, is_unstarted=True))
        assert ids_of(await harness.claim(demand=5)) == [ids[1]]

    async def test_a_cancelled_job_that_has_not_started_does_not_count(self, harness: Harness) -> None:
        await harness.enqueue_many(3, line=rate(1))
        [first] = await harness.claim(demand=5)
        await harness.store.cancel([first.id], "not wanted")
        await harness.settle(first, NOT_STARTED)
        assert await harness.state(first.id) is JobState.CANCELLED
        assert len(await harness.claim(demand=5)) == 1

    async def test_what_its_worker_has_lost_may_have_started_and_counts(self, harness: Harness) -> None:
        worker = await harness.worker()
        await harness.enqueue_many(2, line=rate(1))
        [first] = await harness.claim(worker, demand=5)
        for _ in range(3):
            harness.clock.advance(SECOND)
            await harness.store.beat(worker, Held({}))
        assert await harness.state(first.id) is JobState.PENDING
        assert await harness.claim(demand=5) == []

    async def test_a_tick_tells_when_a_rate_has_room_again(self, harness: Harness) -> None:
        await harness.enqueue_many(2, line=rate(1))
        assert len(await harness.claim(demand=5)) == 1
        assert await harness.claim(demand=5) == []
        tick = await harness.store.tick()
        assert tick.next_in is not None
        assert MINUTE <= tick.next_in <= 1.03 * MINUTE
        assert tick.opens_in == tick.next_in
        await harness.enqueue(queue="other", delay=SECOND)
        assert ((later := await harness.store.tick()).next_in, later.opens_in) == (SECOND, tick.opens_in)
        harness.clock.advance(tick.next_in)
        after = await harness.store.tick()
        assert (after.next_in, after.opens_in) == (None, None)
        assert len(await harness.claim(demand=5)) == 1

    async def test_other_keys_have_a_rate_of_their_own(self, harness: Harness) -> None:
        await harness.enqueue_many(3, line=rate(1, key="a"))
        await harness.enqueue_many(3, line=rate(1, key="b"))
        assert len(await harness.claim(demand=10)) == 2

    async def test_of_those_under_a_rate_only_what_can_start_at_once_is_claimed(self, harness: Harness) -> None:
        short = 10 * SECOND
        await harness.enqueue_many(10, line=rate(8, short))
        await harness.enqueue_many(10, line=limit(8))
        worker = await harness.worker()
        claimed = await harness.store.claim(worker, uuid4(), {"default": 10}, {"default": 3})
        rated = rate(8, short).id_for("default", 5)
        lines = Counter(record.line for record in await harness.store.get(ids_of(claimed)))
        assert lines == {rated: 3, limit(8).id_for("default", 5): 7}

    @pytest.mark.parametrize("most_rated", [0, 1, 3])
    async def test_those_that_must_start_at_once_hide_nobody_who_need_not(
        self, harness: Harness, most_rated: int
    ) -> None:
        """Many have room at their rates, and no slot that is free."""
        for number in range(40):
            await harness.enqueue(line=rate(1, 10 * SECOND, f"k{number}"))
        others = [await harness.enqueue(line=limit(1, f"k{number}")) for number in range(8)]
        worker = await harness.worker()
        claimed = await harness.store.claim(worker, uuid4(), {"default": 16}, {"default": most_rated})
        assert set(others) <= {job.id for job in claimed}
        assert len(claimed) == len(others) + most_rated

    async def test_a_long_window_allows_for_those_that_are_fetched_ahead(self, harness: Harness) -> None:
        await harness.enqueue_many(10, line=rate(8, MINUTE))
        worker = await harness.worker()
        assert len(await harness.store.claim(worker, uuid4(), {"default": 10}, {"default": 3})) == 8

    # ── orders ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_one_at_a_time_in_their_order(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(3, line=order())
        seen: list[UUID] = []
        for _ in ids:
            [claimed] = await harness.claim(demand=5)
            assert await harness.claim(demand=5) == []
            seen.append(claimed.id)
            await harness.settle(claimed, Complete())
        assert seen == ids

    async def test_an_order_is_kept_across_retries(self, harness: Harness) -> None:
        first, second = await harness.enqueue_many(2, line=order())
        [claimed] = await harness.claim(demand=5)
        await harness.settle(claimed, RETRY)
        assert await harness.claim(demand=5) == [], "the next one waits for the retry"
        await harness.pass_time("61s")
        [again] = await harness.claim(demand=5)
        assert again.id == first
        await harness.settle(again, Complete())
        assert ids_of(await harness.claim(demand=5)) == [second]

    async def test_a_retry_is_found_behind_however_many_wait_for_it(self, harness: Harness) -> None:
        first, *others = await harness.enqueue_many(20, line=order())
        [claimed] = await harness.claim()
        await harness.settle(claimed, RETRY)
        await harness.pass_time("61s")
        [again] = await harness.claim()
        assert again.id == first
        await harness.settle(again, Complete())
        assert ids_of(await harness.claim()) == others[:1]

    async def test_in_an_order_priority_does_not_count(self, harness: Harness) -> None:
        low = await harness.enqueue(line=order(), priority=1)
        await harness.enqueue(line=order(), priority=9)
        assert ids_of(await harness.claim(demand=5)) == [low]

    async def test_a_key_of_an_order_goes_on_at_the_priority_of_its_last_job(self, harness: Harness) -> None:
        """Its jobs keep their order all the same."""

        async def goes_first() -> UUID:
            [claimed] = await harness.claim()
            await harness.settle(claimed, Complete())
            return claimed.id

        low = await harness.enqueue(line=order(), priority=0)
        plain = await harness.enqueue_many(4)
        assert await goes_first() == plain[0]
        high = await harness.enqueue(line=order(), priority=9)
        assert await goes_first() == low, "it goes on in front of those beside it, whether it is open"
        assert await goes_first() == high
        assert await goes_first() == plain[1]
        low = await harness.enqueue(line=order(), priority=0)
        assert await goes_first() == plain[2], "or closed"
        high, low = [
            answer.id
            for answer in await harness.store.enqueue(
                [harness.new(line=order(), priority=9), harness.new(line=order(), priority=1)]
            )
        ]
        assert await goes_first() == plain[3], "also of several that come together"
        assert len(await harness.claim(demand=5)) == 1
        await harness.enqueue(line=order(), priority=9)
        await harness.enqueue()
        assert [job.priority for job in await harness.claim(demand=5)] == [5], "or parked"

    async def test_an_order_whose_last_job_comes_later_is_not_forgotten(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(2, line=order(), priority=3)
        ids.append(await harness.enqueue(line=order(), priority=7, delay=SECOND))
        for id in ids:
            [claimed] = await harness.claim(demand=5)
            assert claimed.id == id
            await harness.pass_time(SECOND)
            await harness.settle(claimed, Complete())

    async def test_a_dead_job_lets_the_next_one_go_on(self, harness: Harness) -> None:
        _, second = await harness.enqueue_many(2, line=order())
        [claimed] = await harness.claim(demand=5)
        await harness.settle(claimed, Bury(FAILURE))
        assert ids_of(await harness.claim(demand=5)) == [second]

    @pytest.mark.parametrize("way", ["retry", "discard"])
    async def test_a_dead_job_blocks_its_key_if_it_shall(self, harness: Harness, way: str) -> None:
        first, second = await harness.enqueue_many(2, line=order(is_blocking=True))
        [claimed] = await harness.claim(demand=5)
        await harness.settle(claimed, Bury(FAILURE))
        assert await harness.claim(demand=5) == []
        if way == "retry":
            await harness.store.retry([first])
            [again] = await harness.claim(demand=5)
            assert again.id == first
            await harness.settle(again, Complete())
        else:
            await harness.store.discard([first])
        assert ids_of(await harness.claim(demand=5)) == [second]

    async def test_what_expires_before_its_first_start_blocks_nobody(self, harness: Harness) -> None:
        """Nobody overtakes it all the same, as long as it is there."""
        for key, back in enumerate((NOT_STARTED, GiveBack(SECOND, has_waited=True, is_unstarted=True))):
            queue, rule = harness.fresh_queue(), order(str(key), is_blocking=True)
            first = await harness.enqueue(queue=queue, line=rule, expires_in=20 * SECOND)
            second = await harness.enqueue(queue=queue, line=rule)
            for _ in range(2):
                [claimed] = await harness.claim(demand=5, queue=queue)
                assert claimed.id == first
                await harness.settle(claimed, back)
                if back.delay:
                    assert await harness.claim(demand=5, queue=queue) == []
                await harness.pass_time(2 * SECOND)
            await harness.pass_time("30s")
            assert await harness.state(first) is JobState.DEAD
            assert ids_of(await harness.claim(demand=5, queue=queue)) == [second]

    async def test_what_expires_after_its_first_start_blocks_its_key(self, harness: Harness) -> None:
        for key, back in enumerate((RETRY, GiveBack(MINUTE, has_waited=True), GiveBack())):
            queue, rule = harness.fresh_queue(), order(str(key), is_blocking=True)
            first = await harness.enqueue(queue=queue, line=rule, expires_in=90 * SECOND)
            second = await harness.enqueue(queue=queue, line=rule)
            [claimed] = await harness.claim(demand=5, queue=queue)
            await harness.settle(claimed, back)
            await harness.pass_time("61s")
            [again] = await harness.claim(demand=5, queue=queue)
            assert again.id == first
            await harness.settle(again, NOT_STARTED)
            await harness.pass_time("40s")
            assert await harness.state(first) is JobState.DEAD
            assert await harness.claim(demand=5, queue=queue) == []
            await harness.store.discard([first])
            assert ids_of(await harness.claim(demand=5, queue=queue)) == [second]

    async def test_what_is_left_of_a_train_and_expires_before_its_first_start_blocks_nobody(
        self, harness: Harness
    ) -> None:
        rule = LineRule((GateRule(GateKind.ORDER, "task", "", 10, is_blocking=True),))
        ids = [await harness.enqueue(line=rule, expires_in=20 * SECOND) for _ in range(4)]
        after = await harness.enqueue(line=rule)
        worker = await harness.worker()
        train = await harness.store.claim(worker, uuid4(), {"default": 1}, None, 3)
        assert ids_of(train) == ids
        await harness.settle(train[0], Complete())
        for job in train[1:]:
            await harness.settle(job, NOT_STARTED)
        await harness.pass_time("30s")
        assert ids_of(await harness.claim(demand=5)) == [after]

    async def test_a_cancelled_job_that_waits_for_its_retry_lets_the_next_one_go_on(self, harness: Harness) -> None:
        first, second = await harness.enqueue_many(2, line=order())
        [claimed] = await harness.claim(demand=5)
        await harness.settle(claimed, RETRY)
        await harness.store.cancel([first], "not wanted")
        assert ids_of(await harness.claim(demand=5)) == [second]

    async def test_a_cancelled_job_that_waits_lets_nobody_pass_the_one_that_runs(self, harness: Harness) -> None:
        _, second, third = await harness.enqueue_many(3, line=order())
        [claimed] = await harness.claim(demand=5)
        await harness.store.cancel([second], "not wanted")
        assert await harness.claim(demand=5) == []
        await harness.settle(claimed, Complete())
        assert ids_of(await harness.claim(demand=5)) == [third]

    async def test_a_cancelled_job_that_waits_lets_nobody_pass_the_one_that_will_run_again(
        self, harness: Harness
    ) -> None:
        first, second, _ = await harness.enqueue_many(3, line=order())
        [claimed] = await harness.claim(demand=5)
        await harness.settle(claimed, RETRY)
        await harness.store.cancel([second], "not wanted")
        assert await harness.claim(demand=5) == []
        await harness.pass_time("61s")
        assert ids_of(await harness.claim(demand=5)) == [first]

    # ── whatever else happens ─────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_paused_queue_gives_nothing_from_its_lines(self, harness: Harness) -> None:
        id = await harness.enqueue(line=tenant("a"))
        await harness.store.pause("default")
        assert await harness.claim(demand=5) == []
        await harness.store.resume("default")
        assert ids_of(await harness.claim(demand=5)) == [id]

    async def test_a_queue_that_nobody_claims_from_keeps_no_room_from_others(self, harness: Harness) -> None:
        worker = await harness.worker()
        for rule in (limit(1), rate(1), order(), together(limit(1, "key"), tenant("t"))):
            idle, served = harness.fresh_queue(), harness.fresh_queue()
            first, other = await harness.enqueue_many(2, line=rule, queue=idle, priority=9)
            mine = await harness.enqueue_many(3, line=rule, queue=served, priority=1)
            [running] = await harness.claim(worker, demand=5, queue=idle)
            assert running.id == first
            assert await harness.claim(worker, demand=5, queue=served) == [], "now jobs of both wait for room"
            for queue, expected in [*((served, id) for id in mine), (idle, other)]:
                await harness.settle(running, Complete())
                await harness.pass_time("62s")
                await harness.store.beat(worker, Held({}))
                [running] = await harness.claim(worker, demand=5, queue=queue)
                assert running.id == expected
            await harness.settle(running, Complete())

    async def test_many_lines_behind_one_gate_keep_nobody_waiting_for_long(self, harness: Harness) -> None:
        """They are parked by some hundreds, and whoever claims hears that there is more to look at."""
        rules = [together(limit(1, "busy"), order(f"o{number}")) for number in range(1200)]
        await harness.store.enqueue([harness.new(line=rule) for rule in rules[:600]])
        await harness.store.enqueue([harness.new(line=rule) for rule in rules[600:]])
        other = await harness.enqueue(line=limit(1, "idle"))
        worker = await harness.worker()
        async with harness.store.changes([HintKind.WORK]) as hints, asyncio.timeout(PATIENCE):
            claimed = await harness.claim(worker, demand=16)
            for _ in range(4):
                if other in ids_of(claimed):
                    break
                assert "default" in (await anext(hints)).queues
                claimed += await harness.claim(worker, demand=16)
        assert len(claimed) == 2
        assert other in ids_of(claimed)
        [running] = [job for job in claimed if job.id != other]
        await harness.settle(running, Complete())
        assert len(await harness.claim(worker, demand=16)) == 1, "one of those that are parked"

    async def test_a_line_s_jobs_wait_for_their_time_and_expire_like_others(self, harness: Harness) -> None:
        later = await harness.enqueue(line=limit(5), delay=MINUTE)
        expiring = await harness.enqueue(line=limit(5), expires_in=10 * SECOND)
        harness.clock.advance("11s")
        assert await harness.claim(demand=5) == []
        await harness.pass_time("60s")
        assert ids_of(await harness.claim(demand=5)) == [later]
        assert await harness.state(expiring) is JobState.DEAD

    async def test_limits_hold_also_after_everything_about_them_was_pruned(self, harness: Harness) -> None:
        for _ in range(2):
            ids = await harness.enqueue_many(3, line=together(limit(2), rate(2), order("k"), tenant("t")))
            for id in ids:
                [claimed] = await harness.claim(demand=5)
                assert claimed.id == id
                await harness.settle(claimed, Complete())
                await harness.pass_time("70s")
            await harness.pass_time(timedelta(days=2))
            while not (await harness.store.prune()).is_done:
                pass
            assert await harness.store.get(ids) == []

    async def test_what_runs_or_waits_keeps_its_line(self, harness: Harness) -> None:
        running, waiting = await harness.enqueue_many(2, line=limit(1))
        dead = await harness.dead(line=order("k", is_blocking=True))
        [claimed] = await harness.claim()
        await harness.pass_time(timedelta(days=2))
        await harness.store.prune()
        assert await harness.claim(demand=5) == []
        await harness.settle(claimed, Complete())
        assert ids_of(await harness.claim(demand=5)) == [waiting]
        assert claimed.id == running
        record = await harness.record(dead)
        behind = await harness.enqueue(line=order("k", is_blocking=True), queue=record.queue)
        assert await harness.claim(demand=5, queue=record.queue) == [], "the dead one still blocks"
        await harness.store.discard([dead])
        assert ids_of(await harness.claim(demand=5, queue=record.queue)) == [behind]

    async def test_everything_in_lines_comes_to_its_end(self, harness: Harness) -> None:
        """Many keys, gates that are shared, retries, and claims of every size."""
        ids: list[UUID] = []
        for number in range(60):
            rule = together(order(f"o{number % 7}"), limit(2, f"l{number % 3}"), tenant(f"t{number % 4}"))
            ids.append(await harness.enqueue(line=rule))
        worker = await harness.worker()
        for turn in range(400):
            claimed = await harness.claim(worker, demand=1 + turn % 9)
            ends: list[tuple[ClaimedJob, Transition]] = [
                (job, Complete() if job.attempt > 1 or job.id.int % 3 else RETRY) for job in claimed
            ]
            await harness.store.settle([Settlement(job.id, job.token, end) for job, end in ends])
            if not claimed:
                await harness.pass_time("61s")
            if {record.state for record in await harness.store.get(ids)} == {JobState.COMPLETED}:
                break
        assert {record.state for record in await harness.store.get(ids)} == {JobState.COMPLETED}
        await harness.check_counters()
