"""Whose fault it was. Pure: what a flight recorder said, and how its process ended, give what becomes of each job.

Known:    the job whose time is over, unless another one kept the event loop from it; the job on the CPU of a blocked
          loop; the job that was alone in its process. It is charged.
Unknown:  the process died with several jobs in it. Nobody is charged, but the crash is counted for each that ran;
          from its second crash on a job runs alone, where guilt is certain.
Innocent: had not started, had finished, ran in a process of its own, or somebody else is known to be guilty. It is
          given back as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from holdfast import lifecycle
from holdfast.job import Failure, FailureKind
from holdfast.outcome import Crashed, Interrupted, Outcome, Raised, Verdict
from holdfast.store import Settlement
from holdfast.worker.recorder import Entry, Flight, Phase, Place

BLOCKED_AFTER: Final = 1.0
"""Seconds without a turn of the event loop after which it counts as blocked; it turns several times a second."""


def overdue(flight: Flight, now: float) -> list[Entry]:
    """Running jobs whose hard timeout has passed."""
    return [entry for entry in flight.running if entry.overdue_at <= now]


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
            outcomes[entry.slot] = _suspected("was killed because it did not respond")
        else:
            outcomes[entry.slot] = _innocent(entry)
    return outcomes


def outcomes_of_crash(flight: Flight, how: str) -> dict[int, Outcome]:
    """The process died by itself, or was killed by somebody else. `how`: in words, for people."""
    suspects = [entry for entry in flight.running if entry.place is not Place.PROCESS]
    return {entry.slot: _suspected(how) if entry in suspects else _innocent(entry) for entry in flight.entries}


def outcomes_of_replacement(flight: Flight) -> dict[int, Outcome]:
    """The process was ended for reasons of its own: nobody is to blame."""
    return {entry.slot: _innocent(entry) for entry in flight.entries}


def settlements(
    entries: Iterable[Entry], outcomes: dict[int, Outcome], chance: Callable[[], float]
) -> list[Settlement]:
    """What to tell the store. `chance` gives random numbers from 0 to 1, for the jitter of backoffs."""
    return [
        Settlement(entry.id, entry.token, lifecycle.decide(entry, outcomes[entry.slot], entry.retry, chance()))
        for entry in entries
        if entry.slot in outcomes
    ]


def _blame(flight: Flight, now: float) -> tuple[set[int], set[int]]:
    """The slots of those who are guilty, and of those who may be."""
    late = overdue(flight, now)
    if not is_blocked(flight, now):
        return {entry.slot for entry in late}, set()
    # On a loop that is blocked, a coroutine can't even notice that its time is over. A thread could.
    guilty = {entry.slot for entry in late if entry.place is not Place.LOOP}
    guilty |= {entry.slot for entry in flight.running if entry.slot == flight.on_cpu}
    if guilty:
        return guilty, set()
    return set(), {entry.slot for entry in flight.running if entry.place is not Place.PROCESS}


def _innocent(entry: Entry) -> Outcome:
    return Interrupted(has_started=entry.phase is not Phase.CLAIMED)


def _suspected(how: str) -> Outcome:
    return Crashed(
        Failure(
            FailureKind.CRASH,
            "WorkerCrashed",
            f"The worker process {how} while it ran this job. It is not known whether this job was the reason.",
        )
    )


def _timed_out(entry: Entry, now: float) -> Outcome:
    ran = now - entry.started_at
    if entry.overdue_at <= now:
        return hard_timeout(ran, entry.overdue_at - entry.started_at)
    message = f"Stopped after {ran:.1f} s: it blocked the event loop, and other jobs with it."
    return Raised(Verdict.TRANSIENT, Failure(FailureKind.TIMEOUT, "HardTimeout", message))
