"""Plain jobs now, beside an earlier revision: what they pay for features that they don't use.

    python -m benchmarks.before REVISION [--store sqlite] [--rounds 5] [--jobs 50000] [--batch 200]

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
from contextlib import ExitStack
from pathlib import Path
from benchmarks.drain import ours
from benchmarks.loop import run
folder, store, jobs, batch = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with ExitStack() as stack:
    if store == "sqlite":
        from benchmarks.sites.sqlite import SqliteHost
        host = SqliteHost(folder)
    else:
        from benchmarks.sites.postgres import PostgresHost
        host = stack.enter_context(PostgresHost(folder))
    print(json.dumps(run(ours(stack.enter_context(host.fresh()), jobs, batch))))
"""
_STORES = ("sqlite", "postgres")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before", description="Now, beside an earlier revision.")
    parser.add_argument("revision")
    parser.add_argument("--store", choices=_STORES, help="one of them; both by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"))
    given = parser.parse_args()
    found: list[Row] = []
    with _checked_out(given.revision) as earlier:
        for store in [given.store] if given.store else _STORES:
            found += _compare(earlier, store, given)
    print(render(found))


def _compare(earlier: Path, store: str, given: argparse.Namespace) -> list[Row]:
    trees = {"now": _PROJECT, "before": earlier}
    samples: dict[str, list[Sample]] = {name: [] for name in trees}
    for number in range(given.rounds):
        for name in trees if number % 2 == 0 else reversed(trees):
            samples[name].append(_sample(trees[name], given.folder, store, given.jobs, given.batch))
    figures = {
        name: {figure: Figure([sample[figure] for sample in taken]) for figure in taken[0]}
        for name, taken in samples.items()
    }
    title = f"plain claim + settle, {given.batch:,} at a time, beside {given.revision}"
    rate, *costs = (
        Row(title, store, figure, figures["now"][figure], figures["before"][figure]) for figure in figures["now"]
    )
    assert rate.ratio is not None
    return [rate.with_goal(f">= {_GOAL:.0%} of before", rate.ratio.median >= _GOAL), *costs]


@contextmanager
def _checked_out(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="holdfast-before-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), revision], cwd=_PROJECT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=_PROJECT, check=True)


def _sample(tree: Path, folder: Path, store: str, jobs: int, batch: int) -> Sample:
    done = subprocess.run(
        [sys.executable, "-c", _SAMPLE, str(folder), store, str(jobs), str(batch)],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"},
        stdout=subprocess.PIPE,
        check=True,
    )
    sample: Sample = json.loads(done.stdout)
    return sample


if __name__ == "__main__":
    main()
