"""The panel: what this process knows of the app's breakers, and has still to say about them.

While a breaker is closed and nothing fails, nobody asks the store: what was heard last is good for some seconds. Where
a worker is, it attends to the panel, so that it is always up to date; elsewhere whoever finds it stale brings it up to
date. Failures are passed on; successes only if they matter, because there were failures or somebody tries.

If the database can't be asked, what was known last counts, and a breaker of which nothing is known is closed: that the
jobs' own database is away is no reason to stop what does not need it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from itertools import islice
from typing import Final, NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from holdfast import native
from holdfast.breaker import PASS, BreakerRecord, BreakerReport, BreakerState, Finding, Pass, Wait, pause
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, StoreError, StoreUnavailable
from holdfast.guard import Breaker
from holdfast.span import format_span
from holdfast.store import LARGEST_PAGE, Store

log = logging.getLogger("holdfast.breaker")

FRESH_FOR: Final = 3.0
"""Seconds for which what was heard is good enough."""
ATTENDED_FRESH_FOR: Final = 10.0
"""The same where somebody listens, and asks every few seconds besides."""
_MOST_PENDING: Final = 1000
_MERGED: Final = (Finding.FAILED, Finding.SUCCEEDED)

Wake = Callable[[], object]


class View(NamedTuple):
    """How a breaker stood, and when that was heard, by the monotonic clock."""

    record: BreakerRecord
    at: float


class Panel:
    """One app's breakers in one process. Any thread may look, and take note."""

    def __init__(
        self, breakers: Mapping[str, Breaker], clock: Clock, chance: Callable[[], float], code_since: float
    ) -> None:
        self._breakers = breakers
        self._clock = clock
        self._chance = chance
        self._code_since = code_since
        self._lock = native.make_lock()
        self._views: dict[str, View] = {}
        self._doubtful: set[str] = set()
        self._failures: Counter[str] = Counter()
        """In a row, as far as is known here: those that were heard of, and those that are still to be told."""
        self._suspects: set[str] = set()
        """Breakers that will be open, it seems, as soon as the store hears of it: nobody passes before that."""
        self._pending: list[BreakerReport] = []
        self._telling: list[BreakerReport] = []
        """What is on its way to the store."""
        self._closed: set[str] = set()
        """Breakers that were learnt to be closed, and the jobs that wait for them have not been let go yet."""
        self._attendants: tuple[Wake, ...] = ()

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def look(self, name: str) -> Pass | Wait | None:
        """Whether one may pass; None if the store must be asked."""
        view = self._views.get(name)
        if view is None or name in self._suspects:
            return None
        record, at = view
        passed = self._clock.monotonic() - at
        if passed > (ATTENDED_FRESH_FOR if self._attendants else FRESH_FOR):
            return None
        if record.state is BreakerState.CLOSED:
            return PASS
        is_open = record.reset_in is not None and record.reset_in.total_seconds() > passed
        return self._wait(view) if is_open or not record.has_room else None

    def is_doubtful(self, name: str) -> bool:
        """Whether it matters that somebody has succeeded."""
        return name in self._doubtful

    def learn(self, records: Iterable[BreakerRecord]) -> None:
        """This is how breakers stand now."""
        now = self._clock.monotonic()
        for record in records:
            before = self._views.get(record.name)
            self._views[record.name] = View(record, now)
            with self._lock:
                self._failures[record.name] = record.failures
                self._suspects.discard(record.name)
                for report in (*self._telling, *self._pending):
                    if report.breaker == record.name:
                        self._count(report)
            if record.failures or record.state is not BreakerState.CLOSED:
                self._doubtful.add(record.name)
            else:
                self._doubtful.discard(record.name)
            _tell(None if before is None else before.record, record)
            if record.state is BreakerState.CLOSED and (before is None or before.record.state is not record.state):
                self._has_closed(record.name)

    def _has_closed(self, name: str) -> None:
        with self._lock:
            self._closed.add(name)
        for wake in self._attendants:
            wake()

    def take_closed(self) -> list[str]:
        """Breakers that are closed since this was last asked for, or were when they were first heard of."""
        with self._lock:
            closed, self._closed = sorted(self._closed), set()
        return closed

    def _wait(self, view: View) -> Wait:
        passed = timedelta(seconds=self._clock.monotonic() - view.at)
        return Wait(pause(view.record, self._chance(), passed))

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def enter(self, store: Store, name: str) -> Pass | Wait:
        """Whether one may pass, asking if need be. Never raises for the database's sake."""
        try:
            known = await self._find_out(store, name)
            if known is not None:
                return known
            admission = await store.enter_breaker(name, uuid4())
        except HoldfastError as error:
            log.warning("the breaker %s can't be asked, so what was known last counts: %s", name, error)
            view = self._views.get(name)
            return PASS if view is None or view.record.state is BreakerState.CLOSED else self._wait(view)
        self.learn([admission.record])
        return Pass(admission.permit) if admission.is_admitted else self._wait(self._views[name])

    async def _find_out(self, store: Store, name: str) -> Pass | Wait | None:
        if name in self._suspects:
            await self.flush(store)
        view = self._views.get(name)
        if view is None:
            await self.declare(store, self.code_age)
        elif self._clock.monotonic() - view.at > FRESH_FOR:
            await self.refresh(store)
        return self.look(name)

    @property
    def code_age(self) -> timedelta:
        """How long the code has been running that declares the breakers here."""
        return timedelta(seconds=max(self._clock.monotonic() - self._code_since, 0.0))

    async def declare(self, store: Store, code_age: timedelta | None) -> None:
        """Tell the store what the code says, and hear how all breakers stand."""
        policies = {name: breaker.policy for name, breaker in self._breakers.items()}
        self.learn(await store.declare_breakers(policies, code_age))

    async def refresh(self, store: Store) -> None:
        self.learn(await store.breakers(list(self._breakers)))

    async def let_go(self, store: Store, names: Iterable[str]) -> None:
        """Let go on what waits for breakers that are closed by now. Never raises for the database's sake.

        What can't be done now is done by itself, when the wait of each job is over.
        """
        try:
            for name in names:
                while await store.let_pass(name, LARGEST_PAGE) == LARGEST_PAGE:
                    pass
        except HoldfastError as error:
            log.warning("jobs wait for a breaker that is closed, and go on when their wait is over: %s", error)

    # ── telling ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def note(self, report: BreakerReport) -> bool:
        """Something is to be passed on. Whether nobody attends to that, so that the caller must `flush`."""
        with self._lock:
            last = self._pending[-1] if self._pending else None
            if last is not None and report.finding in _MERGED and replace(last, number=report.number) == report:
                self._pending[-1] = replace(last, number=last.number + report.number)
            else:
                self._pending.append(report)
                del self._pending[:-_MOST_PENDING]
            self._count(report)
        for wake in self._attendants:
            wake()
        return not self._attendants

    def _count(self, report: BreakerReport) -> None:
        name, breaker = report.breaker, self._breakers.get(report.breaker)
        if report.finding is Finding.SUCCEEDED:
            self._failures[name] = 0
        elif report.finding is Finding.FAILED:
            self._doubtful.add(name)
            self._failures[name] += report.number
            if report.permit is not None or (breaker and self._failures[name] >= breaker.policy.failures):
                self._suspects.add(name)

    async def flush(self, store: Store) -> bool:
        """Pass on all that was noted, in that order. False if it was put back because the database is away."""
        with self._lock:
            reports, self._pending = self._pending, []
            self._telling = [*self._telling, *reports]
        if not reports:
            return True
        try:
            records = await store.report_breakers(reports)
        except StoreUnavailable as error:
            log.warning("what came of calls behind breakers can't be told, trying again: %s", error)
            with self._lock:
                self._pending[:0] = islice(reports, _MOST_PENDING - len(self._pending))
            return False
        except StoreError as error:
            log.warning("it is not known whether failures behind breakers were counted: %s", error)
            return True
        finally:
            told = set(map(id, reports))
            with self._lock:
                self._telling = [report for report in self._telling if id(report) not in told]
        self.learn(records)
        return True

    # ── attending ────────────────────────────────────────────────────────────────────────────────────────────────────

    def attend(self, wake: Wake) -> None:
        """Somebody listens from now on, and is woken, from any thread, when there is something to pass on."""
        with self._lock:
            self._attendants = (*self._attendants, wake)

    def leave(self, wake: Wake) -> None:
        with self._lock:
            self._attendants = tuple(each for each in self._attendants if each is not wake)


def _tell(before: BreakerRecord | None, after: BreakerRecord) -> None:
    """One line when a breaker opens, and one when it is closed again; not one for each that waits."""
    was_closed = before is None or before.state is BreakerState.CLOSED
    if after.state is BreakerState.CLOSED:
        if not was_closed:
            log.info("the breaker %s is closed again", after.name)
    elif was_closed or (before is not None and before.openings != after.openings):
        last = f", the last one {after.last_error}" if after.last_error else ""
        log.warning(
            "the breaker %s is open%s: what needs it waits %s",
            after.name,
            f" after {after.failures} failures{last}" if after.failures else ", opened by hand",
            format_span(timedelta(seconds=round((after.reset_in or timedelta(0)).total_seconds(), 1))),
        )
