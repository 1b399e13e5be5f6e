"""Progress: the last word of the last run, for people to look at."""

from __future__ import annotations

from uuid import uuid4

from holdfast.job import ClaimedJob
from holdfast.lifecycle import Bury, Complete, GiveBack
from holdfast.store import LONGEST_NOTE, Progress, ProgressReport
from holdfast.testing.store_contract.harness import FAILURE, SECOND, Harness


def report(job: ClaimedJob, done: float, total: float | None = None, note: str = "") -> ProgressReport:
    return ProgressReport(job.id, job.token, done, total, note)


class ProgressContract:
    async def test_the_last_report_is_shown(self, harness: Harness) -> None:
        one, other, silent = [await harness.start() for _ in range(3)]
        await harness.store.report_progress([report(one, 1, 10, "scaling"), report(other, 0.1 + 0.2)])
        first = harness.clock.now()
        harness.clock.advance(5)
        await harness.store.report_progress([report(one, 2.5, 10.25, "sc\u00e4ling \U0001f642")])
        for store in harness.pair():
            assert await store.progress([one.id, other.id, silent.id, uuid4()]) == {
                one.id: Progress(2.5, 10.25, "sc\u00e4ling \U0001f642", harness.clock.now()),
                other.id: Progress(0.1 + 0.2, None, "", first),
            }

    async def test_of_several_reports_of_a_job_the_last_one_counts(self, harness: Harness) -> None:
        job = await harness.start()
        stale = ProgressReport(job.id, uuid4(), 9)
        await harness.store.report_progress([stale, report(job, 1), report(job, 3), report(job, 2), stale])
        assert (await harness.store.progress([job.id]))[job.id].done == 2

    async def test_nothing_is_asked_and_nothing_reported(self, harness: Harness) -> None:
        await harness.store.report_progress([])
        assert await harness.store.progress([]) == {}

    async def test_many_jobs_can_report_at_once(self, harness: Harness) -> None:
        await harness.enqueue_many(1_500)
        jobs = await harness.claim(demand=1_500)
        await harness.store.report_progress([report(job, number) for number, job in enumerate(jobs)])
        found = await harness.store.progress([job.id for job in jobs])
        assert [found[job.id].done for job in jobs] == list(range(1_500))

    async def test_a_note_is_kept_whatever_is_in_it(self, harness: Harness) -> None:
        job = await harness.start()
        await harness.store.report_progress([report(job, 1, note="a\0b\ud800c" + "d" * 1_000)])
        note = (await harness.store.progress([job.id]))[job.id].note
        assert (note[0], note[2], note[4], len(note)) == ("a", "b", "c", LONGEST_NOTE)

    async def test_a_report_changes_nothing_about_the_job(self, harness: Harness) -> None:
        job = await harness.start()
        before = await harness.snapshot([job.id])
        await harness.store.report_progress([report(job, 1, 2, "three")])
        assert await harness.snapshot([job.id]) == before

    async def test_a_report_under_a_token_that_is_not_the_job_s_is_dropped(self, harness: Harness) -> None:
        zombie, heir = await harness.worker(), await harness.worker()
        stale = await harness.start(zombie)
        await harness.store.report_progress([ProgressReport(stale.id, uuid4(), 1), ProgressReport(uuid4(), uuid4(), 1)])
        assert await harness.store.progress([stale.id]) == {}
        await harness.store.bury_worker(zombie)
        await harness.store.report_progress([report(stale, 2)])
        assert await harness.store.progress([stale.id]) == {}
        [current] = await harness.claim(heir, queue=stale.queue)
        await harness.store.report_progress([report(current, 3), report(stale, 4)])
        assert (await harness.store.progress([stale.id]))[stale.id].done == 3
        await harness.store.report_progress([report(stale, 5)])
        assert (await harness.store.progress([stale.id]))[stale.id].done == 3

    async def test_the_last_report_can_be_read_after_the_end(self, harness: Harness) -> None:
        completed, buried = await harness.start(), await harness.start()
        lost = await harness.start(worker := await harness.worker())
        await harness.store.report_progress([report(job, 7, 10) for job in (completed, buried, lost)])
        await harness.settle(completed, Complete())
        await harness.settle(buried, Bury(FAILURE))
        await harness.store.bury_worker(worker)
        for job in (completed, buried, lost):
            assert (await harness.store.progress([job.id]))[job.id].done == 7

    async def test_a_report_that_comes_after_its_job_has_been_settled_still_counts(self, harness: Harness) -> None:
        job = await harness.start()
        await harness.store.report_progress([report(job, 9, 10)])
        await harness.settle(job, Complete())
        await harness.store.report_progress([report(job, 10, 10)])
        assert (await harness.store.progress([job.id]))[job.id].done == 10

    async def test_a_new_run_starts_anew(self, harness: Harness) -> None:
        worker = await harness.worker()
        first = await harness.start(worker)
        await harness.store.report_progress([report(first, 7, 10)])
        await harness.settle(first, GiveBack())
        [second] = await harness.claim(worker, queue=first.queue)
        assert await harness.store.progress([first.id]) == {}
        await harness.store.report_progress([report(second, 1, 10)])
        assert (await harness.store.progress([first.id]))[first.id].done == 1
        await harness.settle(second, Bury(FAILURE))
        await harness.store.retry([first.id])
        assert len(await harness.claim(worker, queue=first.queue)) == 1
        assert await harness.store.progress([first.id]) == {}

    async def test_it_goes_with_its_job(self, harness: Harness) -> None:
        completed, dead = await harness.start(), await harness.start()
        await harness.store.report_progress([report(completed, 1), report(dead, 1)])
        await harness.settle(completed, Complete())
        await harness.settle(dead, Bury(FAILURE))
        harness.clock.advance(harness.retention.completed + SECOND)
        assert (await harness.store.prune()).jobs == 1
        assert (await harness.store.discard([dead.id]))[dead.id].is_done
        assert await harness.store.progress([completed.id, dead.id]) == {}
        # A job with the same id has never run, and must not be taken for the one that has.
        await harness.store.enqueue([harness.new(id=completed.id, queue=completed.queue, is_repeat=True)])
        assert await harness.store.progress([completed.id]) == {}
        [again] = await harness.claim(queue=completed.queue)
        assert (again.id, again.runs) == (completed.id, 1)
        assert await harness.store.progress([completed.id]) == {}
