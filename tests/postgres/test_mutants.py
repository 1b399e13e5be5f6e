"""The tester is tested: statements that break one promise each, and the test that must notice.

See tests/contract/test_mutants.py for what the contract notices of decisions; this is about SQL. Mutants of floors are
in test_floors.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from holdfast.errors import HoldfastError, StoreError
from holdfast.stores.postgres import PostgresStore, statements
from holdfast.stores.postgres.migrate import Migration, shipped_migrations
from holdfast.testing import ManualClock
from holdfast.testing.store_contract import RETENTION, Harness, StoreContract
from tests.postgres import test_locks
from tests.postgres.conftest import Opener
from tests.postgres.database import Database

FUNCTIONS = "the functions"
"""Of the first migration."""


@dataclass(frozen=True)
class Mutant:
    """In a statement, or among the functions, `original` is replaced."""

    name: str
    where: str
    original: str
    replacement: str
    caught_by: str

    def statement(self) -> str:
        text = statements.statement(self.where)
        assert self.original in text
        return text.replace(self.original, self.replacement)

    def migrations(self) -> list[Migration]:
        first, *others = shipped_migrations()
        assert self.original in first.sql
        return [Migration(first.number, first.name, first.sql.replace(self.original, self.replacement)), *others]


MUTANTS = [
    Mutant(
        "completes whatever the token",
        "complete",
        "and job.token = done.token",
        "",
        "test_an_earlier_claim_is_stale_once_the_job_is_claimed_again",
    ),
    Mutant(
        "completes what is over",
        "complete",
        "and (job.stage = 3) is true",
        "",
        "test_a_repeated_settlement_is_recognised_and_changes_nothing",
    ),
    Mutant(
        "completes whatever the token, in a line or not",
        "complete_lined",
        "and job.token = done.token",
        "",
        "test_a_job_s_token_opens_no_other_job",
    ),
    Mutant(
        "completes what is over, in a line or not",
        "complete_lined",
        "and (job.stage = 3) is true",
        "",
        "test_answers_stand_in_the_order_of_the_settlements",
    ),
    Mutant(
        "never ends a key",
        "complete",
        "k.job = any ($4::uuid[])",
        "k.job = any ($4::uuid[]) and false",
        "test_the_key_holds_after_each_end_until_its_retention_has_passed",
    ),
    Mutant(
        "asks jobs to stop that have ended",
        "asked_to_stop",
        "and (stage = 3) is true",
        "",
        "test_a_worker_learns_which_of_its_jobs_are_asked_to_stop",
    ),
    Mutant(
        "reports progress whatever the token",
        "report_progress",
        "and token = new.token",
        "",
        "test_a_report_under_a_token_that_is_not_the_job_s_is_dropped",
    ),
    Mutant(
        "shows the progress of an earlier run",
        "progress",
        "and p.run = (select runs from holdfast.jobs where id = p.job)",
        "",
        "test_a_new_run_starts_anew",
    ),
    Mutant(
        "keeps the progress of pruned jobs",
        "prune",
        "delete from holdfast.progress where job = any (array(select id from gone))",
        "delete from holdfast.progress where job = any (array(select id from gone)) and false",
        "test_it_goes_with_its_job",
    ),
    Mutant(
        "announces what has gone dead again",
        "announced",
        "and generation = told.generation",
        "",
        "test_an_announcement_of_an_earlier_death_leaves_the_mark_of_the_next",
    ),
    Mutant(
        "announces what was retried",
        "save",
        "is_unannounced = new.stage = 6 and (job.is_unannounced or job.stage <> 6)",
        "is_unannounced = job.is_unannounced or (new.stage = 6 and job.stage <> 6)",
        "test_a_retried_job_needs_no_announcement_until_it_goes_dead_again",
    ),
    Mutant(
        "claims without locking",
        "claim",
        "for update skip locked",
        "",
        "test_racing_claimers_never_share_a_job_and_together_get_all",
    ),
    Mutant(
        "claims for the dead",
        "claim",
        "where id = $1 and dead_at is null",
        "where id = $1",
        "test_a_dead_worker_may_not_claim",
    ),
    Mutant(
        "claims from paused queues",
        "claim",
        "control.paused || control.lined || control.woken",
        "control.lined || control.woken",
        "test_a_paused_queue_gives_nothing_until_it_is_resumed",
    ),
    Mutant(
        "claims what has expired",
        "claim",
        "and (expires_at is null or expires_at > alive.now)",
        "",
        "test_an_expired_job_is_passed_over",
    ),
    Mutant(
        "claims the newest first",
        "claim",
        "order by place",
        "order by place desc",
        "test_claims_one_by_one_keep_the_order",
    ),
    Mutant(
        "settles without locking",
        "lock_by_id",
        "for update",
        "",
        "test_racing_settlements_of_one_claim_apply_once",
    ),
    Mutant(
        "does not look for what has expired",
        "next_due",
        "where stage < 3 and expires_at is not null",
        "where stage < 3 and expires_at is not null and false",
        "test_an_expired_job_goes_dead_with_the_reason",
    ),
    Mutant(
        "ripens in any order",
        "ripen",
        "order by due_at, id",
        "order by id desc",
        "test_what_is_due_becomes_ready_in_the_order_of_its_times",
    ),
    Mutant(
        "declares dead who has beaten since",
        "declare_dead",
        "and gone.beat in (w.beat, -1)",
        "",
        "test_a_worker_that_beat_in_the_meantime_is_spared",
    ),
    Mutant(
        "forgets claims whose answer was lost",
        "held",
        "and started_at >= $3",
        "and started_at >= $3 and false",
        "test_a_claim_whose_answer_was_lost_is_given_back_uncharged",
    ),
    Mutant(
        "knows no expired keys",
        FUNCTIONS,
        "and (k.expires_at is null or k.expires_at > moment)",
        "",
        "test_the_key_holds_after_each_end_until_its_retention_has_passed",
    ),
    Mutant(
        "compares no fingerprints",
        FUNCTIONS,
        "holder.fingerprint is distinct from new.fingerprint",
        "false",
        "test_a_key_with_other_arguments_is_a_conflict_that_names_the_job",
    ),
]


def plant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(statements._TEXTS, mutant.where, mutant.statement())
    statements.records_statement.cache_clear()


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    statements.records_statement.cache_clear()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
async def test_a_broken_statement_is_noticed_by_the_contract(
    mutant: Mutant, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    url = request.getfixturevalue("postgres_database" if mutant.where == FUNCTIONS else "migrated_database")
    migrations = mutant.migrations() if mutant.where == FUNCTIONS else None
    if mutant.where != FUNCTIONS:
        plant(mutant, monkeypatch)

    def make() -> PostgresStore:
        return PostgresStore(url, clock=clock, retention=RETENTION, migrations=migrations)

    harness = Harness(make(), clock, make_another=make, connect=lambda: psycopg.connect(url))
    try:
        with pytest.raises((AssertionError, HoldfastError, ValueError, pytest.fail.Exception)) as complaint:
            await getattr(StoreContract(), mutant.caught_by)(harness)
        assert not isinstance(complaint.value, StoreError), "the server did not understand it"
    finally:
        await harness.close()


async def test_a_claim_that_waits_for_locks_is_noticed(
    store: PostgresStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(Mutant("", "claim", "for update skip locked", "for update", ""), monkeypatch)
    with pytest.raises(AssertionError, match="it waits"):
        await test_locks.test_a_claim_passes_over_what_somebody_else_has_locked(store, database)


async def test_a_claim_that_locks_no_worker_is_noticed(
    store: PostgresStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(Mutant("", "claim", "for key share", "", ""), monkeypatch)
    with pytest.raises(AssertionError, match="being taken over"):
        await test_locks.test_a_claim_waits_for_whoever_is_ending_its_worker(store, database)


async def test_a_bound_that_is_counted_without_taking_turns_is_noticed(bare: Database, make_store: Opener) -> None:
    turn = "perform pg_advisory_xact_lock(1215261793, hashtext(queue_name));"
    store = make_store(bare.url, migrations=Mutant("", FUNCTIONS, turn, "", "").migrations())
    with pytest.raises(AssertionError, match="did not wait"):
        await test_locks.test_producers_of_a_small_queue_take_turns(store, bare)
