from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from holdfast.job import (
    FINAL,
    WAITING,
    Attempt,
    Delivery,
    Failure,
    FailureKind,
    JobRecord,
    JobState,
    Lane,
    NewJob,
    Stage,
)
from holdfast.lifecycle import (
    MOST_CRASHES,
    MOST_LOSSES,
    MOST_WAITS,
    NOT_STARTED,
    Bury,
    Complete,
    GiveBack,
    Transition,
    Withdraw,
    admit,
    all_attempts,
    cancel,
    decide,
    ended_attempt,
    expire,
    expired_failure,
    failed_attempt,
    finish,
    has_expired,
    may_discard,
    retry,
    ripen,
    run_now,
    start,
)
from holdfast.outcome import Completed, Crashed, Interrupted, Outcome, Raised, Unstarted, Verdict, Withdrawn
from holdfast.retry import POOL_DELAY, POOL_TRIES, Retry

JOB = UUID("01890000-0000-7000-8000-000000000001")
WORKER = UUID("01890000-0000-7000-8000-0000000000aa")
NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ERROR = Failure(FailureKind.ERROR, "ConnectionError", "reset by peer", "Traceback …")
CRASH = Failure(FailureKind.CRASH, "ProcessDied", "killed by signal 9")
SNOOZED = Failure(FailureKind.ERROR, "Snooze", "not yet, again in 30s")

RETRIED = [Delivery.AT_LEAST_ONCE, Delivery.TRANSACTIONAL]
WAITS = [Verdict.SNOOZE, Verdict.THROTTLED, Verdict.BREAKER]
CHARGED = [Verdict.TRANSIENT, Verdict.AGAIN, Verdict.POOL_FULL]

EDGES = {
    Stage.SCHEDULED: {Stage.READY, Stage.CANCELLED, Stage.DEAD},
    Stage.READY: {Stage.ACTIVE, Stage.CANCELLED, Stage.DEAD},
    Stage.ACTIVE: {Stage.SCHEDULED, Stage.READY, Stage.COMPLETED, Stage.CANCELLED, Stage.DEAD},
    Stage.COMPLETED: set(),
    Stage.CANCELLED: {Stage.READY},
    Stage.DEAD: {Stage.READY},
}


def new_job(**options: Any) -> NewJob:
    return NewJob(id=JOB, task="charge", queue="default", args_json="{}", **options)


def record(**fields: Any) -> JobRecord:
    return replace(admit(new_job(), NOW), **fields)


def begin(job: JobRecord, now: datetime = NOW) -> JobRecord:
    return start(job, WORKER, UUID(int=job.runs + 1), now)


def running(**fields: Any) -> JobRecord:
    return replace(begin(record()), **fields)


def after(job: JobRecord, outcome: Outcome, policy: Retry = Retry(), chance: float = 0.5) -> JobRecord:
    return finish(job, decide(job, outcome, policy, chance), NOW + SECOND)


spans = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3650))
failures = st.builds(Failure, st.sampled_from(FailureKind), st.text(), st.text())
raised = st.builds(Raised, st.sampled_from(Verdict), failures, st.none() | spans)
crashed = st.builds(Crashed, failures, st.booleans()) | st.builds(Crashed, failures, with_worker=st.just(True))
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Completed, st.none() | st.just('"done"')),
    raised,
    st.builds(Withdrawn, st.text()),
    st.builds(Interrupted, st.booleans()),
    st.builds(Unstarted, failures, st.booleans()),
    crashed,
)
policies = st.builds(
    Retry,
    st.integers(1, 1000),
    base=st.sampled_from([0, "1s", "1m"]),
    cap=st.sampled_from(["1m", "10m"]),
    jitter=st.booleans(),
)
chances = st.floats(0, 1)


@st.composite
def running_jobs(draw: st.DrawFn) -> JobRecord:
    most = draw(st.integers(1, 10))
    return running(
        max_attempts=most,
        attempt=draw(st.integers(1, most)),
        runs=draw(st.integers(1, 2000)),
        crashes=draw(st.integers(0, MOST_LOSSES - 1)),
        waits=draw(st.integers(0, MOST_WAITS - 1)),
        pool_tries=draw(st.integers(0, POOL_TRIES - 1)),
        delivery=draw(st.sampled_from(Delivery)),
        cancel_requested_at=draw(st.none() | st.just(NOW)),
    )


# ── decide: what each outcome makes of a job ─────────────────────────────────────────────────────────────────────────


def test_a_task_that_returned_completes_its_job() -> None:
    assert decide(running(), Completed('"paid"'), Retry(), 0.5) == Complete('"paid"')


def test_a_withdrawn_attempt_withdraws_the_job() -> None:
    assert decide(running(), Withdrawn("duplicate"), Retry(), 0.5) == Withdraw("duplicate")


