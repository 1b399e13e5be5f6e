"""Jobs whose arguments don't fit the task as it is here. In a rolling deploy they fit the newer one, which others have.

The store knows: each worker publishes its definitions, and those of the youngest code stay. Jobs that come while the
store is being asked share the next question, so there is never more than one on its way; and no answer is older than
the job that it decides about, unless it says that there is something newer, which does not become wrong so soon.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from holdfast.engine import Engine
from holdfast.errors import HoldfastError, InvalidPayload
from holdfast.job import ClaimedJob, Failure, FailureKind
from holdfast.lifecycle import Bury, GiveBack, Transition, pause_of
from holdfast.outcome import Outcome, Raised
from holdfast.store import PublishedTask
from holdfast.worker.runs import Plan, Run
from holdfast.worker.strangers import PATIENCE

log = logging.getLogger("holdfast.worker")

_FRESH_FOR: Final = 5.0
"""Seconds for which it is remembered that there is a newer definition."""
_MOST: Final = 10_000


def is_misfit(run: Run, outcome: Outcome) -> bool:
    """Whether it failed because the task does not take its arguments, and not because of anything that the task did."""
    if not isinstance(outcome, Raised) or outcome.failure.kind is not FailureKind.INVALID:
        return False
    try:
        run.plan.signature.decode(run.job.args_json)
    except InvalidPayload:
        return True
    except Exception:
        return False
    return False


class Misfit(NamedTuple):
    run: Run
    outcome: Raised


class Misfits:
    """Decides about them: given back if somebody has published a newer definition, and otherwise as any other."""

    def __init__(
        self,
        engine: Engine,
        decide: Callable[[Run, Outcome], Transition],
        settle: Callable[[int, ClaimedJob, Transition], None],
    ) -> None:
        self._engine = engine
        self._decide = decide
        self._settle = settle
        self._waiting: list[Misfit] = []
        self._undecided = 0
        self._has_news = asyncio.Event()
        self._schemas: dict[str, bytes] = {}
        self._newer_until: dict[str, float] = {}
        self._met: dict[UUID, float] = {}

    @property
    def is_empty(self) -> bool:
        return not self._undecided

    def add(self, run: Run, outcome: Raised) -> None:
        """It will be settled, as soon as the store has told."""
        if self._newer_until.get(run.job.task, 0.0) > self._engine.clock.monotonic():
            self._settle(run.slot, run.job, self._turn_away(run.job, outcome.failure))
            return
        self._waiting.append(Misfit(run, outcome))
        self._undecided += 1
        self._has_news.set()

    async def run(self) -> None:
        """Decide about what is added, until cancelled."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            misfits, self._waiting = self._waiting, []
            newer = await self._find_newer(misfits)
            for run, outcome in misfits:
                is_newer = run.job.task in newer
                transition = self._turn_away(run.job, outcome.failure) if is_newer else self._decide(run, outcome)
                self._settle(run.slot, run.job, transition)
            self._undecided -= len(misfits)

    async def _find_newer(self, misfits: Sequence[Misfit]) -> set[str]:
        """Those of their tasks of which a newer definition is published; all of them, if the store can't be asked."""
        plans = {run.job.task: run.plan for run, _ in misfits}
        try:
            published = await self._engine.store.tasks(sorted({*plans, *(plan.name for plan in plans.values())}))
        except HoldfastError as error:
            log.warning("can't ask for definitions, so what may be invalid is given back: %s", error)
            return set(plans)
        newer = {name for name, plan in plans.items() if self._is_newer(name, plan, published)}
        for name in newer:
            if name not in self._newer_until:
                log.warning("there is a newer definition of %r: jobs that don't fit the one here are given back", name)
            self._newer_until[name] = self._engine.clock.monotonic() + _FRESH_FOR
        return newer

    def _is_newer(self, name: str, plan: Plan, published: Iterable[PublishedTask]) -> bool:
        if plan.name not in self._schemas:
            self._schemas[plan.name] = _text_of(plan.task.definition().schema)
        own = next((task for task in published if task.definition.name == plan.name), None)
        for task in published:
            if name not in (task.definition.name, *task.definition.aliases):
                continue
            # One under another name has this one as an alias. It stays when nobody has it any more, so its age counts.
            is_later = own is None or task is own or task.published_at > own.published_at
            if is_later and _text_of(task.definition.schema) != self._schemas[plan.name]:
                return True
        return False

    def _turn_away(self, job: ClaimedJob, failure: Failure) -> Transition:
        """Give it back uncharged, for a while that grows; bury it if it still comes here after an hour."""
        now = self._engine.clock.monotonic()
        met_for = timedelta(seconds=now - self._met.setdefault(job.id, now))
        if met_for >= PATIENCE:
            del self._met[job.id]
            return Bury(_adding(failure, "A newer definition of the task takes other arguments, but nobody ran it."))
        if len(self._met) > _MOST:
            del self._met[next(iter(self._met))]
        told = _adding(
            failure, "A newer definition of the task is published, so the job waits for a worker that has it."
        )
        return GiveBack(pause_of(job), failure=told, has_waited=True, is_unstarted=True)


def _adding(failure: Failure, sentence: str) -> Failure:
    return Failure(failure.kind, failure.error_type, f"{failure.message} {sentence}", failure.traceback)


def _text_of(schema: dict[str, Any]) -> bytes:
    return msgspec.json.encode(schema, order="deterministic")
