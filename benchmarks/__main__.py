"""Run the measurements, print one table, keep the figures as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import backlog, bulk, busy, contention, crowd, drain, single
from benchmarks.database import file_system, is_real_disk
from benchmarks.machine import describe
from benchmarks.rounds import Stopwatch
from benchmarks.sizes import FULL, QUICK, Sizes
from benchmarks.table import Row, render

MEASUREMENTS: dict[str, Callable[[Sizes, Path], list[Row]]] = {
    "single": single.measure,
    "crowd": crowd.measure,
    "bulk": bulk.measure,
    "drain": drain.measure,
    "backlog": backlog.measure,
    "contention": contention.measure,
    "busy": busy.measure,
}
_RESULTS = Path(__file__).parent / "results"
_USUAL_FOLDER = Path("/var/tmp") if Path("/var/tmp").is_dir() else Path.cwd()


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    folder: Path = given.folder
    if not is_real_disk(folder):
        print(f"{folder} is on {file_system(folder)}, which is no disk. Choose another one with --folder.")
        return 2
    sizes = QUICK if given.quick else FULL
    machine = describe(folder)
    _print_machine(machine)
    table: list[Row] = []
    started = time.monotonic()
    for name in given.only or MEASUREMENTS:
        print(f"{name} … ", end="", file=sys.stderr, flush=True)
        with Stopwatch() as watch:
            table += MEASUREMENTS[name](sizes, folder)
        print(f"{watch.seconds:.0f} s", file=sys.stderr, flush=True)
    print(f"\n{render(table)}\n")
    print("Medians of the rounds; spread is highest minus lowest, of the median; ours/limit is compared within rounds.")
    path = _write(machine, sizes, table)
    print(f"{time.monotonic() - started:.0f} s, written to {path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ours beside the limit, in one run.")
    parser.add_argument("only", nargs="*", metavar="measurement", help=f"some of: {', '.join(MEASUREMENTS)}")
    parser.add_argument("--quick", action="store_true", help="everything in less than a minute, with smaller numbers")
    parser.add_argument("--folder", type=Path, default=_USUAL_FOLDER, help="where the databases are made: a real disk")
    return parser


def _print_machine(machine: dict[str, Any]) -> None:
    pragmas = ", ".join(f"{name}={value}" for name, value in machine["pragmas"].items())
    print(f"{machine['python']}, SQLite {machine['sqlite']}, {machine['cores']} cores, {machine['processor']}")
    print(f"{machine['folder']} on {machine['file_system'] or 'an unknown file system'}; {machine['durability']}")
    print(f"{pragmas}; load {machine['load']:.1f}", flush=True)


def _write(machine: dict[str, Any], sizes: Sizes, table: Sequence[Row]) -> Path:
    now = datetime.now(UTC)
    _RESULTS.mkdir(exist_ok=True)
    path = _RESULTS / f"{now:%Y%m%d-%H%M%S}.json"
    rows = [
        {
            "measurement": row.measurement,
            "figure": row.figure,
            "ours": row.ours.values,
            "limit": row.limit.values if row.limit else None,
            "ratio": row.ratio.median if row.ratio else None,
            "goal": row.goal,
            "is_met": row.is_met,
        }
        for row in table
    ]
    record = {"at": now.isoformat(), "machine": machine, "sizes": asdict(sizes), "rows": rows}
    path.write_text(json.dumps(record, indent=2))
    return path


if __name__ == "__main__":
    sys.exit(main())