@pytest.mark.parametrize("delivery", Delivery)
def test_a_job_stopped_before_it_started_goes_back_uncharged(delivery: Delivery) -> None:
    assert decide(running(delivery=delivery), Interrupted(has_started=False), Retry(), 0.5) == NOT_STARTED


@pytest.mark.parametrize("delivery", Delivery)
def test_a_job_that_could_not_be_started_goes_back_uncharged_and_later_each_time(delivery: Delivery) -> None:
    pauses = []
    for waits in range(8):
        job = running(delivery=delivery, waits=waits, attempt=1, max_attempts=1)
        transition = decide(job, Unstarted(ERROR), Retry(), 0.5)
        assert isinstance(transition, GiveBack)
        assert (transition.is_charged, transition.has_crashed, transition.has_waited) == (False, False, True)
        assert transition.is_unstarted
        pauses.append(transition.delay.total_seconds())
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_job_that_could_not_be_started_does_not_wait_for_ever() -> None:
    assert isinstance(decide(running(waits=MOST_WAITS - 1), Unstarted(ERROR), Retry(), 0.5), Bury)


@pytest.mark.parametrize("delivery", RETRIED)
def test_a_job_stopped_by_the_system_goes_back_uncharged_and_the_stop_can_be_read(delivery: Delivery) -> None:
    job = running(delivery=delivery, error_type="ValueError", error_message="of the attempt before")
    transition = decide(job, Interrupted(), Retry(), 0.5)
    assert isinstance(transition, GiveBack)
    assert (transition.delay, transition.is_charged, transition.has_crashed) == (timedelta(0), False, False)
    assert not transition.is_unstarted
    attempt = ended_attempt(job, transition, NOW)
    assert attempt is not None
    assert attempt.failure is not None
    assert attempt.failure.kind is FailureKind.INTERRUPTED
    assert finish(job, transition, NOW).error_type == "ValueError"


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.CANCEL])
def test_an_exception_buries_an_at_most_once_job_at_once(verdict: Verdict) -> None:
    job = running(delivery=Delivery.AT_MOST_ONCE)
    assert decide(job, Raised(verdict, ERROR, SECOND), Retry(), 0.5) == Bury(ERROR)


@pytest.mark.parametrize("delivery", Delivery)
def test_a_task_that_cancels_its_job_ends_it_as_cancelled(delivery: Delivery) -> None:
    job = running(delivery=delivery)
    assert decide(job, Raised(Verdict.CANCEL, ERROR), Retry(), 0.5) == Withdraw(ERROR.message)


def test_an_at_most_once_job_that_was_stopped_while_it_ran_is_lost() -> None:
    transition = decide(running(delivery=Delivery.AT_MOST_ONCE), Interrupted(), Retry(), 0.5)
    assert isinstance(transition, Bury)
    assert transition.failure.kind is FailureKind.LOST


@pytest.mark.parametrize("is_guilty", [True, False])
def test_an_at_most_once_job_whose_process_died_is_lost(is_guilty: bool) -> None:
    transition = decide(running(delivery=Delivery.AT_MOST_ONCE), Crashed(CRASH, is_guilty), Retry(), 0.5)
    assert transition == Bury(replace(CRASH, kind=FailureKind.LOST), has_crashed=True)


@pytest.mark.parametrize("attempt", [1, 5])
def test_a_permanent_error_buries_at_once(attempt: int) -> None:
    assert decide(running(attempt=attempt), Raised(Verdict.PERMANENT, ERROR), Retry(), 0.5) == Bury(ERROR)


def test_a_transient_error_is_charged_and_backs_off() -> None:
    transition = decide(running(attempt=3), Raised(Verdict.TRANSIENT, ERROR), Retry(jitter=False), 0.5)
    assert transition == GiveBack(4 * SECOND, is_charged=True, failure=ERROR)


def test_try_again_is_charged_and_waits_as_long_as_it_says() -> None:
    transition = decide(running(), Raised(Verdict.AGAIN, ERROR, 30 * SECOND), Retry(), 0.5)
    assert transition == GiveBack(30 * SECOND, is_charged=True, failure=ERROR)


def test_try_again_without_a_delay_backs_off() -> None:
    transition = decide(running(attempt=2), Raised(Verdict.AGAIN, ERROR), Retry(jitter=False), 0.5)
    assert transition == GiveBack(2 * SECOND, is_charged=True, failure=ERROR)


@pytest.mark.parametrize("verdict", CHARGED)
def test_the_last_attempt_is_not_followed_by_another(verdict: Verdict) -> None:
    assert decide(running(attempt=5), Raised(verdict, ERROR, SECOND), Retry(), 0.5) == Bury(ERROR)


