"""Demand: never more than there is room for, and every queue that may have work gets its turn."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.worker.demand import MOST_AHEAD, Demand
from holdfast.worker.slots import Pool, Slots, make_slots

PLENTY = 10_000


def work_off(demand: Demand, pool: int, jobs: int) -> None:
    for _ in range(jobs):
        demand.fetched(pool)
        demand.started(pool)
        demand.finished(pool)


# ── behind others of their order ─────────────────────────────────────────────────────────────────────────────────────


def test_at_first_a_few_are_asked_for_that_are_behind_others() -> None:
    demand = Demand(make_slots({"a": 2}))
    assert demand.behind(demand.wanted(0.0, PLENTY), PLENTY) == 16
    assert demand.behind({"a": 2}, 5) == 5
    assert demand.behind({}, PLENTY) == 0


def test_of_fast_jobs_more_are_fetched_behind_others_than_ahead() -> None:
    demand = Demand(make_slots({"a": 2}))
    now = 0.0
    wanted = demand.wanted(now, PLENTY)
    for _ in range(20):
        now += 0.1
        work_off(demand, 0, 100)  # 1,000 a second
        wanted = demand.wanted(now, PLENTY)
    assert 40 <= wanted["a"] <= 52
    assert 450 <= demand.behind(wanted, PLENTY) <= 500


def test_nobody_is_fetched_behind_others_while_those_before_have_no_slots() -> None:
    demand = Demand(make_slots({"a": 2}))
    for _ in range(3):
        demand.fetched_behind(0)
        assert demand.behind({"a": 2}, PLENTY) > 0
    for _ in range(3):
        demand.came_forward(0)
    assert demand.behind({"a": 2}, PLENTY) == 0
    demand.dropped(0, is_follower=True)
    assert demand.behind({"a": 2}, PLENTY) > 0


def test_those_behind_others_take_no_slot_and_no_room_until_they_start() -> None:
    demand = Demand(make_slots({"a": 2}))
    for _ in range(10):
        demand.fetched_behind(0)
    assert demand.wanted(0.0, PLENTY) == {"a": 2}
    assert demand.behind({"a": 2}, PLENTY) == 6
    assert not demand.is_idle(0)
    demand.came_forward(0)
    assert demand.wanted(0.0, PLENTY) == {"a": 2}, "others have to be fetched for the slots that it does not get"
    assert demand.behind({"a": 2}, PLENTY) == 6
    demand.started(0, is_follower=True)
    assert demand.wanted(0.0, PLENTY) == {"a": 1}
    for _ in range(9):
        demand.dropped_behind(0)
    assert demand.behind({"a": 1}, PLENTY) == 16


def test_if_they_had_to_be_given_back_fewer_are_fetched_for_some_time() -> None:
    demand = Demand(make_slots({"a": 2}))
    demand.wanted(0.0, PLENTY)
    for _ in range(5):
        demand.overestimated_behind(0)
    assert demand.behind({"a": 2}, PLENTY) == 0
    assert demand.wanted(0.0, PLENTY) == {"a": 2}, "it says nothing about others"
    demand.wanted(30.0, PLENTY)
    assert demand.behind({"a": 2}, PLENTY) == 16


def test_while_some_wait_behind_others_a_claim_that_brought_little_is_followed_by_a_rest() -> None:
    demand = Demand(make_slots({"a": 2}))
    assert demand.rest(asked=100, got=0, seconds=0.001) == 0, "nothing will come of a settlement of ours"
    demand.fetched_behind(0)
    assert demand.rest(asked=100, got=24, seconds=0.001) == 0.008
    assert demand.rest(asked=100, got=25, seconds=0.001) == 0, "there is more"
    assert demand.rest(asked=100, got=0, seconds=5.0) == 0.02, "whatever a claim was held up by"
    demand.came_forward(0)
    assert demand.rest(asked=100, got=0, seconds=0.001) == 0


def test_where_all_are_under_orders_a_few_long_trains_are_fetched() -> None:
    demand = Demand(make_slots({"a": 2}))
    now = 0.0
    for _ in range(20):
        now += 0.1
        demand.wanted(now, PLENTY)
        work_off(demand, 0, 100)  # 1,000 a second, so that 500 may be behind others
    for _ in range(260):
        demand.fetched_behind(0)
    assert demand.wanted(now, PLENTY)["a"] == 52, "what else there is in the queue is not known"
    demand.came(["a"], now, ["a"])
    assert demand.wanted(now, PLENTY)["a"] == 240 // 8
    for _ in range(2):
        demand.fetched(0)
        demand.started(0)
    assert demand.wanted(now, PLENTY) == {}, "the slots are taken, and half of what is behind them is still there"
    for _ in range(20):
        demand.dropped_behind(0)
    assert demand.wanted(now, PLENTY)["a"] == 260 // 8
    demand.came(["a"], now)
    assert demand.wanted(now, PLENTY)["a"] == 50, "there were others"


# ── room ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_at_first_all_free_slots_are_asked_for() -> None:
    demand = Demand(make_slots({"high": 4, "low": 1}))
    assert demand.wanted(0.0, PLENTY) == {"high": 4, "low": 1}


def test_pools_are_apart() -> None:
    demand = Demand(make_slots({"high": 2, "low": 1}))
    for _ in range(2):
        demand.fetched(0)
        demand.started(0)
    assert not demand.has_slot(0)
    assert demand.has_slot(1)
    assert demand.wanted(0.0, PLENTY) == {"low": 1}
    demand.finished(0)
    assert demand.wanted(0.0, PLENTY) == {"high": 1, "low": 1}


def test_no_more_is_asked_for_than_can_be_recorded() -> None:
    demand = Demand(make_slots({"a": 10, "b": 10}))
    assert sum(demand.wanted(0.0, 7).values()) == 7
    assert demand.wanted(0.0, 0) == {}


def test_a_pool_whose_jobs_are_slow_fetches_nothing_ahead() -> None:
    demand = Demand(make_slots({"a": 2}))
    demand.wanted(0.0, PLENTY)
    work_off(demand, 0, 10)  # ten a second: half a job in the time that is fetched ahead
    assert demand.wanted(1.0, PLENTY) == {"a": 2}


def test_a_pool_whose_jobs_are_fast_fetches_ahead_but_not_without_bound() -> None:
    demand = Demand(make_slots({"a": 2}))
    demand.wanted(0.0, PLENTY)
    now, asked = 0.0, 0
    for _ in range(20):
        now += 0.1
        work_off(demand, 0, 1000)  # 10,000 a second
        asked = demand.wanted(now, PLENTY)["a"]
    assert 400 <= asked <= 502
    for _ in range(40):
        now += 0.001
        work_off(demand, 0, 1000)  # a million a second
        asked = demand.wanted(now, PLENTY)["a"]
    assert asked == MOST_AHEAD + 2


def test_when_jobs_become_slow_nothing_is_fetched_ahead_any_more_at_once() -> None:
    demand = Demand(make_slots({"a": 1}))
    demand.wanted(0.0, PLENTY)
    for step in range(1, 50):
        work_off(demand, 0, 100)
        demand.wanted(step / 100, PLENTY)
    work_off(demand, 0, 100)
    assert demand.wanted(0.50, PLENTY)["a"] > 400
    assert demand.wanted(0.54, PLENTY) == {"a": 1}


def test_a_few_short_jobs_among_long_ones_say_nothing() -> None:
    demand = Demand(make_slots({"a": 4}))
    demand.wanted(0.0, PLENTY)
    now = 0.0
    for _ in range(20):
        now += 0.002
        work_off(demand, 0, 6)  # 3,000 a second, but only now and then
        assert sum(demand.wanted(now, PLENTY).values()) <= 4 + 10
        now += 0.1
        demand.wanted(now, PLENTY)


def test_time_without_work_says_nothing_about_the_jobs() -> None:
    """Otherwise a slow disk would make for small claims, and small claims for idle slots."""

    def asked(idle: float, slow: float) -> int:
        demand = Demand(make_slots({"a": 16}))
        now, number = 0.0, 16
        for _ in range(60):
            got = demand.wanted(now, PLENTY).get("a", 0)
            now += idle
            demand.came(["a"], now)
            work_off(demand, 0, got)
            now += got / 20_000 + slow
            demand.went_idle(0, now)
            number = max(number, got)
        return number

    assert asked(idle=0.1, slow=0.0) > 900
    assert asked(idle=0.0, slow=0.1) <= 32, "but time in which they run does"


def test_after_a_while_without_work_the_next_jobs_may_be_long() -> None:
    demand = Demand(make_slots({"a": 2}))
    demand.wanted(0.0, PLENTY)
    for step in range(1, 20):
        work_off(demand, 0, 1000)
        demand.wanted(step / 20, PLENTY)
    demand.went_idle(0, 0.95)
    demand.came(["a"], 1.3)
    assert demand.wanted(1.3, PLENTY)["a"] > 100
    demand.went_idle(0, 1.3)
    demand.came(["a"], 2.0)
    assert demand.wanted(2.0, PLENTY) == {"a": 2}


def test_where_claims_take_long_there_is_work_until_they_are_answered_but_not_without_bound() -> None:
    def asked(seconds: float) -> int:
        demand = Demand(make_slots({"a": 1}))
        demand.wanted(0.0, PLENTY)
        number = 0
        for step in range(1, 100):
            work_off(demand, 0, 100)
            demand.took(seconds)
            number = demand.wanted(step / 50, PLENTY)["a"]  # 5,000 a second
        return number

    assert asked(0.001) == asked(0.01) <= 251
    assert 600 <= asked(0.03) <= 751
    assert asked(0.1) == asked(10.0) <= 1001


def test_a_claim_waits_until_half_of_what_was_fetched_is_used_up() -> None:
    demand = Demand(make_slots({"a": 1}))
    demand.wanted(0.0, PLENTY)
    work_off(demand, 0, 400)
    asked = demand.wanted(0.02, PLENTY)["a"]
    assert asked > 100
    for _ in range(asked):
        demand.fetched(0)
    demand.started(0)
    assert demand.wanted(0.0205, PLENTY) == {}
    left = asked - 1
    while not (again := demand.wanted(0.0205, PLENTY)):
        demand.finished(0)
        demand.started(0)
        left -= 1
    assert left >= asked // 2 - 2, "there is work until the answer comes"
    assert again["a"] <= asked - left


def test_where_fetched_jobs_find_no_slot_in_time_fewer_are_fetched_until_some_time_has_passed() -> None:
    demand = Demand(make_slots({"a": 1}))
    now = 0.0

    def asked() -> int:
        nonlocal now
        number = 0
        for _ in range(40):
            now += 0.01
            work_off(demand, 0, 100)  # 10,000 a second
            number = demand.wanted(now, PLENTY)["a"]
        return number

    plenty = asked()
    demand.overestimated(0)
    fewer = asked()
    assert fewer < 0.6 * plenty
    for _ in range(20):
        demand.overestimated(0)
    assert 1 <= asked() < 0.05 * plenty, "the free slot is asked for, whatever happened"
    now += 30
    work_off(demand, 0, 1)
    demand.wanted(now, PLENTY)
    assert asked() >= 0.9 * plenty


# ── hope ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_queue_is_not_asked_again_until_there_is_hope() -> None:
    demand = Demand(make_slots({"a": 2, "b": 2}))
    wanted = demand.wanted(0.0, PLENTY)
    demand.answered(wanted, {"a": 2, "b": 1})
    assert demand.wanted(0.0, PLENTY) == {"a": 2}
    assert demand.hope_for(["b"])
    assert demand.wanted(0.0, PLENTY) == {"a": 2, "b": 2}


def test_hope_that_comes_while_a_claim_is_under_way_is_not_forgotten_when_it_is_answered() -> None:
    """The claim may have looked before the job was there."""
    demand = Demand(make_slots({"a": 2}))
    wanted = demand.wanted(0.0, PLENTY)
    demand.hope_for(["a"])
    demand.answered(wanted, {})
    wanted = demand.wanted(0.0, PLENTY)
    assert wanted == {"a": 2}
    demand.answered(wanted, {})
    assert demand.wanted(0.0, PLENTY) == {}


def test_a_queue_that_gave_all_that_could_start_at_once_is_asked_again_when_another_could() -> None:
    """It may have more that are under a rate: they are not fetched ahead, and must not be left waiting either."""
    demand = Demand(make_slots({"a": 2}))
    for _ in range(2):
        demand.fetched(0)
        demand.started(0)
    demand.answered({"a": 5}, {"a": 2}, {"a": 2})
    assert demand.wanted(0.0, PLENTY) == {}
    demand.finished(0)
    assert demand.wanted(0.0, PLENTY) == {"a": 1}
    demand.answered({"a": 1}, {}, {"a": 1})
    demand.finished(0)
    assert demand.wanted(0.0, PLENTY) == {}, "now it is empty"


def test_slots_are_kept_free_for_jobs_that_must_start_where_others_wait_for_all_of_them() -> None:
    demand = Demand(make_slots({"a": 8}))
    for _ in range(8):
        demand.fetched(0)
        demand.started(0)
    for came, kept in [(1, 1), (2, 2), (4, 4), (4, 4), (1, 4), (0, 1), (0, 1)]:
        demand.fetched(0)
        demand.keep_reserve({"a": 3})
        assert not demand.has_reserve
        for _ in range(kept):
            assert demand.at_once({"a": 9}) == {"a": 8 - demand.running}
            demand.finished(0)
            assert not demand.has_slot(0), "it is kept"
        assert demand.has_reserve
        assert demand.at_once({"a": 9}) == {"a": kept}
        for _ in range(came):
            assert demand.has_kept_slot(0)
            demand.fetched(0)
            demand.started(0)
        assert demand.let_go({0: came}) == [0]
        assert demand.has_slot(0) is (came < kept), "what is left is for others"
        for _ in range(kept - came):
            demand.fetched(0)
            demand.started(0)
        demand.dropped(0)


def test_no_slot_is_kept_where_nobody_waits_for_one() -> None:
    demand = Demand(make_slots({"a": 2, "b": 2}))
    demand.fetched(0)
    demand.started(0)
    demand.keep_reserve({"a": 1, "b": 1})
    assert demand.has_reserve
    assert demand.at_once({"a": 5, "b": 5}) == {"a": 1, "b": 2}
    assert demand.has_slot(0)
    assert demand.let_go({0: 1}) == []


def test_a_slot_that_became_free_during_a_claim_is_asked_for() -> None:
    demand = Demand(make_slots({"a": 1}))
    demand.answered({"a": 3}, {}, {"a": 0})
    assert demand.wanted(0.0, PLENTY) == {"a": 1}
    demand.answered({"a": 1}, {}, {"a": 1})
    assert demand.wanted(0.0, PLENTY) == {}


def test_queues_that_are_not_served_here_give_no_hope() -> None:
    demand = Demand(make_slots({"a": 2}))
    assert not demand.hope_for(["other"])
    assert demand.pool_of("other") is None
    assert "other" not in demand.wanted(0.0, PLENTY)


def test_a_worker_for_all_queues_learns_of_them_as_they_come() -> None:
    demand = Demand(make_slots(None, 4))
    assert demand.wanted(0.0, PLENTY) == {}
    assert demand.hope_for(["new"])
    assert demand.wanted(0.0, PLENTY) == {"new": 4}


def test_with_one_slot_every_queue_has_its_turn() -> None:
    """However often it is asked in vain between two claims, while the slot is taken."""
    for queues in (2, 3, 4):
        for idle_looks in range(4):
            demand = Demand(make_slots([f"q{number}" for number in range(queues)], 1))
            served: Counter[str] = Counter()
            for _ in range(12):
                (queue,) = demand.wanted(0.0, PLENTY)
                served[queue] += 1
                demand.fetched(0)
                demand.started(0)
                for _ in range(idle_looks):
                    assert demand.wanted(0.0, PLENTY) == {}
                demand.finished(0)
            assert set(served.values()) == {12 // queues}


# ── any history ──────────────────────────────────────────────────────────────────────────────────────────────────────


class AnyHistory(RuleBasedStateMachine):
    """Jobs come, start and end in any order; what is asked for never exceeds the room."""

    @initialize(
        sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), common=st.none() | st.integers(1, 4), data=st.data()
    )
    def begin(self, sizes: list[int], common: int | None, data: st.DataObject) -> None:
        pools = [Pool(size, (f"q{number}", f"r{number}")) for number, size in enumerate(sizes)]
        if common is not None:
            pools.append(Pool(common))
        self.sizes = [pool.size for pool in pools]
        self.demand = Demand(Slots(tuple(pools)))
        self.now = 0.0
        self.waiting = [0] * len(pools)
        self.running = [0] * len(pools)
        self.queues = [*(f"{letter}{number}" for number in range(len(sizes)) for letter in "qr"), "x", "y"]

    @rule(names=st.data())
    def hope(self, names: st.DataObject) -> None:
        self.demand.hope_for(names.draw(st.lists(st.sampled_from(self.queues))))

    @rule(passed=st.sampled_from([0.0, 0.001, 0.01, 1.0]), most=st.integers(0, 50), data=st.data())
    def claim(self, passed: float, most: int, data: st.DataObject) -> None:
        self.now += passed
        wanted = self.demand.wanted(self.now, most)
        assert sum(wanted.values()) <= most
        asked: Counter[int] = Counter()
        for queue, number in wanted.items():
            pool = self.demand.pool_of(queue)
            assert pool is not None
            assert number > 0
            asked[pool] += number
        for pool, number in asked.items():
            assert self.waiting[pool] + self.running[pool] + number <= self.sizes[pool] + MOST_AHEAD
        got = {queue: data.draw(st.integers(0, min(number, 5))) for queue, number in wanted.items()}
        for queue, number in got.items():
            pool = self.demand.pool_of(queue)
            assert pool is not None
            for _ in range(number):
                self.demand.fetched(pool)
                self.waiting[pool] += 1
        self.demand.answered(wanted, got)
        emptied = {queue for queue, number in wanted.items() if got[queue] < number}
        assert not emptied & set(self.demand.wanted(self.now, PLENTY))

    @precondition(lambda self: any(self.waiting))
    @rule(data=st.data(), is_dropped=st.booleans())
    def start_or_drop(self, data: st.DataObject, is_dropped: bool) -> None:
        pool = data.draw(st.sampled_from([pool for pool, number in enumerate(self.waiting) if number]))
        self.waiting[pool] -= 1
        if is_dropped or not self.demand.has_slot(pool):
            self.demand.dropped(pool)
        else:
            self.demand.started(pool)
            self.running[pool] += 1

    @rule(data=st.data())
    def overestimate(self, data: st.DataObject) -> None:
        self.demand.overestimated(data.draw(st.integers(0, len(self.sizes) - 1)))

    @precondition(lambda self: any(self.running))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        pool = data.draw(st.sampled_from([pool for pool, number in enumerate(self.running) if number]))
        self.demand.finished(pool)
        self.running[pool] -= 1

    @invariant()
    def no_pool_runs_more_than_its_size(self) -> None:
        if hasattr(self, "sizes"):
            assert self.demand.running == sum(self.running)
            for pool, size in enumerate(self.sizes):
                assert self.running[pool] <= size
                assert self.demand.has_slot(pool) is (self.running[pool] < size)


TestAnyHistory = AnyHistory.TestCase


@given(st.integers(1, 20), st.integers(0, 20))
def test_free_slots_are_always_asked_for_while_there_is_hope(size: int, running: int) -> None:
    demand = Demand(make_slots({"a": size}))
    for _ in range(min(running, size)):
        demand.fetched(0)
        demand.started(0)
    free = size - min(running, size)
    assert demand.wanted(0.0, PLENTY) == ({"a": free} if free else {})
