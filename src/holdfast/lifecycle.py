"""The whole life of a job, in one place. Everything here decides; nothing here acts, waits or looks at a clock.

    admit ─┬────────────▶ READY ───start───▶ ACTIVE ─┬─ complete ─▶ COMPLETED
           │                ▲ ▲                │     ├─ withdraw ─▶ CANCELLED ─┐
           │         ripen, │ ├── give back ───┤     └─ bury ─────▶ DEAD ──────┤
           │        run now │ └───────────────────── retry, by a person ───────┘
           └─▶ SCHEDULED ───┘                  │
                   ▲──────── give back, later ─┘      cancel: SCHEDULED, READY ─▶ CANCELLED
                                                      expire: SCHEDULED, READY ─▶ DEAD

`decide` turns the outcome of an attempt into a Transition; `finish` applies one to a record. The
stores keep what these functions return, and see to it that only the holder of a claim ends its attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.job import WAITING, Attempt, Delivery, Failure, FailureKind, JobRecord, Lane, NewJob, Stage
from holdfast.outcome import Completed, Crashed, Interrupted, Outcome, Raised, Unstarted, Verdict, Withdrawn
from holdfast.retry import POOL_DELAY, POOL_TRIES, Retry, backoff

MOST_CRASHES: Final = 3
MOST_LOSSES: Final = 10
"""Of whole workers, with crashes of processes among them."""
MOST_WAITS: Final = 1000
_LONGEST_PAUSE: Final = 60.0
NO_TIME: Final = timedelta(0)


class Complete(msgspec.Struct, frozen=True, gc=False):
    """The job is done."""

    result_json: str | None = None


class GiveBack(msgspec.Struct, frozen=True):
    """The job will run again, after `delay`. Unless `is_charged`, its attempt is handed back."""

    delay: timedelta = NO_TIME
    is_charged: bool = False
    failure: Failure | None = None
    has_crashed: bool = False
    has_waited: bool = False
    met_full_pool: bool = False
    breaker: str | None = None
    """It waits for this one, and no longer than until that is closed."""
    is_unstarted: bool = False
    """Its task was not begun: what a rate counted for it is still to be had."""


NOT_STARTED: Final = GiveBack(is_unstarted=True)


class Bury(msgspec.Struct, frozen=True):
    """The job goes to the dead letters."""

    failure: Failure
    has_crashed: bool = False


class Withdraw(msgspec.Struct, frozen=True):
    """The job ends as cancelled."""

    reason: str = ""


Transition = Complete | GiveBack | Bury | Withdraw


class Standing(Protocol):
    """What must be known of a running job to decide about it: a JobRecord or a ClaimedJob."""

    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def crashes(self) -> int: ...
    @property
    def waits(self) -> int: ...
    @property
    def pool_tries(self) -> int: ...
    @property
    def delivery(self) -> Delivery: ...


# ── an attempt has ended ─────────────────────────────────────────────────────────────────────────────────────────────


def decide(job: Standing, outcome: Outcome, policy: Retry, chance: float) -> Transition:
    """Decide what a finished attempt does to its job. `chance` is a random number from 0 to 1, for the jitter."""
    match outcome:
        case Completed(result_json):
            return Complete(result_json)
        case Withdrawn(reason):
            return Withdraw(reason)
        case Interrupted(has_started):
            return _after_interruption(job, has_started)
        case Unstarted(failure):
            return after_wait(job, failure, pause_of(job), is_unstarted=True)
        case Crashed():
            return after_crash(job, outcome)
        case Raised():
            return _after_exception(job, outcome, policy, chance)


def after_crash(job: Standing, crash: Crashed) -> Transition:
    """Its process is gone. It runs again at once, but not for ever.

    A job that is not known to be guilty is not charged an attempt, else one bad job would
    use up the attempts of all its neighbours; its crashes are counted instead.

    Machines are lost for many reasons, so the loss of a whole worker says less against a job: it
    makes the job a suspect, which runs alone from then on. If it was the reason, it crashes its own
    process there, and that is the end. Only who takes whole workers along again and again is counted to
    the higher limit.
    """
    if job.delivery is Delivery.AT_MOST_ONCE:
        return Bury(replace(crash.failure, kind=FailureKind.LOST), has_crashed=True)
    most = MOST_LOSSES if crash.with_worker else MOST_CRASHES
    if job.crashes + 1 >= most or (crash.is_guilty and job.attempt >= job.max_attempts):
        return Bury(crash.failure, has_crashed=True)
    return GiveBack(is_charged=crash.is_guilty, failure=crash.failure, has_crashed=True)


_LOST: Final = "Stopped with its worker before its end was recorded; it may not run twice."
_INTERRUPTION: Final = Failure(FailureKind.INTERRUPTED, "Interrupted", "Stopped by its worker, not by its task.")


def _after_interruption(job: Standing, has_started: bool) -> Transition:
    if has_started and job.delivery is Delivery.AT_MOST_ONCE:
        return Bury(replace(_INTERRUPTION, kind=FailureKind.LOST, message=_LOST))
    # The attempt is handed back, but who looks at the job later should see where the time went.
    return GiveBack(failure=_INTERRUPTION) if has_started else NOT_STARTED


def after_departure(job: Standing) -> Transition:
    """Its worker took leave without saying what came of it. It may have started, so at-most-once means never again."""
    return _after_interruption(job, has_started=True) if job.delivery is Delivery.AT_MOST_ONCE else GiveBack()


def _after_exception(job: Standing, raised: Raised, policy: Retry, chance: float) -> Transition:
    failure = raised.failure
    if job.delivery is Delivery.AT_MOST_ONCE and raised.verdict is not Verdict.CANCEL:
        return Bury(failure)
    is_last = job.attempt >= job.max_attempts
    match raised.verdict:
        case Verdict.CANCEL:
            return Withdraw(failure.message)
        case Verdict.PERMANENT:
            return Bury(failure)
        case Verdict.SNOOZE | Verdict.THROTTLED | Verdict.BREAKER:
            # An attempt that is handed back does not count, so the waits do, or the backoff would never grow.
            delay = backoff(policy, job.waits + 1, chance) if raised.delay is None else raised.delay
            return after_wait(job, failure, delay, raised.breaker)
        case Verdict.POOL_FULL:
            if is_last or job.pool_tries + 1 >= POOL_TRIES:
                return Bury(failure)
            return GiveBack(POOL_DELAY, is_charged=True, failure=failure, met_full_pool=True)
        case Verdict.AGAIN | Verdict.TRANSIENT:
            if is_last:
                return Bury(failure)
            delay = backoff(policy, job.attempt, chance) if raised.delay is None else raised.delay
            return GiveBack(delay, is_charged=True, failure=failure)


def after_wait(
    job: Standing, failure: Failure, delay: timedelta, breaker: str | None = None, *, is_unstarted: bool = False
) -> Transition:
    """It has to wait, and that is nobody's failure; but it does not wait for ever."""
    if job.waits + 1 >= MOST_WAITS:
        return Bury(_waited_too_often(failure))
    return GiveBack(delay, failure=failure, has_waited=True, breaker=breaker, is_unstarted=is_unstarted)


