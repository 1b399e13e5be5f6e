"""Plain jobs now, beside an earlier revision: what they pay for features that they don't use.

    python -m benchmarks.before REVISION [--rounds 5] [--jobs 50000] [--batch 200]

Each sample is taken in a process of its own, which has the code and the benchmarks of its revision; they take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.site import Sample
from benchmarks.table import Row, render

_PROJECT = Path(__file__).parents[1]
_GOAL = 0.97
_SAMPLE = """
import json, sys
from pathlib import Path
from benchmarks.drain import ours
from benchmarks.loop import run
from benchmarks.sites.sqlite import SqliteHost
with SqliteHost(Path(sys.argv[1])).fresh() as site:
    print(json.dumps(run(ours(site, int(sys.argv[2]), int(sys.argv[3])))))
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before", description="Now, beside an earlier revision.")
    parser.add_argument("revision")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"))
    given = parser.parse_args()
    with _checked_out(given.revision) as earlier:
        trees = {"now": _PROJECT, "before": earlier}
        samples: dict[str, list[Sample]] = {name: [] for name in trees}
        for number in range(given.rounds):
            for name in trees if number % 2 == 0 else reversed(trees):
                samples[name].append(_sample(trees[name], given.folder, given.jobs, given.batch))
    figures = {
        name: {figure: Figure([sample[figure] for sample in taken]) for figure in taken[0]}
        for name, taken in samples.items()
    }
    title = f"plain claim + settle, {given.batch:,} at a time, beside {given.revision}"
    rate, cost = (
        Row(title, "sqlite", figure, figures["now"][figure], figures["before"][figure])
        for figure in ("jobs/s", "cpu us/job")
    )
    assert rate.ratio is not None
    print(render([rate.with_goal(f">= {_GOAL:.0%} of before", rate.ratio.median >= _GOAL), cost]))


@contextmanager
def _checked_out(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="holdfast-before-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), revision], cwd=_PROJECT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=_PROJECT, check=True)


def _sample(tree: Path, folder: Path, jobs: int, batch: int) -> Sample:
    done = subprocess.run(
        [sys.executable, "-c", _SAMPLE, str(folder), str(jobs), str(batch)],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"},
        stdout=subprocess.PIPE,
        check=True,
    )
    sample: Sample = json.loads(done.stdout)
    return sample


if __name__ == "__main__":
    main()
