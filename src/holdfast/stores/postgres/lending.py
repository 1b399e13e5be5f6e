"""New jobs in transactions that callers lend: on their connections, and without waiting for anybody's turn."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from holdfast.errors import HoldfastError
from holdfast.job import NewJob
from holdfast.portal import Portal
from holdfast.store import Enqueued
from holdfast.stores.postgres.admission import Admission
from holdfast.stores.postgres.drivers import borrow
from holdfast.stores.postgres.office import Offices
from holdfast.stores.postgres.request import Options, Outcome, Request, check_keys


class Lending:
    """What this process enqueues on connections of its callers'."""

    def __init__(self, offices: Offices, declared: dict[str, tuple[int, int]]) -> None:
        """The bounds that the code declares hold even before they are in the database."""
        self._offices = offices
        self._declared = declared
        # Apart from what the others know: a transaction may see an old state, and may be rolled back.
        self._admission = Admission()

    async def aenqueue(self, tx: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        borrowed, asking = borrow(tx), _Asking(jobs, self._admission)
        await self._offices.open()
        if asking.request.is_empty:
            return asking.unasked()
        return asking.read(await borrowed.aenqueue(asking.request.jobs(), asking.options(self._options())))

    def enqueue(self, tx: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        borrowed, asking = borrow(tx), _Asking(jobs, self._admission)
        if self._offices.instance is None:
            self._open_from_outside()
        if asking.request.is_empty:
            return asking.unasked()
        return asking.read(borrowed.enqueue(asking.request.jobs(), asking.options(self._options())))

    def forget(self, queues: Iterable[str]) -> None:
        """Their bounds are others now."""
        self._admission.forget(queues)

    def _options(self) -> Options:
        """It must be our database."""
        return Options(instance=self._offices.instance, now=self._offices.microseconds, declared=self._declared)

    def _open_from_outside(self) -> None:
        """For a synchronous caller: find out which instance this is, on a connection and a loop of our own."""
        portal = Portal()
        try:
            portal.run(self._offices.open(), "aenqueue")
        finally:
            portal.close()


class _Asking:
    """One call, which is let in without a look if there was room a moment ago: counting a long queue takes time."""

    def __init__(self, jobs: Sequence[NewJob], admission: Admission) -> None:
        self.request = Request([jobs])
        if not self.request.is_plain:
            check_keys(jobs)
        self._admission = admission
        self._more = self.request.counts()
        self._now = time.monotonic()

    def options(self, options: Options) -> str:
        options.is_admitted = self._admission.admits(self._more, self._now)
        options.is_tight = self._admission.is_tight(self._more)
        return self.request.options(options)

    def read(self, text: str) -> list[Enqueued]:
        outcome = self.request.read(text)
        self._admission.learn(outcome.depths, self._now)
        answers = _only(outcome)
        counted = {queue for queue, depth in outcome.depths.items() if depth.is_certain}
        self._admission.count({queue: number for queue, number in self._more.items() if queue not in counted})
        return answers

    def unasked(self) -> list[Enqueued]:
        return _only(self.request.unasked())


def _only(outcome: Outcome) -> list[Enqueued]:
    (answer,) = outcome.calls
    if isinstance(answer, HoldfastError):
        raise answer
    return answer
