"""Slots: never more jobs of a queue at once than were asked for, and all of them are used."""

from __future__ import annotations

from uuid import UUID

from tests.worker.history import Event
from tests.worker.program import Client, Program


def most_at_once(events: list[Event], ids: set[UUID]) -> int:
    """How many of these jobs ever ran at the same time."""
    running = most = 0
    for event in sorted(events, key=lambda event: event.at):
        if event.job in ids and event.what in ("start", "end"):
            running += 1 if event.what == "start" else -1
            most = max(most, running)
    return most


def test_queues_have_slots_of_their_own(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1", "--queue", "high=2", "--queue", "low=1"):
        jobs = {
            queue: [client.enqueue("sleep", {"queue": queue}, seconds=0.1) for _ in range(8)]
            for queue in ("high", "low")
        }
        other = client.enqueue("quick", {"queue": "other"})
        for each in (*jobs["high"], *jobs["low"]):
            each.result("60s")
        events = client.history.read()
        assert most_at_once(events, {job.id for job in jobs["high"]}) == 2
        assert most_at_once(events, {job.id for job in jobs["low"]}) == 1
        assert most_at_once(events, {job.id for queue in jobs.values() for job in queue}) == 3
        assert client.record(other).runs == 0, "this queue was not named"


def test_no_more_jobs_run_at_once_than_there_are_slots(client: Client) -> None:
    with Program(client.url, client.history, "-p", "2", "-c", "2"):
        client.working(2)
        jobs = [
            client.enqueue(task, seconds=0.1) for _ in range(6) for task in ("sleep", "thread_sleep", "alone_sleep")
        ]
        for job in jobs:
            job.result("60s")
        assert 2 <= most_at_once(client.history.read(), {job.id for job in jobs}) <= 4
        assert len({job.record().worker for job in jobs}) == 2, "both processes work"


def test_a_slot_for_two_queues_serves_both(client: Client) -> None:
    """Also while one of them always has work."""
    busy = [client.enqueue("sleep", {"queue": "busy"}, seconds=0.02) for _ in range(60)]
    calm = [client.enqueue("sleep", {"queue": "calm"}, seconds=0.02) for _ in range(3)]
    with Program(client.url, client.history, "-p", "1", "-c", "1", "--queue", "busy", "--queue", "calm"):
        for job in (*busy, *calm):
            job.result("60s")
    order = [event.job for event in client.history.read("start")]
    assert max(order.index(job.id) for job in calm) < 30