def test_the_jobs_own_limit_counts_and_not_the_policys() -> None:
    last = running(attempt=2, max_attempts=2)
    assert decide(last, Raised(Verdict.TRANSIENT, ERROR), Retry(9), 0.5) == Bury(ERROR)


@pytest.mark.parametrize("verdict", WAITS)
@pytest.mark.parametrize("attempt", [1, 5])
def test_waiting_is_not_charged_even_in_the_last_attempt(verdict: Verdict, attempt: int) -> None:
    transition = decide(running(attempt=attempt), Raised(verdict, SNOOZED, 30 * SECOND), Retry(), 0.5)
    assert transition == GiveBack(30 * SECOND, failure=SNOOZED, has_waited=True)


def test_a_rate_limit_without_retry_after_waits_the_usual_backoff() -> None:
    transition = decide(running(), Raised(Verdict.THROTTLED, ERROR), Retry(base="2s", jitter=False), 0.5)
    assert transition == GiveBack(2 * SECOND, failure=ERROR, has_waited=True)


def test_a_rate_limit_without_retry_after_backs_off_further_each_time() -> None:
    job, delays = record(), []
    for _ in range(4):
        job = begin(replace(job, stage=Stage.READY))
        transition = decide(job, Raised(Verdict.THROTTLED, ERROR), Retry(jitter=False), 0.5)
        assert isinstance(transition, GiveBack)
        delays.append(transition.delay)
        job = finish(job, transition, NOW)
    assert delays == [SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND]


def test_a_full_pool_is_tried_three_times_five_seconds_apart() -> None:
    job = record()
    transitions: list[Transition] = []
    while not job.state.is_final and len(transitions) < 10:
        job = begin(replace(job, stage=Stage.READY))
        transitions.append(decide(job, Raised(Verdict.POOL_FULL, ERROR), Retry(), 0.5))
        job = finish(job, transitions[-1], NOW)
    again = GiveBack(POOL_DELAY, is_charged=True, failure=ERROR, met_full_pool=True)
    assert transitions == [again, again, Bury(ERROR)]


@pytest.mark.parametrize("is_guilty", [True, False])
def test_only_a_guilty_job_is_charged_for_a_crash(is_guilty: bool) -> None:
    transition = decide(running(), Crashed(CRASH, is_guilty), Retry(), 0.5)
    assert transition == GiveBack(is_charged=is_guilty, failure=CRASH, has_crashed=True)


def test_a_guilty_crash_in_the_last_attempt_buries() -> None:
    assert decide(running(attempt=5), Crashed(CRASH, is_guilty=True), Retry(), 0.5) == Bury(CRASH, has_crashed=True)


def test_an_innocent_crash_in_the_last_attempt_does_not_bury() -> None:
    assert isinstance(decide(running(attempt=5), Crashed(CRASH), Retry(), 0.5), GiveBack)


@pytest.mark.parametrize("is_guilty", [True, False])
def test_the_third_crash_buries_guilty_or_not(is_guilty: bool) -> None:
    job = record()
    stages = []
    for _ in range(3):
        job = after(begin(job), Crashed(CRASH, is_guilty))
        stages.append(job.stage)
    assert stages == [Stage.READY, Stage.READY, Stage.DEAD]
    assert job.crashes == 3


def test_lost_machines_do_not_bury_a_job_that_is_nowhere_known_to_be_guilty() -> None:
    job, runs = record(max_attempts=1), 0
    while not job.state.is_final:
        job = after(begin(job), Crashed(CRASH, with_worker=True))
        runs += 1
    assert (runs, job.stage, job.crashes, job.attempt) == (10, Stage.DEAD, 10, 1)


@given(st.integers(2, MOST_LOSSES - 1))
def test_who_was_lost_with_its_worker_often_and_then_kills_its_own_process_is_buried_at_once(losses: int) -> None:
    """From the second time on it has run alone, where guilt is certain."""
    job = record()
    for _ in range(losses):
        job = after(begin(job), Crashed(CRASH, with_worker=True))
    assert job.stage is Stage.READY
    assert after(begin(job), Crashed(CRASH, is_guilty=True)).stage is Stage.DEAD


@pytest.mark.parametrize("verdict", WAITS)
def test_a_job_does_not_wait_for_ever(verdict: Verdict) -> None:
    job, runs = record(), 0
    while not job.state.is_final and runs < 2 * MOST_WAITS:
        job = after(begin(replace(job, stage=Stage.READY)), Raised(verdict, SNOOZED, SECOND))
        runs += 1
    assert runs == 1000
    assert job.stage is Stage.DEAD


@pytest.mark.parametrize("verdict", WAITS)
def test_the_dead_letter_of_a_job_that_waited_too_often_says_so(verdict: Verdict) -> None:
    transition = decide(running(waits=MOST_WAITS - 1), Raised(verdict, SNOOZED, SECOND), Retry(), 0.5)
    assert isinstance(transition, Bury)
    assert transition.failure.kind is FailureKind.WAITED
    assert "1000" in transition.failure.message.replace(",", "")


