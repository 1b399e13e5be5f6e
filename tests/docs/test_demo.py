"""`make demo` does what it says, and would notice if anything were lost."""

from __future__ import annotations

import importlib.util
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "orders" / "demo.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("orders_demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_shop_that_is_killed_loses_nothing() -> None:
    finished = subprocess.run([sys.executable, str(DEMO), "2"], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "kill -9, number 2" in finished.stdout
    shown = dict(line.strip().rsplit(maxsplit=1) for line in finished.stdout.splitlines() if line.startswith("    "))
    assert int(shown["orders in the database"].replace(",", "")) > 0
    assert (shown["lost"], shown["doubled"], shown["jobs without their order"]) == ("0", "0", "0")


@pytest.mark.parametrize(
    ("harm", "finding"),
    [
        ("delete from holdfast_jobs where id = (select min(id) from holdfast_jobs)", "lost"),
        ("delete from orders where id = 1", "lost"),
        ("delete from orders where id = 1", "orphaned"),
        (
            "update holdfast_jobs set args = '{\"order_id\": 1}' where id = (select max(id) from holdfast_jobs)",
            "doubled",
        ),
    ],
)
def test_the_audit_notices(demo: ModuleType, tmp_path: Path, harm: str, finding: str) -> None:
    path = str(tmp_path / "shop.db")
    told = demo.run_and_kill(path, 0.1)
    assert demo.audit(path, told).is_good
    with sqlite3.connect(path) as db:
        db.execute(harm)
    db.close()
    found = demo.audit(path, told)
    assert getattr(found, finding) > 0
    assert not found.is_good
