"""Bounds: small ones are kept exactly, large ones nearly, and nobody waits who must not.

How far can a large bound be passed? Each process lets jobs in without asking up to three quarters of the bound,
counting its own since its last look, at most a quarter of a second ago; and what it looks at may be as old again,
or twenty times as old as counting takes. So within such a moment each of `n` processes may let in what is left up
to three quarters: at most `(n - 1) * 0.75 * bound` too many, if they all start on an empty queue at the very same time.
Calls that are on their way at that moment come on top, one batch for each event loop. From there on they take turns,
and nobody gets in beyond the bound. A process by itself keeps it exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from holdfast.errors import QueueFull
from holdfast.lifecycle import GiveBack
from holdfast.store import DEFAULT_BOUND, Filter, Queue
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.admission import COMFORTABLE, FRESH_FOR, LARGE, Admission, Depth
from tests.postgres.conftest import Opener
from tests.postgres.database import PATIENCE, Database
from tests.postgres.jobs import QUEUE, claim, enqueue, new, register, settle, start

BOUND = 2 * LARGE


# ── what a process knows ─────────────────────────────────────────────────────────────────────────────────────────────


def known(waiting: int = 0, bound: int = BOUND, scheduled: int = 0, scheduled_bound: int = BOUND) -> Admission:
    admission = Admission()
    admission.learn({QUEUE: Depth(waiting, scheduled, bound, scheduled_bound)}, monotonic=100.0)
    return admission


def test_what_is_not_known_is_asked_for() -> None:
    assert not Admission().admits({QUEUE: 1}, 100.0)
    assert not known().admits({QUEUE: 1, "another": 1}, 100.0)


def test_far_below_a_large_bound_nobody_asks() -> None:
    assert known().admits({QUEUE: 100}, 100.0)
    assert known(round(COMFORTABLE * BOUND) - 100).admits({QUEUE: 100}, 100.0)
    assert not known(round(COMFORTABLE * BOUND) - 100).admits({QUEUE: 101}, 100.0)
    assert not known(scheduled=round(COMFORTABLE * BOUND)).admits({QUEUE: 1}, 100.0)


def test_a_small_bound_is_always_asked_about() -> None:
    assert not known(bound=LARGE - 1).admits({QUEUE: 1}, 100.0)
    assert not known(scheduled_bound=LARGE - 1).admits({QUEUE: 1}, 100.0)


def test_knowledge_grows_old() -> None:
    assert known().admits({QUEUE: 1}, 100.0 + FRESH_FOR)
    assert not known().admits({QUEUE: 1}, 100.01 + FRESH_FOR)


def test_what_takes_long_to_count_stays_fresh_for_longer() -> None:
    admission = Admission()
    admission.learn({QUEUE: Depth(0, 0, BOUND, BOUND, measured_in=500_000)}, monotonic=100.0)
    assert admission.admits({QUEUE: 1}, 109.9)
    assert not admission.admits({QUEUE: 1}, 110.1)


def test_what_was_let_in_counts() -> None:
    admission = known()
    admission.count({QUEUE: round(COMFORTABLE * BOUND)})
    assert not admission.admits({QUEUE: 1}, 100.0)


def test_what_somebody_counted_before_does_not_undo_what_was_let_in() -> None:
    admission = Admission()
    counted = Depth(0, 0, BOUND, BOUND, measured_at=7)
    admission.learn({QUEUE: counted}, 100.0)
    admission.count({QUEUE: BOUND})
    admission.learn({QUEUE: Depth(0, 0, BOUND, BOUND, measured_at=7)}, 101.0)
    assert admission.is_tight({QUEUE: 1})
    admission.learn({QUEUE: Depth(0, 0, BOUND, BOUND, measured_at=8)}, 102.0)
    assert not admission.is_tight({QUEUE: 1})


def test_what_was_let_in_since_the_last_look_is_added_to_a_new_count() -> None:
    admission = known()
    admission.count({QUEUE: round(COMFORTABLE * BOUND)})
    admission.learn({QUEUE: Depth(0, 0, BOUND, BOUND, measured_at=8)}, 101.0)
    assert not admission.admits({QUEUE: 1}, 101.0)
    admission.learn({QUEUE: Depth(5, 0, BOUND, BOUND, is_certain=True)}, 102.0)
    assert admission.admits({QUEUE: 1}, 102.0)


def test_what_is_forgotten_is_asked_for() -> None:
    admission = known()
    admission.forget([QUEUE])
    assert not admission.admits({QUEUE: 1}, 100.0)


# ── what the database says ───────────────────────────────────────────────────────────────────────────────────────────


async def fill(store: PostgresStore, size: int = 500) -> int:
    """Enqueue as fast as can be until the queue is full, and return how many went in."""
    taken = 0
    while True:
        try:
            taken += len(await store.enqueue([new() for _ in range(size)]))
        except QueueFull:
            return taken


async def test_a_small_bound_is_exact_whoever_races(make_store: Opener) -> None:
    stores = [make_store() for _ in range(4)]
    await stores[0].declare_queues([Queue(QUEUE, bound=100)])
    calls = [stores[n % 4].enqueue([new() for _ in range(1 + n % 3)]) for n in range(100)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {list, QueueFull}
    assert 97 < await stores[0].count(Filter(queue=QUEUE)) <= 100


async def test_a_large_bound_is_passed_by_no_more_than_is_said(make_store: Opener) -> None:
    stores = [make_store() for _ in range(3)]
    await stores[0].declare_queues([Queue(QUEUE, bound=BOUND)])
    taken = sum(await asyncio.gather(*(fill(store) for store in stores)))
    assert BOUND - 500 < taken <= BOUND + (len(stores) - 1) * COMFORTABLE * BOUND
    assert await stores[0].count(Filter(queue=QUEUE)) == taken
    for store in stores:
        with pytest.raises(QueueFull):
            await store.enqueue([new()])


async def test_a_single_producer_keeps_a_large_bound_exactly(store: PostgresStore) -> None:
    await store.declare_queues([Queue(QUEUE, bound=LARGE)])
    assert await fill(store) == LARGE


async def test_a_new_bound_holds_at_once_here_and_soon_elsewhere(make_store: Opener) -> None:
    here, elsewhere = make_store(), make_store()
    await here.declare_queues([Queue(QUEUE, bound=BOUND)])
    await enqueue(here, 100)
    await enqueue(elsewhere, 100)
    await here.set_bound(QUEUE, 50)
    with pytest.raises(QueueFull):
        await here.enqueue([new()])
    async with asyncio.timeout(10):
        while True:  # no longer than what it knows is fresh
            try:
                await elsewhere.enqueue([new()])
            except QueueFull:
                break
            await asyncio.sleep(FRESH_FOR / 5)


async def test_many_producers_share_what_one_has_counted(database: Database, make_store: Opener) -> None:
    stores = [make_store() for _ in range(6)]
    await stores[0].declare_queues([Queue(QUEUE, bound=1_000_000)])
    await enqueue(stores[0])
    measured = set()
    for _ in range(20):
        await asyncio.gather(*(store.enqueue([new()]) for store in stores))
        measured.add(await database.value("select measured_at from holdfast.queues where name = $1", QUEUE))
    first, last = min(measured), max(measured)
    assert len(measured) <= 2 + (last - first) / 250_000, "it is counted once in a quarter of a second, whoever asks"


MEASURED = "select measured_at, waiting, measured_in from holdfast.queues where name = $1"
PUBLISH = "update holdfast.queues set measured_at = holdfast.now() - $2, measured_in = $3, waiting = $4 where name = $1"


async def test_a_queue_that_takes_long_to_count_is_counted_beside_its_producers(
    make_store: Opener, database: Database
) -> None:
    await enqueue(make_store(), 10)
    # As if somebody had counted it two seconds ago, and had needed 30 ms.
    await database.ask(PUBLISH, QUEUE, 2_000_000, 30_000, 5)
    ((before, _, _),) = await database.ask(MEASURED, QUEUE)
    store = make_store()
    async with database.lock_queue_count(QUEUE):
        await asyncio.gather(*(store.enqueue([new()]) for _ in range(5)))
        assert [tuple(row) for row in await database.ask(MEASURED, QUEUE)] == [(before, 5, 30_000)]
    async with asyncio.timeout(PATIENCE):
        while True:  # whoever comes next has it counted
            await enqueue(make_store())
            ((after, waiting, _),) = await database.ask(MEASURED, QUEUE)
            if after > before:
                break
    assert waiting >= 15


@pytest.mark.parametrize(("age", "waiting"), [(61_000_000, 5), (2_000_000, round(0.75 * DEFAULT_BOUND))])
async def test_a_count_from_long_ago_or_near_the_bound_is_not_put_off(
    make_store: Opener, database: Database, age: int, waiting: int
) -> None:
    await enqueue(make_store(), 10)
    await database.ask(PUBLISH, QUEUE, age, 30_000, waiting)
    connection = await database.connect()
    try:
        look = "select is_old, waiting from holdfast.look_at_queue($1, 1, null, true, false)"
        assert tuple((await connection.fetch(look, QUEUE))[0]) == (False, 10)
    finally:
        await connection.close()


async def test_a_store_that_closes_waits_for_its_count(make_store: Opener, database: Database) -> None:
    await enqueue(make_store(), 10)
    await database.ask(PUBLISH, QUEUE, 2_000_000, 30_000, 5)
    store = make_store()
    await enqueue(store)
    await store.close()
    ((_, waiting, _),) = await database.ask(MEASURED, QUEUE)
    assert waiting == 11


async def test_what_is_given_back_or_tried_again_is_never_refused(store: PostgresStore) -> None:
    worker = await register(store)
    await store.declare_queues([Queue(QUEUE, bound=2)])
    started = await start(store, worker, 2, queue=QUEUE)
    await enqueue(store, 2)
    await settle(store, started, GiveBack())
    assert await store.count(Filter(queue=QUEUE)) == 4
    assert len(await claim(store, worker, 10)) == 4


# ── transactions of the user's ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database.url) as connection:
        yield connection
        connection.rollback()


async def test_a_user_s_transaction_waits_for_nobody_and_makes_nobody_wait(
    store: PostgresStore, database: Database, connection: psycopg.Connection
) -> None:
    await store.declare_queues([Queue(QUEUE, bound=3)])
    store_locks = "select count(*) from pg_locks where locktype = 'advisory' and pid = $1"
    await asyncio.to_thread(store.enqueue_in, connection, [new()])
    assert await database.value(store_locks, connection.info.backend_pid) == 0
    await enqueue(store, 3)
    with pytest.raises(QueueFull):
        await asyncio.to_thread(store.enqueue_in, connection, [new()])
    await asyncio.to_thread(connection.commit)
    assert await store.count(Filter(queue=QUEUE)) == 4, "one more than the bound, as is said"
