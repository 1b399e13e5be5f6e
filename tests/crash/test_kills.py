"""G1 and G5 under SIGKILL at any moment."""

# ruff: noqa: ASYNC251  # a test blocks nobody but itself

from __future__ import annotations

import random
import time
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.job import JobState
from holdfast.lifecycle import Complete
from holdfast.store import Filter, NewWorker, Settled, Settlement
from holdfast.stores.sqlite import SqliteStore
from tests.crash.audit import QUEUE, audit, check_counters, look, new_job, opened
from tests.crash.journal import Entries
from tests.crash.nursery import Nursery
from tests.crash.rounds import EPISODES
from tests.crash.working import facts_of

_JOBS = 60
_FINAL = frozenset({JobState.COMPLETED, JobState.CANCELLED, JobState.DEAD})


@EPISODES
@pytest.mark.parametrize("kind", ["one", "crowd", "bulk", "app", "app bulk"])
async def test_every_acknowledged_job_survives_a_kill_at_any_moment(
    nursery: Nursery, path: Path, journal: Path, kind: str, episode: int
) -> None:
    chance = random.Random(f"kill {kind} {episode}")
    for number in range(8):
        with nursery.start("produce", path=path, journal=journal, kind=kind) as producer:
            producer.hear("ready")
            if number % 2:
                producer.hear("acked")
            time.sleep(chance.uniform(0, 0.08))  # the moment of the kill
            producer.kill()
        await audit(path, journal)
    assert Entries(journal).acked


@EPISODES
async def test_kills_of_several_producers_on_one_file_lose_nothing(
    nursery: Nursery, path: Path, journal: Path, episode: int
) -> None:
    chance = random.Random(f"kill several {episode}")
    for _ in range(3):
        kinds = ("one", "crowd", "bulk")
        producers = [nursery.start("produce", path=path, journal=journal, kind=kind) for kind in kinds]
        for producer in producers:
            producer.hear("ready")
            producer.hear("acked")
        for producer in producers:
            with producer:
                time.sleep(chance.uniform(0, 0.05))  # the moment of the kill
                producer.kill()
        await audit(path, journal)


@EPISODES
async def test_every_acknowledged_settlement_survives_a_kill_at_any_moment(
    nursery: Nursery, path: Path, journal: Path, episode: int
) -> None:
    chance = random.Random(f"kill worker {episode}")
    async with opened(path) as store:
        for number in range(10):
            await store.enqueue([new_job() for _ in range(_JOBS)])
            worker = uuid4()
            with nursery.start("work", path=path, journal=journal, worker=worker, seed=f"{episode} {number}") as actor:
                actor.hear("ready")
                if number % 2:
                    actor.hear("acked")
                time.sleep(chance.uniform(0, 0.08))  # the moment of the kill
                actor.kill()
            _check_settled(path, Entries(journal))
            await check_counters(store)
            (sighting,) = [each for each in await store.sightings() if each.worker == worker]
            await store.rescue({worker: sighting.beat})
            await _check_former_claims_are_refused(store, Entries(journal))
            await _finish_everything(store)
            await check_counters(store)
            assert look(path, "pragma integrity_check") == [("ok",)]
    assert Entries(journal).acked


def _check_settled(path: Path, entries: Entries) -> None:
    """An acknowledged end is the job's end, there is one at most, and no job has an end that nobody meant."""
    rows = look(path, "select hex(id), stage, result from holdfast_jobs")
    stages = {id.lower(): (stage, result) for id, stage, result in rows}
    ends = [facts_of(text) for text in entries.acked if not text.endswith(":GiveBack")]
    assert len({id for id, _, _ in ends}) == len(ends), "a job has ended twice"
    for id, token, kind in ends:
        expected = (4, f'"{token.hex}"') if kind == "Complete" else (6, None)
        assert stages[id.hex] == expected
    meant = {(facts[0].hex, facts[1].hex) for facts in map(facts_of, entries.intended) if facts[2] == "Complete"}
    for id, (stage, result) in stages.items():
        if stage == 4 and result is not None:
            assert (id, result.strip('"')) in meant


async def _check_former_claims_are_refused(store: SqliteStore, entries: Entries) -> None:
    for text in entries.intended - set(entries.acked):
        id, token, _ = facts_of(text)
        before = await store.get([id])
        (answer,) = await store.settle([Settlement(id, token, Complete('"too late"'))])
        assert answer is not Settled.APPLIED
        assert await store.get([id]) == before


async def _finish_everything(store: SqliteStore) -> None:
    worker = uuid4()
    await store.register(NewWorker(worker, "finish"))
    while claimed := await store.claim(worker, token := uuid4(), {QUEUE: 100}):
        answers = await store.settle([Settlement(job.id, token, Complete()) for job in claimed])
        assert answers == [Settled.APPLIED] * len(claimed)
    await store.depart(worker)
    assert await store.count(Filter(queue=QUEUE)) == await store.count(Filter(queue=QUEUE, states=_FINAL))
