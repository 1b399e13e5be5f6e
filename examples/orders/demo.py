"""`make demo`: a shop takes orders, is killed with -9 in the middle again and again, and nothing is lost.

Everything happens in one SQLite file in a temporary folder; nothing else is installed or started. At the end the orders
are compared with their jobs, and the exit status tells whether a single one is missing, doubled, or without its order.
"""

import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from shop import JOBS_PER_ORDER, open_shop

KILLS = 8


@dataclass
class Findings:
    """What is in the file, beside what customers were told."""

    told: int
    orders: int
    jobs: int
    lost: int
    doubled: int
    orphaned: int

    @property
    def is_good(self) -> bool:
        return self.lost == self.doubled == self.orphaned == 0 and self.told > 0


def main(kills: int = KILLS) -> int:
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        path = str(Path(folder) / "shop.db")
        print("A shop takes orders. Each order and its three jobs are one transaction, on disk when it returns.\n")
        told: list[int] = []
        started = time.perf_counter()
        for number in range(1, kills + 1):
            fresh = run_and_kill(path, seconds=random.uniform(0.3, 0.9))
            told += fresh
            print(f"  kill -9, number {number}: {len(fresh):>5,} orders taken since the last one")
        findings = audit(path, told)
        report(findings, time.perf_counter() - started)
    return 0 if findings.is_good else 1


def run_and_kill(path: str, seconds: float) -> list[int]:
    """Let the shop work for a while after its first order, and kill it. Returns the orders that it acknowledged."""
    shop = [sys.executable, str(Path(__file__).with_name("shop.py")), path]
    with subprocess.Popen(shop, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
    # The last line may have been cut in the middle.
    return [int(line) for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]


def audit(path: str, told: list[int]) -> Findings:
    """Compare what customers were told with the orders in the file, and those with their jobs."""
    hf, db = open_shop(path)
    orders = [order for (order,) in db.execute("select id from orders")]
    jobs: dict[int, int] = {}
    cursor = None
    while True:
        page = hf.jobs.page(cursor=cursor, limit=1000)
        for job in page.jobs:
            order = job.args["order_id"]
            jobs[order] = jobs.get(order, 0) + 1
        cursor = page.next_cursor
        if cursor is None:
            break
    hf.close()
    db.close()
    return Findings(
        told=len(told),
        orders=len(orders),
        jobs=sum(jobs.values()),
        lost=len(set(told) - set(orders)) + sum(max(JOBS_PER_ORDER - jobs.get(order, 0), 0) for order in orders),
        doubled=sum(max(number - JOBS_PER_ORDER, 0) for number in jobs.values()),
        orphaned=sum(number for order, number in jobs.items() if order not in set(orders)),
    )


def report(findings: Findings, seconds: float) -> None:
    print(f"\n  in {seconds:.0f} s, with a wait for the disk in every order:")
    for name, number in (
        ("orders that customers were told of", findings.told),
        ("orders in the database", findings.orders),
        ("jobs that wait for a worker", findings.jobs),
        ("lost", findings.lost),
        ("doubled", findings.doubled),
        ("jobs without their order", findings.orphaned),
    ):
        print(f"    {name:<36}{number:>8,}")
    if findings.orders > findings.told:
        print("\n  More orders than were told of: those were on disk, and the kill came before the answer.")


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
