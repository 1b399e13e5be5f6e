"""`make demo` does what it says, and would notice if anything were lost or done twice."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "shop" / "demo.py"
TASKS = ("send_confirmation", "count_in_analytics", "ship", "write_invoice", "update_index")


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shop_demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_shop_around_which_everything_fails_loses_nothing() -> None:
    finished = subprocess.run(
        [sys.executable, str(DEMO), "80"], capture_output=True, text=True, timeout=90, check=False
    )
    shown = re.sub(r"\s+", " ", finished.stdout)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "orders answered 80 " in shown
    assert "worker processes killed with -9 1 " in shown
    assert "dead letter update_index of order 30" in shown
    assert "lost: 0 doubled effects: 0" in shown


# ── the audit ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    """Two orders, one of them the poison one, as a good run leaves them."""
    connection = sqlite3.connect(":memory:")
    connection.execute("create table holdfast_jobs (task, args, stage, attempt, error_message)")
    connection.execute("create table shipments (order_id)")
    connection.execute("create table invoices (order_id)")
    for order in (1, 30):
        for task in TASKS:
            stage = 6 if (task, order) == ("update_index", 30) else 4
            connection.execute(
                "insert into holdfast_jobs values (?, json_object('order_id', ?), ?, 1, 'why')", (task, order, stage)
            )
        connection.execute("insert into shipments values (?)", (order,))
        connection.execute("insert into invoices values (?)", (order,))
    yield connection
    connection.close()


def ledger() -> dict[str, dict[str, int]]:
    return {"mails": {"one": 1, "two": 30}, "events": {"one": 1, "two": 30}}


def findings(demo: ModuleType, db: sqlite3.Connection, ledger: dict[str, dict[str, int]]) -> Any:
    found = demo.Findings(told=[1, 30], killed=1)
    demo.audit(db, ledger, found)
    return found


def test_a_good_run_is_good(demo: ModuleType, db: sqlite3.Connection) -> None:
    found = findings(demo, db, ledger())
    assert found.is_good
    assert found.dead == [("update_index", 30, "why")]


@pytest.mark.parametrize(
    ("harm", "finding"),
    [
        ("delete from holdfast_jobs where task = 'ship' and json_extract(args, '$.order_id') = 1", "lost"),
        ("delete from shipments where order_id = 1", "lost"),
        ("insert into shipments values (1)", "doubled"),
        ("insert into invoices values (30)", "doubled"),
        ("update holdfast_jobs set stage = 2 where task = 'ship'", "unfinished"),
    ],
)
def test_the_audit_notices(demo: ModuleType, db: sqlite3.Connection, harm: str, finding: str) -> None:
    db.execute(harm)
    found = findings(demo, db, ledger())
    assert getattr(found, finding) > 0
    assert not found.is_good


def test_the_audit_notices_a_mail_that_was_sent_twice_or_never(demo: ModuleType, db: sqlite3.Connection) -> None:
    doubled, missing = ledger(), ledger()
    doubled["mails"]["three"] = 1
    del missing["mails"]["one"]
    assert findings(demo, db, doubled).doubled == 1
    assert findings(demo, db, missing).lost == 1


def test_another_dead_letter_than_the_expected_one_is_not_good(demo: ModuleType, db: sqlite3.Connection) -> None:
    db.execute("update holdfast_jobs set stage = 6 where task = 'ship' and json_extract(args, '$.order_id') = 1")
    assert not findings(demo, db, ledger()).is_good