def pause_of(job: Standing) -> timedelta:
    """How long a job that can't run where it was claimed is left to others. It grows each time."""
    return timedelta(seconds=min(2.0 ** min(job.waits, 6), _LONGEST_PAUSE))


def _waited_too_often(failure: Failure) -> Failure:
    message = f"It has waited {MOST_WAITS:,} times, and that is enough. The last time: {failure.message}"
    return replace(failure, kind=FailureKind.WAITED, message=message)


# ── what becomes of a record ─────────────────────────────────────────────────────────────────────────────────────────


def admit(new: NewJob, now: datetime) -> JobRecord:
    """A job as it enters: ready if it is due, else scheduled. Times are counted from the store's now."""
    due_at = due_time(new, now)
    return JobRecord(
        id=new.id,
        task=new.task,
        queue=new.queue,
        priority=new.priority,
        stage=Stage.READY if due_at <= now else Stage.SCHEDULED,
        args_json=new.args_json,
        max_attempts=new.max_attempts,
        delivery=new.delivery,
        created_at=now,
        due_at=due_at,
        expires_at=expiry(new, due_at),
        idempotency_key=new.idempotency_key,
        unique_key=new.unique_key,
        line=None if new.line is None else new.line.id_for(new.queue, new.priority),
        tags=new.tags,
        context_json=new.context_json,
    )