@given(running_jobs(), outcomes, policies, chances, st.booleans())
def test_of_a_job_in_a_line_only_what_may_have_begun_is_a_run(
    job: JobRecord, outcome: Outcome, policy: Retry, chance: float, is_lined: bool
) -> None:
    job = replace(job, line=job.id if is_lined else None)
    transition = decide(job, outcome, policy, chance)
    finished = finish(job, transition, NOW)
    is_back = finished.stage in (Stage.READY, Stage.SCHEDULED)
    was_begun = not (isinstance(transition, GiveBack) and transition.is_unstarted)
    assert finished.runs == job.runs - (is_lined and is_back and not was_begun)


@given(running_jobs(), outcomes, policies, chances)
def test_nothing_is_given_back_with_a_charge_in_its_last_attempt(
    job: JobRecord, outcome: Outcome, policy: Retry, chance: float
) -> None:
    transition = decide(job, outcome, policy, chance)
    if isinstance(transition, GiveBack) and transition.is_charged:
        assert job.attempt < job.max_attempts


@given(running_jobs(), raised, policies, chances)
def test_a_delay_that_was_asked_for_is_waited_exactly(
    job: JobRecord, outcome: Raised, policy: Retry, chance: float
) -> None:
    transition = decide(job, outcome, policy, chance)
    if isinstance(transition, GiveBack) and outcome.delay is not None and outcome.verdict is not Verdict.POOL_FULL:
        assert transition.delay == outcome.delay


# ── finish: what becomes of the record ───────────────────────────────────────────────────────────────────────────────


def test_a_completed_job_keeps_its_result_and_forgets_old_errors() -> None:
    done = finish(running(error_type="KeyError", error_message="'id'"), Complete('"paid"'), NOW)
    assert (done.state, done.finished_at, done.result_json) == (JobState.COMPLETED, NOW, '"paid"')
    assert (done.error_type, done.error_message) == (None, None)


def test_a_completed_job_stays_completed_though_its_cancellation_was_asked_for() -> None:
    assert finish(running(cancel_requested_at=NOW), Complete(), NOW).state is JobState.COMPLETED


def test_a_buried_job_shows_its_failure() -> None:
    dead = finish(running(), Bury(ERROR), NOW)
    assert (dead.state, dead.finished_at) == (JobState.DEAD, NOW)
    assert (dead.error_type, dead.error_message) == ("ConnectionError", "reset by peer")


@pytest.mark.parametrize(("own", "asked", "kept"), [("mine", "yours", "mine"), ("", "yours", "yours"), ("", None, "")])
def test_a_withdrawn_job_keeps_the_reason_nearest_to_it(own: str, asked: str | None, kept: str) -> None:
    gone = finish(running(cancel_reason=asked), Withdraw(own), NOW)
    assert (gone.state, gone.finished_at, gone.cancel_reason) == (JobState.CANCELLED, NOW, kept)
    assert gone.cancel_requested_at == NOW


def test_a_charged_job_shows_as_retrying_until_it_is_due() -> None:
    back = finish(running(attempt=2), GiveBack(30 * SECOND, is_charged=True, failure=ERROR), NOW)
    assert (back.stage, back.state, back.attempt) == (Stage.SCHEDULED, JobState.RETRYING, 2)
    assert (back.due_at, back.lane) == (NOW + 30 * SECOND, Lane.FRESH)
    assert (back.error_type, back.error_message, back.finished_at) == ("ConnectionError", "reset by peer", None)


def test_an_interrupted_job_is_ready_at_once_and_goes_before_fresh_ones() -> None:
    back = finish(running(), GiveBack(), NOW)
    assert (back.stage, back.state, back.lane, back.due_at) == (Stage.READY, JobState.PENDING, Lane.GIVEN_BACK, NOW)


def test_an_uncharged_stop_keeps_the_error_of_the_attempt_before() -> None:
    back = finish(running(error_type="KeyError", error_message="'id'"), GiveBack(), NOW)
    assert (back.error_type, back.error_message) == ("KeyError", "'id'")


@pytest.mark.parametrize("verdict", WAITS)
def test_waiting_does_not_replace_the_error_of_the_attempt_before(verdict: Verdict) -> None:
    back = after(running(error_type="KeyError", error_message="'id'"), Raised(verdict, SNOOZED, SECOND))
    assert (back.error_type, back.error_message) == ("KeyError", "'id'")


def test_a_job_that_snoozes_for_no_time_does_not_push_ahead_of_fresh_ones() -> None:
    assert after(running(), Raised(Verdict.SNOOZE, SNOOZED, timedelta(0))).lane is Lane.FRESH


