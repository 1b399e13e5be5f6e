"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The full run takes minutes and is what counts; the quick one shows in a minute that nothing broke."""

    rounds: int = 3
    single_jobs: int = 1_000
    crowd_jobs: int = 50_000
    bulk_jobs: int = 200_000
    drain_jobs: int = 100_000
    backlog_jobs: int = 1_000_000
    backlog_claims: int = 1_000
    contention_seconds: float = 10.0
    contention_jobs: int = 200_000
    busy_jobs: int = 20_000


FULL = Sizes()
QUICK = Sizes(
    single_jobs=100,
    crowd_jobs=5_000,
    bulk_jobs=20_000,
    drain_jobs=10_000,
    backlog_jobs=100_000,
    backlog_claims=100,
    contention_seconds=1.0,
    contention_jobs=20_000,
    busy_jobs=3_000,
)
