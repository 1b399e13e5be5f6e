"""Why a job does not run, or what it does, decided from its circumstances. No clock, no store.

A job that waits may do so for several reasons at once. First come those that hold whoever works and however many others
there are: it is too late, it shall not, it is not its time. Then, that nobody could run it. Then what it shares with
others: breaker, order, limit, rate. And at last its place among those that wait like itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from holdfast import lifecycle
from holdfast.explanation import Explanation, Reason, ReasonKind, about, jobs, moment, quoted
from holdfast.gates import Gate, GateKind, is_train, opens_at, room, used
from holdfast.job import FINAL, WAITING, JobRecord, JobState, Stage
from holdfast.liveness import DEAD_AFTER
from holdfast.moment import MICROSECOND, from_microseconds, to_microseconds
from holdfast.span import format_span
from holdfast.store import MOST_AHEAD, Circumstances, WorkerRecord
from holdfast.turns import LineState

_HEADS = {
    Stage.SCHEDULED: "waiting",
    Stage.READY: "waiting",
    Stage.ACTIVE: "running",
    Stage.COMPLETED: "completed",
    Stage.CANCELLED: "cancelled",
    Stage.DEAD: "dead",
}


def explain(it: Circumstances) -> Explanation:
    """All that holds about a job, the decisive first. There is always a reason."""
    if it.job.stage in WAITING:
        reasons = tuple(_waiting(it))
    elif it.job.stage is Stage.ACTIVE:
        reasons = tuple(_running(it))
    else:
        reasons = (_ended(it),)
    head = "waiting" if _comes_before(it) else _HEADS[it.job.stage]
    text = f"{head}: {'; '.join(reason.text for reason in reasons)}"
    return Explanation(it.job.id, it.job.state, it.now, text, reasons)


# ── it waits ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _waiting(it: Circumstances) -> Iterator[Reason]:
    job = it.job
    if lifecycle.has_expired(job, it.now) and job.expires_at is not None:
        late = f"it expired {about(it.now - job.expires_at)} ago, and goes to the dead letters"
        yield Reason(ReasonKind.EXPIRED, late, details={"expires_at": job.expires_at})
    if it.paused_at is not None:
        yield Reason(ReasonKind.PAUSED, f"queue {job.queue!r} is paused", details={"since": it.paused_at})
    if job.stage is Stage.SCHEDULED:
        if it.breaker is not None and job.breaker == it.breaker.name:
            yield _breaker(it)
        yield _later(job, it.now)
    yield from _nobody(it)
    if job.stage is Stage.READY:
        if it.breaker is not None:
            yield _breaker(it)
        yield from _held_up(it)
        yield from _place(it)


def _later(job: JobRecord, now: datetime) -> Reason:
    span, until = about(job.due_at - now), job.due_at
    is_due = job.due_at <= now
    details: dict[str, object] = {"attempt": job.attempt, "max_attempts": job.max_attempts, "runs": job.runs}
    if job.attempt:
        error = _error_of(job)
        text = f"attempt {job.attempt + 1} of {job.max_attempts} {'is due' if is_due else f'in {span}'}"
        if error:
            text += f", after {error}"
        kind, details = ReasonKind.RETRY, details | {"error_type": job.error_type, "error_message": job.error_message}
    elif job.runs or job.waits:
        text = f"it was put off, and {'is due' if is_due else f'goes on in {span}'}"
        kind, details = ReasonKind.SNOOZED, details | {"waits": job.waits}
    else:
        text = f"scheduled for {moment(job.due_at)}, {'so the next tick makes it ready' if is_due else f'in {span}'}"
        kind = ReasonKind.SCHEDULED
    return Reason(kind, text, until, details)


def _error_of(job: JobRecord) -> str:
    if job.error_type is None:
        return ""
    return quoted(f"{job.error_type}: {job.error_message}" if job.error_message else job.error_type)


# ── nobody could run it ──────────────────────────────────────────────────────────────────────────────────────────────


def _nobody(it: Circumstances) -> Iterator[Reason]:
    job = it.job
    alive = [worker for worker in it.workers if _is_alive(worker, it.now)]
    serving = [worker for worker in alive if not worker.queues or job.queue in worker.queues]
    claiming = [worker for worker in serving if not worker.is_quiet]
    if not claiming:
        if not alive:
            text = "no worker is alive"
        elif not serving:
            text = f"no live worker serves queue {job.queue!r}"
        else:
            text = f"the workers of queue {job.queue!r} are quiet: they claim nothing more"
        yield Reason(ReasonKind.NO_WORKER, text, details={"alive": len(alive), "quiet": len(serving)})
    elif all(worker.tasks and job.task not in worker.tasks for worker in claiming):
        # A worker that does not say which tasks it has may have this one.
        text = f"no live worker of queue {job.queue!r} knows the task {job.task!r}"
        is_published = it.task is not None
        if not is_published:
            text += ", which nobody has published either"
        details = {"task": job.task, "workers": len(claiming), "is_published": is_published}
        yield Reason(ReasonKind.UNKNOWN_TASK, text, details=details)


def _is_alive(worker: WorkerRecord, now: datetime) -> bool:
    """If all are gone, nobody is there to declare them dead."""
    return worker.dead_at is None and now - worker.beat_at < DEAD_AFTER


# ── what it shares with others ───────────────────────────────────────────────────────────────────────────────────────


def _breaker(it: Circumstances) -> Reason:
    breaker = it.breaker
    assert breaker is not None
    text = f"breaker {quoted(breaker.name)} is {breaker.state}"
    if breaker.reset_at is not None and breaker.reset_at > it.now:
        text += f", {about(breaker.reset_at - it.now)}"
    return Reason(ReasonKind.BREAKER, text, breaker.reset_at, {"name": breaker.name, "state": breaker.state})


def _held_up(it: Circumstances) -> Iterator[Reason]:
    now = to_microseconds(it.now)
    by_kind = {gate.kind: gate for gate in it.gates}
    limit, rate = (by_kind.get(kind) for kind in (GateKind.LIMIT, GateKind.RATE))
    if order := _comes_before(it):
        yield _behind(it, order)
    if limit is not None and not room(limit, now):
        text = f"limit {_label(it, limit)} {limit.held}/{limit.most}"
        yield Reason(ReasonKind.LIMIT, text, details=_details(limit, now))
    if rate is not None and (opening := opens_at(rate, now)) is not None:
        until = from_microseconds(opening)
        counted = f"{used(rate, now)}/{rate.most} per {format_span(rate.per * MICROSECOND)}"
        text = f"rate {_label(it, rate)} {counted}, {about(until - it.now)}"
        yield Reason(ReasonKind.RATE, text, until, _details(rate, now))


def _comes_before(it: Circumstances) -> Gate | None:
    """The order in which another one comes before this job, if it has not ended: also before one that was claimed."""
    if it.job.stage in FINAL:
        return None
    orders = (gate for gate in it.gates if gate.kind is GateKind.ORDER)
    return next((gate for gate in orders if gate.holder not in (None, it.job.id) or is_train(gate)), None)


def _behind(it: Circumstances, order: Gate) -> Reason:
    # A train of another line is not looked up: that would take long, since a gate does not know its lines.
    state = JobState.ACTIVE if order.holder is None else it.holders.get(order.holder)
    others = "jobs of another line" if order.holder is None else f"job {order.holder}"
    text = f"order {_label(it, order)}: behind {others}"
    is_blocked = state is JobState.DEAD
    if is_blocked:
        text += ", which is dead, until somebody retries or discards that"
    elif state is not None:
        text += f", which {'are' if order.holder is None else 'is'} {state}"
    details = _details(order, to_microseconds(it.now))
    return Reason(
        ReasonKind.ORDER, text, details=details | {"job": order.holder, "state": state, "blocked": is_blocked}
    )


def _details(gate: Gate, now: int) -> dict[str, object]:
    return {
        "name": gate.name,
        "key": gate.key,
        "used": used(gate, now),
        "most": 1 if gate.kind is GateKind.ORDER else gate.most,
    }


def _label(it: Circumstances, gate: Gate) -> str:
    """Which limit it is, as the user knows it: `tenant=acme`, after the name if it is not the task's own."""
    definition = None if it.task is None else it.task.definition
    limits = () if definition is None else definition.limits
    template = next((each.key for each in limits if (each.kind, each.name) == (gate.kind, gate.name)), None)
    own = {it.job.task, "" if definition is None else definition.name}
    name = "" if gate.name in own else gate.name
    if not gate.key:
        return gate.name or it.job.task
    is_plain = template is not None and template.startswith("{") and template.find("}") == len(template) - 1
    key = f"{template[1:-1]}={gate.key}" if is_plain and template is not None else gate.key
    return quoted(f"{name} {key}".strip())


