"""`make demo`: a shop takes orders while everything around it fails, and nothing is lost.

Its providers fail, one job crashes its process, another one blocks it, and a worker process is killed with -9.

Everything happens on one SQLite file in a temporary folder, and on this machine's own loopback. At the end the orders
that customers were told of are compared with what became of their jobs. The exit status tells.
"""

import asyncio
import os
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
from rich.console import Console
from rich.live import Live
from rich.table import Table

HERE = Path(__file__).parent
JOBS_PER_ORDER = 5
POISON_ORDER = 30
BLOCKING_ORDER = 60
PATIENCE = 50.0
console = Console(highlight=False)


@dataclass
class Findings:
    """What was promised, and what came of it."""

    told: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    refused: int = 0
    states: Counter[str] = field(default_factory=Counter)
    retried: int = 0
    unfinished: int = 0
    dead: list[tuple[str, int, str]] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    killed: int = 0
    seen: dict[str, int] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        only_the_poison = [order for _, order, _ in self.dead] == [POISON_ORDER]
        return (
            bool(self.told)
            and not (self.lost or self.doubled or self.unfinished)
            and only_the_poison
            and self.killed > 0
        )


def main(orders: int = 250) -> int:
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder, ExitStack() as stack:
        shop = Shop(Path(folder), stack)
        findings = asyncio.run(shop.run(orders))
    report(findings)
    return 0 if findings.is_good else 1