def due_time(new: NewJob, now: datetime) -> datetime:
    if new.at is not None:
        return max(new.at, now)
    return now + new.delay if new.delay else now


def expiry(new: NewJob, due_at: datetime) -> datetime | None:
    """A relative expiry is counted from when the job is due, so that a delay does not eat it up."""
    return due_at + new.expires_in if new.expires_in is not None else new.expires_at


def ripen(job: JobRecord) -> JobRecord:
    """Its time has come."""
    return replace(job, stage=Stage.READY, lane=Lane.FRESH, breaker=None)


def takes_new_place(before: JobRecord, after: JobRecord) -> bool:
    """Whether it has become ready behind those that are. What is given back to a line is where it was before."""
    if after.stage is not Stage.READY or before.stage is Stage.READY:
        return False
    return after.line is None or before.stage is not Stage.ACTIVE


def start(job: JobRecord, worker: UUID, token: UUID, now: datetime) -> JobRecord:
    """Claimed: an attempt is charged when it starts, and handed back if the system stops it."""
    return replace(
        job, stage=Stage.ACTIVE, worker=worker, token=token, started_at=now, attempt=job.attempt + 1, runs=job.runs + 1
    )


def has_expired(job: JobRecord, now: datetime) -> bool:
    return job.stage in WAITING and job.expires_at is not None and job.expires_at <= now


def expire(job: JobRecord, now: datetime) -> JobRecord:
    """It was not started in time, and late is no use: dead, with the reason."""
    return _buried(job, expired_failure(job), now)


def expired_failure(job: JobRecord) -> Failure:
    what = "Not tried again" if job.runs else "Not started"
    return Failure(FailureKind.EXPIRED, "Expired", f"{what} before it expired at {job.expires_at}.")


def finish(job: JobRecord, transition: Transition, now: datetime) -> JobRecord:
    """The record after its attempt ended. A job whose cancellation was asked for is not run again."""
    match transition:
        case Complete(result_json):
            return replace(
                job,
                stage=Stage.COMPLETED,
                finished_at=now,
                result_json=result_json,
                error_type=None,
                error_message=None,
            )
        case Withdraw(reason):
            return _cancelled(job, reason or job.cancel_reason or "", now)
        case Bury(failure, has_crashed):
            return _buried(replace(job, crashes=job.crashes + has_crashed), failure, now)
        case GiveBack() if job.cancel_requested_at is not None:
            return _cancelled(job, job.cancel_reason or "", now)
        case GiveBack():
            return _given_back(job, transition, now)


def _given_back(job: JobRecord, back: GiveBack, now: datetime) -> JobRecord:
    is_late = back.delay > NO_TIME
    failure = None if back.has_waited or back.failure == _INTERRUPTION else back.failure  # these are no errors
    return replace(
        job,
        stage=Stage.SCHEDULED if is_late else Stage.READY,
        # In a line it has its place, which may be before those that are given back together with it.
        lane=Lane.FRESH if is_late or (back.has_waited and job.line is None) else Lane.GIVEN_BACK,
        due_at=now + back.delay,
        attempt=job.attempt if back.is_charged else job.attempt - 1,
        # Beside lines each claim counts, begun or not: it may have given the job another place.
        runs=job.runs - 1 if back.is_unstarted and job.line is not None else job.runs,
        crashes=job.crashes + back.has_crashed,
        waits=job.waits + back.has_waited,
        pool_tries=job.pool_tries + back.met_full_pool,
        error_type=failure.error_type if failure else job.error_type,
        error_message=failure.message if failure else job.error_message,
        breaker=back.breaker if is_late else None,
    )