@given(running_jobs(), outcomes, policies, chances)
def test_an_uncharged_stop_hands_the_attempt_back(
    job: JobRecord, outcome: Outcome, policy: Retry, chance: float
) -> None:
    waiting = replace(job, stage=Stage.READY, attempt=job.attempt - 1, cancel_requested_at=None)
    begun = begin(waiting)
    transition = decide(begun, outcome, policy, chance)
    if isinstance(transition, GiveBack):
        assert finish(begun, transition, NOW).attempt == waiting.attempt + transition.is_charged


@given(running_jobs(), outcomes, policies, chances)
def test_a_job_whose_cancellation_was_asked_for_is_never_run_again(
    job: JobRecord, outcome: Outcome, policy: Retry, chance: float
) -> None:
    asked = cancel(replace(job, cancel_requested_at=None), "not wanted", NOW)
    assert asked is not None
    ended = after(asked, outcome, policy, chance)
    assert ended.state.is_final


@given(running_jobs(), outcomes, policies, chances)
def test_an_at_most_once_job_goes_back_only_if_it_never_started(
    job: JobRecord, outcome: Outcome, policy: Retry, chance: float
) -> None:
    ended = after(replace(job, delivery=Delivery.AT_MOST_ONCE), outcome, policy, chance)
    assert ended.state.is_final or outcome == Interrupted(has_started=False) or isinstance(outcome, Unstarted)


@given(running_jobs(), outcomes, policies, chances)
def test_the_record_of_a_finished_attempt_changes_nothing_that_was_asked_for(
    job: JobRecord, outcome: Outcome, policy: Retry, chance: float
) -> None:
    ended = after(job, outcome, policy, chance)
    kept = (
        "id",
        "task",
        "queue",
        "priority",
        "args_json",
        "max_attempts",
        "delivery",
        "created_at",
        "runs",
        "generation",
    )
    assert [getattr(ended, field) for field in kept] == [getattr(job, field) for field in kept]


def test_a_claim_charges_an_attempt_and_says_who_runs_the_job_since_when() -> None:
    begun = start(record(attempt=1, runs=4), WORKER, JOB, NOW + SECOND)
    assert (begun.state, begun.attempt, begun.runs) == (JobState.ACTIVE, 2, 5)
    assert (begun.worker, begun.token, begun.started_at) == (WORKER, JOB, NOW + SECOND)


def test_an_attempt_that_failed_while_its_cancellation_was_asked_for_keeps_its_own_failure() -> None:
    transition = GiveBack(SECOND, is_charged=True, failure=ERROR)
    attempt = ended_attempt(running(cancel_requested_at=NOW, cancel_reason="not wanted"), transition, NOW + SECOND)
    assert attempt == Attempt(1, 0, NOW, NOW + SECOND, WORKER, ERROR)


# ── admission and expiry ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "stage", "due_at"),
    [
        ({}, Stage.READY, NOW),
        ({"delay": timedelta(0)}, Stage.READY, NOW),
        ({"delay": SECOND}, Stage.SCHEDULED, NOW + SECOND),
        ({"at": NOW + SECOND}, Stage.SCHEDULED, NOW + SECOND),
        ({"at": NOW - SECOND}, Stage.READY, NOW),
    ],
)
def test_a_job_enters_ready_if_it_is_due_and_scheduled_if_not(
    options: dict[str, Any], stage: Stage, due_at: datetime
) -> None:
    job = admit(new_job(**options), NOW)
    assert (job.stage, job.due_at, job.state) == (stage, due_at, JobState.PENDING)


def test_a_new_job_is_admitted_with_all_that_was_asked_for() -> None:
    new = new_job(
        priority=9,
        max_attempts=2,
        delivery=Delivery.AT_MOST_ONCE,
        idempotency_key="order-7",
        unique_key="invoice",
        tags=("a", "b"),
        context_json='{"trace":"1"}',
    )
    job = admit(new, NOW)
    assert (job.id, job.task, job.queue, job.args_json, job.priority) == (JOB, "charge", "default", "{}", 9)
    assert (job.max_attempts, job.delivery, job.created_at) == (2, Delivery.AT_MOST_ONCE, NOW)
    assert (job.idempotency_key, job.unique_key, job.tags) == ("order-7", "invoice", ("a", "b"))
    assert job.context == {"trace": "1"}


def test_a_delay_does_not_eat_up_a_relative_expiry() -> None:
    job = admit(new_job(delay=3600 * SECOND, expires_in=60 * SECOND), NOW)
    assert job.expires_at == NOW + 3660 * SECOND


def test_an_absolute_expiry_is_kept_as_it_is() -> None:
    assert admit(new_job(delay=3600 * SECOND, expires_at=NOW + SECOND), NOW).expires_at == NOW + SECOND