# ── its place ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _place(it: Circumstances) -> Iterator[Reason]:
    is_open = it.line is None or it.line.state is LineState.OPEN
    if it.lines_ahead and is_open:
        number = f"{it.lines_ahead:,}{'+' if it.lines_ahead >= MOST_AHEAD else ''}"
        text = f"the turn of {number} other line{'s' if it.lines_ahead > 1 else ''} comes before"
        tenant = next((gate for gate in it.gates if gate.kind is GateKind.FAIR), None)
        if tenant is not None:
            text += f" that of {_label(it, tenant)}"
        details = {"lines": it.lines_ahead, "key": None if tenant is None else tenant.key}
        yield Reason(ReasonKind.TURN, text, details=details)
    where = f"queue {it.job.queue!r}" if it.job.line is None else "its line"
    text = f"{jobs(it.ahead, MOST_AHEAD)} before it in {where}" if it.ahead else f"it is the next in {where}"
    details = {"ahead": it.ahead, "is_capped": it.ahead >= MOST_AHEAD}
    yield Reason(ReasonKind.POSITION, text, details=details)


# ── it runs, or has ended ────────────────────────────────────────────────────────────────────────────────────────────


def _running(it: Circumstances) -> Iterator[Reason]:
    job = it.job
    worker = next((worker for worker in it.workers if worker.id == job.worker), None)
    name = quoted(worker.name) if worker is not None else str(job.worker)
    order = _comes_before(it)
    if order is not None:
        behind = _behind(it, order)
        yield replace(behind, text=f"{behind.text}; claimed by {name}")
    if job.cancel_requested_at is not None:
        why = f": {quoted(job.cancel_reason)}" if job.cancel_reason else ""
        text = f"it was asked to stop {_ago(it, job.cancel_requested_at)}{why}"
        yield Reason(ReasonKind.CANCELLING, text, details={"since": job.cancel_requested_at, "why": job.cancel_reason})
    if worker is None or not _is_alive(worker, it.now):
        silent = "" if worker is None else f", last heard of {_ago(it, worker.beat_at)}"
        yield Reason(ReasonKind.LOST, f"worker {name} is lost{silent}: others take it over", details={"worker": name})
    if order is not None:
        return
    text = f"for {about(_span(job.started_at, it.now))} on {name}, attempt {job.attempt} of {job.max_attempts}"
    if it.progress is not None:
        total = "" if it.progress.total is None else f" of {it.progress.total:g}"
        note = f", {quoted(it.progress.note)}" if it.progress.note else ""
        text += f", {it.progress.done:g}{total} done{note}"
    details = {
        "since": job.started_at,
        "worker": job.worker,
        "worker_name": name,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "progress": it.progress,
    }
    yield Reason(ReasonKind.RUNNING, text, details=details)