def ended_attempt(job: JobRecord, transition: Transition, now: datetime) -> Attempt | None:
    """What goes into the history. A success stays in the job's own record, and a wait is no attempt."""
    match transition:
        case Bury(failure):
            return failed_attempt(job, failure, now)
        case Withdraw(reason):
            return failed_attempt(job, _cancellation(reason or job.cancel_reason or ""), now)
        case GiveBack(failure=Failure() as failure, has_waited=False):
            return failed_attempt(job, failure, now)
        case GiveBack() if job.cancel_requested_at is not None:
            return failed_attempt(job, _cancellation(job.cancel_reason or ""), now)
        case _:
            return None


def _cancellation(reason: str) -> Failure:
    return Failure(FailureKind.CANCELLED, "Cancelled", reason)


def failed_attempt(job: JobRecord, failure: Failure, now: datetime) -> Attempt:
    started_at = job.started_at if job.stage is Stage.ACTIVE else None
    worker = job.worker if job.stage is Stage.ACTIVE else None
    return Attempt(job.runs, job.generation, started_at, now, worker, failure)


def all_attempts(job: JobRecord, history: Sequence[Attempt]) -> list[Attempt]:
    """The history, and the run that the job's own record tells of: the one under way, or the one that succeeded."""
    attempts = sorted(history, key=lambda attempt: attempt.run)
    if job.stage is Stage.ACTIVE or job.stage is Stage.COMPLETED:
        attempts.append(Attempt(job.runs, job.generation, job.started_at, job.finished_at, job.worker))
    return attempts


# ── what people ask for; None means that the job's state does not allow it ───────────────────────────────────────────


def cancel(job: JobRecord, reason: str, now: datetime) -> JobRecord | None:
    """A waiting job is cancelled at once; a running one is asked to stop and stays active until it has."""
    if job.stage in WAITING:
        return _cancelled(job, reason, now)
    if job.stage is Stage.ACTIVE:
        return job if job.cancel_requested_at else replace(job, cancel_requested_at=now, cancel_reason=reason)
    return None


def retry(job: JobRecord, now: datetime, args_json: str | None = None) -> JobRecord | None:
    """Dead or cancelled → pending, with a fresh budget. The history stays; the expiry, surely past, goes."""
    if job.stage not in (Stage.DEAD, Stage.CANCELLED):
        return None
    return replace(
        job,
        stage=Stage.READY,
        lane=Lane.FRESH,
        due_at=now,
        args_json=job.args_json if args_json is None else args_json,
        edits=job.edits if args_json is None else job.edits + 1,
        generation=job.generation + 1,
        attempt=0,
        crashes=0,
        waits=0,
        pool_tries=0,
        expires_at=None,
        finished_at=None,
        result_json=None,
        token=None,
        error_type=None,
        error_message=None,
        cancel_requested_at=None,
        cancel_reason=None,
    )


def run_now(job: JobRecord, now: datetime) -> JobRecord | None:
    """A job that waits for its time is ready at once."""
    if job.stage is Stage.SCHEDULED:
        return replace(ripen(job), due_at=now)
    return job if job.stage is Stage.READY else None


def may_discard(job: JobRecord) -> bool:
    return job.stage is Stage.DEAD


def _cancelled(job: JobRecord, reason: str, now: datetime) -> JobRecord:
    return replace(
        job,
        stage=Stage.CANCELLED,
        finished_at=now,
        cancel_requested_at=job.cancel_requested_at or now,
        cancel_reason=reason,
        breaker=None,
    )


def _buried(job: JobRecord, failure: Failure, now: datetime) -> JobRecord:
    return replace(
        job,
        stage=Stage.DEAD,
        finished_at=now,
        error_type=failure.error_type,
        error_message=failure.message,
        breaker=None,
    )
