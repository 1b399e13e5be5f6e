"""Trains: several jobs of one order are claimed together, and whatever comes of them, the order is kept."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from holdfast.explain import explain
from holdfast.explanation import ReasonKind
from holdfast.gates import GateKind, GateRule, LineRule
from holdfast.job import ClaimedJob, JobState
from holdfast.lifecycle import Bury, Complete, GiveBack, Transition, Withdraw
from holdfast.store import Settlement
from holdfast.testing.store_contract.harness import FAILURE, Harness, ids_of
from holdfast.testing.store_contract.lines import RETRY, limit, together


def order(key: str = "", *, longest: int = 10, is_blocking: bool = False) -> LineRule:
    return LineRule((GateRule(GateKind.ORDER, "task", key, longest, is_blocking=is_blocking),))


async def claim(harness: Harness, most_behind: int, demand: int = 5, worker: UUID | None = None) -> list[ClaimedJob]:
    worker = worker or await harness.worker()
    return await harness.store.claim(worker, uuid4(), {"default": demand}, None, most_behind)


async def settle(harness: Harness, jobs: Sequence[ClaimedJob], transition: Transition) -> None:
    await harness.store.settle([Settlement(job.id, job.token, transition) for job in jobs])


class TrainContract:
    async def test_several_of_an_order_are_claimed_one_behind_the_other(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(5, line=order())
        train = await claim(harness, most_behind=3)
        assert ids_of(train) == ids[:4]
        assert [job.behind for job in train] == [None, *ids[:3]]
        await harness.check_counters()

    async def test_a_train_is_no_longer_than_the_order_lets_it_be(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(5, line=order(longest=2))
        assert ids_of(await claim(harness, most_behind=9)) == ids[:2]

    async def test_without_being_asked_for_nobody_is_claimed_behind_another(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(5, line=order())
        assert ids_of(await harness.claim(demand=5)) == ids[:1]

    async def test_every_order_gets_a_part_of_what_may_be_behind(self, harness: Harness) -> None:
        rules = [order(key) for key in "abc"]
        ids = [await harness.enqueue_many(9, line=rule) for rule in rules]
        train = await claim(harness, most_behind=6)
        assert sorted(ids_of(train)) == sorted(id for mine in ids for id in mine[:3])

    async def test_nobody_else_is_claimed_before_all_of_a_train_have_left(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(5, line=order())
        train = await claim(harness, most_behind=2)
        for job in train:
            assert await claim(harness, most_behind=2) == []
            await harness.settle(job, Complete())
        assert ids_of(await claim(harness, most_behind=9)) == ids[3:]

    async def test_a_train_may_be_settled_in_one(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(5, line=order())
        await settle(harness, await claim(harness, most_behind=2), Complete())
        assert ids_of(await claim(harness, most_behind=9)) == ids[3:]
        assert [await harness.state(id) for id in ids[:3]] == [JobState.COMPLETED] * 3

    async def test_who_comes_into_the_line_meanwhile_waits_for_the_train(self, harness: Harness) -> None:
        await harness.enqueue_many(2, line=order())
        train = await claim(harness, most_behind=9)
        late = await harness.enqueue(line=order())
        assert await claim(harness, most_behind=9) == []
        await settle(harness, train, Complete())
        assert ids_of(await claim(harness, most_behind=9)) == [late]

    @pytest.mark.parametrize("is_first", [True, False])
    async def test_who_has_failed_runs_again_before_those_that_were_behind_it(
        self, harness: Harness, is_first: bool
    ) -> None:
        """Whether those behind it are given back before or after the store knows that it has failed."""
        ids = await harness.enqueue_many(5, line=order())
        done, failed, *behind = await claim(harness, most_behind=3)
        await harness.settle(done, Complete())
        if is_first:
            await harness.settle(failed, RETRY)
        await settle(harness, behind, GiveBack())
        if not is_first:
            await harness.settle(failed, RETRY)
        assert await claim(harness, most_behind=9) == []
        await harness.pass_time("61s")
        [again] = await claim(harness, most_behind=9)
        assert again.id == failed.id
        await harness.settle(again, Complete())
        assert ids_of(await claim(harness, most_behind=9)) == ids[2:]

    @pytest.mark.parametrize("is_first", [True, False])
    async def test_who_waits_for_no_time_at_all_runs_again_before_those_that_were_behind_it(
        self, harness: Harness, is_first: bool
    ) -> None:
        ids = await harness.enqueue_many(4, line=order())
        waiting, *behind = await claim(harness, most_behind=2)
        wait = [Settlement(waiting.id, waiting.token, GiveBack(has_waited=True))]
        back = [Settlement(job.id, job.token, GiveBack()) for job in behind]
        await harness.store.settle(wait + back if is_first else back + wait)
        assert ids_of(await claim(harness, most_behind=9)) == ids[:1]

    async def test_who_comes_back_is_not_left_behind_when_the_last_of_its_broken_train_is_cancelled(
        self, harness: Harness
    ) -> None:
        ids = await harness.enqueue_many(3, line=order())
        failed, cancelled = await claim(harness, most_behind=1)
        await harness.settle(failed, RETRY)
        await harness.pass_time("61s")
        assert await claim(harness, most_behind=9) == [], "one of them is still in a worker's hands"
        await harness.settle(cancelled, Withdraw(""))
        [again] = await claim(harness, most_behind=9)
        assert again.id == failed.id
        await harness.settle(again, Complete())
        assert ids_of(await claim(harness, most_behind=9)) == ids[2:]

    async def test_plain_jobs_get_half_of_the_slots_beside_trains(self, harness: Harness) -> None:
        """Those behind others need none."""
        for key in "abcdefgh":
            await harness.enqueue_many(5, line=order(key))
        plain = await harness.enqueue_many(20)
        claimed = await claim(harness, most_behind=40, demand=8)
        assert sum(job.id in plain for job in claimed) == 4
        assert sum(job.behind is None for job in claimed) == 8
        assert sum(job.behind is not None for job in claimed) == 16

    async def test_while_some_of_a_broken_train_are_out_nobody_passes_them(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(4, line=order())
        failed, *behind = await claim(harness, most_behind=2)
        await harness.settle(failed, RETRY)
        await harness.pass_time("61s")
        assert await claim(harness, most_behind=9) == [], "two of them are still in a worker's hands"
        await settle(harness, behind, GiveBack())
        [again] = await claim(harness, most_behind=9)
        assert again.id == failed.id
        await harness.settle(again, Complete())
        assert ids_of(await claim(harness, most_behind=9)) == ids[1:]

    async def test_what_is_given_back_is_claimed_in_its_order_again(self, harness: Harness) -> None:
        """Even if the last one of a train is given back first."""
        ids = await harness.enqueue_many(5, line=order())
        for job in reversed(await claim(harness, most_behind=3)):
            await harness.settle(job, GiveBack())
        claimed: list[UUID] = []
        while jobs := await claim(harness, most_behind=0):
            claimed += ids_of(jobs)
            await settle(harness, jobs, Complete())
        assert claimed == ids

    async def test_the_end_of_a_train_may_be_given_back_while_its_first_one_runs(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(5, line=order())
        running, *behind = await claim(harness, most_behind=2)
        await settle(harness, behind, GiveBack())
        assert await claim(harness, most_behind=9) == []
        await harness.settle(running, Complete())
        assert ids_of(await claim(harness, most_behind=9)) == ids[1:]

    async def test_a_train_of_a_worker_that_is_gone_runs_again_in_its_order(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(4, line=order())
        worker = await harness.worker()
        done, *_ = await claim(harness, most_behind=2, worker=worker)
        await harness.settle(done, Complete())
        [sighting] = await harness.store.sightings()
        await harness.store.rescue({worker: sighting.beat})
        claimed: list[UUID] = []
        while jobs := await claim(harness, most_behind=0):
            claimed += ids_of(jobs)
            await settle(harness, jobs, Complete())
        assert claimed == ids[1:]

    @pytest.mark.parametrize("transition", [Bury(FAILURE), Withdraw("")], ids=["dead", "cancelled"])
    async def test_who_goes_dead_or_is_cancelled_lets_the_others_go_on(
        self, harness: Harness, transition: Transition
    ) -> None:
        ids = await harness.enqueue_many(3, line=order())
        first, *behind = await claim(harness, most_behind=1)
        await harness.settle(first, transition)
        await settle(harness, behind, GiveBack())
        [second] = await claim(harness, most_behind=0)
        await harness.settle(second, Complete())
        assert [second.id, *ids_of(await claim(harness, most_behind=9))] == ids[1:]

    async def test_a_dead_one_blocks_its_order_if_it_shall(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(3, line=order(is_blocking=True))
        first, *behind = await claim(harness, most_behind=1)
        await harness.settle(first, Bury(FAILURE))
        await settle(harness, behind, GiveBack())
        assert await claim(harness, most_behind=9) == []
        await harness.store.discard([first.id])
        assert ids_of(await claim(harness, most_behind=9)) == ids[1:]

    async def test_who_holds_a_place_elsewhere_is_not_behind_another(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(3, line=together(order(), limit(3)))
        assert ids_of(await claim(harness, most_behind=9)) == ids[:1]

    async def test_an_order_that_queues_share_has_one_at_a_time(self, harness: Harness) -> None:
        await harness.enqueue(line=order(), queue="other")
        [elsewhere] = await harness.claim(demand=5, queue="other")
        await harness.settle(elsewhere, Complete())
        ids = await harness.enqueue_many(3, line=order())
        for id in ids:
            [claimed] = await claim(harness, most_behind=9)
            assert (claimed.id, claimed.behind) == (id, None)
            await harness.settle(claimed, Complete())

    async def test_after_a_broken_train_no_other_queue_comes_first(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(2, line=order())
        train = await claim(harness, most_behind=9)
        await harness.enqueue(line=order(), queue="other")
        assert await harness.claim(demand=5, queue="other") == []
        for job in reversed(train):
            await harness.settle(job, GiveBack())
        assert await harness.claim(demand=5, queue="other") == [], "the first one had begun"
        assert ids_of(await claim(harness, most_behind=0)) == ids[:1]

    async def test_a_job_behind_a_train_is_told_which_one_runs(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(4, line=order())
        first, *_ = await claim(harness, most_behind=2)
        for running in (ids[0], ids[1]):
            for waiting in ids[2:]:  # one has been claimed, one has not
                circumstances = await harness.store.circumstances(waiting)
                assert circumstances is not None
                [reason] = [each for each in explain(circumstances).reasons if each.kind is ReasonKind.ORDER]
                assert reason.details["job"] == running
            circumstances = await harness.store.circumstances(running)
            assert circumstances is not None
            assert explain(circumstances).kinds[-1] is ReasonKind.RUNNING
            await harness.settle(first, Complete())
        [shown] = await harness.store.limits()
        assert (shown.used, shown.most, shown.holder) == (1, 1, None)

    async def test_a_job_of_another_queue_is_told_that_it_waits_for_a_train(self, harness: Harness) -> None:
        await harness.enqueue_many(3, line=order())
        train = await claim(harness, most_behind=2)
        waiting = await harness.enqueue(line=order(), queue="other")
        assert await harness.claim(demand=5, queue="other") == []
        for job in train:
            circumstances = await harness.store.circumstances(waiting)
            assert circumstances is not None
            [reason] = [each for each in explain(circumstances).reasons if each.kind is ReasonKind.ORDER]
            assert (reason.details["job"], reason.details["state"]) == (None, JobState.ACTIVE)
            await harness.settle(job, Complete())
        circumstances = await harness.store.circumstances(waiting)
        assert circumstances is not None
        assert ReasonKind.ORDER not in explain(circumstances).kinds
