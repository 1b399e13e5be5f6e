"""Four processes on one database: two drain, one enqueues in bulk, one enqueues a single row every few milliseconds.

How long the single row waits is what matters. The limit's processes have the database's own waiting and nothing else,
which shows for SQLite what taking turns is for.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import contender
from benchmarks.contender import Role
from benchmarks.figures import percentiles
from benchmarks.loop import run
from benchmarks.processes import reports_of_all
from benchmarks.rounds import Side, alternate
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.table import Findings, rows

_ROLES = (Role.DRAIN, Role.DRAIN, Role.BULK, Role.SINGLE)
_GOAL = 100.0


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    sides: dict[str, Side] = {
        "ours": lambda site: _run(site, sizes, is_limit=False),
        "limit": lambda site: _run(site, sizes, is_limit=True),
    }
    found = Findings()
    for store, figures in alternate(hosts, sides, sizes.process_rounds).items():
        p50, p99, longest = rows("single row among 4 processes", store, figures, ("p50 ms", "p99 ms", "max ms"))
        worst = max(longest.ours.values)
        found.rows.extend([p50, p99, longest.with_goal(f"< {_GOAL:.0f} ms, worst {worst:.0f}", worst < _GOAL)])
        found.rows.extend(rows("4 processes together", store, figures, ("drained/s", "enqueued/s")))
    return found


def _run(site: Site, sizes: Sizes, *, is_limit: bool) -> Sample:
    run(site.fill(ready=sizes.contention_jobs))
    seconds = sizes.contention_seconds
    reports = reports_of_all(contender.work, [(role, site, seconds, is_limit) for role in _ROLES], seconds)
    drained = sum(report.jobs for report in reports if report.role is Role.DRAIN)
    enqueued = sum(report.jobs for report in reports if report.role is not Role.DRAIN)
    waits = [wait for report in reports if report.role is Role.SINGLE for wait in report.waits]
    return percentiles(waits) | {"drained/s": drained / seconds, "enqueued/s": enqueued / seconds}