@pytest.mark.parametrize("stage", Stage)
def test_only_a_waiting_job_expires(stage: Stage) -> None:
    job = record(stage=stage, expires_at=NOW)
    assert has_expired(job, NOW) is (stage in WAITING)
    assert not has_expired(job, NOW - SECOND)
    assert not has_expired(replace(job, expires_at=None), NOW)


def test_an_expired_job_is_dead_with_the_reason() -> None:
    dead = expire(record(expires_at=NOW), NOW + SECOND)
    assert (dead.state, dead.finished_at, dead.error_type) == (JobState.DEAD, NOW + SECOND, "Expired")


def test_a_job_that_expires_between_two_attempts_is_not_said_to_have_never_started() -> None:
    tried = after(running(expires_at=NOW + SECOND), Raised(Verdict.TRANSIENT, ERROR))
    assert "Not started" not in expired_failure(tried).message


# ── what people ask for ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stage", [Stage.SCHEDULED, Stage.READY])
def test_a_waiting_job_is_cancelled_at_once(stage: Stage) -> None:
    gone = cancel(record(stage=stage), "duplicate", NOW)
    assert gone is not None
    assert (gone.state, gone.cancel_reason, gone.cancel_requested_at, gone.finished_at) == (
        JobState.CANCELLED,
        "duplicate",
        NOW,
        NOW,
    )


def test_a_running_job_is_asked_to_stop_and_stays_active() -> None:
    asked = cancel(running(), "duplicate", NOW)
    assert asked == running(cancel_requested_at=NOW, cancel_reason="duplicate")


def test_the_first_request_to_cancel_is_the_one_that_is_kept() -> None:
    asked = running(cancel_requested_at=NOW, cancel_reason="duplicate")
    assert cancel(asked, "another reason", NOW + SECOND) == asked


@pytest.mark.parametrize("stage", sorted(FINAL))
def test_a_finished_job_is_not_cancelled(stage: Stage) -> None:
    assert cancel(record(stage=stage), "late", NOW) is None


@pytest.mark.parametrize("stage", [Stage.SCHEDULED, Stage.READY, Stage.ACTIVE, Stage.COMPLETED])
def test_only_what_is_dead_or_cancelled_is_retried(stage: Stage) -> None:
    assert retry(record(stage=stage), NOW) is None


@given(running_jobs(), st.sampled_from([Stage.DEAD, Stage.CANCELLED]))
def test_a_retried_job_has_a_fresh_budget_and_keeps_its_count_of_runs(job: JobRecord, stage: Stage) -> None:
    again = retry(replace(job, stage=stage, finished_at=NOW, expires_at=NOW, error_type="KeyError"), NOW + SECOND)
    assert again is not None
    assert (again.stage, again.state, again.due_at) == (Stage.READY, JobState.PENDING, NOW + SECOND)
    assert (again.attempt, again.crashes, again.waits, again.pool_tries) == (0, 0, 0, 0)
    assert (again.expires_at, again.finished_at, again.cancel_requested_at, again.error_type) == (
        None,
        None,
        None,
        None,
    )
    assert (again.runs, again.generation, again.token) == (job.runs, job.generation + 1, None)


def test_only_edited_arguments_count_as_an_edit() -> None:
    dead = record(stage=Stage.DEAD)
    same, edited = retry(dead, NOW), retry(dead, NOW, '{"id":2}')
    assert same is not None
    assert edited is not None
    assert (same.args_json, same.edits, edited.args_json, edited.edits) == ("{}", 0, '{"id":2}', 1)


def test_run_now_makes_a_scheduled_job_ready() -> None:
    ready = run_now(record(stage=Stage.SCHEDULED, due_at=NOW + SECOND), NOW)
    assert ready is not None
    assert (ready.stage, ready.due_at) == (Stage.READY, NOW)


def test_run_now_leaves_a_ready_job_in_its_place() -> None:
    ready = record(lane=Lane.GIVEN_BACK, due_at=NOW - SECOND)
    assert run_now(ready, NOW) == ready


@pytest.mark.parametrize("stage", [Stage.ACTIVE, *sorted(FINAL)])
def test_run_now_is_for_waiting_jobs(stage: Stage) -> None:
    assert run_now(record(stage=stage), NOW) is None


@pytest.mark.parametrize("stage", Stage)
def test_only_dead_letters_are_discarded(stage: Stage) -> None:
    assert may_discard(record(stage=stage)) is (stage is Stage.DEAD)


# ── the history ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "transition",
    [
        Bury(ERROR),
        Bury(ERROR, has_crashed=True),
        GiveBack(is_charged=True, failure=ERROR),
        GiveBack(failure=ERROR, has_crashed=True),
    ],
    ids=repr,
)
def test_a_failed_attempt_is_remembered_with_its_start_end_worker_and_failure(transition: Transition) -> None:
    attempt = ended_attempt(running(runs=7, generation=2), transition, NOW + SECOND)
    assert attempt == Attempt(7, 2, NOW, NOW + SECOND, WORKER, ERROR)