def _ended(it: Circumstances) -> Reason:
    job = it.job
    details: dict[str, object] = {"at": job.finished_at, "attempt": job.attempt, "max_attempts": job.max_attempts}
    ago = _ago(it, job.finished_at)
    if job.stage is Stage.COMPLETED:
        took = f", after {about(_span(job.started_at, job.finished_at))}" if job.started_at else ""
        return Reason(
            ReasonKind.COMPLETED, f"{ago}{took}, on attempt {job.attempt} of {job.max_attempts}", None, details
        )
    if job.stage is Stage.CANCELLED:
        why = f": {quoted(job.cancel_reason)}" if job.cancel_reason else ""
        return Reason(ReasonKind.CANCELLED, f"{ago}{why}", None, details | {"why": job.cancel_reason})
    details |= {"error_type": job.error_type, "error_message": job.error_message}
    kind = ReasonKind.EXPIRED if job.error_type == "Expired" else ReasonKind.DEAD
    tried = f", on attempt {job.attempt} of {job.max_attempts}" if job.attempt else ""
    return Reason(kind, f"{ago}{tried}: {_error_of(job) or 'no error was recorded'}", None, details)


def _ago(it: Circumstances, time: datetime | None) -> str:
    return f"{about(_span(time, it.now))} ago"


def _span(since: datetime | None, until: datetime | None) -> timedelta:
    return until - since if since is not None and until is not None else timedelta(0)
