"""What a statement costs depends on its batch, and neither on what is over nor on what waits.

The planner goes by what it knows of a table, and the store's connections keep its plans. So they must be good whatever
it knew: of a table that was empty or had a few rows when the plan was made, of one that nobody has analyzed, and of one
that somebody has. The crowd has a million finished jobs, two hundred thousand ready ones, a hundred thousand scheduled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pytest

from holdfast.ids import Ids
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.statements import names
from tests.postgres.crowd import ACTIVE, QUEUE, TASK, empty, fill, id_of
from tests.postgres.plans import NOT_PREPARED, Prepared, Scan
from tests.postgres.questions import values_of
from tests.servers.databases import Databases

COUNTING: Final = {"circumstances", "limits", "queues"}
"""Count what waits, or look at all of it, in its indexes: for people, not for workers."""
AT_THE_FRONT: Final = {"busy_queues", "next_due", "select_unannounced", "unused_gates"}
"""Read the first entries of an index, and no further."""
OF_A_WORKER: Final = {"claimed", "depart", "end_work", "lock_active_of_worker", "lock_orphans", "workers"}
"""Read, or count, all that one worker holds: here a thousand jobs."""
OF_ALL_WHO_RUN: Final = {"forget_lines", "forgotten_lines"}
"""Read what all workers hold: for the pruner, once for some hundred lines."""
INDEXES: Final = {
    "announced": {"jobs_pkey"},
    "attempts": {"failures_of_job"},
    "attend": {"gates_pkey", "jobs_ready", "lines_open", "lines_pkey", "wakes_of_queue"},
    "asked_to_stop": {"jobs_pkey"},
    "busy_queues": {"jobs_ready", "lines_open", "wakes_of_queue"},
    "circumstances": {
        *("jobs_active", "jobs_ready_in_line", "jobs_pkey", "jobs_ready", "progress_pkey"),
        *("gates_pkey", "lines_open", "lines_pkey"),
    },
    "claim": {"jobs_pkey", "jobs_ready", "lines_open", "wakes_of_queue"},
    "claimed": {"jobs_active", "gates_pkey", "lines_pkey"},
    "close_keys": {"keys_of_job"},
    "complete": {"jobs_pkey", "keys_of_job"},
    "complete_lined": {"jobs_pkey", "keys_of_job"},
    "current_turns": {"lines_open"},
    "delete": {"jobs_pkey", "failures_of_job", "progress_pkey"},
    "due_gates": {"gates_timed"},
    "end_work": {"jobs_active"},
    "find_keys": {"keys_pkey"},
    "first_in_lines": {"jobs_ready_in_line"},
    "forget_gates": {"gates_pkey"},
    "forget_lines": {"lines_pkey", "jobs_ready_in_line", "jobs_kept_in_line", "jobs_active"},
    "forgotten_lines": {"lines_pkey", "jobs_ready_in_line", "jobs_kept_in_line", "jobs_active"},
    "held": {"jobs_pkey", "jobs_active"},
    "known_jobs": {"jobs_pkey"},
    "limits": {"gates_named", "gates_pkey", "jobs_ready_in_line", "lines_parked"},
    "lines_of": {"jobs_pkey"},
    "lines_of_ready": {"jobs_pkey"},
    "lock_active_of_worker": {"jobs_pkey", "jobs_active"},
    "lock_behind_breaker": {"jobs_behind_breakers"},
    "lock_by_id": {"jobs_pkey"},
    "lock_closed_lines": {"lines_pkey"},
    "lock_expired": {"jobs_expiring"},
    "lock_gates": {"gates_pkey"},
    "lock_orphans": {"jobs_pkey", "jobs_active"},
    "look_at_lines": {"lines_open", "lines_pkey", "gates_pkey", "jobs_ready_in_line"},
    "next_due": {"jobs_due", "jobs_expiring", "gates_timed"},
    "next_line": {"lines_open"},
    "open_lines": {"lines_open"},
    "open_unrated_lines": {"lines_open", "lines_pkey", "gates_pkey"},
    "prunable": {"jobs_pkey", "keys_of_job"},
    "progress": {"jobs_pkey", "progress_pkey"},
    "prune": {"jobs_pkey", "keys_of_job", "failures_of_job", "progress_pkey"},
    "prune_keys": {"keys_ending"},
    "queues": {"jobs_ready", "jobs_ready_in_line", "jobs_delayed"},
    "ready_in_lines": {"jobs_ready_in_line"},
    "report_progress": {"jobs_pkey"},
    "ripen": {"jobs_pkey", "jobs_due"},
    "save": {"jobs_pkey"},
    "save_traffic": {"lines_pkey", "gates_pkey", "jobs_ready_in_line"},
    "save_rules": {"gates_pkey"},
    "select_by_id": {"jobs_pkey"},
    "select_finished": {"jobs_pkey"},
    "select_gates": {"gates_pkey"},
    "select_lines": {"lines_pkey"},
    "select_unannounced": {"jobs_unannounced"},
    "start": {"jobs_pkey", "lines_pkey", "gates_pkey", "jobs_ready_in_line"},
    "take_wakes": {"wakes_of_queue", "lines_pkey"},
    "tell_lines": {"lines_pkey"},
    "ticks": {"jobs_pkey"},
    "trim_history": {"failures_of_job", "failures_pkey"},
    "try_gates": {"gates_pkey"},
    "unfinished_ticks": {"jobs_pkey"},
    "unused_gates": {"gates_unused"},
    "wait_for_line": {"lines_pkey"},
    "workers": {"jobs_active"},
}
"""What each statement may read of the tables that grow. Those that are not named don't touch them."""
TABLES: Final = ("jobs", "keys", "failures", "progress", "lines", "gates", "wakes")
HOT: Final = sorted(INDEXES.keys() - COUNTING - OF_A_WORKER - OF_ALL_WHO_RUN)
AUTO: Final = {"search_path": "pg_catalog, pg_temp", "enable_seqscan": "off", "plan_cache_mode": "auto"}
"""Where the planner is free to make another plan for each execution."""


