"""Several processes on one file."""

# ruff: noqa: ASYNC240  # a test blocks nobody but itself

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.crash.audit import check_counters, keys_in, look, opened
from tests.crash.nursery import Nursery
from tests.crash.rounds import rounds

_PROCESSES = 4
_JOBS_EACH = 150


async def test_four_busy_processes_complete_every_job_exactly_once(nursery: Nursery, path: Path) -> None:
    for _ in range(rounds(1)):
        path.unlink(missing_ok=True)
        total = _PROCESSES * _JOBS_EACH
        with ExitStack() as stack:
            actors = [
                stack.enter_context(nursery.start("mingle", path=path, mine=_JOBS_EACH, total=total))
                for _ in range(_PROCESSES)
            ]
            for actor in actors:
                actor.hear("ready")
            for actor in actors:
                actor.say("go")
            answers = [actor.hear("finished") for actor in actors]
        enqueued = [key for answer in answers for key in answer["enqueued"]]
        completed = [key for answer in answers for key in answer["completed"]]
        assert len(completed) == len(set(completed)) == total
        assert set(completed) == set(enqueued)
        assert look(path, "select stage, attempt, runs, count(*) from holdfast_jobs group by 1, 2, 3") == [
            (4, 1, 1, total)
        ]
        async with opened(path) as store:
            await check_counters(store)


async def test_eight_processes_that_open_a_new_file_at_once_share_one_database(
    nursery: Nursery, tmp_path: Path
) -> None:
    for number in range(rounds(4)):
        path = tmp_path / f"{number}.db"
        with ExitStack() as stack:
            actors = [stack.enter_context(nursery.start("open_together", path=path)) for _ in range(8)]
            for actor in actors:
                actor.hear("ready")
            for actor in actors:
                actor.say("go")
            answers = [actor.hear("opened") for actor in actors]
        assert sorted(keys_in(path)) == sorted(answer["key"] for answer in answers)
        assert look(path, "select count(*) from holdfast_migrations where number = 1") == [(1,)]
