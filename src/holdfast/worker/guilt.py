"""Whose fault it was. Pure: what a flight recorder said, and how its process ended, give what becomes of each job.

Known:    the job whose time is over although the event loop comes round; on a loop that does not, the one in a thread
          whose time is over, else the one on the loop's CPU; the job that was alone in its process. It is charged.
Unknown:  the process died with several jobs in it, or was stuck for no reason that can be seen. Nobody is charged, but
          the crash is counted for each that ran, also if it had just ended: what it has left behind may have done it,
          and would do it again and again. From its second crash on a job runs alone, where guilt is certain.
Innocent: had not started, ran in a process of its own, or somebody else is known to be guilty. It is given back as if
          nothing had happened. So is what has ended in a thread or in a process of its own while the loop was blocked:
          what came of it is lost, so it runs once more, or if it may not, nobody will know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from holdfast import lifecycle
from holdfast.breaker import BreakerReport, Finding
from holdfast.job import Failure, FailureKind
from holdfast.lifecycle import Transition
from holdfast.outcome import Crashed, Interrupted, Outcome, Raised, Verdict
from holdfast.store import Settlement
from holdfast.worker import findings
from holdfast.worker.findings import Fuse
from holdfast.worker.recorder import Entry, Flight, Phase, Place

BLOCKED_AFTER: Final = 1.0
"""Seconds without a turn of the event loop after which it counts as blocked; it turns several times a second."""
_CONFIRMED_AFTER: Final = 0.1
"""Seconds for which a loop has gone on after the end of a job's time, before that is the job's own fault."""
_PATIENCE: Final = 0.55
"""Seconds that a loop has for that: two of its turns. It is killed within one second of the limit."""


def overdue(flight: Flight, now: float) -> list[Entry]:
    """Running jobs whose hard timeout has passed."""
    return [entry for entry in flight.running if entry.overdue_at <= now]


def must_be_killed(late_since: Mapping[Entry, float], flight: Flight, now: float) -> bool:
    """Whether to wait no longer for jobs that are overdue, each with the time when that was first seen.

    A loop that was blocked for a moment gets the chance to come round: whatever could not run meanwhile may end yet.
    """
    return any(
        now - since >= _PATIENCE or _is_confirmed(entry, flight)
        for entry, since in late_since.items()
        if entry.place is not Place.PROCESS
    )


def is_blocked(flight: Flight, now: float) -> bool:
    """The event loop does not come round: something runs on it that does not let go."""
    return flight.turned_at > 0.0 and now - flight.turned_at > BLOCKED_AFTER


def culprit(flight: Flight) -> str:
    """Who blocks the event loop, in words."""
    found = next((entry for entry in flight.running if entry.slot == flight.on_cpu), None)
    return f"{found.task} {found.id}" if found is not None else "something other than a task's coroutine"


def hard_timeout(ran: float, limit: float) -> Outcome:
    """A job was killed, or given up, because its time was over."""
    message = f"Stopped after {ran:.1f} s: its timeout of {limit:g} s was over."
    return Raised(Verdict.TRANSIENT, Failure(FailureKind.TIMEOUT, "HardTimeout", message))


def outcomes_of_timeout(flight: Flight, now: float) -> dict[int, Outcome]:
    """The process is killed because a job is overdue. What came of each slot."""
    guilty, suspects = _blame(flight, now)
    outcomes: dict[int, Outcome] = {}
    for entry in flight.entries:
        if entry.slot in guilty:
            outcomes[entry.slot] = _timed_out(entry, now)
        elif entry.slot in suspects:
            outcomes[entry.slot] = _suspected(entry, "was killed because it did not respond")
        else:
            outcomes[entry.slot] = _innocent(entry)
    return outcomes


def outcomes_of_crash(flight: Flight, how: str) -> dict[int, Outcome]:
    """The process died by itself, or was killed by somebody else. `how`: in words, for people."""
    suspects = _sharing(flight)
    return {
        entry.slot: _suspected(entry, how) if entry.slot in suspects else _innocent(entry) for entry in flight.entries
    }


def outcomes_of_replacement(flight: Flight) -> dict[int, Outcome]:
    """The process was ended for reasons of its own: nobody is to blame."""
    return {entry.slot: _innocent(entry) for entry in flight.entries}


def settlements(
    entries: Iterable[Entry], outcomes: dict[int, Outcome], chance: Callable[[], float], fuses: Sequence[Fuse] = ()
) -> list[Settlement]:
    """What to tell the store. `chance` gives random numbers from 0 to 1, for the jitter of backoffs.

    `fuses` are the app's breakers, in the order of their numbers.
    """
    return [
        Settlement(entry.id, entry.token, _decide(entry, outcomes[entry.slot], chance(), fuses))
        for entry in entries
        if entry.slot in outcomes
    ]


def reports(entries: Iterable[Entry], outcomes: dict[int, Outcome], fuses: Sequence[Fuse]) -> list[BreakerReport]:
    """What to tell of breakers: whose time was over has failed, and the permits of all the others are free again.

    Also of those that had finished: what they had to say of it may have been on its way. If it was not, this says
    nothing new.
    """
    said = [
        findings.report(fuse, entry.permit, outcomes[entry.slot])
        for entry in entries
        if entry.slot in outcomes and (fuse := _fuse_of(entry, fuses)) is not None
    ]
    return [report for report in said if report.permit is not None or report.finding is Finding.FAILED]


def _decide(entry: Entry, outcome: Outcome, chance: float, fuses: Sequence[Fuse]) -> Transition:
    fuse = _fuse_of(entry, fuses)
    wait = None if fuse is None else findings.after_probe(entry, fuse, entry.permit, outcome, chance)
    return wait or lifecycle.decide(entry, outcome, entry.retry, chance)


def _fuse_of(entry: Entry, fuses: Sequence[Fuse]) -> Fuse | None:
    return fuses[entry.fuse - 1] if 0 < entry.fuse <= len(fuses) else None


def _blame(flight: Flight, now: float) -> tuple[set[int], set[int]]:
    """The slots of those who are guilty, and of those who may be."""
    late = overdue(flight, now)
    alone = {entry.slot for entry in late if entry.place is Place.PROCESS}
    confirmed = {entry.slot for entry in late if entry.slot not in alone and _is_confirmed(entry, flight)}
    if confirmed:
        return alone | confirmed, set()
    # The loop is blocked, where a coroutine can't even notice that its time is over. A thread could.
    in_threads = {entry.slot for entry in late if entry.place is Place.THREAD}
    on_cpu = {entry.slot for entry in flight.running if entry.slot == flight.on_cpu and entry.place is Place.LOOP}
    if in_threads:
        # It may hold the interpreter's lock, so that whoever is on the loop's CPU waits for nothing else.
        return alone | in_threads, on_cpu
    if on_cpu:
        return alone | on_cpu, set()
    return alone, _sharing(flight)


def _is_confirmed(entry: Entry, flight: Flight) -> bool:
    """The loop has gone on since the job's time was over, and the job has not ended."""
    return flight.turned_at - entry.overdue_at >= _CONFIRMED_AFTER


def _sharing(flight: Flight) -> set[int]:
    """The slots of jobs that run in this very process, or have just run in it."""
    return {
        entry.slot for entry in flight.entries if entry.phase is not Phase.CLAIMED and entry.place is not Place.PROCESS
    }


def _innocent(entry: Entry) -> Outcome:
    return Interrupted(has_started=entry.phase is not Phase.CLAIMED)


def _suspected(entry: Entry, how: str) -> Outcome:
    when = "while it ran this job" if entry.phase is Phase.STARTED else "when this job had just ended"
    return Crashed(
        Failure(
            FailureKind.CRASH,
            "WorkerCrashed",
            f"The worker process {how} {when}. It is not known whether this job was the reason.",
        )
    )


def _timed_out(entry: Entry, now: float) -> Outcome:
    ran = now - entry.started_at
    if entry.overdue_at <= now:
        return hard_timeout(ran, entry.overdue_at - entry.started_at)
    message = f"Stopped after {ran:.1f} s: it blocked the event loop, and other jobs with it."
    return Raised(Verdict.TRANSIENT, Failure(FailureKind.TIMEOUT, "HardTimeout", message))
