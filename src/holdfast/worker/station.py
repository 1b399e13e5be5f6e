"""The station: claims jobs, runs them and settles them, on one event loop. Child processes and apps have one each.

    fetcher ──claim──▶ ahead ──slot──▶ executor ──outcome──▶ settler ──settle──▶ store

A job is in the flight recorder from before its claim is sent until after its settlement is answered, and nothing
here is larger than the recorder: it has no slot for what it could not hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from itertools import chain
from typing import Final
from uuid import UUID

from holdfast import lifecycle
from holdfast.breaker import PASS, Pass, Wait
from holdfast.engine import Engine
from holdfast.errors import HoldfastError, StoreError, WorkerDeclaredDead
from holdfast.job import ClaimedJob, Delivery
from holdfast.lifecycle import Complete, Transition
from holdfast.outcome import Completed, Crashed, Interrupted, Outcome, Raised, Unstarted, Withdrawn
from holdfast.store import LARGEST_BATCH, HintKind, Settled, Settlement
from holdfast.worker import guilt
from holdfast.worker.ahead import Ahead
from holdfast.worker.demand import LARGEST_CLAIM, MOST_AHEAD, MOST_BEHIND, Demand
from holdfast.worker.executor import Executor
from holdfast.worker.misfits import Misfits, is_misfit
from holdfast.worker.recorder import NEVER, Place, Recorder
from holdfast.worker.runs import Plan, Plans, Run
from holdfast.worker.settler import LARGEST_SETTLEMENT, LastWords, Settler
from holdfast.worker.slots import Slots
from holdfast.worker.strangers import Strangers
from holdfast.worker.trains import Trains
from holdfast.worker.turnstile import Turnstile, held_back

log = logging.getLogger("holdfast.worker")

_POLL_EVERY: Final = 5.0
_TURN_EVERY: Final = 0.25
_STALE_AFTER: Final = 0.5
"""Seconds after which a job that was fetched ahead and could not be started is given back."""
_STALE_BEHIND_AFTER: Final = 1.0
"""The same of one that waits behind another of its order. Nobody else could run it meanwhile."""
_LONGEST_PAUSE: Final = 5.0
_TELL_QUIET_AFTER: Final = 0.2
"""Seconds of a stop that is over so soon that nobody needs to know of it."""
_LAST_WORDS: Final = 2.0
"""Seconds for tasks that were interrupted to clean up."""
_TOLERANCE: Final = 0.002
"""A loop may call a little early, by its own clock."""
_LONGEST_RESERVING: Final = 0.1
"""Seconds that a claim waits for slots to become free for jobs that must start when they come."""


def slots_for(slots: Slots) -> int:
    """How large the recorder of a station must be: for what runs, is fetched ahead or behind, and awaits settlement."""
    return slots.total + MOST_AHEAD + MOST_BEHIND + 2 * LARGEST_SETTLEMENT


class Station:
    """One event loop's work."""

    def __init__(
        self,
        engine: Engine,
        worker: UUID,
        slots: Slots,
        recorder: Recorder,
        executor: Executor,
        *,
        enforces_timeouts: bool = False,
        isolates_suspects: bool = True,
    ) -> None:
        """`enforces_timeouts`: there is no supervisor that would kill for hard timeouts, so cancel and write off.

        `isolates_suspects`: whoever may have crashed a process before runs alone, which needs an app that can be found.
        """
        self._engine = engine
        self._worker = worker
        self._slots = slots
        self._recorder = recorder
        self._executor = executor
        self._executor.on_finish = self._finish
        self._executor.on_failure = self._fail
        # Times are time.monotonic(), which other processes can compare. A loop counts the same, but may be behind.
        self._loop = asyncio.get_running_loop()
        self._demand = Demand(slots)
        self._plans = Plans(engine)
        self._strangers = Strangers(engine)
        self._misfits = Misfits(engine, self._decide, self._settle)
        self._turnstile = Turnstile(engine, recorder, self._answered)
        self._trains = Trains()
        self._settler = Settler(engine, self._settled)
        self._settler.is_awaited = self._trains.__bool__
        self._ahead = [Ahead() for _ in slots.pools]
        self._running: dict[int, Run] = {}
        self._failure: asyncio.Future[None] = self._loop.create_future()
        """Ends all of this, once something has gone wrong after which a job would be in its slot for ever."""
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._is_quiet = False
        self._is_asleep = False
        """The fetcher has nothing to ask for, until something changes."""
        self._is_claiming = False
        self._keeps_reserve = False
        """Some slots are kept free, for jobs that must start when they are claimed."""
        self._reserved: asyncio.Event | None = None
        """Those slots are waited for."""
        self._enforces_timeouts = enforces_timeouts
        self._isolates_suspects = isolates_suspects
        self._alarm: asyncio.TimerHandle | None = None
        self._soft_at = NEVER
        self._tells_all = log.isEnabledFor(logging.DEBUG)
        """Also of jobs that go well. Looked up now and then, not for each of tens of thousands in a second."""
        self.finished = 0
        self.is_declared_dead = asyncio.Event()
        """The store has taken this worker for dead: all that it does is in vain."""

    # ── lifetime ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, *, by_hand: bool = False) -> None:
        """Work until cancelled. `by_hand`: claim nothing but what `run_next` asks for."""
        services = {
            "settler": self._settler.run,
            "misfits": self._misfits.run,
            "listener": self._listen,
            "turner": self._turn,
            "turnstile": self._turnstile.run,
            "breakers": self._turnstile.attend,
        }
        if not by_hand:
            services |= {"fetcher": self._fetch, "poller": self._poll}
        tasks = [asyncio.create_task(work(), name=f"holdfast-{name}") for name, work in services.items()]
        try:
            # None of them ends by itself, and none of them may end unnoticed.
            await asyncio.gather(*tasks, self._failure)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def run_next(self, wanted: dict[str, int]) -> int:
        """Claim once, and return how many jobs came, when they have run and are settled. For those who run by hand."""
        claimed = await self._claim(wanted)
        await self.drain()
        return claimed

    def quiet(self) -> None:
        """Claim nothing more; give back what has not started; what runs goes on."""
        self._is_quiet = True
        self._wake.set()
        self._return(lambda _: True)

    async def tell_quiet(self) -> None:
        """Make known that this worker claims nothing more: a job that waits is not the next for it."""
        with contextlib.suppress(HoldfastError):
            await self._engine.store.quiet(self._worker)

    async def drain(self) -> None:
        """Wait until nothing runs or is on its way here, and everything is settled. Only once it is quiet."""
        while not self._is_idle:
            self._idle.clear()
            await self._idle.wait()
        await self._settler.drain()
        await self._turnstile.flush()
        await self._turnstile.let_go()

    def interrupt(self) -> None:
        """Stop what runs: it is given back."""
        for run in list(self._running.values()):
            run.interrupt()

    def leave(self) -> None:
        """What goes on in threads is left to itself: it must not keep the loop from ending."""
        for run in self._running.values():
            if run.place is Place.THREAD:
                self._executor.leave(run)

    # ── what others say of our jobs ──────────────────────────────────────────────────────────────────────────────────

    def cancel(self, ids: Iterable[UUID]) -> None:
        """Their cancellation was asked for."""
        wanted = frozenset(ids)
        for run in self._runs_of(wanted):
            run.cancel("")
        self._return(_asked_for(wanted))

    def drop(self, claims: Mapping[UUID, UUID]) -> None:
        """These jobs, under these tokens, are not ours any more: what comes of them is nobody's business.

        Under another token they may be ours again.
        """
        for run in self._runs_of(claims):
            if claims[run.job.id] == run.job.token:
                run.is_taken = True
                run.interrupt()
        for run in self._take_out(lambda job: claims.get(job.id) == job.token):
            self._recorder.settled(run.slot)
            self._break_off(self._trains.all_after(run.slot))
        self._look_idle()

    def drop_all(self) -> None:
        """None of our jobs is ours any more."""
        for run in list(self._running.values()):
            run.is_taken = True
            run.interrupt()

    def find(self, job: UUID) -> Run | None:
        """The run of a job, if it runs here. From any thread."""
        return next(iter(self._runs_of([job])), None)

    def _runs_of(self, ids: Iterable[UUID]) -> list[Run]:
        wanted = frozenset(ids)
        return [run for run in list(self._running.values()) if run.job.id in wanted]

    def _waiting(self) -> list[Run]:
        """What is in hand and has not started."""
        return [*chain.from_iterable(self._ahead), *self._trains]

    def _take_out(self, is_wanted: Callable[[ClaimedJob], bool]) -> list[Run]:
        """Jobs that have not started. They wait no more; those behind them do."""
        ahead = [run for ahead in self._ahead for run in ahead.take(is_wanted)]
        for run in ahead:
            self._demand.dropped(run.pool, is_follower=run.is_follower)
        behind = self._trains.take(is_wanted)
        for run in behind:
            self._demand.dropped_behind(run.pool)
        return ahead + behind

    def _return(self, is_wanted: Callable[[ClaimedJob], bool]) -> None:
        """Give back jobs that have not started: the store knows what is to become of them."""
        for run in self._take_out(is_wanted):
            self._settle(run.slot, run.job, lifecycle.NOT_STARTED)

    def before_settling(self, last_words: LastWords) -> None:
        """Do this before each batch of settlements."""
        self._settler.last_words = last_words

    # ── fetching ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _fetch(self) -> None:
        pause = 0.05
        while True:
            self._wake.clear()
            room = min(LARGEST_CLAIM, self._recorder.free)
            wanted = {} if self._is_quiet else self._demand.wanted(time.monotonic(), room)
            if not wanted:
                self._is_asleep = True
                await self._wake.wait()
                self._is_asleep = False
                continue
            try:
                if self._plans.are_some_urgent:
                    await self._keep_reserve(wanted)
                asked_at = time.monotonic()
                got = await self._claim(wanted)
                pause = 0.05
                if rest := self._demand.rest(sum(wanted.values()), got, time.monotonic() - asked_at):
                    await asyncio.sleep(rest)
            except WorkerDeclaredDead:
                self.is_declared_dead.set()
                await asyncio.Event().wait()
            except StoreError as error:
                log.warning("can't claim jobs, trying again: %s", error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _keep_reserve(self, wanted: dict[str, int]) -> None:
        """Until the claim is answered. Where slots don't become free soon, it goes without."""
        self._demand.keep_reserve(wanted)
        self._keeps_reserve = True
        if not self._demand.has_reserve:
            self._reserved = asyncio.Event()
            alarm = self._loop.call_later(_LONGEST_RESERVING, self._reserved.set)
            await self._reserved.wait()
            alarm.cancel()
            self._reserved = None

    async def _claim(self, wanted: dict[str, int]) -> int:
        token = UUID(bytes=secrets.token_bytes(16))
        claim = self._recorder.claiming(token)
        self._is_claiming = True
        at_once = self._demand.at_once(wanted)
        most_behind = self._demand.behind(wanted, self._recorder.free - sum(wanted.values()))
        asked_at = time.monotonic()
        came: Counter[int] = Counter()
        """Jobs that have to start, by their pools."""
        try:
            jobs = await self._engine.store.claim(self._worker, token, wanted, at_once, most_behind)
            got = Counter(job.queue for job in jobs)
            if jobs:
                now = time.monotonic()
                self._demand.took(now - asked_at)
                others = {job.queue for job in jobs if not (job.is_lined and self._is_ordered(job))}
                self._demand.came(got, now, got.keys() - others)
            lined: dict[int, int] = {}
            urgent = list(filter(self._is_urgent, jobs)) if self._plans.are_some_urgent else []
            for job in urgent:
                self._take(job, lined, asked_at, is_urgent=True)
            for job in [job for job in jobs if not self._is_urgent(job)] if urgent else jobs:
                self._take(job, lined, asked_at)
            came.update(pool for job in urgent if (pool := self._demand.pool_of(job.queue)) is not None)
        finally:
            self._recorder.answered(claim)
            self._is_claiming = False
            if self._keeps_reserve:
                self._keeps_reserve = False
                for pool in self._demand.let_go(came):
                    self._fill(pool)
            self._look_idle()
        self._demand.answered(wanted, got, at_once)
        return len(jobs)

    def _is_ordered(self, job: ClaimedJob) -> bool:
        plan = self._plans.of(job.task)
        return plan is not None and plan.is_ordered

    def _is_urgent(self, job: ClaimedJob) -> bool:
        """Whether it must start now, since it counts from now on."""
        plan = self._plans.of(job.task) if job.is_lined else None
        return plan is not None and plan.is_urgent

    def _take(self, job: ClaimedJob, lined: dict[int, int], asked_at: float, *, is_urgent: bool = False) -> None:
        """`lined`: the slots of those that stand in lines, by their ids. As numbers, whose hash costs less."""
        pool = self._demand.pool_of(job.queue)
        plan = self._plans.of(job.task)
        if plan is None or pool is None or self._is_quiet:
            self._turn_away(job, plan, lined)
            return
        place = plan.place_of(job) if self._isolates_suspects else plan.place
        slot = self._recorder.claimed(job, plan.described if place is plan.place else plan.alone)
        run = Run(job, plan, place, slot, pool)
        if job.is_lined:
            lined[job.id.int] = slot
            run.start_by = asked_at + plan.start_within  # a rate has counted it since, at the earliest
        if job.behind is not None and job.delivery is Delivery.AT_MOST_ONCE:
            self._settle(slot, job, lifecycle.NOT_STARTED)  # as below
            return
        if job.behind is not None:
            run.fetched_at = time.monotonic()
            self._demand.fetched_behind(pool)
            self._trains.add(lined[job.behind.int], run)
            return
        self._demand.fetched(pool)
        if self._demand.has_slot(pool) or (is_urgent and self._demand.has_kept_slot(pool)):
            self._start(run)
        elif job.delivery is Delivery.AT_MOST_ONCE:
            self._give_back(run)  # whatever is held and has not started could be lost with this process
        else:
            self._ahead[pool].add(run, time.monotonic())

    def _turn_away(self, job: ClaimedJob, plan: Plan | None, lined: dict[int, int]) -> None:
        slot = self._recorder.claimed(job, Strangers.described)
        lined[job.id.int] = slot
        # Behind another one it is not its turn yet: it must not be away when it comes.
        if plan is None and job.behind is None:
            self._settle(slot, job, self._strangers.turn_away(job))
        else:
            self._settle(slot, job, lifecycle.NOT_STARTED)

    def _give_back(self, run: Run) -> None:
        """It was fetched, and will not be started here."""
        self._demand.dropped(run.pool, is_follower=run.is_follower)
        self._settle(run.slot, run.job, lifecycle.NOT_STARTED)

    def _break_off(self, runs: Iterable[Run]) -> None:
        """What they are behind is not completed, or takes long: they have to wait where they came from."""
        for run in runs:
            self._demand.dropped_behind(run.pool)
            self._settle(run.slot, run.job, lifecycle.NOT_STARTED)

    def _follow(self, run: Run) -> None:
        """What it was behind is completed."""
        run.is_follower = True
        self._demand.came_forward(run.pool)
        if self._demand.has_slot(run.pool) and not self._ahead[run.pool]:
            self._start(run)
        else:
            self._ahead[run.pool].add(run, time.monotonic())  # it has only waited for a slot since now

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, run: Run) -> bool:
        """Start it, in a slot; or, if its breaker is open, give it back, and return False."""
        breaker = run.plan.breaker
        if breaker is not None and (answer := self._turnstile.look(breaker)) is not PASS:
            if isinstance(answer, Wait):
                self._demand.dropped(run.pool, is_follower=run.is_follower)
                self._settle(run.slot, run.job, held_back(run.job, breaker, answer))
                return False
            self._demand.started(run.pool, is_follower=run.is_follower)
            self._running[run.slot] = run
            self._turnstile.ask(run, breaker)
            return True
        self._demand.started(run.pool, is_follower=run.is_follower)
        self._begin(run)
        return True

    def _answered(self, run: Run, answer: Pass | Wait) -> None:
        """A run in its slot has asked whether it may begin."""
        if isinstance(answer, Pass) and not self._is_quiet:
            self._begin(run)
            return
        breaker = run.plan.breaker
        assert breaker is not None
        self._turnstile.finished(run, breaker, Interrupted(has_started=False))
        del self._running[run.slot]
        self._demand.finished(run.pool, was_short=False)
        if run.is_taken:
            self._recorder.settled(run.slot)
            self._break_off(self._trains.all_after(run.slot))
        elif isinstance(answer, Wait):
            self._settle(run.slot, run.job, held_back(run.job, breaker, answer))
        else:
            self._settle(run.slot, run.job, lifecycle.NOT_STARTED)
        self._go_on(run.pool)

    def _begin(self, run: Run) -> None:
        self._running[run.slot] = run
        if run.place is not Place.PROCESS:  # which has to be started first
            now = time.monotonic()
            run.begin_at(now)
            self._recorder.started(run.slot, now, now + run.plan.hard)
            if run.place is Place.LOOP and run.soft_at < self._soft_at:
                self._set_alarm(run.soft_at)
        self._executor.start(run)

    def _finish(self, run: Run, outcome: Outcome) -> None:
        """The executor has done with a run."""
        job, pool = run.job, run.pool
        self._recorder.finished(run.slot)
        self.finished += 1
        if self.finished == 1:
            self._recorder.counted(1)  # if this process dies now, it has not died for nothing
        del self._running[run.slot]
        is_alone = run.place is Place.PROCESS
        self._demand.finished(pool, was_short=not is_alone)
        if is_alone and not isinstance(outcome, Unstarted):
            self._strangers.recognise(job.task)
        if self._tells_all and isinstance(outcome, Completed) and (run.is_committed or not run.is_taken):
            log.debug("%s %s is completed after %.3f s", job.task, job.id, time.monotonic() - run.started_at)
        breaker = run.plan.breaker
        wait = None if breaker is None else self._turnstile.finished(run, breaker, outcome)
        if run.is_taken:
            self._recorder.settled(run.slot)
            if run.slot in self._trains:
                self._move_on(run.slot, is_completed=run.is_committed)
        elif wait is not None:
            _tell(run, outcome, wait)
            self._settle(run.slot, job, wait)
        elif isinstance(outcome, Raised) and is_misfit(run, outcome):
            self._misfits.add(run, outcome)
        elif isinstance(outcome, Unstarted) and outcome.is_unknown:
            self._settle(run.slot, job, self._strangers.turn_away(job, "in the code on disk"))
        else:
            self._settle(run.slot, job, self._decide(run, outcome))
        self._go_on(pool)

    def _fail(self, failure: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(failure)

    def _go_on(self, pool: int) -> None:
        """A slot is free: the next one may start."""
        ahead = self._ahead[pool]
        if ahead.has_lined:
            self._give_back_late_ones(ahead)
        if self._keeps_reserve:
            self._fill(pool)
            if self._reserved is not None and self._demand.has_reserve:
                self._reserved.set()
        else:
            while ahead and not self._start(ahead.next()):
                pass
        if not ahead and self._demand.is_idle(pool):
            self._demand.went_idle(pool, time.monotonic())
        if not self._running:
            self._look_idle()
        if self._is_asleep:
            self._wake.set()

    def _fill(self, pool: int) -> None:
        """Any number of slots may be free, or kept free."""
        ahead = self._ahead[pool]
        while ahead and self._demand.has_slot(pool):
            self._start(ahead.next())

    def _give_back_late_ones(self, ahead: Ahead) -> None:
        """A rate allows for a short wait between claim and start, and the loop may have been blocked for longer."""
        for run in ahead.added_before(time.monotonic() - _STALE_AFTER, is_lined=True):
            self._give_back(run)

    def _decide(self, run: Run, outcome: Outcome) -> Transition:
        if isinstance(outcome, Completed):
            return Complete(outcome.result_json)
        transition = lifecycle.decide(run.job, outcome, run.plan.retry, self._engine.chance())
        _tell(run, outcome, transition)
        return transition

    def _time_out(self) -> None:
        """Tell those on the loop whose soft timeout is over, and come back when the next one's is."""
        now = time.monotonic()
        on_loop = [run for run in self._running.values() if run.place is Place.LOOP]
        for run in on_loop:
            if run.soft_at <= now + _TOLERANCE:
                run.soft_at = NEVER
                run.time_out()
        self._set_alarm(min((run.soft_at for run in on_loop), default=NEVER))

    def _set_alarm(self, soft_at: float) -> None:
        """There is one at a time."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._soft_at = soft_at
        self._alarm = None if soft_at == NEVER else self._loop.call_at(soft_at, self._time_out)

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _settle(self, slot: int, job: ClaimedJob, transition: Transition) -> None:
        self._settler.add(slot, Settlement(job.id, job.token, transition, job.is_keyed, job.is_lined))
        if slot in self._trains and not isinstance(transition, Complete):
            self._break_off(self._trains.all_after(slot))  # together with it

    def _settled(self, slots: list[int], answers: list[Settled], settlements: list[Settlement]) -> None:
        for slot in slots:
            self._recorder.settled(slot)
        if self._trains:
            for slot, answer, each in zip(slots, answers, settlements, strict=True):
                if slot in self._trains:
                    is_completed = isinstance(each.transition, Complete) and answer is not Settled.STALE
                    self._move_on(slot, is_completed=is_completed)
        if Settled.STALE in answers:
            stale = [each.id for each, answer in zip(settlements, answers, strict=True) if answer is Settled.STALE]
            shown = f"job {stale[0]} is" if len(stale) == 1 else f"{len(stale)} jobs are"
            log.warning("%s not ours any more: what came of it here does not count", shown)
        self._look_idle()
        self._wake.set()

    def _move_on(self, slot: int, *, is_completed: bool) -> None:
        """The job in this slot is settled, and there are some behind it."""
        if is_completed:
            self._follow(self._trains.next_after(slot))
        else:
            self._break_off(self._trains.all_after(slot))

    @property
    def _is_idle(self) -> bool:
        is_at_work = self._running or self._is_claiming or self._trains
        return not is_at_work and self._settler.is_empty and self._misfits.is_empty

    def _look_idle(self) -> None:
        if self._is_idle:
            self._idle.set()

    # ── looking around ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> None:
        """Hints bring work at once. Without them it is found by polling."""
        while True:
            try:
                async with self._engine.store.changes([HintKind.WORK, HintKind.CONTROL, HintKind.CANCEL]) as hints:
                    await self._look_for_queues()
                    async for hint in hints:
                        if hint.kind is HintKind.CONTROL:
                            await self._look_for_pauses(hint.queues)
                        if hint.kind is HintKind.CANCEL:
                            await self._look_for_cancellations(hint.ids)
                        elif hint.queues:
                            if self._demand.hope_for(hint.queues):
                                self._wake.set()
                        else:
                            await self._look_for_queues()
            except HoldfastError as error:
                log.warning("can't listen for work, polling instead: %s", error)
            await asyncio.sleep(random.uniform(0.5, 1.5))

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_POLL_EVERY * random.uniform(0.8, 1.2))
            with contextlib.suppress(HoldfastError):
                await self._look_for_queues()

    async def _look_for_queues(self) -> None:
        """Any queue that is served here may have work."""
        queues: Iterable[str] = self._slots.queues
        if self._slots.serves_all:
            queues = await self._engine.store.busy_queues()
        self._demand.hope_for(queues)
        self._wake.set()

    async def _look_for_cancellations(self, ids: frozenset[UUID]) -> None:
        runs = [*self._running.values(), *self._waiting()]
        mine = [run.job.id for run in runs if not ids or run.job.id in ids]
        for start in range(0, len(mine), LARGEST_BATCH):
            asked = await self._engine.store.asked_to_stop(mine[start : start + LARGEST_BATCH])
            for run in self._runs_of(asked):
                run.cancel(asked[run.job.id])
            self._return(_asked_for(asked))

    async def _look_for_pauses(self, queues: frozenset[str]) -> None:
        """What has not started yet, of queues that are paused now, is given back."""
        concerned = {run.job.queue for run in self._waiting()}
        if concerned & queues if queues else concerned:
            paused = {queue.name for queue in await self._engine.store.queues() if queue.is_paused}
            self._return(lambda job: job.queue in paused)

    async def _turn(self) -> None:
        """Show that the loop comes round, and give back what has waited too long for a slot."""
        while True:
            now = time.monotonic()
            overdue_at = min((run.started_at + run.plan.hard for run in self._running.values()), default=NEVER)
            self._recorder.turned(now, self.finished, overdue_at)
            self._tells_all = log.isEnabledFor(logging.DEBUG)
            for pool, ahead in enumerate(self._ahead):
                late = ahead.added_before(now - _STALE_AFTER)
                if any(not run.is_follower for run in late):
                    self._demand.overestimated(pool)
                if any(run.is_follower for run in late):
                    self._demand.overestimated_behind(pool)
                for run in late:
                    self._give_back(run)
            if self._trains:
                for pool in self._trains.pools_waiting_since(now - _STALE_BEHIND_AFTER / 2):
                    self._demand.overestimated_behind(pool)
                self._break_off(self._trains.fetched_before(now - _STALE_BEHIND_AFTER))
            if self._enforces_timeouts and overdue_at <= now:
                self._stop_overdue(now)
            await asyncio.sleep(_TURN_EVERY)

    def _stop_overdue(self, now: float) -> None:
        """Cancel what is overdue; what does not let itself be cancelled is written off.

        Whoever is alone in a process is killed with it.
        """
        for run in [run for run in self._running.values() if run.place is not Place.PROCESS]:
            late = now - run.started_at - run.plan.hard
            if late >= 0 and run.stop is None:
                run.overrun()
            elif late >= _LAST_WORDS:
                self._executor.write_off(run, guilt.hard_timeout(now - run.started_at, run.plan.hard))
                log.error(
                    "%s %s does not stop: its slot is written off, and it may go on for as long as this process",
                    run.job.task,
                    run.job.id,
                )


def _asked_for(ids: Container[UUID]) -> Callable[[ClaimedJob], bool]:
    return lambda job: job.id in ids


async def finish(station: Station, grace: float) -> None:
    """Let what runs come to its end; after the grace period, stop it. What does not stop even then is left."""
    station.quiet()
    # Not asyncio.timeout: in a task that was cancelled, that of Python 3.11.2 passes its own cancellation on.
    draining = asyncio.create_task(station.drain())
    telling = asyncio.create_task(_tell_quiet_if_it_takes_long(station))
    try:
        for patience in (grace, _LAST_WORDS):
            is_done, _ = await asyncio.wait([draining], timeout=patience)
            if is_done:
                draining.result()
                return
            station.interrupt()
    finally:
        draining.cancel()
        telling.cancel()


async def _tell_quiet_if_it_takes_long(station: Station) -> None:
    await asyncio.sleep(_TELL_QUIET_AFTER)
    await station.tell_quiet()


def _tell(run: Run, outcome: Outcome, transition: Transition) -> None:
    """One line for everything that did not go well. What did is told in `_finish`, if anybody wants to know."""
    job = run.job
    match outcome:
        case Raised(verdict, failure):
            what = f"{failure.error_type}: {failure.message.partition(chr(10))[0][:300]}"
            match transition:
                case lifecycle.Bury():
                    log.error("%s %s is dead after attempt %d: %s", job.task, job.id, job.attempt, what)
                case lifecycle.GiveBack(delay=delay, is_charged=True):
                    left = job.max_attempts - job.attempt
                    log.warning(
                        "%s %s failed, again in %.1f s, %d left: %s",
                        job.task,
                        job.id,
                        delay.total_seconds(),
                        left,
                        what,
                    )
                case lifecycle.GiveBack(delay=delay):
                    log.info("%s %s waits %.1f s (%s): %s", job.task, job.id, delay.total_seconds(), verdict, what)
                case _:
                    log.info("%s %s: %s", job.task, job.id, what)
        case Withdrawn():
            log.info("%s %s was cancelled", job.task, job.id)
        case Interrupted(has_started=True):
            log.info("%s %s was stopped and given back", job.task, job.id)
        case Interrupted():
            log.info("%s %s was given back before it began", job.task, job.id)
        case Unstarted(failure):
            what = failure.message.partition("\n")[0][:300]
            match transition:
                case lifecycle.GiveBack(delay=delay):
                    log.warning(
                        "%s %s was not started, again in %g s: %s", job.task, job.id, delay.total_seconds(), what
                    )
                case _:
                    log.error("%s %s is dead, and was never started: %s", job.task, job.id, what)
        case Crashed(failure):
            log.error("%s %s: %s", job.task, job.id, failure.message)
        case Completed():
            pass
