"""Killing real workers, and what must be true afterwards."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from holdfast import Job
from tests.crash.checker import PROMISED, Fate, Findings, check
from tests.crash.tally import keep
from tests.crash.traffic_checker import Bounds
from tests.worker.history import KILL
from tests.worker.program import PATIENCE, Client, descendants_of, until

SLACK = 4.0
"""Seconds more than is promised: for a machine on which all tests run at once. The tally of the long form has none."""


def kill(client: Client, fate: Fate, *pids: int) -> None:
    """SIGKILL them. Written down for the checker with all that dies with them: first, while nothing has recovered.

    And when they stand still: what began after the note, in a process that is about to die, would never end.
    """
    family = {*pids, *(each for pid in pids for each in descendants_of(pid))}
    for each in family:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGSTOP)
    until(lambda: all(_stands_still(each) for each in family), "processes that stand still")
    for each in family:
        client.history.write(KILL, pid=each, note=fate)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # By then the kernel has killed those that die with them. Before, they would go on for some milliseconds.
    until(lambda: all(_state_of(pid) in "ZX" for pid in pids), "processes that have died")
    for each in family:  # one that was just starting has yet to see that its parent is gone
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGCONT)


def _stands_still(pid: int) -> bool:
    return _state_of(pid) in "TtZX"


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def findings_of(
    client: Client, jobs: Sequence[Job[Any]], bounds: Mapping[UUID, Bounds] | None = None, lateness: float = 0.0
) -> Findings:
    """Wait until all have come to their end, and check."""
    records = client.ends_of(jobs, 2 * PATIENCE)
    findings = check([job.id for job in jobs], records, client.history.read(), bounds, lateness)
    keep(client.url, findings)
    sys.stderr.write(f"{findings}\n")
    return findings


def check_promises(findings: Findings, *fates: Fate) -> None:
    """None is broken, and what suffered these fates has recovered in time."""
    assert findings.broken == {}
    assert set(findings.recovery) >= set(fates)
    late = {fate: longest for fate, longest in findings.late.items() if longest > PROMISED[fate] + SLACK}
    assert late == {}, findings
