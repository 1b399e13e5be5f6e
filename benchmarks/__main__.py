"""Run the measurements, print one table, keep the figures as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import (
    backlog,
    bulk,
    busy,
    churn,
    concurrency,
    contention,
    crowd,
    drain,
    single,
    snapshot,
    statements,
    traffic,
    working,
)
from benchmarks.disk import file_system, is_real_disk
from benchmarks.machine import describe
from benchmarks.site import Host
from benchmarks.sites.postgres import PostgresHost
from benchmarks.sites.sqlite import SqliteHost
from benchmarks.sizes import FULL, QUICK, Sizes
from benchmarks.table import Findings, render

STORES = ("sqlite", "postgres")


@dataclass(frozen=True)
class Measurement:
    measure: Callable[[Sizes, Sequence[Host]], Findings]
    stores: tuple[str, ...] = STORES


MEASUREMENTS = {
    "single": Measurement(single.measure),
    "crowd": Measurement(crowd.measure),
    "bulk": Measurement(bulk.measure),
    "drain": Measurement(drain.measure),
    "backlog": Measurement(backlog.measure),
    "contention": Measurement(contention.measure),
    "concurrency": Measurement(concurrency.measure),
    "churn": Measurement(churn.measure),
    "snapshot": Measurement(snapshot.measure, ("postgres",)),
    "statements": Measurement(statements.measure, ("postgres",)),
    "busy": Measurement(busy.measure),
    "working": Measurement(working.measure),
    "traffic": Measurement(traffic.measure),
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
    if given.minutes is not None:
        sizes = replace(sizes, churn_seconds=given.minutes * 60)
    found = Findings()
    started = time.monotonic()
    with _hosts(given.store, folder) as hosts:
        machine = describe(folder, hosts)
        _print_machine(machine)
        failed = [name for name in given.only or MEASUREMENTS if not _measure(name, sizes, hosts, found)]
    print(f"\n{render(found.rows)}\n")
    print("Medians of the rounds; spread is highest minus lowest, of the median; ours/limit is compared within rounds.")
    if found.notes:
        print("\n" + "\n".join(found.notes))
    path = _write(machine, sizes, found)
    print(f"\n{time.monotonic() - started:.0f} s, written to {path}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ours beside the limit, in one run.")
    parser.add_argument(
        "only",
        nargs="*",
        choices=[[], *MEASUREMENTS],
        metavar="measurement",
        help=f"some of: {', '.join(MEASUREMENTS)}",
    )
    parser.add_argument("--quick", action="store_true", help="everything in a minute or two, with smaller numbers")
    parser.add_argument("--store", choices=[*STORES, "both"], default="both")
    parser.add_argument("--minutes", type=float, help="how long churn takes")
    parser.add_argument("--folder", type=Path, default=_USUAL_FOLDER, help="where the databases are made: a real disk")
    return parser


@contextmanager
def _hosts(store: str, folder: Path) -> Iterator[list[Host]]:
    sqlite: list[Host] = [SqliteHost(folder)] if store != "postgres" else []
    if store == "sqlite":
        yield sqlite
        return
    with PostgresHost(folder) as postgres:
        yield [*sqlite, postgres]


def _measure(name: str, sizes: Sizes, hosts: Sequence[Host], found: Findings) -> bool:
    """Add what was found. What fails is shown, and takes nothing away from the others."""
    measurement = MEASUREMENTS[name]
    concerned = [host for host in hosts if host.name in measurement.stores]
    if not concerned:
        return True
    print(f"{name} … ", end="", file=sys.stderr, flush=True)
    started = time.monotonic()
    try:
        new = measurement.measure(sizes, concerned)
    except Exception:
        traceback.print_exc()
        return False
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    found.rows.extend(new.rows)
    found.notes.extend(new.notes)
    return True


def _print_machine(machine: dict[str, Any]) -> None:
    print(f"{machine['python']}, {machine['loop']}, {machine['cores']} cores, {machine['processor']}")
    print(f"{machine['folder']} on {machine['file_system'] or 'an unknown file system'}; load {machine['load']:.1f}")
    for name, store in machine["stores"].items():
        settings = ", ".join(f"{setting}={value}" for setting, value in store["settings"].items())
        print(f"{name} {store['version']}; {store['durability']}")
        print(f"    {settings}", flush=True)


def _write(machine: dict[str, Any], sizes: Sizes, found: Findings) -> Path:
    now = datetime.now(UTC)
    _RESULTS.mkdir(exist_ok=True)
    path = _RESULTS / f"{now:%Y%m%d-%H%M%S}.json"
    rows = [
        {
            "measurement": row.measurement,
            "store": row.store,
            "figure": row.figure,
            "ours": row.ours.values,
            "limit": row.limit.values if row.limit else None,
            "ratio": row.ratio.median if row.ratio else None,
            "goal": row.goal,
            "is_met": row.is_met,
        }
        for row in found.rows
    ]
    record = {"at": now.isoformat(), "machine": machine, "sizes": asdict(sizes), "rows": rows, "notes": found.notes}
    path.write_text(json.dumps(record, indent=2))
    return path


if __name__ == "__main__":
    sys.exit(main())