class Shop:
    """The processes of the demo, and what is seen of them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.database = folder / "shop.db"
        self.log = Path(os.environ.get("SHOP_LOG", folder / "worker.log"))
        self._stack = stack
        self._shop_port, self._provider_port = free_port(), free_port()
        self._environment = {
            **os.environ,
            "SHOP_DATABASE": str(self.database),
            "SHOP_PROVIDERS": f"http://127.0.0.1:{self._provider_port}",
            "SHOP_POISON_ORDER": str(POISON_ORDER),
            "SHOP_BLOCKING_ORDER": str(BLOCKING_ORDER),
        }
        self.findings = Findings()
        self._note = ""

    async def run(self, orders: int) -> Findings:
        console.print(
            "A shop takes orders over HTTP. Behind each are five jobs: mail, analytics, warehouse, invoice, search."
        )
        console.print(
            "The mail provider fails, analytics says 429, one order crashes its process, one blocks it. We kill -9.\n"
        )
        self._start("-m", "uvicorn", "providers:web", "--port", str(self._provider_port), "--log-level", "warning")
        self._start("-m", "uvicorn", "shop:web", "--port", str(self._shop_port), "--log-level", "warning")
        await self._wait_for(self._shop_port)
        await self._wait_for(self._provider_port)
        worker = self._start("-m", "holdfast", "worker", "shop:hf", "--processes", "2", "--grace", "5s", log=self.log)
        started = time.monotonic()
        with Live(self._picture(), console=console, refresh_per_second=8) as live:
            customers = asyncio.create_task(self._customers(orders))
            is_killed = False
            while time.monotonic() - started < PATIENCE:
                await asyncio.sleep(0.15)
                live.update(self._picture())
                if not is_killed and len(self.findings.told) >= orders // 2:
                    is_killed = self._kill_a_child(worker.pid)
                if customers.done() and not self._unfinished():
                    break
            await customers
            live.update(self._picture())
        await self._audit()
        worker.send_signal(signal.SIGTERM)
        worker.wait(20)
        return self.findings

    # ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, *arguments: str, log: Path | None = None) -> subprocess.Popen[bytes]:
        output = self._stack.enter_context(log.open("wb")) if log is not None else subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=HERE, env=self._environment, stdout=output, stderr=output
        )
        self._stack.callback(end, process)
        return process

    async def _wait_for(self, port: int) -> None:
        for _ in range(400):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                await asyncio.sleep(0.05)
        raise SystemExit("The demo's own servers did not come up.")

    def _kill_a_child(self, supervisor: int) -> bool:
        """Kill -9 a process of the worker that is at work right now."""
        with closing(sqlite3.connect(self.database, timeout=30)) as db:
            busy = db.execute(
                "select w.pid from holdfast_workers as w join holdfast_jobs as j on j.worker = w.id and j.stage = 3 "
                "where w.dead_at is null limit 1"
            ).fetchone()
        if busy is None:
            return False
        os.kill(busy[0], signal.SIGKILL)
        self.findings.killed += 1
        self._note = f"kill -9 {busy[0]}: a worker process in the middle of its jobs"
        return True

    # ── customers ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _customers(self, orders: int) -> None:
        left = iter(range(orders))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._shop_port}", timeout=30) as http:
            await asyncio.gather(*(self._customer(http, left) for _ in range(6)))

    async def _customer(self, http: httpx.AsyncClient, left: Any) -> None:
        for _ in left:
            started = time.perf_counter()
            answer = await http.post("/orders")
            self.findings.waits.append(time.perf_counter() - started)
            if answer.status_code == 202:
                self.findings.told.append(answer.json()["order"])
            else:
                self.findings.refused += 1
            await asyncio.sleep(0.06)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _states(self) -> Counter[str]:
        names = {1: "scheduled", 2: "waiting", 3: "running", 4: "completed", 5: "cancelled", 6: "dead"}
        if not self.database.exists():
            return Counter()
        with closing(sqlite3.connect(self.database, timeout=30)) as db:
            try:
                rows = db.execute("select stage, count(*) from holdfast_jobs group by stage").fetchall()
            except sqlite3.OperationalError:
                return Counter()  # no table yet
        return Counter({names[stage]: number for stage, number in rows})

    def _unfinished(self) -> int:
        states = self._states()
        return states["scheduled"] + states["waiting"] + states["running"]

    def _picture(self) -> Table:
        states = self._states()
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        waits = sorted(self.findings.waits) or [0.0]
        table.add_row("orders", f"{len(self.findings.told):,}", f"answered in {waits[len(waits) // 2] * 1000:.1f} ms")
        for name in ("waiting", "scheduled", "running", "completed", "dead"):
            table.add_row(name, f"{states[name]:,}", "█" * min(60, states[name] // 25))
        table.add_row("", "", self._note)
        return table

    # ── auditing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _audit(self) -> None:
        found = self.findings
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._provider_port}") as http:
            ledger = (await http.get("/ledger")).json()
        found.seen = ledger["seen"]
        with closing(sqlite3.connect(self.database)) as db:
            audit(db, ledger, found)


def audit(db: sqlite3.Connection, ledger: dict[str, dict[str, int]], found: Findings) -> None:
    """Compare what customers were told with what there is."""
    jobs = db.execute(
        "select task, json_extract(args, '$.order_id'), stage, attempt, error_message from holdfast_jobs"
    ).fetchall()
    found.states = Counter(
        "completed" if stage == 4 else "dead" if stage == 6 else "unfinished" for _, _, stage, _, _ in jobs
    )
    found.unfinished = found.states["unfinished"]
    found.dead = [(task, order, message) for task, order, stage, _, message in jobs if stage == 6]
    found.retried = sum(stage == 4 and attempt > 1 for _, _, stage, attempt, _ in jobs)
    per_order = Counter(order for _, order, *_ in jobs)
    told = set(found.told)
    found.lost = sum(per_order[order] != JOBS_PER_ORDER for order in told)
    effects = {
        "ship": Counter(order for (order,) in db.execute("select order_id from shipments")),
        "write_invoice": Counter(order for (order,) in db.execute("select order_id from invoices")),
        "send_confirmation": Counter(ledger["mails"].values()),
        "count_in_analytics": Counter(ledger["events"].values()),
    }
    found.doubled = sum(number > 1 for counter in effects.values() for number in counter.values())
    done = {(task, order) for task, order, stage, _, _ in jobs if stage == 4}
    found.lost += sum(not effects[task][order] for task, order in done if task in effects)


def report(found: Findings) -> None:
    waits = sorted(found.waits) or [0.0]
    shown = Table(box=None, show_header=False, padding=(0, 3, 0, 0))
    shown.add_row("orders answered", f"{len(found.told):,}")
    shown.add_row(
        "  response time",
        f"p50 {statistics.median(waits) * 1000:.1f} ms, p99 {waits[int(len(waits) * 0.99)] * 1000:.1f} ms",
    )
    shown.add_row("jobs completed", f"{found.states['completed']:,}")
    shown.add_row("  of these after a retry", f"{found.retried:,}")
    shown.add_row("worker processes killed with -9", f"{found.killed}")
    for name, number in found.seen.items():
        shown.add_row(f"  {name}", f"{number:,}")
    for task, order, message in found.dead:
        shown.add_row("dead letter", f"{task} of order {order}: {message}")
    if found.unfinished:
        shown.add_row("unfinished", f"{found.unfinished:,}")
    console.print(shown)
    console.print(
        f"\n    lost: {found.lost}    doubled effects: {found.doubled}\n",
        style="bold green" if found.is_good else "bold red",
    )


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