@dataclass
class Crowd:
    """A crowded database, and connections that have been there since some time."""

    url: str
    since_it_was_empty: Prepared
    since_it_had_few: Prepared

    @contextmanager
    def fresh(self, settings: Mapping[str, str] | None = None) -> Iterator[Prepared]:
        with closing(Prepared(self.url, settings)) as prepared:
            yield prepared

    def ask(self, question: str) -> Any:
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(question.encode()).fetchone()
        return None if found is None else found[0]

    def do(self, order: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(order.encode())


@pytest.fixture
def crowd(postgres: Databases) -> Iterator[Crowd]:
    url = postgres.create_database()
    asyncio.run(_make_tables(url))
    with psycopg.connect(url, autocommit=True) as connection:
        for table in TABLES:  # or it would be analyzed when the machine likes
            connection.execute(f"alter table holdfast.{table} set (autovacuum_enabled = off)".encode())
        connection.execute("vacuum analyze")
        with closing(Prepared(url)) as since_it_was_empty:
            make_plans(since_it_was_empty)
            fill(connection, finished=10)
            connection.execute("vacuum analyze")
            with closing(Prepared(url)) as since_it_had_few:
                make_plans(since_it_had_few)
                empty(connection)
                fill(connection)
                yield Crowd(url, since_it_was_empty, since_it_had_few)
    postgres.drop_database(url)


async def _make_tables(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    await store.close()


def make_plans(prepared: Prepared) -> None:
    """A plan is made when a statement is run for the first time, and kept from then on."""
    for name in set(names()) - NOT_PREPARED.keys():
        prepared.explain(name, values_of(name, 1), is_run=True)


# ── which indexes ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_statement_has_its_place_in_this_file() -> None:
    for name in set(names()) - NOT_PREPARED.keys():
        assert values_of(name, 1) is not None
    assert INDEXES.keys() <= set(names())


def check_scans(name: str, scans: Sequence[Scan]) -> None:
    allowed = INDEXES.get(name, set())
    assert {scan.index for scan in scans if scan.index} <= allowed, f"{name}: {scans}"
    assert not any(scan.kind == "Seq Scan" for scan in scans), f"{name}: {scans}"
    if name not in COUNTING | AT_THE_FRONT | OF_ALL_WHO_RUN:
        assert not any(scan.is_whole for scan in scans), f"{name}: {scans}"


@pytest.mark.parametrize("rows", [0, 10], ids=["empty", "a few rows"])
@pytest.mark.parametrize("is_analyzed", [False, True], ids=["never analyzed", "analyzed"])
def test_no_plan_reads_all_of_a_small_table(postgres_database: str, rows: int, is_analyzed: bool) -> None:
    """It would be kept when the table has grown."""
    asyncio.run(_make_tables(postgres_database))
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        if rows:
            fill(connection, finished=rows)
        if is_analyzed:
            connection.execute("vacuum analyze")
    for settings in (None, AUTO):
        with closing(Prepared(postgres_database, settings)) as prepared:
            for name in set(names()) - NOT_PREPARED.keys():
                check_scans(name, prepared.explain(name, values_of(name, 3)).scans)


def no_plan_reads_all_of_a_large_table(crowd: Crowd) -> None:
    for settings in (None, AUTO):
        with crowd.fresh(settings) as prepared:
            for name in set(names()) - NOT_PREPARED.keys():
                check_scans(name, prepared.explain(name, values_of(name, 3)).scans)


# ── how much of them ─────────────────────────────────────────────────────────────────────────────────────────────────


def check_cost(name: str, prepared: Prepared) -> None:
    """A page of each index on the way down, a few for each job, and none for what else is there."""
    if name in AT_THE_FRONT:  # whoever looks first sweeps up what was rolled back there before
        prepared.explain(name, values_of(name, 1), is_run=True)
    for batch in (1, 100):
        plan = prepared.explain(name, values_of(name, batch), is_run=True)
        assert plan.buffers <= 120 + 45 * batch, f"{name} of {batch}: {plan}"
        check_scans(name, plan.scans)


def plans_made_for_a_small_table_are_good(crowd: Crowd) -> None:
    for name in HOT:
        check_cost(name, crowd.since_it_was_empty)
        check_cost(name, crowd.since_it_had_few)


def plans_made_before_anybody_analyzed_are_good(crowd: Crowd) -> None:
    with crowd.fresh() as prepared:
        for name in HOT:
            check_cost(name, prepared)


def what_a_worker_holds_is_found_among_all_others(crowd: Crowd) -> None:
    with crowd.fresh() as prepared:
        for name in OF_A_WORKER | OF_ALL_WHO_RUN:
            plan = prepared.explain(name, values_of(name, 1000), is_run=True)
            assert plan.buffers <= 6 * ACTIVE, f"{name}: {plan}"


# ── enqueuing ────────────────────────────────────────────────────────────────────────────────────────────────────────


KINDS: Final = ("plain", "keyed", "keyed before", "repeated")


def call_of(batch: int, kind: str) -> tuple[str, str]:
    """The arguments of a call of holdfast.enqueue for so many jobs that are new, or were there before."""
    jobs: list[dict[str, object]] = [
        {"id": str(id), "task": TASK, "queue": QUEUE, "args": '{"number": 17}'} for id in Ids().make_many(batch)
    ]
    options: dict[str, object] = {"is_admitted": True, "has_repeats": False}
    for number, job in enumerate(jobs, start=1):
        match kind:
            case "keyed":
                job |= {"idempotency_key": f"new {number}", "unique_key": f"new {number}"}
            case "keyed before":
                job |= {"idempotency_key": f"active {number}", "unique_key": f"new {number}"}
            case "repeated":
                job |= {"id": str(id_of(4, number)), "is_repeat": True}
                options["has_repeats"] = True
            case _:
                options["is_plain"] = True
    return json.dumps(jobs), json.dumps(options)


def an_enqueue_costs_the_same(crowd: Crowd) -> None:
    a_user_s: dict[str, str] = {}
    for settings in (None, a_user_s):
        with crowd.fresh(settings) as prepared:
            for kind in KINDS:
                prepared.explain_call(*call_of(1, kind))  # what is read once for each connection does not count
                for batch in (1, 100, 1, 100, 1, 100, 1, 100):  # after some times, a plan is made that is kept
                    plan = prepared.explain_call(*call_of(batch, kind))
                    assert plan.buffers <= 150 + 45 * batch, f"{kind}, {batch}: {plan}"


def test_an_enqueue_that_was_planned_for_a_small_table_is_good_for_a_large_one(postgres_database: str) -> None:
    asyncio.run(_make_tables(postgres_database))
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        fill(connection, finished=10)
        connection.execute("vacuum analyze")
        with closing(Prepared(postgres_database)) as ours, closing(Prepared(postgres_database, {})) as a_user_s:
            for kind in KINDS * 7:
                ours.explain_call(*call_of(1, kind))
                a_user_s.explain_call(*call_of(1, kind))
            empty(connection)
            fill(connection, finished=50_000)
            for kind in KINDS:
                for prepared in (ours, a_user_s):
                    plan = prepared.explain_call(*call_of(10, kind))
                    assert plan.buffers <= 600, f"{kind}: {plan}"


# ── dead entries ─────────────────────────────────────────────────────────────────────────────────────────────────────


def a_claim_from_its_floor_walks_over_no_dead_entries(crowd: Crowd) -> None:
    with psycopg.connect(crowd.url) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from holdfast.workers")  # an old snapshot, for which they must be kept
        crowd.do(f"""
            update holdfast.jobs set stage = 4, finished_at = 1 where id in (
                select id from holdfast.jobs where stage = 2 and queue = '{QUEUE}' order by place limit 20000
            )
        """)
        floor = crowd.ask(f"select min(place) from holdfast.jobs where stage = 2 and queue = '{QUEUE}'")
        with crowd.fresh() as prepared:
            from_the_floor = prepared.explain("claim", values_of("claim", 10, floor), is_run=True)
            from_the_front = prepared.explain("claim", values_of("claim", 10), is_run=True)
    assert from_the_floor.buffers <= 120 + 45 * 10, from_the_floor
    assert from_the_front.buffers > from_the_floor.buffers + 400, "without dead entries, nothing is tested here"


# ── after somebody has analyzed ──────────────────────────────────────────────────────────────────────────────────────


def plans_made_after_somebody_analyzed_are_good(crowd: Crowd) -> None:
    """From here on the planner knows the crowd."""
    crowd.do(f"vacuum (analyze, index_cleanup on) {', '.join(f'holdfast.{table}' for table in TABLES)}")
    for prepared in (crowd.since_it_was_empty, crowd.since_it_had_few):
        for name in HOT:
            check_cost(name, prepared)
    for settings in (None, AUTO):
        with crowd.fresh(settings) as prepared:
            for name in set(names()) - NOT_PREPARED.keys():
                check_scans(name, prepared.explain(name, values_of(name, 3)).scans)
            for name in HOT:
                check_cost(name, prepared)


def what_waits_is_counted_in_its_indexes(crowd: Crowd) -> None:
    """Not in the table. For a bound, once more under the lock if it may be reached, as here that of scheduled jobs."""
    jobs, _ = call_of(1, "plain")
    with crowd.fresh() as prepared:
        counted = prepared.explain("queues", [], is_run=True)
        look = json.dumps({"is_plain": True, "is_locking": True})
        prepared.explain_call(jobs, look)  # what is read once for each connection does not count
        looked = prepared.explain_call(jobs, look)
    pages = crowd.ask("""
        select sum(pg_relation_size('holdfast.' || name))::bigint / 8192
        from unnest(array['jobs_ready', 'jobs_ready_in_line', 'jobs_delayed']) as name
    """)
    assert counted.buffers <= 1.1 * pages
    assert looked.buffers <= 2.1 * pages


def why_a_job_waits_is_told_without_counting_all(crowd: Crowd) -> None:
    last = crowd.ask(f"select id from holdfast.jobs where stage = 2 and queue = '{QUEUE}' order by place desc limit 1")
    with crowd.fresh() as prepared:
        counted = prepared.explain("circumstances", [[last], None, 1000], is_run=True)
    assert counted.buffers <= 6 * ACTIVE, counted


def test_in_a_crowd_every_statement_costs_what_its_batch_costs(crowd: Crowd) -> None:
    """One test, because the crowd takes its time to gather."""
    no_plan_reads_all_of_a_large_table(crowd)
    plans_made_for_a_small_table_are_good(crowd)
    plans_made_before_anybody_analyzed_are_good(crowd)
    what_a_worker_holds_is_found_among_all_others(crowd)
    an_enqueue_costs_the_same(crowd)
    a_claim_from_its_floor_walks_over_no_dead_entries(crowd)
    plans_made_after_somebody_analyzed_are_good(crowd)
    what_waits_is_counted_in_its_indexes(crowd)
    why_a_job_waits_is_told_without_counting_all(crowd)