@pytest.mark.parametrize("transition", [Complete(), GiveBack(failure=SNOOZED, has_waited=True)], ids=repr)
def test_success_and_waiting_are_no_failures(transition: Transition) -> None:
    assert ended_attempt(running(), transition, NOW) is None


def test_a_job_that_never_ran_has_no_attempts() -> None:
    assert all_attempts(record(), []) == []


def test_the_attempt_under_way_is_shown_without_an_end() -> None:
    assert all_attempts(running(), []) == [Attempt(1, 0, NOW, None, WORKER)]


def test_a_success_is_shown_after_the_failures_before_it() -> None:
    history: list[Attempt] = []
    job = ended(running(), Raised(Verdict.TRANSIENT, ERROR), NOW + SECOND, history)
    job = ended(begin(ripen(job), NOW + 2 * SECOND), Completed(), NOW + 3 * SECOND, history)
    assert all_attempts(job, history) == [
        Attempt(1, 0, NOW, NOW + SECOND, WORKER, ERROR),
        Attempt(2, 0, NOW + 2 * SECOND, NOW + 3 * SECOND, WORKER),
    ]


def test_a_cancelled_run_can_still_be_read_after_a_retry() -> None:
    history: list[Attempt] = []
    job = ended(running(), Withdrawn(), NOW + SECOND, history)
    again = retry(job, NOW + 2 * SECOND)
    assert again is not None
    job = ended(begin(again, NOW + 3 * SECOND), Completed(), NOW + 4 * SECOND, history)
    assert [attempt.run for attempt in all_attempts(job, history)] == [1, 2]


def test_a_run_does_not_end_when_the_job_is_cancelled_later() -> None:
    history: list[Attempt] = []
    job = ended(running(), Raised(Verdict.SNOOZE, SNOOZED, 60 * SECOND), NOW + SECOND, history)
    gone = cancel(job, "not wanted", NOW + 30 * SECOND)
    assert gone is not None
    assert NOW + 30 * SECOND not in [attempt.ended_at for attempt in all_attempts(gone, history)]


def test_attempts_are_told_in_the_order_they_ran_though_the_clock_was_set_back() -> None:
    first = Attempt(1, 0, NOW, NOW + SECOND, WORKER, ERROR)
    second = Attempt(2, 0, NOW - 3600 * SECOND, NOW - 3599 * SECOND, WORKER, ERROR)
    assert all_attempts(record(stage=Stage.DEAD, runs=2), [second, first]) == [first, second]


def ended(job: JobRecord, outcome: Outcome, now: datetime, history: list[Attempt]) -> JobRecord:
    """What a store's settle does: keep the attempt that ended, then the record."""
    transition = decide(job, outcome, Retry(), 0.5)
    attempt = ended_attempt(job, transition, now)
    if attempt is not None:
        history.append(attempt)
    return finish(job, transition, now)


