"""The supervisor: keeps child processes at work, and outlives all of them. It runs no code of the user's.

It starts children and replaces those that end, beats for them, kills those whose jobs are overdue or that are stuck,
and says within milliseconds what was lost with one that died: their flight recorders tell. Beside that it looks
after the database: it rescues the jobs of workers elsewhere that are gone, moves what has become due, and prunes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from holdfast.app import open_store
from holdfast.breaker import BreakerReport
from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.ids import Ids
from holdfast.maintenance.herald import Declaration, Herald
from holdfast.maintenance.pruner import Pruner
from holdfast.maintenance.rescuer import Rescuer
from holdfast.maintenance.scheduler import Scheduler
from holdfast.maintenance.ticker import Ticker
from holdfast.maintenance.undertaker import Undertaker
from holdfast.outcome import Crashed, Outcome
from holdfast.store import LARGEST_BATCH, NewWorker, Settlement, Store
from holdfast.supervision.child import CANT_START
from holdfast.supervision.ward import Sentence, Stage, Ward
from holdfast.worker import guilt
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.processes import how_it_ended, kill_group, name_process, resident_memory
from holdfast.worker.recorder import Entry, Flight, Phase, Place
from holdfast.worker.slots import Slots

log = logging.getLogger("holdfast.worker")

_WATCH_EVERY: Final = 0.1
_LOOK_EVERY: Final = 1.0
_TELL_STARTING_AFTER: Final = 30.0
_LONGEST_START: Final = 600.0
"""Seconds for importing the app, and as many for its hooks. Large models may be loaded there."""
_TELL_BLOCKED_AFTER: Final = 5.0
_REPLACE_BLOCKED_AFTER: Final = 30.0
_LAST_WORDS: Final = 5.0
_SHORT_LIFE: Final = 10.0
_LONGEST_PAUSE: Final = 30.0
_MOST_VERSIONS: Final = 100
_HEAD_START: Final = 1.0
"""Seconds that a child which is missed has for its start, before one is started that is not."""
_MOST_TOLD: Final = 10
_FAR_TOO_MUCH: Final = 2
"""Times the memory that a child may use; then its jobs are not waited for any longer than at a stop."""


@dataclass(frozen=True)
class Options:
    """How `holdfast worker` was called."""

    app: str
    slots: Slots
    processes: int
    grace: float = 30.0
    max_jobs: int | None = None
    max_memory: int | None = None
    name: str = ""
    log_level: str = "INFO"
    reloads: bool = False


class Supervisor:
    def __init__(self, options: Options, on_start: Callable[[Supervisor], None] = lambda _: None) -> None:
        self.options = options
        self._on_start = on_start
        self._clock: Clock = SystemClock()
        self._ids = Ids(self._clock)
        self._store: Store | None = None
        self._children: set[Ward] = set()
        self._lives: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._code_since: dict[str, float] = {}
        """When the first child was started that has these tasks. In a rolling deploy that tells whose are newer."""
        self._number = 0
        self._failures = 0
        self._has_worked = False
        self._has_told_of_size = False
        self._start_after = 0.0
        self._started_at = 0.0
        self._is_stopping = False
        self._give_up_at = math.inf
        self._signals = 0
        self.failure: str | None = None
        """Why it could not start, or had to end."""

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    @property
    def place(self) -> str:
        """Where the jobs are."""
        return next((ward.hello.place for ward in self._children if ward.hello is not None), "")

    @property
    def tasks(self) -> list[str]:
        return next((ward.hello.tasks for ward in self._children if ward.hello is not None), [])

    # ── lifetime ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> int:
        """Work until told to stop, and return the status of the process."""
        name_process(f"holdfast: supervisor {self.options.app}")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGQUIT, self.tell_what_runs)
        services: list[asyncio.Task[Any]] = []
        try:
            services.append(asyncio.create_task(self._guarded(self._look_at_starts)))
            if self.options.reloads:
                services.append(asyncio.create_task(self._reload()))
            if not await self._open():
                return 0 if self._is_stopping and self.failure is None else 1
            services += [asyncio.create_task(work) for work in self._services()]
            self._on_start(self)
            await self._keep()
        finally:
            await self._end_children()
            for service in services:
                service.cancel()
            await asyncio.gather(*services, return_exceptions=True)
            if self._store is not None:
                await self._store.close()
        log.info("stopped")  # not after an error, which is told by whoever called
        return 1 if self.failure else 0

    async def _open(self) -> bool:
        """Start a first child. It tells which database there is: only it has imported the app."""
        first = self._start_child()
        while first.hello is None:
            self._changed.clear()
            has_failed = first.stage is Stage.GONE and first.sentence is not Sentence.HUNG
            if self._is_stopping or (has_failed and not self.options.reloads):
                self.failure = first.failure or self.failure
                return False
            if first in self._children:
                await self._changed.wait()
            elif self._start_after > time.monotonic():
                await self._changed_before(self._start_after)
            else:
                first = self._start_child()
        if first.hello.url.startswith("memory:"):
            self.failure = "memory:// keeps jobs in one process only. Use sqlite:///… or postgresql://…."
            log.error("%s", self.failure)
            return False
        self._store = open_store(first.hello.url, first.hello.retention)
        await self._store.open()
        return True

    def _services(self) -> list[Coroutine[Any, Any, None]]:
        def store() -> Store:
            return self.store

        return [
            Heartbeat(store, self._workers).run(),
            Rescuer(store, self._clock).run(),
            Ticker(store).run(),
            Scheduler(store, self._clock, random.random).run(),
            Herald(store, self._clock, self._declarations).run(),
            Undertaker(store).run(),
            Pruner(store).run(),
            self._guarded(self._watch),
            self._guarded(self._look_at_sizes),
        ]

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Whatever goes wrong with one look, the next one is taken."""
        while True:
            try:
                await work()
            except Exception:
                log.exception("watching the children failed, going on")
                await asyncio.sleep(_LOOK_EVERY)

    def _workers(self) -> list[Ward]:
        return [ward for ward in self._children if ward.is_working]

    def _declarations(self) -> list[Declaration]:
        """The schedules of all code that is at work here, which is mostly one."""
        working = {ward.hello.code: ward for ward in self._workers() if ward.hello is not None}
        return [
            (ward.hello.schedules, self._code_since_of(ward)) for ward in working.values() if ward.hello is not None
        ]

    def _on_signal(self) -> None:
        self._signals += 1
        self._is_stopping = True
        self._give_up_at = time.monotonic() + self.options.grace + _LAST_WORDS
        self._changed.set()
        if self._signals == 1:
            for ward in self._children:
                ward.retire()  # at once, whatever is waited for before they are told to stop
            log.info("stopping: nothing more is claimed, what runs has %g s; again to stop at once", self.options.grace)
        else:
            log.warning("stopping at once: what runs is given back")
            for ward in self._children:
                ward.kill(Sentence.STOPPED)

    # ── keeping children ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _keep(self) -> None:
        """Have as many children at work as there should be, and one more that is ready to step in."""
        while not self._is_stopping and self.failure is None:
            self._changed.clear()
            missing = self.options.processes - sum(ward.stage is Stage.WORKING for ward in self._children)
            for ward in [ward for ward in self._children if ward.stage is Stage.SPARE][: max(missing, 0)]:
                if await self._put_to_work(ward):
                    missing -= 1
            waiting = sum(ward.stage in (Stage.STARTING, Stage.SPARE) for ward in self._children)
            start_at: float | None = None
            if waiting < max(missing, 0) + 1:
                # Whoever is missed comes sooner if it does not have to share the CPU with the next spare one.
                has_to_wait = missing > 0 and waiting >= missing
                may_start_at = max(self._start_after, self._started_at + _HEAD_START if has_to_wait else 0.0)
                if may_start_at <= time.monotonic():
                    self._start_child()
                    continue
                start_at = may_start_at
            await self._changed_before(math.inf if start_at is None else start_at)

    async def _changed_before(self, time: float) -> None:
        """Wait for a change, but not for longer than this."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(None if time == math.inf else time):
                await self._changed.wait()

    def _start_child(self) -> Ward:
        self._number += 1
        self._started_at = time.monotonic()
        options = self.options
        ward = Ward(options.app, options.slots, self._number, options.log_level, options.max_memory)
        ward.on_change = self._changed.set
        self._children.add(ward)
        life = asyncio.create_task(self._attend(ward))
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)
        return ward

    async def _put_to_work(self, ward: Ward) -> bool:
        worker = self._ids.make()
        host = socket.gethostname()
        name = self.options.name or f"{host}:{os.getpid()}/{ward.number}"
        tasks = () if ward.hello is None else tuple(ward.hello.tasks)
        try:
            await self.store.register(NewWorker(worker, name, host, ward.pid, self.options.slots.queues, tasks))
        except HoldfastError as error:
            log.warning("can't register a worker, trying again: %s", error)
            self._start_after = time.monotonic() + 1.0
            await asyncio.sleep(random.uniform(0.5, 1.5))
            return False
        if ward.stage is not Stage.SPARE:
            await self._bury(worker, [])
            return False
        ward.go(worker, self._code_since_of(ward))
        return True

    def _code_since_of(self, ward: Ward) -> float:
        """A child may have other tasks than the one before it, if the code has changed on disk meanwhile."""
        assert ward.hello is not None
        if len(self._code_since) >= _MOST_VERSIONS:
            del self._code_since[next(iter(self._code_since))]
        return self._code_since.setdefault(ward.hello.code, ward.started_at)

    async def _attend(self, ward: Ward) -> None:
        """A child's whole life, and what must be done after it."""
        try:
            await self._after(ward, await ward.live())
        except OSError as error:
            log.error("child %d could not be started: %s", ward.number, error)
            self._pause_before_the_next()
        finally:
            ward.close()
            self._children.discard(ward)
            self._changed.set()

    async def _after(self, ward: Ward, status: int) -> None:
        lived = time.monotonic() - ward.started_at
        flight = ward.flight()
        self._has_worked = self._has_worked or ward.working_since > 0
        if ward.failure is not None and status == CANT_START and not self._is_stopping:
            self._failed(ward)
        elif ward.sentence is None and not (status == 0 and ward.was_told_to_stop):
            log.error("child %d %s after %.1f s", ward.number, how_it_ended(status), lived)
            if lived < _SHORT_LIFE and not flight.finished:
                self._pause_before_the_next()
            else:
                self._failures = 0
        elif ward.sentence is Sentence.HUNG:
            self._pause_before_the_next()
        else:
            self._failures = 0
        if ward.worker.int:
            outcomes = _judge(ward, flight, status)
            _tell_losses(flight, outcomes)
            fuses = () if ward.hello is None else ward.hello.fuses
            settlements = guilt.settlements(flight.entries, outcomes, random.random, fuses)
            # First, so that who comes back at once finds room where it had a permit.
            reports = guilt.reports(flight.entries, outcomes, fuses)
            is_told = await self._report(reports)
            if status == 0 and not settlements:
                await self._until_done(lambda store: store.depart(ward.worker))
            else:
                await self._bury(ward.worker, settlements)
            if not is_told:
                await self._report(reports)

    def _pause_before_the_next(self) -> None:
        """For longer and longer, if one after the other dies without having done anything."""
        self._failures += 1
        if self._failures > 1:
            self._start_after = time.monotonic() + min(0.5 * 2 ** min(self._failures, 10), _LONGEST_PAUSE)

    def _failed(self, ward: Ward) -> None:
        """The app can't be imported or started. If it never could, nothing else helps than a person."""
        log.error("%s", ward.failure)
        if self.options.reloads:
            log.info("waiting for a change of the code")
            self._start_after = math.inf
        elif self._has_worked or any(other.working_since for other in self._children):
            self._pause_before_the_next()
        else:
            self.failure = ward.failure

    async def _bury(self, worker: UUID, settlements: list[Settlement]) -> None:
        while len(settlements) > LARGEST_BATCH:
            batch, settlements = settlements[:LARGEST_BATCH], settlements[LARGEST_BATCH:]
            await self._until_done(functools.partial(_settle, batch))
        await self._until_done(lambda store: store.bury_worker(worker, settlements))

    async def _report(self, reports: list[BreakerReport]) -> bool:
        """Tell breakers of those that were killed. False if the database is away: the jobs must not wait for this."""
        if not reports:
            return True
        try:
            await self.store.report_breakers(reports)
        except StoreUnavailable as error:
            log.warning("what came of calls behind breakers can't be told now: %s", error)
            return False
        except HoldfastError as error:
            log.warning("it is not known whether failures behind breakers were counted: %s", error)
        return True

    async def _until_done(self, act: Callable[[Store], Coroutine[Any, Any, Any]]) -> None:
        """What is not done here would be done by others, much later."""
        pause = 0.05
        while True:
            try:
                await act(self.store)
                return
            except HoldfastError as error:
                if self._signals > 1 or time.monotonic() > self._give_up_at:
                    return
                log.warning("can't give back what a child held, trying again: %s", error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, 2.0)

    async def _end_children(self) -> None:
        self._give_up_at = min(self._give_up_at, time.monotonic() + self.options.grace + _LAST_WORDS)
        for ward in list(self._children):
            ward.stop(self.options.grace)
        deadline = self.options.grace + _LAST_WORDS
        while self._lives:
            started = time.monotonic()
            _, left = await asyncio.wait(self._lives, timeout=max(deadline, 0.1), return_when=asyncio.FIRST_COMPLETED)
            deadline -= time.monotonic() - started
            if deadline <= 0 and left:
                for ward in list(self._children):
                    ward.kill(Sentence.STOPPED)

    async def _reload(self) -> None:
        """Replace all children when the code changes. What runs may finish first."""
        from watchfiles import PythonFilter, awatch

        logging.getLogger("watchfiles").setLevel(logging.WARNING)
        folder = os.getcwd()
        try:
            async for changes in awatch(folder, watch_filter=PythonFilter()):
                names = sorted({path.removeprefix(f"{folder}/") for _, path in changes})
                log.info("%s changed: starting anew", ", ".join(names[:3]) + (" …" if len(names) > 3 else ""))
                self._start_anew()
        except Exception as error:  # the system watches so many files and no more, for example
            log.error("changes of the code are not noticed any more: %s", error)

    def _start_anew(self) -> None:
        self._start_after = 0.0
        for ward in list(self._children):
            if ward.stage in (Stage.WORKING, Stage.RETIRING):
                ward.stop(self.options.grace)
            elif ward.stage is not Stage.STOPPING:  # that one finishes what it had when the code changed before
                ward.kill(Sentence.STOPPED)
        self._changed.set()

    # ── watching ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        """Kill what is overdue, within a second of its limit, whatever its process is doing."""
        while True:
            now = time.monotonic()
            for ward in list(self._children):
                try:
                    if ward.may_be_overdue(now):
                        self._look_for_overdue(ward, now)
                except Exception:  # the others are looked at all the same
                    log.exception("child %d can't be watched", ward.number)
            await asyncio.sleep(_WATCH_EVERY)

    def _look_for_overdue(self, ward: Ward, now: float) -> None:
        flight = ward.flight()
        late = guilt.overdue(flight, now)
        ward.late_since = {entry: ward.late_since.get(entry, now) for entry in late}
        for entry in late:
            if entry.pid:
                kill_group(entry.pid)  # its child does the same; whoever comes first
        if guilt.must_be_killed(ward.late_since, flight, now):
            ward.kill(Sentence.OVERDUE)

    async def _look_at_starts(self) -> None:
        """Tell of children that take long to begin, and replace those that seem to hang. Also of the very first one."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            now = time.monotonic()
            for ward in list(self._children):
                if not ward.is_starting:
                    continue
                what = "to import the app" if ward.hello is None else "its start, with the hooks of on_startup,"
                since = max(ward.started_at, ward.put_to_work_at)
                if now - since > _TELL_STARTING_AFTER and ward.warned_at < since:
                    ward.warned_at = now
                    log.warning("child %d has not begun to work yet: %s takes its time", ward.number, what)
                elif now - since > _LONGEST_START:
                    log.error("child %d is replaced: %s took longer than %g s", ward.number, what, _LONGEST_START)
                    ward.kill(Sentence.HUNG)

    async def _look_at_sizes(self) -> None:
        """Recycle children that have grown, or have done enough; report and replace those that are stuck."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            now = time.monotonic()
            for ward in list(self._children):
                if ward.is_working:
                    flight = ward.flight()
                    await self._look_for_blocked(ward, flight, now)
                    self._look_for_enough(ward, flight)
                    if now > ward.stop_by + _LAST_WORDS:
                        log.warning("child %d does not stop and is killed", ward.number)
                        ward.kill(Sentence.STOPPED)

    def _look_for_enough(self, ward: Ward, flight: Flight) -> None:
        """Long jobs may finish in a child that is replaced: they would be stopped again and again.

        There are no more such children than others: whoever is next works on until one of them has ended.
        """
        most_jobs, most_memory = self.options.max_jobs, self.options.max_memory
        used = 0 if most_memory is None else resident_memory(ward.pid)
        is_fresh = ward.stage is Stage.WORKING and not flight.finished and not flight.entries
        if most_memory is not None and is_fresh:
            self._tell_if_too_large_at_rest(used, most_memory)
            return  # the next one would be no smaller
        may_retire = sum(other.stage is Stage.RETIRING for other in self._children) < self.options.processes
        match ward.stage:
            case Stage.WORKING | Stage.RETIRING if most_memory is not None and used > _FAR_TOO_MUCH * most_memory:
                log.warning("child %d uses %d MB and must stop", ward.number, used // 1_000_000)
                ward.stop(self.options.grace)
            case Stage.WORKING if not may_retire:
                return
            case Stage.WORKING if most_jobs is not None and flight.finished >= most_jobs:
                log.info("child %d has done %d jobs and is replaced", ward.number, flight.finished)
                ward.retire()
            case Stage.WORKING if most_memory is not None and used > most_memory:
                log.warning("child %d uses %d MB and is replaced", ward.number, used // 1_000_000)
                ward.retire()
            case Stage.RETIRING if not flight.entries:
                ward.stop(self.options.grace)
            case _:
                return
        self._changed.set()

    def _tell_if_too_large_at_rest(self, used: int, most_memory: int) -> None:
        if used > most_memory and not self._has_told_of_size:
            self._has_told_of_size = True
            log.warning(
                "a child uses %d MB before its first job, more than --max-memory allows: "
                "each is replaced after its first job. Allow more.",
                used // 1_000_000,
            )

    async def _look_for_blocked(self, ward: Ward, flight: Flight, now: float) -> None:
        if not ward.working_since:
            return
        if not guilt.is_blocked(flight, now):
            ward.warned_at = 0.0
            return
        blocked_for = now - flight.turned_at
        who = guilt.culprit(flight)
        if blocked_for > _TELL_BLOCKED_AFTER and not ward.warned_at:
            ward.warned_at = now
            log.warning("child %d: its event loop has been blocked for %.0f s by %s", ward.number, blocked_for, who)
        # Without anything to run, too: it would never claim anything again.
        if blocked_for > _REPLACE_BLOCKED_AFTER and (
            _others_wait(flight) or not flight.running or await self._has_work()
        ):
            log.error("child %d: blocked for %.0f s by %s, it is replaced", ward.number, blocked_for, who)
            ward.kill(Sentence.STUCK)

    async def _has_work(self) -> bool:
        """Whether something waits in a queue that is served here."""
        try:
            busy = await self.store.busy_queues()
        except HoldfastError:
            return False  # nobody could do it
        slots = self.options.slots
        return bool(busy if slots.serves_all else set(slots.queues).intersection(busy))

    # ── telling ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def tell_what_runs(self) -> None:
        """SIGQUIT: what each child is doing, from the flight recorders."""
        now = time.monotonic()
        for ward in sorted(self._children, key=lambda ward: ward.number):
            flight = ward.flight() if ward.pid else None
            running = flight.running if flight is not None else ()
            log.info("child %d (pid %d, %s): %d running", ward.number, ward.pid, ward.stage, len(running))
            for entry in sorted(running, key=lambda entry: entry.started_at):
                mark = " on the CPU" if flight is not None and entry.slot == flight.on_cpu else ""
                log.info("    %7.1f s  %s %s%s", now - entry.started_at, entry.task, entry.id, mark)


def _judge(ward: Ward, flight: Flight, status: int) -> dict[int, Outcome]:
    match ward.sentence:
        case Sentence.OVERDUE | Sentence.STUCK:
            return guilt.outcomes_of_timeout(flight, ward.sentenced_at)
        case Sentence.STOPPED | Sentence.LOST | Sentence.HUNG:
            return guilt.outcomes_of_replacement(flight)
        case None if status == 0 and ward.was_told_to_stop:
            return guilt.outcomes_of_replacement(flight)
        case None:
            # Also with status 0: a task may have ended the process, and would do so again and again.
            return guilt.outcomes_of_crash(flight, how_it_ended(status))


async def _settle(settlements: list[Settlement], store: Store) -> None:
    await store.settle(settlements)


def _others_wait(flight: Flight) -> bool:
    """Whether it has jobs in hand that can't go on, or begin."""
    return any(
        entry.phase is Phase.CLAIMED or (entry.phase is Phase.STARTED and entry.place is Place.LOOP)
        for entry in flight.entries
        if entry.slot != flight.on_cpu
    )


def _tell_losses(flight: Flight, outcomes: dict[int, Outcome]) -> None:
    """Of all that ran, and of what had just ended if it is under suspicion: in a busy child that may be many."""
    lost = [entry for entry in flight.entries if entry.phase is Phase.STARTED and entry.slot in outcomes]
    ended = [
        entry
        for entry in flight.entries
        if entry.phase is Phase.FINISHED and isinstance(outcomes.get(entry.slot), Crashed)
    ]
    for entry in (*lost, *ended[:_MOST_TOLD]):
        log.warning("%s %s: %s", entry.task, entry.id, _in_words(entry, outcomes[entry.slot]))
    if len(ended) > _MOST_TOLD:
        log.warning("and %d more that had just ended", len(ended) - _MOST_TOLD)


def _in_words(entry: Entry, outcome: Outcome) -> str:
    failure = getattr(outcome, "failure", None)
    return failure.message if failure is not None else "stopped with its process, given back"
