"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The full run is what counts; the quick one shows in a minute or two that nothing broke."""

    rounds: int = 3
    process_rounds: int = 3
    """Of what starts processes, which takes seconds each time."""
    single_jobs: int = 1_000
    crowd_jobs: int = 50_000
    bulk_jobs: int = 200_000
    drain_jobs: int = 100_000
    backlogs: tuple[int, ...] = (1_000_000, 10_000_000)
    backlog_finished: int = 1_000_000
    backlog_claims: int = 1_000
    contention_seconds: float = 10.0
    contention_jobs: int = 200_000
    concurrency_seconds: float = 10.0
    churn_seconds: float = 45.0
    snapshot_jobs: int = 200_000
    statement_jobs: int = 10_000
    busy_jobs: int = 20_000
    worker_jobs: int = 200_000
    traffic_jobs: int = 50_000
    throttled_jobs: int = 1_000_000


FULL = Sizes()
QUICK = Sizes(
    process_rounds=1,
    single_jobs=100,
    crowd_jobs=5_000,
    bulk_jobs=20_000,
    drain_jobs=10_000,
    backlogs=(100_000,),
    backlog_finished=100_000,
    backlog_claims=100,
    contention_seconds=1.0,
    contention_jobs=20_000,
    concurrency_seconds=2.0,
    churn_seconds=6.0,
    snapshot_jobs=20_000,
    statement_jobs=1_000,
    busy_jobs=1_000,
    worker_jobs=20_000,
    traffic_jobs=5_000,
    throttled_jobs=100_000,
)