# ── whole lives ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Life(RuleBasedStateMachine):
    """One job, and everything that workers, time and people can do to it."""

    job: JobRecord

    @initialize(
        most=st.integers(1, 6),
        delivery=st.sampled_from(Delivery),
        delay=st.none() | st.just(10 * SECOND),
        expires_in=st.none() | st.just(60 * SECOND),
    )
    def admit(self, most: int, delivery: Delivery, delay: timedelta | None, expires_in: timedelta | None) -> None:
        self.now = NOW
        self.history: list[Attempt] = []
        self.failed: list[Attempt] = []
        self.begun_since_retry = 0
        self.is_lost_with_its_worker = False
        """It was, the last time that it crashed."""
        new = new_job(max_attempts=most, delivery=delivery, delay=delay, expires_in=expires_in)
        self.job = admit(new, self.now)

    def becomes(self, job: JobRecord) -> None:
        assert job.stage is self.job.stage or job.stage in EDGES[self.job.stage]
        self.job = job

    @rule(seconds=st.integers(0, 30))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @precondition(lambda self: self.job.stage is Stage.SCHEDULED)
    @rule()
    def ripen(self) -> None:
        self.becomes(ripen(self.job))

    @precondition(lambda self: self.job.stage is Stage.READY and not has_expired(self.job, self.now))
    @rule()
    def start(self) -> None:
        assert self.job.cancel_requested_at is None, "a cancelled job was about to run again"
        self.becomes(begin(self.job, self.now))

    @precondition(lambda self: self.job.stage is Stage.ACTIVE)
    @rule(outcome=outcomes, chance=chances)
    def end(self, outcome: Outcome, chance: float) -> None:
        before = self.job
        transition = decide(before, outcome, Retry(), chance)
        attempt = ended_attempt(before, transition, self.now)
        if attempt is not None:
            self.history.append(attempt)
        has_failed = isinstance(outcome, Crashed) or (
            isinstance(outcome, Raised)
            and outcome.verdict is not Verdict.CANCEL
            and not (isinstance(transition, GiveBack) and transition.has_waited)
        )
        if isinstance(outcome, Crashed):
            self.is_lost_with_its_worker = outcome.with_worker
        if has_failed:
            assert isinstance(transition, GiveBack | Bury)
            assert transition.failure is not None
            self.failed.append(
                Attempt(before.runs, before.generation, before.started_at, self.now, before.worker, transition.failure)
            )
        self.begun_since_retry += outcome != Interrupted(has_started=False) and not isinstance(outcome, Unstarted)
        self.becomes(finish(before, transition, self.now))
        assert self.job.stage is not Stage.ACTIVE
        if before.cancel_requested_at is not None:
            assert self.job.state.is_final

    @rule()
    def cancel(self) -> None:
        asked = cancel(self.job, "not wanted", self.now)
        assert (asked is None) is self.job.state.is_final
        self.becomes(asked or self.job)

    @rule()
    def run_now(self) -> None:
        self.becomes(run_now(self.job, self.now) or self.job)

    @precondition(lambda self: has_expired(self.job, self.now))
    @rule()
    def expire(self) -> None:
        self.history.append(failed_attempt(self.job, expired_failure(self.job), self.now))
        self.becomes(expire(self.job, self.now))

    @rule()
    def retry(self) -> None:
        again = retry(self.job, self.now)
        assert (again is None) is (self.job.stage not in (Stage.DEAD, Stage.CANCELLED))
        if again is not None:
            self.begun_since_retry = 0
            self.becomes(again)

    @invariant()
    def attempts_stay_within_their_limit(self) -> None:
        assert 0 <= self.job.attempt <= self.job.max_attempts
        assert self.job.stage is not Stage.ACTIVE or self.job.attempt >= 1

    @invariant()
    def three_crashes_are_the_end(self) -> None:
        if not self.is_lost_with_its_worker:
            assert self.job.crashes < MOST_CRASHES or self.job.stage is Stage.DEAD

    @invariant()
    def ten_lost_workers_are_the_end(self) -> None:
        assert self.job.crashes <= MOST_LOSSES
        assert self.job.crashes < MOST_LOSSES or self.job.stage is Stage.DEAD

    @invariant()
    def a_full_pool_is_met_at_most_three_times(self) -> None:
        assert self.job.pool_tries < POOL_TRIES

    @invariant()
    def a_finished_job_and_no_other_says_when(self) -> None:
        assert (self.job.finished_at is not None) is self.job.state.is_final is self.job.state.is_final

    @invariant()
    def at_most_once_means_that(self) -> None:
        if self.job.delivery is Delivery.AT_MOST_ONCE:
            assert self.begun_since_retry <= 1
            assert not self.begun_since_retry or self.job.state.is_final

    @invariant()
    def every_failed_attempt_can_be_read_as_it_was(self) -> None:
        shown = all_attempts(self.job, self.history)
        assert [attempt for attempt in self.failed if attempt not in shown] == []

    @invariant()
    def no_run_is_told_twice(self) -> None:
        runs = [attempt.run for attempt in all_attempts(self.job, self.history) if attempt.started_at is not None]
        assert runs == sorted(set(runs))

    @invariant()
    def the_run_under_way_is_shown_once(self) -> None:
        if self.job.stage is Stage.ACTIVE:
            shown = [attempt for attempt in all_attempts(self.job, self.history) if attempt.run == self.job.runs]
            assert shown == [Attempt(self.job.runs, self.job.generation, self.job.started_at, None, self.job.worker)]


# Whatever is done to a job, it moves along the edges of the diagram and keeps its promises.
TestLife = Life.TestCase


@given(
    st.lists(outcomes.filter(lambda outcome: not isinstance(outcome, Interrupted)), min_size=1, max_size=5),
    st.sampled_from(Delivery),
    st.integers(1, 10),
)
def test_every_job_whose_attempts_end_reaches_a_final_state(
    endings: Sequence[Outcome], delivery: Delivery, most: int
) -> None:
    job = record(delivery=delivery, max_attempts=most)
    bound = most + MOST_LOSSES + MOST_WAITS
    for outcome, _ in zip(cycle(endings), range(bound), strict=False):
        job = after(begin(replace(job, stage=Stage.READY)), outcome)
        if job.state.is_final:
            break
    assert job.state.is_final
    assert job.waits <= MOST_WAITS
    assert [retry(job, NOW) is None, cancel(job, "", NOW), run_now(job, NOW)] == [
        job.stage is Stage.COMPLETED,
        None,
        None,
    ]
